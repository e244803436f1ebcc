"""Raw entries of queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from skylark.core.hashing import java_hash
from skylark.wire.bodies.admin_body import QueryConsumeQueueResponseBody
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.broker.stored import Stored, stored


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path, enablePropertyFilter="true") as running:
        running.add_topic("T", 1)
        for number in range(4):
            assert (await running.send("T", properties=f"TAGS\x01tag{number}\x02")).code == 0
        yield running


async def query(world: Stored, **changes: str) -> QueryConsumeQueueResponseBody:
    ext = {"topic": "T", "queueId": "0", "index": "0", "count": "10", **changes}
    answer = await world.call(RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert (answer.code, answer.remark) == (0, None)
    return decode_body(QueryConsumeQueueResponseBody, answer.body or b"")


async def test_entries_lead_to_messages(world: Stored) -> None:
    body = await query(world, index="1", count="2")
    assert (body.min_queue_index, body.max_queue_index) == (0, 4)
    records = world.records("T")
    found = [(e.physic_offset, e.physic_size, e.tags_code) for e in body.queue_data or []]
    sizes = [after.log_offset - record.log_offset for record, after in pairwise(records)]
    assert found == [(records[n].log_offset, sizes[n], java_hash(f"tag{n}")) for n in (1, 2)]
    assert (body.subscription_data, body.filter_data) == (None, None)


@pytest.mark.parametrize(("count", "found"), [("-1", 0), ("0", 0), ("3", 3), ("2147483647", 4)])
async def test_as_many_as_there_are(world: Stored, count: str, found: int) -> None:
    assert len((await query(world, count=count)).queue_data or []) == found


async def test_what_is_not_there(world: Stored) -> None:
    ext = {"topic": "T", "queueId": "9", "index": "0", "count": "1"}
    answer = await world.call(RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert (answer.code, answer.remark) == (1, "9@T is not exist!")
    ext = {"topic": "T", "queueId": "0", "index": "4", "count": "1"}
    answer = await world.call(RequestCode.QUERY_CONSUME_QUEUE, ext)
    assert (answer.code, answer.remark, answer.body) == (0, "Index 4 of 0@T is not exist!", None)


async def test_what_a_group_subscribes_to(world: Stored) -> None:
    body = await query(world, consumerGroup="g")
    assert (body.subscription_data, body.filter_data) == (None, "g@T is not online!")
    await world.heartbeat(SubscriptionData(topic="T", sub_string="a"), group="g")
    body = await query(world, consumerGroup="g")
    assert body.subscription_data is not None
    assert (body.subscription_data.sub_string, body.filter_data) == ("a", "null")
    data = SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92", sub_version=1)
    await world.heartbeat(data, group="h")
    body = await query(world, consumerGroup="h")
    assert '"expression":"a > 5","expressionType":"SQL92"' in (body.filter_data or "")
