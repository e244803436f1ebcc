"""Pull consumers in clumsy hands: stopped while they start, or never, polled without waiting."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.classic_pull_consumer import PullConsumer
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.instance_registry import instance_count
from skylark.client.core.service_state import ServiceState
from skylark.core.errors import ClientError, ClientStateError, ConfigError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.support.loops import eventually, is_collected
from tests.unit.client.consumer.pull_world import bodies, pull_world, queue, served

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer])
async def test_a_consumer_stopped_while_it_starts_is_not_left_running(
    tmp_path: Path, kind: type[LitePullConsumer] | type[PullConsumer]
) -> None:
    async with pull_world(tmp_path) as w:
        before = instance_count()
        consumer = kind("g", w.options(), runtime=w.runtime)
        starting = asyncio.ensure_future(consumer.start())
        await asyncio.sleep(0)
        await w.finish(consumer.stop())
        with pytest.raises(ClientStateError, match="consumer g was stopped while it started"):
            await w.finish(starting)
        assert consumer.state is ServiceState.SHUTDOWN_ALREADY
        assert instance_count() == before


@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer])
async def test_a_stop_that_is_cancelled_goes_on(
    tmp_path: Path, kind: type[LitePullConsumer] | type[PullConsumer]
) -> None:
    async with pull_world(tmp_path) as w:
        before = instance_count()
        consumer = kind("g", w.options(), runtime=w.runtime)
        await w.finish(consumer.start())
        impatient = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        await w.finish(consumer.stop())  # waits for the first one
        assert instance_count() == before


@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer])
async def test_another_loop_is_refused(
    tmp_path: Path, kind: type[LitePullConsumer] | type[PullConsumer]
) -> None:
    async with pull_world(tmp_path) as w:
        consumer = kind("g", w.options(), runtime=w.runtime)
        await w.finish(consumer.start())
        for use in (consumer.stop, lambda: consumer.max_offset(queue())):
            with pytest.raises(ClientStateError, match="consumer g belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, use())
        await w.finish(consumer.stop())
        assert consumer.state is ServiceState.SHUTDOWN_ALREADY


async def with_all_queues(
    kind: type[LitePullConsumer] | type[PullConsumer], options: ClientOptions
) -> LitePullConsumer | PullConsumer:
    """A member of the group that was started and has all four queues."""
    has_all = asyncio.Event()

    def listen(topic: str, all_: frozenset[MessageQueue], ours: frozenset[MessageQueue]) -> None:
        if len(ours) == 4:
            has_all.set()

    consumer = kind("g", options)
    if isinstance(consumer, LitePullConsumer):
        consumer.subscribe("T", listener=listen)
    else:
        consumer.register_queue_listener("T", listen)
    await consumer.start()
    async with asyncio.timeout(20):
        await has_all.wait()
    return consumer


@pytest.mark.parametrize("kind", [LitePullConsumer, PullConsumer])
async def test_a_consumer_whose_loop_was_closed_leaves_its_queues_to_others(
    tmp_path: Path, kind: type[LitePullConsumer] | type[PullConsumer]
) -> None:
    with served(tmp_path) as at:
        await asyncio.to_thread(at.send, b"a")
        options = ClientOptions(namesrv=at.namesrv)
        forgotten = await asyncio.to_thread(asyncio.run, with_all_queues(kind, options))
        with pytest.raises(ClientStateError, match="consumer g belongs to another event loop"):
            await forgotten.stop()
        other = await with_all_queues(kind, options)
        await other.stop()
        await eventually(lambda: instance_count() == 0)
        abandoned = weakref.ref(forgotten)
        del forgotten
        await eventually(lambda: is_collected(abandoned))


async def test_who_polls_without_waiting_gets_messages_nevertheless(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(b"a")
        consumer.subscribe("T")
        await w.finish(consumer.start())
        await w.until(lambda: bool(consumer.assignment))

        async def spin() -> list[bytes]:
            for _ in range(1_000):
                if found := await consumer.poll(0):
                    return bodies(found)
            return []

        await consumer.poll(0)
        await w.finish(consumer.seek(queue(), 0))
        assert await spin() == [b"a"]


async def test_after_unsubscribe_no_message_of_another_tag_comes(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.world.add_topic("U", 1)
        consumer.subscribe("T", "wanted").subscribe("U")
        await w.finish(consumer.start())
        await w.until(lambda: consumer.assignment == {queue(), queue(0, "U")})
        consumer.unsubscribe("T")
        assert consumer.assignment == {queue(0, "U")}
        await w.send(b"other")
        assert await w.finish(consumer.poll(40)) == []


async def test_queues_of_messages_are_named_as_the_application_knows_them(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        await w.world.add_topic("ns%T", 1)
        await w.send(b"a", b"b", topic="ns%T")
        async with w.lite(options=w.options(namespace="ns"), auto_commit=False) as consumer:
            consumer.subscribe("T")
            await w.finish(consumer.start())
            (first, second) = await w.finish(consumer.poll(10))
            assert first.queue == queue()
            assert consumer.assignment == {first.queue}
            await w.finish(consumer.commit([first], persist=True))
            assert await w.finish(consumer.committed(second.queue)) == 1


async def test_a_negative_offset_is_not_committed(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        consumer.subscribe("T")
        await w.finish(consumer.start())
        await w.until(lambda: bool(consumer.assignment))
        with pytest.raises(ClientError, match=r"offset -5 .* cannot be committed"):
            await consumer.commit({queue(): -5})


async def test_a_broker_that_is_down_does_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pull_world(tmp_path) as w, w.lite() as lite, AsyncExitStack() as at_end:
        push = PushConsumer("p", w.options(), runtime=w.runtime)
        push.subscribe("T", lambda message: None)
        lite.subscribe("T")
        await w.finish(lite.start())
        await w.finish(push.start())
        at_end.push_async_callback(lambda: w.finish(push.stop()))
        await w.until(lambda: queue() in lite.assignment and queue() in push.assignment)
        await w.clock.advance(seconds=1)
        await w.world.stop(w.world.brokers["broker-a"])
        for _ in range(30):
            await w.clock.advance(seconds=1)
            await w.clock.drain()
        names = [r.name.rpartition(".")[2] for r in caplog.records if str(queue()) in r.message]
        assert names.count("pull_loop") == 1
        assert names.count("lite_pull_queues") == 1


def test_settings_of_a_wrong_type_are_refused() -> None:
    name: Any = "CLUSTERING"  # would have meant broadcasting
    where: Any = "CONSUME_FROM_FIRST_OFFSET"  # would have meant the last
    for kind in (PushConsumer, LitePullConsumer, PullConsumer):
        with pytest.raises(ConfigError, match="message_model must be a MessageModel"):
            kind("g", message_model=name)
    for subscriber in (PushConsumer, LitePullConsumer):
        with pytest.raises(ConfigError, match="consume_from_where must be a ConsumeFromWhere"):
            subscriber("g", consume_from_where=where)
    with pytest.raises(ClientError, match="the handler of topic T is int, no function"):
        PushConsumer("g").subscribe("T", 5)  # type: ignore[call-overload]
    with pytest.raises(ClientError, match="topic must be text, not a function"):
        PushConsumer("g").subscribe(test_settings_of_a_wrong_type_are_refused)  # type: ignore[call-overload]


def test_settings_take_timedeltas() -> None:
    consumer = LitePullConsumer("g", poll_timeout=timedelta(seconds=2))
    assert consumer.settings.poll_timeout == 2.0
