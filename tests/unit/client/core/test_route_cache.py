"""Routes: which queues a client sends to and reads, and where brokers are."""

from __future__ import annotations

import random

import pytest

from skylark.client.core.route_cache import (
    Lookup,
    Route,
    RouteTable,
    Target,
    default_route,
    make_route,
)
from skylark.core.errors import ClientError, ConfigError, NoRouteError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.route_body import BrokerData, QueueData, TopicRouteData


def queue(broker: str, perm: int = 6, read: int = 4, write: int = 4) -> QueueData:
    return QueueData(broker_name=broker, read_queue_nums=read, write_queue_nums=write, perm=perm)


def broker(name: str, **addresses: str) -> BrokerData:
    ids = {int(key.removeprefix("id")): address for key, address in addresses.items()}
    return BrokerData(cluster="c", broker_name=name, broker_addrs=ids)


@pytest.mark.spec("client.8.3")
def test_publish_needs_write_permission_and_a_master_subscribe_needs_read_permission() -> None:
    data = TopicRouteData(
        queue_datas=[queue("c"), queue("b", perm=4), queue("a", read=8)],
        broker_datas=[
            broker("b", id0="b:1"),
            broker("a", id0="a:1"),
            broker("c", id1="c:2"),
        ],
    )
    route = make_route("T", data)
    assert [(q.broker_name, q.queue_id) for q in route.publish] == [("a", i) for i in range(4)]
    expected = [("a", i) for i in range(8)] + [(name, i) for name in "bc" for i in range(4)]
    assert [(q.broker_name, q.queue_id) for q in route.subscribe] == expected


def test_an_order_configuration_pins_the_queues() -> None:
    data = TopicRouteData(
        order_topic_conf="b:1;a:2",
        queue_datas=[queue("a", perm=4)],
        broker_datas=[broker("a", id0="a:1")],
    )
    route = make_route("T", data)
    assert [(q.broker_name, q.queue_id) for q in route.publish] == [("b", 0), ("a", 0), ("a", 1)]


@pytest.mark.parametrize("text", ["a", "a:", ":4", "a:x", "a:-1", "a:9999999"])
def test_an_unreadable_order_configuration_is_a_clear_error(text: str) -> None:
    with pytest.raises(ConfigError, match="order configuration of topic T"):
        make_route("T", TopicRouteData(order_topic_conf=text))


def test_a_topic_to_be_created_has_few_queues() -> None:
    model = TopicRouteData(
        queue_datas=[queue("a", perm=7, read=8, write=8), queue("b", perm=7, read=2, write=9)],
        broker_datas=[broker("a", id0="a:1"), broker("b", id0="b:1")],
    )
    route = default_route("New", model, 4)
    assert [(q.broker_name, q.queue_id) for q in route.publish] == [
        *(("a", i) for i in range(4)),
        ("b", 0),
        ("b", 1),
    ]
    assert {q.topic for q in route.subscribe} == {"New"}


def test_only_a_different_route_is_news() -> None:
    table = RouteTable()
    data = TopicRouteData(
        queue_datas=[queue("a"), queue("b")],
        broker_datas=[broker("a", id0="a:1"), broker("b", id0="b:1")],
    )
    assert table.update(make_route("T", data))
    turned = TopicRouteData(
        queue_datas=data.queue_datas[::-1], broker_datas=data.broker_datas[::-1]
    )
    assert not table.update(make_route("T", turned))
    grown = TopicRouteData(queue_datas=[queue("a"), queue("b", write=5)], broker_datas=[])
    assert table.update(make_route("T", grown))
    assert table.master("a") == "a:1"  # known from the route before


def test_addresses_in_no_route_are_dropped() -> None:
    table = RouteTable()
    table.update(make_route("T", TopicRouteData(broker_datas=[broker("a", id0="a:1", id1="a:2")])))
    table.update(make_route("T", TopicRouteData(broker_datas=[broker("a", id0="a:3")])))
    assert table.brokers["a"] == {0: "a:3", 1: "a:2"}
    assert table.drop_unrouted() == ["a:2"]
    assert table.brokers == {"a": {0: "a:3"}}
    table.update(make_route("T", TopicRouteData()))
    assert table.drop_unrouted() == ["a:3"]
    assert table.master("a") is None


def test_readers_go_to_the_suggested_broker_the_next_or_any() -> None:
    table = RouteTable()
    addresses = {"id0": "m:1", "id2": "s:2"}
    table.update(make_route("T", TopicRouteData(broker_datas=[broker("a", **addresses)])))
    assert table.reader("a") == Target("m:1", is_slave=False)
    assert table.reader("a", 2) == Target("s:2", is_slave=True)
    assert table.reader("a", 1) == Target("s:2", is_slave=True)
    assert table.reader("a", 3) == Target("m:1", is_slave=False)
    assert table.reader("x") is None


def test_any_broker_of_a_topic_is_its_master_or_else_a_slave() -> None:
    table = RouteTable()
    rng = random.Random(1)
    data = TopicRouteData(broker_datas=[broker("a", id0="a:1", id1="a:2"), broker("b", id1="b:2")])
    table.update(make_route("T", data))
    assert {table.any_of_topic("T", rng) for _ in range(50)} == {"a:1", "b:2"}
    assert table.any_of_topic("U", rng) is None


def test_a_slave_that_became_master_is_no_slave_any_more() -> None:
    table = RouteTable()
    table.update(make_route("T", TopicRouteData(broker_datas=[broker("a", id0="a:1", id1="a:2")])))
    table.update(make_route("T", TopicRouteData(broker_datas=[broker("a", id0="a:2")])))
    assert table.drop_unrouted() == []
    assert table.brokers == {"a": {0: "a:2"}}


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

    async def refresh_route(
        self, topic: str, queue_count: int = 0, model: str = ""
    ) -> Route | None:
        if model:
            self.asked.append(f"{topic} after {model}:{queue_count}")
            return self.default
        self.asked.append(topic)
        if self.known is not None:
            self.table.update(self.known)
        return self.table.get(topic)


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
