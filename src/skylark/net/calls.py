"""Calls to the peer of one connection: their futures, their timeouts, and the window of open calls.

Part of :class:`skylark.net.connection.Connection`. :class:`Calls` sends the requests and bounds how
many wait for a response (``calls_max``). A call beyond the window fails at once; a caller that
prefers to wait awaits :meth:`Calls.room` first. Those who wait there get in, one by one and in
order, when the peer reads and a permit is free.

:class:`ResponseFutures` pairs responses with calls, over ``wire.exchange``. Every call ends exactly
once: with its response, with RequestTimeoutError at its deadline, with the error that
:meth:`ResponseFutures.fail` gets when the connection ends, or by :meth:`ResponseFutures.forget`.
One timer serves all calls of a connection.

Counterpart of Java's ``NettyRemotingAbstract.invokeAsyncImpl`` with its ``semaphoreAsync``, of
``ResponseFuture`` and of ``scanResponseTable``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import (
    ConnectionClosedError,
    RequestTimeoutError,
    TooManyRequestsError,
    TransportError,
)
from skylark.net.limits import NetLimits
from skylark.net.link import Link
from skylark.net.outbound import Outbound
from skylark.wire.codes import CURRENT_VERSION
from skylark.wire.command import FLAG_ONEWAY, Command
from skylark.wire.exchange import OpaqueCounter, PendingCalls


class ResponseFutures:
    """The futures of the calls that wait for a response, by opaque."""

    def __init__(
        self, clock: Clock, opaques: OpaqueCounter, on_expired: Callable[[], None]
    ) -> None:
        """Calls ``on_expired`` after calls have timed out."""
        self._clock = clock
        self._opaques = opaques
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._pending: PendingCalls[asyncio.Future[Command]] = PendingCalls()
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self.peer = ""  #: address of the peer, for errors

    def __len__(self) -> int:
        return len(self._pending)

    def new_opaque(self) -> int:
        """An opaque that no waiting call uses."""
        opaque = self._opaques.take()
        while opaque in self._pending:
            opaque = self._opaques.take()
        return opaque

    def add(self, opaque: int, timeout_s: float) -> asyncio.Future[Command]:
        """The future of a request that was just sent."""
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._clock.monotonic() + timeout_s
        self._pending.add(opaque, deadline, future)
        if deadline < self._timer_at:
            self._arm(deadline)
        return future

    def settle(self, response: Command) -> bool:
        """Complete the call of this response; False if there is no such call."""
        call = self._pending.take(response.opaque)
        if call is None:
            return False
        if not call.done():
            call.set_result(response)
        return True

    def forget(self, opaque: int) -> bool:
        """Drop a call whose caller was cancelled; False if it has ended already."""
        return self._pending.take(opaque) is not None

    def fail(self, error: TransportError) -> None:
        """Fail all calls: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._pending.drain():
            if not call.done():
                call.set_exception(error)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._clock.call_at(deadline, self._expire)

    def _expire(self) -> None:
        # Timers may fire a fraction of a millisecond early: what was due counts as due.
        now = max(self._clock.monotonic(), self._timer_at)
        self._timer = None
        self._timer_at = inf
        for call in self._pending.expire(now):
            if not call.done():
                call.set_exception(RequestTimeoutError(f"no answer from {self.peer} in time"))
        deadline = self._pending.next_deadline()
        if deadline is not None:
            self._arm(deadline)
        self._on_expired()


class Calls:
    """Sends the requests of this end, within the window of open calls."""

    def __init__(
        self,
        link: Link,
        outbound: Outbound,
        clock: Clock,
        limits: NetLimits,
        opaques: OpaqueCounter,
        on_settled: Callable[[], None],
    ) -> None:
        """``on_settled`` is for :meth:`call_when_settled`."""
        self._link = link
        self._outbound = outbound
        self._limits = limits
        self._futures = ResponseFutures(clock, opaques, self._call_ended)
        self._entrance = asyncio.Lock()
        self._on_settled = on_settled
        self._calls_when_settled = False

    def __len__(self) -> int:
        return len(self._futures)

    def connected(self) -> None:
        """Take the address of the peer over from the link, for errors."""
        self._futures.peer = "{}:{}".format(*self._link.remote_address)

    def call(self, request: Command, timeout_s: float) -> asyncio.Future[Command]:
        """Send a request; the future holds the response, or why there is none."""
        futures, outbound = self._futures, self._outbound
        count = len(futures)
        if count >= self._limits.calls_max:
            raise TooManyRequestsError(
                f"{count} calls to {self._link.remote_address} wait for their answer",
                hint="slow down, or raise the limit of outstanding calls",
            )
        opaque = request.opaque = futures.new_opaque()
        request.flag = 0
        request.version = request.version or CURRENT_VERSION
        if count or outbound.in_batch:
            outbound.send(request)
        else:
            outbound.send_now(request)  # no other request could share its write
        return futures.add(opaque, timeout_s)

    def oneway(self, request: Command) -> None:
        """Send a request that gets no response."""
        request.flag = FLAG_ONEWAY
        request.version = request.version or CURRENT_VERSION
        request.opaque = self._futures.new_opaque()
        self._outbound.send(request)

    def settle(self, response: Command) -> bool:
        """Complete the call of this response; False if there is no such call."""
        found = self._futures.settle(response)
        if self._outbound.is_room_awaited or self._calls_when_settled:
            self._call_ended()
        return found

    def forget(self, opaque: int) -> None:
        """Drop a call whose caller was cancelled: frees its permit, ignores its response."""
        if self._futures.forget(opaque):
            self._call_ended()

    async def room(self) -> None:
        """Wait, in order, until the peer reads and a permit is free.

        Also returns when the connection is closing; then :meth:`call` raises.
        """
        outbound, calls_max = self._outbound, self._limits.calls_max
        async with self._entrance:
            while (
                outbound.paused or len(self._futures) >= calls_max
            ) and not self._link.is_closing:
                await outbound.room_announced()

    def call_when_settled(self) -> None:
        """Call ``on_settled`` once no call waits for a response; send nothing new after this."""
        self._calls_when_settled = True
        if not self._futures:
            self._on_settled()

    def _call_ended(self) -> None:
        if not self._outbound.paused:
            self._outbound.announce_room()
        if self._calls_when_settled and not self._futures:
            self._on_settled()

    def lost(self) -> None:
        """Fail all calls: the connection has ended."""
        host, port = self._link.remote_address
        self._futures.fail(
            ConnectionClosedError(f"the connection to {host}:{port} closed before the answer")
        )
