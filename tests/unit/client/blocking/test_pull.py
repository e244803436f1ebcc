"""The blocking pull consumers and ``read_arrow`` on a real cluster."""

from __future__ import annotations

import queue
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skylark import (
    ClientError,
    ClientOptions,
    ClientStateError,
    ConfigError,
    ConsumeFromWhere,
    Message,
    MessageQueue,
)
from skylark.sync import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    PullSchedule,
    PullTask,
    read_arrow,
)
from tests.unit.client.blocking.interrupts import interrupt_results

WAIT_S = 20.0
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
COUNT = 40


def fill(topic: str, options: ClientOptions, count: int = COUNT) -> None:
    with Producer("filling", options) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd"))


def expected(count: int = COUNT) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


# ---- lite pull -----------------------------------------------------------------------------------


def test_poll_commit_and_go_on(options: ClientOptions) -> None:
    fill("Polled", options)
    found: list[bytes] = []
    consumer = LitePullConsumer("polled", options, auto_commit=False, consume_from_where=FIRST)
    with consumer.subscribe("Polled"):
        for batch in consumer.batches():
            found += [message.body for message in batch]
            consumer.commit(batch)
            assert consumer.committed(batch[-1].queue) == batch[-1].queue_offset + 1
            if len(found) == COUNT:
                break
        assert sorted(found) == expected()
        assert consumer.poll(timeout=0.05) == []
        committed = {each: consumer.committed(each) for each in consumer.assignment}
        assert sum(offset or 0 for offset in committed.values()) == COUNT
        assert committed == {each: consumer.max_offset(each) for each in committed}
        assert {consumer.min_offset(each) for each in committed} == {0}
    with LitePullConsumer("polled", options, auto_commit=False).subscribe("Polled") as again:
        assert again.poll(timeout=0.3) == []


def test_messages_one_by_one_by_tag(options: ClientOptions) -> None:
    fill("Tagged", options)
    found: list[bytes] = []
    consumer = LitePullConsumer("tagged", options, consume_from_where=FIRST)
    for message in consumer.subscribe("Tagged", "odd").__enter__():
        found.append(message.body)
        if len(found) == COUNT // 2:
            break
    consumer.stop()
    assert sorted(found) == sorted(b"%d" % number for number in range(1, COUNT, 2))
    with pytest.raises(ClientStateError, match="has been stopped"):
        iter(consumer)
    with pytest.raises(ClientStateError, match="has been stopped"):
        consumer.batches()


def test_assign_seek_pause(options: ClientOptions) -> None:
    fill("Assigned", options)
    consumer = LitePullConsumer("assigned", options, consume_from_where=FIRST)
    with consumer:
        (first, *rest) = sorted(consumer.fetch_queues("Assigned"))
        consumer.assign([first, *rest])
        assert consumer.assignment == {first, *rest}
        consumer.pause(rest)
        assert consumer.is_paused(rest[0])
        assert not consumer.is_paused(first)
        count = consumer.max_offset(first)
        consumer.seek(first, count - 1)
        while not (messages := [m for m in consumer.poll(WAIT_S) if m.queue == first]):
            pass
        assert [message.queue_offset for message in messages] == [count - 1]
        consumer.seek_to_end(first)
        consumer.seek_to_begin(first)
        with pytest.raises(ClientError, match="Seek offset illegal"):
            consumer.seek(first, count + 1)
        consumer.resume(rest)
        assert not consumer.is_paused(rest[0])
        past = datetime.now(UTC) - timedelta(days=1)
        assert consumer.offset_for_time(first, past) == 0
        with pytest.raises(ClientError, match="mutually exclusive"):
            consumer.subscribe("Assigned")


def test_an_interrupt_loses_no_messages(
    options: ClientOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill("InterruptedPoll", options, 3)
    found: list[bytes] = []
    consumer = LitePullConsumer("interrupted", options, auto_commit=False, consume_from_where=FIRST)
    with consumer.subscribe("InterruptedPoll"):
        with monkeypatch.context() as patched:
            interrupt_results(patched)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(WAIT_S)
            with pytest.raises(KeyboardInterrupt):
                next(iter(consumer))
            with pytest.raises(KeyboardInterrupt):
                next(consumer.batches())
        consumer.commit()
        while len(found) < 3:
            batch = consumer.poll(WAIT_S)
            assert batch
            found += [message.body for message in batch]
    assert sorted(found) == expected(3)


def test_a_listener_may_call_the_consumer(options: ClientOptions) -> None:
    fill("Heard", options)
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def listener(topic: str, everything: frozenset[Any], ours: frozenset[Any]) -> None:
        told.put(consumer.fetch_queues(topic) == everything == ours)

    consumer = LitePullConsumer("heard", options)
    consumer.on_queues_changed("Heard", lambda topic, queues: None)
    consumer.subscribe("Heard", listener=listener)
    with consumer:
        assert told.get(timeout=WAIT_S)
        consumer.unsubscribe("Heard")
        (listening,) = [each for each in threading.enumerate() if each.name == "heard-listener"]
    listening.join(WAIT_S)
    assert not listening.is_alive()


# ---- classic pull --------------------------------------------------------------------------------


def test_classic_pull(options: ClientOptions) -> None:
    fill("Classic", options)
    found: list[bytes] = []
    with PullConsumer("classic", options) as consumer:
        for each in sorted(consumer.fetch_queues("Classic")):
            offset = consumer.min_offset(each)
            while offset < consumer.max_offset(each):
                result = consumer.pull(each, offset, count=4)
                found += [message.body for message in result.messages]
                offset = result.next_offset
            consumer.update_consume_offset(each, offset)
            assert consumer.fetch_consume_offset(each) == offset
            consumer.update_consume_offset_to_broker(each, 1)
            assert consumer.fetch_consume_offset(each, from_store=True) == 1
        assert sorted(found) == expected()
        assert consumer.pull(each, 0, tags="neither").messages == []
        assert len(consumer.pull(each, 0, tags="even || odd", count=3).messages) == 3
        waited = consumer.pull_block_if_not_found(each, 0)
        consumer.send_message_back(waited.messages[0], delay_level=1)
        assert consumer.offset_for_time(each, 0) == 0


def test_a_schedule_calls_in_threads(options: ClientOptions) -> None:
    fill("Scheduled", options)
    found: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    consumer = PullConsumer("scheduled", options)
    schedule = PullSchedule(consumer)

    def callback(each: MessageQueue, task: PullTask) -> None:
        assert threading.current_thread().daemon
        assert task.consumer is consumer
        assert each in consumer.queues_in_balance("Scheduled")
        offset = consumer.fetch_consume_offset(each) or 0
        result = consumer.pull(each, offset)
        for message in result.messages:
            found.put(message.body)
        consumer.update_consume_offset(each, result.next_offset)
        task.next_delay = 0.01

    schedule.register("Scheduled", callback)
    with schedule:
        assert sorted(found.get(timeout=WAIT_S) for _ in range(COUNT)) == expected()
    with pytest.raises(ClientStateError, match="has been stopped"):
        consumer.pull(MessageQueue(topic="Scheduled", broker_name="broker-a", queue_id=0), 0)


# ---- Arrow ---------------------------------------------------------------------------------------


def test_read_arrow(options: ClientOptions) -> None:
    pytest.importorskip("pyarrow", reason="the extra arrow is not installed")
    fill("Arrow", options)
    batches = list(read_arrow("Arrow", options, columns=["body", "queueId"]))
    found = [body for batch in batches for body in batch.column("body").to_pylist()]
    assert sorted(found) == expected()
    with pytest.raises(ConfigError, match="start is earliest, latest, a time or offsets"):
        read_arrow("Arrow", options, start="soon")  # type: ignore[arg-type]
    for batch in read_arrow("Arrow", options):
        assert batch.num_rows
        break
