"""OpenTelemetry: spans around sends and handlers, with the package, a stand-in, and neither."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.client_message import DeadLetter, Message, MessageExt, RetryLater, TxState
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.client.telemetry import context_of, find_telemetry
from skylark.core.errors import ConfigError, SkylarkError
from tests.unit.client.consumer.pushes import consuming, push_world, until
from tests.unit.client.otel_fake import RecordedSpan, RecordingProvider, fake_modules
from tests.unit.client.producer_world import properties, scripted


@pytest.fixture(params=["stand-in", "package"])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RecordingProvider:
    """A provider over the real package, and over a stand-in that is always there."""
    trace: Any
    if request.param == "package":
        trace = pytest.importorskip("opentelemetry.trace", reason="the extra otel is not installed")
        pytest.importorskip("opentelemetry.propagate", reason="as above")
    else:
        modules = fake_modules()
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        trace = modules["opentelemetry.trace"]
    return RecordingProvider(trace)


def only(provider: RecordingProvider) -> RecordedSpan:
    (span,) = provider.spans
    assert span.ended == 1
    return span


def parent_text(span: RecordedSpan) -> str:
    """What a message carries that was sent in this span."""
    own = span.get_span_context()
    return f"00-{own.trace_id:032x}-{own.span_id:016x}-01"


# ---- whether -------------------------------------------------------------------------------------


def test_it_is_off_while_nobody_has_set_a_provider(
    provider: RecordingProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_telemetry(None) is None
    assert find_telemetry(False) is None
    assert find_telemetry(True) is not None
    trace = sys.modules["opentelemetry.trace"]
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    assert find_telemetry(None) is not None
    assert provider.name == "skylark"
    assert find_telemetry(False) is None


def test_without_the_package_it_is_off_unless_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry", "opentelemetry.trace", "opentelemetry.propagate"):
        monkeypatch.setitem(sys.modules, name, None)
    assert find_telemetry(None) is None
    with pytest.raises(ConfigError, match="opentelemetry-api") as caught:
        find_telemetry(True)
    assert caught.value.hint == 'pip install "skylark-mq[otel]"'


async def test_a_producer_that_wants_what_is_not_there_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted(tmp_path) as s:
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        producer = Producer("other", s.options(telemetry=True), runtime=s.runtime)
        with pytest.raises(ConfigError):
            await producer.start()


# ---- sends ---------------------------------------------------------------------------------------


async def test_a_send_has_a_span_and_its_context_travels(
    tmp_path: Path, provider: RecordingProvider
) -> None:
    message = Message("T", b"body", tag="A", keys=["k1", "k2"], properties={"mine": "1"})
    async with scripted(tmp_path, given={"telemetry": provider}, batching=False) as s:
        result = await s.producer.send(message)
        (request,) = s.sent()
        span = only(provider)
        assert properties(request)["traceparent"] == parent_text(span)
        assert properties(request)["mine"] == "1"
    assert (span.name, span.kind.name) == ("send T", "PRODUCER")
    client_id = span.attributes.pop("messaging.client.id")
    assert client_id.startswith("127.0.0.1@")
    assert span.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.message.id": result.msg_id,
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.tag": "A",
        "messaging.rocketmq.message.keys": ["k1", "k2"],
    }
    assert (span.errors, span.status) == ([], None)
    assert message.properties == {"mine": "1"}


async def test_a_send_that_fails_says_so(tmp_path: Path, provider: RecordingProvider) -> None:
    async with scripted(tmp_path, given={"telemetry": provider}, batching=False) as s:
        s.answer(13)
        with pytest.raises(SkylarkError) as caught:
            await s.producer.send(Message("T", b"x"))
        span = only(provider)
        assert span.errors == [caught.value]
        assert span.attributes["error.type"] == type(caught.value).__name__
        assert (span.status.status_code.name, span.status.description) == (
            "ERROR",
            str(caught.value),
        )
        future = await s.producer.submit(Message("T", b"x"))
        with pytest.raises(SkylarkError):
            await future
        await s.clock.drain()
        assert provider.spans[1].ended == 1
        assert len(provider.spans[1].errors) == 1


async def test_submitted_messages_have_spans_of_their_own(
    tmp_path: Path, provider: RecordingProvider
) -> None:
    async with scripted(tmp_path, given={"telemetry": provider}) as s:
        futures = [await s.producer.submit(Message("T", b"x", keys="k")) for _ in range(3)]
        assert [span.ended for span in provider.spans] == [0, 0, 0]
        results = await asyncio.gather(*futures)
        await s.clock.drain()
        (request,) = s.sent()  # in one batch
        for span, result in zip(provider.spans, results, strict=True):
            assert span.ended == 1
            assert span.attributes["messaging.message.id"] == result.msg_id
            assert span.attributes["messaging.rocketmq.message.keys"] == ["k"]
            assert parent_text(span).encode() in (request.body or b"")
        with pytest.raises(SkylarkError):
            await s.producer.submit(Message("T", b"", keys="k"))
        assert provider.spans[3].ended == 1
        cancelled = await s.producer.submit(Message("T", b"x"))
        cancelled.cancel()
        await s.clock.drain()
        assert provider.spans[4].attributes["error.type"] == "CancelledError"


async def test_a_batch_is_one_span(tmp_path: Path, provider: RecordingProvider) -> None:
    async with scripted(tmp_path, given={"telemetry": provider}) as s:
        await s.producer.send_batch([Message("T", b"1"), Message("T", b"22", tag="A")])
        (request,) = s.sent()
        span = only(provider)
        assert (request.body or b"").count(parent_text(span).encode()) == 2
    assert span.attributes["messaging.batch.message_count"] == 2
    assert span.attributes["messaging.message.body.size"] == 3
    assert "messaging.rocketmq.message.tag" not in span.attributes


async def test_oneway_and_transactions_have_spans_too(
    tmp_path: Path, provider: RecordingProvider
) -> None:
    async with scripted(tmp_path, given={"telemetry": provider}) as s:
        await s.producer.send_oneway(Message("T", b"x"))
        await s.clock.drain()
        s.producer.transaction_checker(lambda _: TxState.COMMIT)
        async with s.producer.transaction(Message("T", b"x")) as transaction:
            pass
        await s.clock.drain()
        oneway, half = provider.spans
        assert (oneway.ended, half.ended) == (1, 1)
        assert half.attributes["messaging.message.id"] == transaction.id
        parents = {properties(request)["traceparent"] for request in s.sent()}
        assert parents == {parent_text(oneway), parent_text(half)}


async def test_a_request_has_a_span(tmp_path: Path, provider: RecordingProvider) -> None:
    async with scripted(tmp_path, given={"telemetry": provider}) as s:
        asking = await s.later(s.producer.request(Message("T", b"x"), timeout=2))
        assert properties(s.sent()[0])["traceparent"] == parent_text(provider.spans[0])
        await s.clock.advance(seconds=4)
        with pytest.raises(SkylarkError):
            await asking
        assert only(provider).attributes["error.type"] == "RequestReplyTimeoutError"


# ---- handlers ------------------------------------------------------------------------------------


PARENT = f"00-{0xFACE:032x}-{0xBEEF:016x}-01"


async def test_a_handler_continues_the_trace_of_its_message(
    tmp_path: Path, provider: RecordingProvider
) -> None:
    seen: list[Any] = []

    async def handle(message: MessageExt) -> None:
        seen.append(sys.modules["opentelemetry.trace"].get_current_span())
        await asyncio.sleep(0)

    async with push_world(tmp_path) as w:
        await w.send(b"body", tag="A", KEYS="k1 k2", traceparent=PARENT)
        await w.send(b"later")
        consumer = w.consumer(telemetry=provider)
        consumer.subscribe("T", handle)
        async with consuming(w, consumer):
            await w.clock.drain()
    first, second = provider.spans
    assert seen == [first, second]
    assert (first.name, first.kind.name, first.ended) == ("process T", "CONSUMER", 1)
    assert (first.parent.trace_id, first.parent.span_id) == (0xFACE, 0xBEEF)
    assert first.attributes == {
        "messaging.system": "rocketmq",
        "messaging.client.id": consumer.client_id,
        "messaging.consumer.group.name": "g",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "ID-body",
        "messaging.message.body.size": 4,
        "messaging.rocketmq.message.tag": "A",
        "messaging.rocketmq.message.keys": ["k1", "k2"],
    }
    assert second.parent is None
    assert (first.status, first.errors) == (None, [])


async def test_a_batch_of_messages_is_linked(tmp_path: Path, provider: RecordingProvider) -> None:
    async def handle(messages: list[MessageExt]) -> None:
        del messages

    async with push_world(tmp_path) as w:
        await w.send(b"a", traceparent=PARENT)
        await w.send(b"b")
        consumer = w.consumer(telemetry=provider)
        consumer.subscribe("T", handle, batch=10)
        async with consuming(w, consumer):
            await w.clock.drain()
    span = only(provider)
    assert span.parent is None
    assert span.attributes["messaging.batch.message_count"] == 2
    (link,) = span.links
    assert (link.context.trace_id, link.context.span_id) == (0xFACE, 0xBEEF)
    assert link.attributes["messaging.message.id"] == "ID-a"


async def test_plain_functions_have_spans_in_their_threads(
    tmp_path: Path, provider: RecordingProvider
) -> None:
    seen: list[Any] = []

    def handle(message: MessageExt) -> None:
        seen.append(sys.modules["opentelemetry.trace"].get_current_span())
        raise DeadLetter

    async with push_world(tmp_path) as w:
        await w.send(b"a")
        consumer = w.consumer(telemetry=provider)
        consumer.subscribe("T", handle)
        async with consuming(w, consumer):
            await until(lambda: seen)
            await w.clock.drain()
    assert seen == provider.spans
    assert only(provider).attributes["error.type"] == "DeadLetter"


async def test_a_handler_that_fails_says_so(
    tmp_path: Path, provider: RecordingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: MessageExt) -> None:
        raise RetryLater if message.body == b"a" else ValueError

    async with push_world(tmp_path) as w:
        await w.send(b"a")
        await w.send(b"b")
        consumer = w.consumer(telemetry=provider)
        consumer.subscribe("T", handle)
        async with consuming(w, consumer):
            await w.clock.drain()
            assert consumer.stats.failed == 2
    assert [span.attributes["error.type"] for span in provider.spans[:2]] == [
        "RetryLater",
        "ValueError",
    ]
    assert provider.spans[1].status.description == "ValueError"  # it has no text
    assert "test_a_handler_that_fails_says_so.<locals>.handle" in caplog.text


async def test_a_handler_may_be_replaced(tmp_path: Path, provider: RecordingProvider) -> None:
    seen: list[str] = []

    def remember(name: str) -> Any:
        async def handle(message: MessageExt) -> None:
            seen.append(f"{name} {message.body.decode()}")

        return handle

    async with push_world(tmp_path) as w:
        await w.send(b"1")
        consumer = w.consumer(telemetry=provider)
        consumer.subscribe("T", remember("first"))
        async with consuming(w, consumer):
            await w.clock.drain()
            consumer.subscribe("T", remember("second"))
            await w.clock.advance(seconds=2)
            await w.send(b"2")
            await w.clock.advance(seconds=2)
    assert seen == ["first 1", "second 2"]
    assert [span.name for span in provider.spans] == ["process T"] * 2


async def test_the_context_of_a_message_can_be_had(
    tmp_path: Path, provider: RecordingProvider
) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"a", traceparent=PARENT)
        (record,) = w.stored("T")
    message = MessageExt(record, "broker-a")
    trace = sys.modules["opentelemetry.trace"]
    assert trace.get_current_span(context_of(message)).get_span_context().span_id == 0xBEEF
    assert ClientOptions().telemetry is None
    assert provider.spans == []
