"""The outbound half of a connection: queues frames, writes them in portions, and bounds them.

Part of :class:`skylark.net.connection.Connection`. The queue itself, with the leases on views of
mapped files, is :mod:`skylark.net.write_queue`; this module decides *when* it is written::

    send -> WriteQueue -> at frames_per_write_max, at bytes_per_write_max,
                          at the end of a batch, or in the next turn of the loop
                       -> one write to the transport

Back-pressure has three marks. The high-water mark of the transport is zero, so that it reports when
it has written all bytes: then leases on views end. Above ``write_buffer_high`` the peer counts as
not reading (:attr:`Outbound.paused`) until it has read all bytes; its requests and callers wait.
Responses and one-way requests that do not wait are bounded too: a peer with more than
``write_buffer_max`` unread bytes is disconnected.

Callers that wait for room to write, for a permit of the call window or for the end of the
connection share one future (:meth:`Outbound.room_announced`), and check again when it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from skylark.core.clock import Clock
from skylark.core.errors import ConnectionClosedError
from skylark.net.limits import NetLimits
from skylark.net.link import Link
from skylark.net.write_queue import WriteQueue
from skylark.wire.command import Command

logger = logging.getLogger(__name__)


class Outbound:
    """Writes commands to one link."""

    def __init__(
        self, link: Link, clock: Clock, limits: NetLimits, on_paused: Callable[[], None]
    ) -> None:
        """``on_paused`` is called when :attr:`paused` has become true."""
        self.queue = WriteQueue()
        self.bytes_out = 0
        #: Unsent bytes exceeded ``write_buffer_high`` and have not been sent completely since.
        self.paused = False
        #: Requests are being handled: their responses are written at the end, or in portions.
        self.in_batch = False
        self._link = link
        self._monotonic = clock.monotonic
        self._limits = limits
        self._on_paused = on_paused
        self._loop = asyncio.get_running_loop()
        self._flush_scheduled = False
        self._room: asyncio.Future[None] | None = None
        self._when_writable: deque[Callable[[], None]] = deque()

    # --- frames ---------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Queue one command; it is written with others of this batch or of this loop turn.

        Many commands are written in portions, so that the peer handles the first while the next are
        made. Small portions cost both ends more than they gain.
        """
        self.add(command)
        self._added()

    def send_frame(self, frame: bytes) -> None:
        """:meth:`send` an encoded command; does nothing while closing."""
        if not self._link.is_closing:
            self.queue.add_frame(frame)
            self._added()

    def send_now(self, command: Command) -> None:
        """Write one command, after all queued ones."""
        self.add(command)
        self.flush()

    def write_raw(self, data: bytes) -> None:
        """Write bytes of the byte filter itself, past the queue."""
        if data and self._link.transport is not None:
            self._link.transport.write(data)

    def add(self, command: Command) -> None:
        """Queue one command for the next flush."""
        if self._link.is_closing or self._link.transport is None:
            raise ConnectionClosedError(f"{self._link!r} is closed")
        self.queue.add(command)

    def _added(self) -> None:
        limits, queue = self._limits, self.queue
        if queue.count >= limits.frames_per_write_max or queue.size >= limits.bytes_per_write_max:
            self.flush()
        elif not (self.in_batch or self._flush_scheduled):
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write all queued commands to the transport at once."""
        link, queue = self._link, self.queue
        transport, byte_filter = link.transport, link.byte_filter
        if not queue.count or link.is_closing or transport is None:
            return
        link.active_at = self._monotonic()
        try:
            encode = None if byte_filter is None else byte_filter.sending
            self.bytes_out += queue.write(transport, encode)
        except Exception:
            # These responses are lost: the peer must not wait for them.
            logger.exception("closing %r: its responses cannot be written", link)
            self.abort()
            return
        unsent_size = transport.get_write_buffer_size()
        if not unsent_size:
            queue.sent()
        elif unsent_size > self._limits.write_buffer_max:
            logger.warning("closing %r: it does not read, %d bytes are unsent", link, unsent_size)
            self.abort()
        elif unsent_size > self._limits.write_buffer_high and not self.paused:
            self.paused = True
            self._on_paused()

    # --- back-pressure --------------------------------------------------------------------------

    def all_written(self) -> bool:
        """The transport has written all bytes; returns whether the peer counted as not reading."""
        self.queue.sent()
        if not self.paused:
            return False
        self.paused = False
        self.announce_room()
        self._call_writers()
        return True

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        """Call back once the peer has read the unsent bytes, or once the connection has ended."""
        self._when_writable.append(callback)

    def _call_writers(self) -> None:
        while self._when_writable and not (self.paused and not self._link.is_closing):
            self._when_writable.popleft()()

    async def drain(self) -> None:
        """Wait until the peer reads again, or the connection is closing."""
        while self.paused and not self._link.is_closing:
            await self.room_announced()

    async def room_announced(self) -> None:
        """Wait for the next :meth:`announce_room`."""
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    @property
    def is_room_awaited(self) -> bool:
        return self._room is not None

    def announce_room(self) -> None:
        """Wake callers that wait for room to write, a permit, or the end of the connection."""
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Write the queue, then close; the idle check aborts a peer that does not read."""
        link = self._link
        if link.transport is not None and not link.is_closing:
            self.flush()
            link.is_closing = True
            link.active_at = self._monotonic()
            link.transport.close()
            self.announce_room()

    def abort(self) -> None:
        """Close at once; queued bytes are lost."""
        link = self._link
        if link.transport is not None:
            link.is_closing = True
            link.transport.abort()
            self.announce_room()

    def lost(self) -> None:
        """End all leases and waits: the transport has ended."""
        self.queue.drop()
        self.announce_room()
        self._call_writers()
