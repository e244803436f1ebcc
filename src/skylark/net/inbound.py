"""The inbound half of a connection: bytes to frames, frames to requests, requests to handlers.

Part of :class:`skylark.net.connection.Connection`::

    data_received -> byte filter -> FrameBuffer.feed -> responses settle their calls
                                                     -> requests join the RequestQueue
    a turn: RequestQueue -> dispatcher (hot handlers answer inline, cold ones become tasks)
                         -> what they answer leaves in portions, each in one write

Requests of one connection are handled in the order in which they came. One turn handles at most
``frames_per_turn_max`` of them, then other connections get theirs; the rest waits for the next turn
of the loop.

Back-pressure: while the peer does not read, or while too many of its requests are being worked on,
its requests wait, nothing is read from it, and its bytes stay in the kernel. One exception: answers
to our own calls are read past the requests that wait, up to a turn's worth of these. Two ends that
pipeline more than the kernel holds would otherwise each wait for the other to read first.

Each request knows when its bytes arrived (:attr:`Inbound.arrived_at`), also one that waits for a
later turn.
"""

from __future__ import annotations

import asyncio
import logging
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
        self._clock = clock
        self._limits = limits
        self._stamp = owner.stamp
        self._holders = owner.holders
        self._first_bytes = owner.first_bytes
        self._loop = asyncio.get_running_loop()
        self._frames = FrameBuffer(limits.frame_size_max)
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
        now = link.active_at = self._clock.monotonic()
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
        self._handle(commands, arrived_at)
        if self._queue or self._frames.pending_size:
            self._hold_bytes()
        if self._frames.error is not None:
            self._fail(self._frames.error)

    def _choose_filter(self, data: bytes) -> None:
        assert self._first_bytes is not None
        chooser, self._first_bytes = self._first_bytes, None
        self._link.byte_filter = chooser(self._connection, data)

    def _fail(self, error: RemoteProtocolError) -> None:
        log.warning("%r: %s; closing", self._link, error)
        self._outbound.close()

    # --- turns ----------------------------------------------------------------------------------

    def _handle(self, commands: list[Command], arrived_at: float) -> None:
        """Settle the responses among commands that just arrived, and begin with the requests."""
        queue = self._queue
        in_line = len(queue) > 0
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                if not self._calls.settle(command):
                    log.debug("%r: response %s matches no call", self._link, command.opaque)
            else:
                queue.add(command, arrived_at)
        if not queue:
            return
        if in_line:
            self.go_on()
        else:
            self._take_turn()

    def go_on(self) -> None:
        """See again whether requests can be handled and bytes be read: something has ended."""
        if self._queue:
            self._schedule_turn()
        self.update_reading()

    def _schedule_turn(self) -> None:
        """Go on with the queue soon; while blocked, the end of the block schedules it."""
        if not (self._turn_scheduled or self._outbound.paused or self._tasks_full()):
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if not (self._link.is_closing or self._outbound.paused):
            self._take_turn()
            self.update_reading()

    def _take_turn(self) -> None:
        """Work through the queue, as far as it goes in one turn; what is answered leaves."""
        limits, dispatcher, link = self._limits, self._dispatcher, self._link
        room, run_max = limits.frames_per_turn_max, limits.frames_per_write_max
        queue, outbound, out_size_max = self._queue, self._outbound, limits.write_buffer_high
        in_runs, outbound.in_batch = 0, True
        try:
            while (
                queue
                and room > 0
                and outbound.queue.size < out_size_max
                and not outbound.paused
                and not link.is_closing
                and not ((self.tasks or self._inflight.size) and self._tasks_full())
            ):
                run, self.arrived_at = queue.take(dispatcher.runs, min(room, run_max))
                room -= len(run)
                if run[0].code in dispatcher.runs:
                    dispatcher.dispatch_run(self._connection, run)
                    in_runs += len(run)
                else:
                    dispatcher.dispatch(self._connection, run[0])
        finally:
            outbound.in_batch = False
        outbound.flush()
        if in_runs and dispatcher.after_runs is not None:
            dispatcher.after_runs(in_runs)
        if queue:
            self.go_on()

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
        if not self._reading or self._queue:
            self.go_on()

    def spawn(self, work: Coroutine[Any, Any, None], request: Command) -> asyncio.Task[None]:
        """Run a cold handler as a task; it goes on to its end even if the connection closes."""
        self._inflight.size += (size := held_size(request))
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
        return self._frames.pending_size + self._queue.size

    @property
    def inflight_size(self) -> int:
        """Bytes of requests that handlers work on."""
        return self._inflight.size

    def lost(self) -> None:
        """The connection has ended; nobody would read the answers."""
        # Handlers at work are not cancelled: a half-done change is worse than an unread answer.
        self._queue.clear()

    # --- reading --------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        return self._reading

    def update_reading(self) -> None:
        """Read from the socket, or stop, as the state of the connection demands."""
        transport = self._link.transport
        if transport is None or self._link.is_closing or transport.is_closing():
            return
        blocked = self._outbound.paused or self._queue or self._tasks_full()
        wanted = not blocked or (len(self._calls) > 0 and not self._queue_full())
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
