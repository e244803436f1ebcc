"""Handlers that raise, refuse, hang or are cancelled; brokers that refuse; clocks that jump."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.allocation import Averagely
from skylark.client.consumer.push import push_components as push_parts
from skylark.client.consumer.push.concurrent_runner import ConcurrentRunner
from skylark.client.consumer.push.consume_runner import AssignedQueue
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.core.clock import yield_once
from skylark.core.errors import BrokerError
from skylark.core.lifecycle import Tasks
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pushes import (
    Seen,
    consuming,
    push_world,
    records,
    scripted,
)
from tests.unit.client.scripted import Stumbles


async def test_a_failed_message_comes_again_with_its_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"x", tag="A")
        seen = Seen()
        consumer = w.consumer()

        @consumer.subscribe("T", tags="A")
        async def fail_once(message: MessageExt) -> None:
            await seen.handler(message)
            if len(seen) == 1:
                raise ZeroDivisionError("boom")

        async with consuming(w, consumer):
            assert seen == [b"x"]
            assert (consumer.stats.failed, consumer.stats.sent_back) == (1, 1)
            assert "boom" in caplog.text
            assert w.retries() == []  # delay level 3: 10 s
            await w.clock.advance(seconds=40)  # and the route of the retry topic is found
            assert seen == [b"x", b"x"]
            again = seen.messages[1]
            assert (again.topic, again.reconsume_times, again.tag) == ("T", 1, "A")
            assert again.queue.topic == "%RETRY%g"
            await w.clock.advance(seconds=10)
            assert w.committed() == 1
            assert w.committed(topic="%RETRY%g") == 1


async def test_outcomes_that_a_handler_asks_for(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 0)
        script.pulls.found(0, records(0, 1, 2), 3)
        consumer = script.consumer(max_reconsume_times=7)
        errors = {0: RetryLater(level=5), 1: DeadLetter(), 2: ValueError("any")}

        @consumer.subscribe("T")
        async def refuse(message: MessageExt) -> None:
            raise errors[message.queue_offset]

        await script.start(consumer)
        sent = [r.ext or {} for r in script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK)]
        assert sorted((ext["offset"], ext["delayLevel"]) for ext in sent) == [
            ("1000", "5"), ("1001", "-1"), ("1002", "0"),
        ]  # fmt: skip
        assert {(ext["group"], ext["maxReconsumeTimes"], ext["originTopic"]) for ext in sent} == {
            ("g", "7", "T")
        }
        await script.clock.advance(seconds=10)
        assert script.committed[-1] == 3


@pytest.mark.spec("client.8.28")
async def test_a_partly_accepted_batch_sends_back_the_rest(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(3)
        batches: list[list[bytes]] = []
        consumer = w.consumer()

        @consumer.subscribe("T", batch=3)
        async def accept_first(messages: list[MessageExt]) -> int:
            batches.append([message.body for message in messages])
            return 0 if len(messages) > 1 else 99

        async with consuming(w, consumer):
            assert batches == [[b"0", b"1", b"2"]]
            assert (consumer.stats.consumed, consumer.stats.sent_back) == (1, 2)
            await w.clock.advance(seconds=12)
            assert w.committed() == 3
            assert sorted(record.body for record in w.retries()) == [b"1", b"2"]


@pytest.mark.spec("client.8.28")
async def test_broadcasting_sends_nothing_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(3)
        consumer = w.consumer(
            message_model=MessageModel.BROADCASTING, offset_folder=tmp_path / "offsets"
        )

        @consumer.subscribe("T", batch=3)
        async def accept_first(messages: list[MessageExt]) -> int:
            return 0

        async with consuming(w, consumer):
            assert (consumer.stats.failed, consumer.stats.sent_back) == (2, 0)
            assert "2 messages of" in caplog.text
        assert w.retries() == []
        saved = (tmp_path / "offsets" / consumer.client_id / "g" / "offsets.json").read_text()
        assert '"topic":"T"\n\t\t}:3' in saved


class RefusesSendBack:
    def before_request(self, address: str, request: Any) -> None:
        if request.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            raise BrokerError("not now", broker_address=address)


@pytest.mark.spec("client.8.29")
async def test_a_refused_send_back_is_published_by_the_client(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"x", tag="A", colour="red")
        seen = Seen()
        consumer = w.consumer(rpc_hooks=[RefusesSendBack()])

        @consumer.subscribe("T")
        async def fail_once(message: MessageExt) -> None:
            await seen.handler(message)
            if len(seen) == 1:
                raise RetryLater

        async with consuming(w, consumer):
            await w.clock.advance(seconds=11)
            (stored,) = w.retries()
            found = stored.properties
            assert (found["RETRY_TOPIC"], found["RECONSUME_TIME"]) == ("T", "1")
            assert (found["ORIGIN_MESSAGE_ID"], found["colour"]) == ("ID-x", "red")
            assert (found["MAX_RECONSUME_TIMES"], found["UNIQ_KEY"]) == ("16", "ID-x")
            assert "MIN_OFFSET" not in found
            assert stored.reconsume_times == 1
            await w.clock.advance(seconds=30)
            assert (seen, seen.messages[1].topic) == ([b"x", b"x"], "T")


@pytest.mark.spec("client.8.29")
async def test_what_the_client_publishes(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 1)
        script.server.answer_ok(
            RequestCode.SEND_MESSAGE_V2, {"msgId": "M", "queueId": "0", "queueOffset": "0"}
        )
        script.pulls.found(0, records(0, TRAN_MSG="true"), 1)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def fail(message: MessageExt) -> None:
            raise RetryLater(level=9)

        await script.start(consumer)
        (sent,) = script.server.of(RequestCode.SEND_MESSAGE_V2)
        ext = sent.ext or {}
        assert (ext["a"], ext["b"]) == ("CLIENT_INNER_PRODUCER", "%RETRY%g")
        assert (ext["j"], ext["l"]) == ("1", "16")
        properties = dict(item.split("\x01") for item in ext["i"].split("\x02") if item)
        assert properties["DELAY"] == "3"
        assert "TRAN_MSG" not in properties
        await script.clock.advance(seconds=10)
        assert script.committed[-1] == 1


async def test_what_can_go_nowhere_stays_and_is_tried_again_here(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 1)
        script.server.answer(RequestCode.SEND_MESSAGE_V2, 1)
        script.pulls.found(0, records(0, 1), 2)
        tries: list[tuple[int, int]] = []
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def fail_twice(message: MessageExt) -> None:
            tries.append((message.queue_offset, message.reconsume_times))
            if message.queue_offset == 0 and message.reconsume_times < 2:
                raise RetryLater

        await script.start(consumer)
        assert len(script.server.of(RequestCode.SEND_MESSAGE_V2)) == 3
        assert tries == [(0, 0), (1, 0)]
        assert consumer.in_flight == 1
        await script.clock.advance(seconds=12)
        assert tries == [(0, 0), (1, 0), (0, 1), (0, 2)]
        await script.clock.advance(seconds=5)
        assert script.committed[-1] == 2


@pytest.mark.spec("client.8.30")
async def test_a_hung_message_goes_back_and_its_late_result_is_ignored(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 0)
        script.pulls.found(0, records(0, 1), 2)
        consumer = script.consumer(consume_timeout=60)

        @consumer.subscribe("T")
        async def hang(message: MessageExt) -> None:
            if message.queue_offset == 0:
                await gate.wait()
                raise RetryLater(level=9)

        await script.start(consumer)
        await script.clock.advance(seconds=57)
        assert script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        await script.clock.advance(minutes=2)
        (sent,) = script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert ((sent.ext or {})["offset"], (sent.ext or {})["delayLevel"]) == ("1000", "3")
        assert consumer.in_flight == 0
        gate.set()
        await script.clock.advance(seconds=10)
        assert len(script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


@pytest.mark.parametrize("by", ["itself", "what it waits for"])
async def test_a_cancelled_handler_has_failed(tmp_path: Path, by: str) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 0)
        script.pulls.found(0, records(0, 1, 2), 3)
        seen = Seen()
        consumer = script.consumer(concurrency=1)

        @consumer.subscribe("T")
        async def cancel(message: MessageExt) -> None:
            await seen.handler(message)
            if message.queue_offset == 0:
                if by == "itself":
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    await asyncio.Event().wait()
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future

        await script.start(consumer)
        assert seen == [b"0", b"1", b"2"]
        assert (consumer.stats.failed, consumer.stats.consumed) == (1, 2)
        (sent,) = script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (sent.ext or {})["delayLevel"] == "0"


async def test_a_body_that_cannot_be_inflated_is_for_the_handler(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 0)
        broken = bytearray(records(0))
        broken[36:40] = (1).to_bytes(4)  # the flag of compression
        script.pulls.found(0, bytes(broken), 1)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        assert consumer.stats.failed == 1
        assert len(script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1


async def test_retries_of_a_topic_without_handler_go_back(tmp_path: Path) -> None:
    async with push_world(tmp_path, 1, "T", "U") as w:
        await w.send(b"u", topic="U")
        first = w.consumer()

        @first.subscribe("U")
        async def fail(message: MessageExt) -> None:
            raise RetryLater

        first.subscribe("T", Seen().handler)
        async with consuming(w, first):
            pass
        seen = Seen()
        second = w.consumer()
        second.subscribe("T", seen.handler)
        async with consuming(w, second):
            await w.clock.advance(seconds=20)
            assert (seen, second.stats.sent_back) == ([], 1)


class JumpingClock(VirtualClock):
    """A virtual clock whose time of day can be set."""

    jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


@pytest.mark.parametrize("hours", [-3, 3])
async def test_a_jump_of_the_clock_changes_nothing(
    tmp_path: Path, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.client.worlds.VirtualClock", JumpingClock)
    async with scripted(tmp_path) as script:
        clock = script.clock
        assert isinstance(clock, JumpingClock)
        gate = asyncio.Event()
        script.pulls.found(0, records(0, 1), 2)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        versions = [each.data.sub_version for each in consumer._subscriptions.values()]
        clock.jump_ms = hours * 3_600_000
        await clock.advance(seconds=60)
        # The queue was not given up, the handlers did not count as hung.
        assert script.pulls.offsets == [0, 2, 2, 2]  # held for 30 seconds each
        assert script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        gate.set()
        await clock.advance(seconds=5)
        assert script.committed[-1] == 2
        consumer.subscribe("T", Seen().handler)
        newer = consumer._subscriptions["T"].data.sub_version
        assert newer > max(versions)  # brokers believe the newer one


async def test_a_large_body_is_compressed_when_the_client_publishes_it(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"0" * 5000)
        seen = Seen()
        consumer = w.consumer(rpc_hooks=[RefusesSendBack()])

        @consumer.subscribe("T")
        async def fail_once(message: MessageExt) -> None:
            await seen.handler(message)
            if len(seen) == 1:
                raise RetryLater

        async with consuming(w, consumer):
            await w.clock.advance(seconds=45)
            (stored,) = w.retries()
            assert len(stored.body) < 100
            assert seen == [b"0" * 5000] * 2


async def test_a_strategy_that_raises_keeps_the_old_assignment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Moody(Averagely):
        fails = False

        def allocate(self, *given: Any) -> list[MessageQueue]:
            if self.fails:
                raise ZeroDivisionError("no mood")
            return super().allocate(*given)

    async with push_world(tmp_path, 2) as w:
        strategy = Moody()
        seen = Seen()
        consumer = w.consumer(allocation=strategy)
        consumer.subscribe("T", seen.handler)
        async with consuming(w, consumer):
            before = consumer.assignment
            strategy.fails = True
            await w.clock.advance(seconds=30)
            assert "no mood" in caplog.text
            assert consumer.assignment == before
            await w.send(b"x")
            await w.clock.drain()
            assert seen == [b"x"]


async def test_offsets_that_cannot_be_saved_are_saved_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"x")
        consumer = w.consumer()
        consumer.subscribe("T", Seen().handler)
        async with consuming(w, consumer):
            await w.world.stop(w.broker)
            await w.clock.advance(seconds=15)
            assert "cannot save offset" in caplog.text
            await w.world.add_broker()
            await w.clock.advance(seconds=15)
            assert w.committed() == 1


async def test_however_many_messages_wait_for_another_try_none_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_parts, "Tasks", partial(Tasks, limit=10))  # unless it says otherwise
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 1)
        script.server.answer(RequestCode.SEND_MESSAGE_V2, 1)
        script.pulls.found(0, records(*range(30)), 30)
        tries: list[int] = []
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def fail_once(message: MessageExt) -> None:
            tries.append(message.queue_offset)
            if message.reconsume_times == 0:
                raise RetryLater

        await script.start(consumer)
        assert sorted(tries) == list(range(30))
        await script.clock.advance(seconds=6)
        assert sorted(tries[30:]) == list(range(30))
        await script.clock.advance(seconds=10)
        assert script.committed[-1] == 30


async def test_a_hook_that_raises_keeps_a_message_here_until_it_can_go_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 0)
        script.pulls.found(0, records(0), 1)
        hook = Stumbles(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
        consumer = script.consumer(rpc_hooks=[hook])

        @consumer.subscribe("T")
        async def fail(message: MessageExt) -> None:
            raise RetryLater

        await script.start(consumer)
        assert script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK) == []
        assert "LookupError" in caplog.text
        hook.codes.clear()
        await script.clock.advance(seconds=6)
        assert len(script.server.of(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        await script.clock.advance(seconds=10)
        assert script.committed[-1] == 1


async def test_after_an_error_handlers_that_hang_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    async def fail(_: ConcurrentRunner, assigned: AssignedQueue) -> None:
        looks.append(assigned.queue.topic)
        raise LookupError

    monkeypatch.setattr(ConcurrentRunner, "expire", fail)
    async with scripted(tmp_path) as script:
        consumer = script.consumer(consume_timeout=60)
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        await script.clock.advance(minutes=3)
        assert looks.count("T") >= 2


# ---- what a handler leaves behind ----------------------------------------------------------------

LEFT_BEHIND: ContextVar[bytes | None] = ContextVar("left_behind", default=None)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_context_variables_of_a_handler_are_not_seen_by_the_next(
    tmp_path: Path, plain: bool, orderly: bool
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(20)
        found: list[bytes | None] = []
        consumer = w.consumer(concurrency=1)

        async def handle(message: MessageExt) -> None:
            found.append(LEFT_BEHIND.get())
            LEFT_BEHIND.set(message.body)
            await yield_once()
            assert LEFT_BEHIND.get() == message.body

        def handle_plainly(message: MessageExt) -> None:
            found.append(LEFT_BEHIND.get())
            LEFT_BEHIND.set(message.body)

        consumer.subscribe("T", handle_plainly if plain else handle, orderly=orderly)
        async with consuming(w, consumer):
            await w.until(lambda: consumer.stats.consumed == 20)
        assert found == [None] * 20


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_coroutine_that_hangs_is_cancelled_and_its_message_comes_again(
    tmp_path: Path, orderly: bool
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(3)
        consumer = w.consumer(concurrency=1, consume_timeout=60)
        seen: list[tuple[bytes, int]] = []
        cancelled: list[bytes] = []

        @consumer.subscribe("T", orderly=orderly)
        async def hang(message: MessageExt) -> None:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"0" and not message.reconsume_times:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(message.body)
                    raise

        async with consuming(w, consumer):
            await w.clock.advance(seconds=58)
            assert (seen, cancelled) == ([(b"0", 0)], [])
            await w.clock.advance(seconds=70)
            assert cancelled == [b"0"]
            again = [(b"0", 1), (b"1", 0), (b"2", 0)]
            assert sorted(seen[1:]) == again
            if orderly:
                assert seen[1:] == again


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("batch", "result", "warns"),
    [(1, None, 0), (1, True, 1), (1, "CONSUME_SUCCESS", 1), (1, 0, 1), (2, 1, 0), (2, "x", 1)],
)
async def test_a_result_without_a_meaning_warns_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
    batch: int,
    result: object,
    warns: int,
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(6)
        consumer = w.consumer()

        @consumer.subscribe("T", orderly=orderly, batch=batch)
        async def handle(got: object) -> object:
            return result

        async with consuming(w, consumer):
            await w.until(lambda: consumer.stats.consumed == 6)
        found = [text for text in caplog.messages if "counts as success" in text]
        assert len(found) == warns
        assert all("handle" in text and repr(result) in text for text in found)


@pytest.mark.parametrize("kind", ["generator", "coroutine"])
async def test_a_result_of_a_failure_is_not_said_to_be_a_success(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A plain function that returns what was not run has failed."""

    async def not_awaited(message: MessageExt) -> None:
        """Its call is the result of the handler."""

    async with push_world(tmp_path) as w:
        await w.send_many(1)
        consumer = w.consumer()

        @consumer.subscribe("T")
        def handle(message: MessageExt) -> object:
            return not_awaited(message) if kind == "coroutine" else (_ for _ in [message])

        async with consuming(w, consumer):
            await w.until(lambda: consumer.stats.failed == 1)
        assert f"returned a {kind}" in caplog.text
        assert "counts as success" not in caplog.text
