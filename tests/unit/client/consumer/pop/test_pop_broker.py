"""Both pop consumers on a real broker, on virtual time: with and without merging in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark import RetryLater
from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.service_state import ServiceState
from skylark.client.errors import ReceiptExpiredError
from tests.unit.client.consumer.pushes import FIRST, PushWorld, Seen, stop_all
from tests.unit.client.worlds import world

both = pytest.mark.parametrize("merging", ["true", "false"])


class PoppedWorld(PushWorld):
    """A real broker with topic T of two queues."""

    popping: list[PopConsumer]

    def pop_consumer(self, group: str = "g", **given: Any) -> PopConsumer:
        given.setdefault("consume_from_where", FIRST)
        runtime = inline_runtime(self.network, self.clock)
        consumer = PopConsumer(group, self.world.options(), runtime=runtime, **given)
        self.popping.append(consumer)
        return consumer.subscribe("T")

    async def receive(self, consumer: PopConsumer, count: int, wait_s: float = 30.0) -> list[Any]:
        """Exactly so many messages."""
        found: list[Any] = []
        deadline = self.clock.monotonic() + wait_s
        while len(found) < count and self.clock.monotonic() < deadline:
            found += await self.finish(consumer.receive(wait=1))
        assert len(found) == count
        return found


@asynccontextmanager
async def popped_world(root: Path, merging: str) -> AsyncIterator[PoppedWorld]:
    async with world(root) as made:
        await made.add_name_server()
        await made.add_broker(enablePopBufferMerge=merging)
        await made.add_topic("T", 2)
        w = PoppedWorld(made)
        w.popping = []
        try:
            yield w
        finally:
            await stop_all(w.made, made)
            for consumer in w.popping:
                if consumer.state is ServiceState.RUNNING:
                    await made.finish(consumer.stop())


@both
async def test_what_is_not_acknowledged_comes_again(tmp_path: Path, merging: str) -> None:
    async with popped_world(tmp_path, merging) as w:
        await w.send_many(5, queue_id=0)
        await w.send(b"other", queue_id=1)
        consumer = w.pop_consumer(invisible=20)
        await w.finish(consumer.start())
        found = {each.body: each for each in await w.receive(consumer, 6)}
        await w.finish(consumer.ack([found[b"0"], found[b"1"], found[b"other"]]))
        await w.finish(found[b"2"].nack(delay=2))
        await w.finish(found[b"3"].extend(60))
        (again,) = await w.receive(consumer, 1, 15)
        assert (again.body, again.attempt) == (b"2", 2)
        await w.finish(again.ack())
        (expired,) = await w.receive(consumer, 1, 40)
        assert (expired.body, expired.attempt) == (b"4", 2)
        await w.finish(expired.ack())
        with pytest.raises(ReceiptExpiredError):
            await w.finish(found[b"4"].ack())
        await w.finish(found[b"3"].ack())
        for _ in range(10):
            assert await w.finish(consumer.receive(wait=10)) == []


@both
async def test_messages_given_back_are_there_at_once(tmp_path: Path, merging: str) -> None:
    async with popped_world(tmp_path, merging) as w:
        first, second = w.pop_consumer(), w.pop_consumer()
        await w.finish(first.start())
        await w.finish(second.start())
        await w.send_many(8)
        messages = first.messages()
        one = await w.finish(anext(messages))
        await messages.aclose()
        await w.finish(one.ack())
        await w.finish(first.stop())
        since = w.clock.monotonic()
        found = await w.receive(second, 7, 10)
        assert w.clock.monotonic() - since <= 6
        assert {each.attempt for each in found} == {1}


@both
async def test_push_consumer_with_a_real_broker(tmp_path: Path, merging: str) -> None:
    async with popped_world(tmp_path, merging) as w:
        seen = Seen()

        async def act(message: Any) -> None:
            if message.body == b"0" and not message.reconsume_times:
                raise RetryLater()
            if message.body == b"1":
                await w.clock.sleep(25)

        seen.on_message = act
        consumer = w.consumer(mode="pop", set_mode=True, pop_invisible_time=10)
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        await w.send_many(20)
        await w.clock.advance(seconds=60)
        assert sorted(seen) == sorted([b"%d" % n for n in range(20)] + [b"0"])
        assert consumer.in_flight == 0
        assert consumer.stats.late == 0
        again = next(each for each in seen.messages if each.reconsume_times)
        assert (again.body, again.topic) == (b"0", "T")


@both
async def test_dead_letters_name_their_topic(tmp_path: Path, merging: str) -> None:
    async with popped_world(tmp_path, merging) as w:
        consumer = w.consumer(mode="pop", set_mode=True, max_reconsume_times=1)

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            raise ValueError("failed")

        await w.start(consumer)
        await w.send(b"bad")
        await w.clock.advance(seconds=60)
        (dead,) = w.stored("%DLQ%g")
        assert dead.body == b"bad"
        assert dead.properties["RETRY_TOPIC"] in ("T", "%RETRY%g_T")


async def test_a_group_changes_its_mode(tmp_path: Path) -> None:
    async with popped_world(tmp_path, "true") as w:
        seen = Seen()
        pulling = w.consumer(mode="auto")
        pulling.subscribe("T", seen.handler)
        await w.start(pulling)
        await w.send(b"pulled")
        await w.clock.advance(seconds=3)
        assert seen == [b"pulled"]
        popping = w.consumer(mode="pop", set_mode=True)
        popping.subscribe("T", seen.handler)
        await w.start(popping)
        await w.clock.advance(seconds=60)
        assert {each.queue_id for each in pulling.assignment if each.topic == "T"} == {-1}
        await asyncio.gather(w.send(b"popped"))
        await w.clock.advance(seconds=5)
        assert seen == [b"pulled", b"popped"]
