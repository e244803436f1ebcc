"""The inbound half of a connection: bytes to frames, frames to requests, requests to handlers.

Part of :class:`skylark.net.connection.Connection`::

    data_received -> bytes that wait
    a turn: bytes -> byte filter -> FrameBuffer.feed -> responses settle their calls
                                                     -> requests join the RequestQueue
            RequestQueue -> dispatcher (hot handlers run inline, cold ones as tasks)
                         -> responses are written in portions, each in one write

Requests of one connection are handled in the order of their arrival. A turn begins when bytes
arrive, and ends when all requests are handled or the connection has used up its share
(:mod:`skylark.net.turn_share`); the rest waits for the next turn of the loop, and the connection
stops reading meanwhile. Bytes beyond the share are not decoded yet: they wait here as if in the
kernel.

Back-pressure: while the peer does not read, or too many of its requests are in progress, its
requests wait, the connection stops reading, and further bytes stay in the kernel. One exception:
responses to calls of this end are read past waiting requests, up to the requests of one turn. Two
ends that pipeline more than the kernel buffers would otherwise each wait for the other to read
first.

Each request has the time at which its bytes arrived (:attr:`Inbound.arrived_at`), also if it waits
for a later turn. Bytes beyond the share count as arrived when they become frames: until then they
wait for the turns of other connections, which fast failure must not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from skylark.core.clock import Clock
from skylark.core.errors import RemoteProtocolError
from skylark.net.calls import Calls
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.link import ByteFilter, Link
from skylark.net.outbound import Outbound
from skylark.net.request_queue import InflightRequests, RequestQueue, held_size
from skylark.net.turn_share import TurnShare
from skylark.wire.command import FLAG_RESPONSE, Command
from skylark.wire.frame import FrameBuffer

if TYPE_CHECKING:
    from skylark.net.connection import Connection

logger = logging.getLogger(__name__)

#: Chooses a byte filter by the first bytes; None for plain frames. May raise RemoteProtocolError.
FirstBytes = Callable[["Connection", bytes], ByteFilter | None]


class Watch(Protocol):
    """Is told of the work of all connections, and decides when bytes count as arrived."""

    def read(self, now: float) -> float:
        """Work begins; returns when bytes that are read now count as arrived."""

    def served(self, *, goes_on: bool) -> None:
        """The work is done; ``goes_on``: tasks go on with it in the next turn of the loop."""


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Hooks that the owner of connections, a server or a client, adds to each of them."""

    #: Chooses the byte filter of a connection by its first bytes.
    first_bytes: FirstBytes | None = None
    #: Without it, bytes arrive when they are read.
    watch: Watch | None = None
    #: A connection adds itself when it starts to hold bytes for its peer; the owner removes it
    #: (see :attr:`skylark.net.connection.Connection.held_size`).
    holders: set[Connection] | None = None
    #: Called when a connection is open.
    on_open: Callable[[Connection], None] | None = None
    #: Called when a connection has ended, with the error if there was one.
    on_close: Callable[[Connection, Exception | None], None] | None = None


class Inbound:
    """Received bytes and requests of one connection, up to the call of their handlers."""

    def __init__(
        self,
        connection: Connection,
        link: Link,
        outbound: Outbound,
        calls: Calls,
        dispatcher: Dispatcher,
        clock: Clock,
        limits: NetLimits,
        owner: Owner,
    ) -> None:
        self.bytes_in = 0
        #: When the bytes of the current request arrived.
        self.arrived_at = 0.0
        #: Running handlers.
        self.tasks: set[asyncio.Task[None]] = set()
        self._connection = connection
        self._link = link
        self._outbound = outbound
        self._calls = calls
        self._dispatcher = dispatcher
        self._monotonic = clock.monotonic
        self._limits = limits
        self._bytes_max = limits.bytes_per_turn_max
        self._seconds_max = limits.seconds_per_turn_max
        self._run_max = min(limits.frames_per_turn_max, limits.frames_per_write_max)
        self._watch = owner.watch
        self._holders = owner.holders
        self._first_bytes = owner.first_bytes
        self._loop = asyncio.get_running_loop()
        self._frames = FrameBuffer(limits.frame_size_max)
        self._share = TurnShare(limits)
        self._unread: deque[bytes] = deque()  # received beyond the share: not frames yet
        self._unread_position = 0  # in the first chunk
        self._queue = RequestQueue()
        self._inflight = InflightRequests()
        self._turn_scheduled = False
        self._starts_tasks = False  # in this turn
        self._reading = True

    # --- bytes ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the socket."""
        link = self._link
        if link.is_closing:
            return
        self.bytes_in += len(data)
        now = link.active_at = self._monotonic()
        if self._turn_scheduled or self._unread:
            self._unread.append(data)  # the share is used up, or the connection is blocked
            self._hold_bytes()
            self.update_reading()
            return
        arrived_at = now if self._watch is None else self._watch.read(now)
        if len(data) > self._bytes_max or not self._wants_bytes():
            self._unread.append(data)
        else:
            self._share.bytes_left -= len(data)
            self._feed(data, arrived_at)
        self._take_turn(now, arrived_at)

    def _take_bytes(self) -> bytes:
        """The next waiting bytes: one chunk, but no more than a share."""
        unread, size_max = self._unread, self._bytes_max
        data, position = unread[0], self._unread_position
        end = position + size_max
        if end < len(data):
            self._unread_position = end
            data = data[position:end]
        else:
            unread.popleft()
            self._unread_position = 0
            if position:
                data = data[position:]
        self._share.bytes_left -= len(data)
        return data

    def _feed(self, data: bytes, arrived_at: float) -> None:
        """Decode bytes into frames; responses settle their calls, requests join the queue."""
        link = self._link
        try:
            if self._first_bytes is not None:
                self._choose_filter(data)
            if link.byte_filter is not None:
                data, answer = link.byte_filter.received(data)
                self._outbound.write_raw(answer)
            commands = self._frames.feed(data)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        queue = self._queue
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                self._share.frames_left -= 1
                self._starts_tasks = True  # the caller goes on
                if not self._calls.settle(command):
                    logger.debug("%r: response %s matches no call", link, command.opaque)
            else:
                queue.append((command, arrived_at))

    def _choose_filter(self, data: bytes) -> None:
        assert self._first_bytes is not None
        chooser, self._first_bytes = self._first_bytes, None
        self._link.byte_filter = chooser(self._connection, data)

    def _fail(self, error: RemoteProtocolError) -> None:
        logger.warning("closing %r: %s", self._link, error)
        self._outbound.close()

    # --- turns ----------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Handle requests and read bytes again, if nothing blocks them any more."""
        self._schedule_turn()
        self.update_reading()

    def _schedule_turn(self) -> None:
        """Schedule a turn if requests or bytes wait and are not blocked; else ``go_on`` does."""
        if self._turn_scheduled:
            return
        if (self._queue and not self._is_blocked()) or (self._unread and self._wants_bytes()):
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if not self._link.is_closing:
            self._share.renew(self._outbound.bytes_out)
            now = self._monotonic()
            self._take_turn(now, now if self._watch is None else self._watch.read(now))

    def _take_turn(self, now: float, arrived_at: float) -> None:
        """Handle requests and decode bytes up to the share of this turn; write the responses."""
        outbound, share, queue, unread = self._outbound, self._share, self._queue, self._unread
        dispatcher, connection, runs = self._dispatcher, self._connection, self._dispatcher.runs
        in_runs, outbound.in_batch = 0, True
        try:
            while (queue or unread) and not self._link.is_closing:
                if queue and not self._is_blocked():
                    run = self._next_run()
                    if run[0].code in runs:
                        dispatcher.dispatch_run(connection, run)
                        in_runs += len(run)
                    else:
                        dispatcher.dispatch(connection, run[0])
                elif unread and self._wants_bytes():
                    self._feed(self._take_bytes(), arrived_at)
                else:
                    break
                if (queue or unread) and (
                    share.is_used_up(outbound.bytes_out)
                    or self._monotonic() - now >= self._seconds_max
                ):
                    break
        finally:
            outbound.in_batch = False
        outbound.flush()
        if in_runs and dispatcher.after_runs is not None:
            dispatcher.after_runs(in_runs)
        if self._frames.error is not None and not self._link.is_closing:
            self._fail(self._frames.error)
        elif queue or unread:
            self._hold_bytes()
            self.go_on()
        else:
            if share.is_used_up(outbound.bytes_out):
                self._turn_scheduled = True  # further bytes of this poll have to wait
                self._loop.call_soon(self._next_turn)
            if self._frames.pending_size:
                self._hold_bytes()
        if not self._reading:
            self.update_reading()
        if self._watch is not None:
            goes_on, self._starts_tasks = self._starts_tasks, False
            self._watch.served(goes_on=goes_on)

    def _next_run(self) -> list[Command]:
        """Take the next run of requests, no more than a share.

        The seam for runs over several connections: a collector would call this for each connection
        of a poll, and the share would still apply per connection.
        """
        run, self.arrived_at = self._queue.take(self._dispatcher.runs, self._run_max)
        self._share.frames_left -= len(run)
        return run

    def _is_blocked(self) -> bool:
        """Whether requests must wait until the peer reads or other requests are done."""
        if self.tasks or self._inflight.size:
            return self._outbound.paused or self._tasks_full()
        return self._outbound.paused

    def _wants_bytes(self) -> bool:
        """Whether to decode further bytes, which wait here or in the kernel."""
        if not self._queue and not self._is_blocked():
            return True
        return len(self._calls) > 0 and not self._queue_full()

    # --- requests in flight ---------------------------------------------------------------------

    def hold(self, request: Command) -> None:
        """Count a request as in flight: its handler responds later."""
        self._inflight.hold(request)
        self._hold_bytes()

    def let_go(self, request: Command) -> None:
        """End the flight of a request: its late response is there."""
        self._inflight.let_go(request)

    def answered(self) -> None:
        """Continue after a late response was sent."""
        if not self._reading or self._queue or self._unread:
            self.go_on()

    def spawn(self, work: Coroutine[Any, Any, None], request: Command) -> asyncio.Task[None]:
        """Run a cold handler as a task, which continues even if the connection closes."""
        self._inflight.size += (size := held_size(request))
        self._share.tasks_left -= 1
        self._starts_tasks = True
        self._hold_bytes()
        task = self._loop.create_task(work)
        self.tasks.add(task)
        self._dispatcher.tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self.tasks.discard(finished)
            self._dispatcher.tasks.discard(finished)
            self._inflight.size -= size
            if not finished.cancelled() and (error := finished.exception()) is not None:
                logger.error("a handler task of %r failed", self._link, exc_info=error)
            self.go_on()

        task.add_done_callback(done)
        return task

    def _tasks_full(self) -> bool:
        limits = self._limits
        return (
            len(self.tasks) >= limits.tasks_per_connection_max
            or self._inflight.size >= limits.task_bytes_per_connection_max
        )

    def _hold_bytes(self) -> None:
        if self._holders is not None:
            self._holders.add(self._connection)

    @property
    def waiting_size(self) -> int:
        """Received bytes that no handler has got yet."""
        unread_size = sum(map(len, self._unread)) - self._unread_position
        return unread_size + self._frames.pending_size + self._queue.size

    @property
    def inflight_size(self) -> int:
        """Bytes of the requests in flight."""
        return self._inflight.size

    def lost(self) -> None:
        """Drop waiting requests and bytes: the connection has ended."""
        # Running handlers are not cancelled: a half-done change is worse than an unread response.
        self._queue.clear()
        self._unread.clear()
        self._unread_position = 0

    # --- reading --------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return self._reading

    def update_reading(self) -> None:
        """Pause or resume reading from the socket, by the state of the connection."""
        transport = self._link.transport
        if transport is None or self._link.is_closing or transport.is_closing():
            return
        wanted = not self._unread and self._wants_bytes()
        if wanted and not self._reading:
            self._reading = True
            transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            transport.pause_reading()

    def _queue_full(self) -> bool:
        return (
            len(self._queue) >= self._limits.frames_per_turn_max
            or self._queue.size >= self._limits.task_bytes_per_connection_max
        )
