"""The share of one connection in a turn of the event loop: bytes, frames, responses, tasks, time.

One loop serves all connections of a process. A *turn* is one poll of all sockets and the callbacks
that follow. The poll alone is not fair: libuv reads up to 32 times from one socket before the next
one, uvloop 256 KB each time, so that one turn may bring 8 MB of one producer while the pulls of a
consumer wait in the kernel.

So each connection has a share per turn (``NetLimits.*_per_turn_max``). Bytes beyond it wait, and
the connection stops reading while bytes or requests wait::

    turn n    | flood: its share             | quiet: 1 request |
    turn n+1  | flood: its share (call_soon) | quiet: 1 request | ...

``call_soon`` runs in the next turn on asyncio and on uvloop: both poll all sockets between two
rounds of such callbacks. Between two turns of a connection that always has a request ready, another
connection gets at most one share and less than a second one, because a chunk that was read is not
split to fit the rest of a share.

* :class:`TurnShare` is for connections with frames (:mod:`skylark.net.inbound`).
* :class:`ReadPacer` is for protocols whose cost depends on the bytes only (replication): it only
  pauses and resumes reading.

All limits but the time span as many turns as it takes to use up a share: a connection with little
traffic needs no callback in each turn to renew its share, only one once in a while.

Java has a thread per group of connections (Netty) and thread pools behind it, and leaves fairness
to the operating system.
"""

from __future__ import annotations

import asyncio

from skylark.net.limits import NetLimits


class TurnShare:
    """The rest of the share of one connection; each count may fall below zero."""

    __slots__ = ("_limits", "bytes_left", "bytes_out_max", "frames_left", "tasks_left")

    def __init__(self, limits: NetLimits) -> None:
        self._limits = limits
        self.renew(0)

    def renew(self, bytes_out: int) -> None:
        """Start a new share; ``bytes_out`` is the number of bytes written so far."""
        limits = self._limits
        self.bytes_left = limits.bytes_per_turn_max
        self.frames_left = limits.frames_per_turn_max
        self.tasks_left = limits.tasks_per_turn_max
        self.bytes_out_max = bytes_out + limits.reply_bytes_per_turn_max

    def is_used_up(self, bytes_out: int) -> bool:
        """Whether further work must wait for :meth:`renew`; ``bytes_out`` as there."""
        return (
            self.frames_left <= 0
            or self.bytes_left <= 0
            or self.tasks_left <= 0
            or bytes_out >= self.bytes_out_max
        )


class ReadPacer:
    """Pauses reading from a transport that has delivered its share, until the next turn."""

    __slots__ = ("_left", "_size_max", "_transport")

    def __init__(self, size_max: int | None = None) -> None:
        self._size_max = NetLimits().bytes_per_turn_max if size_max is None else size_max
        self._left = self._size_max
        self._transport: asyncio.Transport | None = None  # the paused one

    def delivered(self, transport: asyncio.Transport, size: int) -> None:
        """Count bytes that the transport has delivered; call it for all of them."""
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
