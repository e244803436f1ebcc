"""The other requests of pop consumers, and what changes where a pop reads."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from skylark.broker.pop.queue_order import QueueOrder
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import encode_body
from skylark.wire.headers.pop import PopMessageRequestHeader
from tests.unit.broker.pop.pop_client import MERGING, PopClient, Popped, fill, popping
from tests.unit.broker.stored import bodies_of, stored
from tests.unit.broker.tables import live_settings


def batch(*messages: Popped, group: str = "g", **changes: object) -> BatchAckMessageRequestBody:
    """A batch ack of messages of one check-point."""
    handle = messages[0].handle
    ack = BatchAck(
        consumer_group=group,
        topic="T",
        retry=handle.kind,
        start_offset=handle.start_offset,
        queue_id=handle.queue_id,
        revive_queue_id=handle.revive_queue_id,
        pop_time=handle.pop_time_ms,
        invisible_time=handle.invisible_ms,
        bit_set=encode_bit_set(each.offset - handle.start_offset for each in messages),
    )
    for name, value in changes.items():
        setattr(ack, name, value)
    return BatchAckMessageRequestBody(broker_name=handle.broker_name, acks=[ack])


@pytest.mark.spec("remoting.10.26")
@MERGING
async def test_a_batch_ack_names_messages_by_bits(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 110)
        client.world.features.groups.offsets.commit("g", "T", 0, 100)
        messages = await client.pop()
        assert [message.offset for message in messages] == list(range(100, 110))
        body = batch(messages[0], messages[9])
        assert body.acks[0].start_offset == 100
        assert body.acks[0].bit_set == "AQI="
        answer = await client.batch_ack(body)
        assert (answer.code, answer.remark) == (0, None)
        await client.world.clock.advance(30)
        again = await client.pop()
        assert [message.body for message in again] == [each.body for each in messages[1:9]]
        assert all(message.handle.kind == "1" for message in again)
        assert (await client.batch_ack(batch(*again))).code == 0
        await client.world.clock.advance(60)
        assert await client.pop() == []


@pytest.mark.parametrize("merge", ["false", "true"])
@pytest.mark.parametrize("name", ["", ',"brokerName":null', ',"brokerName":" "'])
async def test_a_batch_ack_without_a_name_is_for_this_broker(
    tmp_path: Path, name: str, merge: str
) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await client.world.clock.advance(1)
        await fill(client, 2)
        first, second = await client.pop()
        named = encode_body(batch(first)).decode()
        body = named.replace(',"brokerName":"broker-a"', name)
        assert body != named
        answer = await client.world.call(RequestCode.BATCH_ACK_MESSAGE, None, body.encode())
        assert (answer.code, answer.remark) == (0, None)
        await client.world.clock.advance(20)
        assert [message.body for message in await client.pop()] == [second.body]


async def test_an_empty_batch_ack(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        for body in (None, BatchAckMessageRequestBody(broker_name="broker-a")):
            assert (await client.batch_ack(body)).code == 208


@MERGING
async def test_a_message_given_back_unused_counts_no_attempt(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop(invisibleTime=60_000)
        assert (await client.change(message, 1_000, suspend="true")).code == 0
        await client.world.clock.advance(6)
        (again,) = await client.pop(invisibleTime=60_000)
        assert again.record.reconsume_times == 0
        assert (await client.change(again, 1_000)).code == 0
        await client.world.clock.advance(8)
        (third,) = await client.pop()
        assert third.record.reconsume_times == 1


async def test_peek_leaves_messages_where_they_are(tmp_path: Path) -> None:
    async with popping(tmp_path, 2) as client:
        bodies = await fill(client, 2) + await fill(client, 1, 1)
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "32"}
        for _ in range(2):
            answer = await client.world.call(RequestCode.PEEK_MESSAGE, fields)
            assert (answer.code, sorted(bodies_of(answer))) == (0, sorted(bodies))
            assert answer.ext == {  # the times of a pop, which a peek is not, are zero as in Java
                "popTime": "0",
                "invisibleTime": "0",
                "reviveQid": "0",
                "restNum": "3",
            }
        assert len(await client.pop()) == 3
        answer = await client.world.call(RequestCode.PEEK_MESSAGE, fields)
        assert (answer.code, answer.body) == (19, None)


async def test_a_peek_for_any_number_of_messages(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 40)
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        for asked, found in ((10**9, 32), (33, 32), (2, 2), (0, 0)):
            answer = await client.world.call(
                RequestCode.PEEK_MESSAGE, {**fields, "maxMsgNums": str(asked)}
            )
            assert len(bodies_of(answer)) == found, asked
        answer = await client.world.call(RequestCode.PEEK_MESSAGE, {**fields, "maxMsgNums": "-1"})
        assert answer.code == 1
        assert answer.remark


async def test_the_retry_topic_is_read_last_only_if_there_is_room(tmp_path: Path) -> None:
    async with popping(tmp_path, popFromRetryProbability="20") as client:
        order = client.world.features.pop.service._messages._order
        await fill(client, 2)
        await client.pop()
        await client.world.clock.advance(20)  # both are among the retries now
        await fill(client, 3)
        peek = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "3"}
        for drawn, rest in ((51, "3"), (50, "5")):  # a peek looks there first if 5 divides it
            order._draw = partial(int, drawn)
            answer = await client.world.call(RequestCode.PEEK_MESSAGE, peek)
            assert (answer.ext or {})["restNum"] == rest
        order._draw = lambda: 50
        answer = await client.answer(maxMsgNums=2)
        assert (answer.ext or {})["restNum"] == "1"  # not 3
        assert (answer.ext or {})["startOffsetInfo"] == "0 0 2"
        order._draw = lambda: 19
        answer = await client.answer(maxMsgNums=2)
        assert (answer.ext or {})["restNum"] == "1"
        assert (answer.ext or {})["startOffsetInfo"] == "1 0 0"
        order._draw = lambda: 50
        (last,) = await client.pop()
        assert last.offset == 4


def notification(client: PopClient, **changes: object) -> dict[str, str]:
    fields: dict[str, object] = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": -1,
        "pollTime": 0,
        "bornTime": client.world.clock.now_ms(),
    }
    fields.update(changes)
    return {name: str(value) for name, value in fields.items()}


async def test_a_notification_waits_for_messages_and_takes_none(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        call, clock = client.world.call, client.world.clock
        answer = await call(RequestCode.NOTIFICATION, notification(client))
        assert (answer.code, answer.ext) == (0, {"hasMsg": "false", "pollingFull": "false"})
        fields = notification(client, pollTime=9_000)
        waiting = asyncio.create_task(call(RequestCode.NOTIFICATION, fields))
        await clock.drain()
        await fill(client, 1)
        assert ((await waiting).ext or {})["hasMsg"] == "true"
        answer = await call(RequestCode.NOTIFICATION, notification(client))
        assert (answer.ext or {})["hasMsg"] == "true"
        await client.pop()
        answer = await call(RequestCode.NOTIFICATION, notification(client))
        assert (answer.ext or {})["hasMsg"] == "false"
        await clock.advance(20)  # the message is among the retries now
        answer = await call(RequestCode.NOTIFICATION, notification(client))
        assert (answer.ext or {})["hasMsg"] == "true"


async def test_a_notification_looks_through_its_filter(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3, properties="TAGS\x01B\x02")
        fields = notification(client, expType="TAG", exp="A")
        answer = await client.world.call(RequestCode.NOTIFICATION, fields)
        assert (answer.ext or {})["hasMsg"] == "false"
        fields = notification(client, expType="TAG", exp="B")
        answer = await client.world.call(RequestCode.NOTIFICATION, fields)
        assert (answer.ext or {})["hasMsg"] == "true"
        answer = await client.world.call(
            RequestCode.NOTIFICATION, notification(client, expType="SQL92", exp="a >")
        )
        assert answer.code == 23


async def has_messages(client: PopClient, **changes: object) -> bool:
    answer = await client.world.call(RequestCode.NOTIFICATION, notification(client, **changes))
    assert answer.code == 0
    return (answer.ext or {})["hasMsg"] == "true"


async def test_a_notification_filters_few_messages_by_their_tag_only(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 63, properties="TAGS\x01B\x02a\x011\x02")
        tag = {"expType": "TAG", "exp": "A"}
        assert not await has_messages(client, **tag)
        assert await has_messages(client, expType="TAG", exp="A || B")
        assert await has_messages(client, expType="TAG", exp="*")
        # By SQL it does not filter, nor without a type.
        assert await has_messages(client, expType="SQL92", exp="a = 2")
        assert await has_messages(client, exp="A")
        # Of 64 messages it looks at none: a pop has to look through them.
        await fill(client, 1, properties="TAGS\x01B\x02")
        assert await has_messages(client, **tag)
        assert await client.pop(exp="A") == []
        assert not await has_messages(client, **tag)
        await fill(client, 1, properties="TAGS\x01B\x02")
        assert await client.pop() != []
        await client.world.clock.advance(20)  # among the retries, which it does not filter
        assert await has_messages(client, **tag)


async def test_a_notification_without_filters_by_setting(tmp_path: Path) -> None:
    async with popping(tmp_path, useMessageFilterForNotification="false") as client:
        await fill(client, 1, properties="TAGS\x01B\x02")
        assert await has_messages(client, expType="TAG", exp="A")
        assert await has_messages(client, expType="SQL92", exp="a >")  # nobody reads it


async def test_pops_with_filters(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        for tag in "ABABC":
            await fill(client, 1, properties=f"TAGS\x01{tag}\x02a\x01{ord(tag)}\x02")
        messages = await client.pop(exp="A || C")
        assert [message.offset for message in messages] == [0, 2, 4]
        assert messages[2].handle.start_offset == 0
        await client.ack_all(messages)
        other = PopClient(client.world, group="h")
        found = await other.pop(expType="SQL92", exp="a = 66")
        assert [message.offset for message in found] == [1, 3]
        for kind, text in (("SQL92", "a >"), ("OTHER", "x")):
            answer = await client.answer(expType=kind, exp=text)
            assert answer.code == 23
            assert "parse the consumer's subscription failed" in (answer.remark or "")


async def test_a_pop_adds_its_subscription_to_the_consumer_table(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        consumers = client.world.features.groups.consumers
        await client.pop(exp="A || B")
        found = consumers.subscription("g", "T")
        assert found is not None
        assert (found.sub_string, sorted(found.tags_set)) == ("A || B", ["A", "B"])
        assert (found.expression_type, len(found.code_set)) == ("TAG", 2)
        retries = consumers.subscription("g", "%RETRY%g_T")
        assert retries is not None
        assert retries.sub_string == "*"
        await client.pop(exp=None, expType=None)
        found = consumers.subscription("g", "T")
        assert found is not None
        assert found.sub_string == "*"
        await client.pop(exp="a > 1", expType="SQL92")
        found = consumers.subscription("g", "T")
        assert found is not None
        assert (found.sub_string, found.expression_type) == ("a > 1", "SQL92")
        assert consumers.client_ids("g") == []  # pop consumers need not be members


@MERGING
async def test_a_reset_moves_the_group_and_forgets_what_is_in_hand(
    tmp_path: Path, merge: str
) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 5)
        assert len(await client.pop()) == 5
        client.world.features.groups.offsets.reset("g", "T", {0: 3})
        messages = await client.pop()
        assert [message.offset for message in messages] == [3, 4]
        await client.ack_all(messages)
        ordered = await client.pop(order="true")
        assert ordered == []


@MERGING
async def test_an_offset_outside_the_queue_is_corrected(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 2)
        client.world.features.groups.offsets.commit("g", "T", 0, 77)
        assert await client.pop() == []
        assert client.committed() == 2
        await fill(client, 1)
        assert [message.offset for message in await client.pop()] == [2]


@MERGING
async def test_a_reset_ends_the_count_of_messages_in_flight(tmp_path: Path, merge: str) -> None:
    async with popping(
        tmp_path,
        enablePopBufferMerge=merge,
        enablePopMessageThreshold="true",
        popInflightMessageThreshold="3",
    ) as client:
        await fill(client, 8)
        assert len(await client.pop(maxMsgNums=4)) == 4
        assert await client.pop(maxMsgNums=4) == []
        client.world.features.groups.offsets.reset("g", "T", {0: 1})
        messages = await client.pop(maxMsgNums=4)
        assert [message.offset for message in messages] == [1, 2, 3, 4]
        assert client.world.features.pop.state.in_flight("T", "g", 0) == 4


@MERGING
async def test_where_a_new_group_starts(tmp_path: Path, merge: str) -> None:
    async with popping(
        tmp_path, enablePopBufferMerge=merge, initPopOffsetByCheckMsgInMem="false"
    ) as client:
        await fill(client, 4)
        assert [each.offset for each in await client.pop(initMode=1)] == [3]
        first = PopClient(client.world, group="h")
        assert [each.offset for each in await first.pop(initMode=0)] == [0, 1, 2, 3]


@MERGING
async def test_pull_and_pop_consumers_of_one_group(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 4)
        pulled = await client.world.pull(0, maxMsgNums=2, sysFlag=5, commitOffset=0)
        assert len(bodies_of(pulled)) == 2
        await client.world.pull(2, maxMsgNums=1, sysFlag=5, commitOffset=2)
        assert [each.offset for each in await client.pop()] == [2, 3]


async def test_retry_topics_of_both_names_are_read(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        await client.pop()
        await client.world.clock.advance(20)
    async with popping(tmp_path, enableRetryTopicV2="true") as client:
        order = client.world.features.pop.service._messages._order
        order._draw = lambda: 51  # odd: the new name
        assert await client.pop() == []
        order._draw = lambda: 50
        (message,) = await client.pop()
        assert (message.handle.kind, message.record.topic) == ("1", "T")
        await client.ack_all([message])
        await fill(client, 1)
        await client.pop()
        await client.world.clock.advance(30)
        order._draw = lambda: 51
        (again,) = await client.pop()
        assert (again.handle.kind, again.record.topic) == ("2", "T")
        await client.ack_all([again])
        await client.world.clock.advance(60)
        assert await client.pop() == []


async def test_the_real_retry_topic_on_request(tmp_path: Path) -> None:
    async with popping(tmp_path, popResponseReturnActualRetryTopic="true") as client:
        await fill(client, 1)
        await client.pop()
        await client.world.clock.advance(20)
        (message,) = await client.pop()
        assert message.record.topic == "%RETRY%g_T"
        await client.ack_all([message])
        await client.world.clock.advance(60)
        assert await client.pop() == []


async def test_too_many_messages_in_flight(tmp_path: Path) -> None:
    async with popping(
        tmp_path, enablePopMessageThreshold="true", popInflightMessageThreshold="3"
    ) as client:
        await fill(client, 8)
        messages = await client.pop(maxMsgNums=4)
        answer = await client.answer(maxMsgNums=4)
        assert (answer.code, (answer.ext or {})["restNum"]) == (210, "4")
        await client.ack_all(messages[:1])
        assert len(await client.pop(maxMsgNums=4)) == 4


async def test_check_points_and_acks_are_counted_under_javas_names(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 4)
        first, second, *others = await client.pop()
        await client.ack_all([first])
        await client.change(second, 1_000)  # a check-point of its own, and an ack
        await client.batch_ack(batch(*others))
        await client.world.clock.advance(10)
        (again,) = await client.pop()
        await client.ack_all([again])
        stats = client.world.features.stats.broker_stats
        stats.sample("minute", client.world.clock.now_ms())
        for name, key, count in (
            ("GROUP_CK_NUMS", "T@g", 3),  # those of retries as well
            ("GROUP_ACK_NUMS", "T@g", 4),
            ("GROUP_ACK_NUMS", "%RETRY%g_T@g", 1),
            ("BROKER_CK_NUMS", "DefaultCluster", 3),
            ("BROKER_ACK_NUMS", "DefaultCluster", 5),
        ):
            item = stats.view(name, key).stats_minute
            assert item is not None
            assert item.sum == count, name


async def test_a_slave_hands_out_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        world.add_topic("T", 1)
        client = PopClient(world)
        answer = await client.answer()
        assert answer.code == 14
        assert "slave" in (answer.remark or "")


async def test_without_the_timer_there_is_no_pop(tmp_path: Path) -> None:
    async with popping(tmp_path, timerWheelEnable="false") as client:
        answer = await client.answer()
        assert answer.code == 1
        assert "timerWheelEnable is false" in (answer.remark or "")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "x"}, 17),
        ({"queueId": 1}, 29),
        ({"consumerGroup": "bad group"}, 26),
        ({"maxMsgNums": -1}, 1),
        ({"maxMsgNums": 0}, 210),
        ({"queueId": -7}, 210),
        ({"initMode": 9}, 210),
    ],
)
async def test_pops_that_are_refused(tmp_path: Path, fields: dict[str, object], code: int) -> None:
    async with popping(tmp_path) as client:
        answer = await client.answer(**fields)
        assert answer.code == code
        assert answer.remark


async def test_what_may_not_be_read(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        client.world.add_topic("T", 1, perm=2)
        assert (await client.answer()).code == 16
        client.world.add_topic("T", 1)
        groups = client.world.features.groups.table
        groups.update(SubscriptionGroupConfig(group_name="g", consume_enable=False))
        assert (await client.answer()).code == 16
    async with popping(tmp_path, brokerPermission="2") as client:
        assert (await client.answer()).code == 16


# ---- the order of queues ---------------------------------------------------------------------


def queue_ids(
    drawn: int,
    topic: TopicConfig,
    group: SubscriptionGroupConfig | None = None,
    settings: dict[str, str] | None = None,
    **fields: object,
) -> list[int]:
    order = QueueOrder(live_settings(**(settings or {})), {}, lambda: drawn)  # type: ignore[arg-type]
    header = PopMessageRequestHeader(consumer_group="g", topic="T", queue_id=-1)
    for name, value in fields.items():
        setattr(header, name, value)
    queues = order.of_pop(header, topic, group or SubscriptionGroupConfig(group_name="g"))
    return [queue.queue_id for queue in queues]


def test_pops_begin_at_a_random_queue() -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=4)
    assert queue_ids(0, topic) == [3, 2, 1, 0]
    assert queue_ids(50, topic) == [1, 0, 3, 2]
    assert queue_ids(50, topic, settings={"priorityOrderAsc": "false"}) == [2, 3, 0, 1]
    assert queue_ids(50, topic, queue_id=2) == [2]


def test_urgent_queues_come_first_for_a_share_of_the_pops() -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=4, attributes={"message.type": "PRIORITY"})
    assert queue_ids(50, topic) == [3, 2, 1, 0]
    assert queue_ids(50, topic, settings={"priorityOrderAsc": "false"}) == [0, 1, 2, 3]
    group = SubscriptionGroupConfig(group_name="g", attributes={"priority.factor": "50"})
    assert queue_ids(49, topic, group) == [3, 2, 1, 0]
    assert queue_ids(50, topic, group) == [1, 0, 3, 2]
    assert queue_ids(50, topic, order=True) == [1, 0, 3, 2]
