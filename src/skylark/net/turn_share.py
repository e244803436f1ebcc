"""The share of one connection in a turn of the event loop: bytes, frames, replies, tasks, time.

One loop serves all connections of a process. A *turn* of it is one poll of all sockets and the
callbacks that follow. The poll alone shares nothing out: libuv reads up to 32 times from one socket
before it looks at the next, uvloop 256 KB each time, so that one turn may bring 8 MB of one
producer while the pulls of its consumer wait in the kernel.

So each connection has a share per turn (``NetLimits.*_per_turn_max``). What it delivered beyond
that waits, and while anything waits nothing more is read from it::

    turn n    | flood: its share             | quiet: 1 request |
    turn n+1  | flood: its share (call_soon) | quiet: 1 request | ...

``call_soon`` is the next turn on asyncio and on uvloop: each polls all sockets between two rounds
of such callbacks. Between two services of a connection that always has a request ready, another one
gets its share once, and less than that again: what was read is not cut to fit the rest.

* :class:`TurnShare` counts for connections with frames (:mod:`skylark.net.inbound`).
* :class:`ReadPacer` is the rule for protocols whose bytes cost about the same however they are cut
  (replication): it only stops and resumes reading.

All but the time is counted over as many turns as it takes to use a share up: a connection that
delivers little needs no callback in each turn to begin a new share, only one once in a while.

Java has a thread per group of connections (Netty) and pools of threads behind it, and leaves the
sharing to the operating system.
"""

from __future__ import annotations

import asyncio

from skylark.net.limits import NetLimits


class TurnShare:
    """What is left for one connection in this turn; each count may end below zero."""

    __slots__ = ("_limits", "bytes_left", "bytes_out_max", "frames_left", "tasks_left")

    def __init__(self, limits: NetLimits) -> None:
        self._limits = limits
        self.renew(0)

    def renew(self, bytes_out: int) -> None:
        """Begin a new share; ``bytes_out`` were written so far."""
        limits = self._limits
        self.bytes_left = limits.bytes_per_turn_max
        self.frames_left = limits.frames_per_turn_max
        self.tasks_left = limits.tasks_per_turn_max
        self.bytes_out_max = bytes_out + limits.reply_bytes_per_turn_max

    def is_used_up(self, bytes_out: int) -> bool:
        """Whether more has to wait for :meth:`renew`; ``bytes_out`` were written so far."""
        return (
            self.frames_left <= 0
            or self.bytes_left <= 0
            or self.tasks_left <= 0
            or bytes_out >= self.bytes_out_max
        )


class ReadPacer:
    """Stops reading from a transport that has delivered its share, until the next turn."""

    __slots__ = ("_left", "_size_max", "_transport")

    def __init__(self, size_max: int | None = None) -> None:
        self._size_max = NetLimits().bytes_per_turn_max if size_max is None else size_max
        self._left = self._size_max
        self._transport: asyncio.Transport | None = None  # that is to be resumed

    def delivered(self, transport: asyncio.Transport, size: int) -> None:
        """The transport has delivered so many bytes; call it for all of them."""
        self._left -= size
        if self._left <= 0 and self._transport is None and not transport.is_closing():
            self._transport = transport
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        transport, self._transport = self._transport, None
        self._left = self._size_max
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
