"""Topics made, listed, changed and deleted through the protocol, on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NoBrokerError, NotFoundError, PartialFailureError
from skylark.admin.topic_operations import TopicSummary, attribute_changes, format_perm, parse_perm
from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.core.errors import BrokerError, InvalidParameterError, NoNameServerError
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.wire.bodies.config import TopicConfig
from tests.unit.admin.sites import running_site

NOBODY = "127.0.0.1:1"


async def test_a_topic_is_made_once_and_stays_as_it_is(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        (first,) = await admin.topics.create("T", queue_count=4, order=True)
        (second,) = await admin.topics.create("T", queue_count=2)
        assert (first.broker, first.created, first.queue_count) == ("broker-a", True, 4)
        assert (second.broker, second.created, second.queue_count) == ("broker-a", False, 4)
        assert first.address == second.address
        route = await admin.topics.route("T")
        assert [(q.read_queue_nums, q.perm) for q in route.queue_datas] == [(4, 6)]
        with pytest.raises(NotFoundError, match="topic Missing does not exist"):
            await admin.topics.route("Missing")


async def test_attributes_reach_the_broker(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        await admin.topics.create("F", attributes={"message.type": "FIFO"})
        (part,) = (await admin.topics.describe("F")).parts
        assert part.attributes == {"message.type": "FIFO"}
        with pytest.raises(BrokerError) as caught:
            await admin.topics.create("G", attributes={"no.such": "1"})
        assert caught.value.code == 1
        assert [topic.topic for topic in await admin.topics.all()] == ["F"]


async def test_names_that_cannot_be_are_refused_before_anybody_is_asked() -> None:
    async with Admin(ClientOptions(namesrv=NOBODY)) as admin:
        with pytest.raises(InvalidParameterError) as caught:
            await admin.topics.create("a b")
        assert caught.value.remark.startswith("The specified topic: a b, contains illegal")
        with pytest.raises(InvalidParameterError, match="1 to 65536 queues, not 0"):
            await admin.topics.create("T", queue_count=0)


async def test_the_list_has_users_topics_or_all(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        assert await admin.topics.all() == []
        await admin.topics.create("B", queue_count=2)
        await admin.topics.create("A", queue_count=4)
        await admin.topics.create("%RETRY%g", queue_count=1)
        assert await admin.topics.all() == [
            TopicSummary(topic="A", brokers=("broker-a",), queue_count=4, perm="rw"),
            TopicSummary(topic="B", brokers=("broker-a",), queue_count=2, perm="rw"),
        ]
        of_cluster = await admin.topics.all(cluster="DefaultCluster")
        assert [topic.topic for topic in of_cluster] == ["A", "B"]
        assert await admin.topics.all(cluster="Other") == []
        everything = {topic.topic: topic for topic in await admin.topics.all(with_internal=True)}
        assert {"A", "B", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "broker-a"} <= everything.keys()
        assert everything["TBW102"].perm == "rwx"


async def test_the_next_name_server_is_asked(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, _):
        async with site.admin(namesrv=[NOBODY, site.namesrv]) as admin:
            assert len(await admin.topics.create("T")) == 1
        async with site.admin(namesrv=NOBODY) as admin:
            with pytest.raises(NoNameServerError) as caught:
                await admin.topics.all()
    assert "no name server responds: " in str(caught.value)
    assert str(caught.value).endswith(", in a program by NAMESRV_ADDR")  # there is no -n in it
    assert NOBODY in str(caught.value)
    assert "`skylark up`" in str(caught.value)


async def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        assert len(await admin.topics.create("T", cluster="DefaultCluster")) == 1
        with pytest.raises(NotFoundError) as caught:
            await admin.topics.create("T", cluster="Other")
        assert str(caught.value) == "cluster Other does not exist: known clusters: DefaultCluster"
        with pytest.raises(NotFoundError, match="broker broker-x does not exist"):
            await admin.topics.create("T", broker="broker-x")


async def test_a_name_server_without_brokers() -> None:
    server = NameServer(NamesrvConfig(listen_port=0))
    await server.start()
    try:
        async with Admin(ClientOptions(namesrv=str(server.address))) as admin:
            with pytest.raises(NoBrokerError) as caught:
                await admin.topics.create("T")
            assert str(caught.value).endswith("known clusters: none")
            assert await admin.topics.all() == []
    finally:
        await server.stop()


async def test_a_change_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        await admin.topics.create(
            "T", queue_count=4, attributes={"message.type": "FIFO", "cleanup.policy": "DELETE"}
        )
        (changed,) = await admin.topics.update(
            "T", write_queue_count=2, perm="r", attributes={"message.type": None}
        )
        assert (changed.created, changed.queue_count) == (False, 2)
        (part,) = (await admin.topics.describe("T")).parts
        assert (part.read_queue_count, part.write_queue_count, part.perm) == (4, 2, "r")
        assert (part.order, part.attributes) == (False, {"cleanup.policy": "DELETE"})
        with pytest.raises(NotFoundError):
            await admin.topics.update("Missing", perm="r")


async def test_put_sets_everything(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        await admin.topics.create(
            "T", queue_count=4, attributes={"message.type": "FIFO", "cleanup.policy": "DELETE"}
        )
        wanted = TopicConfig(
            topic_name="T",
            read_queue_nums=3,
            write_queue_nums=2,
            order=True,
            attributes={"cleanup.policy": "DELETE"},  # which cannot be changed, but is so already
        )
        (done,) = await admin.topics.put(wanted)
        assert (done.created, done.queue_count) == (False, 2)
        (part,) = (await admin.topics.describe("T")).parts
        assert (part.read_queue_count, part.order) == (3, True)
        assert part.attributes == {"cleanup.policy": "DELETE"}


async def test_a_description_has_the_ends_of_queues(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create("T", queue_count=2)
        await site.send_to_queue("T", 0, b"1", b"2", b"3")
        found = await admin.topics.describe("T")
        assert [(p.broker, p.cluster, p.perm) for p in found.parts] == [
            ("broker-a", "DefaultCluster", "rw"),
            ("broker-b", "DefaultCluster", "rw"),
        ]
        first, *others = found.queues
        assert (first.queue.broker_name, first.queue.queue_id) == ("broker-a", 0)
        assert (first.min_offset, first.max_offset, first.count) == (0, 3, 3)
        assert first.last_time_ms is not None
        assert [(q.queue.broker_name, q.count, q.last_time_ms) for q in others] == [
            ("broker-a", 0, None),
            ("broker-b", 0, None),
            ("broker-b", 0, None),
        ]
        assert (found.message_count, found.failures, found.order_config) == (3, (), None)
        await site.fall_silent("broker-b")
        partial = await admin.topics.describe("T")
        assert [part.broker for part in partial.parts] == ["broker-a"]
        assert [(f.server, f.retriable) for f in partial.failures] == [("broker-b", True)]


async def test_a_change_that_one_broker_misses_says_so(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await site.fall_silent("broker-b")
        with pytest.raises(PartialFailureError) as caught:
            await admin.topics.create("T")
        assert [failure.server for failure in caught.value.failures] == ["broker-b"]
        assert [result.broker for result in caught.value.results] == ["broker-a"]
        assert str(caught.value).startswith("1 of 2 servers failed: broker-b: ")


async def test_a_deleted_topic_is_gone_everywhere(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create("T", queue_count=2)
        await admin.topics.set_order_config("T", {"broker-a": 2})
        assert (await admin.topics.describe("T")).order_config == "broker-a:2"
        assert (await admin.topics.route("T")).order_topic_conf == "broker-a:2"
        await site.send(Message("T", b"x"))
        assert await admin.topics.delete("T") == ["broker-a", "broker-b"]
        assert await admin.topics.all() == []
        with pytest.raises(NotFoundError):
            await admin.topics.delete("T")
        with pytest.raises(NotFoundError):
            await admin.settings.kv("ORDER_TOPIC_CONFIG", "T")
        with pytest.raises(PartialFailureError):  # a system topic: each broker refuses
            await admin.topics.delete("SCHEDULE_TOPIC_XXXX")


async def test_an_order_config_can_be_taken_back(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (_, admin):
        await admin.topics.create("T")
        await admin.topics.set_order_config("T", {"broker-a": 2, "broker-b": 4})
        assert await admin.settings.kv("ORDER_TOPIC_CONFIG", "T") == "broker-a:2;broker-b:4"
        await admin.topics.set_order_config("T", None)
        assert (await admin.topics.describe("T")).order_config is None
        for bad in ({}, {"a:b": 1}, {"broker-a": 0}):
            with pytest.raises(InvalidParameterError):
                await admin.topics.set_order_config("T", bad)


async def test_a_namespace_shows_its_own_topics_only(tmp_path: Path) -> None:
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create("T")
        async with site.admin(namesrv=f"rocketmq://{site.namesrv}/ns") as inside:
            await inside.topics.create("U", queue_count=2)
            assert [topic.topic for topic in await inside.topics.all()] == ["U"]
            description = await inside.topics.describe("U")
            assert {queue.queue.topic for queue in description.queues} == {"U"}
            with pytest.raises(NotFoundError):
                await inside.topics.describe("T")
        assert [topic.topic for topic in await admin.topics.all()] == ["T", "ns%U"]


def test_permissions_are_letters_or_numbers() -> None:
    assert [parse_perm(text) for text in ("r", "w", "rw", "WR", "6", "rwx")] == [4, 2, 6, 6, 6, 7]
    assert [format_perm(perm) for perm in (4, 2, 6, 7)] == ["r", "w", "rw", "rwx"]
    for bad in ("", "q", "rq", "99", "-1"):
        with pytest.raises(InvalidParameterError):
            parse_perm(bad)


def test_attributes_travel_as_changes() -> None:
    assert attribute_changes({"a": "1", "b": None}) == "+a=1,-b"
    for bad in ({"": "1"}, {"a,b": "1"}, {"a": "x=y"}, {"+a": "1"}):
        with pytest.raises(InvalidParameterError):
            attribute_changes(bad)
