"""Requests that are being worked on: how much memory they take, for back-pressure.

Part of :class:`skylark.net.connection.Connection`. A request counts from the moment at which its
handler says that the answer comes later until the answer is there. A handler may have answered
before it says so: what it waited for was there already. Requests are told apart by their identity,
which is theirs for as long as they live; so those that were answered early are kept until then.
"""

from __future__ import annotations

from skylark.wire.command import Command


def held_size(request: Command) -> int:
    """About how much memory a request takes; its header counts because it may be large as well."""
    return request.memory_size


class HeldRequests:
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
