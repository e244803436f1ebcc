"""Requests of one connection that wait for their turn, in the order in which they came.

Those that arrived together can be taken together, if they have a handler that wants them so
(:attr:`skylark.net.dispatch.Dispatcher.runs`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from skylark.net.inflight_requests import held_size
from skylark.wire.command import Command

#: Bytes of bodies after which a run ends: nothing else is looked at while it is being handled.
RUN_SIZE_MAX: Final = 128 << 10


class Backlog(deque[tuple[Command, float]]):
    """A queue of requests, each with the time at which its bytes arrived."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """About how much memory all of them take."""
        return sum(held_size(request) for request, _ in self)

    def add(self, request: Command, arrived_at: float) -> None:
        self.append((request, arrived_at))

    def take(self, runs: Mapping[int, object], count_max: int) -> tuple[list[Command], float]:
        """The next request and when it arrived; if its code is in ``runs``, with those like it.

        These are the ones whose codes have the same value there, up to ``RUN_SIZE_MAX``.
        """
        first, arrived_at = self.popleft()
        run = [first]
        code = first.code
        if self and code in runs:
            size = len(first.body or b"")
            while self and len(run) < count_max and size < RUN_SIZE_MAX:
                request, at = self[0]
                size += len(request.body or b"")
                if at != arrived_at or (
                    request.code != code and runs.get(request.code) != runs[code]
                ):
                    break
                run.append(request)
                self.popleft()
        return run, arrived_at
