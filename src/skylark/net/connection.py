"""One connection, at either end: the shell around its inbound half, outbound half and calls.

RocketMQ connections are symmetric: both ends send requests and responses over one socket. So server
and client use the same class, with different handlers in their :class:`Dispatcher`.

How bytes move::

    socket -> inbound   bytes to frames, requests in turns        skylark.net.inbound
                 |  responses            |  requests
                 v                       v
              calls                  dispatcher, handlers         skylark.net.calls, .dispatch
                 |  requests             |  responses
                 v                       v
    socket <- outbound  write queue, portions, back-pressure      skylark.net.outbound

This module is the interface for asyncio, handlers and owners. It opens and closes the connection,
also when it is idle. Back-pressure works both ways: while the peer does not read, or has too many
requests in progress, the connection stops reading (``inbound``); callers wait for room
(:meth:`Connection.room`), and responses of cold handlers wait for a peer that reads
(:meth:`Connection.drain`, ``outbound``). The server sums up the bytes that its connections hold
(``Owner.holders``).

A connection ends in two steps. After ``close``, ``abort`` or the peer's end of file it is
*closing*: it handles and sends nothing more. ``connection_lost`` follows when the last bytes have
left, at most two idle timeouts later, and fails the open calls.

A connection belongs to one event loop and is not thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import LocalProtocolError
from skylark.net.calls import Calls
from skylark.net.dispatch import Dispatcher, LateAnswer
from skylark.net.inbound import Inbound, Owner
from skylark.net.limits import NetLimits
from skylark.net.link import Link
from skylark.net.outbound import Outbound
from skylark.net.transport import address_of
from skylark.net.write_queue import discard
from skylark.wire.codes import ResponseCode
from skylark.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_JSON, Command, response_to
from skylark.wire.exchange import OpaqueCounter
from skylark.wire.message import pack_host

logger = logging.getLogger(__name__)


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
        owner: Owner | None = None,
    ) -> None:
        self.remote_address: tuple[str, int] = ("", 0)
        self.local_address: tuple[str, int] = ("", 0)
        #: Data of the owner about the peer (client id, language, version, user).
        self.attributes: dict[str, object] = {}
        #: The address of the peer in the form of records.
        self.born_host = bytes(8)
        #: Client id of the last heartbeat, and the authenticated identity.
        self.client_id: str | None = None
        self.identity: Any = None
        self._owner = owner or Owner()
        self._dispatcher = dispatcher
        self._clock = clock
        self._limits = limits
        self._serialize_type = serialize_type
        self._link = link = Link(clock.monotonic())
        self._outbound = outbound = Outbound(link, clock, limits, self._writing_paused)
        self._calls = calls = Calls(
            link, outbound, clock, limits, opaques or OpaqueCounter(), self.close
        )
        self._inbound = Inbound(self, link, outbound, calls, dispatcher, clock, limits, self._owner)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle_timer: TimerHandle | None = None
        self._idle_since = link.active_at
        self._unsent_size = 0

    def __repr__(self) -> str:
        return repr(self._link)

    # --- called by asyncio ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        link = self._link
        link.transport = cast("asyncio.Transport", transport)
        link.transport.set_write_buffer_limits(high=0)
        self.remote_address = link.remote_address = address_of(transport.get_extra_info("peername"))
        self.local_address = address_of(transport.get_extra_info("sockname"))
        self._calls.connected()
        ip, port = self.remote_address
        with contextlib.suppress(ValueError):  # not an address of the internet
            self.born_host = pack_host(ip.partition("%")[0], port)
        self._arm_idle_timer()
        if self._owner.on_open is not None:
            self._owner.on_open(self)

    def data_received(self, data: bytes) -> None:
        self._inbound.data_received(data)

    def eof_received(self) -> bool:
        self._link.is_closing = True
        self._outbound.announce_room()
        return False  # a peer that sends no more also reads no more: close

    def pause_writing(self) -> None:
        """The transport could not write all bytes at once."""
        if self._owner.holders is not None:
            self._owner.holders.add(self)

    def resume_writing(self) -> None:
        """The transport has written all bytes."""
        if self._outbound.all_written():
            self._inbound.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.is_closing = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._inbound.lost()
        self._outbound.lost()
        self._calls.lost()
        if not self.closed.done():
            self.closed.set_result(None)
        if self._owner.on_close is not None:
            self._owner.on_close(self, exc)

    def _writing_paused(self) -> None:
        self._inbound.update_reading()

    # --- requests of the peer, for handlers -----------------------------------------------------

    @property
    def arrived_at(self) -> float:
        """When the bytes of the current request arrived.

        Valid in handlers and interceptors, before their first ``await``.
        """
        return self._inbound.arrived_at

    @property
    def takes_frames(self) -> bool:
        """Whether responses may be frames with a JSON header: no interceptor needs them."""
        return self._serialize_type == SERIALIZE_JSON and self._dispatcher.judged_alike

    def reply(self, request: Command, response: Command) -> None:
        """Send ``response`` to ``request``; nothing is sent for a one-way request."""
        if request.flag & FLAG_ONEWAY or self._link.is_closing:
            discard(response)
            return
        response.opaque = request.opaque
        response.flag |= FLAG_RESPONSE
        response.serialize_type = self._serialize_type
        try:
            self._outbound.send(response)
        except LocalProtocolError as error:
            logger.exception("%r: the response to %s cannot be sent", self, request.code)
            discard(response)
            substitute = response_to(request, ResponseCode.SYSTEM_ERROR, str(error))
            substitute.serialize_type = self._serialize_type
            self._outbound.send(substitute)

    def reply_frame(self, request: Command, frame: bytes) -> None:
        """:meth:`reply` with an encoded response."""
        if not request.flag & FLAG_ONEWAY:
            self._outbound.send_frame(frame)

    def hold(self, request: Command) -> None:
        """Count the request as in flight until :meth:`answer`: its handler has returned LATER."""
        self._inbound.hold(request)

    def answer(self, request: Command, response: LateAnswer) -> None:
        """Send the response of a handler that returned LATER; None sends nothing.

        Call it once for each such request, also when the connection is closing.
        """
        self._inbound.let_go(request)
        self._dispatcher.finish(self, request, response)
        self._inbound.answered()

    def spawn(self, work: Coroutine[Any, Any, None], request: Command) -> asyncio.Task[None]:
        """Run a cold handler as a task, which continues even if the connection closes."""
        return self._inbound.spawn(work, request)

    # --- calls to the peer ----------------------------------------------------------------------

    def call(self, request: Command, timeout_s: float) -> asyncio.Future[Command]:
        """Send a request; the future holds the response or the error.

        Raises TooManyRequestsError, ConnectionClosedError or LocalProtocolError at once. Sets
        ``opaque`` and ``flag`` of the command, which may be sent again.
        """
        future = self._calls.call(request, timeout_s)
        if not self._inbound.is_reading:
            self._inbound.go_on()  # the response must be read even while requests wait
        return future

    def oneway(self, request: Command) -> None:
        """Send a request that gets no response."""
        self._calls.oneway(request)

    def forget_call(self, opaque: int) -> None:
        """Drop a call whose caller was cancelled: frees its permit, ignores its response."""
        self._calls.forget(opaque)

    async def room(self) -> None:
        """Wait, in order, until the peer reads and a permit is free.

        Also returns when the connection is closing; then :meth:`call` raises.
        """
        await self._calls.room()

    # --- writing --------------------------------------------------------------------------------

    @property
    def write_paused(self) -> bool:
        """Whether the peer does not read: unsent bytes exceeded ``write_buffer_high`` and have not
        been sent completely since."""
        return self._outbound.paused

    def send(self, command: Command) -> None:
        """Queue one command; it is written with others of this batch or of this loop turn."""
        self._outbound.send(command)

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        """Call back once the peer has read the unsent bytes, or once the connection has ended.

        For optional bulk data. Callbacks run one by one, as long as ``write_paused`` stays false.
        """
        self._outbound.call_when_writable(callback)

    def begin_results(self) -> None:
        """Keep what is sent from now on for one write, up to the limits of a write."""
        self._outbound.in_batch = True

    def end_results(self) -> None:
        """Write what was sent since :meth:`begin_results`."""
        self._outbound.in_batch = False
        self._outbound.flush()

    async def drain(self) -> None:
        """Wait until the peer reads again, or the connection is closing."""
        await self._outbound.drain()

    # --- state for owners -----------------------------------------------------------------------

    @property
    def bytes_in(self) -> int:
        return self._inbound.bytes_in

    @property
    def bytes_out(self) -> int:
        return self._outbound.bytes_out

    @property
    def held_size(self) -> int:
        """Bytes held for the peer: requests without a response yet, and unsent responses."""
        inflight_size = self._inbound.inflight_size
        if self._link.transport is None or self.closed.done():
            return inflight_size
        unsent_size = self._outbound.queue.size + self._link.unsent_size
        return self._inbound.waiting_size + inflight_size + unsent_size

    # --- idle time, closing ---------------------------------------------------------------------

    def _arm_idle_timer(self) -> None:
        self._idle_since = self._link.active_at
        self._unsent_size = self._link.unsent_size
        due = self._idle_since + self._limits.idle_timeout_s
        self._idle_timer = self._clock.call_at(due, self._check_idle)

    def _check_idle(self) -> None:
        """Close the connection if nothing has happened since ``_idle_since``.

        Compares times for equality only, because timers may fire early (rules of ``core.clock``).
        Tasks do not count while the peer does not read: they may only wait for that in ``drain``.
        """
        link = self._link
        unsent_size = link.unsent_size
        at_work = bool(self._inbound.tasks) and not (link.is_closing or self._outbound.paused)
        if at_work or unsent_size != self._unsent_size:  # the peer waits for us, or reads slowly
            self.touch()
        if link.active_at != self._idle_since:
            self._arm_idle_timer()
            return
        logger.info("%r idle for %.0f s, closing", self, self._limits.idle_timeout_s)
        if unsent_size:
            self.abort()  # close() would wait for the peer to read
        else:
            self.close()

    def touch(self) -> None:
        """Count this moment as activity: restarts the idle timeout."""
        self._link.active_at = self._clock.monotonic()

    @property
    def is_reading(self) -> bool:
        """Whether the peer reads what this end sends; the opposite of ``write_paused``."""
        return not self.write_paused

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once, when the connection has ended."""
        self.closed.add_done_callback(lambda _: callback())

    @property
    def is_closing(self) -> bool:
        link = self._link
        return link.is_closing or link.transport is None or link.transport.is_closing()

    def close(self) -> None:
        """Write the queue, then close; aborts if the peer does not read it in time."""
        self._outbound.close()

    def close_when_settled(self) -> None:
        """Close as soon as no call waits for a response; send nothing new after this."""
        self._calls.call_when_settled()

    def abort(self) -> None:
        """Close at once; queued bytes are lost."""
        self._outbound.abort()
