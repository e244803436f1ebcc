"""Faults in words of messages: what a broker does with them, and that a seed decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylark import Message, MessageExt
from skylark.core.errors import ConfigError
from skylark.testing import FaultAction, MessageFaults, broker

SEND = "310"


async def stored_after(plan: MessageFaults, sends: int) -> int:
    """How many messages the broker holds after so many sends."""
    async with broker(faults=plan) as b:
        topic = await b.topic(queue_count=1)
        async with b.producer() as producer:
            for number in range(sends):
                await producer.send(Message(topic, b"%d" % number))
        (queue,) = (await b.admin.offsets.bounds(topic)).queues
        return queue.max_offset


async def test_duplicates_are_stored_twice() -> None:
    plan = MessageFaults(duplicate=0.3, seed=7)
    stored = await stored_after(plan, 30)
    doubled = plan.hits[f"request.{SEND}/duplicate"]
    assert 0 < doubled < 30
    assert stored == 30 + doubled


async def test_a_lost_acknowledgement_makes_the_producer_send_again() -> None:
    plan = MessageFaults(drop_ack=0.3, seed=3)
    stored = await stored_after(plan, 20)
    lost = plan.hits[f"response.{SEND}/cut"]
    assert lost > 0
    assert stored == 20 + lost


async def test_answers_are_late() -> None:
    plan = MessageFaults(delay_ms=(1000, 2000), seed=7)
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        async with b.producer() as producer:
            await producer.send(Message(topic, b"at once"))
            b.faults = plan
            sending = asyncio.ensure_future(producer.send(Message(topic, b"late")))
            await b.clock.advance(ms=999)
            assert not sending.done()
            await b.clock.advance(ms=1001)
            assert sending.done()
            b.faults = None
    assert plan.hits[f"response.{SEND}/delay"] == 1


async def test_lost_progress_brings_messages_again() -> None:
    async with broker(clock="virtual") as b:
        topic, group = await b.topic(queue_count=1), await b.group()
        got: list[bytes] = []

        async def take(message: MessageExt) -> None:
            got.append(message.body)

        async with b.producer() as producer:
            await producer.send(Message(topic, b"x"))
        for plan in (MessageFaults(drop_ack=1.0), None):
            b.faults = plan
            consumer = b.consumer(group)
            consumer.subscribe(topic)(take)
            async with consumer:
                await b.clock.advance(seconds=1)
        assert got == [b"x", b"x"]


async def test_the_same_seed_does_the_same() -> None:
    def decisions(seed: int) -> list[tuple[FaultAction, int]]:
        plan = MessageFaults(duplicate=0.5, drop_ack=0.2, delay_ms=(0, 50), seed=seed)
        points = [f"request.{SEND}", f"response.{SEND}"] * 50
        return [(fault.action, fault.delay_ms) for fault in map(plan.draw, points)]

    assert decisions(7) == decisions(7)
    assert decisions(7) != decisions(8)
    assert {action for action, _ in decisions(7)} == {
        FaultAction.NONE,
        FaultAction.DUPLICATE,
        FaultAction.CUT,
        FaultAction.DELAY,
    }


def test_the_text_is_the_marker_that_gives_it_again() -> None:
    plan = MessageFaults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7)
    assert str(plan) == (
        "faults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7); what took effect: nothing"
    )
    plan.hit("request.310", FaultAction.DUPLICATE)
    assert str(plan).endswith("what took effect: 1 x request.310/duplicate")


def test_a_seed_is_drawn_if_none_is_given() -> None:
    assert len({MessageFaults(duplicate=0.5).seed for _ in range(5)}) > 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no fault is asked for"),
        ({"duplicate": 1.1}, "duplicate must be a probability from 0 to 1, not 1.1"),
        ({"drop_ack": True}, "drop_ack must be a probability"),
        ({"duplicate": "0.1"}, "duplicate must be a probability"),
        ({"delay_ms": (50, 0)}, r"delay_ms must be milliseconds.*not \(50, 0\)"),
        ({"delay_ms": 0.5}, "delay_ms must be milliseconds"),
        ({"delay_ms": -1}, "delay_ms must be milliseconds"),
        ({"delay_ms": 10**9}, "delay_ms must be milliseconds"),
        ({"duplicate": 0.1, "seed": "x"}, "seed must be an integer"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        MessageFaults(**given)
