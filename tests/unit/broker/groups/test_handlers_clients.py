"""Heartbeats, goodbyes, lists of members and checks of filters, as clients see them."""

from __future__ import annotations

import pytest

from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.heartbeat import (
    CheckClientRequestBody,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
    heartbeat_fingerprint,
)
from skylark.wire.codes import RequestCode, TopicSysFlag
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.frame import encode_frame
from tests.unit.broker.world import Peer, World, consumer, heartbeat, running

V2 = {"IS_SUPPORT_HEART_BEAT_V2": "true"}
CHANGED = {**V2, "IS_SUB_CHANGE": "true"}
UNCHANGED = {**V2, "IS_SUB_CHANGE": "false"}


async def members(peer: Peer, group: str) -> list[str]:
    answer = await peer.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    assert (answer.code, answer.ext) == (0, {})
    return decode_body(GetConsumerListByGroupResponseBody, answer.body or b"").consumer_id_list


# --- heartbeat ---


async def test_a_heartbeat_makes_group_retry_topic_member_and_producer(
    world: World, peer: Peer
) -> None:
    world.groups.update(SubscriptionGroupConfig(group_name="h", retry_queue_nums=3))
    beat = heartbeat(
        consumer("g", SubscriptionData(topic="T", sub_string="a")),
        consumer("h", SubscriptionData(topic="T", sub_string="*")),
        client_id="10.0.0.1@1",
        producers=["p"],
    )
    answer = await peer.call(RequestCode.HEART_BEAT, {}, beat)
    assert (answer.code, answer.remark, answer.ext, answer.body) == (0, None, CHANGED, None)
    assert "g" in world.groups
    assert world.topics.get("%RETRY%g") == TopicConfig(
        topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6
    )
    retry = world.topics.get("%RETRY%h")
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums) == (3, 3)
    assert await members(peer, "g") == ["10.0.0.1@1"]
    assert await members(peer, "h") == ["10.0.0.1@1"]
    assert world.producers.find("10.0.0.1@1") is not None


@pytest.mark.spec("remoting.10.13")
@pytest.mark.serves(RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_CONNECTION_LIST)
async def test_the_heartbeat_of_the_cpp_client(world: World, peer: Peer) -> None:
    body = (
        b'{"clientID":"10.0.0.9@77#1","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"codeSet":["97"],'
        b'"subString":"a","subVersion":"123","tagsSet":["a"],"topic":"T"}]}],'
        b'"producerDataSet":[{"groupName":"p"}]}'
    )
    cpp = await world.raw_peer()
    beat = Command(code=RequestCode.HEART_BEAT, language="CPP", version=333, opaque=7, body=body)
    answer = next(frame for frame in await cpp.send(encode_frame(beat)) if frame.is_response)
    assert (answer.code, answer.opaque, answer.ext) == (0, 7, CHANGED)
    shown = await peer.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    text = (shown.body or b"").decode()
    assert '"consumeType":"CONSUME_PASSIVELY"' in text
    assert '"messageModel":"CLUSTERING"' in text
    assert '"language":"CPP","version":333' in text
    found = await peer.connections("g")
    assert found.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert [each.client_id for each in found.connection_set] == ["10.0.0.9@77#1"]
    assert found.subscription_table["T"].sub_version == 123
    assert found.subscription_table["T"].code_set == [97]


@pytest.mark.spec("remoting.10.14")
async def test_fingerprints_decide_whether_subscriptions_are_asked_for(
    world: World, peer: Peer
) -> None:
    assert await peer.join("g", "T", "U", fingerprint=7) == UNCHANGED
    assert await peer.join("g", "T", "U", fingerprint=7) == UNCHANGED
    before = (await peer.connections("g")).subscription_table
    assert set(before) == {"T", "U"}
    assert await peer.join("g", fingerprint=7, without_sub=True) == UNCHANGED
    assert (await peer.connections("g")).subscription_table == before
    assert await peer.join("g", "T", "U", fingerprint=8) == CHANGED
    assert await peer.join("g", "T", "U") == CHANGED
    assert await peer.join("g", "T", "U", fingerprint=8) == CHANGED, "version 1 left a 0"


@pytest.mark.spec("remoting.10.14")
def test_the_fingerprint_of_the_sample_heartbeat() -> None:
    subscription = SubscriptionData(
        topic="T", sub_string="a || b", tags_set=["a", "b"], code_set=[97, 98], sub_version=5
    )
    sample = HeartbeatData(
        client_id="ip@pid",
        producer_data_set=[ProducerData(group_name="pg")],
        consumer_data_set=[
            ConsumerData(
                group_name="cg",
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                subscription_data_set=[subscription],
            )
        ],
    )
    assert heartbeat_fingerprint(sample) == 2051189860


async def test_one_changed_group_of_several_is_a_change(peer: Peer) -> None:
    async def beat(fingerprint: int, *groups: str) -> dict[str, str] | None:
        data = [consumer(group, SubscriptionData(topic="T")) for group in groups]
        body = heartbeat(*data, fingerprint=fingerprint)
        return (await peer.call(RequestCode.HEART_BEAT, {}, body)).ext

    assert await beat(7, "g") == UNCHANGED
    assert await beat(8, "h") == UNCHANGED
    assert await beat(8, "g", "h") == CHANGED
    assert await beat(8, "h", "g") == UNCHANGED
    assert await beat(9) == UNCHANGED
    assert await beat(0) == CHANGED


async def test_the_broker_requests_omitted_subscriptions_that_it_does_not_know(peer: Peer) -> None:
    """As after a restart of the broker."""
    assert await peer.join("g", fingerprint=7, without_sub=True) == CHANGED
    assert await peer.join("g", "T", fingerprint=7) == UNCHANGED
    assert await peer.join("g", fingerprint=7, without_sub=True) == UNCHANGED


async def test_a_group_that_cannot_be_had_is_passed_over() -> None:
    async with running(autoCreateSubscriptionGroup="false") as world:
        peer = world.peer()
        data = [consumer(name) for name in ("unknown", "CID_RMQ_SYS_x", "TOOLS_CONSUMER")]
        answer = await peer.call(RequestCode.HEART_BEAT, {}, heartbeat(*data, producers=["p"]))
        assert (answer.code, answer.ext) == (0, CHANGED)
        assert [group.name for group in world.consumers.groups()] == [
            "CID_RMQ_SYS_x",
            "TOOLS_CONSUMER",
        ]
        assert "%RETRY%unknown" not in world.topics
        assert len(world.producers) == 1


async def test_bad_names_of_groups_are_passed_over(world: World, peer: Peer) -> None:
    data = [consumer(name) for name in ("", "a b", "x" * 121)]
    answer = await peer.call(RequestCode.HEART_BEAT, {}, heartbeat(*data))
    assert answer.code == 0
    assert len(world.consumers) == 0


async def test_the_retry_topic_follows_unit_and_order(world: World, peer: Peer) -> None:
    world.topics.update(TopicConfig(topic_name="ordered", order=True))

    async def retry_topic_after(*topics: str, **fields: bool | int) -> TopicConfig | None:
        subscriptions = [SubscriptionData(topic=topic) for topic in topics]
        data = consumer("g", *subscriptions, unit_mode=True)
        fingerprint, without_sub = int(fields.get("fingerprint", 0)), "without_sub" in fields
        body = heartbeat(data, fingerprint=fingerprint, without_sub=without_sub)
        await peer.call(RequestCode.HEART_BEAT, {}, body)
        return world.topics.get("%RETRY%g")

    first = await retry_topic_after("T")
    assert first is not None
    assert (first.topic_sys_flag, first.order) == (TopicSysFlag.UNIT_SUB, False)
    ordered = await retry_topic_after("T", "ordered", fingerprint=7)
    assert ordered is not None
    assert ordered.order
    assert await retry_topic_after(fingerprint=7, without_sub=True) is ordered, "as it was"
    again = await retry_topic_after("T", fingerprint=8)
    assert again is not None
    assert not again.order


async def test_pull_consumers_can_be_rejected() -> None:
    async with running(rejectPullConsumerEnable="true") as world:
        peer = world.peer()
        pulling = consumer("pull", consume_type=ConsumeType.CONSUME_ACTIVELY)
        answer = await peer.call(RequestCode.HEART_BEAT, {}, heartbeat(pulling, consumer("push")))
        assert answer.code == 0
        assert [group.name for group in world.consumers.groups()] == ["push"]
        assert "pull" not in world.groups


@pytest.mark.parametrize(
    ("settings", "registered"),
    [
        ({"enableRegisterProducer": "false"}, True),
        ({"enableRegisterProducer": "false", "rejectTransactionMessage": "true"}, False),
    ],
)
async def test_producers_are_skipped_only_where_they_are_not_needed(
    settings: dict[str, str], registered: bool
) -> None:
    async with running(**settings) as world:
        await world.peer().call(RequestCode.HEART_BEAT, {}, heartbeat(producers=["p"]))
        assert (world.producers.connection_list("p") is not None) is registered


async def test_filters_come_with_full_heartbeats_and_go_with_the_group(
    world: World, peer: Peer
) -> None:
    by_sql = SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92")
    full = heartbeat(consumer("g", by_sql), fingerprint=7)
    await peer.call(RequestCode.HEART_BEAT, {}, full)
    kept = world.filters.get("T", "g")
    assert kept is not None
    assert (kept.sql.text, kept.is_dead, kept.born_ms) == ("a > 5", False, world.clock.now_ms())
    await peer.join("g", fingerprint=7, without_sub=True)
    assert not kept.is_dead
    by_sql.sub_string, by_sql.sub_version = "a > 6", 1
    first_version = heartbeat(consumer("g", by_sql), without_sub=True)
    await peer.call(RequestCode.HEART_BEAT, {}, first_version)
    kept = world.filters.get("T", "g")
    assert kept is not None
    assert kept.sql.text == "a > 6", "version 1 has no short form"
    await peer.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"})
    assert kept.is_dead


@pytest.mark.parametrize("body", [None, b"", b"{", b"[]", b"7", b"\xff\xff"])
@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    ],
)
async def test_a_bad_body_is_refused_and_the_connection_stays(
    world: World, peer: Peer, code: int, body: bytes | None
) -> None:
    before = world.topics.version, world.groups.version
    answer = await peer.call(code, {}, body)
    assert answer.code == 1
    assert answer.remark
    assert (world.topics.version, world.groups.version) == before
    assert await peer.join("g") == CHANGED
    assert len(world.server.connections) == 1


# --- goodbye ---


async def test_a_client_leaves_one_group_at_a_time(world: World, peer: Peer) -> None:
    await peer.call(
        RequestCode.HEART_BEAT, {}, heartbeat(consumer("g"), consumer("h"), producers=["p", "q"])
    )
    answer = await peer.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"})
    assert (answer.code, answer.remark, answer.ext) == (0, None, {})
    assert world.producers.connection_list("p") is None
    answer = await peer.call(
        RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g", "producerGroup": "q"}
    )
    assert (answer.code, answer.ext) == (0, {})
    assert len(world.producers) == 0
    assert [group.name for group in world.consumers.groups()] == ["h"]


async def test_unregistering_an_unknown_client_is_harmless(world: World, peer: Peer) -> None:
    ext = {"clientID": "c", "consumerGroup": "nobody", "producerGroup": "nobody"}
    assert (await peer.call(RequestCode.UNREGISTER_CLIENT, ext)).code == 0
    assert "nobody" not in world.groups, "a goodbye creates no group"
    for anonymous in ({"consumerGroup": "g"}, {}):
        assert (await peer.call(RequestCode.UNREGISTER_CLIENT, anonymous)).code == 0


async def test_a_group_that_wants_no_notices_gets_none(world: World, peer: Peer) -> None:
    world.groups.update(
        SubscriptionGroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
    )
    other = world.peer()
    await peer.join("g", "T", client_id="A")
    await other.join("g", "T", client_id="B")
    await other.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "B", "consumerGroup": "g"})
    assert await members(peer, "g") == ["A"]
    assert peer.notices == other.notices == []


# --- who is there ---


@pytest.mark.spec("remoting.10.22")
@pytest.mark.serves(RequestCode.UNREGISTER_CLIENT, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
async def test_a_group_without_members_is_an_error(peer: Peer) -> None:
    asked = {"consumerGroup": "g"}
    answer = await peer.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
    assert (answer.code, answer.remark) == (1, "no consumer for this group, g")
    assert (answer.ext, answer.body) == ({}, None)
    await peer.join("g", client_id="A")
    assert await members(peer, "g") == ["A"]
    await peer.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "A", "consumerGroup": "g"})
    assert (await peer.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)).code == 1
    answer = await peer.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {})
    assert (answer.code, answer.remark) == (1, "the custom field <consumerGroup> is null")


# --- filters ---


def check(expression: str, kind: str | None) -> CheckClientRequestBody:
    data = SubscriptionData(topic="T", sub_string=expression, expression_type=kind)
    return CheckClientRequestBody(client_id="c", group="g", subscription_data=data)


@pytest.mark.parametrize(
    ("expression", "kind", "code", "remark"),
    [
        ("a > 5", "SQL92", 0, None),
        ("a >", "SQL92", 23, " at character "),
        ("", "SQL92", 23, " at character "),
        ("a BETWEEN 5 AND 1", "SQL92", 23, " at character "),
        ("a", "XPATH", 23, "the expression type XPATH is unknown"),
        ("a >", "TAG", 0, None),
        ("a >", "", 0, None),
        ("a >", None, 0, None),
    ],
)
async def test_a_filter_is_checked_before_it_is_used(
    expression: str, kind: str | None, code: int, remark: str | None
) -> None:
    async with running(enablePropertyFilter="true") as world:
        body = check(expression, kind)
        answer = await world.peer().call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
        assert answer.code == code
        if remark is None:
            assert answer.remark is None
        else:
            assert remark in (answer.remark or "")


async def test_filters_by_property_must_be_allowed(world: World, peer: Peer) -> None:
    answer = await peer.call(RequestCode.CHECK_CLIENT_CONFIG, None, check("a > 5", "SQL92"))
    assert answer.code == 1
    assert answer.remark == (
        "The broker does not support consumer to filter message by SQL92:"
        " set enablePropertyFilter=true"
    )
    assert (await peer.call(RequestCode.CHECK_CLIENT_CONFIG, None, check("a", "TAG"))).code == 0
    world.live.update("enablePropertyFilter=true\n", 0)
    answer = await peer.call(RequestCode.CHECK_CLIENT_CONFIG, None, check("a > 5", "SQL92"))
    assert answer.code == 0
    nothing = CheckClientRequestBody(client_id="c", group="g")
    assert (await peer.call(RequestCode.CHECK_CLIENT_CONFIG, None, nothing)).code == 0
