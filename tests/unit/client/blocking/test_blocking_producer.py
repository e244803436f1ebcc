"""The blocking producer on a real cluster: all ways to send, transactions, requests, threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from skylark import (
    CannotReplyError,
    ClientError,
    ClientOptions,
    ClientStateError,
    ConsumeFromWhere,
    InvalidMessageError,
    Message,
    MessageExt,
    MessageQueue,
    RequestReplyTimeoutError,
    SendContext,
    SendStatus,
    TooManyRequestsError,
    TxState,
    select_by_hash,
)
from skylark.client.core.service_state import ServiceState
from skylark.sync import LitePullConsumer, Producer, PushConsumer, TransactionResult

WAIT_S = 20.0
_groups = itertools.count()


def read(topic: str, count: int, options: ClientOptions) -> list[MessageExt]:
    """The first messages of a topic."""
    found: list[MessageExt] = []
    group = f"reader-{next(_groups)}"
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    with LitePullConsumer(group, options, consume_from_where=first).subscribe(topic) as consumer:
        while len(found) < count:
            batch = consumer.poll(WAIT_S)
            assert batch, f"{len(found)} of {count} messages came"
            found += batch
    return found


def bodies(topic: str, count: int, options: ClientOptions) -> list[bytes]:
    return sorted(message.body for message in read(topic, count, options))


def test_every_way_to_send(options: ClientOptions) -> None:
    with Producer("senders", options) as producer:
        sent = producer.send(Message("Ways", b"1", tag="A", keys=["k"]))
        assert sent.status is SendStatus.SEND_OK
        assert producer.submit(Message("Ways", b"2")).result(WAIT_S).queue.topic == "Ways"
        batch = producer.send_batch([Message("Ways", b"3"), Message("Ways", b"4")])
        assert [each.queue_offset - batch[0].queue_offset for each in batch] == [0, 1]
        producer.send_oneway(Message("Ways", b"5"))
        queue = producer.queues("Ways")[1]
        assert producer.send(Message("Ways", b"6"), queue=queue).queue == queue
        same = {producer.send(Message("Ways", b"7"), shard="x").queue for _ in range(3)}
        assert len(same) == 1
    assert producer.state is ServiceState.SHUTDOWN_ALREADY
    assert bodies("Ways", 9, options) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"7", b"7"]


def test_a_selector_runs_in_the_thread_that_sends(options: ClientOptions) -> None:
    seen: list[threading.Thread] = []

    def last(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        seen.append(threading.current_thread())
        assert producer.queues(message.topic) == list(queues)  # it may call the producer
        return queues[int(arg)]

    with Producer("selecting", options) as producer:
        message = Message("Selected", b"x")
        wanted = producer.queues("Selected") if producer.send(message) else []
        assert producer.send(message, selector=last, selector_arg=-1).queue == wanted[-1]
        assert producer.send_batch([message], selector=last, selector_arg=0)[0].queue == wanted[0]
        assert (
            producer.submit(message, selector=last, selector_arg=1).result(WAIT_S).queue
            == (wanted[1])
        )
        hashed = producer.send(message, selector=select_by_hash, selector_arg="order-1")
        assert hashed.queue == producer.send(message, shard="order-1").queue
        with pytest.raises(ClientError, match="one of queue, selector and shard"):
            producer.send(message, selector=last, shard="x")
    assert set(seen) == {threading.current_thread()}


def test_many_threads_share_one_producer(options: ClientOptions) -> None:
    with Producer("threads", options) as producer:
        producer.send(Message("Threads", b"first"))

        def send(number: int) -> str:
            return producer.send(Message("Threads", b"%d" % number)).msg_id

        with ThreadPoolExecutor(16) as pool:
            ids = set(pool.map(send, range(400)))
    assert len(ids) == 400
    assert bodies("Threads", 401, options) == sorted([b"first", *(b"%d" % n for n in range(400))])


def test_submitted_messages_get_their_outcome_by_flush_and_stop(options: ClientOptions) -> None:
    producer = Producer("submitting", options, linger=20.0)
    producer.start()
    producer.send_batch([Message("Submitted", b"x")])  # which does not wait for company
    futures = [producer.submit(Message("Submitted", b"x"), shard=n % 3) for n in range(50)]
    producer.flush()
    assert all(future.done() for future in futures)
    more = [producer.submit(Message("Submitted", b"x")) for _ in range(50)]
    producer.stop()
    for future in futures + more:
        assert future.result(0).status is SendStatus.SEND_OK
        assert not future.cancel()
    assert len(read("Submitted", 101, options)) == 101


def test_too_many_under_way(options: ClientOptions) -> None:
    with Producer("full", options, linger=30.0, pending_max=2) as producer:
        producer.send_batch([Message("Full", b"x")])
        futures = [producer.submit(Message("Full", b"x")) for _ in range(2)]
        with pytest.raises(TooManyRequestsError, match="2 requests of 2 bytes are in flight"):
            producer.submit(Message("Full", b"x"), timeout=0.05)
        producer.flush()
        assert [future.result(0).status for future in futures] == [SendStatus.SEND_OK] * 2
        producer.submit(Message("Full", b"x"))


def test_errors_of_a_submitted_message_are_in_its_future(options: ClientOptions) -> None:
    with Producer("failing", options) as producer:
        with pytest.raises(InvalidMessageError):
            producer.submit(Message("T", b"")).result(WAIT_S)
        with pytest.raises(InvalidMessageError):
            producer.send(Message("T", b""))


def test_start_and_stop_may_be_repeated_from_any_thread(options: ClientOptions) -> None:
    producer = Producer("lifespan", options)
    with pytest.raises(ClientStateError, match="has not been started"):
        producer.send(Message("T", b"x"))
    with pytest.raises(ClientStateError, match="has not been started"):
        producer.submit(Message("T", b"x"))
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda _: producer.start(), range(8)):
            pass
        assert producer.state is ServiceState.RUNNING
        for _ in pool.map(lambda _: producer.stop(), range(8)):
            pass
    assert repr(producer) == "<sync Producer lifespan SHUTDOWN_ALREADY>"
    for use in (producer.start, lambda: producer.send(Message("T", b"x"))):
        with pytest.raises(ClientStateError, match="has been stopped"):
            use()
    never = Producer("never", options)
    never.stop()
    with pytest.raises(ClientStateError, match="has been stopped"):
        never.start()


def test_a_hook_cannot_call_clients(options: ClientOptions) -> None:
    caught: list[Exception] = []

    class Hook:
        def before_send(self, context: SendContext) -> None:
            try:
                producer.send(context.message)
            except ClientStateError as error:
                caught.append(error)

    with Producer("hooked", options, hooks=[Hook()]) as producer:
        producer.send(Message("Hooked", b"x"))
    assert "would wait for itself" in str(caught[0])


# ---- transactions --------------------------------------------------------------------------------


def test_transactions_as_blocks(options: ClientOptions) -> None:
    with Producer("blocks", options) as producer:
        producer.send(Message("Blocks", b"plain"))
        early = producer.transaction(Message("Blocks", b"too early"))
        with pytest.raises(ClientError, match="register a checker"), early:
            pytest.fail("nothing was sent")

        @producer.transaction_checker
        def check(message: MessageExt) -> TxState:
            return TxState.ROLLBACK

        with producer.transaction(Message("Blocks", b"good")) as good:
            assert good.sent.msg_id == good.id
        assert good.state is TxState.COMMIT
        bad = producer.transaction(Message("Blocks", b"bad"))
        with pytest.raises(ZeroDivisionError), bad:
            divmod(1, 0)
        outcome = bad.state
        assert outcome is TxState.ROLLBACK
        with producer.transaction(Message("Blocks", b"dropped")) as dropped:
            dropped.rollback()
        producer.send(Message("Blocks", b"plain"))
    assert bodies("Blocks", 3, options) == [b"good", b"plain", b"plain"]
    with pytest.raises(ClientStateError, match="has been stopped"):
        producer.transaction(Message("Blocks", b"x"))


def test_a_transaction_listener_runs_in_a_thread(options: ClientOptions) -> None:
    class Listener:
        def __init__(self) -> None:
            self.thread: threading.Thread | None = None

        def execute(self, message: Message, arg: object) -> TxState:
            self.thread = threading.current_thread()
            assert producer.send(Message("Listened", b"inside")).status is SendStatus.SEND_OK
            return TxState.COMMIT if arg == "good" else TxState.ROLLBACK

        def check(self, message: MessageExt) -> TxState:
            return TxState.COMMIT

    listener = Listener()
    with Producer("listened", options, transaction_listener=listener) as producer:
        done: TransactionResult = producer.send_in_transaction(Message("Listened", b"x"), "good")
        assert done.state is TxState.COMMIT
        undone = producer.send_in_transaction(Message("Listened", b"y"), "bad")
        assert undone.state is TxState.ROLLBACK
    assert listener.thread is not None
    assert listener.thread.daemon
    assert bodies("Listened", 3, options) == [b"inside", b"inside", b"x"]


def test_coroutine_functions_are_refused(options: ClientOptions) -> None:
    class Listener:
        async def execute(self, message: Message, arg: object) -> TxState:
            return TxState.COMMIT

        async def check(self, message: MessageExt) -> TxState:
            return TxState.COMMIT

    with pytest.raises(ClientError, match=r"coroutine function: give skylark\.sync plain"):
        Producer("refused", options).transaction_checker(Listener().check)  # type: ignore[type-var]
    with pytest.raises(ClientError, match="execute is a coroutine function"):
        Producer("refused", options, transaction_listener=Listener())  # type: ignore[arg-type]


# ---- request and reply ---------------------------------------------------------------------------


def test_request_and_reply(options: ClientOptions) -> None:
    first = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    server = PushConsumer("servers", options, consume_from_where=first)
    with Producer("asking", options) as producer:

        @server.subscribe("Asked")
        def answer(message: MessageExt) -> None:
            if message.body == b"hello":
                producer.reply(message, message.body.upper())

        for topic in ("Asked", "AskedInVain", "NotAsked"):
            producer.send(Message(topic, b"x"))
        with server:
            assert producer.request(Message("Asked", b"hello"), timeout=WAIT_S).body == b"HELLO"
        with pytest.raises(RequestReplyTimeoutError) as caught:
            producer.request(Message("AskedInVain", b"x"), timeout=0.2)
        assert isinstance(caught.value, TimeoutError)
        plain = read("NotAsked", 1, options)[0]
        with pytest.raises(CannotReplyError):
            producer.reply(plain, b"x")


def test_a_delayed_message_can_be_recalled(options: ClientOptions) -> None:
    with Producer("recalling", options) as producer:
        sent = producer.send(Message("Recalled", b"x"), delay=timedelta(minutes=5))
        assert sent.recall_handle is not None
        assert producer.recall("Recalled", sent.recall_handle) == sent.msg_id


def test_a_message_without_a_body_is_refused(options: ClientOptions) -> None:
    nothing: Any = None
    with Producer("empty", options) as producer:
        with pytest.raises(InvalidMessageError, match="body is NoneType, not bytes"):
            producer.submit(Message("T", nothing)).result(WAIT_S)
        with pytest.raises(TypeError, match="unexpected keyword argument 'delay_seconds'"):
            producer.send(Message("T", b"x"), delay_seconds=nothing)  # type: ignore[call-arg]
