"""A push consumer and a real broker: from the start to the stop."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.push.push_settings import _RANGES, PushSettings
from skylark.client.core.client_message import MessageExt, RetryLater
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.hooks import ConsumeContext
from skylark.client.core.service_state import ServiceState
from skylark.core.clock import yield_once
from skylark.core.errors import ClientError, ClientStateError, ConfigError, NoNameServerError
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import LockBatchResponseBody, MessageModel
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pushes import (
    Seen,
    consuming,
    none_left,
    push_world,
    records,
    scripted,
)
from tests.unit.client.worlds import world


async def test_messages_reach_the_handler_and_offsets_the_broker(tmp_path: Path) -> None:
    async with push_world(tmp_path, 4) as w:
        seen = Seen()
        for queue_id in range(4):
            await w.send_many(3, queue_id=queue_id)
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler)
        async with consuming(w, consumer):
            assert len(seen) == 12
            assert {queue.queue_id for queue in consumer.assignment if queue.topic == "T"} == {
                0, 1, 2, 3,
            }  # fmt: skip
            assert (consumer.lag, consumer.in_flight) == (0, 0)
            await w.send(b"later", queue_id=2)
            await w.clock.drain()  # a held pull is answered at once
            assert seen[-1] == b"later"
            assert (consumer.stats.consumed, consumer.stats.failed) == (13, 0)
            await w.clock.advance(seconds=15)
            assert [w.committed(queue_id) for queue_id in range(4)] == [3, 3, 4, 3]
        assert w.broker.features.groups.consumers.client_ids("g") == []


async def test_settings_are_checked() -> None:
    runtime = inline_runtime(clock=VirtualClock())
    options = ClientOptions(namesrv="127.0.0.1:9876")
    with pytest.raises(ConfigError, match=r"pull_batch_size is out of range \[1, 1024\]: 0"):
        PushConsumer("g", options, runtime=runtime, pull_batch_size=0)
    with pytest.raises(ConfigError, match="concurrency is out of range"):
        PushConsumer("g", options, runtime=runtime, concurrency=1001)
    with pytest.raises(ConfigError, match="consume_timestamp must have the form"):
        PushConsumer("g", options, runtime=runtime, consume_timestamp="yesterday")
    with pytest.raises(ClientError, match="cannot be DEFAULT_CONSUMER"):
        PushConsumer("DEFAULT_CONSUMER", options, runtime=runtime)
    consumer = PushConsumer("g", options, runtime=runtime, consume_timeout=timedelta(minutes=2))
    assert repr(consumer) == f"<PushConsumer g {consumer.client_id} CREATE_JUST>"
    assert (consumer.lag, consumer.in_flight, consumer.assignment) == (0, 0, frozenset())
    assert consumer.settings.consume_timeout_ms == 120_000
    with pytest.raises(ConfigError, match="batch is out of range"):
        consumer.subscribe("T", print, batch=0)
    with pytest.raises(ClientError, match="subscribes nothing"):
        await consumer.start()
    consumer.subscribe("T", print)
    with pytest.raises(ClientError, match="in order or not"):
        consumer.subscribe("U", print, orderly=True)


def test_errors_about_settings_have_their_names_in_python() -> None:
    for name, (low, _) in _RANGES.items():
        keyword = name.removesuffix("_ms")
        value = (low - 3) / 1000 if name.endswith("_ms") else low - 3
        with pytest.raises(ConfigError, match=rf"^{keyword} is out of range"):
            PushSettings(**cast(dict[str, Any], {keyword: value}))


async def test_life(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        consumer = w.consumer(instance_name="one")
        consumer.subscribe("T", Seen().handler)
        with pytest.raises(ClientStateError, match="has not been started"):
            await consumer.reset_to(datetime(2023, 1, 1, tzinfo=UTC))
        async with consuming(w, consumer):
            with pytest.raises(ClientStateError, match="runs already"):
                await consumer.start()
            twin = w.consumer(instance_name="one")
            twin.subscribe("T", Seen().handler)
            with pytest.raises(ClientStateError, match="created before, specify another name"):
                await w.finish(twin.start())
            assert twin.state is ServiceState.CREATE_JUST
        await consumer.stop()  # again does nothing
        with pytest.raises(ClientStateError, match="has been stopped"):
            await consumer.start()
        never = w.consumer()
        await never.stop()
        with pytest.raises(ClientStateError, match="has been stopped"):
            await never.start()


async def test_without_name_server_the_start_fails_and_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        with none_left():
            runtime = inline_runtime(made.network, made.clock)
            options = ClientOptions(namesrv="127.0.0.1:1", start_timeout=5)
            consumer = PushConsumer("g", options, runtime=runtime)
            consumer.subscribe("T", Seen().handler)
            with pytest.raises(NoNameServerError):
                await made.finish(consumer.start())


@pytest.mark.parametrize("silent", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT])
async def test_a_cancelled_start_leaves_nothing(tmp_path: Path, silent: RequestCode) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(silent, None)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        task = asyncio.ensure_future(consumer.start())
        await script.clock.advance(seconds=1)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await script.finish(task)
        assert consumer.state is ServiceState.CREATE_JUST


async def test_a_stop_while_it_starts(tmp_path: Path) -> None:
    for turns in range(12):
        async with push_world(tmp_path / str(turns)) as w:
            consumer = w.consumer(instance_name="one")
            consumer.subscribe("T", Seen().handler)
            starting = asyncio.ensure_future(consumer.start())
            for _ in range(turns):
                await yield_once()
            await w.finish(consumer.stop())
            await w.finish(asyncio.wait([starting]))
            assert consumer.state is ServiceState.SHUTDOWN_ALREADY
            assert isinstance(starting.exception(), ClientStateError)


async def test_a_new_subscription_replaces_the_old_one_at_the_broker(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler, tags="A")
        async with consuming(w, consumer):
            consumer.unsubscribe("T")
            consumer.subscribe("T", seen.handler, tags="B")
            await w.clock.advance(seconds=1)
            known = w.broker.features.groups.consumers.subscription("g", "T")
            assert known is not None
            assert known.sub_string == "B"
            await w.send(b"a", tag="A")
            await w.send(b"b", tag="B")
            await w.clock.advance(seconds=1)
            assert seen == [b"b"]


def test_a_second_subscription_with_another_filter_is_refused() -> None:
    consumer = PushConsumer("g", ClientOptions(namesrv="127.0.0.1:1"))
    seen = Seen()
    consumer.subscribe("T", seen.handler, tags="A || B")
    for other in ({"tags": "C"}, {"tags": "A"}, {}, {"sql": "a > 5"}):
        with pytest.raises(
            ClientError, match=r"topic T is subscribed with tags 'A \|\| B' already"
        ):
            consumer.subscribe("T", seen.handler, **other)  # type: ignore[call-overload]
    consumer.subscribe("T", seen.handler, tags="B||A")  # the same
    consumer.unsubscribe("T")
    consumer.subscribe("T", seen.handler, tags="C")


async def test_queues_are_shared_and_come_back(tmp_path: Path) -> None:
    async with push_world(tmp_path, 4) as w:
        told: list[tuple[str, int, int]] = []
        first = w.consumer(
            instance_name="1",
            queue_listener=lambda topic, every, mine: told.append((topic, len(every), len(mine))),
        )
        second = w.consumer(instance_name="2")
        seen = Seen()
        first.subscribe("T", seen.handler)
        second.subscribe("T", seen.handler)

        def of_topic(consumer: PushConsumer) -> set[int]:
            return {queue.queue_id for queue in consumer.assignment if queue.topic == "T"}

        async with consuming(w, first):
            assert of_topic(first) == {0, 1, 2, 3}
            async with consuming(w, second):
                assert (of_topic(first), of_topic(second)) == ({0, 1}, {2, 3})
                for queue_id in range(4):
                    await w.send_many(5, queue_id=queue_id)
                await w.clock.drain()
                assert (first.stats.consumed, second.stats.consumed) == (10, 10)
            await w.clock.advance(seconds=3)
            assert of_topic(first) == {0, 1, 2, 3}
            assert len(seen) == 20  # nothing twice: the second one saved its offsets
            assert [t for t in told if t[0] == "T"] == [("T", 4, 4), ("T", 4, 2), ("T", 4, 4)]


async def test_subscriptions_come_and_go_while_it_runs(tmp_path: Path) -> None:
    async with push_world(tmp_path, 1, "T", "U") as w:
        await w.send(b"t", topic="T")
        await w.send(b"u", topic="U")
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler)
        async with consuming(w, consumer):
            consumer.subscribe("U", seen.handler)
            await w.clock.advance(seconds=3)
            assert seen == [b"t", b"u"]
            consumer.unsubscribe("T")
            await w.clock.advance(seconds=3)
            assert w.committed(topic="T") == 1  # saved when the queue was given up
            await w.send(b"for nobody", topic="T")
            await w.clock.advance(seconds=3)
            assert seen == [b"t", b"u"]
            assert {queue.topic for queue in consumer.assignment} <= {"U", "%RETRY%g"}


async def test_subscriptions_come_and_go_while_it_starts(tmp_path: Path) -> None:
    async with push_world(tmp_path, 1, "T", "U") as w:
        await w.send(b"t", topic="T")
        await w.send(b"u", topic="U")
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler)
        starting = asyncio.ensure_future(consumer.start())
        await yield_once()
        assert consumer.state is ServiceState.START_FAILED  # until it runs
        consumer.subscribe("U", seen.handler)
        consumer.unsubscribe("T")
        await w.finish(starting)
        await w.clock.advance(seconds=3)
        assert seen == [b"u"]
        assert {queue.topic for queue in consumer.assignment} <= {"U", "%RETRY%g"}


async def test_suspend_and_resume(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler)
        async with consuming(w, consumer):
            consumer.suspend()
            await w.clock.advance(seconds=20)  # the pull that was under way ends
            await w.send(b"x")
            await w.clock.advance(seconds=20)
            assert seen == []
            consumer.resume()
            await w.clock.advance(seconds=2)
            assert seen == [b"x"]


@pytest.mark.spec("client.8.39")
async def test_namespaces_are_for_the_wire_only(tmp_path: Path) -> None:
    async with push_world(tmp_path, 1, "ns%T") as w:
        await w.send(b"x", topic="ns%T")
        seen = Seen()
        contexts: list[ConsumeContext] = []

        class Hook:
            def before_consume(self, context: ConsumeContext) -> None:
                contexts.append(context)

        consumer = w.consumer(namespace="ns", hooks=[Hook()])

        @consumer.subscribe("T")
        async def fail_once(message: MessageExt) -> None:
            await seen.handler(message)
            if len(seen) == 1:
                raise RetryLater

        async with consuming(w, consumer):
            assert w.broker.features.groups.consumers.client_ids("ns%g") == [consumer.client_id]
            await w.clock.advance(seconds=45)
            assert w.committed(group="ns%g", topic="ns%T") == 1
            assert w.committed(group="ns%g", topic="%RETRY%ns%g") == 1
        assert [message.topic for message in seen.messages] == ["T", "T"]
        assert [context.queue.topic for context in contexts] == ["T", "%RETRY%g"]
        assert (contexts[0].group, contexts[0].namespace) == ("g", "ns")


@pytest.mark.spec("client.8.39")
async def test_namespaces_of_the_second_kind_leave_names_alone(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.pulls.found(0, records(0), 1)
        seen = Seen()
        consumer = script.consumer(namespace_v2="ns")
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        assert [message.topic for message in seen.messages] == ["T"]
        pull = script.pulls.requests[0]
        assert (pull["topic"], pull["consumerGroup"]) == ("T", "g")
        assert (pull["nsd"], pull["ns"]) == ("true", "ns")


async def test_hooks_see_each_call(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CONSUMER_SEND_MSG_BACK, 0)
        script.pulls.found(0, records(0, 1, 2, 3), 4)
        seen: list[tuple[int, bool, str | None, str | None]] = []

        class Hook:
            def after_consume(self, context: ConsumeContext) -> None:
                (message,) = context.messages
                seen.append(
                    (message.queue_offset, context.success, context.status, context.return_type)
                )

        consumer = script.consumer(hooks=[Hook()], consume_timeout=10)

        @consumer.subscribe("T")
        async def handle(message: MessageExt) -> None:
            if message.queue_offset == 1:
                raise RetryLater
            if message.queue_offset == 2:
                raise ValueError
            if message.queue_offset == 3:
                await script.clock.sleep(10)

        await script.start(consumer)
        await script.clock.advance(seconds=10)
        assert sorted(seen) == [
            (0, True, "CONSUME_SUCCESS", "SUCCESS"),
            (1, False, "RECONSUME_LATER", "FAILED"),
            (2, False, "RECONSUME_LATER", "EXCEPTION"),
            (3, True, "CONSUME_SUCCESS", "TIME_OUT"),
        ]


async def test_topic_limits_are_divided_among_the_queues(tmp_path: Path) -> None:
    async with push_world(tmp_path, 4) as w:
        consumer = w.consumer(pull_threshold_for_topic=100, pull_threshold_size_for_topic=40)
        consumer.subscribe("T", Seen().handler)
        async with consuming(w, consumer):
            assert consumer._parts is not None
            flow = consumer._parts.flow
            assert (flow.count_max, flow.size_max) == (20, 8 << 20)  # retries are the fifth queue


async def test_the_consumer_is_back_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler)
        async with consuming(w, consumer):
            await w.send(b"before")
            await w.world.stop(w.broker)
            await w.clock.advance(seconds=5)
            await w.world.add_broker()
            await w.clock.advance(seconds=5)
            assert w.broker.features.groups.consumers.client_ids("g") == [consumer.client_id]
            await w.send(b"after")
            await w.clock.advance(seconds=5)
            assert seen == [b"before", b"after"]


# ---- the end -------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.33")
async def test_the_order_of_a_stop(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        script.server.answer_ok(
            RequestCode.LOCK_BATCH_MQ, body=LockBatchResponseBody(lock_ok_mq_set=[queue])
        )
        script.pulls.found(0, records(0, 1), 2)
        seen = Seen()
        consumer = script.consumer()

        @consumer.subscribe("T", orderly=True)
        async def wait(message: MessageExt) -> None:
            await seen.handler(message)
            await gate.wait()

        await script.start(consumer)
        script.server.requests.clear()
        stopping = asyncio.ensure_future(consumer.stop())
        await script.clock.advance(seconds=5)
        assert not stopping.done()  # the handler still runs
        assert script.server.of(RequestCode.UNREGISTER_CLIENT) == []
        gate.set()
        await script.finish(stopping)
        assert seen == [b"0"]  # no handler starts any more
        ends = [
            request.code
            for request in script.server.requests
            if request.code not in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.LOCK_BATCH_MQ)
        ]
        assert ends == [
            RequestCode.UPDATE_CONSUMER_OFFSET,  # whoever gets the lock next reads it
            RequestCode.UNLOCK_BATCH_MQ,
            RequestCode.UNREGISTER_CLIENT,
        ]
        assert script.committed[-1] == 1


@pytest.mark.spec("client.8.33")
async def test_a_handler_that_does_not_end_is_cancelled_and_its_message_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(2)
        seen, ended = Seen(), []
        consumer = w.consumer(await_termination=3)

        @consumer.subscribe("T")
        async def hang(message: MessageExt) -> None:
            if message.body == b"0":
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(message.body)

        await w.start(consumer)
        started_ms = w.clock.now_ms()
        await w.finish(consumer.stop())
        assert 3_000 <= w.clock.now_ms() - started_ms <= 4_000
        assert ended == [b"0"]
        assert "have not ended" in caplog.text
        other = w.consumer()
        other.subscribe("T", seen.handler)
        async with consuming(w, other):
            assert seen == [b"0", b"1"]


async def test_a_handler_cannot_wait_for_the_end_of_its_consumer(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(1)
        consumer = w.consumer()
        tasks: list[asyncio.Task[None]] = []

        @consumer.subscribe("T")
        async def stop(message: MessageExt) -> None:
            with pytest.raises(ClientStateError, match="cannot wait for the end of its own"):
                await consumer.stop()
            tasks.append(asyncio.ensure_future(consumer.stop()))

        await w.start(consumer)
        await w.finish(tasks[0])
        assert consumer.state is ServiceState.SHUTDOWN_ALREADY
        assert w.committed() == 1


async def test_a_cancelled_stop_goes_on(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        gate = asyncio.Event()
        await w.send_many(1)
        consumer = w.consumer()

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await w.start(consumer)
        task = asyncio.ensure_future(consumer.stop())
        await w.clock.drain()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        await w.finish(consumer.stop())
        assert w.committed() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_ends_with_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    async with push_world(tmp_path) as w:
        await w.send_many(1)
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler)
        before = signal.getsignal(number)
        running = asyncio.ensure_future(consumer.run())
        await w.clock.advance(seconds=3)
        assert seen == [b"0"]
        signal.raise_signal(number)
        assert signal.getsignal(number) is before  # a second one is not for us
        await w.finish(running)
        assert w.committed() == 1
        assert consumer.state is ServiceState.SHUTDOWN_ALREADY


async def test_run_ends_with_a_stop(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        consumer = w.consumer()
        consumer.subscribe("T", Seen().handler)
        running = asyncio.ensure_future(consumer.run())
        await w.clock.advance(seconds=3)
        await w.finish(consumer.stop())
        await w.finish(running)


async def test_broadcasting_goes_on_where_its_file_ended(tmp_path: Path) -> None:
    async with push_world(tmp_path, 2) as w:
        seen = Seen()
        for _ in range(2):
            await w.send_many(3, queue_id=1)
            consumer = w.consumer(
                message_model=MessageModel.BROADCASTING, offset_folder=tmp_path / "o"
            )
            consumer.subscribe("T", seen.handler)
            async with consuming(w, consumer):
                assert {queue.queue_id for queue in consumer.assignment} == {0, 1}
        assert len(seen) == 6
        assert w.committed(1) == -1  # brokers know nothing of it
