"""The broker as an object: build, ``await start()``, use, ``await stop()``.

::

    broker = Broker(load_broker_config({"storePathRootDir": "store", "listenPort": "0"}))
    await broker.start()
    print(broker.address)        # 127.0.0.1:41233
    await broker.stop()

Its parts are made and wired in :mod:`skylark.broker.composition`. Port 0 draws a port such that the
fast port, two below, and the HA port, one above, are free as well.

**Start**: look whether the ports are free, before there are any files; tables, store (recovered
while nothing is served yet), replication, servers, delivery of delayed messages or, at a slave, the
copying of its master's tables, registration. **Stop**: deliver no more, unregister, answer what is
held, in work or waits for the disk or for slaves while new requests are sent away, close the
connections, let slaves have the rest, save the tables, sync the log and then the timer, which
counts on it, close the store. Answers to ``BrokerController``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, cast

from skylark.broker.api import ApiInterceptor, BrokerServices
from skylark.broker.composition import BrokerGraph
from skylark.broker.config import PORT_MAX, BrokerConfig
from skylark.broker.table_saver import (
    InThread,
)
from skylark.broker.topics.config_rebuild import save_new_topics
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import TransportError
from skylark.core.names import Address
from skylark.net.dispatch import Interceptor
from skylark.net.transport import Network, TcpNetwork
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem

log = logging.getLogger(__name__)

STOP_GRACE_S: Final = 3.0
#: How often a broker that stops looks whether its slaves have everything.
FEED_LOOK_S: Final = 0.02
DRAWS_MAX: Final = 100


class Broker:
    """A broker on the running loop; starts and stops once."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        files: FileSystem | None = None,
        in_thread: InThread = asyncio.to_thread,
        interceptors: Iterable[Interceptor] = (),
        api_interceptors: Iterable[ApiInterceptor] = (),
        given: Mapping[str, str] | None = None,
    ) -> None:
        """``in_thread`` runs what blocks: recovery, the saving of tables, the last sync;
        ``interceptors`` see the frames of remoting clients, ``api_interceptors`` the requests of
        all endpoints; ``given`` are the properties the broker was started with, known or not."""
        self._config = config
        self._network = network or TcpNetwork()
        self._clock = clock or LoopClock()
        self._files = files or OsFileSystem()
        self._in_thread = in_thread
        self._interceptors = tuple(interceptors)
        self._api_interceptors = tuple(api_interceptors)
        self._given = given
        self._graph: BrokerGraph | None = None
        self._opening: asyncio.Future[None] | None = None
        self._stopped = False

    @property
    def graph(self) -> BrokerGraph:
        """The parts of the broker, for whoever looks inside; only after ``start``."""
        if self._graph is None:
            raise RuntimeError("the broker has not been started")
        return self._graph

    @property
    def services(self) -> BrokerServices:
        """What an endpoint uses; only after ``start``."""
        return self.graph.services

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now; request 25 changes them."""
        return self._config if self._graph is None else self._graph.live.current

    @property
    def address(self) -> Address:
        """Where it listens; ``str()`` gives ``host:port``."""
        return Address(*self.graph.server.address)

    @property
    def fast_address(self) -> Address:
        """The second port, where nothing is pulled."""
        return Address(*self.graph.fast_server.address)

    @property
    def metrics_address(self) -> Address | None:
        """Where Prometheus may ask; None without ``metricsExporterType=PROM``."""
        address = self.graph.exporter.address
        return None if address is None else Address(*address)

    async def start(self) -> None:
        """Recover, listen and register; raises ConfigError, StoreError or TransportError."""
        if self._graph is not None:
            raise RuntimeError("the broker has been started before")
        config = self._config
        if config.listen_port == 0:
            config = config.listening_on(await _draw_port(self._network, config.bind_address))
        else:
            await _check_ports(self._network, config)
        graph = self._graph = BrokerGraph(
            config,
            network=self._network,
            clock=self._clock,
            files=self._files,
            in_thread=self._in_thread,
            interceptors=self._interceptors,
            api_interceptors=self._api_interceptors,
            given=self._given,
        )
        try:
            await self._start(graph, config)
        except BaseException:
            await self.stop()
            raise

    async def announced(self, timeout_s: float) -> None:
        """Wait until the name servers have heard of this broker, or until the time is up."""
        with suppress(TimeoutError):
            await self._clock.wait_for(self.graph.registration.announced(), timeout_s)

    async def _start(self, graph: BrokerGraph, config: BrokerConfig) -> None:
        graph.load()
        await self._open_store(graph)
        graph.resume()
        graph.store.start()
        await graph.replication.start(config.bind_address, config.ha_port)
        if graph.slave is None:
            graph.transactions.start()
        await graph.saver.start()
        if graph.slave is None:
            await save_new_topics(graph.topics, graph.saved.topics)
        await graph.sampler.start()
        graph.slow_groups.start()
        graph.retention_watch.start()
        await graph.liveness.start()
        await graph.server.start(config.bind_address, config.listen_port)
        await graph.fast_server.start(config.bind_address, config.fast_port)
        await graph.exporter.start()
        if graph.slave is not None:
            graph.slave.start()
        else:
            graph.schedule.start()
            if graph.timer is not None:
                graph.timer.start()
        await graph.registration.start()
        if config.is_loopback:
            log.info("broker %s on %s, for this machine only", config.broker_name, self.address)
        else:
            log.warning(
                "broker %s on %s, open to other machines without access control",
                config.broker_name,
                self.address,
            )

    async def _open_store(self, graph: BrokerGraph) -> None:
        """Recover in a thread, so that a name server on this loop is not held up.

        Whoever gives up meanwhile waits for the end: the thread cannot be stopped.
        """
        self._opening = asyncio.ensure_future(self._in_thread(graph.open_store))
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            await asyncio.wait([self._opening])
            raise
        if self._stopped:
            raise RuntimeError("the broker was stopped while it started")

    async def stop(self) -> None:
        """Answer what is in hand, close all connections, bring everything to disk."""
        graph = self._graph
        if graph is None or self._stopped:
            return
        self._stopped = True
        if self._opening is not None:
            await asyncio.wait([self._opening])
        try:
            await graph.schedule.stop()
            await graph.registration.stop()
            if graph.slave is not None:
                await graph.slave.stop()
            for server in graph.servers:
                server.dispatcher.shutting_down = True
            graph.replication.stop_listening()
            graph.pulls.waiting.stop()
            await self._answer_waiting(graph)
            graph.replication.release()
            await graph.liveness.stop()
            await asyncio.gather(*(server.stop(STOP_GRACE_S) for server in graph.servers))
            await graph.exporter.stop()
            await graph.sampler.stop()
            graph.slow_groups.stop()
            graph.retention_watch.stop()
            await graph.client.close()
            graph.transactions.stop()
            if graph.timer is not None:
                await graph.timer.stop()
            await self._feed_slaves(graph)
            await graph.saver.stop()
        finally:
            await graph.replication.stop()
            await self._close_store(graph)

    async def _close_store(self, graph: BrokerGraph) -> None:
        """Sync in a thread, as at start; a closing that is given up is waited for."""
        graph.store.stop()
        syncing = asyncio.ensure_future(self._in_thread(graph.bring_to_disk))
        try:
            await asyncio.shield(syncing)
        except asyncio.CancelledError:
            await asyncio.wait([syncing])
            raise
        finally:
            graph.store.close()

    async def _answer_waiting(self, graph: BrokerGraph) -> None:
        try:
            async with self._clock.timeout(STOP_GRACE_S):
                await graph.durability.wait_for_pending()
        except TimeoutError:
            log.warning("messages still wait for disk or slaves after %.0f s", STOP_GRACE_S)

    async def _feed_slaves(self, graph: BrokerGraph) -> None:
        """Let slaves that are near have all: perhaps one of them is the next master."""
        try:
            async with self._clock.timeout(STOP_GRACE_S):
                while any(
                    slave.in_sync and slave.diff
                    for slave in graph.replication.runtime_info().ha_connection_info
                ):
                    await self._clock.sleep(FEED_LOOK_S)
        except TimeoutError:
            log.warning("a slave does not have everything after %.0f s", STOP_GRACE_S)

    def clock_advanced(self, from_ms: int, to_ms: int, clients_alive: bool) -> None:
        """Hook for ``VirtualClock.on_advance``: time that passes in a moment kills nobody."""
        graph = self.graph
        graph.liveness.clock_advanced(from_ms, to_ms, clients_alive)
        if clients_alive:
            for connection in graph.connections():
                connection.touch()


class _Refusing(asyncio.Protocol):
    """Ends a connection at once: whoever comes too early is to come again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()  # uvloop's are of no common class


async def _check_ports(network: Network, config: BrokerConfig) -> None:
    """Raise TransportError, of the first port that is wanted and cannot be had."""
    ports = [config.listen_port, config.fast_port]
    if not config.is_slave:
        ports.append(config.ha_port)
    for port in ports:
        listener = await network.listen(_Refusing, config.bind_address, port)
        listener.close()
        await listener.wait_closed()


async def _draw_port(network: Network, host: str) -> int:
    """A port that is free, with the fast port two below it and the HA port after it."""
    for _ in range(DRAWS_MAX):
        listeners = [await network.listen(asyncio.Protocol, host, 0)]
        port = listeners[0].addresses[0][1]
        try:
            if port + 1 > PORT_MAX:
                continue
            listeners.append(await network.listen(asyncio.Protocol, host, port - 2))
            listeners.append(await network.listen(asyncio.Protocol, host, port + 1))
        except TransportError:
            continue
        finally:
            for listener in listeners:
                listener.close()
                await listener.wait_closed()
        return port
    raise TransportError(f"no free ports p-2, p and p+1 on {host} in {DRAWS_MAX} draws")
