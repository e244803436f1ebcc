"""Consumers that start before their name server, or again after a start that failed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from skylark.client.consumer.classic_pull_consumer import PullConsumer
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import Message, MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.service_state import ServiceState
from skylark.client.producer.producer import Producer
from skylark.core.errors import ClientStateError, NoNameServerError
from skylark.testing import broker
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.unit.client.consumer.pushes import Seen, none_left
from tests.unit.client.worlds import FakeConsumer, World, world

NAMESRV = "127.0.0.1:9876"
Consumer: TypeAlias = PushConsumer | LitePullConsumer | PullConsumer | PopConsumer


def push(w: World, **options: Any) -> PushConsumer:
    runtime = inline_runtime(w.network, w.clock)
    consumer = PushConsumer("g", w.options(namesrv=NAMESRV, **options), runtime=runtime)
    consumer.subscribe("T", Seen().handler)
    return consumer


def lite(w: World, **options: Any) -> LitePullConsumer:
    runtime = inline_runtime(w.network, w.clock)
    given = w.options(namesrv=NAMESRV, **options)
    return LitePullConsumer("g", given, runtime=runtime).subscribe("T")


def classic(w: World, **options: Any) -> PullConsumer:
    runtime = inline_runtime(w.network, w.clock)
    given = w.options(namesrv=NAMESRV, **options)
    return PullConsumer("g", given, runtime=runtime).register_queue_listener("T")


def pop(w: World, **options: Any) -> PopConsumer:
    runtime = inline_runtime(w.network, w.clock)
    given = w.options(namesrv=NAMESRV, **options)
    return PopConsumer("g", given, runtime=runtime).subscribe("T")


MAKES = pytest.mark.parametrize("make", [push, lite, classic, pop])


@asynccontextmanager
async def nothing_there(root: Path) -> AsyncIterator[World]:
    async with world(root) as w:
        with none_left():
            yield w


async def servers_come(w: World) -> None:
    await w.add_name_server()
    await w.add_broker()
    await w.add_topic("T")


@MAKES
async def test_a_start_waits_for_the_name_server(
    tmp_path: Path, make: Callable[[World], Consumer], caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_there(tmp_path) as w:
        consumer = make(w)
        starting = asyncio.ensure_future(consumer.start())
        await w.clock.advance(seconds=25)
        assert not starting.done()
        waits = [r for r in caplog.records if "waits for a name server" in r.getMessage()]
        assert len(waits) == 1  # logged once
        await w.add_name_server()
        await w.finish(starting)
        assert consumer.state is ServiceState.RUNNING
        await w.finish(consumer.stop())


@MAKES
async def test_a_start_that_failed_can_be_repeated(
    tmp_path: Path, make: Callable[[World], Consumer]
) -> None:
    async with nothing_there(tmp_path) as w:
        consumer = make(w)
        before_ms = w.clock.now_ms()
        with pytest.raises(NoNameServerError):
            await w.finish(consumer.start())
        assert 25_000 <= w.clock.now_ms() - before_ms <= 31_000
        assert consumer.state is ServiceState.CREATE_JUST
        await servers_come(w)
        await w.finish(consumer.start())
        await w.clock.advance(seconds=3)
        await w.finish(consumer.stop())
        assert str(consumer.state) == str(ServiceState.SHUTDOWN_ALREADY)


@MAKES
async def test_without_a_time_to_wait_a_start_fails_at_once(
    tmp_path: Path, make: Callable[..., Consumer]
) -> None:
    async with nothing_there(tmp_path) as w:
        consumer = make(w, start_timeout=0)
        before_ms = w.clock.now_ms()
        with pytest.raises(NoNameServerError):
            await w.finish(consumer.start())
        assert w.clock.now_ms() - before_ms < 1_000


@MAKES
async def test_a_cancelled_start_can_be_repeated_and_logs_no_traceback(
    tmp_path: Path, make: Callable[[World], Consumer], caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_there(tmp_path) as w:
        await servers_come(w)
        consumer = make(w)
        for turns in range(25):
            starting = asyncio.ensure_future(consumer.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            if starting.done():
                break
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await w.finish(starting)
            assert consumer.state is ServiceState.CREATE_JUST
        assert [r for r in caplog.records if r.exc_info or r.levelno >= logging.ERROR] == []
        if consumer.state is ServiceState.CREATE_JUST:
            await w.finish(consumer.start())
        await w.finish(consumer.stop())


async def test_run_waits_without_limit_and_ends_when_it_is_told(tmp_path: Path) -> None:
    async with nothing_there(tmp_path) as w:
        for comes in (False, True):
            consumer, ended = push(w), asyncio.Event()
            running = asyncio.ensure_future(consumer.run_until(ended))
            await w.clock.advance(seconds=600)
            assert not running.done()
            if comes:
                await servers_come(w)
                assert consumer.state is ServiceState.RUNNING
            ended.set()
            await w.finish(running)
            assert consumer.state is ServiceState.SHUTDOWN_ALREADY


# ---- a client id that is in use ------------------------------------------------------------------


@asynccontextmanager
async def another_process(w: World) -> AsyncIterator[None]:
    """A member of the group with the id ``127.0.0.1@same``, and connections of its own."""
    async with w.client("127.0.0.1@same") as instance:
        await w.finish(instance.refresh_route("T"))
        await w.finish(instance.register_consumer(FakeConsumer("g", "T")))
        await w.finish(instance.heartbeat_all(whole=True))
        yield


@MAKES
async def test_an_id_that_another_process_has_is_refused(
    tmp_path: Path, make: Callable[..., Consumer], caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_there(tmp_path) as w:
        await servers_come(w)
        consumer = make(w, instance_name="same")
        pulls = make in (lite, classic)
        client_id = "127.0.0.1@same@STREAM" if pulls else "127.0.0.1@same"
        async with w.client(client_id, stream=pulls) as other:
            await w.finish(other.refresh_route("T"))
            await w.finish(other.register_consumer(FakeConsumer("g", "T")))
            await w.finish(other.heartbeat_all(whole=True))
            starting = asyncio.ensure_future(consumer.start())
            await w.clock.advance(seconds=60)
            assert not starting.done()  # it may be what is left of an earlier process
            assert sum(f"the client id {client_id} is in use" in t for t in caplog.messages) == 1
            await w.clock.advance(seconds=61)
            with pytest.raises(ClientStateError, match=r"is in use by 127\.0\.0\.1:") as caught:
                await w.finish(starting)
            assert "instance_name" in str(caught.value)
        assert consumer.state is ServiceState.CREATE_JUST


async def test_a_restarted_program_may_have_its_id_again(tmp_path: Path) -> None:
    async with nothing_there(tmp_path) as w:
        await servers_come(w)
        consumer = push(w, instance_name="same")
        async with another_process(w):
            starting = asyncio.ensure_future(consumer.start())
            await w.clock.advance(seconds=20)
            assert not starting.done()
        await w.finish(starting)
        assert consumer.state is ServiceState.RUNNING
        await w.finish(consumer.stop())
        again = push(w, instance_name="same")
        before_ms = w.clock.now_ms()
        await w.finish(again.start())
        assert w.clock.now_ms() - before_ms < 2_000
        await w.finish(again.stop())


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
async def test_a_consumer_with_an_instance_name_gets_messages(
    kind: type[PushConsumer | LitePullConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    """As in an application, where control work has a thread: the check of the id is done there."""
    async with broker(transport="loopback") as local:
        options = ClientOptions(namesrv=local.namesrv, instance_name="mine")
        topic = await local.topic(queue_count=1)
        async with Producer("p", options) as producer:
            await producer.send(Message(topic, b"first"))
        got: asyncio.Queue[bytes] = asyncio.Queue()

        async def handle(message: MessageExt) -> None:
            got.put_nowait(message.body)

        consumer = kind("g", options, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        if isinstance(consumer, PushConsumer):
            consumer.subscribe(topic, handle)
        else:
            consumer.subscribe(topic)
        async with asyncio.timeout(30), consumer:
            if isinstance(consumer, LitePullConsumer):
                while not (messages := await consumer.poll(timeout=1)):
                    pass
                got.put_nowait(messages[0].body)
            assert await got.get() == b"first"
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []
