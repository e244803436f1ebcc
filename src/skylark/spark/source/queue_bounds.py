"""Offset bounds of queues: asks the cluster for the first and the next offset of each queue.

A :class:`ClusterInspector` requests routes (GET_ROUTEINFO, at most once a second), then the
statistics of a topic from each broker (GET_TOPIC_STATS_INFO). If a broker refuses these, and for
queues that a route no longer names, it requests minimum and maximum offset of each queue. The
result is a :class:`ClusterSnapshot`, in which problems have these names:

===================  ===============================================================================
``unreachable``      a broker without address or answer: its queues keep their offsets, and all
                     others are read on
``unreadable``       a known queue whose route names other queues of its broker, but not this one:
                     ``readQueueNums`` was lowered, and the broker refuses to serve it
``deleted_topics``   a topic without a route although a broker that had it is registered. If none
                     is registered, its brokers are down, which looks the same to a name server
===================  ===============================================================================

If no name server answers, the routes of the last request are used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from skylark.admin.admin_session import Session, no_topic
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.topic_operations import Topics
from skylark.client.core.broker_calls import make_request
from skylark.client.core.route_cache import MASTER_ID, Route, make_route
from skylark.core.errors import (
    BrokerError,
    ConfigError,
    NoNameServerError,
    RemoteProtocolError,
    TransportError,
)
from skylark.core.names import DLQ_PREFIX, RETRY_PREFIX
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.errors import queue_name
from skylark.spark.outages import ride_out
from skylark.spark.source.source_options import SourceOptions
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.stats import TopicStatsTable
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from skylark.wire.headers.admin import TopicRequestHeader

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROUTE_AGE_S: Final = 1.0


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """The offsets of the first message of a queue and of the next one to be stored."""

    low: int
    high: int
    time_ms: int = 0  #: when the last message was stored; 0: unknown


class ClusterSnapshot(msgspec.Struct, kw_only=True):
    """State of the queues at one moment; topic names are without the namespace."""

    bounds: dict[MessageQueue, Bounds] = msgspec.field(default_factory=dict)
    addresses: dict[str, Mapping[int, str]] = msgspec.field(default_factory=dict)
    unreachable: dict[str, str] = msgspec.field(default_factory=dict)  #: broker -> reason
    slave_only: set[str] = msgspec.field(
        default_factory=set
    )  #: brokers whose slave answered, not the master
    deleted_topics: set[str] = msgspec.field(default_factory=set)  #: topics
    #: Known queues that the broker no longer serves: the topic has fewer readable queues now.
    unreadable: set[MessageQueue] = msgspec.field(default_factory=set)
    versions: dict[str, int] = msgspec.field(default_factory=dict)

    def silent_brokers(self) -> list[str]:
        """A sentence for each broker that does not answer."""
        return [f"broker {name} does not answer: {why}" for name, why in self.unreachable.items()]

    def address(self, broker: str, read_from: str = "master") -> str:
        """The address to send requests for a broker to; raises TransportError."""
        found = choose_address(self.addresses.get(broker, {}), read_from)
        if found is None:
            raise TransportError(f"broker {broker} has no address now", hint="is it running?")
        return found


def choose_address(addresses: Mapping[int, str], read_from: str, attempt: int = 0) -> str | None:
    """One of the addresses of a broker; further attempts choose others if ``read_from`` allows."""
    slaves = [addresses[broker_id] for broker_id in sorted(addresses) if broker_id != MASTER_ID]
    masters = [addresses[MASTER_ID]] if MASTER_ID in addresses else []
    usable = {"master": masters, "slave": slaves + masters, "any": masters + slaves}[read_from]
    return usable[attempt % len(usable)] if usable else None


def ask_cluster(
    options: SourceOptions,
    work: Callable[[Session], Awaitable[T]],
    patience_s: float | None = None,
) -> T:
    """Run ``work`` on the shared client of this process, through outages; returns its result.

    ``patience_s`` is how long to wait for the cluster, by default ``outageTimeout``.
    """
    cluster = shared_cluster(options.connection)
    session = cluster.session
    wait_s = options.outage_timeout_ms / 1000 if patience_s is None else patience_s
    return cluster.run(ride_out(session.clock, wait_s, lambda: work(session)))


class ClusterInspector:
    """Takes snapshots of the queues that the options select; caches routes in between."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._routes: dict[str, Route | None] = {}
        self._routes_at: float | None = None
        self._topics: tuple[str, ...] = options.topics
        self._topics_at: float | None = None

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    async def snapshot(self, known: Collection[MessageQueue] = ()) -> ClusterSnapshot:
        """The queues that the options select, and the ``known`` ones that routes no longer name.

        Raises NoNameServerError if no name server has ever answered.
        """
        await self._refresh(known)
        found = ClusterSnapshot()
        wanted: dict[tuple[str, str], set[MessageQueue]] = {}
        for topic, route in self._routes.items():
            if route is not None:
                found.addresses |= route.brokers
                for queue in route.subscribe:
                    mine = self._session.unwrap_queue(queue)
                    if self._options.wants(mine):
                        wanted.setdefault((topic, mine.broker_name), set()).add(mine)
        await self._add_unrouted(known, wanted, found)
        await asyncio.gather(
            *(
                self._query_broker(topic, broker, wanted[topic, broker], found)
                for topic, broker in wanted
            )
        )
        return found

    async def first_snapshot(self) -> ClusterSnapshot:
        """As :meth:`snapshot`, for a new read: all topics must exist, and all brokers answer."""
        found = await self.snapshot()
        for topic, route in self._routes.items():
            if route is None:
                raise no_topic(topic)
        if not self._topics:
            raise ConfigError(f"no topic matches {self._options.topics_pattern!r}")
        if found.unreachable:
            raise TransportError(
                "; ".join(found.silent_brokers()), hint="is it running and reachable?"
            )
        self._check_queues(found)
        return found

    def _check_queues(self, found: ClusterSnapshot) -> None:
        """Raise ConfigError if a queue that an option names does not exist."""
        there = ", ".join(map(queue_name, sorted(found.bounds))) or "none"
        for queue in sorted(self._options.assigned or ()):
            if queue not in found.bounds:
                raise ConfigError(f"there is no {queue_name(queue)}", hint=f"readable are {there}")
        pairs = {(queue.broker_name, queue.queue_id) for queue in found.bounds}
        for broker, queue_id in sorted((self._options.queues or set()) - pairs):
            raise ConfigError(
                f"no topic has the queue {broker}:{queue_id}", hint=f"readable are {there}"
            )

    # ---- routes ----------------------------------------------------------------------------------

    async def _refresh(self, known: Collection[MessageQueue]) -> None:
        now = self._session.clock.monotonic()
        if self._routes_at is not None and now < self._routes_at + ROUTE_AGE_S:
            return
        try:
            await self._refresh_topics(now)
            topics = dict.fromkeys((*self._topics, *(queue.topic for queue in known)))
            found = await few_at_a_time(list(topics), self._route)
            routes = dict(zip(topics, found, strict=True))
        except NoNameServerError as error:
            if self._routes_at is None:
                raise
            logger.warning("cannot refresh routes, using the last ones: %s", error)
        else:
            self._routes = routes
        self._routes_at = now

    async def _route(self, topic: str) -> Route | None:
        name = self._session.wrap(topic)
        data = await self._session.find_route(name)
        return None if data is None else make_route(name, data)

    async def _refresh_topics(self, now: float) -> None:
        if self._options.topics_pattern is None:
            return
        refresh_s = self._options.topic_refresh_ms / 1000
        if self._topics_at is not None and now < self._topics_at + refresh_s:
            return
        internal = self._options.topics_pattern.startswith((RETRY_PREFIX, DLQ_PREFIX))
        names = await Topics(self._session).names(with_internal=internal)
        self._topics = tuple(filter(self._options.wants_topic, map(self._session.unwrap, names)))
        self._topics_at = now

    async def _add_unrouted(
        self,
        known: Iterable[MessageQueue],
        wanted: dict[tuple[str, str], set[MessageQueue]],
        found: ClusterSnapshot,
    ) -> None:
        """Find out about known queues that no route names; adds them to ``wanted`` or ``found``."""
        missing = [
            queue
            for queue in known
            if queue not in wanted.get((queue.topic, queue.broker_name), ())
            and self._options.wants(queue)
        ]
        if not missing:
            return
        try:
            brokers = (await self._session.cluster_info()).broker_addr_table
        except NoNameServerError as error:
            found.unreachable |= {queue.broker_name: str(error) for queue in missing}
            return
        for queue in missing:
            data = brokers.get(queue.broker_name)
            if data is None:
                found.unreachable[queue.broker_name] = "it is not registered with the name server"
            elif await self._is_gone(queue.topic):
                found.deleted_topics.add(queue.topic)
            else:
                found.addresses[queue.broker_name] = dict(data.broker_addrs)
                wanted.setdefault((queue.topic, queue.broker_name), set()).add(queue)
                if self._is_withdrawn(queue):
                    found.unreadable.add(queue)

    def _is_withdrawn(self, queue: MessageQueue) -> bool:
        """Whether the route of the topic names readable queues of this broker, but not this one.

        A route that was refreshed just now may name it again: its broker is back.
        """
        route = self._routes.get(queue.topic)
        if route is None:
            return False
        offered = {
            self._session.unwrap_queue(other)
            for other in route.subscribe
            if other.broker_name == queue.broker_name
        }
        return bool(offered) and queue not in offered

    async def _is_gone(self, topic: str) -> bool:
        """Whether a topic of a registered broker has no route.

        The cached route may be older than the registration of the broker: it is requested again.
        """
        if self._routes.get(topic) is None:
            self._routes[topic] = await self._route(topic)
        return self._routes[topic] is None

    # ---- brokers ---------------------------------------------------------------------------------

    async def _query_broker(
        self, topic: str, broker: str, queues: set[MessageQueue], found: ClusterSnapshot
    ) -> None:
        addresses = found.addresses[broker]
        address = choose_address(addresses, "master")
        if address is None and self._options.read_from != "master":
            address = choose_address(addresses, self._options.read_from)
            found.slave_only.add(broker)
        if address is None:
            found.unreachable[broker] = "it has no master now"
            return
        try:
            found.bounds |= await self._bounds(topic, address, queues, found, broker)
        except (TransportError, RemoteProtocolError, BrokerError, TimeoutError) as error:
            found.unreachable[broker] = str(error)

    async def _bounds(
        self,
        topic: str,
        address: str,
        queues: set[MessageQueue],
        found: ClusterSnapshot,
        broker: str,
    ) -> dict[MessageQueue, Bounds]:
        session = self._session
        bounds: dict[MessageQueue, Bounds] = {}
        header = TopicRequestHeader(topic=session.wrap(topic))
        request = make_request(RequestCode.GET_TOPIC_STATS_INFO, header, broker_name=broker)
        try:
            answer = await session.call(address, request)
            table = decode_body(TopicStatsTable, answer.body or b"{}").offset_table
        except (BrokerError, RemoteProtocolError) as error:
            logger.info("broker %s gives no statistics of topic %s: %s", broker, topic, error)
        else:
            found.versions[broker] = answer.version
            for queue, ends in table.items():
                mine = session.unwrap_queue(queue)
                if mine in queues:
                    bounds[mine] = Bounds(
                        ends.min_offset, ends.max_offset, ends.last_update_timestamp
                    )
        for queue in sorted(queues - bounds.keys()):
            wrapped = session.namespace.wrap_queue(queue)
            low = await session.calls.min_offset(address, wrapped)
            bounds[queue] = Bounds(low, await session.calls.max_offset(address, wrapped))
        return bounds
