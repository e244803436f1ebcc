"""The broker in the test's own process: transports, settings, and virtual time."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from skylark import ClientOptions, Message, MessageExt, RetryLater, TxState, sync
from skylark.aio import LitePullConsumer, PopConsumer, Producer
from skylark.core.errors import ConfigError, MessageIllegalError, SkylarkError
from skylark.testing import (
    START_MS,
    LocalBroker,
    MessageFaults,
    NotDrainedError,
    VirtualClock,
    broker,
)
from skylark.testing.memory_net import MemoryNetwork

MINUTE_MS = 60_000


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


class Inbox:
    """What a consumer got, and how much virtual time had passed."""

    def __init__(self, b: LocalBroker, failures: int = 0) -> None:
        self.got: list[tuple[bytes, int]] = []
        self._b = b
        self._failures = failures

    async def take(self, message: MessageExt) -> None:
        self.got.append((message.body, self._b.clock.now_ms() - START_MS))
        if len(self.got) <= self._failures:
            raise RetryLater


@pytest.mark.parametrize("transport", ["memory", "loopback"])
@pytest.mark.parametrize("clock", ["real", "virtual"])
async def test_messages_pass(
    transport: Literal["memory", "loopback"], clock: Literal["real", "virtual"]
) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()
    async with broker(transport=transport, clock=clock) as b:
        topic, group = await b.topic(), await b.group()
        consumer = b.consumer(group)

        @consumer.subscribe(topic)
        async def take(message: MessageExt) -> None:
            got.put_nowait(message.body)

        async with b.producer() as producer, consumer:
            await producer.send(Message(topic, b"hello"))
            if clock == "virtual":
                await b.clock.advance(seconds=1)
                assert got.qsize() == 1
            assert await got.get() == b"hello"


async def test_nothing_is_left_at_the_end() -> None:
    tasks = asyncio.all_tasks()
    async with broker(clock="virtual") as b:
        await b.topic()
        assert (b.folder / "store").is_dir()
    assert not b.folder.exists()
    assert asyncio.all_tasks() == tasks
    assert isinstance(b.network, MemoryNetwork)
    assert b.network.connection_count == 0
    assert b.clock.timer_count == 0


async def test_a_start_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tasks = asyncio.all_tasks()
    with pytest.raises(ConfigError, match="mappedFileSizeCommitLog"):
        async with broker(mappedFileSizeCommitLog=-1):
            pass
    assert entries(tmp_path) == []
    assert asyncio.all_tasks() == tasks


async def test_several_brokers_do_not_know_each_other() -> None:
    async with broker() as a, broker() as b:
        topic = await a.topic()
        assert topic in await a.admin.topics.names()
        assert topic not in await b.admin.topics.names()


# ---- settings ------------------------------------------------------------------------------------


async def test_settings_are_keywords_or_a_mapping_with_java_names() -> None:
    async with broker({"maxMessageSize": "1000"}, autoCreateTopicEnable=False) as b:
        config = b.broker.config
        assert config.store.max_message_size == 1000
        assert not config.auto_create_topic_enable
        assert config.enable_property_filter  # friendlier than Java, as with `skylark up`


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"autoCreateTopicEnabled": True}, "did you mean autoCreateTopicEnable"),
        ({"listenPort": 10911}, "determines this setting itself"),
        ({"transport": "pigeon"}, "transport is"),
        ({"clock": "cuckoo"}, "clock is"),
    ],
)
async def test_wrong_arguments_are_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        async with broker(**given):
            pass


# ---- clients -------------------------------------------------------------------------------------


async def test_the_address_in_memory_leads_nowhere_else() -> None:
    async with broker() as b:
        topic = await b.topic()
        async with Producer("p", ClientOptions(namesrv=b.namesrv), retries=0) as producer:
            with pytest.raises(SkylarkError, match=r"memory\.invalid"):
                await producer.send(Message(topic, b"x"), timeout=1.0)


async def test_blocking_clients_are_told_which_broker_is_theirs() -> None:
    async with broker() as b:
        with pytest.raises(ConfigError, match="sync_broker"):
            sync.Producer("p", b.options)


async def test_a_runtime_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="runtime must be that of a test broker, not a str"):
        await Producer("p", ClientOptions(namesrv="127.0.0.1:1", runtime="memory")).start()


async def test_pull_consumers_use_the_same_options() -> None:
    async with broker(clock="virtual") as b:
        topic = await b.topic(queue_count=1)
        async with b.producer() as producer:
            await producer.send(Message(topic, b"1"))
        async with LitePullConsumer("g", b.options) as consumer:
            (queue,) = await consumer.fetch_queues(topic)
            consumer.assign([queue])
            await consumer.seek_to_begin(queue)
            (message,) = await b.clock.finish(consumer.poll(timeout=5))
            assert message.body == b"1"


async def test_real_time_has_no_clock_to_move() -> None:
    async with broker() as b:
        with pytest.raises(ConfigError, match="real time"):
            _ = b.clock


async def test_faults_may_come_and_go() -> None:
    plan = MessageFaults(duplicate=1.0, seed=7)
    async with broker(faults=plan) as b:
        assert b.faults is plan
        topic = await b.topic(queue_count=1)
        # A send that is repeated after its timeout would be stored twice, too.
        async with b.producer(send_timeout=60) as producer:
            await producer.send(Message(topic, b"twice"))
            b.faults = None
            await producer.send(Message(topic, b"once"))
        (queue,) = (await b.admin.offsets.bounds(topic)).queues
        assert queue.max_offset == 3


# ---- virtual time --------------------------------------------------------------------------------


async def test_the_invisible_time_of_popped_messages_is_virtual() -> None:
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        popping = PopConsumer("workers", b.options, invisible=60).subscribe(topic)
        async with b.producer() as producer, popping as consumer:
            await producer.send(Message(topic, b"x"))
            # The first pop waits for the disk, in real time: virtual time stands still.
            before_ms = b.clock.now_ms()
            (first,) = await b.clock.finish(consumer.receive())
            assert b.clock.now_ms() - before_ms < 1_000
            await b.clock.advance(minutes=2)
            (again,) = await b.clock.finish(consumer.receive())
            assert (first.attempt, again.attempt) == (1, 2)
            await again.ack()


@asynccontextmanager
async def consumed(b: LocalBroker, topic: str, failures: int = 0) -> AsyncIterator[Inbox]:
    inbox = Inbox(b, failures)
    consumer = b.consumer()
    consumer.subscribe(topic)(inbox.take)
    async with consumer:
        yield inbox


async def test_delayed_messages_come_in_order_when_they_are_due() -> None:
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        async with b.producer() as producer, consumed(b, topic) as inbox:
            await producer.send(Message(topic, b"later"), delay=timedelta(minutes=20))
            await producer.send(Message(topic, b"sooner"), delay_level=14)  # 10 minutes
            await b.clock.advance(minutes=9)
            assert inbox.got == []
            await b.clock.advance(minutes=12)
    (first, first_ms), (second, second_ms) = inbox.got
    assert (first, second) == (b"sooner", b"later")
    assert first_ms == pytest.approx(10 * MINUTE_MS, abs=2_000)
    assert second_ms == pytest.approx(20 * MINUTE_MS, abs=2_000)


async def test_failed_messages_come_again_after_each_delay() -> None:
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        async with b.producer() as producer, consumed(b, topic, failures=2) as inbox:
            await producer.send(Message(topic, b"x"))
            await b.clock.advance(minutes=2)
    times_ms = [time_ms for _, time_ms in inbox.got]
    assert len(times_ms) == 3
    # levels 3 and 4 of the broker: 10 and 30 seconds
    assert times_ms[1] - times_ms[0] == pytest.approx(10_000, abs=2_000)
    assert times_ms[2] - times_ms[1] == pytest.approx(30_000, abs=2_000)


async def test_unfinished_transactions_are_asked_about() -> None:
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        producer = b.producer()
        asked_ms: list[int] = []

        @producer.transaction_checker
        async def check(message: MessageExt) -> TxState:
            asked_ms.append(b.clock.now_ms() - START_MS)
            return TxState.COMMIT if len(asked_ms) == 2 else TxState.UNKNOWN

        async with producer, consumed(b, topic) as inbox:
            async with producer.transaction(Message(topic, b"half")) as transaction:
                transaction.unknown()
            await b.clock.advance(minutes=10)
    assert len(asked_ms) == 2
    assert asked_ms[0] >= 6_000  # transactionTimeOut
    assert [body for body, _ in inbox.got] == [b"half"]
    assert inbox.got[0][1] >= asked_ms[1]


async def test_old_files_are_deleted() -> None:
    settings = {"mappedFileSizeCommitLog": 128 << 10, "fileReservedTime": 1, "maxMessageSize": 9999}
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    async with broker(settings, clock="virtual", deleteWhen=every_hour) as b:
        topic = await b.topic(queue_count=1)

        async def begin() -> int:
            (queue,) = (await b.admin.offsets.bounds(topic)).queues
            return queue.min_offset

        async with b.producer(compress_over=10_000) as producer:
            for number in range(40):
                await producer.send(Message(topic, bytes(9_000), keys=[str(number)]))
        await b.clock.advance(minutes=50)
        assert await begin() == 0
        await b.clock.advance(hours=1.2)
        assert await begin() > 20


async def test_a_clock_may_be_shared_by_brokers() -> None:
    clock = VirtualClock()
    async with broker(clock=clock) as a, broker(clock=clock) as b:
        assert a.clock is b.clock is clock
        await clock.advance(minutes=3)
        assert await a.topic() != await b.topic()


# ---- speed ---------------------------------------------------------------------------------------


async def test_starting_costs_little() -> None:
    async with broker():
        pass  # loads what is loaded once
    before_s = time.process_time()
    async with broker():
        spent_s = time.process_time() - before_s
    assert spent_s < 0.5  # 0.01 in a quiet moment


async def test_the_first_message_of_a_consumer_waits_for_no_timer() -> None:
    """What a test waits for its first message is work, never a pause: virtual time stands still."""
    got: asyncio.Queue[int] = asyncio.Queue()
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        consumer = b.consumer()

        @consumer.subscribe(topic)
        async def take(message: MessageExt) -> None:
            got.put_nowait(b.clock.now_ms())

        began = b.clock.now_ms()
        async with b.producer() as producer, consumer:
            await producer.send(Message(topic, b"hello"))
            assert await got.get() == began


async def test_a_delay_that_the_broker_refuses_is_answered_with_its_limit() -> None:
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        async with b.producer() as producer:
            with pytest.raises(MessageIllegalError) as caught:
                await producer.send(Message(topic, b"x"), delay=4 * 86_400)
    assert (caught.value.remark or "").startswith("timer message illegal, the delay time should")
    assert "at most 3 days" in str(caught.value)
    assert "timerMaxDelaySec" in str(caught.value)


async def test_waiting_for_a_message_that_never_comes_ends() -> None:
    """The servers of a broker never run out of timers."""
    async with broker(clock="virtual") as b:
        got: asyncio.Queue[bytes] = asyncio.Queue()
        began_ms = b.clock.now_ms()
        with pytest.raises(NotDrainedError, match="after 1800 s of virtual time"):
            await b.clock.finish(got.get(), within=1800)
        assert 0 < b.clock.now_ms() - began_ms <= 1_800_000
