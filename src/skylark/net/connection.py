"""One connection, seen from either end: bytes to commands, calls to answers, back-pressure.

RocketMQ connections are symmetric: both ends send requests and responses over one socket. So the
server's and the client's connections are the same class; they differ in who opened it and in the
handlers of their :class:`Dispatcher`.

How bytes move::

    data_received -> FrameBuffer.feed -> responses settle their calls
                                      -> requests go to the dispatcher (hot ones answer inline)
                  -> what they answer leaves in portions, each in one writelines

Back-pressure, both ways: while the peer does not read (write buffer above its high-water mark),
or while too many of its requests are being worked on, its requests wait, nothing is read from it,
and its bytes stay in the kernel. One exception: answers to our own calls are read past the requests
that wait, up to a turn's worth of these. Two ends that pipeline more than the kernel holds would
otherwise each wait for the other to read first. In the other direction, callers wait for room
(:meth:`Connection.room`) and answers of cold handlers for a peer that reads
(:meth:`Connection.drain`). Replies and notices sent without waiting are bounded too: a peer that
leaves more than ``write_buffer_max`` unread is cut off. How many bytes all connections together
hold for their peers is for the server to know (``holders``).

The transport is asked to tell when it has written everything (its high-water mark is zero): then
leases on views end (:mod:`skylark.net.write_queue`). Above ``write_buffer_high`` a peer counts as
not reading until it has read all.

Each request knows when its bytes arrived (:attr:`Connection.arrived_at`), also one that waits for
a later turn.

A connection ends in two steps. From ``close``, ``abort`` or the peer's end of file on it is
*closing*: nothing more is handled or sent. ``connection_lost`` follows when the last bytes have
left, two idle times later at most, and fails the calls that still wait.

A connection belongs to one event loop and is not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import (
    ConnectionClosedError,
    LocalProtocolError,
    RemoteProtocolError,
    TooManyRequestsError,
)
from skylark.net.byte_filter import ByteFilter
from skylark.net.dispatch import Dispatcher, LateAnswer
from skylark.net.inflight_requests import HeldRequests, held_size
from skylark.net.limits import NetLimits
from skylark.net.request_queue import Backlog
from skylark.net.response_futures import Calls
from skylark.net.transport import address_of
from skylark.net.write_queue import Outbox, discard
from skylark.wire.codes import ResponseCode
from skylark.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_JSON, Command, response_to
from skylark.wire.exchange import OpaqueCounter
from skylark.wire.frame import FrameBuffer
from skylark.wire.message import pack_host

log = logging.getLogger(__name__)

#: Looks at the first bytes of a connection; None means plain frames. May raise RemoteProtocolError.
FirstBytes = Callable[["Connection", bytes], ByteFilter | None]

#: From the time at which bytes are read to the time at which they count as arrived.
Stamp = Callable[[float], float]


class Connection(asyncio.Protocol):
    """A RocketMQ connection on the running loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        limits: NetLimits,
        *,
        opaques: OpaqueCounter | None = None,
        serialize_type: int = 0,
        first_bytes: FirstBytes | None = None,
        stamp: Stamp | None = None,
        holders: set[Connection] | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection, Exception | None], None] | None = None,
    ) -> None:
        """``stamp`` tells when bytes count as arrived; without it, when they are read.

        The connection adds itself to ``holders`` when it begins to hold bytes for its peer; whoever
        owns the set takes it out (see :attr:`held_size`).
        """
        self.remote_address: tuple[str, int] = ("", 0)
        self.local_address: tuple[str, int] = ("", 0)
        #: Free for the owner: what is known of the peer (client id, language, version, user).
        self.attributes: dict[str, object] = {}
        #: The address of the peer as records hold it.
        self.born_host = bytes(8)
        #: What the peer called itself in its last heartbeat, and who it has proven to be.
        self.client_id: str | None = None
        self.identity: Any = None
        self.bytes_in = 0
        self.bytes_out = 0
        #: The peer does not read: more than ``write_buffer_high`` waited to be written, and not all
        #: of it has been written since.
        self.write_paused = False
        #: When the bytes of the request that is being handled arrived; only handlers and
        #: interceptors may ask, before they wait for anything.
        self.arrived_at = 0.0
        self._dispatcher = dispatcher
        self._clock = clock
        self._limits = limits
        self._serialize_type = serialize_type
        self._first_bytes = first_bytes
        self._stamp = stamp
        self._holders = holders
        self._on_open = on_open
        self._on_close = on_close
        self._filter: ByteFilter | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = FrameBuffer(limits.frame_size_max)
        self._backlog = Backlog()
        self._out = Outbox()
        self._in_batch = False
        self._turn_scheduled = False
        self._flush_scheduled = False
        self._reading = True
        self._room: asyncio.Future[None] | None = None
        self._when_writable: deque[Callable[[], None]] = deque()
        self._entrance = asyncio.Lock()
        self._closing = False
        self._close_when_settled = False
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = HeldRequests()
        self._calls = Calls(clock, opaques or OpaqueCounter(), self._call_ended)
        self._active_at = clock.monotonic()
        self._idle_timer: TimerHandle | None = None
        self._idle_since = self._active_at
        self._unsent_size = 0

    def __repr__(self) -> str:
        host, port = self.remote_address
        return f"<Connection to {host}:{port}{' closed' if self._closing else ''}>"

    # --- asyncio's side -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self.remote_address = address_of(transport.get_extra_info("peername"))
        self.local_address = address_of(transport.get_extra_info("sockname"))
        self._calls.peer = "{}:{}".format(*self.remote_address)
        ip, port = self.remote_address
        with contextlib.suppress(ValueError):  # not an address of the internet
            self.born_host = pack_host(ip.partition("%")[0], port)
        self._arm_idle_timer()
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.bytes_in += len(data)
        now = self._active_at = self._clock.monotonic()
        arrived_at = now if self._stamp is None else self._stamp(now)
        try:
            if self._first_bytes is not None:
                self._choose_filter(data)
            if self._filter is not None:
                data, answer = self._filter.received(data)
                self._write_raw(answer)
            commands = self._frames.feed(data)
        except RemoteProtocolError as error:
            self._fail(error)
            return
        self._handle(commands, arrived_at)
        if self._holders is not None and (self._backlog or self._frames.pending_size):
            self._holders.add(self)
        if self._frames.error is not None:
            self._fail(self._frames.error)

    def eof_received(self) -> bool:
        self._closing = True
        self._announce_room()
        return False  # a peer that sends no more also reads no more: close

    def pause_writing(self) -> None:
        """Not all could be written at once."""
        if self._holders is not None:
            self._holders.add(self)

    def resume_writing(self) -> None:
        """Everything is written."""
        self._out.sent()
        if not self.write_paused:
            return
        self.write_paused = False
        self._announce_room()
        self._call_writers()
        if self._backlog:
            self._schedule_turn()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._backlog.clear()
        self._out.drop()
        self._announce_room()
        self._call_writers()
        host, port = self.remote_address
        self._calls.fail(
            ConnectionClosedError(f"the connection to {host}:{port} closed before the answer")
        )
        # Handlers at work are not cancelled: a half-done change is worse than an unread answer.
        if not self.closed.done():
            self.closed.set_result(None)
        if self._on_close is not None:
            self._on_close(self, exc)

    # --- requests and responses from the peer ---------------------------------------------------

    def _handle(self, commands: list[Command], arrived_at: float) -> None:
        """Settle the responses among commands that just arrived, and begin with the requests."""
        backlog = self._backlog
        in_line = len(backlog) > 0
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                self._settle(command)
            else:
                backlog.add(command, arrived_at)
        if not backlog:
            return
        if in_line:
            self._schedule_turn()
            self._update_reading()
        else:
            self._take_turn()

    def _schedule_turn(self) -> None:
        """Go on with the backlog soon; while blocked, the end of the block schedules it."""
        if not (self._turn_scheduled or self.write_paused or self._tasks_full()):
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if not (self._closing or self.write_paused):
            self._take_turn()
            self._update_reading()

    def _take_turn(self) -> None:
        """Work through the backlog, as far as it goes in one turn; what is answered leaves."""
        limits, dispatcher = self._limits, self._dispatcher
        room, run_max = limits.frames_per_turn_max, limits.frames_per_write_max
        backlog, out, out_size_max = self._backlog, self._out, limits.write_buffer_high
        in_runs, self._in_batch = 0, True
        try:
            while (
                backlog
                and room > 0
                and out.size < out_size_max
                and not self.write_paused
                and not self._closing
                and not ((self._tasks or self._held.size) and self._tasks_full())
            ):
                run, self.arrived_at = backlog.take(dispatcher.runs, min(room, run_max))
                room -= len(run)
                if run[0].code in dispatcher.runs:
                    dispatcher.dispatch_run(self, run)
                    in_runs += len(run)
                else:
                    dispatcher.dispatch(self, run[0])
        finally:
            self._in_batch = False
        self._flush()
        if in_runs and dispatcher.after_runs is not None:
            dispatcher.after_runs(in_runs)
        if backlog:
            self._schedule_turn()
            self._update_reading()

    def _settle(self, response: Command) -> None:
        if not self._calls.settle(response):
            log.debug("%r: response %s matches no call, dropped", self, response.opaque)
        if self._room is not None or self._close_when_settled:
            self._call_ended()

    def _call_ended(self) -> None:
        if not self.write_paused:
            self._announce_room()
        if self._close_when_settled and not self._calls:
            self.close()

    def reply(self, request: Command, response: Command) -> None:
        """Send ``response`` to ``request``; nothing is sent for a one-way request."""
        if request.flag & FLAG_ONEWAY or self._closing:
            discard(response)
            return
        response.opaque = request.opaque
        response.flag |= FLAG_RESPONSE
        response.serialize_type = self._serialize_type
        try:
            self.send(response)
        except LocalProtocolError as error:
            log.exception("%r: the response to %s cannot be sent", self, request.code)
            discard(response)
            substitute = response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
            substitute.serialize_type = self._serialize_type
            self.send(substitute)

    @property
    def takes_frames(self) -> bool:
        """Whether answers may be frames with a JSON header: no interceptor wants to see them."""
        return self._serialize_type == SERIALIZE_JSON and self._dispatcher.judged_alike

    def reply_frame(self, request: Command, frame: bytes) -> None:
        """:meth:`reply` with a response that is encoded already."""
        if not (request.flag & FLAG_ONEWAY or self._closing):
            self._out.add_frame(frame)
            self._enqueued()

    def hold(self, request: Command) -> None:
        """A handler answers this request later, by :meth:`answer`; until then it counts as work."""
        self._held.hold(request)
        if self._holders is not None:
            self._holders.add(self)

    def answer(self, request: Command, response: LateAnswer) -> None:
        """The late answer of a handler that returned LATER; None if there is to be none.

        To be called once for each such request, also when the connection is closing.
        """
        self._held.let_go(request)
        self._dispatcher.finish(self, request, response)
        if not self._reading or self._backlog:
            if self._backlog:
                self._schedule_turn()
            self._update_reading()

    def spawn(self, work: Coroutine[Any, Any, None], request: Command) -> asyncio.Task[None]:
        """Run a cold handler as a task; it goes on to its end even if the connection closes."""
        self._held.size += (size := held_size(request))
        if self._holders is not None:
            self._holders.add(self)
        task = self._loop.create_task(work)
        self._tasks.add(task)
        self._dispatcher.tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self._tasks.discard(finished)
            self._dispatcher.tasks.discard(finished)
            self._held.size -= size
            if not finished.cancelled() and (error := finished.exception()) is not None:
                log.error("%r: a handler task failed", self, exc_info=error)
            if self._backlog:
                self._schedule_turn()
            self._update_reading()

        task.add_done_callback(done)
        return task

    def _tasks_full(self) -> bool:
        limits = self._limits
        return (
            len(self._tasks) >= limits.tasks_per_connection_max
            or self._held.size >= limits.task_bytes_per_connection_max
        )

    # --- calls to the peer ----------------------------------------------------------------------

    def call(self, request: Command, timeout_s: float) -> asyncio.Future[Command]:
        """Send a request; the future holds the response, or why there is none.

        Raises TooManyRequestsError, ConnectionClosedError or LocalProtocolError at once. The
        command may be sent again at any time: ``opaque`` and ``flag`` are set for each sending.
        """
        if len(self._calls) >= self._limits.calls_max:
            raise TooManyRequestsError(
                f"{len(self._calls)} calls to {self.remote_address} wait for their answer",
                hint="slow down, or raise the limit of outstanding calls",
            )
        opaque = request.opaque = self._calls.new_opaque()
        request.flag = 0
        if self._calls or self._in_batch:
            self.send(request)
        else:
            self._enqueue(request)
            self._flush()  # no other one is on its way: likely nobody is left to wait for
        future = self._calls.add(opaque, timeout_s)
        if not self._reading:
            self._update_reading()  # the answer must be read even while requests wait
        return future

    def oneway(self, request: Command) -> None:
        """Send a request that gets no response."""
        request.flag = FLAG_ONEWAY
        request.opaque = self._calls.new_opaque()
        self.send(request)

    def forget_call(self, opaque: int) -> None:
        """Give up a call whose caller was cancelled: its permit is free, its answer nobody's."""
        if self._calls.forget(opaque):
            self._call_ended()

    @property
    def calls_waiting(self) -> int:
        return len(self._calls)

    async def room(self) -> None:
        """Wait, in order among those who wait, until the peer reads and a permit is free.

        Returns as well when the connection is closing; then :meth:`call` says so.
        """
        calls_max = self._limits.calls_max
        async with self._entrance:
            while (self.write_paused or len(self._calls) >= calls_max) and not self._closing:
                await self._room_announced()

    # --- writing --------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Queue one command; it leaves with others of this batch or of this loop turn.

        Not with all of them if there are many, but in portions: the peer works on the first while
        the next are made. Small portions cost both ends more than they gain.
        """
        self._enqueue(command)
        self._enqueued()

    def _enqueued(self) -> None:
        limits = self._limits
        if (
            self._out.count >= limits.frames_per_write_max
            or self._out.size >= limits.bytes_per_write_max
        ):
            self._flush()
        elif not (self._in_batch or self._flush_scheduled):
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def _enqueue(self, command: Command) -> None:
        if self._closing or self._transport is None:
            raise ConnectionClosedError(f"{self!r} is closed")
        self._out.add(command)

    def _flush_later(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        """Hand everything queued to the transport in one ``writelines``."""
        if not self._out or self._closing or self._transport is None:
            return
        transport, byte_filter = self._transport, self._filter
        self._active_at = self._clock.monotonic()
        try:
            encode = None if byte_filter is None else byte_filter.sending
            self.bytes_out += self._out.write(transport, encode)
        except Exception:
            # These answers are lost: the peer must not go on waiting for them.
            log.exception("%r: answers cannot be written, closing", self)
            self.abort()
            return
        unsent_size = transport.get_write_buffer_size()
        if not unsent_size:
            self._out.sent()
        elif unsent_size > self._limits.write_buffer_max:
            log.warning("%r does not read: %d bytes wait for it, closing", self, unsent_size)
            self.abort()
        elif unsent_size > self._limits.write_buffer_high and not self.write_paused:
            self.write_paused = True
            self._update_reading()

    def _write_raw(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        """Call back once the peer has read what waits for it, or once the connection has ended.

        For who has much to send and need not: calls come one by one, each sees whether what the
        ones before have sent is too much again (``write_paused``).
        """
        self._when_writable.append(callback)

    def _call_writers(self) -> None:
        while self._when_writable and not (self.write_paused and not self._closing):
            self._when_writable.popleft()()

    async def drain(self) -> None:
        """Wait until the peer has read enough for more to be written, or never will."""
        while self.write_paused and not self._closing:
            await self._room_announced()

    async def _room_announced(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()
        await asyncio.shield(self._room)

    def _announce_room(self) -> None:
        """Let those who wait look again: for room to write, a permit, or the end."""
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    # --- back-pressure, idle time, closing ------------------------------------------------------

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._closing or transport.is_closing():
            return
        blocked = self.write_paused or self._backlog or self._tasks_full()
        wanted = not blocked or (len(self._calls) > 0 and not self._backlog_full())
        if wanted and not self._reading:
            self._reading = True
            transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            transport.pause_reading()

    def _backlog_full(self) -> bool:
        return (
            len(self._backlog) >= self._limits.frames_per_turn_max
            or self._backlog.size >= self._limits.task_bytes_per_connection_max
        )

    @property
    def held_size(self) -> int:
        """Bytes held for the peer: requests that came and are not answered, answers not read."""
        if self._transport is None or self.closed.done():
            return self._held.size
        unsent_size = self._out.size + self._transport.get_write_buffer_size()
        return self._frames.pending_size + self._backlog.size + self._held.size + unsent_size

    def _arm_idle_timer(self) -> None:
        assert self._transport is not None
        self._idle_since = self._active_at
        self._unsent_size = self._transport.get_write_buffer_size()
        due = self._active_at + self._limits.idle_timeout_s
        self._idle_timer = self._clock.call_at(due, self._check_idle)

    def _check_idle(self) -> None:
        """An idle time has passed since ``_idle_since``; close unless something happened since.

        Times are compared for being the same, never for their distance (rules of ``core.clock``).
        Tasks are no work while the peer does not read: they may only wait for that in ``drain``.
        """
        assert self._transport is not None
        unsent_size = self._transport.get_write_buffer_size()
        at_work = bool(self._tasks) and not (self._closing or self.write_paused)
        if at_work or unsent_size != self._unsent_size:  # the peer waits, or reads slowly
            self._active_at = self._clock.monotonic()
        if self._active_at != self._idle_since:
            self._arm_idle_timer()
            return
        log.info("%r idle for %.0f s, closing", self, self._limits.idle_timeout_s)
        if unsent_size:
            self.abort()  # an orderly close would wait for the peer to read
        else:
            self.close()

    def touch(self) -> None:
        """Count this moment as activity, so that idle closing starts anew."""
        self._active_at = self._clock.monotonic()

    def _choose_filter(self, data: bytes) -> None:
        assert self._first_bytes is not None
        chooser, self._first_bytes = self._first_bytes, None
        self._filter = chooser(self, data)

    def _fail(self, error: RemoteProtocolError) -> None:
        log.warning("%r: %s; closing", self, error)
        self.close()

    @property
    def is_reading(self) -> bool:
        """Whether the peer has read most of what was sent to it."""
        return not self.write_paused

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call back once, when the connection has ended."""
        self.closed.add_done_callback(lambda _: callback())

    @property
    def is_closing(self) -> bool:
        return self._closing or self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close after what is queued has been written; a peer that does not read is cut off."""
        if self._transport is not None and not self._closing:
            self._flush()
            self._closing = True
            self._active_at = self._clock.monotonic()
            self._transport.close()
            self._announce_room()

    def close_when_settled(self) -> None:
        """Close as soon as no call waits for its answer; nothing new should be sent."""
        self._close_when_settled = True
        if not self._calls:
            self.close()

    def abort(self) -> None:
        """Close at once; what is queued is lost."""
        if self._transport is not None:
            self._closing = True
            self._transport.abort()
            self._announce_room()
