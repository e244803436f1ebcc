"""The blocking pop consumers on a real cluster."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor

import pytest

from skylark import (
    ClientOptions,
    ClientStateError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    ReceiptExpiredError,
)
from skylark.client.core.service_state import ServiceState
from skylark.sync import PopConsumer, PoppedMessage, Producer, PushConsumer

WAIT_S = 20.0
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def send(options: ClientOptions, topic: str, *bodies: bytes) -> None:
    with Producer("sending", options) as producer:
        for body in bodies:
            producer.send(Message(topic, body), shard="one")


def consumer_of(options: ClientOptions, topic: str, invisible: float = 30) -> PopConsumer:
    consumer = PopConsumer(f"of-{topic}", options, invisible=invisible, consume_from_where=FIRST)
    return consumer.subscribe(topic)


def receive(consumer: PopConsumer, count: int) -> list[PoppedMessage]:
    found: list[PoppedMessage] = []
    while len(found) < count:
        more = consumer.receive(count - len(found), wait=WAIT_S)
        assert more
        found += more
    return found


def test_messages_are_acknowledged_one_by_one_and_in_lists(options: ClientOptions) -> None:
    send(options, "PopList", b"a", b"b", b"c", b"d")
    with consumer_of(options, "PopList") as consumer:
        found = receive(consumer, 4)
        assert isinstance(found[0], PoppedMessage)
        assert {each.body for each in found} == {b"a", b"b", b"c", b"d"}
        found[0].ack()
        consumer.ack(found[1:3])
        found[3].extend(60)
        found[3].nack(delay=1)
        (again,) = receive(consumer, 1)
        assert (again.body, again.attempt) == (found[3].body, 2)
        again.ack()
        assert consumer.receive(wait=0) == []
        with pytest.raises(ClientStateError, match="was given back"):
            found[3].ack()
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY
    with pytest.raises(ClientStateError, match="has been stopped"):
        consumer.receive()


def test_a_late_receipt_raises(options: ClientOptions) -> None:
    send(options, "PopLate", b"a")
    with consumer_of(options, "PopLate", invisible=1) as consumer:
        (message,) = receive(consumer, 1)
        (again,) = receive(consumer, 1)  # the time is over
        with pytest.raises(ReceiptExpiredError) as raised:
            message.ack()
        assert raised.value.messages == (message,)
        assert again.attempt == 2


def test_a_loop_never_acknowledges_by_itself(options: ClientOptions) -> None:
    send(options, "PopLoop", b"a", b"b", b"c")
    seen = []
    with consumer_of(options, "PopLoop") as consumer:
        for message in consumer:
            seen.append(message.body)
            if message.body == b"a":
                message.ack()
            if len(seen) == 2:
                break
        # What the loop had received and not handed out is for the next call.
        seen += [each.body for each in receive(consumer, 1)]
    assert seen == [b"a", b"b", b"c"]


def test_threads_share_a_consumer(options: ClientOptions) -> None:
    bodies = [b"%d" % number for number in range(200)]
    send(options, "PopThreads", *bodies)
    done: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def work() -> None:
        while done.qsize() < len(bodies):
            for message in consumer.receive(8, wait=0.5):
                message.ack()
                done.put(message.body)

    with consumer_of(options, "PopThreads") as consumer, ThreadPoolExecutor(4) as threads:
        for ended in [threads.submit(work) for _ in range(4)]:
            ended.result(WAIT_S)
    assert sorted(done.get() for _ in bodies) == sorted(bodies)
    assert done.empty()


def test_a_push_consumer_pops_for_handlers_in_threads(options: ClientOptions) -> None:
    seen: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    consumer = PushConsumer(
        "pop-pushed", options, mode="pop", set_mode=True, consume_from_where=FIRST
    )

    @consumer.subscribe("PopPushed")
    def handle(message: MessageExt) -> None:
        seen.put(message.body)

    send(options, "PopPushed", b"a", b"b")
    with consumer:
        assert sorted(seen.get(timeout=WAIT_S) for _ in range(2)) == [b"a", b"b"]
        assert {each.queue_id for each in consumer.assignment if each.topic == "PopPushed"} == {-1}
    assert consumer.stats.late == 0
