"""A client on a network that cuts, closes, delays and refuses: it recovers, and leaks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from skylark.client.core.client_instance import ClientInstance
from skylark.core.errors import SkylarkError
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.client.worlds import FakeConsumer, World, world

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def bad_network(seed: int) -> FaultPlan:
    plan = FaultPlan(seed=seed)
    for action in (FaultAction.CUT, FaultAction.CLOSE, FaultAction.HALVE):
        plan.chance("memory.deliver", 0.03, action=action)
    plan.chance("memory.deliver", 0.1, action=FaultAction.SPLIT)
    plan.chance("memory.deliver", 0.05, action=FaultAction.DELAY, delay_ms=4_000)
    plan.chance("memory.connect", 0.2, action=FaultAction.ERROR, error=111)
    return plan


async def ask_for_ever(w: World, instance: ClientInstance) -> None:
    """The data plane of an application: whatever fails is one of our errors."""
    link = instance.open_link()
    try:
        while True:
            with contextlib.suppress(SkylarkError):
                address = await link.lookup.master_of(QUEUE)
                await link.calls.max_offset(address, QUEUE, 1.0)
            await w.clock.sleep(0.3)
    finally:
        await link.release()


@pytest.mark.parametrize("seed", range(12))
async def test_a_client_survives_a_bad_network(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with world(tmp_path) as w:
        await w.add_name_server(9876)
        await w.add_name_server(9877)
        await w.add_broker()
        await w.add_topic("T")
        async with w.client(heartbeat_v2=seed % 2 == 0) as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            asking = asyncio.ensure_future(ask_for_ever(w, instance))
            plan = w.network.plan = bad_network(seed)
            for _ in range(30):
                await w.clock.advance(seconds=rng.uniform(0, 3))
                if rng.random() < 0.2:
                    w.network.cut_all()
            assert plan.hit_count > 20, plan
            w.network.plan = None
            # Three seconds for a call that still waits, three for the back-off, some for luck.
            await w.clock.advance(seconds=10)
            assert w.brokers["broker-a"].features.groups.consumers.client_ids("g") == [
                "127.0.0.1@a"
            ], plan
            assert instance.routes.get("T") is not None, plan
            asking.cancel()
            await w.finish(asyncio.wait([asking]))


@pytest.mark.parametrize("seed", range(6))
async def test_a_stop_in_the_middle_of_it_leaves_nothing_behind(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.add_topic("T")
        w.network.plan = bad_network(seed)
        for _ in range(5):
            async with w.client() as instance:
                await instance.register_consumer(FakeConsumer("g", "T"))
                asking = asyncio.ensure_future(ask_for_ever(w, instance))
                await w.clock.advance(seconds=rng.uniform(0, 8))
                asking.cancel()
                await w.finish(asyncio.wait([asking]))
        w.network.plan = None
