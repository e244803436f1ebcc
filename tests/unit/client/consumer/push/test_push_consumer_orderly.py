"""Queues in order: one handler at a time, failures in place, locks, and no two owners."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.push.orderly_settlement import OrderlyResult, OrderlyStatus
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.client.core.hooks import ConsumeContext
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    GetConsumerListByGroupResponseBody,
    LockBatchResponseBody,
    MessageModel,
    UnlockBatchRequestBody,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import response_to
from skylark.wire.fastjson import decode_body
from tests.unit.client.consumer.pushes import (
    BROKER,
    PushWorld,
    Script,
    Seen,
    consuming,
    push_world,
    records,
    scripted,
)
from tests.unit.client.scripted import Stumbles

QUEUE = MessageQueue(topic="T", broker_name=BROKER, queue_id=0)
RETRIES = MessageQueue(topic="%RETRY%g", broker_name=BROKER, queue_id=0)


@pytest.mark.spec("client.8.31")
async def test_one_handler_at_a_time_for_each_queue(tmp_path: Path) -> None:
    async with push_world(tmp_path, 3) as w:
        for queue_id in range(3):
            await w.send_many(5, queue_id=queue_id)
        running: set[int] = set()
        most = 0
        seen: dict[int, list[bytes]] = defaultdict(list)
        consumer = w.consumer()

        @consumer.subscribe("T", orderly=True)
        async def handle(message: MessageExt) -> None:
            nonlocal most
            assert message.queue_id not in running
            running.add(message.queue_id)
            most = max(most, len(running))
            await w.clock.sleep(0.1)
            running.discard(message.queue_id)
            seen[message.queue_id].append(message.body)

        async with consuming(w, consumer):
            await w.clock.advance(seconds=1)
            assert seen == {queue_id: [b"0", b"1", b"2", b"3", b"4"] for queue_id in range(3)}
            assert most == 3
            await w.clock.advance(seconds=10)
            assert [w.committed(queue_id) for queue_id in range(3)] == [5, 5, 5]


@pytest.mark.spec("client.8.31")
async def test_a_failed_message_holds_its_queue_and_ends_in_the_dead_letters(
    tmp_path: Path,
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(2)
        tries: list[tuple[bytes, int, int]] = []
        consumer = w.consumer(max_reconsume_times=2)

        @consumer.subscribe("T", orderly=True)
        async def fail(message: MessageExt) -> None:
            tries.append((message.body, message.reconsume_times, w.clock.now_ms()))
            if message.body == b"0":
                raise RetryLater

        async with consuming(w, consumer):
            await w.clock.advance(seconds=3)
            assert [(body, times) for body, times, _ in tries] == [
                (b"0", 0), (b"0", 1), (b"0", 2), (b"1", 0),
            ]  # fmt: skip
            times_ms = [now_ms for _, _, now_ms in tries]
            assert (times_ms[1] - times_ms[0], times_ms[2] - times_ms[1]) == (1000, 1000)
            await w.clock.advance(seconds=10)
            assert w.committed() == 2
            assert [record.body for record in w.stored("%DLQ%g")] == [b"0"]


async def test_a_dead_letter_is_put_aside_at_once(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(2)
        seen = Seen()
        consumer = w.consumer()

        @consumer.subscribe("T", orderly=True)
        async def refuse(message: MessageExt) -> None:
            await seen.handler(message)
            if message.body == b"0":
                raise DeadLetter

        async with consuming(w, consumer):
            assert seen == [b"0", b"1"]
            assert [record.body for record in w.stored("%DLQ%g")] == [b"0"]


async def test_a_handler_may_commit_by_itself(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(3)
        seen = Seen()
        consumer = w.consumer()
        answers = {
            0: OrderlyResult(OrderlyStatus.SUCCESS, auto_commit=False),
            1: OrderlyResult(OrderlyStatus.ROLLBACK, auto_commit=False, suspend_ms=500),
            2: OrderlyResult(OrderlyStatus.SUCCESS, auto_commit=False),
            3: OrderlyResult(OrderlyStatus.COMMIT, auto_commit=False),
            4: OrderlyResult(OrderlyStatus.SUCCESS, auto_commit=False),
        }

        @consumer.subscribe("T", orderly=True)
        async def handle(message: MessageExt) -> OrderlyResult:
            seen.append(message.body)
            return answers[len(seen) - 1]

        async with consuming(w, consumer):
            await w.clock.advance(seconds=12)
            assert seen == [b"0", b"1", b"0", b"1", b"2"]
            assert w.committed() == 2  # message 2 is in flight until COMMIT


async def test_batches_in_order_are_accepted_whole(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(3)
        batches: list[list[bytes]] = []
        consumer = w.consumer()

        @consumer.subscribe("T", orderly=True, batch=2)
        async def handle(messages: list[MessageExt]) -> int:
            batches.append([message.body for message in messages])
            return 0 if len(batches) == 1 else len(messages) - 1

        async with consuming(w, consumer):
            await w.clock.advance(seconds=2)
            assert batches == [[b"0", b"1"], [b"0", b"1"], [b"2"]]


async def test_plain_functions_in_order(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(5)
        seen: list[tuple[bytes, bool]] = []
        main = threading.current_thread()
        consumer = w.consumer()

        @consumer.subscribe("T", orderly=True)
        def handle(message: MessageExt) -> None:
            seen.append((message.body, threading.current_thread() is main))

        await w.start(consumer)
        await w.until(lambda: len(seen) == 5)
        assert seen == [(b"%d" % index, False) for index in range(5)]
        await w.finish(consumer.stop())
        assert w.committed() == 5


@pytest.mark.parametrize("error", [StopIteration, SystemExit])
async def test_whatever_a_plain_function_raises_only_suspends_its_queue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(2)
        seen: list[bytes] = []
        consumer = w.consumer()

        @consumer.subscribe("T", orderly=True)
        def handle(message: MessageExt) -> None:
            seen.append(message.body)
            if len(seen) == 1:
                raise error("no match")

        await w.start(consumer)
        await w.until(lambda: "the handler ended with" in caplog.text)
        await w.clock.advance(seconds=1)
        await w.until(lambda: len(seen) == 3)
        assert seen == [b"0", b"0", b"1"]
        await w.finish(consumer.stop())
        assert w.committed() == 2


# ---- two consumers -------------------------------------------------------------------------------


class Owners:
    """Sees to it that no queue has two handlers at once, and that nothing comes out of order."""

    def __init__(self, w: PushWorld) -> None:
        self.world = w
        self.running: dict[int, str] = {}
        self.overlaps: list[tuple[int, str, str]] = []
        self.seen: dict[int, list[int]] = defaultdict(list)

    def consumer(self, name: str) -> PushConsumer:
        consumer = self.world.consumer(instance_name=name)

        @consumer.subscribe("T", orderly=True)
        async def handle(message: MessageExt) -> None:
            queue_id = message.queue_id
            if queue_id in self.running:
                self.overlaps.append((queue_id, self.running[queue_id], name))
            self.running[queue_id] = name
            await self.world.clock.sleep(0.05)
            self.seen[queue_id].append(int(message.body))
            del self.running[queue_id]

        return consumer


@pytest.mark.spec("client.8.31")
async def test_no_queue_has_two_owners_at_once(tmp_path: Path) -> None:
    async with push_world(tmp_path, 4) as w:
        owners = Owners(w)
        for queue_id in range(4):
            await w.send_many(60, queue_id=queue_id)
        first, second = owners.consumer("1"), owners.consumer("2")
        async with consuming(w, first):
            async with consuming(w, second):
                await w.clock.advance(seconds=1)
                sizes = [
                    sum(queue.topic == "T" for queue in consumer.assignment)
                    for consumer in (first, second)
                ]
                assert sizes == [2, 2]
                assert not first.assignment & second.assignment
            await w.clock.advance(seconds=8)
        assert owners.overlaps == []
        for queue_id in range(4):
            # Nothing is skipped; the message at work when a queue moved may come twice.
            assert sorted(set(owners.seen[queue_id])) == list(range(60))
            assert len(owners.seen[queue_id]) <= 62


async def test_a_queue_is_not_unlocked_while_a_handler_works_on_it(tmp_path: Path) -> None:
    async with push_world(tmp_path, 2) as w:
        gate = asyncio.Event()
        for queue_id in range(2):
            await w.send_many(1, queue_id=queue_id)
        first, seen = w.consumer(instance_name="1"), Seen()

        @first.subscribe("T", orderly=True)
        async def hang(message: MessageExt) -> None:
            await gate.wait()

        second = w.consumer(instance_name="2")
        second.subscribe("T", seen.handler, orderly=True)
        async with consuming(w, first), consuming(w, second):
            await w.clock.advance(seconds=10)
            assert seen == []  # a handler of the first one still has the message
            gate.set()
            await w.clock.advance(seconds=5)
            assert seen == []  # the first one has consumed it
            assert [w.committed(queue_id) for queue_id in range(2)] == [1, 1]


# ---- locks ---------------------------------------------------------------------------------------


def grant(script: Script, *queues: MessageQueue) -> None:
    body = LockBatchResponseBody(lock_ok_mq_set=list(queues))
    script.server.answer_ok(RequestCode.LOCK_BATCH_MQ, body=body)


async def test_locks_are_renewed_and_lost(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        seen = Seen()
        grant(script, QUEUE, RETRIES)
        script.pulls.found(0, records(0, 1), 2)
        consumer = script.consumer()

        @consumer.subscribe("T", orderly=True)
        async def handle(message: MessageExt) -> None:
            await seen.handler(message)
            await gate.wait()

        await script.start(consumer)
        before = len(script.server.of(RequestCode.LOCK_BATCH_MQ))
        await script.clock.advance(minutes=1)
        assert len(script.server.of(RequestCode.LOCK_BATCH_MQ)) - before == 3
        grant(script, RETRIES)  # somebody else has the other one
        await script.clock.advance(seconds=20)
        gate.set()
        await script.clock.advance(seconds=1)
        assert seen == [b"0"]  # not before it is ours again
        grant(script, QUEUE)
        await script.clock.advance(seconds=10)
        assert seen == [b"0", b"1"]


async def test_a_queue_that_was_lost_is_asked_for_until_it_is_ours(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        grant(script, QUEUE, RETRIES)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler, orderly=True)
        await script.start(consumer)

        async def asked(seconds: float) -> int:
            before = len(script.server.of(RequestCode.LOCK_BATCH_MQ))
            await script.clock.advance(seconds=seconds)
            return len(script.server.of(RequestCode.LOCK_BATCH_MQ)) - before

        grant(script, RETRIES)  # somebody else has the other one, which has no messages
        assert await asked(20) == 2
        assert await asked(5) == 5
        grant(script, QUEUE, RETRIES)
        assert await asked(10) == 1


async def test_a_queue_that_is_not_granted_is_tried_again_soon(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        grant(script)
        seen: Seen = Seen()
        script.pulls.found(0, records(0), 1)
        consumer = script.consumer()
        consumer.subscribe("T", seen.handler, orderly=True)
        await script.start(consumer)
        assert script.pulls.offsets == []
        script.server.answer(RequestCode.LOCK_BATCH_MQ, None)  # no answer at all
        await script.clock.advance(seconds=5)
        grant(script, QUEUE)
        await script.clock.advance(seconds=4)
        assert seen == [b"0"]


async def test_the_offset_is_looked_up_again_once_the_queue_is_locked(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        grant(script, QUEUE)
        answers: list[Any] = ["3", "8"]

        def query(request: Any) -> Any:
            if request.ext["topic"] != "T":
                return response_to(request, 22, "none")
            offset = answers.pop(0) if len(answers) > 1 else answers[0]
            return response_to(request, 0, ext={"offset": offset})

        script.server.answer(RequestCode.QUERY_CONSUMER_OFFSET, query)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler, orderly=True)
        await script.start(consumer)
        assert script.pulls.offsets == [8]


# ---- other ends of a handler ---------------------------------------------------------------------


async def test_a_cancelled_handler_suspends_its_queue(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        grant(script, QUEUE, RETRIES)
        script.pulls.found(0, records(0), 1)
        seen: list[tuple[str, str | None]] = []

        class Hook:
            def after_consume(self, context: ConsumeContext) -> None:
                seen.append((context.status or "", context.return_type))

        consumer = script.consumer(hooks=[Hook()], suspend_current_queue_time=0.2)

        @consumer.subscribe("T", orderly=True)
        async def cancel(message: MessageExt) -> OrderlyStatus:
            if len(seen) == 0:
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            return OrderlyStatus.SUSPEND if len(seen) == 1 else OrderlyStatus.SUCCESS

        await script.start(consumer)
        assert seen == [
            ("SUSPEND_CURRENT_QUEUE_A_MOMENT", "EXCEPTION"),
            ("SUSPEND_CURRENT_QUEUE_A_MOMENT", "FAILED"),
            ("SUCCESS", "SUCCESS"),
        ]


async def test_a_stop_starts_no_handler_that_waits_for_its_turn(tmp_path: Path) -> None:
    async with push_world(tmp_path, 3) as w:
        gate = asyncio.Event()
        for queue_id in range(3):
            await w.send_many(2, queue_id=queue_id)
        seen = Seen()
        consumer = w.consumer(concurrency=1)

        @consumer.subscribe("T", orderly=True)
        async def wait(message: MessageExt) -> None:
            await seen.handler(message)
            await gate.wait()

        await w.start(consumer)
        stopping = asyncio.ensure_future(consumer.stop())
        await w.clock.advance(seconds=1)
        gate.set()
        await w.finish(stopping)
        assert seen == [b"0"]
        assert sum(w.committed(queue_id) > 0 for queue_id in range(3)) == 1


async def test_retries_reach_handlers_in_order_too(tmp_path: Path) -> None:
    """An orderly group that was not so before may still have retries."""
    async with push_world(tmp_path) as w:
        await w.send(b"x")
        before, after = w.consumer(), Seen()

        @before.subscribe("T")
        async def fail(message: MessageExt) -> None:
            raise RetryLater

        async with consuming(w, before):
            assert before.stats.sent_back == 1
        consumer = w.consumer()
        consumer.subscribe("T", after.handler, orderly=True, batch=1)
        async with consuming(w, consumer):
            await w.clock.advance(seconds=12)
            assert (after, after.messages[0].topic) == ([b"x"], "T")


async def test_broadcasting_in_order_needs_no_locks(tmp_path: Path) -> None:
    async with push_world(tmp_path, 2) as w:
        await w.send_many(3, queue_id=1)
        seen = Seen()
        consumer = w.consumer(
            message_model=MessageModel.BROADCASTING, offset_folder=tmp_path / "offsets"
        )
        consumer.subscribe("T", seen.handler, orderly=True)
        async with consuming(w, consumer):
            assert seen == [b"0", b"1", b"2"]
            await w.clock.advance(minutes=1)
            assert not w.broker.features.groups.locks.holds_any("g", w.clock.now_ms())


async def test_a_lock_that_came_to_nothing_is_given_back(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        grant(script, QUEUE)
        script.server.answer(RequestCode.QUERY_CONSUMER_OFFSET, 1)  # so it cannot be taken up
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler, orderly=True)
        await script.start(consumer)
        assert QUEUE not in consumer.assignment
        assert script.server.of(RequestCode.UNLOCK_BATCH_MQ) == []  # it should still be ours
        script.server.answer_ok(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            body=GetConsumerListByGroupResponseBody(consumer_id_list=["somebody else"]),
        )
        await script.clock.advance(seconds=3)
        (unlocked,) = script.server.of(RequestCode.UNLOCK_BATCH_MQ)
        assert decode_body(UnlockBatchRequestBody, unlocked.body or b"").mq_set == [QUEUE]


async def test_a_stop_asks_each_broker_once_for_all_stray_locks(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        grant(script, QUEUE, RETRIES)
        script.server.answer(RequestCode.QUERY_CONSUMER_OFFSET, 1)  # so none can be taken up
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler, orderly=True)
        await script.start(consumer)
        script.server.answer(RequestCode.UNLOCK_BATCH_MQ, None)
        before = script.clock.monotonic()
        await script.finish(consumer.stop())
        assert script.clock.monotonic() - before < 1.5  # the time of one request
        (unlocked,) = script.server.of(RequestCode.UNLOCK_BATCH_MQ)
        asked = decode_body(UnlockBatchRequestBody, unlocked.body or b"").mq_set
        assert sorted(asked) == [RETRIES, QUEUE]


# ---- handlers that wait for their turn -----------------------------------------------------------


async def test_a_handler_is_not_called_when_its_queue_was_given_up_meanwhile(
    tmp_path: Path,
) -> None:
    async with push_world(tmp_path, 2) as w:
        gate = asyncio.Event()
        for queue_id in range(2):
            await w.send_many(1, queue_id=queue_id)
        seen = Seen()
        consumer = w.consumer(concurrency=1)

        @consumer.subscribe("T", orderly=True)
        async def wait(message: MessageExt) -> None:
            await seen.handler(message)
            await gate.wait()

        async with consuming(w, consumer):
            assert seen == [b"0"]  # that of the other queue waits for its turn
            consumer.unsubscribe("T")
            await w.clock.advance(seconds=2)
            gate.set()
            await w.clock.advance(seconds=5)
            assert seen == [b"0"]
            assert consumer.stats.failed == 0


async def test_a_handler_is_not_called_when_the_lock_was_lost_meanwhile(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.route.queue_datas[0].read_queue_nums = 2
        queues = (QUEUE, MessageQueue(topic="T", broker_name=BROKER, queue_id=1), RETRIES)
        grant(script, *queues)
        script.pulls.found(0, records(0), 1)  # in both queues
        tries: list[int] = []
        consumer = script.consumer(concurrency=1)

        @consumer.subscribe("T", orderly=True)
        async def wait(message: MessageExt) -> None:
            tries.append(message.reconsume_times)
            await gate.wait()

        await script.start(consumer)
        assert tries == [0]
        grant(script, RETRIES)  # somebody else has the others
        await script.clock.advance(seconds=21)
        gate.set()
        await script.clock.advance(seconds=1)
        assert tries == [0]
        grant(script, *queues)
        await script.clock.advance(seconds=10)
        assert tries == [0, 0]  # and it does not count as a failure
        assert consumer.stats.failed == 0


async def test_a_hook_that_raises_delays_a_lock_and_no_more(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate, hook, seen = asyncio.Event(), Stumbles(), Seen()
        grant(script, QUEUE, RETRIES)
        script.pulls.found(0, records(0, 1), 2)
        consumer = script.consumer(rpc_hooks=[hook])

        @consumer.subscribe("T", orderly=True)
        async def handle(message: MessageExt) -> None:
            await seen.handler(message)
            await gate.wait()

        await script.start(consumer)
        grant(script, RETRIES)  # somebody else has the other one
        await script.clock.advance(seconds=21)
        hook.codes.add(RequestCode.LOCK_BATCH_MQ)
        gate.set()
        await script.clock.advance(seconds=5)
        assert seen == [b"0"]
        hook.codes.clear()
        grant(script, QUEUE, RETRIES)
        await script.clock.advance(seconds=10)
        assert seen == [b"0", b"1"]
