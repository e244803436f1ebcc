"""Topics made and listed through the protocol, on a real cluster in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.admin.servers import NoBrokerError
from skylark.admin.topics import TopicSummary, topic_create, topic_list, topic_route
from skylark.client.calls import Caller, open_caller
from skylark.core.errors import BrokerError, InvalidParameterError, TransportError
from skylark.core.names import Address
from skylark.launch.cluster import Cluster
from skylark.launch.plan import LaunchOptions
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig

NOBODY = Address("127.0.0.1", 1)


@asynccontextmanager
async def cluster(data: Path) -> AsyncIterator[tuple[Caller, list[Address]]]:
    running = Cluster(LaunchOptions(data=data, ephemeral=True, namesrv_port=0, broker_port=0))
    await running.start()
    try:
        async with open_caller() as caller:
            yield caller, [running.namesrv]
    finally:
        await running.stop()


async def test_a_topic_is_made_once_and_stays_as_it_is(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (caller, namesrv):
        (first,) = await topic_create(caller, namesrv, "T", queue_count=4, order=True)
        (second,) = await topic_create(caller, namesrv, "T", queue_count=2)
        assert (first.broker, first.created, first.queue_count) == ("broker-a", True, 4)
        assert (second.broker, second.created, second.queue_count) == ("broker-a", False, 4)
        assert first.address == second.address
        route = await topic_route(caller, namesrv, "T")
        assert route is not None
        assert [(q.read_queue_nums, q.perm) for q in route.queue_datas] == [(4, 6)]
        assert await topic_route(caller, namesrv, "Missing") is None


async def test_attributes_reach_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (caller, namesrv):
        await topic_create(caller, namesrv, "F", attributes={"message.type": "FIFO"})
        with pytest.raises(BrokerError) as caught:
            await topic_create(caller, namesrv, "G", attributes={"no.such": "1"})
        assert caught.value.code == 1
        assert [topic.topic for topic in await topic_list(caller, namesrv)] == ["F"]


async def test_names_that_cannot_be_are_refused_before_anybody_is_asked() -> None:
    async with open_caller() as caller:
        with pytest.raises(InvalidParameterError) as caught:
            await topic_create(caller, [NOBODY], "a b")
        assert caught.value.remark.startswith("The specified topic: a b, contains illegal")


async def test_the_list_has_users_topics_or_all(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (caller, namesrv):
        assert await topic_list(caller, namesrv) == []
        await topic_create(caller, namesrv, "B", queue_count=2)
        await topic_create(caller, namesrv, "A", queue_count=4)
        await topic_create(caller, namesrv, "%RETRY%g", queue_count=1)
        assert await topic_list(caller, namesrv) == [
            TopicSummary(topic="A", brokers=("broker-a",), queue_count=4, perm="rw"),
            TopicSummary(topic="B", brokers=("broker-a",), queue_count=2, perm="rw"),
        ]
        everything = {
            topic.topic: topic for topic in await topic_list(caller, namesrv, with_internal=True)
        }
        assert {"A", "B", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "broker-a"} <= everything.keys()
        assert everything["TBW102"].perm == "rwx"


async def test_the_next_name_server_is_asked(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (caller, namesrv):
        assert len(await topic_create(caller, [NOBODY, *namesrv], "T")) == 1
        with pytest.raises(TransportError) as caught:
            await topic_list(caller, [NOBODY])
        assert "no name server answered: " in str(caught.value)
        assert "127.0.0.1:1" in str(caught.value)
        assert "`skylark up`" in str(caught.value)


async def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (caller, namesrv):
        assert len(await topic_create(caller, namesrv, "T", cluster="DefaultCluster")) == 1
        with pytest.raises(NoBrokerError) as caught:
            await topic_create(caller, namesrv, "T", cluster="Other")
        assert str(caught.value) == (
            f"no broker of cluster Other is registered with {namesrv[0]}:"
            " clusters there: DefaultCluster"
        )


async def test_a_name_server_without_brokers() -> None:
    server = NameServer(NamesrvConfig(listen_port=0))
    await server.start()
    try:
        async with open_caller() as caller:
            with pytest.raises(NoBrokerError) as caught:
                await topic_create(caller, [server.address], "T")
            assert str(caught.value).endswith("clusters there: none")
            assert await topic_list(caller, [server.address]) == []
    finally:
        await server.stop()
