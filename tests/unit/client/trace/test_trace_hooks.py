"""Trace hooks: which records a send, a handler and a transaction leave."""

from __future__ import annotations

import msgspec
import pytest

from skylark.client.consumer.push.concurrent_settlement import ReturnType
from skylark.client.core.client_message import Message, MessageExt, SendResult, SendStatus, TxState
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.hooks import ConsumeContext, EndTransactionContext, SendContext
from skylark.client.producer.send_request import unique_id_generator
from skylark.client.trace.trace_dispatcher import TraceContext
from skylark.client.trace.trace_hooks import ConsumerTraceHook, ProducerTraceHook
from skylark.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    decode_traces,
    encode_trace,
)
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.message import encode_record, iter_records, pack_host
from skylark.wire.properties import encode_properties

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=3)
RESULT = SendResult(
    status=SendStatus.SEND_OK,
    msg_id="UNIQUE",
    offset_msg_id="OFFSET",
    queue=QUEUE,
    queue_offset=9,
    region_id="R",
)


class Sink:
    """Keeps what it gets."""

    def __init__(self, *, is_cloud: bool = False) -> None:
        self.topic = "RMQ_SYS_TRACE_TOPIC"
        self.is_cloud = is_cloud
        self.contexts: list[TraceContext] = []

    def append(self, context: TraceContext) -> bool:
        self.contexts.append(context)
        return True

    @property
    def records(self) -> list[Trace]:
        return [record for context in self.contexts for record in context.records]


def sent(message: Message, message_type: str = "Normal") -> SendContext:
    return SendContext(
        group="pg",
        message=message,
        queue=QUEUE,
        broker_address="127.0.0.1:10911",
        mode="SYNC",
        message_type=message_type,
    )


def received(*bodies: bytes, **properties: str) -> list[MessageExt]:
    return [
        MessageExt(
            next(
                iter_records(
                    encode_record(
                        topic="T",
                        body=body,
                        queue_id=3,
                        queue_offset=index,
                        log_offset=index,
                        born_host=pack_host("127.0.0.1", 1),
                        store_host=pack_host("127.0.0.1", 2),
                        born_timestamp=1,
                        store_timestamp=2,
                        reconsume_times=2,
                        properties=encode_properties(
                            {"UNIQ_KEY": f"ID-{body.decode()}", **properties}
                        ).encode(),
                    )
                )
            ),
            "a",
        )
        for index, body in enumerate(bodies)
    ]


def consumed(messages: list[MessageExt]) -> ConsumeContext:
    return ConsumeContext(group="cg", messages=messages, queue=QUEUE, client_id="c")


async def consumer_hook(sink: Sink, clock: VirtualClock) -> ConsumerTraceHook:
    ids = unique_id_generator(ClientOptions(client_ip="127.0.0.1"), clock)
    return ConsumerTraceHook(sink, clock, ids)


# ---- sends ---------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.38")
async def test_a_send_leaves_14_fields_and_null_for_no_tag() -> None:
    sink, clock = Sink(), VirtualClock()
    began_ms = clock.now_ms()
    hook, context = ProducerTraceHook(sink, clock), sent(Message("T", b"body"))
    hook.before_send(context)
    await clock.advance(seconds=0.007)
    context.result = RESULT
    hook.after_send(context)
    (record,) = sink.records
    assert encode_trace(record) == (
        f"Pub\x01{began_ms}\x01R\x01pg\x01T\x01UNIQUE\x01null\x01null\x01127.0.0.1:10911"
        "\x014\x017\x010\x01OFFSET\x01true\x02"
    )
    assert len(encode_trace(record).split("\x01")) == 14
    assert (sink.contexts[0].topic, sink.contexts[0].region_id) == ("T", "R")


@pytest.mark.parametrize(
    ("name", "number"), [("Normal", 0), ("Trans_Half", 1), ("Delay", 3), ("Order", 4)]
)
async def test_tag_keys_and_type_of_a_message_are_told(name: str, number: int) -> None:
    sink, clock = Sink(), VirtualClock()
    hook = ProducerTraceHook(sink, clock)
    context = sent(Message("T", b"b", tag="A", keys=["k1", "k2"]), name)
    hook.before_send(context)
    context.result = msgspec.structs.replace(RESULT, status=SendStatus.FLUSH_DISK_TIMEOUT)
    hook.after_send(context)
    (record,) = sink.records
    assert isinstance(record, PubTrace)
    assert (record.tags, record.keys, record.message_type) == ("A", "k1 k2", number)
    assert record.success is False


@pytest.mark.parametrize(
    ("topic", "result"),
    [
        ("T", None),
        ("T", msgspec.structs.replace(RESULT, trace_on=False)),
        ("RMQ_SYS_TRACE_TOPIC", RESULT),
    ],
)
async def test_failures_untraced_brokers_and_traces_themselves_leave_nothing(
    topic: str, result: SendResult | None
) -> None:
    sink, clock = Sink(), VirtualClock()
    hook, context = ProducerTraceHook(sink, clock), sent(Message(topic, b"b"))
    hook.before_send(context)
    context.result = result
    hook.after_send(context)
    assert sink.records == []


async def test_the_outcome_of_a_transaction_is_told() -> None:
    sink, clock = Sink(), VirtualClock()
    context = EndTransactionContext(
        group="pg",
        message=Message("T", b"b", tag="A", keys="k"),
        msg_id="UNIQUE",
        transaction_id="TX",
        broker_address="127.0.0.1:10911",
        state=TxState.UNKNOWN,
        from_check=True,
    )
    ProducerTraceHook(sink, clock).end_transaction(context)
    assert sink.records == [
        EndTransactionTrace(
            time_ms=clock.now_ms(),
            region_id="DefaultRegion",
            group="pg",
            topic="T",
            msg_id="UNIQUE",
            tags="A",
            keys="k",
            store_host="127.0.0.1:10911",
            message_type=2,
            transaction_id="TX",
            state="UNKNOW",
            from_check=True,
        )
    ]


# ---- handlers ------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.38")
async def test_before_and_after_share_their_request_id() -> None:
    sink, clock = Sink(), VirtualClock()
    hook = await consumer_hook(sink, clock)
    context = consumed(received(b"a", b"b", KEYS="k1 k2", MSG_REGION="R"))
    began_ms = clock.now_ms()
    hook.before_consume(context)
    await clock.advance(seconds=0.030)
    context.success, context.return_type = True, "SUCCESS"
    hook.after_consume(context)
    before, after = sink.contexts
    request_id = before.records[0].request_id  # type: ignore[union-attr]
    assert len(request_id) == 32
    assert before == TraceContext(
        "T",
        "R",
        [
            SubBeforeTrace(
                time_ms=began_ms,
                region_id="R",
                group="cg",
                request_id=request_id,
                msg_id=msg_id,
                retry_times=2,
                keys="k1 k2",
            )
            for msg_id in ("ID-a", "ID-b")
        ],
    )
    assert after == TraceContext(
        "T",
        "R",
        [
            SubAfterTrace(
                request_id=request_id,
                msg_id=msg_id,
                cost_ms=15,  # of 30 for two
                success=True,
                keys="k1 k2",
                context_code=0,
                time_ms=began_ms + 30,
                group="cg",
            )
            for msg_id in ("ID-a", "ID-b")
        ],
    )
    second = consumed(received(b"a"))
    hook.before_consume(second)
    assert sink.records[-1].request_id != request_id  # type: ignore[union-attr]


@pytest.mark.spec("client.8.38")
@pytest.mark.parametrize(
    ("return_type", "code"),
    [
        ("SUCCESS", ReturnType.SUCCESS),
        ("TIME_OUT", 1),
        ("EXCEPTION", 2),
        ("RETURNNULL", 3),
        ("FAILED", 4),
    ],
)
async def test_how_a_handler_ended_is_a_code(return_type: str, code: int) -> None:
    sink, clock = Sink(), VirtualClock()
    hook, context = await consumer_hook(sink, clock), consumed(received(b"a"))
    hook.before_consume(context)
    context.success, context.return_type = code == 0, return_type
    hook.after_consume(context)
    after = sink.records[-1]
    assert isinstance(after, SubAfterTrace)
    assert (after.context_code, after.success) == (code, code == 0)
    assert encode_trace(after).split("\x01")[6] == str(code)


async def test_messages_that_are_not_to_be_traced_are_left_out() -> None:
    sink, clock = Sink(), VirtualClock()
    hook = await consumer_hook(sink, clock)
    messages = [*received(b"a", TRACE_ON="false"), *received(b"b", TRACE_ON="true")]
    context = consumed(messages)
    hook.before_consume(context)
    context.success = True
    hook.after_consume(context)
    assert [record.msg_id for record in sink.records] == ["ID-b", "ID-b"]
    none = consumed(received(b"a", TRACE_ON="false"))
    hook.before_consume(none)
    hook.after_consume(none)
    assert len(sink.records) == 2


async def test_a_message_without_region_is_written_as_java_does() -> None:
    sink, clock = Sink(), VirtualClock()
    hook = await consumer_hook(sink, clock)
    hook.before_consume(consumed(received(b"a")))
    fields = encode_trace(sink.records[0]).rstrip("\x02").split("\x01")
    assert (fields[0], fields[2], fields[7]) == ("SubBefore", "null", "null")


async def test_the_cloud_gets_no_time_and_no_group() -> None:
    sink, clock = Sink(is_cloud=True), VirtualClock()
    hook, context = await consumer_hook(sink, clock), consumed(received(b"a"))
    hook.before_consume(context)
    hook.after_consume(context)
    text = encode_trace(sink.records[1])
    assert text.endswith("\x010\x01\x02")
    (decoded,) = decode_traces(text)
    assert isinstance(decoded, SubAfterTrace)
    assert decoded.time_ms is None


# ---- what Java writes ----------------------------------------------------------------------------

#: The trace of one message that mqadmin of RocketMQ 5.5.0 sent (sendMessage -t T -p x -m true).
JAVA_ID = "FD0000000000000000000000000000023AF54E0E2F2A4A92D4260000"
JAVA = (
    f"Pub\x011794742336555\x01DefaultRegion\x011794742334240\x01T\x01{JAVA_ID}\x01null\x01null"
    "\x01127.0.0.1:42925\x011\x0188\x010\x017F0000010000A7AD00000000000008BA\x01true\x02"
)


@pytest.mark.spec("client.8.38")
async def test_the_same_send_leaves_the_bytes_that_java_leaves() -> None:
    sink, clock = Sink(), VirtualClock(start_ms=1794742336555)
    hook = ProducerTraceHook(sink, clock)
    context = msgspec.structs.replace(
        sent(Message("T", b"x")), group="1794742334240", broker_address="127.0.0.1:42925"
    )
    hook.before_send(context)
    await clock.advance(seconds=0.088)
    context.result = msgspec.structs.replace(
        RESULT,
        msg_id=JAVA_ID,
        offset_msg_id="7F0000010000A7AD00000000000008BA",
        region_id="DefaultRegion",
    )
    hook.after_send(context)
    assert encode_trace(sink.records[0]) == JAVA
    assert decode_traces(JAVA) == sink.records
