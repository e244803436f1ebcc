"""The blocking push consumer on a real cluster: handlers in threads, life, and ``run``."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from skylark import (
    ClientError,
    ClientOptions,
    ClientStateError,
    ConsumeFromWhere,
    Message,
    MessageExt,
    RetryLater,
)
from skylark.client.core.service_state import ServiceState
from skylark.sync import Producer, PushConsumer
from tests.unit.client.blocking.programs import TIMEOUT_S, environ

WAIT_S = 20.0
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def test_handlers_run_in_threads_and_may_call_clients(options: ClientOptions) -> None:
    seen: queue.SimpleQueue[tuple[bytes, bool]] = queue.SimpleQueue()
    consumer = PushConsumer("pushed", options, consume_from_where=FIRST)
    with Producer("pushing", options) as producer:

        @consumer.subscribe("Pushed", tags="A || B")
        def handle(message: MessageExt) -> None:
            if message.tag == "A":
                producer.send(Message("Pushed", b"again", tag="B"))
            seen.put((message.body, threading.current_thread().daemon))

        producer.send(Message("Pushed", b"first", tag="A"))
        with consumer:
            found = [seen.get(timeout=WAIT_S) for _ in range(2)]
            # The queue of retries is taken up a moment after those of the topic.
            assert {each.topic for each in consumer.assignment} >= {"Pushed"}
            assert consumer.in_flight in (0, 1)
            assert consumer.lag >= 0
            assert consumer.client_id in repr(consumer)
    assert sorted(found) == [(b"again", True), (b"first", True)]
    assert consumer.state is ServiceState.SHUTDOWN_ALREADY
    consumer.stop()


def test_a_message_that_fails_comes_again(options: ClientOptions) -> None:
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    consumer = PushConsumer("again", options, consume_from_where=FIRST)

    def handle(message: MessageExt) -> None:
        seen.put(message.reconsume_times)
        if not message.reconsume_times:
            raise RetryLater(level=1)

    assert consumer.subscribe("Again", handle) is handle
    with Producer("failing", options) as producer:
        producer.send(Message("Again", b"x"))
    with consumer:
        assert [seen.get(timeout=WAIT_S) for _ in range(2)] == [0, 1]


def test_batches_in_order(options: ClientOptions) -> None:
    seen: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    consumer = PushConsumer("ordered", options, consume_from_where=FIRST)

    @consumer.subscribe("Ordered", orderly=True, batch=8)
    def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            seen.put(message.body)

    with Producer("ordering", options) as producer:
        for number in range(20):
            producer.send(Message("Ordered", b"%d" % number), shard="one")
    with consumer:
        assert [seen.get(timeout=WAIT_S) for _ in range(20)] == [b"%d" % n for n in range(20)]
    with pytest.raises(ClientStateError, match="has been stopped"):
        consumer.reset_to(datetime(2020, 1, 1, tzinfo=UTC))


def test_a_handler_cannot_stop_its_own_consumer(options: ClientOptions) -> None:
    caught: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    consumer = PushConsumer("stopping", options, consume_from_where=FIRST)

    @consumer.subscribe("Stopping")
    def handle(message: MessageExt) -> None:
        try:
            consumer.stop()
        except ClientStateError as error:
            caught.put(error)

    with Producer("stopping", options) as producer:
        producer.send(Message("Stopping", b"x"))
    with consumer:
        assert "wait for the end of its own consumer" in str(caught.get(timeout=WAIT_S))


def test_queue_listeners_run_in_a_thread(options: ClientOptions) -> None:
    told: queue.SimpleQueue[tuple[str, int, bool]] = queue.SimpleQueue()

    def listener(topic: str, everything: frozenset[Any], ours: frozenset[Any]) -> None:
        told.put((topic, len(ours), bool(consumer.assignment <= everything | ours)))

    consumer = PushConsumer("told", options, queue_listener=listener)
    consumer.subscribe("Told", lambda message: None)
    with Producer("telling", options) as producer:
        producer.send(Message("Told", b"x"))
    with consumer:
        topics = {told.get(timeout=WAIT_S)[0] for _ in range(2)}
        (listening,) = [each for each in threading.enumerate() if each.name == "told-listener"]
    assert topics == {"Told", "%RETRY%told"}
    listening.join(WAIT_S)
    assert not listening.is_alive()


def test_subscriptions_change_while_it_runs(options: ClientOptions) -> None:
    seen: queue.SimpleQueue[str] = queue.SimpleQueue()
    consumer = PushConsumer("changing", options, consume_from_where=FIRST)
    consumer.subscribe("Before", lambda message: seen.put(message.topic))
    with Producer("changing", options) as producer:
        for topic in ("Before", "After"):
            producer.send(Message(topic, b"x"))
    with consumer:
        assert seen.get(timeout=WAIT_S) == "Before"
        consumer.subscribe("After", lambda message: seen.put(message.topic))
        assert seen.get(timeout=WAIT_S) == "After"
        consumer.suspend()
        consumer.resume()
        consumer.unsubscribe("After")


def test_coroutine_functions_are_refused(options: ClientOptions) -> None:
    consumer = PushConsumer("refused", options)
    with pytest.raises(ClientError, match=r"plain functions, or use skylark\.aio"):

        @consumer.subscribe("T")
        async def handle(message: MessageExt) -> None: ...

    with pytest.raises(ClientError, match="subscribes nothing"):
        consumer.start()


RUNNING = """
import threading
from skylark import ConsumeFromWhere
from skylark.sync import PushConsumer

consumer = PushConsumer(
    "run", consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, await_termination=20
)
go_on = threading.Event()

@consumer.subscribe("Run")
def handle(message):
    print("begun", flush=True)
    go_on.wait(0.5)            # the signal comes meanwhile, and waits for this
    print("done", flush=True)

consumer.run()
print(consumer.state.value, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_drains_on_a_signal(options: ClientOptions, namesrv: str, number: int) -> None:
    topic = f"Run{number}"
    with Producer("running", options) as producer:
        producer.send(Message(topic, b"x"))
    program = RUNNING.replace('"Run"', f'"{topic}"').replace('"run"', f'"run{number}"')
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        env=environ(namesrv),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, output, errors) == (0, "done\nSHUTDOWN_ALREADY\n", "")


def test_run_in_another_thread_leaves_signals_alone(options: ClientOptions) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    began = threading.Event()
    consumer = PushConsumer("aside", options, consume_from_where=FIRST)
    consumer.subscribe("Aside", lambda message: began.set())
    with Producer("aside", options) as producer:
        producer.send(Message("Aside", b"x"))
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    assert began.wait(WAIT_S)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    consumer.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()
