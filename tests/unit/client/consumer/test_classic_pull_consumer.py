"""Classic pull: each pull a call, offsets in the hands of the application, and the schedule."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.client.consumer.classic_pull_consumer import PullConsumer, PullSchedule, PullTask
from skylark.client.core.broker_calls import PullStatus
from skylark.core.errors import BrokerError, ClientError, ClientStateError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.compress import COMPRESSION_ZLIB, compress_body, compression_flags
from tests.unit.client.consumer.pull_world import bodies, pull_world, queue


async def test_a_pull_returns_what_there_is(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        await w.send(*[b"%d" % i for i in range(5)], TAGS="A")
        await w.send(b"b", TAGS="B")
        await w.finish(consumer.start())
        result = await w.finish(consumer.pull(queue(), 1, count=3))
        assert (result.status, result.next_offset) == (PullStatus.FOUND, 4)
        assert (result.min_offset, result.max_offset) == (0, 6)
        assert bodies(result.messages) == [b"1", b"2", b"3"]
        result = await w.finish(consumer.pull(queue(), 6))
        assert (result.status, result.messages) == (PullStatus.NO_NEW_MSG, [])
        result = await w.finish(consumer.pull(queue(), 0, tags="B || C"))
        assert (bodies(result.messages), result.next_offset) == ([b"b"], 6)
        result = await w.finish(consumer.pull(queue(), 0, tags="C"))
        assert (result.status, result.next_offset) == (PullStatus.NO_MATCHED_MSG, 6)
        result = await w.finish(consumer.pull(queue(), 9))
        assert (result.status, result.next_offset) == (PullStatus.OFFSET_ILLEGAL, 6)


async def test_bodies_are_inflated(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        packed = compress_body(b"z" * 5000, COMPRESSION_ZLIB)
        await w.send(packed, sys_flag=compression_flags(COMPRESSION_ZLIB))
        await w.finish(consumer.start())
        result = await w.finish(consumer.pull(queue(), 0))
        assert bodies(result.messages) == [b"z" * 5000]


async def test_a_blocking_pull_waits_for_a_message(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        await w.finish(consumer.start())
        waiting = asyncio.ensure_future(consumer.pull_block_if_not_found(queue(), 0))
        await w.clock.advance(seconds=10)
        assert not waiting.done()
        await w.send(b"x")
        assert bodies((await w.finish(waiting)).messages) == [b"x"]
        before = w.clock.monotonic()
        result = await w.finish(consumer.pull_block_if_not_found(queue(), 1))
        assert result.status is PullStatus.NO_NEW_MSG
        assert 20 <= w.clock.monotonic() - before <= 22


async def test_what_makes_no_sense_is_not_sent(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        with pytest.raises(ClientStateError):
            await consumer.pull(queue(), 0)
        await w.finish(consumer.start())
        with pytest.raises(ClientError, match="offset must be 0 or more"):
            await consumer.pull(queue(), -1)
        with pytest.raises(ClientError, match="count must be 1 or more"):
            await consumer.pull(queue(), 0, count=0)
        with pytest.raises(BrokerError, match="queueId"):
            await w.finish(consumer.pull(queue(7), 0))


async def test_offsets_are_saved_when_told(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.classic() as consumer:
        await w.send(b"a", b"b")
        await w.finish(consumer.start())
        assert await w.finish(consumer.fetch_queues("T")) == {queue(0), queue(1)}
        assert await w.finish(consumer.fetch_consume_offset(queue(1))) is None
        consumer.update_consume_offset(queue(), 1)
        assert await w.finish(consumer.fetch_consume_offset(queue())) == 1
        assert await w.committed("g") == -1
        await w.clock.advance(seconds=16)
        assert await w.committed("g") == 1
        await w.finish(consumer.update_consume_offset_to_broker(queue(1), 5))
        assert await w.committed("g", 1) == 5
        assert await w.finish(consumer.fetch_consume_offset(queue(1), from_store=True)) == 5
        consumer.update_consume_offset(queue(), 2)
        await w.finish(consumer.stop())
        assert await w.committed("g") == 2


async def test_an_offset_is_saved_once_for_each_update(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as one, w.classic() as other:
        for consumer in (one, other):
            await w.finish(consumer.start())
        one.update_consume_offset(queue(), 1)
        await w.clock.advance(seconds=16)
        assert await w.committed("g") == 1
        await w.finish(other.update_consume_offset_to_broker(queue(), 5))
        await w.clock.advance(seconds=20)
        assert await w.committed("g") == 5  # not taken back
        one.update_consume_offset(queue(), 6)
        await w.clock.advance(seconds=6)
        assert await w.committed("g") == 6


async def test_an_offset_that_was_only_read_is_not_saved(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as one, w.classic() as other:
        for consumer in (one, other):
            await w.finish(consumer.start())
            await w.finish(consumer.fetch_queues("T"))
        await w.clock.advance(seconds=31)  # the broker hears of the group
        await w.finish(one.update_consume_offset_to_broker(queue(), 1))
        assert await w.finish(one.fetch_consume_offset(queue())) == 1
        await w.finish(other.update_consume_offset_to_broker(queue(), 5))
        await w.clock.advance(seconds=20)
        assert await w.committed("g") == 5  # not taken back
        assert await w.finish(one.fetch_consume_offset(queue())) == 5
        await w.finish(one.update_consume_offset_to_broker(queue(), 6))
        await w.finish(one.stop())
        assert await w.committed("g") == 6


async def test_an_offset_saved_at_the_broker_is_that_of_a_shared_queue(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        await w.send(b"a")
        await w.finish(consumer.register_queue_listener("T").start())
        await w.until(lambda: bool(consumer.queues_in_balance("T")))
        assert await w.finish(consumer.fetch_consume_offset(queue())) == 0
        await w.finish(consumer.update_consume_offset_to_broker(queue(), 5))
        await w.clock.advance(seconds=20)
        assert await w.committed("g") == 5  # not taken back
        assert await w.finish(consumer.fetch_consume_offset(queue())) == 5


async def test_offsets_of_messages(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        await w.send(b"a")
        await w.clock.advance(seconds=60)
        later = w.clock.now_ms()
        await w.send(b"b")
        await w.finish(consumer.start())
        assert await w.finish(consumer.min_offset(queue())) == 0
        assert await w.finish(consumer.max_offset(queue())) == 2
        assert await w.finish(consumer.offset_for_time(queue(), later)) == 1


async def test_queues_in_balance(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []

    def listen(topic: str, all_: frozenset[MessageQueue], ours: frozenset[MessageQueue]) -> None:
        heard.append((topic, len(all_), len(ours)))

    async with pull_world(tmp_path, queue_count=4) as w, w.classic() as one, w.classic() as other:
        one.register_queue_listener("T", listen)
        await w.finish(one.start())
        await w.until(lambda: len(one.queues_in_balance("T")) == 4)
        await w.finish(other.start())
        assert other.queues_in_balance("T") == frozenset()
        other.register_queue_listener("T")
        await w.until(lambda: len(other.queues_in_balance("T")) == 2)
        await w.until(lambda: len(one.queues_in_balance("T")) == 2)
        assert not one.queues_in_balance("T") & other.queues_in_balance("T")
        assert heard == [("T", 4, 4), ("T", 4, 2)]


async def test_a_message_sent_back_comes_among_the_retries(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.classic() as consumer:
        await w.send(b"again")
        await w.finish(consumer.start())
        [message] = (await w.finish(consumer.pull(queue(), 0))).messages
        await w.finish(consumer.send_message_back(message, 1))
        await w.clock.advance(seconds=5)
        retries = MessageQueue(topic="%RETRY%g", broker_name="broker-a", queue_id=0)
        result = await w.finish(consumer.pull(retries, 0))
        [again] = result.messages
        assert (again.body, again.topic, again.reconsume_times) == (b"again", "T", 1)


async def test_retries_in_a_namespace_show_the_topic_of_the_application(tmp_path: Path) -> None:
    async with (
        pull_world(tmp_path, topic="ns%T") as w,
        w.classic("g", w.options(namespace="ns")) as consumer,
    ):
        await w.send(b"again", topic="ns%T")
        await w.finish(consumer.start())
        [message] = (await w.finish(consumer.pull(queue(), 0))).messages
        assert message.topic == "T"
        await w.finish(consumer.send_message_back(message, 1))
        await w.clock.advance(seconds=5)
        retries = MessageQueue(topic="%RETRY%g", broker_name="broker-a", queue_id=0)
        [again] = (await w.finish(consumer.pull(retries, 0))).messages
        assert (again.topic, again.record.topic) == ("T", "%RETRY%ns%g")


async def test_the_schedule_calls_for_each_queue_of_ours(tmp_path: Path) -> None:
    found: list[tuple[int, bytes]] = []
    failures = 0

    async def pull(of: MessageQueue, task: PullTask) -> None:
        nonlocal failures
        offset = await task.consumer.fetch_consume_offset(of) or 0
        result = await task.consumer.pull(of, offset)
        found.extend((of.queue_id, body) for body in bodies(result.messages))
        task.consumer.update_consume_offset(of, result.next_offset)
        task.next_delay = 0.05
        if of.queue_id == 1 and failures == 0:
            failures += 1
            raise ValueError("a mistake in the callback")

    async with pull_world(tmp_path, queue_count=2) as w:
        consumer = PullConsumer("g", w.options(), runtime=w.runtime)
        schedule = PullSchedule(consumer).register("T", pull)
        await w.finish(schedule.start())
        try:
            for queue_id in (0, 1):
                await w.send(b"x", b"y", queue_id=queue_id)
            await w.until(lambda: len(found) == 4)
            assert sorted(found) == [(0, b"x"), (0, b"y"), (1, b"x"), (1, b"y")]
            assert failures == 1
            assert set(schedule._running) == {queue(0), queue(1)}
        finally:
            await w.finish(schedule.stop())
        assert (await w.committed("g", 0), await w.committed("g", 1)) == (2, 2)


async def test_the_schedule_goes_on_when_what_a_callback_waits_for_is_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[MessageQueue] = []

    async def wait_in_vain(of: MessageQueue, task: PullTask) -> None:
        called.append(of)
        gone = asyncio.get_running_loop().create_future()
        gone.cancel()
        await gone

    async with pull_world(tmp_path) as w:
        consumer = PullConsumer("g", w.options(), runtime=w.runtime)
        schedule = PullSchedule(consumer).register("T", wait_in_vain)
        await w.finish(schedule.start())
        try:
            await w.until(lambda: len(called) == 3)
        finally:
            await w.finish(schedule.stop())
    assert "was cancelled" in caplog.text


async def test_a_callback_that_ends_its_task_is_called_when_queues_are_shared_anew(
    tmp_path: Path,
) -> None:
    called: list[int] = []

    async def end(of: MessageQueue, task: PullTask) -> None:
        called.append(of.queue_id)
        running = asyncio.current_task()
        assert running is not None
        running.cancel()
        await asyncio.sleep(0)

    async with pull_world(tmp_path) as w:
        consumer = PullConsumer("g", w.options(), runtime=w.runtime)
        schedule = PullSchedule(consumer).register("T", end)
        await w.finish(schedule.start())
        try:
            await w.until(lambda: called == [0])
            await w.world.add_topic("T", 2)
            await w.until(lambda: sorted(called) == [0, 0, 1])
        finally:
            await w.finish(schedule.stop())


async def test_the_schedule_of_a_broadcasting_consumer(tmp_path: Path) -> None:
    called: set[MessageQueue] = set()
    async with pull_world(tmp_path, queue_count=3) as w:
        consumer = PullConsumer(
            "g",
            w.options(),
            message_model=MessageModel.BROADCASTING,
            offset_folder=tmp_path,
            runtime=w.runtime,
        )

        def note(of: MessageQueue, task: PullTask) -> None:
            called.add(of)
            task.next_delay = 5

        schedule = PullSchedule(consumer).register("T", note)
        await w.finish(schedule.start())
        await w.until(lambda: len(called) == 3)
        await w.finish(schedule.stop())
        assert called == {queue(i) for i in range(3)}
