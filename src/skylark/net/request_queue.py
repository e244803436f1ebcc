"""Requests of one connection: those that wait for their turn, and those being worked on.

Part of :class:`skylark.net.inbound.Inbound`.

Requests wait in the order in which they came. Those that arrived together can be taken together, if
they have a handler that wants them so (:attr:`skylark.net.dispatch.Dispatcher.runs`).

A request is *in flight* from the moment at which its handler says that the answer comes later until
the answer is there; its memory counts for back-pressure. A handler may have answered before it says
so: what it waited for was there already. Requests are told apart by their identity, which is theirs
for as long as they live; so those that were answered early are kept until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from skylark.wire.command import Command

#: Bytes of bodies after which a run ends: nothing else is looked at while it is being handled.
RUN_SIZE_MAX: Final = 128 << 10


def held_size(request: Command) -> int:
    """About how much memory a request takes; its header counts because it may be large as well."""
    return request.memory_size


class RequestQueue(deque[tuple[Command, float]]):
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


class InflightRequests:
    """Those of one connection whose answers come later."""

    __slots__ = ("_early", "_sizes", "size")

    def __init__(self) -> None:
        self.size = 0  #: of all; tasks add theirs
        self._sizes: dict[int, int] = {}  # by the identity of the request
        self._early: dict[int, Command] = {}  # answered while their handlers still run

    def hold(self, request: Command) -> None:
        """The handler has returned, and answers later: :meth:`let_go` comes, or came, once."""
        if self._early.pop(id(request), None) is None:
            size = self._sizes[id(request)] = held_size(request)
            self.size += size

    def let_go(self, request: Command) -> None:
        """The answer is there."""
        size = self._sizes.pop(id(request), None)
        if size is None:
            self._early[id(request)] = request  # its handler still runs, and :meth:`hold` follows
        else:
            self.size -= size
