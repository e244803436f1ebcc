"""The inbound half of a connection: bytes to frames, frames to requests, requests to handlers.

Part of :class:`skylark.net.connection.Connection`::

    data_received -> bytes that wait
    a turn: bytes -> byte filter -> FrameBuffer.feed -> responses settle their calls
                                                     -> requests join the RequestQueue
            RequestQueue -> dispatcher (hot handlers answer inline, cold ones become tasks)
                         -> what they answer leaves in portions, each in one write

Requests of one connection are handled in the order in which they came. A turn begins when bytes
come, and ends when all is handled or when the share of the connection is used up
(:mod:`skylark.net.turn_share`); the rest waits for the next turn of the loop, and nothing more is
read meanwhile. Bytes beyond the share are not even decoded: they wait here as if in the kernel.

Back-pressure: while the peer does not read, or while too many of its requests are being worked on,
its requests wait, nothing is read from it, and its bytes stay in the kernel. One exception: answers
to our own calls are read past the requests that wait, up to a turn's worth of these. Two ends that
pipeline more than the kernel holds would otherwise each wait for the other to read first.

Each request knows when its bytes arrived (:attr:`Inbound.arrived_at`), also one that waits for a
later turn. Bytes beyond the share count as arrived when they become frames: until then they wait
for the turns of other connections, and fast failure must not punish that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

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

log = logging.getLogger(__name__)

#: Looks at the first bytes of a connection; None means plain frames. May raise RemoteProtocolError.
FirstBytes = Callable[["Connection", bytes], ByteFilter | None]

#: From the time at which bytes are read to the time at which they count as arrived.
Stamp = Callable[[float], float]


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """What the owner of connections, a server or a client, adds to each of them."""

    #: Chooses the byte filter of a connection by its first bytes.
    first_bytes: FirstBytes | None = None
    #: Tells when bytes count as arrived; without it, when they are read.
    stamp: Stamp | None = None
    #: A connection adds itself when it begins to hold bytes for its peer; the owner takes it out
    #: (see :attr:`skylark.net.connection.Connection.held_size`).
    holders: set[Connection] | None = None
    #: Called when a connection is there, and
    on_open: Callable[[Connection], None] | None = None
    #: when it has ended, with the error if there was one.
    on_close: Callable[[Connection, Exception | None], None] | None = None


class Inbound:
    """What comes from the peer of one connection, until its handlers have it."""

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
        #: When the bytes of the request that is being handled arrived.
        self.arrived_at = 0.0
        #: Handlers at work.
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
        self._stamp = owner.stamp
        self._holders = owner.holders
        self._first_bytes = owner.first_bytes
        self._loop = asyncio.get_running_loop()
        self._frames = FrameBuffer(limits.frame_size_max)
        self._share = TurnShare(limits)
        self._unread: deque[bytes] = deque()  # delivered, but beyond the share: not frames yet
        self._unread_position = 0  # in the first of them
        self._queue = RequestQueue()
        self._inflight = InflightRequests()
        self._turn_scheduled = False
        self._reading = True

    # --- bytes ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Bytes came from the socket."""
        link = self._link
        if link.is_closing:
            return
        self.bytes_in += len(data)
        now = link.active_at = self._monotonic()
        if self._turn_scheduled or self._unread:
            self._unread.append(data)  # it has had its share, or waits for something to end
            self._hold_bytes()
            self.update_reading()
            return
        if len(data) > self._bytes_max or not self._wants_bytes():
            self._unread.append(data)
        else:
            self._share.bytes_left -= len(data)
            self._feed(data, now)
        self._take_turn(now)

    def _take_bytes(self) -> bytes:
        """The next bytes that wait: all that came together, but no more than a share."""
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

    def _feed(self, data: bytes, now: float) -> None:
        """Bytes to frames; responses settle their calls, requests join the queue."""
        link = self._link
        arrived_at = now if self._stamp is None else self._stamp(now)
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
                if not self._calls.settle(command):
                    log.debug("%r: response %s matches no call", link, command.opaque)
            else:
                queue.append((command, arrived_at))

    def _choose_filter(self, data: bytes) -> None:
        assert self._first_bytes is not None
        chooser, self._first_bytes = self._first_bytes, None
        self._link.byte_filter = chooser(self._connection, data)

    def _fail(self, error: RemoteProtocolError) -> None:
        log.warning("%r: %s; closing", self._link, error)
        self._outbound.close()

    # --- turns ----------------------------------------------------------------------------------

    def go_on(self) -> None:
        """See again whether requests can be handled and bytes be read: something has ended."""
        self._schedule_turn()
        self.update_reading()

    def _schedule_turn(self) -> None:
        """Go on soon if something waits and can go on; else the end of what blocks it calls."""
        if self._turn_scheduled:
            return
        if (self._queue and not self._is_blocked()) or (self._unread and self._wants_bytes()):
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if not self._link.is_closing:
            self._share.renew(self._outbound.bytes_out)
            self._take_turn(self._monotonic())

    def _take_turn(self, now: float) -> None:
        """Use the share of this turn: handle requests, read on; what is answered leaves."""
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
                    self._feed(self._take_bytes(), now)
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
                self._turn_scheduled = True  # more of this poll may come: it has to wait
                self._loop.call_soon(self._next_turn)
            if self._frames.pending_size:
                self._hold_bytes()
        if not self._reading:
            self.update_reading()

    def _next_run(self) -> list[Command]:
        """Take the next requests that can be handled together: no more than a share.

        The seam for runs over several connections: a collector of what one poll brought asks each
        connection for its runs here, and the share stays that of the connection.
        """
        run, self.arrived_at = self._queue.take(self._dispatcher.runs, self._run_max)
        self._share.frames_left -= len(run)
        return run

    def _is_blocked(self) -> bool:
        """Whether requests have to wait for the peer to read, or for others to be answered."""
        if self.tasks or self._inflight.size:
            return self._outbound.paused or self._tasks_full()
        return self._outbound.paused

    def _wants_bytes(self) -> bool:
        """Whether further bytes may become frames, those that wait here or in the kernel."""
        if not self._queue and not self._is_blocked():
            return True
        return len(self._calls) > 0 and not self._queue_full()

    # --- requests at work -----------------------------------------------------------------------

    def hold(self, request: Command) -> None:
        """A handler answers this request later; until then it counts as work."""
        self._inflight.hold(request)
        self._hold_bytes()

    def let_go(self, request: Command) -> None:
        """The late answer to this request is there."""
        self._inflight.let_go(request)

    def answered(self) -> None:
        """A late answer was sent."""
        if not self._reading or self._queue or self._unread:
            self.go_on()

    def spawn(self, work: Coroutine[Any, Any, None], request: Command) -> asyncio.Task[None]:
        """Run a cold handler as a task; it goes on to its end even if the connection closes."""
        self._inflight.size += (size := held_size(request))
        self._share.tasks_left -= 1
        self._hold_bytes()
        task = self._loop.create_task(work)
        self.tasks.add(task)
        self._dispatcher.tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self.tasks.discard(finished)
            self._dispatcher.tasks.discard(finished)
            self._inflight.size -= size
            if not finished.cancelled() and (error := finished.exception()) is not None:
                log.error("%r: a handler task failed", self._link, exc_info=error)
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
        """Bytes that came and that no handler has seen."""
        unread_size = sum(map(len, self._unread)) - self._unread_position
        return unread_size + self._frames.pending_size + self._queue.size

    @property
    def inflight_size(self) -> int:
        """Bytes of requests that handlers work on."""
        return self._inflight.size

    def lost(self) -> None:
        """The connection has ended: no peer reads the answers."""
        # Handlers at work are not cancelled: a half-done change is worse than an unread answer.
        self._queue.clear()
        self._unread.clear()
        self._unread_position = 0

    # --- reading --------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return self._reading

    def update_reading(self) -> None:
        """Read from the socket, or stop, as the state of the connection demands."""
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
