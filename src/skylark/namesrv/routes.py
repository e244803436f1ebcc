"""The route tables: which broker has which topic, its addresses, and which brokers are alive.

::

    topics    topic -> broker name -> queues, permission, version announced   topicQueueTable
    brokers   broker name -> cluster, {broker id -> address}, zone            brokerAddrTable
    clusters  cluster -> broker names                                         clusterAddrTable
    live      (cluster, address) -> last sign of life, version, connection    brokerLiveTable

The tables do no I/O and read no clock: methods take ``now_ms`` (of any clock that never steps back)
and return what the caller has to do (:class:`MinBrokerChanged` notices to send, connections to
close). All state is in memory; after a restart the brokers register again within their period.

``version`` counts every change that a query could show; caches compare it.

Removals are queued and done together by :meth:`RouteTables.drain_removals`: the failure of a whole
rack costs one pass over the topics, not one per broker. A removal refers to the entry at its time,
so a broker that has registered again meanwhile stays.

Responses are ordered by name, so that all name servers return the same bytes. Counterpart of Java's
``RouteInfoManager`` and ``BatchUnregistrationService``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylark.core.errors import BrokerError
from skylark.core.names import SYNC_BROKER_MEMBER_PREFIX
from skylark.namesrv.broker_registration import (
    MASTER_ID,
    LiveBroker,
    MinBrokerChanged,
    Registered,
    Registration,
    Removal,
    is_older,
    known_version,
)
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.topic_queue_table import TopicTable
from skylark.wire.bodies.common_body import DataVersion, TopicList
from skylark.wire.bodies.route_body import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from skylark.wire.codes import Perm

logger = logging.getLogger(__name__)

#: Refused registrations that are kept, of all brokers together (broker_registration, rule 1).
EARLY_COUNT_MAX: Final = 1_000


class RouteTables:
    """The brokers and topics of a name server."""

    def __init__(self, config: NamesrvConfig) -> None:
        self._config = config
        self._broker_version = 0
        self._topics = TopicTable()
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._early: list[Registration] = []
        self._removals: list[Removal] = []

    def reconfigure(self, config: NamesrvConfig) -> None:
        """Apply changed settings."""
        self._config = config
        self._broker_version += 1

    @property
    def version(self) -> int:
        return self._broker_version + self._topics.version

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    @property
    def live_broker_count(self) -> int:
        return len(self._live)

    @property
    def removal_count(self) -> int:
        """Removals that wait for :meth:`drain_removals`."""
        return len(self._removals)

    # --- registration ---------------------------------------------------------------------------

    def register(self, registration: Registration, now_ms: int) -> Registered:
        """Apply a registration; raises BrokerError if it is refused."""
        result = self._register(registration, now_ms)
        for early in self._take_early(registration):
            logger.info("registering topic %s, which came too early", next(iter(early.topics)))
            result.topics_left_out += self._register(early, now_ms).topics_left_out
        return result

    def _register(self, registration: Registration, now_ms: int) -> Registered:
        broker_id = registration.broker_id
        broker = self._brokers.get(registration.broker_name)
        before = {} if broker is None else broker.broker_addrs
        # A group has an address once: a slave that became master leaves its old id.
        addrs = {
            id_: addr
            for id_, addr in before.items()
            if id_ == broker_id or addr != registration.broker_addr
        }
        if broker is not None and self._is_superseded(registration, addrs):
            broker.broker_addrs = addrs
            self._live.pop(registration.live_key, None)
            self._broker_version += 1
            return Registered()
        is_first = broker_id not in addrs
        if is_first and len(registration.topics) == 1:
            if len(self._early) < EARLY_COUNT_MAX:
                self._early.append(registration)
            raise BrokerError("register broker failed")
        broker = self._enter(registration, addrs)
        live = self._live.get(registration.live_key)
        whole = self._topics.is_whole(registration)
        left_out = self._take_topics(registration, broker, live, now_ms, whole, is_first)
        self._renew_live(registration, live, whole, now_ms)
        result = self._answer(registration, broker)
        result.topics_left_out = left_out
        if before and broker_id < min(before) and self._config.notify_min_broker_id_changed:
            result.notices = [_min_changed(broker, ha_addr=registration.ha_server_addr)]
        return result

    def _is_superseded(self, registration: Registration, addrs: dict[int, str]) -> bool:
        """Whether another address has this id with a newer epoch: an old master came back."""
        holder = addrs.get(registration.broker_id)
        if holder is None or holder == registration.broker_addr:
            return False
        live = self._live.get((registration.cluster, holder))
        if live is None or live.version.state_version <= registration.version.state_version:
            return False
        logger.warning(
            "ignoring broker %s id %d at %s: %s has that id with the newer epoch %d",
            registration.broker_name,
            registration.broker_id,
            registration.broker_addr,
            holder,
            live.version.state_version,
        )
        return True

    def _enter(self, registration: Registration, addrs: dict[int, str]) -> BrokerData:
        """Add or update the broker and its cluster."""
        name = registration.broker_name
        broker = self._brokers.get(name)
        if broker is None:
            if len(self._brokers) >= self._config.broker_count_max:
                raise BrokerError(
                    f"the name server knows {len(self._brokers)} brokers, the limit",
                    hint="raise brokerCountMax",
                )
            broker = BrokerData(cluster=registration.cluster, broker_name=name)
            self._brokers[name] = broker
        addrs = dict(sorted({**addrs, registration.broker_id: registration.broker_addr}.items()))
        acting = registration.enable_acting_master is True
        names = self._clusters.setdefault(registration.cluster, set())
        row = (broker.broker_addrs, broker.zone_name, broker.enable_acting_master)
        if row != (addrs, registration.zone_name, acting) or name not in names:
            broker.broker_addrs = addrs
            broker.zone_name = registration.zone_name
            broker.enable_acting_master = acting
            names.add(name)
            self._broker_version += 1
        return broker

    def _take_topics(
        self,
        registration: Registration,
        broker: BrokerData,
        live: LiveBroker | None,
        now_ms: int,
        whole: bool,
        is_first: bool,
    ) -> int:
        """Take topics only from the master, or from the slave that may act as master."""
        is_prime_slave = (
            registration.enable_acting_master is not None
            and registration.broker_id != MASTER_ID
            and registration.broker_id == min(broker.broker_addrs)
        )
        if registration.broker_id != MASTER_ID and not is_prime_slave:
            return 0
        if whole and self._config.delete_topic_with_broker_registration:
            self._topics.delete_missing(registration, now_ms)
        read_only = is_prime_slave and broker.enable_acting_master
        return self._topics.announce(
            registration,
            now_ms,
            whole=whole,
            changed=is_first or live is None or live.version != registration.version,
            perm_mask=~Perm.WRITE if read_only else ~0,
            topic_count_max=self._config.topic_count_max,
        )

    def _renew_live(
        self, registration: Registration, live: LiveBroker | None, whole: bool, now_ms: int
    ) -> None:
        version, version_ms = known_version(live, registration, whole=whole, now_ms=now_ms)
        if live is None:
            logger.info(
                "broker %s id %d of cluster %s registered at %s",
                registration.broker_name,
                registration.broker_id,
                registration.cluster,
                registration.broker_addr,
            )
        if registration.filter_servers != ([] if live is None else live.filter_servers):
            self._broker_version += 1
        self._live[registration.live_key] = LiveBroker(
            broker_name=registration.broker_name,
            broker_id=registration.broker_id,
            connection=registration.connection,
            ha_server_addr=registration.ha_server_addr,
            filter_servers=registration.filter_servers,
            heartbeat_timeout_ms=registration.heartbeat_timeout_ms,
            last_update_ms=now_ms,
            version=version,
            version_ms=version_ms,
        )

    def _answer(self, registration: Registration, broker: BrokerData) -> Registered:
        """The result of a registration: for a slave, with the address of its live master."""
        master_addr = broker.broker_addrs.get(MASTER_ID)
        if registration.broker_id != MASTER_ID and master_addr is not None:
            master = self._live.get((registration.cluster, master_addr))
            if master is not None:
                return Registered(master_addr=master_addr, ha_server_addr=master.ha_server_addr)
        return Registered()

    def _take_early(self, registration: Registration) -> list[Registration]:
        """Remove and return the refused registrations of this broker that are not older."""
        if not self._early:
            return []
        ours = [each for each in self._early if each.identity == registration.identity]
        self._early = [each for each in self._early if each.identity != registration.identity]
        return [
            each
            for each in ours
            if each.connection is registration.connection
            and not is_older(each.version, registration.version)
        ]

    # --- topics ---------------------------------------------------------------------------------

    def register_topic(
        self, topic: str, queue_datas: list[QueueData], connection: object, now_ms: int
    ) -> None:
        """Add or replace a topic on brokers (217); ignore it if one of them is unknown."""
        for data in queue_datas:
            if data.broker_name not in self._brokers:
                logger.warning("ignoring topic %s of unknown broker %s", topic, data.broker_name)
                return
        self._topics.announce_one(
            topic,
            queue_datas,
            connection,
            now_ms,
            topic_count_max=self._config.topic_count_max,
        )

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic on all brokers or on those of one cluster, if it exists."""
        self._topics.delete(topic, self._clusters.get(cluster, ()) if cluster else None)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """WIPE or ADD_WRITE_PERM_OF_BROKER; returns how many topics the broker has."""
        return self._topics.set_writable(broker_name, writable)

    # --- liveness and removal of brokers --------------------------------------------------------

    def heartbeat(self, cluster: str, broker_addr: str, now_ms: int) -> None:
        """Record the heartbeat of a broker; does nothing if the broker is not registered."""
        live = self._live.get((cluster, broker_addr))
        if live is not None:
            live.last_update_ms = now_ms

    def query_version(
        self, cluster: str, broker_addr: str, version: DataVersion | None, now_ms: int
    ) -> tuple[bool, DataVersion | None]:
        """QUERY_DATA_VERSION: whether the broker should register, and the version known here."""
        self.heartbeat(cluster, broker_addr, now_ms)
        live = self._live.get((cluster, broker_addr))
        if live is None:
            return True, None
        return live.version != version, live.version

    def remove(self, cluster: str, broker_name: str, broker_addr: str, broker_id: int) -> bool:
        """Queue the removal of a broker; False when the queue is full."""
        if len(self._removals) >= self._config.un_register_broker_queue_capacity:
            logger.warning("cannot remove %s at %s: the queue is full", broker_name, broker_addr)
            return False
        removal = Removal(
            cluster=cluster,
            broker_name=broker_name,
            broker_addr=broker_addr,
            broker_id=broker_id,
            live=self._live.get((cluster, broker_addr)),
        )
        self._removals.append(removal)
        return True

    def connection_closed(self, connection: object) -> None:
        """Queue the removal of the brokers that last registered on this connection."""
        self._early = [each for each in self._early if each.connection is not connection]
        for (cluster, addr), live in self._live.items():
            if live.connection is connection:
                logger.info("broker %s at %s lost its connection", live.broker_name, addr)
                self.remove(cluster, live.broker_name, addr, live.broker_id)

    def expire(self, now_ms: int) -> list[object]:
        """Queue the removal of silent brokers; returns the connections to close."""
        connections = []
        for (cluster, addr), live in self._live.items():
            silent_ms = now_ms - live.last_update_ms
            if silent_ms > live.heartbeat_timeout_ms:
                logger.warning(
                    "broker %s at %s silent for %d ms", live.broker_name, addr, silent_ms
                )
                connections.append(live.connection)
                self.remove(cluster, live.broker_name, addr, live.broker_id)
        return connections

    def renew_all(self, now_ms: int) -> None:
        """Count every broker as just heard from: virtual time moved on without heartbeats."""
        for live in self._live.values():
            live.last_update_ms = now_ms

    def drain_removals(self) -> list[MinBrokerChanged]:
        """Do all queued removals; returns the notices to send."""
        removals, self._removals = self._removals, []
        gone: set[str] = set()
        reduced: dict[str, str | None] = {}  # broker name -> address that had the smallest id
        for removal in removals:
            if self._live.get(removal.live_key) is not removal.live:
                continue  # removed already, or registered again since
            self._live.pop(removal.live_key, None)
            name, addr = removal.broker_name, removal.broker_addr
            broker = self._brokers.get(name)
            if broker is None or addr not in broker.broker_addrs.values():
                continue  # another address has taken over its id
            logger.info("broker %s id %d at %s removed", name, removal.broker_id, addr)
            if removal.broker_id == min(broker.broker_addrs):
                reduced[name] = addr
            else:
                reduced.setdefault(name, None)
            rest = {id_: each for id_, each in broker.broker_addrs.items() if each != addr}
            broker.broker_addrs = rest
            if not rest:
                self._drop_broker(name)
                gone.add(name)
                del reduced[name]
            self._broker_version += 1
        acting = [name for name in reduced if self._brokers[name].enable_acting_master]
        masterless = {name for name in acting if MASTER_ID not in self._brokers[name].broker_addrs}
        if gone or masterless:
            self._topics.lose(gone, masterless)
        if not self._config.notify_min_broker_id_changed:
            return []
        return [
            _min_changed(self._brokers[name], offline_addr=reduced[name])
            for name in acting
            if reduced[name] is not None
        ]

    def _drop_broker(self, name: str) -> None:
        del self._brokers[name]
        for cluster, names in tuple(self._clusters.items()):
            names.discard(name)
            if not names:
                del self._clusters[cluster]

    # --- queries --------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic; None if it is unknown, or none of its brokers is known."""
        brokers = [
            self._brokers[name] for name in self._topics.brokers_of(topic) if name in self._brokers
        ]
        if not brokers:
            return None
        may_act = self._config.support_acting_master and not topic.startswith(
            SYNC_BROKER_MEMBER_PREFIX
        )
        return TopicRouteData(
            queue_datas=self._topics.queue_datas(topic),
            broker_datas=[
                _copy_broker(
                    broker,
                    may_act=may_act and not self._topics.is_writable(topic, broker.broker_name),
                )
                for broker in brokers
            ],
            filter_server_table=self._filter_servers(brokers),
            topic_queue_mapping_by_broker=self._topics.mappings(topic),
        )

    def _filter_servers(self, brokers: list[BrokerData]) -> dict[str, list[str]]:
        found = {}
        for broker in brokers:
            for addr in broker.broker_addrs.values():
                live = self._live.get((broker.cluster, addr))
                if live is not None and live.filter_servers:
                    found[addr] = live.filter_servers
        return found

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={
                name: _copy_broker(broker) for name, broker in sorted(self._brokers.items())
            },
            cluster_addr_table={
                cluster: sorted(names) for cluster, names in sorted(self._clusters.items())
            },
        )

    def member_group(self, cluster: str, broker_name: str) -> BrokerMemberGroup:
        broker = self._brokers.get(broker_name)
        addrs = {} if broker is None else dict(broker.broker_addrs)
        return BrokerMemberGroup(cluster=cluster, broker_name=broker_name, broker_addrs=addrs)

    def topics(self) -> TopicList:
        return TopicList(topic_list=self._topics.names())

    def topics_of_cluster(self, cluster: str) -> TopicList:
        return TopicList(topic_list=self._topics.names_on(self._clusters.get(cluster, set())))

    def topics_by_flag(self, wanted: Callable[[int], bool]) -> TopicList:
        return TopicList(topic_list=self._topics.names_by_flag(wanted))

    def system_topics(self) -> TopicList:
        """Names of clusters and brokers, each a topic; and a broker that knows the others."""
        names = set(self._clusters).union(*self._clusters.values())
        rows = (broker.broker_addrs for _, broker in sorted(self._brokers.items()))
        return TopicList(
            topic_list=sorted(names),
            broker_addr=next((addr for row in rows for addr in row.values()), None),
        )


def _copy_broker(broker: BrokerData, *, may_act: bool = False) -> BrokerData:
    """A copy for a response; ``may_act``: the smallest slave replaces a missing master."""
    addrs = dict(broker.broker_addrs)
    if may_act and broker.enable_acting_master and MASTER_ID not in addrs:
        stand_in = addrs.pop(min(addrs))
        addrs = {MASTER_ID: stand_in, **addrs}
    return BrokerData(
        cluster=broker.cluster,
        broker_name=broker.broker_name,
        broker_addrs=addrs,
        zone_name=broker.zone_name,
        enable_acting_master=broker.enable_acting_master,
    )


def _min_changed(
    broker: BrokerData, *, offline_addr: str | None = None, ha_addr: str | None = None
) -> MinBrokerChanged:
    addrs = broker.broker_addrs
    smallest = min(addrs)
    recipients = list(addrs.values())
    if offline_addr is None and len(addrs) > 1:
        recipients.remove(addrs[smallest])  # it has just registered itself
    return MinBrokerChanged(
        recipients=recipients,
        min_broker_id=smallest,
        min_broker_addr=addrs[smallest],
        offline_broker_addr=offline_addr,
        ha_broker_addr=ha_addr,
    )
