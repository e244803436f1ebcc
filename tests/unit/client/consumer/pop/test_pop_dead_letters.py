"""Dead letters of pop consumers that no broker stores, and records that cannot be decoded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark import ClientError, ClientStateError, DeadLetter, MessageExt
from skylark.client.consumer.consumer_send_back import SendBackClient
from skylark.core.errors import RemoteProtocolError
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pops import CHANGE, SEND_BACK, Held, PopWorld, pop_world
from tests.unit.client.consumer.pushes import Seen

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)


async def test_a_cancelled_dead_letter_may_be_settled_again(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(max_reconsume_times=0)
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        w.server.silent.add(SEND_BACK)
        failing = asyncio.ensure_future(message.nack())
        await w.clock.advance(seconds=1)
        failing.cancel()
        await w.clock.drain()
        w.server.silent.clear()
        assert not message.is_settled
        await w.finish(message.ack())
        assert w.server.acked == [b"a"]


async def test_a_dead_letter_that_no_broker_stores_is_delivered_again(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(pop_invisible_time=10), Seen()

        def act(message: object) -> None:
            raise DeadLetter()

        seen.on_message = act
        consumer.subscribe("T", seen.handler)
        serve_retry_topic(w)
        w.server.refuses[SEND_BACK] = 1
        await w.start(consumer)
        w.server.put(b"a")
        await w.clock.advance(seconds=5)
        assert len(w.server.of(SEND_BACK)) == 1
        assert [each for code in SENDS for each in w.server.of(code)] == []
        assert w.server.acked == []
        w.server.refuses.clear()
        await w.clock.advance(seconds=10)
        assert seen == [b"a", b"a"]
        assert w.server.acked == [b"a"]


async def test_nack_says_that_a_dead_letter_is_not_stored(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(max_reconsume_times=0)
        serve_retry_topic(w)
        w.server.refuses[SEND_BACK] = 1
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        with pytest.raises(ClientError, match="no broker has stored the dead letter"):
            await w.finish(message.nack())
        w.server.refuses.clear()
        await w.finish(message.nack())
        assert w.server.acked == [b"a"]
        with pytest.raises(ClientStateError):
            await message.ack()


DLQ = "%DLQ%g"


def serve_dead_letters(w: PopWorld) -> None:
    w.server.topic = DLQ
    w.serve_brokers(w.server)


async def test_dead_letters_can_be_popped(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        serve_dead_letters(w)
        consumer = w.pop_consumer()
        consumer.unsubscribe("T")
        consumer.subscribe(DLQ)
        await w.start(consumer)
        w.server.put(b"a", b"b", times=17)
        first, second = await w.finish(consumer.receive(wait=5))
        await w.finish(first.ack())
        await w.finish(second.nack(delay=5))  # and does not become a dead letter once more
        assert w.server.acked == [b"a"]
        (again,) = await w.finish(consumer.receive(wait=10))
        assert again.body == b"b"
        await w.finish(again.ack())
        assert w.server.of(SEND_BACK) == []


async def test_handlers_get_dead_letters(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        serve_dead_letters(w)
        consumer, seen = w.push_consumer(), Seen()

        def act(message: MessageExt) -> None:
            if message.body == b"failed":
                raise ValueError("failed")
            if message.body == b"dead":
                raise DeadLetter()

        seen.on_message = act
        consumer.subscribe(DLQ, seen.handler)
        await w.start(consumer)
        w.server.put(b"good", b"failed", b"dead", times=17)
        await w.clock.advance(seconds=2)
        assert seen == [b"good", b"failed", b"dead"]
        assert w.server.acked == [b"good"]
        assert w.server.of(SEND_BACK) == []
        assert [ext["invisibleTime"] for ext in w.server.ext_of(CHANGE)] == ["7200000"] * 2


async def test_a_published_copy_has_no_receipt(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        message.record.properties["POP_CK"] = message.receipt_handle
        serve_retry_topic(w)
        running = consumer._running
        assert running is not None
        client = SendBackClient(running.link, "g", reconsume_times_max=16)
        await w.finish(client.publish(message))
        (sent,) = [each for code in SENDS for each in w.server.of(code)]
        assert "POP_CK" not in str(sent.ext)
        assert "RETRY_TOPIC" in str(sent.ext)


async def test_a_record_that_cannot_be_decoded_costs_only_those_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        damage_bad_records(w)
        w.server.put(b"a", b"b", b"bad", b"c")
        found = await w.finish(consumer.receive(wait=1))
        assert [each.body for each in found] == [b"a", b"b"]
        assert "cannot be decoded" in caplog.text
        w.server.put(b"bad")
        with pytest.raises(RemoteProtocolError):
            await w.finish(consumer.receive(wait=1))


def serve_retry_topic(w: PopWorld) -> None:
    """The retry topic of the group can be published to."""
    w.server.serve_route("%RETRY%g", **{w.server.name: w.server.address})
    of_retry = w.server._answers[RequestCode.GET_ROUTEINFO_BY_TOPIC][0]
    w.serve_brokers(w.server)
    of_topic = w.server._answers[RequestCode.GET_ROUTEINFO_BY_TOPIC][0]
    assert callable(of_retry)
    assert callable(of_topic)
    w.server.answer(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        lambda request: (
            of_retry(request)
            if (request.ext or {}).get("topic") == "%RETRY%g"
            else of_topic(request)
        ),
    )
    for code in SENDS:
        w.server.answer_ok(code, {"msgId": "X", "queueId": "0", "queueOffset": "0"})


def damage_bad_records(w: PopWorld) -> None:
    """Records of messages with the body ``bad`` have no magic number."""
    intact = w.server._record

    def record(held: Held) -> bytes:
        raw = bytearray(intact(held))
        if held.body == b"bad":
            raw[4:8] = bytes(4)
        return bytes(raw)

    w.server._record = record  # type: ignore[method-assign, assignment]
