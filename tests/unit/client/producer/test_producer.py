"""The producer: what is sent, its life, and a real cluster."""

from __future__ import annotations

import asyncio
import logging
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.client_message import Message, SendStatus
from skylark.client.core.instance_registry import instance_count
from skylark.client.core.service_state import ServiceState
from skylark.client.producer.producer import Producer
from skylark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from skylark.client.producer.queue_selector import select_by_hash
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    ConfigError,
    ConnectionClosedError,
    InvalidMessageError,
    SendFailedError,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from tests.unit.client.producer_world import (
    MESSAGE,
    OFFSET_ID,
    cluster,
    letters,
    properties,
    scripted,
)

# ---- one attempt ---------------------------------------------------------------------------------


async def test_a_message_is_sent_and_its_result_returned(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        message = Message("T", b"body", tag="A", keys=["k"], properties={"p": "v"}, flag=3)
        result = await script.producer.send(message)
        (request,) = script.sent()
        assert (request.code, request.body) == (310, b"body")
        header = letters(request)
        assert (header["a"], header["b"], header["c"], header["d"]) == ("pg", "T", "TBW102", "4")
        assert (header["f"], header["h"], header["m"], header["n"]) == ("0", "3", "false", "a")
        assert header["g"] == str(script.clock.now_ms())
        assert properties(request) == {
            "TAGS": "A", "KEYS": "k", "p": "v", "WAIT": "true", "UNIQ_KEY": result.msg_id,
        }  # fmt: skip
        assert result.status is SendStatus.SEND_OK
        assert (result.offset_msg_id, result.queue_offset) == (OFFSET_ID, 5)
        assert result.queue == MessageQueue(topic="T", broker_name="a", queue_id=int(header["e"]))
        assert request.language == "PYTHON"


async def test_queues_take_turns(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        results = [await script.producer.send(MESSAGE) for _ in range(8)]
        assert len({result.queue for result in results}) == 8
        assert await script.producer.queues("T") == sorted({result.queue for result in results})


@pytest.mark.spec("client.8.7")
async def test_what_no_broker_takes_is_not_sent(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        send = script.producer.send
        for topic in ("", "t" * 128, "a.b", "SELF_TEST_TOPIC"):
            with pytest.raises(ClientError) as raised:
                await send(Message(topic, b"x"))
            assert raised.value.response_code == -1
        for body in (b"", bytes(4_194_305)):
            with pytest.raises(InvalidMessageError) as refused:
                await send(Message("T", body))
            assert refused.value.response_code == 13
        with pytest.raises(InvalidMessageError, match="not bytes"):
            await send(Message("T", "text"))  # type: ignore[arg-type]
        with pytest.raises(InvalidMessageError, match="used by system"):
            await send(Message("T", b"x", properties={"UNIQ_KEY": "mine"}))
        assert script.sent() == []


@pytest.mark.spec("client.8.9")
async def test_large_bodies_are_compressed(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        message = Message("T", bytes(4096))
        await script.producer.send(message)
        await script.producer.send(Message("T", bytes(4095)))
        packed, plain = script.sent()
        assert int(letters(packed)["f"]) == 0x301
        assert zlib.decompress(packed.body or b"") == bytes(4096)
        assert message.body == bytes(4096)
        assert (letters(plain)["f"], plain.body) == ("0", bytes(4095))


async def test_very_large_bodies_are_compressed_in_a_thread(tmp_path: Path) -> None:
    async with scripted(tmp_path, compress_type="LZ4") as script:
        sending = asyncio.ensure_future(script.producer.send(Message("T", bytes(100_000))))
        async with asyncio.timeout(10):  # real time: the thread does not know the virtual one
            await asyncio.wait([sending])
        (request,) = script.sent()
        assert int(letters(request)["f"]) == 0x101
        assert len(request.body or b"") < 2_000


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"delay": timedelta(minutes=3)}, {"TIMER_DELAY_MS": "180000"}),
        ({"delay": 0.25}, {"TIMER_DELAY_MS": "250"}),
        ({"delay_level": 4}, {"DELAY": "4"}),
        ({"deliver_at": datetime(2026, 11, 15, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1794700800000"}),
        ({"shard": "order-1"}, {"__SHARDINGKEY": "order-1"}),
    ],
)
async def test_what_a_send_can_say_becomes_a_property(
    tmp_path: Path, how: Any, expected: dict[str, str]
) -> None:
    for batching in (True, False):
        async with scripted(tmp_path, batching=batching) as script:
            await script.producer.send(MESSAGE, **how)
            (request,) = script.sent()
            found = properties(request)
            assert {name: found[name] for name in expected} == expected


async def test_contradictions_are_refused(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        send = script.producer.send
        queue = MessageQueue(topic="T", broker_name="a", queue_id=0)
        with pytest.raises(InvalidMessageError, match="one of delay"):
            await send(MESSAGE, delay=1, delay_level=1)
        with pytest.raises(InvalidMessageError, match="in the past"):
            await send(MESSAGE, delay=-1)
        with pytest.raises(InvalidMessageError, match="begin with 1"):
            await send(MESSAGE, delay_level=0)
        with pytest.raises(ClientError, match="one of queue"):
            await send(MESSAGE, queue=queue, shard="s")
        other = MessageQueue(topic="U", broker_name="a", queue_id=0)
        with pytest.raises(ClientError, match="the message is for topic T, the queue is of "):
            await send(MESSAGE, queue=other)
        assert script.sent() == []


@pytest.mark.spec("client.8.15")
async def test_equal_keys_go_to_the_same_queue(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        send = script.producer.send
        chosen = [
            (await send(MESSAGE, **how)).queue.queue_id
            for how in (
                {"shard": "order-1"},
                {"shard": "order-2"},
                {"shard": "polygenelubricants"},
                {"selector": select_by_hash, "selector_arg": "order-1"},
                {"selector": lambda queues, message, arg: queues[-1]},
                {"queue": MessageQueue(topic="T", broker_name="a", queue_id=1)},
            )
        ]
        assert chosen == [2, 1, 0, 2, 3, 1]


async def test_a_given_queue_has_one_attempt(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(14)
        queue = MessageQueue(topic="T", broker_name="a", queue_id=1)
        for how in ({"queue": queue}, {"shard": "s"}):
            with pytest.raises(BrokerError) as raised:
                await script.producer.send(MESSAGE, **how)
            assert raised.value.code == 14
        assert len(script.sent()) == 2
        nowhere = MessageQueue(topic="T", broker_name="c", queue_id=1)
        with pytest.raises(ClientError, match=r"The broker\[c\] not exist"):
            await script.producer.send(MESSAGE, queue=nowhere)


async def test_a_send_without_an_answer(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        assert await script.producer.send_oneway(MESSAGE) is None  # type: ignore[func-returns-value]
        await script.producer.send_oneway(MESSAGE, shard="order-1", delay_level=1)
        await script.clock.drain()
        first, second = script.sent("a")
        assert first.is_oneway
        assert properties(second)["DELAY"] == "1"


# ---- life ----------------------------------------------------------------------------------------


async def test_before_and_after_its_life_a_producer_does_nothing(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        fresh = Producer("fresh", script.options(), runtime=script.runtime)
        with pytest.raises(ClientStateError, match="has not been started"):
            await fresh.send(MESSAGE)
        await fresh.stop()
        with pytest.raises(ClientStateError, match="has been stopped"):
            await fresh.start()
        producer = script.producer
        with pytest.raises(ClientStateError, match="runs already"):
            await producer.start()
        await producer.stop()
        await producer.stop()
        assert producer.state is ServiceState.SHUTDOWN_ALREADY
        with pytest.raises(ClientStateError, match="has been stopped"):
            await producer.submit(MESSAGE)
        goodbyes = [s.of(RequestCode.UNREGISTER_CLIENT) for s in script.brokers.values()]
        assert all(len(sent) <= 1 for sent in goodbyes)
    assert instance_count() == 0


async def test_the_group_is_registered_once_and_left_at_the_end(tmp_path: Path) -> None:
    given = {"instance_name": "same"}
    async with scripted(tmp_path, given=given, topics=["T"]) as script:
        heartbeats = script.brokers["a"].of(RequestCode.HEART_BEAT)
        assert b'"groupName":"pg"' in (heartbeats[0].body or b"")
        twin = Producer("pg", script.options(**given), runtime=script.runtime)
        with pytest.raises(ClientStateError, match=r"producer group\[pg\] has been created before"):
            await twin.start()
        assert twin.state is ServiceState.START_FAILED
        assert (await script.producer.send(MESSAGE)).status is SendStatus.SEND_OK
        await script.world.finish(script.producer.stop())
        (goodbye,) = script.brokers["a"].of(RequestCode.UNREGISTER_CLIENT)
        assert letters(goodbye)["producerGroup"] == "pg"


async def test_stop_lets_what_was_submitted_end(tmp_path: Path) -> None:
    async with scripted(tmp_path, linger=5.0) as script:
        futures = [await script.producer.submit(MESSAGE) for _ in range(3)]
        await script.clock.drain()
        assert script.sent() == []
        await script.world.finish(script.producer.stop())
        assert [(await future).queue_offset for future in futures] == [5, 6, 7]


async def test_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.answer(None)
        future = await script.producer.submit(MESSAGE, timeout=60)
        alone = await script.producer.submit(Message("T", bytes(5000)), timeout=60)
        stopping = await script.later(script.producer.stop())
        await script.clock.advance(seconds=2.9)
        assert not stopping.done()
        await script.clock.advance(seconds=0.2)
        await script.world.finish(stopping)
        for each in (future, alone):
            with pytest.raises(ClientStateError, match="stopped meanwhile"):
                await each


async def test_flush_waits_for_all_that_was_submitted(tmp_path: Path) -> None:
    async with scripted(tmp_path, linger=5.0) as script:
        futures = [await script.producer.submit(MESSAGE) for _ in range(3)]
        await script.producer.flush()
        assert all(future.done() for future in futures)


async def test_another_loop_is_told_so(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:

        def elsewhere() -> None:
            with pytest.raises(ClientStateError, match="another event loop"):
                asyncio.run(script.producer.send(MESSAGE))

        await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize("batching", [True, False])
async def test_a_forked_child_does_not_touch_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batching: bool
) -> None:
    async with scripted(tmp_path, batching=batching) as script:
        with monkeypatch.context() as child:
            child.setattr("skylark.client.core.control_loop.os.getpid", lambda: 1)
            with pytest.raises(ClientStateError, match="was forked"):
                await script.producer.send(MESSAGE)
        assert script.sent() == []


def test_settings_and_keywords_agree() -> None:
    assert list(ProducerKeywords.__annotations__) == list(ProducerSettings.__struct_fields__)
    for wrong in (
        {"send_timeout": 0},
        {"retries": -1},
        {"compress_type": "GZIP"},
        {"batch_size_max": 1 << 30},
        {"linger": 31},
        {"attempt_timeout": 0},
    ):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Producer("g", **wrong)
    for group in ("", "DEFAULT_PRODUCER", "a b"):
        with pytest.raises(ClientError):
            Producer(group)


# ---- a real cluster ------------------------------------------------------------------------------


async def test_messages_arrive(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        send = c.producer.send
        alone = await send(Message("T", b"alone", tag="A", properties={"p": "v"}))
        await asyncio.gather(*(send(Message("T", b"%d" % n, tag="B")) for n in range(50)))
        await send(Message("T", b"large" * 2000))
        batch = await c.producer.send_batch([Message("T", b"b%d" % n) for n in range(3)])
        await c.producer.send_oneway(Message("T", b"oneway"))
        await c.clock.drain()
        expected = [b"alone", b"oneway", b"b0", b"b1", b"b2", *(b"%d" % n for n in range(50))]
        records = c.records("T")
        found = {record.body: record for record in records if record.sys_flag == 0}
        assert sorted(found) == sorted(expected)
        (large,) = [record for record in records if record.sys_flag]
        assert zlib.decompress(large.body) == b"large" * 2000
        assert found[b"alone"].offset_id == alone.offset_msg_id
        assert found[b"alone"].properties["UNIQ_KEY"] == alone.msg_id
        assert found[b"7"].properties["TAGS"] == "B"
        assert [found[b"b%d" % n].queue_offset for n in range(3)] == [r.queue_offset for r in batch]
        assert [found[b"b%d" % n].offset_id for n in range(3)] == [r.offset_msg_id for r in batch]


async def test_a_send_creates_a_topic(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        result = await c.world.finish(c.producer.send(Message("new", b"x")))
        assert result.status is SendStatus.SEND_OK
        assert c.bodies("new") == [b"x"]


async def test_a_delayed_message_can_be_taken_back(tmp_path: Path) -> None:
    async with cluster(tmp_path, broker={"recallMessageEnable": "true"}) as c:
        result = await c.producer.send(Message("T", b"later"), delay=60)
        kept = await c.producer.send(Message("T", b"kept"), delay=60)
        assert result.recall_handle is not None
        assert kept.recall_handle is not None
        recalled = await c.world.finish(c.producer.recall("T", result.recall_handle))
        assert recalled == result.msg_id
        await c.clock.advance(seconds=70)
        assert c.bodies("T") == [b"kept"]
        for handle in ("", "nonsense", "djEgYSBi"):
            with pytest.raises(ClientError, match="recall handle is invalid"):
                await c.producer.recall("T", handle)
        with pytest.raises(ClientError, match="not supported"):
            await c.producer.recall("%RETRY%g", kept.recall_handle)


async def test_namespaces_stay_on_the_wire(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        await c.world.add_topic("ns%T")
        options = c.world.options(namespace="ns")
        async with Producer("G", options, runtime=c.producer._runtime) as producer:
            result = await producer.send(Message("T", b"x"))
            assert result.queue.topic == "T"
            again = await producer.send(Message("T", b"y"), queue=result.queue)
            assert again.queue == result.queue
            chosen = await producer.send(
                Message("T", b"z"), selector=lambda queues, message, arg: queues[0]
            )
            assert chosen.queue.topic == "T"
            stop = producer.stop()
            await c.world.finish(stop)
        assert sorted(c.bodies("ns%T")) == [b"x", b"y", b"z"]
        assert {record.properties["INSTANCE_ID"] for record in c.records("ns%T")} == {"ns"}


async def test_a_broker_that_comes_back_is_found_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(tmp_path) as c:
        await c.producer.send(Message("T", b"1"))
        await c.world.stop(c.world.brokers["broker-a"])
        with pytest.raises((SendFailedError, ConnectionClosedError, TimeoutError)):
            await c.world.finish(c.producer.send(Message("T", b"2")))
        await c.world.add_broker()
        await c.world.add_topic("T")
        await c.world.finish(c.producer.send(Message("T", b"3")))
        assert sorted(c.bodies("T")) == [b"1", b"3"]
