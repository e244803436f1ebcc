"""A watch of connections that counts their turns (:class:`skylark.net.inbound.Watch`)."""

from __future__ import annotations


class CountingWatch:
    """Bytes that are read in turn n count as arrived at n."""

    def __init__(self) -> None:
        self.turns = 0
        self.going_on: list[bool] = []  #: of each turn that has ended

    def read(self, _now: float) -> float:
        self.turns += 1
        return float(self.turns)

    def served(self, *, goes_on: bool) -> None:
        self.going_on.append(goes_on)
