"""The name server: wiring, start and stop.

::

    server = NameServer(NamesrvConfig(listen_port=0))
    await server.start()
    print(server.address)        # 127.0.0.1:41233
    await server.stop()

The parts::

    connection -> Dispatcher -> NamesrvHandlers -> RouteTables, KvTable -> RouteAnswers
    connection closed, timer -> Liveness -> RouteTables -> notices by RemotingClient

:class:`Liveness` stops first, so that connections which this server closes are not taken for
brokers that died. Counterpart of Java's ``NamesrvController``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from skylark.core.clock import Clock, LoopClock
from skylark.core.metrics import Counter, Registry
from skylark.core.names import Address
from skylark.namesrv.atomic_file import ReplaceFile, SavedFile, read_file, replace_file
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.handlers import NamesrvHandlers
from skylark.namesrv.kv import KvTable
from skylark.namesrv.liveness import Liveness
from skylark.namesrv.route_responses import RouteAnswers
from skylark.namesrv.routes import RouteTables
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, Interceptor
from skylark.net.limits import NetLimits
from skylark.net.metrics_http import MetricsServer
from skylark.net.server import RemotingServer
from skylark.net.transport import Network, TcpNetwork
from skylark.wire.catalogue import name_of
from skylark.wire.command import Command

logger = logging.getLogger(__name__)

STOP_GRACE_S: Final = 3.0


class NameServer:
    """A name server on the running loop; starts and stops once."""

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        metrics: Registry | None = None,
        interceptors: Iterable[Interceptor] = (),
        own_brokers: Collection[str] = (),
        replace: ReplaceFile = replace_file,
    ) -> None:
        """``own_brokers``: names of brokers behind our address, see ``route_responses``."""
        config = config or NamesrvConfig()
        network = network or TcpNetwork()
        clock = clock or LoopClock()
        self.metrics = metrics or Registry()
        limits = NetLimits(
            connections_max=config.connection_count_max,
            idle_timeout_s=config.server_channel_max_idle_time_seconds,
        )
        self._start_config = config
        self._clock = clock
        self._kv = KvTable(config.kv_size_max)
        self.tables = RouteTables(config)
        self._client = RemotingClient(network, clock, limits=limits)
        self._liveness = Liveness(self.tables, config, clock, self._client)
        self.handlers = NamesrvHandlers(
            config,
            self.tables,
            self._kv,
            RouteAnswers(self.tables, self._kv, own_brokers),
            self._liveness,
            clock,
            kv_file=SavedFile(config.kv_config_path, replace),
            config_file=SavedFile(config.config_store_path, replace),
        )
        dispatcher = Dispatcher((*interceptors, RequestCounter(self.metrics)))
        self.handlers.add_to(dispatcher)
        self._server = RemotingServer(
            dispatcher,
            network,
            clock,
            limits=limits,
            serialize_type=config.serialize_type.value,
        )
        self._server.on_close(self._liveness.connection_closed)
        self._add_gauges()
        self._metrics_server: MetricsServer | None = None
        if config.metrics_port is not None:
            self._metrics_server = MetricsServer(
                self.metrics,
                network=network,
                clock=clock,
                host=config.bind_address,
                port=config.metrics_port,
            )

    def _add_gauges(self) -> None:
        tables, gauge = self.tables, self.metrics.gauge
        gauge(
            "skylark_namesrv_brokers",
            "Brokers registered and alive.",
            callback=lambda: tables.live_broker_count,
        )
        gauge("skylark_namesrv_topics", "Topics with a route.", callback=lambda: tables.topic_count)
        gauge(
            "skylark_namesrv_removals_waiting",
            "Removals of brokers that are queued.",
            callback=lambda: tables.removal_count,
        )
        gauge(
            "skylark_namesrv_connections",
            "Open connections.",
            callback=lambda: len(self._server.connections),
        )

    @property
    def config(self) -> NamesrvConfig:
        """The current settings; request 318 changes them."""
        return self.handlers.config

    @property
    def address(self) -> Address:
        """The address it listens on; ``str()`` gives ``host:port``."""
        return Address(*self._server.address)

    @property
    def metrics_address(self) -> Address | None:
        """The address of the metrics endpoint; None without ``metricsPort``."""
        return None if self._metrics_server is None else Address(*self._metrics_server.address)

    async def start(self) -> None:
        """Load the KV file and listen; raises ConfigError, OSError or a TransportError."""
        try:
            await self._load_kv()
            await self._listen()
        except BaseException:
            await self.stop()
            raise

    async def _load_kv(self) -> None:
        path, size_max = self._start_config.kv_config_path, self._start_config.kv_size_max
        if path is not None:
            content = await asyncio.to_thread(read_file, path, size_max)
            if content is not None:
                self._kv.load(content)

    async def _listen(self) -> None:
        config = self._start_config
        self.handlers.start_waiting()
        if self._metrics_server is not None:
            await self._metrics_server.start()
        await self._server.start(config.bind_address, config.listen_port)
        await self._liveness.start()
        if config.is_loopback:
            logger.info("name server listens on %s, this machine only (bindAddress)", self.address)
        else:
            logger.warning(
                "name server listens on %s, open to other machines without access control:"
                " any client of this port can redirect producers and consumers",
                self.address,
            )

    async def stop(self) -> None:
        """Finish running requests, close all connections, free the port."""
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        await self._liveness.stop()
        await self._server.stop(STOP_GRACE_S)
        await self._client.close()

    def clock_advanced(self, _from_ms: int, _to_ms: int, clients_alive: bool) -> None:
        """Hook for ``VirtualClock.on_advance``: brokers do not expire when a test moves time."""
        if clients_alive:
            self.tables.renew_all(self._clock.steady_ms())
            for connection in self._server.connections:
                connection.touch()


class RequestCounter:
    """An interceptor that counts requests by name and response code."""

    def __init__(self, registry: Registry) -> None:
        self._metric = registry.counter(
            "skylark_namesrv_requests_total",
            "Requests handled, by name and response code.",
            ["request", "code"],
        )
        self._children: dict[tuple[int, int], Counter] = {}

    def before(self, _connection: Connection, _request: Command) -> None:
        return None

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        if response is not None:
            key = (request.code, response.code)
            child = self._children.get(key)
            if child is None:
                child = self._metric.labels(name_of(request.code), str(int(response.code)))
                self._children[key] = child
            child.value += 1
        return response
