"""Consumers that start before their topic exists get its first message soon after it is created."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import Message
from skylark.client.producer.producer import Producer
from tests.unit.client.consumer.pull_world import PullWorld, pull_world

#: Pull, rebalancing and look-ups are done within this time of the first send.
SOON_S = 2.0
LATE_S = 1.0


@asynccontextmanager
async def late_topic(root: Path) -> AsyncIterator[PullWorld]:
    async with pull_world(root, topic="Other") as w:
        yield w


async def first_send(w: PullWorld, producer: Producer) -> float:
    """Send to the topic some time after the consumer has started; returns when."""
    await w.clock.advance(seconds=LATE_S)
    await w.finish(producer.send(Message("Late", b"first")))
    return w.clock.monotonic()


def producer_of(w: PullWorld) -> Producer:
    return Producer("p", w.options(), runtime=w.runtime)


async def test_a_push_consumer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with late_topic(tmp_path) as w:
        producer, consumer = producer_of(w), PushConsumer("g", w.options(), runtime=w.runtime)
        seen: list[float] = []

        async def handler(message: object) -> None:
            seen.append(w.clock.monotonic())

        consumer.subscribe("Late", handler)
        await w.finish(producer.start())
        await w.finish(consumer.start())
        sent = await first_send(w, producer)
        await w.until(lambda: bool(seen), step_s=0.1)
        assert seen[0] - sent <= SOON_S
        assert caplog.text.count("topic Late does not exist yet") == 1
        await w.finish(asyncio.gather(consumer.stop(), producer.stop()))


async def test_a_lite_pull_consumer(tmp_path: Path) -> None:
    async with late_topic(tmp_path) as w, w.lite() as consumer:
        producer = producer_of(w)
        consumer.subscribe("Late")
        await w.finish(producer.start())
        await w.finish(consumer.start())
        sent = await first_send(w, producer)
        (message,) = await w.finish(consumer.poll(30))
        assert message.body == b"first"
        assert w.clock.monotonic() - sent <= SOON_S
        await w.finish(producer.stop())


async def test_a_classic_pull_consumer(tmp_path: Path) -> None:
    async with late_topic(tmp_path) as w, w.classic() as consumer:
        producer = producer_of(w)
        changed: list[float] = []
        consumer.register_queue_listener(
            "Late", lambda *shared: changed.append(w.clock.monotonic())
        )
        await w.finish(producer.start())
        await w.finish(consumer.start())
        sent = await first_send(w, producer)
        await w.until(lambda: bool(changed), step_s=0.1)
        assert changed[0] - sent <= SOON_S
        await w.finish(producer.stop())


async def test_a_pop_consumer(tmp_path: Path) -> None:
    async with late_topic(tmp_path) as w:
        producer, consumer = producer_of(w), PopConsumer("g", w.options(), runtime=w.runtime)
        consumer.subscribe("Late")
        await w.finish(producer.start())
        await w.finish(consumer.start())
        sent = await first_send(w, producer)
        messages = await w.finish(consumer.receive(1, wait=30))
        assert [message.body for message in messages] == [b"first"]
        assert w.clock.monotonic() - sent <= SOON_S
        await w.finish(asyncio.gather(consumer.stop(), producer.stop()))


async def test_a_pop_consumer_finds_the_second_of_its_topics(tmp_path: Path) -> None:
    async with late_topic(tmp_path) as w:
        producer, consumer = producer_of(w), PopConsumer("g", w.options(), runtime=w.runtime)
        consumer.subscribe("Other").subscribe("Late")
        await w.finish(producer.start())
        await w.finish(consumer.start())
        await first_send(w, producer)
        await w.clock.advance(seconds=SOON_S)  # a pop that waits already asks for no new topic
        messages = await w.finish(consumer.receive(1, wait=1))
        assert [message.body for message in messages] == [b"first"]
        await w.finish(asyncio.gather(consumer.stop(), producer.stop()))
