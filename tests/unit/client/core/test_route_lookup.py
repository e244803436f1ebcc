"""Where to send and where to read, asked for when it is not known."""

from __future__ import annotations

import random

import pytest

from skylark.client.core.route_cache import Route, RouteTable, Target, make_route
from skylark.client.core.route_lookup import Lookup
from skylark.core.errors import ClientError, NoRouteError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.route_body import BrokerData, QueueData, TopicRouteData

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=0)


def route(topic: str = "T", perm: int = 6, **addresses: str) -> Route:
    ids = {int(name.removeprefix("id")): address for name, address in addresses.items()}
    queues = QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=perm)
    data = TopicRouteData(
        queue_datas=[queues], broker_datas=[BrokerData(broker_name="a", broker_addrs=ids)]
    )
    return make_route(topic, data)


class Source:
    """Name servers that know one route, and count who asks."""

    def __init__(self, known: Route | None = None, default: Route | None = None) -> None:
        self.table = RouteTable()
        self.known = known
        self.default = default
        self.asked: list[str] = []
        self.lookup = Lookup(self.table, self, random.Random(1))

    async def refresh_route(self, topic: str) -> Route | None:
        self.asked.append(topic)
        if self.known is not None:
            self.table.update(self.known)
        return self.table.get(topic)

    async def refresh_default_route(
        self, topic: str, queue_count: int = 4, model: str = "TBW102"
    ) -> Route | None:
        self.asked.append(f"{topic} after {model}:{queue_count}")
        return self.default


async def test_what_is_known_is_not_asked_for() -> None:
    source = Source(route(id0="a:1", id1="a:2"))
    lookup = source.lookup
    assert await lookup.master_of(QUEUE) == "a:1"
    assert source.asked == ["T"]
    assert await lookup.master_of(QUEUE) == "a:1"
    assert await lookup.reader_of(QUEUE, 1) == Target("a:2", is_slave=True)
    assert await lookup.broker_of_topic("T") == "a:1"
    assert len((await lookup.publish_route("T")).publish) == 2
    assert len((await lookup.subscribe_route("T")).subscribe) == 2
    assert source.asked == ["T"]


@pytest.mark.parametrize("question", ["master_of", "reader_of"])
async def test_a_broker_in_no_route_is_an_error(question: str) -> None:
    source = Source()
    with pytest.raises(ClientError, match=r"The broker\[a\] not exist"):
        await getattr(source.lookup, question)(QUEUE)
    assert source.asked == ["T"]


async def test_each_lookup_asks_once_if_it_must() -> None:
    assert (await Source(route(id1="a:2")).lookup.reader_of(QUEUE)).is_slave
    assert await Source(route(id1="a:2")).lookup.broker_of_topic("T") == "a:2"
    assert (await Source(route(perm=4, id0="a:1")).lookup.subscribe_route("T")).publish == ()
    with pytest.raises(NoRouteError):
        await Source(route(perm=2, id0="a:1")).lookup.subscribe_route("T")
    with pytest.raises(NoRouteError):
        await Source().lookup.broker_of_topic("T")


async def test_the_model_of_new_topics_is_the_last_resort() -> None:
    source = Source(route(perm=4, id0="a:1"), default=route(id0="a:1"))
    found = await source.lookup.publish_route("T", queue_count=9, model="M")
    assert found is source.default
    assert source.asked == ["T", "T after M:9"]
    with pytest.raises(NoRouteError, match="create the topic"):
        await Source().lookup.publish_route("T")
    with pytest.raises(NoRouteError, match="appears when the group"):
        await Source().lookup.subscribe_route("%RETRY%g")
