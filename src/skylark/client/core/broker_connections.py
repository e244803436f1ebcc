"""Connections to brokers from one event loop, with signing, back-pressure and typed requests.

A :class:`BrokerConnections` (a *link*) wraps a :class:`~skylark.net.client.RemotingClient`: it adds
the fields of :mod:`skylark.client.core.request_signing` to every request and limits the requests in
flight (:mod:`skylark.client.core.permits`). ``link.calls`` has the typed requests, ``link.lookup``
the routes and addresses.

Every client instance has one link on its control loop, which also serves the requests of brokers,
and one on each event loop that sends or pulls (:meth:`ClientInstance.open_link
<skylark.client.core.client_instance.ClientInstance.open_link>`). Clients on one loop share a link;
the last one to release it closes it. A link belongs to its loop and is not thread-safe. In a forked
child every use raises ClientStateError before it touches a socket of the parent.

**Connection events.** A broker forgets a client when the connection of its heartbeats ends. So a
:class:`ChannelWatcher` is called when a connection is made (the broker needs a heartbeat now) and
when one is lost (it must be made again before the next heartbeat is due). Counterpart of Java's
``ChannelEventListener``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec

from skylark.client.core.broker_calls import TIMEOUT_S, BrokerCalls, vip_address
from skylark.client.core.control_loop import Control
from skylark.client.core.permits import Permits
from skylark.client.core.request_signing import RequestChain
from skylark.client.core.route_cache import Lookup
from skylark.client.metrics import ClientMetrics
from skylark.core.clock import Clock
from skylark.core.errors import ClientStateError, TransportError
from skylark.core.names import Address
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.transport import BACKLOG, Listener, Network
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command

P = TypeVar("P", bound=asyncio.BaseProtocol)


class ChannelWatcher(Protocol):
    """Called for connections, by their address ``host:port``; on their loop, in a later turn."""

    def channel_opened(self, address: str) -> None:
        """A connection was made, and may already be in use."""

    def channel_lost(self, address: str) -> None:
        """A connection has ended; there may already be a new one."""


class WatchedNetwork:
    """A network that calls ``watcher`` for the connections made through it."""

    def __init__(self, network: Network, watcher: ChannelWatcher) -> None:
        self._network = network
        self._watcher = watcher

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = BACKLOG,
        reuse_port: bool = False,
    ) -> Listener:
        return await self._network.listen(
            protocol_factory, host, port, backlog=backlog, reuse_port=reuse_port
        )

    async def connect(
        self,
        protocol_factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> tuple[asyncio.Transport, P]:
        made = await self._network.connect(
            protocol_factory, host, port, timeout_s=timeout_s, clock=clock
        )
        address = str(Address(host, port))
        asyncio.get_running_loop().call_soon(self._watcher.channel_opened, address)
        if isinstance(made[1], Connection):
            made[1].closed.add_done_callback(lambda _: self._watcher.channel_lost(address))
        return made


logger = logging.getLogger(__name__)

#: Requests that every version of a name server knows.
_EVERY_NAME_SERVER: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)

IN_FLIGHT_MAX: Final = 65_535
IN_FLIGHT_BYTES_MAX: Final = 100 * 1024 * 1024


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all links of a client instance share."""

    control: Control
    network: Network
    clock: Clock
    chain: RequestChain
    lookup: Lookup
    vip: bool = False
    timeout_s: float = TIMEOUT_S
    in_flight_max: int = IN_FLIGHT_MAX
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    limits: NetLimits = NetLimits()
    metrics: ClientMetrics | None = None


class BrokerConnections:
    """The connections of the running loop; see the module docstring."""

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        dispatcher: Dispatcher | None = None,
        watcher: ChannelWatcher | None = None,
        on_close: Callable[[BrokerConnections], None] | None = None,
    ) -> None:
        """``dispatcher`` serves the requests of brokers; ``on_close`` is called at the end."""
        self.loop = asyncio.get_running_loop()
        self.lookup = settings.lookup
        self.clock = settings.clock
        network = settings.network
        if settings.metrics is not None:
            watcher = settings.metrics.watch(watcher)
        if watcher is not None:
            network = WatchedNetwork(network, watcher)
        self._check_process = settings.control.check_process
        # The permits of this link are the window, so a connection must not have a smaller one.
        calls_max = max(settings.limits.calls_max, settings.in_flight_max)
        limits = msgspec.structs.replace(settings.limits, calls_max=calls_max)
        self._client = RemotingClient(network, settings.clock, limits=limits, dispatcher=dispatcher)
        self._chain = settings.chain
        self._vip = settings.vip
        self.permits = Permits(
            settings.clock,
            count_max=settings.in_flight_max,
            size_max=settings.in_flight_bytes_max,
        )
        self.calls = BrokerCalls(self, settings.timeout_s, vip=settings.vip)
        self._on_close = on_close
        self._adopted: set[asyncio.Task[Any]] = set()
        self._users = 1
        self._closed = False

    # ---- requests --------------------------------------------------------------------------------

    async def call(self, address: str, request: Command, timeout_s: float = TIMEOUT_S) -> Command:
        """Send ``request`` to ``host:port``; the reply, with any code.

        Raises TransportError, and what a hook of the application raises.
        """
        self._check_process()
        size = len(request.body) if request.body else 0
        if not self.permits.try_take(size):
            deadline = self.clock.monotonic() + timeout_s
            await self.permits.take(size, timeout_s)
            timeout_s = max(0.0, deadline - self.clock.monotonic())
        try:
            if self._chain.is_empty:
                return await self._client.call(address, request, timeout_s)
            self._chain.before(address, request)
            answer = await self._client.call(address, request, timeout_s)
            self._chain.after(address, request, answer)
            return answer
        finally:
            self.permits.give(size)

    async def oneway(self, address: str, request: Command, timeout_s: float = TIMEOUT_S) -> None:
        """Send a one-way request; returns when a connection has accepted it."""
        self._check_process()
        self._chain.before(address, request)
        await self._client.oneway(address, request, timeout_s)

    async def call_name_server(
        self, address: str, request: Command, timeout_s: float = TIMEOUT_S
    ) -> Command:
        """As :meth:`call`, with the additions for name servers.

        Raises TransportError too for a server that is no name server.
        """
        self._check_process()
        self._chain.before_name_server(address, request)
        answer = await self._client.call(address, request, timeout_s)
        self._chain.after(address, request, answer)
        is_known = answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if request.code in _EVERY_NAME_SERVER and not is_known:
            raise TransportError(f"{address} answers like a broker, not like a name server")
        return answer

    def send_address(self, address: str) -> str:
        """The address to send messages to: the second port of the broker, if that is used."""
        return vip_address(address) if self._vip else address

    def check_loop(self, owner: str) -> None:
        """Raise ClientStateError unless the calling code runs on the loop of this link.

        ``owner`` names the client in the error; a forked child gets another error.
        """
        try:
            if asyncio.get_running_loop() is self.loop:
                return
        except RuntimeError:  # none runs, or it runs in the parent of this process
            pass
        self._check_process()
        raise ClientStateError(
            f"{owner} belongs to another event loop",
            hint="make one per loop, or use skylark.sync from threads",
        )

    # ---- connections -----------------------------------------------------------------------------

    def connected(self, address: str) -> bool:
        """Whether there is a usable connection now."""
        return self._client.connected(address)

    def backs_off(self, address: str) -> bool:
        """Whether the back-off after a failed connection attempt still runs."""
        return self._client.backs_off(address)

    def disconnect(self, address: str) -> None:
        """Close the connection to an address; the next call makes a new one."""
        self._client.disconnect(address)

    # ---- users -----------------------------------------------------------------------------------

    @property
    def is_shared(self) -> bool:
        """Whether several clients use this link."""
        return self._users > 1

    def add_user(self) -> None:
        """Count one more user of this link."""
        if self._closed:
            raise ClientStateError("the link is closed")
        self._users += 1

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Own a task of a user that is about to release this link; it ends with the link."""
        if self._closed:
            task.cancel()
        else:
            self._adopted.add(task)
            task.add_done_callback(self._adopted.discard)

    async def release(self) -> None:
        """Count one user less; the last one closes all connections."""
        self._check_process()
        self._users -= 1
        if self._users <= 0:
            await self.close()

    async def close(self) -> None:
        """Close all connections; calls in flight fail with ConnectionClosedError."""
        if self._closed:
            return
        self._closed = True
        if self._on_close is not None:
            self._on_close(self)
        adopted = tuple(self._adopted)
        for task in adopted:
            task.cancel()
        await asyncio.gather(*adopted, return_exceptions=True)
        await self._client.close()
