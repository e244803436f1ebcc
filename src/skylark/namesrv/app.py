"""The name server as an object: build, ``await start()``, use, ``await stop()``.

::

    server = NameServer(NamesrvConfig(listen_port=0))
    await server.start()
    print(server.address)        # 127.0.0.1:41233
    await server.stop()

Only wiring happens here::

    connection -> Dispatcher -> NamesrvHandlers -> RouteTables, KvTable -> RouteAnswers
    connection closed, timer -> Liveness -> RouteTables -> notices by RemotingClient

Stopping begins with :class:`Liveness`: the connections that end because *we* go must not look like
brokers that died. Answers to ``NamesrvController``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from skylark.core.clock import Clock, LoopClock
from skylark.core.metrics import Registry
from skylark.core.names import Address
from skylark.namesrv.atomic_file import ReplaceFile, SavedFile, read_file, replace_file
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.handlers import NamesrvHandlers
from skylark.namesrv.kv import KvTable
from skylark.namesrv.liveness import Liveness
from skylark.namesrv.metrics import RequestCounter, add_gauges
from skylark.namesrv.route_responses import RouteAnswers
from skylark.namesrv.routes import RouteTables
from skylark.net.client import RemotingClient
from skylark.net.dispatch import Dispatcher, Interceptor
from skylark.net.limits import NetLimits
from skylark.net.metrics_http import MetricsServer
from skylark.net.server import RemotingServer
from skylark.net.transport import Network, TcpNetwork

log = logging.getLogger(__name__)

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
        """``own_brokers``: names of brokers behind our own address, see ``answers``."""
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
        add_gauges(self.metrics, self.tables, lambda: len(self._server.connections))
        self._metrics_server: MetricsServer | None = None
        if config.metrics_port is not None:
            self._metrics_server = MetricsServer(
                self.metrics,
                network=network,
                clock=clock,
                host=config.bind_address,
                port=config.metrics_port,
            )

    @property
    def config(self) -> NamesrvConfig:
        """The settings as they are now; request 318 changes them."""
        return self.handlers.config

    @property
    def address(self) -> Address:
        """Where it listens; ``str()`` gives ``host:port``."""
        return Address(*self._server.address)

    @property
    def metrics_address(self) -> Address | None:
        """Where Prometheus may ask; None without ``metricsPort``."""
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
            log.info("name server on %s, for this machine only (bindAddress)", self.address)
        else:
            log.warning(
                "name server on %s, open to other machines without access control:"
                " whoever reaches this port can redirect producers and consumers",
                self.address,
            )

    async def stop(self) -> None:
        """Answer what is in hand, close all connections, free the port."""
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        await self._liveness.stop()
        await self._server.stop(STOP_GRACE_S)
        await self._client.close()

    def clock_advanced(self, _from_ms: int, _to_ms: int, clients_alive: bool) -> None:
        """Hook for ``VirtualClock.on_advance``: time that passes in a moment kills nobody."""
        if clients_alive:
            self.tables.renew_all(self._clock.steady_ms())
            for connection in self._server.connections:
                connection.touch()
