"""The remoting client: calls servers over one shared, pipelined connection per address.

A call finds or opens the connection to its address, sends, and waits for the response. Connecting,
waiting for room (a permit, and a peer that reads) and waiting for the response all count against
the caller's timeout. Concurrent callers share a connection attempt, and cancelling one of them does
not end it; after a failed attempt the next ones wait for a growing back-off.

Calls that wait for room proceed one by one, in order. A call that finds room at once proceeds at
once, even before waiting calls that have just been woken: otherwise it would lose a turn of the
loop, and writes would carry fewer requests. Callers that need strict order limit their calls
themselves (:mod:`skylark.client.core.permits` does, fairly).

GO_AWAY: a server that shuts down responds with 1500. The call is repeated once on a new connection
to the same address within the rest of its timeout; the old connection stays open until its last
call has ended. A second 1500 raises GoAwayError.

``dispatcher`` handles the requests that servers send (rebalance notices, transaction checks).
Counterpart of Java's ``NettyRemotingClient``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Final

from skylark.core.backoff import Backoff
from skylark.core.clock import Clock
from skylark.core.errors import (
    ConnectError,
    GoAwayError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from skylark.core.names import parse_address
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.inbound import Owner, Watch
from skylark.net.limits import NetLimits
from skylark.net.transport import Network
from skylark.wire.codes import CURRENT_VERSION, ResponseCode
from skylark.wire.command import SERIALIZE_JSON, Command
from skylark.wire.exchange import OpaqueCounter
from skylark.wire.header_binary import CODE_MAX

logger = logging.getLogger(__name__)

#: The timeout of a call that had less time than this is no sign of a dead connection.
RETIRE_AFTER_TIMEOUT_S = 0.1


#: Pauses between failed connection attempts to one address.
RECONNECT: Final = Backoff(first_s=0.1, most_s=3.0)


class _Peer:
    """State of one address: its connection, the running attempt, past failures."""

    __slots__ = ("attempt", "connection", "failures", "host", "port", "retry_at")

    def __init__(self, address: str) -> None:
        self.host, self.port = parse_address(address)
        self.connection: Connection | None = None
        self.attempt: asyncio.Task[Connection] | None = None
        self.failures = 0
        self.retry_at = 0.0


class RemotingClient:
    """Calls to any number of servers from one event loop."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        *,
        limits: NetLimits | None = None,
        dispatcher: Dispatcher | None = None,
        serialize_type: int = 0,
        language: str = "PYTHON",
        back_off: Backoff = RECONNECT,
        watch: Watch | None = None,
    ) -> None:
        """``watch``: see :class:`skylark.net.inbound.Owner`."""
        self.dispatcher = dispatcher or Dispatcher()
        self._network = network
        self._clock = clock
        self._limits = limits or NetLimits()
        self._serialize_type = serialize_type
        self._language = language
        self._back_off = back_off
        self._watch = watch
        self._opaques = OpaqueCounter()
        self._peers: dict[str, _Peer] = {}
        self._retired: set[Connection] = set()
        self._closed = False

    async def call(self, address: str, request: Command, timeout_s: float = 3.0) -> Command:
        """Send ``request`` to ``host:port`` and return the response, with any code.

        Raises TransportError (ConnectError, RequestTimeoutError, ...) if there is none, and
        ConfigError for an invalid address. Sets version and language of the command, which may be
        sent again.
        """
        monotonic = self._clock.monotonic
        deadline = monotonic() + timeout_s
        connection = self._connection(address) or await self._connect(address, deadline)
        sent_away = False
        while True:
            if connection.write_paused:
                await self._wait_for_room(connection.room(), address, deadline)
            left_s = deadline - monotonic()
            if left_s <= 0:
                raise RequestTimeoutError(f"no time left to call {address} after connecting")
            self._stamp(request)
            try:
                answer = connection.call(request, left_s)
            except TooManyRequestsError:
                await self._wait_for_room(connection.room(), address, deadline)
                continue
            opaque = request.opaque
            try:
                response = await answer
            except asyncio.CancelledError:
                connection.forget_call(opaque)
                raise
            except RequestTimeoutError:
                # The path may be dead although neither end has noticed. Java closes the socket;
                # we keep it for the calls that wait on it, and open a new one for the next call.
                if left_s > RETIRE_AFTER_TIMEOUT_S:
                    self._retire(address, connection)
                raise
            if response.code != ResponseCode.GO_AWAY:
                return response
            if sent_away:
                raise GoAwayError(response.remark or f"{address} is shutting down")
            sent_away = True
            self._retire(address, connection)
            connection = self._connection(address) or await self._connect(address, deadline)

    async def oneway(self, address: str, request: Command, timeout_s: float = 3.0) -> None:
        """Send a request that gets no response; returns when the connection has queued it."""
        deadline = self._clock.monotonic() + timeout_s
        connection = self._connection(address) or await self._connect(address, deadline)
        if connection.write_paused:
            await self._wait_for_room(connection.drain(), address, deadline)
        self._stamp(request)
        connection.oneway(request)

    def _stamp(self, request: Command) -> None:
        request.version = CURRENT_VERSION
        request.language = self._language
        request.serialize_type = self._serialize_type
        if request.code > CODE_MAX:
            request.serialize_type = SERIALIZE_JSON

    async def _wait_for_room(self, room: Awaitable[None], address: str, deadline: float) -> None:
        try:
            await self._clock.wait_for(room, deadline - self._clock.monotonic())
        except TimeoutError as error:
            raise TooManyRequestsError(
                f"no room for another request to {address} within its timeout",
                hint="slow down, or raise the limits of outstanding calls and unsent bytes",
            ) from error

    # --- connections ----------------------------------------------------------------------------

    def _connection(self, address: str) -> Connection | None:
        """The usable connection to ``address``, or None."""
        peer = self._peers.get(address)
        if peer is None or peer.connection is None or peer.connection.is_closing:
            return None
        return peer.connection

    async def _connect(self, address: str, deadline: float) -> Connection:
        if self._closed:
            raise ConnectError("the client is closed")
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(address)
        attempt = peer.attempt
        if attempt is None:
            attempt = asyncio.get_running_loop().create_task(self._attempt(address, peer))
            attempt.add_done_callback(_retrieve)
            peer.attempt = attempt
        try:
            left_s = deadline - self._clock.monotonic()
            return await self._clock.wait_for(asyncio.shield(attempt), left_s)
        except asyncio.CancelledError:
            # If close() has cancelled the attempt, the caller itself is not cancelled.
            task = asyncio.current_task()
            if attempt.cancelled() and task is not None and not task.cancelling():
                raise ConnectError("the client is closed") from None
            raise
        except TimeoutError as error:
            raise ConnectError(
                f"no connection to {address} within the timeout of the call"
            ) from error

    async def _attempt(self, address: str, peer: _Peer) -> Connection:
        try:
            pause_s = peer.retry_at - self._clock.monotonic()
            if pause_s > 0:
                await self._clock.sleep(pause_s)
            try:
                _, protocol = await self._network.connect(
                    partial(self._make_connection, address),
                    peer.host,
                    peer.port,
                    timeout_s=self._limits.connect_timeout_s,
                    clock=self._clock,
                )
            except ConnectError:
                peer.failures += 1
                pause_s = self._back_off.pause_s(peer.failures)
                peer.retry_at = self._clock.monotonic() + pause_s
                raise
            peer.failures = 0
            peer.connection = protocol
            return protocol
        finally:
            peer.attempt = None

    def _make_connection(self, address: str) -> Connection:
        return Connection(
            self.dispatcher,
            self._clock,
            self._limits,
            opaques=self._opaques,
            serialize_type=self._serialize_type,
            owner=Owner(watch=self._watch, on_close=partial(self._lost, address)),
        )

    def _lost(self, address: str, connection: Connection, error: Exception | None) -> None:
        self._retired.discard(connection)
        self._let_go(address, connection)
        if error is not None:
            logger.info("%r lost: %s", connection, error)

    def _retire(self, address: str, connection: Connection) -> None:
        """Send no new calls on ``connection``; close it when its last call has ended."""
        self._let_go(address, connection)
        if not connection.is_closing:
            self._retired.add(connection)
            connection.close_when_settled()

    def _let_go(self, address: str, connection: Connection) -> None:
        peer = self._peers.get(address)
        if peer is not None and peer.connection is connection:
            peer.connection = None
            if peer.attempt is None:
                del self._peers[address]

    def connected(self, address: str) -> bool:
        """Whether there is a usable connection to ``address``."""
        return self._connection(address) is not None

    def backs_off(self, address: str) -> bool:
        """Whether the last attempt to connect failed, and the next one waits or runs."""
        peer = self._peers.get(address)
        if peer is None or not peer.failures:
            return False
        return peer.attempt is not None or peer.retry_at > self._clock.monotonic()

    def disconnect(self, address: str) -> None:
        """Close the connection to ``address``; a later call opens a new one."""
        peer = self._peers.get(address)
        if peer is not None and peer.connection is not None:
            peer.connection.close()

    async def close(self) -> None:
        """Close all connections; open calls fail with ConnectionClosedError."""
        self._closed = True
        attempts = [peer.attempt for peer in self._peers.values() if peer.attempt is not None]
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        connections = {peer.connection for peer in self._peers.values() if peer.connection}
        connections |= self._retired
        for connection in connections:
            connection.close()
        if connections:
            try:
                async with self._clock.timeout(self._limits.connect_timeout_s):
                    await asyncio.wait([connection.closed for connection in connections])
            except TimeoutError:
                for connection in connections:
                    connection.abort()


def _retrieve(attempt: asyncio.Task[Connection]) -> None:
    """Mark an attempt's error as retrieved: all its callers may have timed out."""
    if not attempt.cancelled():
        attempt.exception()
