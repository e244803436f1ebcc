"""The bytes of a pull as messages, and where to go on behind what is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from skylark.client.consumer.pull_api import _undecodable, decode_messages, first_offset
from skylark.client.consumer.start_position import start_position
from skylark.client.core.broker_calls import Pulled, PullStatus
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.layout import FLAG_INNER_BATCH
from skylark.wire.message import encode_record

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=3)
PART = bytes.fromhex("000000170000000000000000000000000000000178" + "0000")


def answer(body: bytes, next_offset: int, delta: int = 0) -> Pulled:
    return Pulled(
        status=PullStatus.FOUND,
        next_offset=next_offset,
        min_offset=2,
        max_offset=99,
        suggested_broker_id=0,
        body=body,
        offset_delta=delta,
    )


def record(queue_offset: int, sys_flag: int = 0, body: bytes = b"x") -> bytes:
    return encode_record(topic="T", body=body, queue_offset=queue_offset, sys_flag=sys_flag)


def broken(queue_offset: int) -> bytes:
    found = bytearray(record(queue_offset))
    found[4:8] = b"\0\0\0\x07"  # the magic
    return bytes(found)


def test_messages_show_the_queue_they_were_read_from() -> None:
    (first, second), error = decode_messages(
        answer(record(5) + record(6), 7, delta=100), QUEUE, "shown"
    )
    assert error is None
    assert (first.queue_offset, second.queue_offset) == (105, 106)
    assert (first.topic, first.broker_name, first.queue_id) == ("shown", "broker-a", 3)
    assert (first.properties["MIN_OFFSET"], first.properties["MAX_OFFSET"]) == ("2", "99")


def test_an_inner_batch_that_needs_no_unwrapping_stays_whole() -> None:
    (message,), error = decode_messages(answer(record(5, FLAG_INNER_BATCH, PART * 3), 6), QUEUE)
    assert error is None
    assert message.body == PART * 3


def test_what_came_before_the_broken_one_is_good() -> None:
    found, error = decode_messages(answer(record(5) + broken(6) + record(7), 8), QUEUE)
    assert [message.queue_offset for message in found] == [5]
    assert error is not None


@pytest.mark.parametrize(
    ("body", "count_max", "offset", "next_offset"),
    [
        (broken(6) + record(7), 32, 6, 7),  # the good one behind it is not lost
        (broken(9), 32, 9, 10),  # 5 to 8 were for others
        (broken(9), 1, 5, 40),  # it was alone: behind the answer
        (broken(50), 32, 5, 6),  # a claim that cannot be
        (b"\0" * 40, 32, 5, 6),  # too short to claim anything
    ],
)
def test_going_on_behind_the_broken_one_loses_no_good_message(
    body: bytes, count_max: int, offset: int, next_offset: int
) -> None:
    error = _undecodable(answer(body, 40), QUEUE, 5, count_max)
    assert (error.offset, error.next_offset) == (offset, next_offset)
    assert error.queue == QUEUE
    assert f"the message at offset {offset} of" in str(error)


def test_static_topics_count_from_elsewhere() -> None:
    assert _undecodable(answer(broken(6), 140, delta=100), QUEUE, 105, 32).next_offset == 107


@pytest.mark.parametrize(
    ("answers", "end", "expected"),
    [
        ([None], 0, 0),  # empty: nothing can be skipped
        ([None, 0], 1, 0),  # the first message came in between
        ([None, None], 7, 7),  # a new group on an old topic starts at the end
        ([None, -1], 7, 7),
        ([None, 3], 7, 3),  # another member has committed in between
        ([5], 7, 5),
    ],
)
async def test_a_message_that_comes_while_a_new_group_starts_is_not_skipped(
    answers: list[int | None], end: int, expected: int
) -> None:
    left = list(answers)

    async def read(_: MessageQueue) -> int | None:
        return left.pop(0)

    link: Any = SimpleNamespace(lookup=AsyncMock(), calls=AsyncMock())
    link.calls.max_offset.return_value = end
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    start = start_position("T", await read(queue), where, 0)
    assert await first_offset(link, queue, start, read) == expected
    assert left == []
