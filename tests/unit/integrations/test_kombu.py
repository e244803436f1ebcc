"""integrations/kombu.py: connections of kombu to a real broker; workers are in test_celery.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from kombu.exceptions import OperationalError

import skylark.integrations.kombu as transport
import skylark.testing
from skylark import ConfigError, Message
from skylark.client.core.instance_registry import instance_count
from skylark.core.names import IllegalNameError
from skylark.integrations.kombu import (
    BrokerUnavailableError,
    SkylarkTransport,
    due_ms,
    topic_of,
)
from skylark.sync import Admin, Producer
from skylark.testing import FaultAction, FaultPlan
from skylark.testing.thread_broker import ThreadBroker
from skylark.wire.codes import RequestCode

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadBroker]:
    before = instance_count()
    with skylark.testing.sync_broker() as made:
        yield made
    assert instance_count() == before


@pytest.fixture
def queue(broker: ThreadBroker) -> kombu.Queue:
    """A queue whose topic exists."""
    return kombu.Queue(broker.topic("tasks"))


Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(broker: ThreadBroker) -> Iterator[Connect]:
    made: list[kombu.Connection] = []

    def connect(**options: Any) -> kombu.Connection:
        url = f"skylark+rocketmq://{broker.namesrv}"
        made.append(kombu.Connection(url, transport_options=options))
        return made[-1]

    yield connect
    for connection in made:
        connection.release()


def send(connection: kombu.Connection, queue: kombu.Queue, *bodies: object, **how: Any) -> None:
    for body in bodies:
        connection.Producer().publish(body, routing_key=queue.name, declare=[queue], **how)


def take(connection: kombu.Connection, queues: list[kombu.Queue], count: int) -> list[Any]:
    """The next messages, not acknowledged; their consumer is cancelled."""
    found: list[Any] = []
    deadline = time.monotonic() + TIMEOUT_S
    with connection.Consumer(queues, on_message=found.append):
        while len(found) < count:
            connection.drain_events(timeout=max(0.0, deadline - time.monotonic()))
    assert len(found) == count
    return found


def size(connection: kombu.Connection, queue: kombu.Queue) -> int:
    found: int = queue(connection.default_channel).queue_declare(passive=True).message_count
    return found


def wait_for_size(connection: kombu.Connection, queue: kombu.Queue, wanted: int) -> None:
    """Acks reach the broker a moment later."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := size(connection, queue)) != wanted:
        assert time.monotonic() < deadline, f"{found} messages"
        time.sleep(0.01)


# ---- names and URLs ------------------------------------------------------------------------------


def test_a_queue_is_a_topic_whatever_its_name() -> None:
    assert topic_of("celery") == "celery"
    assert topic_of("mails.high/ü", "shop-") == "shop-mails%2Ehigh%2F%C3%BC"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("skylark+rocketmq://one:1", "skylark+rocketmq://one:1"),
        ("skylark+rocketmq://one,two:2/shop", "skylark+rocketmq://one:9876,two:2/shop"),
        ("skylark+rocketmq://key:se%2Fcret@one", "skylark+rocketmq://key:***@one:9876"),
        ("skylark+rocketmq://", "skylark+rocketmq://env:9"),
    ],
)
def test_a_url_names_name_servers(url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYLARK_NAMESRV", "env:9")
    assert kombu.Connection(url).as_uri() == shown
    assert kombu.Connection(url).clone().as_uri() == shown


def test_after_a_failure_kombu_goes_on_with_the_next_url() -> None:
    first, second = (f"skylark+rocketmq://key:se%2Fcret@{name}:1/shop" for name in ("one", "two"))
    connection = kombu.Connection([first, second])
    connection.maybe_switch_next()
    assert connection.as_uri(include_password=True) == second
    connection.maybe_switch_next()
    assert connection.as_uri(include_password=True) == first


def test_a_time_that_is_no_time_is_none() -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    assert due_ms({"headers": {"task": "t", "eta": due.isoformat()}}) == due.timestamp() * 1000
    for eta in (None, 5, "soon", "2030-01-01T00:00:00"):
        assert due_ms({"headers": {"task": "t", "eta": eta}}) is None
    assert due_ms({"headers": {"eta": due.isoformat()}}) is None  # not of Celery
    assert due_ms({}) is None


# ---- messages ------------------------------------------------------------------------------------


def test_messages_come_and_are_acknowledged(connect: Connect, queue: kombu.Queue) -> None:
    connection = connect()
    send(connection, queue, {"number": 1}, "text", headers={"kind": "test"})
    assert size(connection, queue) == 2
    found = take(connection, [queue], 2)
    assert [each.payload for each in found] in ([{"number": 1}, "text"], ["text", {"number": 1}])
    assert found[0].headers["kind"] == "test"
    assert not found[0].delivery_info["redelivered"]
    for message in found:
        message.ack()
    wait_for_size(connection, queue, 0)


def test_exchanges_route_by_their_bindings(connect: Connect, broker: ThreadBroker) -> None:
    connection = connect()
    exchange = kombu.Exchange("mails", "topic")
    high = kombu.Queue(broker.topic("high"), exchange, routing_key="mail.high.#")
    every = kombu.Queue(broker.topic("every"), exchange, routing_key="mail.#")
    producer = connection.Producer(exchange=exchange)
    producer.publish(1, routing_key="mail.high.now", declare=[high, every])
    producer.publish(2, routing_key="mail.low")
    producer.publish(3, routing_key="nobody.listens")
    found = take(connection, [high, every], 3)
    assert sorted((each.payload, each.delivery_info["routing_key"]) for each in found) == [
        (1, "mail.high.now"),
        (1, "mail.high.now"),
        (2, "mail.low"),
    ]


def test_a_requeued_message_comes_again_and_a_rejected_one_does_not(
    connect: Connect, queue: kombu.Queue
) -> None:
    connection = connect()
    send(connection, queue, "again")
    (message,) = take(connection, [queue], 1)
    message.requeue()
    (message,) = take(connection, [queue], 1)
    assert message.delivery_info["redelivered"]
    channel = message.channel
    channel.basic_recover(requeue=True)
    (message,) = take(connection, [queue], 1)
    message.reject()
    wait_for_size(connection, queue, 0)
    with connection.Consumer([queue]), pytest.raises(TimeoutError):
        connection.drain_events(timeout=1.5)


def test_the_prefetch_count_limits_what_is_held(
    connect: Connect, queue: kombu.Queue, broker: ThreadBroker
) -> None:
    connection = connect()
    second = kombu.Queue(broker.topic("tasks"))
    send(connection, queue, *range(4))
    send(connection, second, *range(4))
    found: list[Any] = []
    with connection.Consumer([queue, second], on_message=found.append, prefetch_count=3):
        while len(found) < 3:
            connection.drain_events(timeout=TIMEOUT_S)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.2)
        assert len(found) == 3
        done = 0
        while done < 8:
            found.pop().ack()
            done += 1
            if done <= 5:
                connection.drain_events(timeout=TIMEOUT_S)
    for each in (queue, second):
        wait_for_size(connection, each, 0)


def test_without_acknowledgements_a_message_is_done_when_it_is_delivered(
    connect: Connect, queue: kombu.Queue
) -> None:
    connection = connect()
    send(connection, queue, 1, 2)
    found: list[Any] = []
    with connection.Consumer([queue], on_message=found.append, no_ack=True):
        while len(found) < 2:
            connection.drain_events(timeout=TIMEOUT_S)
    wait_for_size(connection, queue, 0)


def test_a_simple_queue_gets_one_by_one(connect: Connect, queue: kombu.Queue) -> None:
    connection = connect()
    with closing(connection.SimpleQueue(queue.name)) as simple:
        simple.put({"a": 1})
        assert simple.qsize() == 1
        message = simple.get(timeout=TIMEOUT_S)
        assert message.payload == {"a": 1}
        message.ack()
        wait_for_size(connection, queue, 0)
        with pytest.raises(simple.Empty):
            simple.get(block=False)


def test_purge_drops_what_waits(connect: Connect, queue: kombu.Queue) -> None:
    connection = connect()
    send(connection, queue, *range(40))
    assert queue(connection.default_channel).purge() == 40
    assert size(connection, queue) == 0


def test_a_message_of_others_becomes_a_dead_letter(
    connect: Connect, queue: kombu.Queue, broker: ThreadBroker, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(max_reconsume_times=0)
    with Producer("others", broker.options) as producer:
        producer.send(Message(queue.name, b"no envelope"))
    send(connection, queue, "good")
    (message,) = take(connection, [queue], 1)
    assert message.payload == "good"
    message.ack()
    with connection.Consumer([queue]), pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.2)
    assert f"a message in topic {queue.name} is not from kombu" in caplog.text
    wait_for_size(connection, queue, 0)
    connection.release()
    with Admin(broker.options) as admin:
        (letter,) = admin.dlq.messages(f"workers-{queue.name}")
        assert letter.body == b"no envelope"


# ---- holding and giving back ---------------------------------------------------------------------


def test_a_connection_that_is_closed_returns_its_messages(
    connect: Connect, queue: kombu.Queue
) -> None:
    holder, other = connect(), connect()
    send(holder, queue, "held")
    (held,) = take(holder, [queue], 1)
    holder.release()
    (message,) = take(other, [queue], 1)
    assert message.payload == "held"
    with pytest.raises(BrokerUnavailableError):
        held.ack()
    message.ack()
    wait_for_size(other, queue, 0)


def test_a_channel_that_is_closed_returns_its_messages(
    connect: Connect, queue: kombu.Queue
) -> None:
    connection = connect()
    send(connection, queue, 1, 2)
    found: list[Any] = []
    channel = connection.channel()
    with kombu.Consumer(channel, [queue], on_message=found.append):
        while len(found) < 2:
            connection.drain_events(timeout=TIMEOUT_S)
        channel.close()
    assert sorted(each.payload for each in take(connection, [queue], 2)) == [1, 2]


def test_a_callback_that_fails_does_not_lose_what_came_with_it(
    connect: Connect, queue: kombu.Queue
) -> None:
    connection = connect()
    send(connection, queue, *range(8))
    found: list[Any] = []

    def fail_once(message: Any) -> None:
        message.ack()
        found.append(message.payload)
        if len(found) == 1:
            raise LookupError("once")

    with connection.Consumer([queue], on_message=fail_once):
        with pytest.raises(LookupError):
            connection.drain_events(timeout=TIMEOUT_S)
        while len(found) < 8:
            connection.drain_events(timeout=TIMEOUT_S)
    assert sorted(found) == list(range(8))


# ---- time ----------------------------------------------------------------------------------------


def later(seconds: float) -> dict[str, str]:
    """Headers as Celery sets them for a countdown."""
    return {"task": "t", "eta": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()}


def received_after(connection: kombu.Connection, queue: kombu.Queue, headers: Any) -> float:
    """Send a task; how long before or after it was due it came."""
    send(connection, queue, "later", headers=headers)
    (message,) = take(connection, [queue], 1)
    message.ack()
    due = datetime.fromisoformat(headers["eta"])
    return (datetime.now(UTC) - due).total_seconds()


def stored(broker: ThreadBroker, topic: str) -> int:
    """How many messages ever came to a topic."""
    with Admin(broker.options) as admin:
        return sum(
            queue.broker_offset for queue in admin.groups.progress(f"workers-{topic}", topic).queues
        )


def test_a_task_for_later_is_kept_by_the_broker(
    connect: Connect, queue: kombu.Queue, broker: ThreadBroker
) -> None:
    assert received_after(connect(), queue, later(2)) > -1
    assert stored(broker, queue.name) == 1


def test_a_task_for_much_later_is_timed_in_steps(
    connect: Connect,
    queue: kombu.Queue,
    broker: ThreadBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "STEP_MS", 1_500)
    assert received_after(connect(), queue, later(6)) > -1
    assert stored(broker, queue.name) >= 2  # fewer and longer steps on a busy machine


def test_a_task_that_cannot_be_sent_for_its_next_step_waits_in_a_worker(
    connect: Connect,
    queue: kombu.Queue,
    broker: ThreadBroker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(transport, "STEP_MS", 1_500)
    connection = connect()
    send(connection, queue, "later", headers=later(3_000))
    broker.faults = FaultPlan(seed=1).chance(
        f"request.{RequestCode.SEND_MESSAGE_V2}", 1.0, action=FaultAction.CUT
    )
    try:
        (message,) = take(connection, [queue], 1)
    finally:
        broker.faults = None
    assert message.payload == "later"
    assert "waits here, as it cannot be sent again" in caplog.text
    message.ack()
    wait_for_size(connection, queue, 0)


def test_a_task_that_is_due_comes_at_once(connect: Connect, queue: kombu.Queue) -> None:
    assert received_after(connect(), queue, later(-100)) > 100
    assert received_after(connect(), queue, later(0.9)) < 20


def test_a_task_too_late_for_the_broker_waits_in_a_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with skylark.testing.sync_broker(timerMaxDelaySec=120) as broker:
        url = f"skylark+rocketmq://{broker.namesrv}"
        with kombu.Connection(url) as connection:
            queue = kombu.Queue(broker.topic("tasks"))
            assert received_after(connection, queue, later(3_000)) < -2_900
            assert received_after(connection, queue, later(4_000)) < -3_900
    (record,) = (each for each in caplog.records if each.levelno >= logging.WARNING)
    assert "the broker does not keep messages until" in record.message


# ---- errors --------------------------------------------------------------------------------------


def test_no_name_server_is_an_error_from_which_kombu_recovers() -> None:
    with kombu.Connection("skylark+rocketmq://127.0.0.1:1", connect_timeout=0.2) as connection:
        with pytest.raises(BrokerUnavailableError):
            connection.connect()
        with pytest.raises(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0)
    assert BrokerUnavailableError in connection.recoverable_connection_errors


def test_a_send_that_fails_is_repeated_by_kombu(
    connect: Connect, queue: kombu.Queue, broker: ThreadBroker
) -> None:
    connection = connect(client={"request_timeout": 0.5})
    producer = connection.Producer()
    producer.publish("before", routing_key=queue.name)
    broker.faults = plan = FaultPlan(seed=1)
    plan.chance(f"request.{RequestCode.SEND_MESSAGE_V2}", 1.0, action=FaultAction.CUT)
    with pytest.raises(BrokerUnavailableError):
        producer.publish("lost", routing_key=queue.name)

    def mend(error: Exception, interval: float) -> None:
        broker.faults = None

    publish = connection.ensure(producer, producer.publish, errback=mend, max_retries=3)
    publish("after", routing_key=queue.name)
    assert plan.hit_count > 1
    found = take(connection, [queue], 2)
    assert {each.payload for each in found} == {"before", "after"}


def test_a_receive_that_fails_ends_the_connection_and_another_goes_on(
    connect: Connect, queue: kombu.Queue, broker: ThreadBroker
) -> None:
    connection = connect()
    send(connection, queue, "there")
    broker.faults = FaultPlan(seed=1).chance(
        f"request.{RequestCode.POP_MESSAGE}", 1.0, action=FaultAction.CUT
    )
    try:
        with pytest.raises(BrokerUnavailableError):
            take(connection, [queue], 1)
    finally:
        broker.faults = None
    connection.collect()
    (message,) = take(connection, [queue], 1)
    assert message.payload == "there"


@pytest.mark.parametrize(
    "work",
    [
        lambda channel: kombu.Exchange("all", "fanout")(channel).declare(),
        lambda channel: kombu.Queue("mine", exclusive=True)(channel).declare(),
        lambda channel: kombu.Queue("mine", auto_delete=True)(channel).declare(),
        lambda channel: kombu.Queue("")(channel).queue_declare(),
    ],
)
def test_what_topics_cannot_do_is_refused(connect: Connect, work: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigError, match="does not support") as caught:
        work(connect().default_channel)
    assert "celery inspect" in str(caught.value)


def test_a_name_too_long_for_a_topic_is_refused_when_it_is_declared(connect: Connect) -> None:
    with pytest.raises(IllegalNameError):
        kombu.Queue("x" * 300)(connect().default_channel).declare()


def test_a_queue_that_does_not_exist_is_no_queue(connect: Connect) -> None:
    connection = connect()
    with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
        kombu.Queue("nowhere")(connection.default_channel).queue_declare(passive=True)


def test_a_message_without_a_bound_queue_is_refused(connect: Connect) -> None:
    with pytest.raises(ConfigError, match="no queue is bound to exchange 'mails' with 'a'"):
        connect().Producer(exchange=kombu.Exchange("mails")).publish(1, routing_key="a")


def test_green_threads_are_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "detect_environment", lambda: "gevent")
    with pytest.raises(ConfigError, match="does not run under gevent"):
        connect().connect()


def test_its_name_and_version_are_shown() -> None:
    made = SkylarkTransport(SimpleNamespace(transport_options={}))
    assert made.driver_name == "skylark"
    assert made.driver_version()
