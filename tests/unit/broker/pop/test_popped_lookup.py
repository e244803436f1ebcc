"""The last pop of a message, as a broker reports it to administrators (208)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.pop import popped_lookup
from skylark.core.names import pop_retry_topic
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from skylark.wire.bodies.stats import ConsumeStats, PoppedReport
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.broker.pop.pop_client import PopClient, fill, popping

MERGED = pytest.mark.parametrize("merge", ["false", "true"])


async def reported(client: PopClient, offset: int, topic: str = "T") -> PoppedReport:
    ext = {
        "consumerGroup": "g",
        "topic": topic,
        "poppedQueueId": "0",
        "poppedOffset": str(offset),
    }
    answer = await client.world.call(RequestCode.GET_CONSUME_STATS, ext)
    found = decode_body(ConsumeStats, answer.body or b"").popped
    assert found is not None
    return found


def popped(report: PoppedReport) -> tuple[Any, ...]:
    """When, for how long, and its end."""
    end = "acked" if report.acknowledged else "expired" if report.expired else "hidden"
    return report.pop_time, report.invisible_time, end


@MERGED
@pytest.mark.parametrize("order", ["false", "true"])
async def test_a_message_that_is_popped(tmp_path: Path, merge: str, order: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 3)
        now_ms = client.world.clock.now_ms()
        messages = await client.pop(order=order, maxMsgNums=2, invisibleTime=30_000)
        for _ in range(2):
            for offset in range(2):
                report = await reported(client, offset)
                assert popped(report) == (now_ms, 30_000, "hidden")
            if order == "false":
                assert report.next_offset == 2
            report = await reported(client, 2)
            assert (report.pop_time, report.known_since) == (0, now_ms)
            await client.world.clock.advance(12)  # merged check-points are written by then
        await client.ack_all(messages[:1])
        assert popped(await reported(client, 0)) == (now_ms, 30_000, "acked")
        assert popped(await reported(client, 1)) == (now_ms, 30_000, "hidden")


async def test_an_ack_in_memory(tmp_path: Path) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await fill(client, 2)
        first, second = await client.pop(invisibleTime=30_000)
        await client.ack_all([second])
        assert (await reported(client, 1)).acknowledged
        await client.ack_all([first])
        report = await reported(client, 1)  # the check-point is finished: no trace is left
        assert (report.pop_time, report.next_offset) == (0, 2)


@MERGED
@pytest.mark.parametrize("invisible_ms", [3_000, 20_000])
async def test_a_changed_invisible_time(tmp_path: Path, merge: str, invisible_ms: int) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 2)
        now_ms = client.world.clock.now_ms()
        messages = await client.pop(invisibleTime=30_000)
        await client.world.clock.advance(1)
        assert (await client.change(messages[0], invisible_ms)).code == 0
        report = await reported(client, 0)
        until_ms = report.pop_time + report.invisible_time
        assert (report.acknowledged, until_ms) == (False, now_ms + 1_000 + invisible_ms)
        is_known = merge == "false" or invisible_ms == 3_000
        assert report.pop_time == now_ms + (0 if is_known else 1_000)
        assert popped(await reported(client, 1)) == (now_ms, 30_000, "hidden")


@MERGED
async def test_a_message_that_was_not_acknowledged(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        await client.pop(invisibleTime=30_000)
        await client.world.clock.advance(40)
        assert (await reported(client, 0)).expired
        retry = pop_retry_topic("T", "g")
        assert (await reported(client, 0, retry)).pop_time == 0
        now_ms = client.world.clock.now_ms()
        assert len(await client.pop(invisibleTime=30_000)) == 1
        assert popped(await reported(client, 0, retry)) == (now_ms, 30_000, "hidden")


async def test_a_batch_ack_behind_a_check_point_is_no_change(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        messages = await client.pop(invisibleTime=30_000)
        await client.world.clock.advance(1)
        client.world.features.pop.state.advance("T", "g", 0, 0)  # as by a reset
        now_ms = client.world.clock.now_ms()
        assert len(await client.pop(invisibleTime=30_000)) == 2
        handle = messages[0].handle
        ack = BatchAck(
            consumer_group="g",
            topic="T",
            retry="0",
            start_offset=handle.start_offset,
            queue_id=0,
            revive_queue_id=handle.revive_queue_id,
            pop_time=handle.pop_time_ms,
            invisible_time=handle.invisible_ms,
            bit_set=encode_bit_set([0, 1]),
        )
        body = BatchAckMessageRequestBody(broker_name="broker-a", acks=[ack])
        assert (await client.batch_ack(body)).code == 0
        assert popped(await reported(client, 0)) == (now_ms, 30_000, "hidden")


async def test_messages_and_groups_are_told_apart(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        await PopClient(client.world, group="gg").pop(invisibleTime=30_000)
        assert (await reported(client, 0)).pop_time == 0


async def test_only_so_many_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popped_lookup, "RECORDS_MAX", 2)
    async with popping(tmp_path) as client:
        await fill(client, 4)
        now_ms = client.world.clock.now_ms()
        for _ in range(4):
            await client.pop(maxMsgNums=1, invisibleTime=30_000)
            await client.world.clock.advance(0.001)
        for offset, pop_time in enumerate((0, 0, now_ms + 2, now_ms + 3)):
            report = await reported(client, offset)
            assert (report.pop_time, report.known_since) == (pop_time, now_ms + 2)
