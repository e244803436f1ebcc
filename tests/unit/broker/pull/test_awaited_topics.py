"""Arrivals that the store reports: for held pulls, and for messages that the broker delivers.

It reports no others, because that would add work to every message of a producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.reput import Arrival
from skylark.wire.codes import ResponseCode
from skylark.wire.command import Command
from skylark.wire.frame import encode_frame
from tests.unit.broker.stored import Stored, await_flushes, bodies_of, stored


def noted_arrivals(world: Stored) -> list[tuple[str, int]]:
    """Filled from now on: the queues of which the broker is told."""
    found: list[tuple[str, int]] = []
    arrived = world.features.pull.service.waiting.arrived

    def note(arrival: Arrival) -> None:
        found.append((arrival.topic, arrival.queue_id))
        arrived(arrival)

    world.features.pull.service.waiting.arrived = note  # type: ignore[method-assign]
    return found


async def send_one_by_one(world: Stored, *queue_ids: int) -> None:
    for queue_id in queue_ids:
        assert (await world.send(queue_id=queue_id, properties="UNIQ_KEY\x01U\x02")).code == 0


async def send_together(world: Stored, *queue_ids: int) -> None:
    requests = [
        Command(
            code=310,
            opaque=number,
            ext={
                "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
                "g": "1", "h": "0", "i": "UNIQ_KEY\x01U\x02",
            },
            body=b"hello",
        )
        for number, queue_id in enumerate(queue_ids)
    ]  # fmt: skip
    host, _, port = world.address.rpartition(":")
    transport, _ = await world.network.connect(
        asyncio.Protocol, host, int(port), timeout_s=1, clock=world.clock
    )
    transport.write(b"".join(map(encode_frame, requests)))
    await world.clock.drain()


@pytest.mark.parametrize("send", [send_one_by_one, send_together])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_arrivals_are_reported_only_for_held_pulls(
    tmp_path: Path, flush: str, send: Callable[..., Awaitable[None]]
) -> None:
    async with stored(tmp_path, flushDiskType=flush) as world:
        world.add_topic("T")
        await_flushes(world)
        found = noted_arrivals(world)
        await send(world, 0, 1, 1, 2)
        assert found == []
        pulls = [await world.begin_pull(2, queueId=1), await world.begin_pull(0, queueId=3)]
        await send(world, 0, 2, 0, 0, 0)
        assert found == []
        assert not any(pull.done() for pull in pulls)
        await send(world, 1, 1, 0)
        woken = await world.clock.finish(pulls[0])
        assert woken.code == ResponseCode.SUCCESS
        assert 1 <= len(bodies_of(woken)) <= 2
        assert set(found) == {("T", 1)}
        assert not pulls[1].done()
        found.clear()
        await send(world, 1, 1)
        assert found == [], "it has its answer"
        await send(world, 3, 3, 3)
        assert bodies_of(await world.clock.finish(pulls[1]))[0] == b"hello"
        assert ("T", 1) not in world.features.pull.service.waiting.awaited


@pytest.mark.parametrize(
    ("properties", "queue"),
    [("DELAY\x011\x02", (SCHEDULE_TOPIC, 0)), ("TIMER_DELAY_SEC\x012\x02", (TIMER_TOPIC, 0))],
)
async def test_arrivals_in_topics_of_the_broker_are_reported(
    tmp_path: Path, properties: str, queue: tuple[str, int]
) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T")
        found = noted_arrivals(world)
        await world.send(properties=properties)
        assert found == [queue]
        assert world.records("T") == []
        await world.clock.advance(seconds=5)
        assert [record.body for record in world.records("T")] == [b"hello"]
        assert ("T", 0) not in found
