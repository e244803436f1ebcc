"""Requests and replies, between a producer and scripted or real brokers."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from skylark.client.core.client_message import Message, MessageExt
from skylark.client.producer.producer import Producer
from skylark.client.producer.producer_request_reply import reply_address
from skylark.core.errors import (
    CannotReplyError,
    ClientError,
    RequestReplyTimeoutError,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.compress import COMPRESSION_ZLIB, compress_body
from skylark.wire.message import MessageRecord
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.client.producer_world import MESSAGE, Script, cluster, scripted, stored


async def push(
    script: Script, body: bytes, sys_flag: int = 0, broker: str = "a", **properties: str
) -> list[Command]:
    """The broker pushes a reply to the client; the answers."""
    header = {
        "producerGroup": "other", "topic": "c_REPLY_TOPIC", "defaultTopic": "d",
        "defaultTopicQueueNums": "4", "queueId": "2", "sysFlag": str(sys_flag),
        "bornTimestamp": "11", "flag": "0", "bornHost": "10.0.0.1:1", "storeHost": "/10.0.0.2:2",
        "properties": encode_properties(properties).removesuffix("\x02"),
    }  # fmt: skip
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    answers = []
    for connection in script.brokers[broker].connections:
        call = connection.call(Command(code=code, ext=dict(header), body=body), 5.0)
        await script.clock.drain()
        if call.done():
            answers.append(call.result())
    return answers


async def begin(script: Script, timeout_s: float = 3.0) -> tuple[asyncio.Task[MessageExt], str]:
    """A request that waits, and its correlation id."""
    before = len(script.sent())
    task = await script.later(script.producer.request(MESSAGE, timeout=timeout_s))
    request = script.sent()[before]
    return task, parse_properties((request.ext or {})["i"])["CORRELATION_ID"]


async def test_a_request_says_who_waits_and_how_long(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        task, correlation_id = await begin(script, 1.5)
        (request,) = script.sent()
        properties = parse_properties((request.ext or {})["i"])
        assert properties["REPLY_TO_CLIENT"] == script.producer._use().instance.client_id
        assert properties["TTL"] == "1500"
        assert len(correlation_id) == 36
        # the broker had a heartbeat before: it must find the client again
        codes = [request.code for request in script.brokers["a"].requests]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.SEND_MESSAGE_V2)
        answers = await push(script, b"pong", CORRELATION_ID=correlation_id, p="v")
        assert 0 in [answer.code for answer in answers]
        reply = await task
        assert (reply.body, reply.topic, reply.queue_id) == (b"pong", "c_REPLY_TOPIC", 2)
        assert (reply.born_host, reply.store_host) == ("10.0.0.1:1", "10.0.0.2:2")
        assert reply.properties["p"] == "v"
        assert reply.properties["ARRIVE_TIME"] == str(script.clock.now_ms())
        assert len(script.producer._use().requests) == 0


@pytest.mark.parametrize("code", [0, 1])
async def test_a_broker_that_never_had_a_heartbeat_gets_one(tmp_path: Path, code: int) -> None:
    async with scripted(tmp_path, "a") as script:
        script.brokers["a"].answer(RequestCode.HEART_BEAT, code)  # also if it does not take it
        await script.clock.advance(seconds=2)  # past the first round
        await script.producer.send(MESSAGE)
        heartbeats = script.brokers["a"].of(RequestCode.HEART_BEAT)
        assert heartbeats == []
        for _ in range(2):
            task = await script.later(script.producer.request(MESSAGE, timeout=1))
            await script.clock.advance(seconds=1)
            with pytest.raises(RequestReplyTimeoutError):
                await task
        assert len(script.brokers["a"].of(RequestCode.HEART_BEAT)) == 1


@pytest.mark.spec("client.8.19")
async def test_without_a_reply_time_runs_out_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scripted(tmp_path, "a") as script:
        task, correlation_id = await begin(script)
        outcomes: list[object] = []
        task.add_done_callback(lambda done: outcomes.append(done.exception()))
        await script.clock.advance(seconds=2.9)
        assert not task.done()
        await script.clock.advance(seconds=0.1)
        with pytest.raises(RequestReplyTimeoutError) as raised:
            await task
        assert raised.value.response_code == 10006
        assert isinstance(raised.value, TimeoutError)
        answers = await push(script, b"late", CORRELATION_ID=correlation_id)
        assert {answer.code for answer in answers} >= {0}
        assert outcomes == [raised.value]
    assert "no request waits for reply" in caplog.text


async def test_a_request_that_cannot_be_sent(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        script.answer(14)
        with pytest.raises(ClientError, match="not be sent to topic T: CODE: 14") as raised:
            await script.producer.request(MESSAGE)
        assert raised.value.response_code == 14
        assert not isinstance(raised.value, RequestReplyTimeoutError)
        script.answer(None)
        task = await script.later(script.producer.request(MESSAGE, timeout=1))
        await script.clock.advance(seconds=1)
        with pytest.raises(ClientError) as timed_out:
            await task
        assert not isinstance(timed_out.value, RequestReplyTimeoutError)
        assert len(script.producer._use().requests) == 0


async def test_a_reply_may_overtake_the_answer_to_the_request(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        held: list[Command] = []
        script.answer(held.append)
        task, correlation_id = await begin(script)
        await push(script, b"quick", CORRELATION_ID=correlation_id)
        assert not task.done()
        for connection in script.brokers["a"].connections:
            connection.send(stored()(held[0]))
        assert (await task).body == b"quick"


async def test_replies_find_their_requests(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        first, first_id = await begin(script)
        second, second_id = await begin(script)
        packed = compress_body(b"two", COMPRESSION_ZLIB)
        await push(script, packed, 0x301, CORRELATION_ID=second_id)
        await push(script, b"one", CORRELATION_ID=first_id)
        assert ((await first).body, (await second).body) == (b"one", b"two")


async def test_a_damaged_reply_is_refused(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        task, correlation_id = await begin(script)
        answers = await push(script, b"garbage", 0x301, CORRELATION_ID=correlation_id)
        assert [(a.code, a.remark) for a in answers if a.code == 1] == [
            (1, "process reply message fail")
        ]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(script.producer._use().requests) == 0


def received(**properties: str) -> MessageExt:
    record = MessageRecord(
        total_size=0, magic=0, body_crc=0, queue_id=0, flag=0, queue_offset=0, log_offset=0,
        sys_flag=0, born_timestamp=0, born_host=bytes(8), store_timestamp=0, store_host=bytes(8),
        reconsume_times=0, prepared_transaction_offset=0, body=b"x", topic="T",
        raw_properties=encode_properties(properties).encode(),
    )  # fmt: skip
    return MessageExt(record, "a")


REQUEST = {"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "who", "TTL": "3000"}


def test_where_a_reply_goes() -> None:
    expected = {"MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "who"}
    assert reply_address(received(**REQUEST)) == (
        "c_REPLY_TOPIC",
        {**expected, "TTL": "3000"},
    )
    for missing in ("CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"):
        rest = {name: value for name, value in REQUEST.items() if name != missing}
        with pytest.raises(CannotReplyError, match=missing) as raised:
            reply_address(received(**rest))
        assert raised.value.response_code == 10007
    without = {name: value for name, value in REQUEST.items() if name != "TTL"}
    assert reply_address(received(**without)) == ("c_REPLY_TOPIC", expected)


async def test_a_request_is_answered_across_a_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        asking = asyncio.ensure_future(c.producer.request(Message("T", b"ping"), timeout=5))
        await c.clock.drain()
        (record,) = c.records("T")
        options = c.world.options()
        async with Producer("repliers", options, runtime=c.producer._runtime) as replier:
            replying = asyncio.ensure_future(
                replier.reply(MessageExt(record, "broker-a"), b"pong" * 2000)
            )
            reply = await c.world.finish(asking)
            assert reply.body == b"pong" * 2000
            sent = await c.world.finish(replying)
            assert sent.msg_id == reply.properties["UNIQ_KEY"]
            await c.world.finish(replier.stop())
