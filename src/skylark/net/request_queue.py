"""Requests of one connection: the queue of those that wait, and the set of those in flight.

Part of :class:`skylark.net.inbound.Inbound`.

The queue keeps the order of arrival. Requests that arrived together can be taken as a run, if their
code has a run handler (:attr:`skylark.net.dispatch.Dispatcher.runs`).

A request is *in flight* from the time at which its handler returns LATER until its response is
sent; its memory counts for back-pressure. The response may be sent before the handler returns.
Requests are identified by ``id()``, so one that is answered early is kept alive until ``hold``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from skylark.wire.command import Command

#: Bytes of bodies after which a run ends: the loop does nothing else while it handles a run.
RUN_SIZE_MAX: Final = 128 << 10


def held_size(request: Command) -> int:
    """About how much memory a request takes, its header included."""
    return request.memory_size


class RequestQueue(deque[tuple[Command, float]]):
    """Requests that wait for a handler, each with the time at which its bytes arrived."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """About how much memory all of them take."""
        return sum(held_size(request) for request, _ in self)

    def add(self, request: Command, arrived_at: float) -> None:
        self.append((request, arrived_at))

    def take(self, runs: Mapping[int, object], count_max: int) -> tuple[list[Command], float]:
        """The next request and its time of arrival; if its code is in ``runs``, the next run.

        A run is made of requests that arrived together and have the same value in ``runs``; it ends
        at ``count_max`` requests or ``RUN_SIZE_MAX`` bytes.
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


class InflightRequests:
    """Requests of one connection whose responses come later, and their total size."""

    __slots__ = ("_early", "_sizes", "size")

    def __init__(self) -> None:
        self.size = 0  #: bytes of all; handler tasks add theirs
        self._sizes: dict[int, int] = {}  # by id() of the request
        self._early: dict[int, Command] = {}  # answered before their handlers returned

    def hold(self, request: Command) -> None:
        """The handler has returned LATER; :meth:`let_go` is called once, before or after this."""
        if self._early.pop(id(request), None) is None:
            size = self._sizes[id(request)] = held_size(request)
            self.size += size

    def let_go(self, request: Command) -> None:
        """The response is there."""
        size = self._sizes.pop(id(request), None)
        if size is None:
            self._early[id(request)] = request  # the handler still runs; :meth:`hold` follows
        else:
            self.size -= size
