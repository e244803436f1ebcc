"""Pops of BatchCQ topics: a record with several messages has one offset in all that POP keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.pop.retry_copies import Outcome
from skylark.broker.pop.revive_turn import Turn
from skylark.store.batch_queue import BatchQueue
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.codes import RequestCode
from skylark.wire.pop_handle import decode_message_offsets
from skylark.wire.pop_records import CheckPoint
from tests.unit.broker.pop.pop_client import PopClient, popping
from tests.unit.broker.pop.test_pop_recovery import after_crash
from tests.unit.broker.pop.test_revive_runner import pop_again, revive_of

RETRY = "%RETRY%g_B"


async def send_batches(client: PopClient, *counts: int) -> list[bytes]:
    """Pop a BatchCQ topic from now on, and send batches of so many messages; their bodies."""
    client.topic = "B"
    client.world.add_topic("B", 1, attributes={"+queue.type": "BatchCQ"})
    bodies = []
    for number, count in enumerate(counts):
        body = encode_batch([BatchMessage(b"%d-%d" % (number, each)) for each in range(count)])
        properties = f"UNIQ_KEY\x01U{number}\x02"
        code = RequestCode.SEND_BATCH_MESSAGE
        answer = await client.world.send("B", body, 0, properties, code, m="true")
        assert answer.code == 0
        bodies.append(body)
    assert isinstance(client.world.features.store.queues.get("B", 0), BatchQueue)
    return bodies


@pytest.mark.parametrize("merge", ["false", "true"])
async def test_a_batch_that_is_not_acknowledged_comes_back_once(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await client.world.clock.advance(1)
        bodies = await send_batches(client, 10, 200, 3)
        answers, popped = [], []
        while (answer := await client.answer()).code == 0:
            answers.append(answer)
            popped += client.popped(answer)
        assert [message.body for message in popped] == bodies
        offsets = [
            offset
            for answer in answers
            for offset in decode_message_offsets((answer.ext or {})["msgOffsetInfo"])["0", 0]
        ]
        assert offsets == [0, 10, 210]
        await client.ack_all(popped[:1])
        assert client.world.features.pop.state.in_flight("B", "g", 0) == 2
        await client.world.clock.advance(20)
        assert client.committed() == 213
        copies = client.world.records(RETRY)
        expected = [b"1-%d" % each for each in range(200)] + [b"2-%d" % each for each in range(3)]
        assert [copy.body for copy in copies] == expected
        assert {(copy.sys_flag, copy.reconsume_times) for copy in copies} == {(0, 1)}
        assert client.world.features.pop.state.in_flight("B", "g", 0) == 0
        assert revive_of(client).queues
        assert all(queue.counts.unreadable == 0 for queue in revive_of(client).queues.values())


async def test_recovery_moves_over_whole_batches(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        bodies = await send_batches(client, 10, 10)
        popped = await pop_again(client)
        await client.ack_all(popped)
        async with after_crash(client, tmp_path) as again:
            again.topic = "B"
            assert again.committed() == 20
            await again.world.clock.advance(60)
            assert await pop_again(again) == []
    assert [message.body for message in popped] == bodies


async def test_batches_in_order(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        bodies = await send_batches(client, 100, 100)
        for number in range(2):
            (message,) = await client.pop(order="true", maxMsgNums=1)
            assert (message.body, message.offset) == (bodies[number], 100 * number)
            await client.ack_all([message])
            assert client.committed() == 100 * (number + 1)
        assert await client.pop(order="true") == []
        for infos in client.world.features.pop.order_pops.snapshot().table.values():
            assert all(info.commit_offset_bit < 1 << 63 for info in infos.values())


@pytest.mark.parametrize("order", ["false", "true"])
async def test_a_pop_begins_at_the_start_of_a_batch(tmp_path: Path, order: str) -> None:
    async with popping(tmp_path) as client:
        bodies = await send_batches(client, 10, 10)
        client.world.features.groups.offsets.commit("g", "B", 0, 15)
        (message,) = await client.pop(order=order)
        assert (message.body, message.handle.start_offset) == (bodies[1], 10)
        await client.ack_all([message])
        assert client.committed() == 20
        await client.world.clock.advance(60)
        assert await pop_again(client) == []


async def test_a_check_point_of_another_version_names_messages_of_a_batch(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await send_batches(client, 10)
        await client.pop()
        point = CheckPoint(
            topic="B",
            group="g",
            queue_id=0,
            start_offset=0,
            pop_time_ms=client.world.clock.now_ms() - 1,
            invisible_ms=10_000,
            broker_name="broker-a",
            offset_diffs=range(10),
        )
        copies = revive_of(client).copies
        turn = Turn(client.world.clock, count=1, bytes_max=1, seconds=1)  # a record is not split
        outcome = copies.copy(point, 0, turn, is_old=False)
        assert outcome is Outcome.AWAITS_TOPIC
        await client.world.clock.drain()
        assert copies.copy(point, 0, turn, is_old=False) is Outcome.DONE
        assert point.waiting_offsets() == []
        made = client.world.records(RETRY)
        assert [copy.body for copy in made] == [b"0-%d" % each for each in range(10)]
