"""The end of pop consumers: their requests that wait at brokers hide no messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pops import POP, PopWorld, pop_world
from tests.unit.client.consumer.pushes import Seen


async def test_a_stop_withdraws_the_requests_that_wait(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        hanging, other = w.servers
        waiting = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=1)
        hanging.answer(RequestCode.UNREGISTER_CLIENT, None)
        stopping = asyncio.ensure_future(consumer.stop())
        await w.clock.advance(seconds=1)
        assert waiting.result() == []
        assert not stopping.done()
        other.put(b"new")
        await w.clock.advance(seconds=1)
        assert other.messages[0].handles == []
        await w.finish(stopping)


async def test_what_is_given_back_is_not_taken_again(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        cancelled = [asyncio.ensure_future(consumer.receive(wait=15)) for _ in range(2)]
        await w.clock.advance(seconds=1)
        for each in cancelled:
            each.cancel()
        await w.clock.drain()
        w.server.put(b"a")  # for the first request; the second one still waits
        await w.clock.drain()
        w.server.answer(RequestCode.UNREGISTER_CLIENT, None)
        stopping = asyncio.ensure_future(consumer.stop())
        await w.clock.advance(seconds=2)
        held = w.server.messages[0]
        assert len(held.handles) == 2  # of the pop, and of giving it back
        assert held.visible_at_ms <= w.clock.now_ms()
        await w.finish(stopping)


@pytest.mark.parametrize("kind", ["pop", "push"])
async def test_on_shared_connections_they_run_on_and_give_back(tmp_path: Path, kind: str) -> None:
    async with pop_world(tmp_path) as w:
        ending = await started_consumer(w, kind)
        other = w.pop_consumer("other", instance_name="shared")
        await w.start(other)
        receiving = None
        if isinstance(ending, PopConsumer):
            receiving = asyncio.ensure_future(ending.receive(wait=15))
        await w.clock.advance(seconds=1)
        await w.finish(ending.stop())
        if receiving is not None:
            assert receiving.result() == []
        assert len(w.server.connections) > 0
        w.server.put(b"a")
        await w.clock.advance(seconds=0.5)
        held = w.server.messages[0]
        assert held.handles  # the request took it
        assert held.suspended
        assert held.visible_at_ms - w.clock.now_ms() <= 1_000  # and gave it back
        assert [each.body for each in await w.finish(other.receive(wait=5))] == [b"a"]


async def test_they_end_with_the_connections(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        ending = await started_consumer(w, "push")
        other = w.pop_consumer("other", instance_name="shared")
        await w.start(other)
        await w.finish(ending.stop())
        pops = len(w.server.of(POP))
        await w.finish(other.stop())
        w.server.put(b"a")
        await w.clock.advance(seconds=20)
        assert w.server.messages[0].handles == []
        assert len(w.server.of(POP)) == pops


async def started_consumer(w: PopWorld, kind: str) -> PopConsumer | PushConsumer:
    """A consumer whose connections others may share, with a request that waits."""
    consumer: PopConsumer | PushConsumer
    if kind == "pop":
        consumer = w.pop_consumer(instance_name="shared")
    else:
        consumer = w.push_consumer(instance_name="shared")
        consumer.subscribe("T", Seen().handler)
    await w.start(consumer)
    return consumer
