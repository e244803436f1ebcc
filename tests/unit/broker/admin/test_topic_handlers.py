"""Topics by request: created, changed, deleted, listed; on disk and announced before the answer."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest

from skylark.wire.bodies.admin_body import QuerySubscriptionResponseBody
from skylark.wire.bodies.common_body import DataVersion, GroupList, TopicList
from skylark.wire.bodies.config import CreateTopicListRequestBody, TopicConfig
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.bodies.slave_sync_body import TopicConfigAndMappingSerializeWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import CreateTopicRequestHeader
from tests.unit.broker.world import Peer, World, running

UNSET = "not set any response code"


def fields(topic: str = "T", **changes: Any) -> dict[str, str]:
    """The ext fields of request 17."""
    header: dict[str, Any] = {
        "topic": topic,
        "default_topic": "TBW102",
        "read_queue_nums": 4,
        "write_queue_nums": 4,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
    }
    return encode_ext(CreateTopicRequestHeader(**{**header, **changes}))


async def update(peer: Peer, topic: str = "T", **changes: Any) -> Command:
    return await peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields(topic, **changes))


# --- create and change ---


async def test_a_topic_is_on_disk_and_announced_when_it_is_acknowledged(
    world: World, peer: Peer
) -> None:
    answer = await update(peer, order=True, topic_sys_flag=2, attributes="+message.type=FIFO")
    assert (answer.code, answer.remark, answer.ext, answer.body) == (0, UNSET, None, None)
    assert world.calls == ["write topics.json", "announced"]
    created = TopicConfig(
        topic_name="T",
        read_queue_nums=4,
        write_queue_nums=4,
        perm=6,
        topic_sys_flag=2,
        order=True,
        attributes={"message.type": "FIFO"},
    )
    assert world.topics.get("T") == created
    topics, _, _ = world.after_power_loss()
    assert topics.get("T") == created
    assert topics.version == world.topics.version


async def test_the_same_again_changes_nothing(world: World, peer: Peer) -> None:
    await update(peer)
    version = world.topics.version
    assert (await update(peer)).code == 0
    assert world.topics.version == version
    assert (await update(peer, write_queue_nums=8)).code == 0
    assert world.topics.version.counter == version.counter + 1


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "TBW102"}, 29, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "a.b"}, 29, "The specified topic: a.b, contains illegal characters,"),
        ({"topic": ""}, 29, "The specified topic is blank."),
        ({"attributes": "+message.type=MIXED"}, 29, "MIXED message type is not supported."),
        ({"attributes": "+no.such=1"}, 1, "unsupported key: no.such"),
        ({"attributes": "-message.type"}, 1, "only add attribute is supported while creating"),
        ({"attributes": "message.type"}, 1, "delete attribute format is wrong: message.type"),
        ({"topic_filter_type": "NONE"}, 1, "topicFilterType = [NONE] value invalid"),
    ],
)
async def test_what_cannot_be_a_topic_is_refused(
    world: World, peer: Peer, changes: dict[str, Any], code: int, remark: str
) -> None:
    version = world.topics.version
    answer = await update(peer, **changes)
    assert answer.code == code
    assert (answer.remark or "").startswith(remark)
    assert world.topics.version == version
    assert world.calls == []


@pytest.mark.parametrize("missing", ["topic", "readQueueNums", "perm", "topicFilterType"])
async def test_missing_fields_are_named(peer: Peer, missing: str) -> None:
    ext = fields()
    del ext[missing]
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert (answer.code, answer.remark) == (1, f"the custom field <{missing}> is null")


async def test_several_topics_are_set_together(world: World, peer: Peer) -> None:
    names = ("A", "B", "C")
    body = CreateTopicListRequestBody(
        topic_config_list=[TopicConfig(topic_name=name) for name in names]
    )
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
    assert (answer.code, answer.remark) == (0, UNSET)
    assert world.calls == ["write topics.json", "announced"]
    topics, _, _ = world.after_power_loss()
    assert all(name in topics for name in names)
    version = world.topics.version
    body.topic_config_list[0] = TopicConfig(topic_name="A", perm=4)
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
    assert (answer.code, world.topics.version) == (0, version), "B is as it was: nothing happens"
    body.topic_config_list = [TopicConfig(topic_name="D"), TopicConfig(topic_name="a.b")]
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
    assert answer.code == 29
    assert "D" not in world.topics


async def test_a_change_that_cannot_be_saved_is_not_acknowledged(world: World, peer: Peer) -> None:
    world.plan.at("files.write", nth=1, error=errno.ENOSPC)
    answer = await update(peer)
    assert answer.code == 1
    assert (answer.remark or "").startswith("the change holds until restart, it could not be")
    assert "T" in world.topics
    assert "announced" not in world.calls
    again = asyncio.create_task(peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields()))
    await world.clock.drain()
    assert not again.done(), "nothing changed, and yet it waits for the disk"
    await world.clock.advance(1)
    assert (await again).code == 0
    topics, _, _ = world.after_power_loss()
    assert "T" in topics


# --- delete ---


@pytest.mark.spec("broker.13.23")
@pytest.mark.serves(RequestCode.DELETE_TOPIC_IN_BROKER)
async def test_a_deleted_topic_takes_retry_topics_offsets_and_queues_along(
    world: World, peer: Peer
) -> None:
    for name in ("T", "%RETRY%g_T", "%RETRY%g", "U"):
        world.topics.ensure(name, queue_count=1)
        world.offsets.commit("g", name, 0, 5)
    answer = await peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    assert ("delete queues", "T", "%RETRY%g_T") in world.calls
    topics, _, offsets = world.after_power_loss()
    for kept in (world.topics, topics):
        assert [n for n in ("T", "%RETRY%g_T", "%RETRY%g", "U") if n in kept] == ["%RETRY%g", "U"]
    for table in (world.offsets, offsets):
        assert sorted(table.topics_of("g")) == ["%RETRY%g", "U"]


async def test_an_unknown_topic_can_be_deleted_and_a_system_topic_cannot(
    world: World, peer: Peer
) -> None:
    assert (await peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "x"})).code == 0
    assert ("delete queues", "x") in world.calls
    world.calls.clear()
    for topic, remark in [
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        (" ", "The specified topic is blank."),
    ]:
        answer = await peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        assert (answer.code, answer.remark) == (29, remark)
    assert world.calls == []
    assert "TBW102" in world.topics


# --- questions ---


async def test_one_topic(world: World, peer: Peer) -> None:
    await update(peer)
    answer = await peer.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T", "lo": "true"})
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    assert answer.body == (
        b'{"attributes":{},"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}'
    )
    answer = await peer.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "x"})
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: x")


async def table(peer: Peer, **ext: str) -> tuple[list[str], DataVersion, str]:
    """Names, version and total of an answer to 21."""
    answer = await peer.call(RequestCode.GET_ALL_TOPIC_CONFIG, ext or None)
    assert (answer.code, answer.remark) == (0, None)
    assert set(answer.ext or {}) == {"totalTopicNum"}
    body = decode_body(TopicConfigAndMappingSerializeWrapper, answer.body or b"")
    return list(body.topic_config_table), body.data_version, (answer.ext or {})["totalTopicNum"]


def page(seq: int, version: DataVersion | None, count: int) -> dict[str, str]:
    text = (
        ""
        if version is None
        else json.dumps(
            {
                "counter": version.counter,
                "stateVersion": version.state_version,
                "timestamp": version.timestamp,
            }
        )
    )
    return {"topicSeq": str(seq), "dataVersion": text, "maxTopicNum": str(count)}


@pytest.mark.spec("remoting.10.24")
async def test_the_table_comes_whole_or_in_pages(world: World, peer: Peer) -> None:
    every = sorted(config.topic_name for config in world.topics)
    total = str(len(every))
    names, version, count = await table(peer)
    assert (sorted(names), version, count) == (every, world.topics.version, total)
    names, version, count = await table(peer, **page(0, None, 2))
    assert (names, count) == (every[:2], total)
    names, _, count = await table(peer, **page(2, version, 2))
    assert (names, count) == (every[2:4], total)
    world.topics.ensure("0_first", queue_count=1)
    names, newer, count = await table(peer, **page(4, version, 2))
    assert (names, count) == (["0_first", every[0]], str(len(every) + 1))
    assert newer == world.topics.version != version


async def test_system_topics_are_listed_even_if_they_do_not_exist(world: World, peer: Peer) -> None:
    answer = await peer.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    names = decode_body(TopicList, answer.body or b"").topic_list
    assert {"TBW102", "DefaultCluster", "broker-a", "TRANS_CHECK_MAX_TIME_TOPIC"} <= set(names)
    assert "TRANS_CHECK_MAX_TIME_TOPIC" not in world.topics
    assert names == sorted(names)


async def test_who_consumes_a_topic_and_what_a_group_consumes() -> None:
    async with running(brokerIP1="10.0.0.7") as world:
        peer = world.peer()
        await peer.join("online", "T")
        world.offsets.commit("online", "T", 0, 5)
        world.offsets.commit("offline", "T", 0, 5)
        world.offsets.commit("offline", "U", 0, 5)
        answer = await peer.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
        assert decode_body(GroupList, answer.body or b"").group_list == ["online", "offline"]
        answer = await peer.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "x"})
        assert (answer.code, answer.body) == (0, b'{"groupList":[]}')
        answer = await peer.call(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "offline"})
        assert (answer.code, answer.body) == (
            0,
            b'{"brokerAddr":"10.0.0.7:10911","topicList":["T","U"]}',
        )


async def test_the_subscription_of_a_group(world: World, peer: Peer) -> None:
    await peer.join("g", "T")
    pulled = SubscriptionData(topic="P", sub_string="a")
    world.consumers.compensate("g", pulled, world.clock.steady_ms())

    async def ask(**ext: str) -> QuerySubscriptionResponseBody:
        answer = await peer.call(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ext)
        assert answer.code == 0
        return decode_body(QuerySubscriptionResponseBody, answer.body or b"")

    found = await ask(group="g", topic="T")
    assert (found.group, found.topic) == ("g", "T")
    assert found.subscription_data == SubscriptionData(topic="T", sub_string="*")
    assert (await ask(group="g", topic="P")).subscription_data == pulled
    assert (await ask(group="g", topic="x")).subscription_data is None
    assert (await ask(group="g")).topic is None
