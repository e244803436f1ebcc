"""Members join and leave: the next owner of a queue continues where the old one ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.rebalance_executor import RebalanceExecutor
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_runtime import inline_runtime
from tests.unit.client.consumer.pushes import FIRST, PushWorld, push_world, said_to_differ
from tests.unit.client.worlds import FakeConsumer

QUEUES = 4


class Handled(Counter[bytes]):
    """How often each message was handed to a handler, and those that were handed out and not done.

    A handler takes ``takes_s``.
    """

    def __init__(self, w: PushWorld, takes_s: float = 0.0) -> None:
        super().__init__()
        self.w = w
        self.takes_s = takes_s
        self.under_way: set[bytes] = set()

    async def handler(self, message: MessageExt) -> None:
        self[message.body] += 1
        self.under_way.add(message.body)
        if self.takes_s:
            await self.w.clock.sleep(self.takes_s)
        self.under_way.discard(message.body)

    @property
    def repeated(self) -> list[bytes]:
        return [body for body, count in self.items() if count > 1]

    def member(self, name: str, **given: Any) -> PushConsumer:
        consumer = self.w.consumer(instance_name=name, **given)
        consumer.subscribe("T", self.handler)
        return consumer

    async def send(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            await self.w.send(b"%d" % number, queue_id=number % QUEUES)


async def test_a_member_that_joins_an_idle_group_repeats_nothing(tmp_path: Path) -> None:
    async with push_world(tmp_path, QUEUES) as w:
        handled = Handled(w)
        await w.start(handled.member("a"))
        await handled.send(0, 80)
        await w.clock.advance(seconds=1)
        assert len(handled) == 80
        second = handled.member("b")
        await w.start(second)
        await w.clock.advance(seconds=10)
        assert len(second.assignment) == QUEUES // 2
        assert handled.repeated == []


async def test_a_member_that_leaves_an_idle_group_repeats_nothing(tmp_path: Path) -> None:
    async with push_world(tmp_path, QUEUES) as w:
        handled = Handled(w)
        first, second = handled.member("a"), handled.member("b")
        await w.start(first)
        await w.start(second)
        await w.clock.advance(seconds=5)
        await handled.send(0, 80)
        await w.clock.advance(seconds=1)
        assert len(handled) == 80
        await w.finish(first.stop())
        await w.clock.advance(seconds=30)
        assert len(second.assignment) == QUEUES + 1  # and that of its retries
        assert handled.repeated == []


async def test_offsets_are_saved_when_a_queue_runs_dry(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        handled = Handled(w)
        await w.start(handled.member("a"))
        await w.clock.advance(seconds=60)  # saves are periodic, the next one is seconds away
        await w.send(b"0")
        await w.clock.advance(seconds=0.5)
        assert w.committed() == 1


async def test_a_member_that_joins_a_busy_group_repeats_only_what_is_under_way(
    tmp_path: Path,
) -> None:
    """Handlers that end in time are waited for, so nothing is repeated."""
    async with push_world(tmp_path, QUEUES) as w:
        handled = Handled(w, takes_s=0.2)
        await w.start(handled.member("a", concurrency=4))
        await handled.send(0, 200)
        await w.clock.advance(seconds=2)
        assert 0 < len(handled) < 100
        second = handled.member("b", concurrency=4)
        await w.start(second)
        assert second.assignment
        await w.clock.advance(seconds=30)
        assert len(handled) == 200
        assert handled.repeated == []


async def test_handlers_that_do_not_end_are_not_waited_for_without_end(tmp_path: Path) -> None:
    async with push_world(tmp_path, QUEUES) as w:
        handled = Handled(w, takes_s=600)
        await w.start(handled.member("a", concurrency=4))
        await handled.send(0, 8)
        await w.clock.advance(seconds=2)
        under_way = set(handled.under_way)
        assert len(under_way) == 4
        second = handled.member("b", concurrency=20)
        await w.start(second)
        await w.clock.advance(seconds=10)
        assert second.assignment
        assert set(handled.repeated) <= under_way


async def test_a_member_that_leaves_a_busy_group_repeats_nothing(tmp_path: Path) -> None:
    async with push_world(tmp_path, QUEUES) as w:
        handled = Handled(w, takes_s=0.2)
        first, second = handled.member("a", concurrency=4), handled.member("b", concurrency=4)
        await w.start(first)
        await w.start(second)
        await w.clock.advance(seconds=5)
        await handled.send(0, 200)
        await w.clock.advance(seconds=2)
        await w.finish(first.stop())
        await w.clock.advance(seconds=30)
        assert len(handled) == 200
        assert handled.repeated == []


async def test_members_that_subscribe_to_different_topics_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with push_world(tmp_path, 1, "T", "U") as w:
        handled = Handled(w)
        first = w.consumer(instance_name="first")
        first.subscribe("T", handled.handler)
        second = w.consumer(instance_name="second")
        second.subscribe("U", handled.handler)
        await w.start(first)
        await w.start(second)
        await w.clock.advance(seconds=120)
        found = said_to_differ(caplog)
        assert found
        assert "127.0.0.1@second" in found[0]
        assert "topic T" in found[0]
        assert len(found) < 10  # not with each pull


async def test_the_only_member_gets_its_first_message_at_once(tmp_path: Path) -> None:
    async with push_world(tmp_path, QUEUES) as w:
        await w.send(b"0")
        handled = Handled(w)
        started_ms = w.clock.now_ms()
        consumer = handled.member("a")
        starting = asyncio.ensure_future(consumer.start())
        while not handled:
            await w.clock.advance(seconds=0.01)
        assert w.clock.now_ms() - started_ms <= 100
        await w.finish(starting)


@pytest.mark.parametrize("delays", [True, False])
async def test_test_brokers_have_no_delay_even_if_nobody_confirms(
    tmp_path: Path, delays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> None: ...

    monkeypatch.setattr(RebalanceExecutor, "_holds", unknown)
    async with push_world(tmp_path, QUEUES) as w:
        handled = Handled(w)
        runtime = inline_runtime(w.network, w.clock, delays_first_pull=delays)
        async with w.world.client("127.0.0.1@zzz") as other:  # a member that holds no queues
            await w.finish(other.refresh_route("T"))
            await w.finish(other.register_consumer(FakeConsumer("g", "T")))
            await w.finish(other.heartbeat_all(whole=True))
            await handled.send(0, QUEUES)
            options = w.world.options(instance_name="a")
            consumer = PushConsumer("g", options, runtime=runtime, consume_from_where=FIRST)
            consumer.subscribe("T", handled.handler)
            started_ms = w.clock.now_ms()
            starting = asyncio.ensure_future(consumer.start())
            while not handled:
                await w.clock.advance(seconds=0.01)
            took_ms = w.clock.now_ms() - started_ms
            assert took_ms >= 500 if delays else took_ms <= 100
            await w.finish(starting)
            await w.finish(consumer.stop())
