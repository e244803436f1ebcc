"""Look-up of routes and addresses, which asks the name servers for unknown ones.

Everything is answered from the route table at once if it can be, on any loop, without locks.
Otherwise the name servers are asked, by way of the control loop. Counterpart of Java's
``findBrokerAddressInPublish``, ``findBrokerAddressInSubscribe`` and ``tryToFindTopicPublishInfo``.
"""

from __future__ import annotations

import random
from typing import Protocol

from skylark.client.core.route_cache import MASTER_ID, Route, RouteTable, Target
from skylark.core.errors import ClientError, NoRouteError
from skylark.core.names import AUTO_CREATE_TOPIC, is_retry_topic
from skylark.wire.bodies.common_body import MessageQueue

#: Queues of a topic that a send creates (defaultTopicQueueNums).
DEFAULT_QUEUE_COUNT = 4


class RouteSource(Protocol):
    """Who asks the name servers; from any loop."""

    async def refresh_route(self, topic: str) -> Route | None:
        """The route as of now, also into the table; None (or the old one) if there is none.

        Raises NoNameServerError.
        """

    async def refresh_default_route(
        self, topic: str, queue_count: int = DEFAULT_QUEUE_COUNT, model: str = AUTO_CREATE_TOPIC
    ) -> Route | None:
        """The route that ``topic`` would get if a send created it after ``model``."""


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
            route = await self._source.refresh_default_route(topic, queue_count, model)
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

    async def reader_of(
        self, queue: MessageQueue, broker_id: int = MASTER_ID, *, only_this: bool = False
    ) -> Target:
        """Where to read a queue, preferably at this broker id; raises ClientError."""
        target = self.routes.reader(queue.broker_name, broker_id, only_this=only_this)
        if target is None:
            await self._source.refresh_route(queue.topic)
            target = self.routes.reader(queue.broker_name, broker_id, only_this=only_this)
        if target is None:
            raise no_broker(queue.broker_name)
        return target

    async def broker_of_topic(self, topic: str) -> str:
        """Any broker of a topic, for what each of them knows; raises NoRouteError."""
        address = self.routes.any_of_topic(topic, self._rng)
        if address is None:
            await self._source.refresh_route(topic)
            address = self.routes.any_of_topic(topic, self._rng)
        if address is None:
            raise no_route(topic)
        return address


def no_route(topic: str) -> NoRouteError:
    """What a topic without brokers ends in."""
    hint = "create the topic, or check its name and that its brokers run"
    if is_retry_topic(topic):
        hint = "the topic appears when the group has been seen by a broker"
    return NoRouteError(f"No route info of this topic: {topic}", hint=hint)


def no_broker(broker_name: str) -> ClientError:
    """What a queue of an unknown broker ends in."""
    return ClientError(
        f"The broker[{broker_name}] not exist",
        hint="it is in no route that the name servers know: is it up, and has it a master?",
    )
