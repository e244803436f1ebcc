"""Popped messages that wait for a handler: they are given back in time, and fewer are popped."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.consumer.pops import CHANGE, POP, PopWorld, pop_world
from tests.unit.client.consumer.pushes import Seen


def changes(w: PopWorld) -> list[tuple[str, str]]:
    return sorted((ext["invisibleTime"], ext["suspend"]) for ext in w.server.ext_of(CHANGE))


@pytest.mark.parametrize("renew", [True, False])
async def test_what_waits_for_a_handler_is_given_back(tmp_path: Path, renew: bool) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=20, concurrency=2, renew=renew)
        may_end = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await may_end.wait()

        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(10)))
        await w.clock.advance(seconds=9)
        assert changes(w) == []
        assert consumer.in_flight == 10
        await w.clock.advance(seconds=1.5)
        renewals = [("20000", "false")] * 2 if renew else []
        assert changes(w) == [("1000", "true")] * 8 + renewals
        assert consumer.in_flight == 2
        pops = len(w.server.of(POP))
        await w.clock.advance(seconds=5)  # no handler is free: others may have the messages
        assert len(w.server.of(POP)) == pops
        other, seen = w.push_consumer(pop_invisible_time=20, instance_name="other"), Seen()
        other.subscribe("T", seen.handler)
        await w.start(other)
        assert sorted(seen) == [b"%d" % n for n in range(2, 10)]
        assert {each.reconsume_times for each in seen.messages} == {0}
        may_end.set()
        await w.clock.advance(seconds=2)
        assert len(w.server.acked) == 10
        assert consumer.stats.late == 0
        assert consumer.in_flight == 0


async def test_what_waits_for_a_thread_is_given_back(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=20, concurrency=1)
        begun, may_end, seen = threading.Event(), threading.Event(), Seen()

        @consumer.subscribe("T")
        def on_message(message: Any) -> None:
            seen.append(message.body)
            seen.messages.append(message)
            begun.set()
            may_end.wait(30)

        await w.start(consumer)
        w.server.put(b"0", b"1", b"2")
        async with asyncio.timeout(10):
            while not begun.is_set():
                await w.clock.drain()
                await asyncio.sleep(0)
        await w.clock.advance(seconds=10.5)
        assert changes(w) == [("1000", "true")] * 2 + [("20000", "false")]
        may_end.set()
        async with asyncio.timeout(10):
            while len(w.server.acked) < 3:
                await w.clock.advance(seconds=0.5)
                await asyncio.sleep(0)
        assert seen == [b"0", b"1", b"2"]
        assert {each.reconsume_times for each in seen.messages} == {0}


async def test_slow_handlers_pop_no_more_than_they_can_begin(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(pop_invisible_time=20, concurrency=2), Seen()

        async def act(message: Any) -> None:
            await w.clock.sleep(15)

        seen.on_message = act
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(12)))
        await w.clock.advance(seconds=110)
        assert sorted(seen) == sorted(b"%d" % n for n in range(12))
        assert {each.reconsume_times for each in seen.messages} == {0}
        assert len(w.server.acked) == 12
        # What the first two pops took too much, and nothing after that.
        assert changes(w).count(("1000", "true")) <= 20
        assert {int(ext["maxMsgNums"]) for ext in w.server.ext_of(POP)[2:]} <= {1, 2}


async def test_handlers_that_are_quick_again_pop_whole_batches(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, may_end = w.push_consumer(pop_invisible_time=20, concurrency=2), asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await may_end.wait()

        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(4)))
        await w.clock.advance(seconds=15)
        may_end.set()
        w.server.put(*(b"more %d" % n for n in range(200)))
        await w.clock.advance(seconds=20)
        assert len(w.server.acked) == 204
        assert w.server.ext_of(POP)[-1]["maxMsgNums"] == "32"


async def test_a_coroutine_that_hangs_is_cancelled(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=20, concurrency=1, consume_timeout=60)
        ended: list[tuple[bytes, int, str]] = []

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            try:
                if message.body == b"hangs" and message.attempt == 1:
                    await asyncio.Event().wait()
                await w.clock.sleep(50)
            except asyncio.CancelledError:
                ended.append((message.body, message.attempt, "cancelled"))
                raise
            ended.append((message.body, message.attempt, "done"))

        await w.start(consumer)
        w.server.put(b"hangs")
        await w.clock.advance(seconds=59)
        assert ended == []
        w.server.put(b"next")
        await w.clock.advance(seconds=21)
        assert ended == [(b"hangs", 1, "cancelled")]
        assert not w.server.of_body(b"hangs").acked
        await w.clock.advance(seconds=120)
        assert ended[1:] == [(b"next", 1, "done"), (b"hangs", 2, "done")]
        assert w.server.acked == [b"hangs", b"next"]
        assert consumer.stats.late == 0


async def test_a_batch_handler_counts_as_one_call(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=20, concurrency=2)
        sizes: list[int] = []

        @consumer.subscribe("T", batch=4)
        async def on_messages(messages: list[Any]) -> None:
            sizes.append(len(messages))
            await w.clock.sleep(15)

        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(24)))
        await w.clock.advance(seconds=60)
        assert sizes == [4] * 6
        assert len(w.server.acked) == 24
        assert changes(w).count(("1000", "true")) <= 32
