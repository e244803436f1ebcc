"""What brokers ask a push consumer: what it is doing, other offsets, one message on demand."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import MessageExt, RetryLater
from skylark.wire.bodies.admin_body import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.client.consumer.pushes import BROKER, Script, Seen, records, scripted

QUEUE = MessageQueue(topic="T", broker_name=BROKER, queue_id=0)
MQ_TABLE_FIELDS = {
    "commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount",
    "cachedMsgSizeInMiB", "transactionMsgMinOffset", "transactionMsgMaxOffset",
    "transactionMsgCount", "locked", "tryUnlockTimes", "lastLockTimestamp", "droped",
    "lastPullTimestamp", "lastConsumeTimestamp",
}  # fmt: skip


async def ask(script: Script, code: int, body: bytes | None = None, **ext: str) -> Command:
    request = Command(code=code, ext=ext, body=body)
    return await script.finish(script.control.call(request, 30.0))


@pytest.mark.spec("client.8.34")
async def test_running_info_has_everything(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.pulls.found(0, records(0, 1, 2), 3)
        consumer = script.consumer(concurrency=2)

        @consumer.subscribe("T", tags="*")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        answer = await ask(script, code, consumerGroup="g", clientId=consumer.client_id)
        assert answer.code == 0
        text = (answer.body or b"").decode()
        assert all(f'"{name}":' in text for name in MQ_TABLE_FIELDS)
        info = decode_body(ConsumerRunningInfo, answer.body or b"")
        properties = info.properties
        assert properties["PROP_CONSUMEORDERLY"] == "false"
        assert properties["PROP_THREADPOOL_CORE_SIZE"] == "2"
        assert properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert properties["PROP_NAMESERVER_ADDR"] == f"{script.server.address};"
        assert properties["PROP_CLIENT_VERSION"] == "V5_5_0"
        assert properties["PROP_CONSUMER_START_TIMESTAMP"].isdecimal()
        assert properties["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
        assert {each.topic for each in info.subscription_set} == {"T", "%RETRY%g"}
        queue = info.mq_table[QUEUE]
        assert (queue.cached_msg_count, queue.cached_msg_max_offset) == (3, 2)
        assert queue.last_pull_timestamp > 1_600_000_000_000
        assert info.jstack is None
        gate.set()
        await script.clock.advance(seconds=30)
        ext = {"consumerGroup": "g", "clientId": "c", "jstackEnable": "true"}
        answer = await ask(script, code, None, **ext)
        info = decode_body(ConsumerRunningInfo, answer.body or b"")
        status = info.status_table["T"]
        assert status.consume_ok_tps == pytest.approx(3 / 32)
        assert (status.consume_failed_tps, status.consume_failed_msgs) == (0, 0)
        assert "MainThread\n" in (info.jstack or "")


@pytest.mark.spec("client.8.34")
async def test_direct_consumption(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                raise RetryLater("not now")
            if message.body == b"2":
                raise ValueError("boom")

        await script.start(consumer)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY

        async def consume(body: bytes) -> ConsumeMessageDirectlyResult:
            answer = await ask(script, code, body, consumerGroup="g", brokerName=BROKER)
            return decode_body(ConsumeMessageDirectlyResult, answer.body or b"")

        assert (await consume(records(0))).consume_result is CMResult.CR_SUCCESS
        later = await consume(records(1))
        assert (later.consume_result, later.remark) == (CMResult.CR_LATER, "not now")
        thrown = await consume(records(2))
        assert thrown.consume_result is CMResult.CR_THROW_EXCEPTION
        assert thrown.remark == "ValueError: boom"
        nobody = await consume(records(0, topic="U"))
        assert nobody.consume_result is CMResult.CR_THROW_EXCEPTION
        assert nobody.remark == "ClientError: no handler for topic U"
        assert (thrown.order, thrown.auto_commit) == (False, True)
        assert script.committed == []


async def test_offsets_are_shown(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.set_offset(4)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await ask(script, code, group="g", topic="T")
        shown = decode_body(GetConsumerStatusBody, answer.body or b"")
        assert shown.message_queue_table == {QUEUE: 4}


async def tell_reset(script: Script, offset: int) -> None:
    body = encode_body(ResetOffsetBody(offset_table={QUEUE: offset}))
    ext = {"group": "g", "topic": "T", "timestamp": "1"}
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    script.control.oneway(Command(code=code, ext=ext, body=body))
    await script.clock.drain()


async def started(script: Script, seen: Seen, **given: Any) -> PushConsumer:
    script.set_offset(3)
    script.keep_offsets()
    script.pulls.found(3, records(3, 4), 5)
    script.pulls.found(1, records(1, 2), 3)
    consumer = script.consumer(**given)
    consumer.subscribe("T", seen.handler)
    await script.start(consumer)
    return consumer


async def test_a_reset_goes_back(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        seen = Seen()
        await started(script, seen)
        assert seen == [b"3", b"4"]
        await tell_reset(script, 1)
        await script.clock.advance(seconds=9)
        assert script.pulls.offsets == [3, 5]  # paused, so that late commits come first
        await script.clock.advance(seconds=5)
        assert script.pulls.offsets == [3, 5, 1, 3, 5]
        assert seen == [b"3", b"4", b"1", b"2", b"3", b"4"]
        assert 1 in script.committed


@pytest.mark.parametrize("waits_s", [(5,), (5, 7)])  # the first one is done after ten
async def test_of_resets_that_overlap_the_last_counts(
    tmp_path: Path, waits_s: tuple[int, ...]
) -> None:
    async with scripted(tmp_path) as script:
        seen = Seen()
        await started(script, seen)
        for wait_s in waits_s:
            await tell_reset(script, 3)
            await script.clock.advance(seconds=wait_s)
        await tell_reset(script, 1)
        await script.clock.advance(seconds=14)
        assert script.pulls.offsets == [3, 5, 1, 3, 5]
        assert seen == [b"3", b"4", b"1", b"2", b"3", b"4"]


async def test_a_reset_by_time(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        seen = Seen()
        consumer = await started(script, seen)
        script.server.answer_ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"offset": "1"})
        await script.finish(consumer.reset_to(datetime(2023, 1, 1, tzinfo=UTC)))
        await script.clock.advance(seconds=3)
        assert seen == [b"3", b"4", b"1", b"2", b"3", b"4"]
        asked = script.server.of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        assert {(request.ext or {})["timestamp"] for request in asked} == {"1672531200000"}


async def test_of_resets_by_time_that_overlap_the_last_counts(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        seen = Seen()
        consumer = await started(script, seen)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        resets: list[asyncio.Task[None]] = []
        for offset, wait_s in ((3, 5), (3, 7), (1, 0)):  # the first one is done after ten
            script.server.answer_ok(code, {"offset": str(offset)})
            work = consumer.reset_to(datetime(2023, 1, 1, tzinfo=UTC))
            resets.append(asyncio.create_task(work))
            await script.clock.advance(seconds=wait_s)
        await script.finish(asyncio.gather(*resets))
        await script.clock.advance(seconds=3)
        assert seen == [b"3", b"4", b"1", b"2", b"3", b"4"]


async def test_a_reset_that_outlives_its_consumer_changes_nothing(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        consumer = await started(script, Seen(), instance_name="shared")
        other = script.consumer("other", instance_name="shared")  # its connections stay
        other.subscribe("U", Seen().handler)
        await script.start(other)
        script.server.answer_ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"offset": "1"})
        resets: list[asyncio.Task[None]] = []
        for wait_s in (5, 7):  # the first one is done, the second is not
            work = consumer.reset_to(datetime(2023, 1, 1, tzinfo=UTC))
            resets.append(asyncio.create_task(work))
            await script.clock.advance(seconds=wait_s)
        await script.finish(consumer.stop())
        saved = script.committed
        await script.finish(asyncio.gather(*resets))
        assert script.committed == saved


async def test_a_changed_group_is_noticed_at_once(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        await script.clock.advance(seconds=5)
        before = len(script.server.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        script.control.oneway(Command(code=code, ext={"consumerGroup": "g"}))
        await script.clock.drain()
        assert len(script.server.of(RequestCode.GET_CONSUMER_LIST_BY_GROUP)) > before
