"""Routes for the assignment of queues, from a name server that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skylark.broker.topics import topic_routes
from skylark.broker.topics.topic_routes import TopicRoutes
from skylark.broker.topics.topic_table import TopicTable
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.server import RemotingServer
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.route_body import QueueData, TopicRouteData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from tests.unit.broker.tables import live_settings

PORT = 9_876


class NameServer:
    """Knows routes; counts questions."""

    def __init__(self, clock: VirtualClock, network: MemoryNetwork) -> None:
        self.routes: dict[str, list[QueueData]] = {}
        self.asked: list[str] = []
        self.body: bytes | None = None
        dispatcher = Dispatcher()
        dispatcher.add_hot(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._answer)
        self.server = RemotingServer(dispatcher, network, clock)

    def _answer(self, _connection: Connection, request: Command) -> Command:
        topic = (request.ext or {})["topic"]
        self.asked.append(topic)
        datas = self.routes.get(topic)
        if datas is None:
            return response_to(request, 17, f"No topic route info for the topic: {topic}")
        body = self.body or encode_body(TopicRouteData(queue_datas=datas))
        return response_to(request, 0, body=body)


class World:
    def __init__(self, namesrv_addr: str = f"127.0.0.1:{PORT}") -> None:
        self.clock = VirtualClock()
        network = MemoryNetwork(clock=self.clock)
        self.name_server = NameServer(self.clock, network)
        live = live_settings(namesrvAddr=namesrv_addr, brokerName="b")
        self.client = RemotingClient(network, self.clock)
        self.topics = TopicTable(live, self.clock)
        self.routes = TopicRoutes(live, self.topics, self.client, self.clock)

    async def queues(self, topic: str) -> list[tuple[str, int]] | None:
        found = await self.routes.read_queues(topic)
        return None if found is None else [(q.broker_name, q.queue_id) for q in found]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.name_server.server.start("127.0.0.1", PORT)
    yield made
    await made.client.close()
    await made.name_server.server.stop()


def on(broker: str, count: int, perm: int = 6) -> QueueData:
    return QueueData(broker_name=broker, read_queue_nums=count, write_queue_nums=9, perm=perm)


async def test_queues_of_all_brokers_that_can_be_read(world: World) -> None:
    world.name_server.routes["T"] = [on("b", 2), on("a", 1), on("no", 5, perm=2)]
    assert await world.queues("T") == [("a", 0), ("b", 0), ("b", 1)]


async def test_a_name_server_that_is_gone_is_passed_over() -> None:
    world = World(namesrv_addr=f"127.0.0.1:1;127.0.0.1:{PORT}")
    await world.name_server.server.start("127.0.0.1", PORT)
    world.name_server.routes["T"] = [on("b", 1)]
    assert await world.queues("T") == [("b", 0)]
    await world.client.close()
    await world.name_server.server.stop()


async def test_a_route_is_asked_for_once_in_30_s(world: World) -> None:
    world.name_server.routes["T"] = [on("b", 1)]
    many = await asyncio.gather(*(world.queues("T") for _ in range(20)))
    assert many == [[("b", 0)]] * 20
    assert world.name_server.asked == ["T"]
    world.name_server.routes["T"] = [on("b", 2)]
    await world.clock.advance(29)
    assert await world.queues("T") == [("b", 0)]
    await world.clock.advance(1)
    assert await world.queues("T") == [("b", 0), ("b", 1)]
    assert world.name_server.asked == ["T", "T"]


async def test_what_is_not_known_is_asked_for_soon_again(world: World) -> None:
    assert await world.queues("T") is None
    world.name_server.routes["T"] = [on("b", 1)]
    assert await world.queues("T") is None
    await world.clock.advance(1)
    assert await world.queues("T") == [("b", 0)]


async def test_a_topic_that_is_gone_is_forgotten_but_a_retry_topic_is_not(world: World) -> None:
    for topic in ("T", "%RETRY%g"):
        world.name_server.routes[topic] = [on("b", 1)]
        assert await world.queues(topic) == [("b", 0)]
    world.name_server.routes.clear()
    await world.clock.advance(30)
    assert await world.queues("T") is None
    assert await world.queues("%RETRY%g") == [("b", 0)]


async def test_while_no_name_server_answers_the_cached_route_stays(world: World) -> None:
    world.name_server.routes["T"] = [on("b", 1)]
    assert await world.queues("T") == [("b", 0)]
    world.name_server.body = b"no route"
    await world.clock.advance(30)
    assert await world.queues("T") == [("b", 0)]
    await world.name_server.server.stop()
    await world.clock.advance(30)
    asked = asyncio.create_task(world.queues("T"))
    await world.clock.advance(10)
    assert await asked == [("b", 0)]


async def test_the_oldest_topics_are_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_routes, "TOPIC_COUNT_MAX", 2)
    for topic in ("T", "U", "V", "U", "T"):
        world.name_server.routes[topic] = [on("b", 1)]
        assert await world.queues(topic) == [("b", 0)]
    assert world.name_server.asked == ["T", "U", "V", "T"]


async def test_a_broker_without_name_servers_knows_its_own_queues() -> None:
    world = World(namesrv_addr="")
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=1))
    assert await world.queues("T") == [("b", 0), ("b", 1)]
    world.topics.update(TopicConfig(topic_name="T", read_queue_nums=2, perm=2))
    assert await world.queues("T") == []
    assert await world.queues("x") is None
