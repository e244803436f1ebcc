"""Calls to the peer of one connection: the window of outstanding calls, and who gets in next.

Part of :class:`skylark.net.connection.Connection`. The futures and their timeouts are
:mod:`skylark.net.response_futures`; this module sends the requests and bounds how many wait for
their answer (``calls_max``). A call beyond the window is refused at once; who would rather wait
asks for room first, and is let in, in order, when the peer reads and a permit is free.

Counterpart of Java's ``NettyRemotingAbstract.invokeAsyncImpl`` with its ``semaphoreAsync``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skylark.core.clock import Clock
from skylark.core.errors import ConnectionClosedError, TooManyRequestsError
from skylark.net.limits import NetLimits
from skylark.net.link import Link
from skylark.net.outbound import Outbound
from skylark.net.response_futures import ResponseFutures
from skylark.wire.command import FLAG_ONEWAY, Command
from skylark.wire.exchange import OpaqueCounter


class Calls:
    """The calls of one connection."""

    def __init__(
        self,
        link: Link,
        outbound: Outbound,
        clock: Clock,
        limits: NetLimits,
        opaques: OpaqueCounter,
        on_settled: Callable[[], None],
    ) -> None:
        """``on_settled`` hears, after :meth:`when_settled`, that no call waits any more."""
        self._link = link
        self._outbound = outbound
        self._limits = limits
        self._futures = ResponseFutures(clock, opaques, self._call_ended)
        self._entrance = asyncio.Lock()
        self._on_settled = on_settled
        self._tells_when_settled = False

    def __len__(self) -> int:
        return len(self._futures)

    def connected(self) -> None:
        """The address of the peer is known, for errors."""
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
        if count or outbound.in_batch:
            outbound.send(request)
        else:
            outbound.send_now(request)  # no other one is on its way that it could leave with
        return futures.add(opaque, timeout_s)

    def oneway(self, request: Command) -> None:
        """Send a request that gets no response."""
        request.flag = FLAG_ONEWAY
        request.opaque = self._futures.new_opaque()
        self._outbound.send(request)

    def settle(self, response: Command) -> bool:
        """End the call that this response answers; False if there is none."""
        found = self._futures.settle(response)
        if self._outbound.is_room_awaited or self._tells_when_settled:
            self._call_ended()
        return found

    def forget(self, opaque: int) -> None:
        """Give up a call whose caller was cancelled: its permit is free, its answer is dropped."""
        if self._futures.forget(opaque):
            self._call_ended()

    async def room(self) -> None:
        """Wait, in order among those who wait, until the peer reads and a permit is free.

        Returns as well when the connection is closing; then :meth:`call` says so.
        """
        outbound, calls_max = self._outbound, self._limits.calls_max
        async with self._entrance:
            while (
                outbound.paused or len(self._futures) >= calls_max
            ) and not self._link.is_closing:
                await outbound.room_announced()

    def when_settled(self) -> None:
        """Tell as soon as no call waits for its answer; nothing new should be sent."""
        self._tells_when_settled = True
        if not self._futures:
            self._on_settled()

    def _call_ended(self) -> None:
        if not self._outbound.paused:
            self._outbound.announce_room()
        if self._tells_when_settled and not self._futures:
            self._on_settled()

    def lost(self) -> None:
        """The connection has ended: so have the calls."""
        host, port = self._link.remote_address
        self._futures.fail(
            ConnectionClosedError(f"the connection to {host}:{port} closed before the answer")
        )
