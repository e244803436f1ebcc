"""Consumers on a network that cuts, closes, delays and refuses, coming and going meanwhile.

Every message is consumed, in its order where that was asked for, and nothing is left behind.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import MessageExt, RetryLater
from skylark.client.core.service_state import ServiceState
from skylark.testing.fault_plan import FaultAction, FaultPlan
from tests.unit.client.consumer.pushes import PushWorld, push_world

QUEUES = 3
PER_QUEUE = 40


def bad_network(seed: int) -> FaultPlan:
    plan = FaultPlan(seed=seed)
    for action in (FaultAction.CUT, FaultAction.CLOSE, FaultAction.HALVE):
        plan.chance("memory.deliver", 0.02, action=action)
    plan.chance("memory.deliver", 0.1, action=FaultAction.SPLIT)
    plan.chance("memory.deliver", 0.03, action=FaultAction.DELAY, delay_ms=4_000)
    plan.chance("memory.connect", 0.1, action=FaultAction.ERROR, error=111)
    return plan


class Crowd:
    """Consumers of one group that come and go; notes what their handlers get."""

    def __init__(self, w: PushWorld, seed: int, *, orderly: bool) -> None:
        self.world = w
        self.rng = random.Random(seed)
        self.orderly = orderly
        self.members: list[PushConsumer] = []
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.running: set[int] = set()
        self.overlaps = 0

    async def handle(self, message: MessageExt) -> None:
        queue_id, index = divmod(int(message.body), 1000)
        if queue_id in self.running:
            self.overlaps += 1
        self.running.add(queue_id)
        try:
            await self.world.clock.sleep(self.rng.uniform(0, 0.3))
            if self.rng.random() < 0.05:
                raise RetryLater
            self.seen[queue_id].append(index)
        finally:
            self.running.discard(queue_id)

    async def join(self) -> None:
        consumer = self.world.consumer(instance_name=f"member-{len(self.world.made)}")
        consumer.subscribe("T", self.handle, orderly=self.orderly)
        try:
            await self.world.finish(consumer.start())
        except Exception:  # noqa: BLE001 - no name server just now
            assert consumer.state is not ServiceState.RUNNING
        else:
            self.members.append(consumer)

    async def leave(self) -> None:
        member = self.members.pop(self.rng.randrange(len(self.members)))
        await self.world.finish(member.stop())

    async def come_and_go(self) -> None:
        if len(self.members) < 2 and self.rng.random() < 0.4:
            await self.join()
        elif len(self.members) > 1 and self.rng.random() < 0.3:
            await self.leave()

    @property
    def is_done(self) -> bool:
        return all(set(self.seen[queue_id]) >= set(range(PER_QUEUE)) for queue_id in range(QUEUES))


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 3, 19])
async def test_consumers_survive_a_bad_network(tmp_path: Path, seed: int, orderly: bool) -> None:
    async with push_world(tmp_path, QUEUES) as w:
        for queue_id in range(QUEUES):
            for index in range(PER_QUEUE):
                await w.send(b"%d" % (1000 * queue_id + index), queue_id=queue_id)
        crowd = Crowd(w, seed, orderly=orderly)
        await crowd.join()
        plan = w.network.plan = bad_network(seed)
        for _ in range(25):
            await w.clock.advance(seconds=crowd.rng.uniform(0, 2))
            await crowd.come_and_go()
        assert plan.hit_count > 10, plan
        w.network.plan = None
        if not crowd.members:
            await crowd.join()
        for _ in range(60):
            await w.clock.advance(seconds=5)
            if crowd.is_done:
                break
        assert crowd.is_done, (plan, {k: sorted(set(v)) for k, v in crowd.seen.items()})
        if orderly:
            assert crowd.overlaps == 0, plan
            for indices in crowd.seen.values():
                # It may go back to what was not committed, and never skips.
                assert all(after <= before + 1 for before, after in pairwise(indices)), plan
        # The message at work when a queue changed hands comes again, and is committed then; the
        # lock of a member that was gone before it could unlock expires after 60 s.
        await w.clock.advance(seconds=70)
        assert [w.committed(queue_id) for queue_id in range(QUEUES)] == [PER_QUEUE] * QUEUES, plan
