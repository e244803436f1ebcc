"""Cache of topic routes and broker addresses, and look-ups that fetch what it lacks.

A route (105) lists the queues of a topic per broker name, and the addresses of its brokers. It
gives two lists of queues: those to send to (:attr:`Route.publish`) and those to read
(:attr:`Route.subscribe`). Sending needs write permission and a master; reading needs only read
permission, because slaves can be read. An order configuration (``broker-a:4;broker-b:4``) fixes
the publish list, so that a sharding key keeps its queue while a broker is down.

:class:`RouteTable` holds the routes of one client. Several threads read it without locks: a
:class:`Route` never changes, and a newer one replaces it as a whole. Only the control loop writes
it (:mod:`skylark.client.core.route_refresh`).

:class:`Lookup` answers from the table on any loop; if the table lacks a route, it has the control
loop fetch it from the name servers.

Counterpart of Java's ``MQClientInstance`` (topicRouteTable, brokerAddrTable,
findBrokerAddressInPublish, findBrokerAddressInSubscribe, tryToFindTopicPublishInfo) and
``TopicPublishInfo``.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from skylark.core.errors import ClientError, ConfigError, NoRouteError
from skylark.core.names import AUTO_CREATE_TOPIC, is_retry_topic
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.route_body import BrokerData, QueueData, TopicRouteData
from skylark.wire.codes import Perm

MASTER_ID: Final = 0


class Route(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The route of one topic, as one response of a name server has it."""

    topic: str
    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]  # name -> id -> address
    data: TopicRouteData  # as received, sorted, to compare the next one with


class Target(msgspec.Struct, frozen=True, gc=False):
    """The address of a broker, and whether it is a slave."""

    address: str
    is_slave: bool


def make_route(topic: str, data: TopicRouteData) -> Route:
    """The route in a response; raises ConfigError if its order configuration is invalid."""
    data = _sorted(data)
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    return Route(
        topic=topic,
        publish=tuple(
            _pinned(topic, data.order_topic_conf)
            if data.order_topic_conf
            else _writable(topic, data.queue_datas, brokers)
        ),
        subscribe=tuple(_readable(topic, data.queue_datas)),
        brokers=brokers,
        data=data,
    )


def default_route(topic: str, data: TopicRouteData, queue_count_max: int) -> Route:
    """The route of a topic that the first send will create, from that of its model.

    ``data`` is the route of the topic that new ones inherit from (TBW102); a broker makes at most
    ``queue_count_max`` queues.
    """
    queues = [
        msgspec.structs.replace(queue, read_queue_nums=count, write_queue_nums=count)
        for queue in data.queue_datas
        for count in [min(queue_count_max, queue.read_queue_nums)]
    ]
    return make_route(topic, msgspec.structs.replace(data, queue_datas=queues))


def _sorted(data: TopicRouteData) -> TopicRouteData:
    return msgspec.structs.replace(
        data,
        queue_datas=sorted(data.queue_datas, key=_name_of),
        broker_datas=sorted(data.broker_datas, key=_name_of),
    )


def _name_of(data: QueueData | BrokerData) -> str:
    return data.broker_name


def _pinned(topic: str, text: str) -> Iterable[MessageQueue]:
    for item in filter(None, text.split(";")):
        name, colon, count = item.partition(":")
        if not (name and colon and count.isdecimal() and len(count) <= 6):
            raise ConfigError(
                f"the order configuration of topic {topic} is not readable: {text[:200]!r}",
                hint="it must read broker-a:4;broker-b:4 (mqadmin updateOrderConf)",
            )
        yield from _queues(topic, name, int(count))


def _writable(
    topic: str, queues: Iterable[QueueData], brokers: Mapping[str, Mapping[int, str]]
) -> Iterable[MessageQueue]:
    for queue in queues:
        if queue.perm & Perm.WRITE and MASTER_ID in brokers.get(queue.broker_name, ()):
            yield from _queues(topic, queue.broker_name, queue.write_queue_nums)


def _readable(topic: str, queues: Iterable[QueueData]) -> Iterable[MessageQueue]:
    for queue in queues:
        if queue.perm & Perm.READ:
            yield from _queues(topic, queue.broker_name, queue.read_queue_nums)


def _queues(topic: str, broker_name: str, count: int) -> Iterable[MessageQueue]:
    return (
        MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id)
        for queue_id in range(count)
    )


class RouteTable:
    """The routes of one client, and the addresses of every broker in them."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}

    # ---- one thread writes -----------------------------------------------------------------------

    def update(self, route: Route) -> bool:
        """Store a route; returns whether it differs from the one before."""
        known = self._routes.get(route.topic)
        if known is not None and known.data == route.data:
            return False
        for name, addresses in route.brokers.items():
            self._brokers[name] = {**self._brokers.get(name, {}), **addresses}
        self._routes[route.topic] = route
        return True

    def drop_unrouted(self) -> list[str]:
        """Remove brokers that are in no route; returns the addresses that no route has any more."""
        routed = {
            (name, id_, address)
            for route in self._routes.values()
            for name, addresses in route.brokers.items()
            for id_, address in addresses.items()
        }
        in_use = {address for _, _, address in routed}
        dropped: list[str] = []
        brokers: dict[str, Mapping[int, str]] = {}
        for name, addresses in self._brokers.items():
            kept = {id_: each for id_, each in addresses.items() if (name, id_, each) in routed}
            dropped += [address for address in addresses.values() if address not in in_use]
            if kept:
                brokers[name] = kept
        self._brokers = brokers
        return dropped

    # ---- any thread reads ------------------------------------------------------------------------

    def get(self, topic: str) -> Route | None:
        return self._routes.get(topic)

    @property
    def topics(self) -> Collection[str]:
        return tuple(self._routes)

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """All known brokers: name -> id -> address."""
        return self._brokers

    def master(self, broker_name: str) -> str | None:
        """The address of a master, for sends and for requests that only masters serve."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> Target | None:
        """The broker to read from: that with this id, the next id, or any with this name."""
        addresses = self._brokers.get(broker_name)
        if not addresses:
            return None
        for wanted in (broker_id, broker_id + 1) if broker_id != MASTER_ID else (broker_id,):
            if wanted in addresses:
                return Target(addresses[wanted], wanted != MASTER_ID)
        found = next(iter(addresses))
        return Target(addresses[found], found != MASTER_ID)

    def any_of_topic(self, topic: str, rng: random.Random) -> str | None:
        """Any broker of the topic, for requests that all of them can answer."""
        route = self._routes.get(topic)
        if route is None or not route.brokers:
            return None
        addresses = route.brokers[rng.choice(list(route.brokers))]
        if MASTER_ID in addresses:
            return addresses[MASTER_ID]
        return rng.choice(list(addresses.values())) if addresses else None


#: Queues of a topic that a send creates (defaultTopicQueueNums).
DEFAULT_QUEUE_COUNT = 4


class RouteSource(Protocol):
    """Fetches routes from the name servers; from any loop."""

    async def refresh_route(
        self, topic: str, queue_count: int = 0, model: str = ""
    ) -> Route | None:
        """Fetch a route and store it in the table; None, or the old one, if there is none.

        With ``model``: the route that ``topic`` would get if a send created it after that topic,
        with at most ``queue_count`` queues. Raises NoNameServerError.
        """


class Lookup:
    """Routes and addresses of one client instance."""

    def __init__(
        self, routes: RouteTable, source: RouteSource, rng: random.Random | None = None
    ) -> None:
        self.routes = routes
        self._source = source
        self._rng = rng or random.Random()

    async def publish_route(
        self,
        topic: str,
        *,
        queue_count: int = DEFAULT_QUEUE_COUNT,
        model: str = AUTO_CREATE_TOPIC,
    ) -> Route:
        """A route with queues to send to, perhaps of a topic that the send will create.

        Raises NoRouteError or NoNameServerError.
        """
        route = self.routes.get(topic)
        if route is None or not route.publish:
            route = await self._source.refresh_route(topic)
        if route is None or not route.publish:
            route = await self._source.refresh_route(topic, queue_count, model)
        if route is None or not route.publish:
            raise no_route(topic)
        return route

    async def subscribe_route(self, topic: str) -> Route:
        """A route with queues to read; raises NoRouteError or NoNameServerError."""
        route = self.routes.get(topic)
        if route is None or not route.subscribe:
            route = await self._source.refresh_route(topic)
        if route is None or not route.subscribe:
            raise no_route(topic)
        return route

    async def master_of(self, queue: MessageQueue) -> str:
        """The address of the master of a queue; raises ClientError."""
        address = self.routes.master(queue.broker_name)
        if address is None:
            await self._source.refresh_route(queue.topic)
            address = self.routes.master(queue.broker_name)
        if address is None:
            raise no_broker(queue.broker_name)
        return address

    async def reader_of(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> Target:
        """The broker to read a queue from, preferably that with this id; raises ClientError."""
        target = self.routes.reader(queue.broker_name, broker_id)
        if target is None:
            await self._source.refresh_route(queue.topic)
            target = self.routes.reader(queue.broker_name, broker_id)
        if target is None:
            raise no_broker(queue.broker_name)
        return target

    async def broker_of_topic(self, topic: str) -> str:
        """Any broker of a topic, for data that all of them have; raises NoRouteError."""
        address = self.routes.any_of_topic(topic, self._rng)
        if address is None:
            await self._source.refresh_route(topic)
            address = self.routes.any_of_topic(topic, self._rng)
        if address is None:
            raise no_route(topic)
        return address


def no_route(topic: str) -> NoRouteError:
    """The error for a topic without brokers."""
    hint = "create the topic, or check its name and that its brokers run"
    if is_retry_topic(topic):
        hint = "the topic appears when the group has been seen by a broker"
    return NoRouteError(f"No route info of this topic: {topic}", hint=hint)


def no_broker(broker_name: str) -> ClientError:
    """The error for a queue of an unknown broker."""
    return ClientError(
        f"The broker[{broker_name}] not exist",
        hint="it is in no route that the name servers know: is it up, and has it a master?",
    )
