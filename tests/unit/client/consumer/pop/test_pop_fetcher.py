"""Receives of a pop consumer: several brokers, one of which hangs, and messages that are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark import ClientStateError
from tests.unit.client.consumer.pops import CHANGE, POP, pop_world


async def test_a_broker_that_hangs_delays_nothing(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=3) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        hanging, *others = w.servers
        hanging.silent.add(POP)
        for number in range(12):
            others[number % 2].put(b"%d" % number)
            since = w.clock.monotonic()
            receiving = asyncio.ensure_future(consumer.receive(wait=15))
            while not receiving.done():
                await w.clock.advance(seconds=0.01)
            assert [each.body for each in receiving.result()] == [b"%d" % number]
            assert w.clock.monotonic() - since <= 0.2
        # The time-outs of the requests that hang are no errors of the receives.
        waiting = asyncio.ensure_future(consumer.receive(wait=30))
        await w.clock.advance(seconds=20)
        assert not waiting.done()
        others[0].put(b"late")
        await w.clock.advance(seconds=0.5)
        assert [each.body for each in waiting.result()] == [b"late"]


async def test_brokers_are_asked_at_once(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=3) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        for server in w.servers:
            server.put(server.name.encode())
        found = await w.finish(consumer.receive(wait=0))
        assert sorted(each.body for each in found) == [b"broker-a", b"broker-b", b"broker-c"]
        for server in w.servers:
            server.silent.add(POP)
        since = w.clock.monotonic()
        assert await w.finish(consumer.receive(wait=0)) == []
        assert w.clock.monotonic() - since <= 1.5


async def test_kept_messages_serve_all_receives_that_wait(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        cancelled = asyncio.ensure_future(consumer.receive(32, wait=15))
        await w.clock.advance(seconds=1)
        cancelled.cancel()
        await w.clock.drain()
        waiting = [asyncio.ensure_future(consumer.receive(2, wait=14)) for _ in range(4)]
        await w.clock.advance(seconds=1)
        w.server.put(*(b"%d" % n for n in range(8)))  # all go to the request of the cancelled one
        await w.clock.advance(seconds=1)
        assert [len(each.result()) for each in waiting] == [2, 2, 2, 2]


async def test_a_stop_gives_back_what_an_iteration_has_not_handed_out(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(5)))
        messages = consumer.messages()
        first = await w.finish(anext(messages))
        await w.finish(consumer.stop())  # while the iteration goes on
        assert {int(ext["offset"]) for ext in w.server.ext_of(CHANGE)} == {1, 2, 3, 4}
        assert [each async for each in messages] == []
        with pytest.raises(ClientStateError, match="has been stopped"):
            await first.ack()


async def test_several_iterations_share_a_batch(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        first, second = consumer.messages(), consumer.messages()
        nexts = [asyncio.ensure_future(anext(each)) for each in (first, second)]
        await w.clock.advance(seconds=1)
        w.server.put(b"a", b"b")
        await w.clock.advance(seconds=1)
        assert sorted(each.result().body for each in nexts) == [b"a", b"b"]


async def test_an_iteration_hands_out_nothing_that_has_waited_long(tmp_path: Path) -> None:
    for pace_s in (1, 4, 8, 11, 25):
        async with pop_world(tmp_path / str(pace_s)) as w:
            consumer = w.pop_consumer(invisible=30)
            await w.start(consumer)
            w.server.put(*(b"%d" % n for n in range(40)))
            messages = consumer.messages()
            for _ in range(12):
                message = await w.finish(anext(messages))
                left_ms = message.receipt.visible_at_ms - w.clock.steady_ms()
                assert left_ms >= 20_000
                assert message.attempt == 1
                await w.finish(message.ack())
                await w.clock.advance(seconds=pace_s)
            assert len(w.server.acked) == 12
            assert {ext["suspend"] for ext in w.server.ext_of(CHANGE)} <= {"true"}


async def test_what_a_slow_iteration_keeps_is_given_back_in_time(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=30)
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(5)))
        messages = consumer.messages()
        await w.finish(anext(messages))
        await w.clock.advance(seconds=6)
        await w.finish(anext(messages))
        assert not w.server.of(CHANGE)
        await w.clock.advance(seconds=4.5)  # a third of the invisible time is over
        assert [(ext["invisibleTime"], ext["suspend"]) for ext in w.server.ext_of(CHANGE)] == [
            ("1000", "true")
        ] * 3


async def test_a_slow_iteration_asks_for_fewer_messages(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=30)
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(200)))
        messages = consumer.messages()
        for _ in range(6):
            message = await w.finish(anext(messages))
            await w.finish(message.ack())
            await w.clock.advance(seconds=11)
        # The first batch was far too large for this pace; the next ones are not.
        assert len(w.server.of(CHANGE)) <= 40
        for _ in range(100):  # a quick one is not slowed down for long
            message = await w.finish(anext(messages))
            await w.finish(message.ack())
        assert w.server.ext_of(POP)[-1]["maxMsgNums"] == "32"


async def test_a_blocked_loop_hands_out_nothing_that_has_waited_long(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer(invisible=30)
        await w.start(consumer)
        w.server.put(b"early")
        first = (await w.finish(consumer.receive()))[0]  # the clocks are known from now on
        await w.finish(first.ack())
        receiving = asyncio.ensure_future(consumer.receive(wait=15))
        await w.clock.advance(seconds=13)
        w.server.clock_ahead_ms = -12_000  # as if the response had waited here for so long
        w.server.put(b"a")
        await w.clock.drain()
        w.server.clock_ahead_ms = 0
        (message,) = await w.finish(receiving)
        assert message.receipt.visible_at_ms - w.clock.steady_ms() >= 20_000
        assert message.attempt == 1
        assert len(w.server.of(CHANGE)) == 1
