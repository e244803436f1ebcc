"""Encoded route responses, cached until a table changes.

Every client requests the route of each of its topics every 30 s, and routes change rarely. So the
encoded body is cached per (topic, dialect); the version counters of the tables show when the cache
must be cleared.

Two dialects: clients from 4.9.4 on, and those that request it, get standard JSON with quoted
integer keys; older ones get fastjson's bare keys. Cluster information (106) always has bare keys.

**Zones.** A client with a zone gets the brokers of that zone, and brokers without a master, because
any slave is better than none.

**Own brokers.** With port mapping the announced address of a broker may be unreachable, while the
address at which the client reached *this* server works. For the brokers in ``own_brokers``
(``skylark up`` names those that it started) the host is replaced by the local address of the
client's connection. Without names there is no replacement.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from skylark.core.errors import ConfigError
from skylark.core.names import Address, parse_address
from skylark.namesrv.broker_registration import MASTER_ID
from skylark.namesrv.kv import ORDER_TOPIC_CONFIG, KvTable
from skylark.namesrv.routes import RouteTables
from skylark.wire.bodies.common_body import TopicList
from skylark.wire.bodies.route_body import BrokerData, TopicRouteData
from skylark.wire.fastjson import encode_body

#: Cached responses; the cache is cleared when it is full.
CACHED_COUNT_MAX: Final = 50_000
#: Bytes of cached responses.
CACHED_SIZE_MAX: Final = 64 * 1024 * 1024

#: topic (None for the cluster), standard JSON or not, local host of the connection
_Key = tuple[str | None, bool, str]


class RouteAnswers:
    """Builds responses with addresses of brokers; those to 105 and 106 are encoded and cached."""

    def __init__(self, tables: RouteTables, kv: KvTable, own_brokers: Collection[str] = ()) -> None:
        self._tables = tables
        self._kv = kv
        self._own_brokers = own_brokers
        self._cached: dict[_Key, bytes] = {}
        self._cached_size = 0
        self._versions = (tables.version, kv.version)

    def route(
        self,
        topic: str,
        *,
        standard: bool,
        with_order: bool,
        local_host: str,
        zone: str | None = None,
    ) -> bytes | None:
        """The body of a route response; None if the topic has no route."""
        key = (topic, standard, local_host if self._own_brokers else "")
        if zone is None:
            found = self._lookup(key)
            if found is not None:
                return found
        route = self._tables.route(topic)
        if route is None:
            return None
        if with_order:
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_CONFIG, topic)
        for broker in route.broker_datas:
            self._localise(broker, local_host)
        if zone is not None:
            return encode_body(in_zone(route, zone), standard=standard)
        return self._keep(key, encode_body(route, standard=standard))

    def cluster_info(self, local_host: str) -> bytes:
        """The body of the cluster information."""
        key = (None, False, local_host if self._own_brokers else "")
        found = self._lookup(key)
        if found is not None:
            return found
        info = self._tables.cluster_info()
        for broker in info.broker_addr_table.values():
            self._localise(broker, local_host)
        return self._keep(key, encode_body(info))

    def system_topics(self, local_host: str) -> TopicList:
        """The topics of clusters and brokers, and the address of a broker that has the others."""
        found = self._tables.system_topics()
        for broker in self._tables.cluster_info().broker_addr_table.values():
            if found.broker_addr in broker.broker_addrs.values():
                self._localise(broker, local_host)
                found.broker_addr = next(iter(broker.broker_addrs.values()))
                break
        return found

    def _lookup(self, key: _Key) -> bytes | None:
        versions = (self._tables.version, self._kv.version)
        if versions != self._versions:
            self._versions = versions
            self._drop()
        return self._cached.get(key)

    def _keep(self, key: _Key, body: bytes) -> bytes:
        if len(self._cached) >= CACHED_COUNT_MAX or self._cached_size + len(body) > CACHED_SIZE_MAX:
            self._drop()
        self._cached[key] = body
        self._cached_size += len(body)
        return body

    def _drop(self) -> None:
        self._cached.clear()
        self._cached_size = 0

    def _localise(self, broker: BrokerData, local_host: str) -> None:
        if broker.broker_name in self._own_brokers:
            broker.broker_addrs = {
                id_: with_host(addr, local_host) for id_, addr in broker.broker_addrs.items()
            }


def with_host(address: str, host: str) -> str:
    """``address`` with another host; unchanged if it is not ``host:port``."""
    try:
        return str(Address(host, parse_address(address).port))
    except ConfigError:
        return address


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """The part of a route that a client of ``zone`` should use."""
    removed = [
        broker
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs and (broker.zone_name or "").lower() != zone.lower()
    ]
    names = {broker.broker_name for broker in removed}
    addrs = {addr for broker in removed for addr in broker.broker_addrs.values()}
    filter_servers = route.filter_server_table or {}
    return TopicRouteData(
        order_topic_conf=route.order_topic_conf,
        queue_datas=[data for data in route.queue_datas if data.broker_name not in names],
        broker_datas=[data for data in route.broker_datas if data.broker_name not in names],
        filter_server_table={
            addr: servers for addr, servers in filter_servers.items() if addr not in addrs
        },
        topic_queue_mapping_by_broker=route.topic_queue_mapping_by_broker,
    )
