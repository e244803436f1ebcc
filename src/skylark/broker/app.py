"""The broker: the list of its features, and its start and stop.

::

    broker = Broker(load_broker_config({"storePathRootDir": "store", "listenPort": "0"}))
    await broker.start()
    print(broker.address)        # 127.0.0.1:41233
    await broker.stop()

Each folder of ``skylark/broker`` is a feature: its handlers, its services, its state. A small class
in :mod:`skylark.broker.base_features` or :mod:`skylark.broker.features` makes the objects of a
feature from those of the features that it uses. :func:`compose` makes all features;
:class:`BrokerFeatures` is the list in whose order they start::

    a client's request -> RemotingEndpoint -> handlers -> services -> tables, MessageStore
    another endpoint   -> BrokerServices (api.py)      -> services -> tables, MessageStore

**Start**: check that the ports are free, before there are any files; tables, store (recovered
while nothing is served yet), replication, background work of the features, ports, registration.
Port 0 draws a port such that the fast port, two below, and the HA port, one above, are free as
well. **Stop**, in reverse order: unregister, refuse new requests, answer what is held, in work or
waits for the disk or for slaves, close the connections, end the background work, save the tables,
let slaves have the rest of the log, sync the log and then the timer, which depends on it, close the
store. Counterpart of Java's ``BrokerController``.

**To add a feature**, say POP:

1. Write the folder ``broker/pop``: service, state, background loops, ``handlers.py``. It imports
   other features by the modules that ``tests/test_layers.py`` lists for them; add its row there.
2. Add the protocol of its service to :mod:`skylark.broker.api`, as a field of ``BrokerServices``.
3. Write ``PopFeature`` in ``features.py``. Its constructor takes the base features and the others
   that it uses. ``handlers`` returns its handlers, ``main_port_handlers`` those whose requests may
   be held; they call the services of ``BrokerServices``, which call the interceptors
   (:mod:`skylark.broker.service_interception` has a table of the operations). ``start`` loads state
   and starts background loops, ``drain`` answers held requests, ``stop`` ends the loops.
4. Add a line to :func:`compose`, after the features that it uses, and a field to
   :class:`BrokerFeatures`: it starts after the fields before it and stops before them.

Where a feature connects to the rest of the broker:

=================================  ===============================================================
changed settings                   ``context.live.changes.subscribe``
a table in a file                  ``context.saver.on_change``, ``context.saver.every``
requests that store messages       ``PutFeature.add_request``
a message can be read              ``StoreFeature.on_arrival`` (topics of the broker itself),
                                   ``StoreFeature.held_pulls``
the store is open                  ``StoreFeature.after_open`` (in a thread: for long work)
the log is on disk, at a stop      ``StoreFeature.after_sync`` (in a thread)
a topic was deleted                ``TopicsFeature.deleted.subscribe``
a slave has found its master       ``TopicsFeature.registration.master_changes.subscribe``
a metric                           ``StatsFeature.metrics.watch``
=================================  ===============================================================
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, cast

from skylark.broker import features
from skylark.broker.api import ApiInterceptor, BrokerServices, InterceptorChain
from skylark.broker.base_features import (
    BaseFeatures,
    BrokerContext,
    GroupsFeature,
    OverloadFeature,
    StatsFeature,
    StoreFeature,
    TopicsFeature,
)
from skylark.broker.config import PORT_MAX, BrokerConfig
from skylark.broker.pop_feature import PopFeature
from skylark.broker.remoting_endpoint import RemotingEndpoint
from skylark.broker.service_interception import intercept
from skylark.broker.table_saver import InThread, TableSaver
from skylark.broker.topics.registration import Registration
from skylark.broker.transaction.half_message import topic_of_half
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import TransportError
from skylark.core.lifecycle import Lifecycle
from skylark.core.names import Address
from skylark.net.dispatch import Interceptor
from skylark.net.transport import Network, TcpNetwork
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore

logger = logging.getLogger(__name__)

DRAWS_MAX: Final = 100


class BrokerFeatures(NamedTuple):
    """What a broker is made of, in the order in which it starts; it stops in reverse order."""

    topics: TopicsFeature
    groups: GroupsFeature
    storage: StoreFeature
    replication: features.ReplicationFeature
    saver: TableSaver
    puts: features.PutFeature
    transaction: features.TransactionFeature
    send: features.SendFeature
    delay: features.DelayFeature
    slave: features.SlaveFeature
    stats: StatsFeature
    overload: OverloadFeature
    pop: PopFeature
    pull: features.PullFeature
    admin: features.AdminFeature
    endpoint: RemotingEndpoint
    registration: Registration

    @property
    def store(self) -> MessageStore:
        return self.storage.store


def compose(
    context: BrokerContext,
    interceptors: Iterable[Interceptor] = (),
    api_interceptors: Iterable[ApiInterceptor] = (),
) -> BrokerFeatures:
    """Make all features of a broker; nothing runs yet."""
    topics = TopicsFeature(context)
    storage = StoreFeature(context, topics)
    groups = GroupsFeature(context, storage, topics)
    stats = StatsFeature(context, storage, topics, groups)
    overload = OverloadFeature(context, storage, groups, stats, lambda: endpoint.held_size())
    base = BaseFeatures(context, storage, topics, groups, stats, overload)
    timer_store = features.make_timer_store(context)
    replication = features.ReplicationFeature(base)
    puts = features.PutFeature(base, replication, timer_store)
    transaction = features.TransactionFeature(base, puts)
    send = features.SendFeature(base, puts, transaction)
    delay = features.DelayFeature(base, puts, timer_store)
    slave = features.SlaveFeature(base, replication)
    pull = features.PullFeature(base, slave)
    pop = PopFeature(base, puts, delay)
    admin = features.AdminFeature(base, replication, delay, slave, pull)
    services = BrokerServices(
        puts=puts.pipeline,
        pulls=pull.service,
        pops=pop.service,
        offsets=groups.offset_service,
        locks=groups.lock_service,
        clients=groups.client_service,
        topics=topics.table,
        groups=groups.table,
        interceptors=InterceptorChain(api_interceptors),
    )
    services = intercept(services, partial(topic_of_half, storage.store))
    interceptors = (*interceptors, overload.guard, *stats.exporter.interceptors)
    served = topics, groups, puts, transaction, send, delay, slave, pop, pull, admin
    endpoint = RemotingEndpoint(context, served, services, interceptors)
    stats.exporter.watch_servers(endpoint.by_port)
    return BrokerFeatures(
        topics, groups, storage, replication, context.saver, puts, transaction, send, delay, slave,
        stats, overload, pop, pull, admin, endpoint, topics.registration,
    )  # fmt: skip


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
        self._context: BrokerContext | None = None
        self._features: BrokerFeatures | None = None
        self._lifecycle = Lifecycle("broker")

    @property
    def context(self) -> BrokerContext:
        """Settings, clock, network and files, for tests and tools; only after ``start``."""
        if self._context is None:
            raise RuntimeError("the broker has not been started")
        return self._context

    @property
    def features(self) -> BrokerFeatures:
        """The features of the broker, for tests and tools; only after ``start``."""
        if self._features is None:
            raise RuntimeError("the broker has not been started")
        return self._features

    @property
    def services(self) -> BrokerServices:
        """What an endpoint uses; only after ``start``."""
        return self.features.endpoint.services

    @property
    def config(self) -> BrokerConfig:
        """The settings in force; request 25 changes them."""
        return self._config if self._context is None else self._context.live.current

    @property
    def address(self) -> Address:
        """Where it listens; ``str()`` gives ``host:port``."""
        return Address(*self.features.endpoint.server.address)

    @property
    def fast_address(self) -> Address:
        """The second port, which takes no pulls."""
        return Address(*self.features.endpoint.fast_server.address)

    @property
    def metrics_address(self) -> Address | None:
        """Where Prometheus scrapes; None without ``metricsExporterType=PROM``."""
        address = self.features.stats.exporter.address
        return None if address is None else Address(*address)

    async def start(self) -> None:
        """Recover, listen and register; raises ConfigError, StoreError or TransportError."""
        if self._features is not None:
            raise RuntimeError("the broker has been started before")
        config = self._config
        if config.listen_port == 0:
            config = config.listening_on(await _draw_port(self._network, config.bind_address))
        else:
            await _check_ports(self._network, config)
        context = self._context = BrokerContext(
            config,
            network=self._network,
            clock=self._clock,
            files=self._files,
            in_thread=self._in_thread,
            given=self._given,
        )
        self._features = compose(context, self._interceptors, self._api_interceptors)
        for component in self._features:
            self._lifecycle.add(component)
        await self._lifecycle.start()
        if config.is_loopback:
            logger.info("broker %s on %s, for this machine only", config.broker_name, self.address)
        else:
            logger.warning(
                "broker %s on %s, open to other machines without access control",
                config.broker_name,
                self.address,
            )

    async def stop(self) -> None:
        """Answer what is in hand, close all connections, bring everything to disk.

        Raises the last error, after all features have stopped; a disk that fails is a StoreError.
        """
        if self._features is None:
            return
        try:
            await self._lifecycle.stop()
        except ExceptionGroup as failed:
            *others, last = failed.exceptions
            for error in others:
                logger.exception("the broker did not stop cleanly: %s", error, exc_info=error)
            raise last from None

    @property
    def is_ready(self) -> bool:
        """Whether clients should be let in; see :attr:`Registration.is_ready`."""
        return self._features is not None and self.features.registration.is_ready

    async def ready(self) -> None:
        """Wait until :attr:`is_ready`: a name server has answered, or 3 s are over."""
        await self.features.registration.ready()

    def clock_advanced(self, from_ms: int, to_ms: int, clients_alive: bool) -> None:
        """Hook for ``VirtualClock.on_advance``: no client counts as gone because of the jump."""
        self.features.groups.liveness.clock_advanced(from_ms, to_ms, clients_alive)
        if clients_alive:
            for connection in self.features.endpoint.connections:
                connection.touch()


class _Refusing(asyncio.Protocol):
    """Closes a connection at once: a client that comes too early has to come again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()  # uvloop's have no common class


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
