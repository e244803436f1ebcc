"""Transactions of a broker that is killed, or loses power, again and again.

Each half message has one true outcome, which its producer knows: it decides at once, or when it is
asked, or never in this life, and repeats itself at will, by any copy it has heard of. Then the
broker crashes. In its last life it runs until nothing is undecided. Whatever happened, a message
that was to be committed is there once, and one that was to be rolled back is not; only an unsynced
half message may be lost with the power. A failure names its seed.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.core.errors import StoreError, TransportError
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import START_MS, VirtualClock
from tests.unit.broker.stored import in_place, texts
from tests.unit.broker.transaction.halves import COMMIT, ROLLBACK, Producer, Sent, Shop

LIVES = 4
STEPS = 25
SETTINGS = {
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "50",
    "maxIndexNum": "2000",
    "maxMessageSize": "4096",
    "transactionCheckMax": "1000",
}


class Run:
    """One disk through several lives of a broker."""

    def __init__(self, seed: int, *, synchronous: bool, power: bool) -> None:
        self.rng = random.Random(f"transactions/{seed}")
        self.disk = FaultyFileSystem(FaultPlan(seed), capacity=64 << 20)
        self.synchronous = synchronous
        self.power = power
        self.now_ms = START_MS
        self.truth: dict[str, int] = {}  # unique id -> decision
        self.known: dict[str, list[Sent]] = {}  # unique id -> copies that the producer knows
        self.gone: set[Sent] = set()  # copies that were not on disk when the power failed
        self.lost: set[str] = set()  # messages of which no copy was
        self.counts: Counter[str] = Counter()

    async def run(self) -> None:
        for life in range(LIVES):
            world = await self._start()
            if life < LIVES - 1:
                for _ in range(self.rng.randrange(1, STEPS)):
                    await self._step(world)
                await self._crash(world)
            else:
                await self._finish(world)
                await self._stop(world)

    async def _start(self) -> Shop:
        clock = VirtualClock(self.now_ms)
        network = MemoryNetwork(clock=clock)
        flush = "SYNC_FLUSH" if self.synchronous else "ASYNC_FLUSH"
        config = load_broker_config(texts(Path("/"), **SETTINGS, flushDiskType=flush))
        broker = Broker(config, network=network, clock=clock, files=self.disk, in_thread=in_place)
        await broker.start()
        world = Shop(broker, clock, network)
        clock.on_advance(broker.clock_advanced)
        world.producer = Producer(world)
        await world.producer.join()
        return world

    async def _step(self, world: Shop) -> None:
        rng = self.rng
        await self._hear(world)
        match rng.choice(["send", "send", "decide", "decide", "oneway", "wait", "long wait"]):
            case "send":
                await self._send(world)
            case "decide" if self.known:
                await self._decide(world, rng.choice(list(self.known)))
            case "oneway" if self.known:
                unique_id = rng.choice(list(self.known))
                await world.producer.end_oneway(
                    rng.choice(self.known[unique_id]), self.truth[unique_id]
                )
            case "wait":
                await world.clock.advance(seconds=rng.random() * 4)
            case "long wait":
                await world.clock.advance(seconds=rng.randrange(10, 70))
                if rng.random() < 0.5:
                    await world.flushed()

    async def _send(self, world: Shop) -> None:
        unique_id = f"U{len(self.truth)}"
        self.truth[unique_id] = self.rng.choice([COMMIT, COMMIT, ROLLBACK])
        more = {}
        if self.rng.random() < 0.3:
            more["CHECK_IMMUNITY_TIME_IN_SECONDS"] = "45"
        sent = await world.producer.send(unique_id, body=unique_id.encode(), **more)
        self.known[unique_id] = [sent]

    async def _hear(self, world: Shop) -> None:
        """Remember what was asked; decide about some of it."""
        for index in range(len(world.producer.check_backs)):
            asked = world.producer.checked(index)
            self.counts["questions"] += 1
            self.known[asked.unique_id].append(asked)
            if self.rng.random() < 0.4:
                await self._decide(world, asked.unique_id)
        world.producer.check_backs.clear()

    async def _decide(self, world: Shop, unique_id: str) -> None:
        sent = self.rng.choice(self.known[unique_id])
        check = self.rng.random() < 0.5
        while True:
            answer = await world.producer.end(sent, self.truth[unique_id], check=check)
            if answer.code != 2:
                break
            await world.clock.advance(seconds=0.1)  # the index is not complete yet
        self.counts[f"answer {answer.code}"] += 1
        if answer.code == 604:
            assert not check
        elif answer.code:
            # Only one thing can be wrong: the copy is gone with the power.
            assert (answer.remark or "").startswith("Find prepared"), answer.remark
            assert sent in self.gone, f"{unique_id}: {answer.remark}"

    async def _crash(self, world: Shop) -> None:
        flushed = world.features.store.log.files.flushed_where
        if not self.power:
            self.disk = self.disk.kill()
        else:
            for unique_id, copies in self.known.items():
                # A question is sent before the copy it is about is on disk; an answer is not.
                self.gone.update(copy for copy in copies if copy.log_offset >= flushed)
                if copies[0] in self.gone:
                    assert not self.synchronous
                    self.lost.add(unique_id)
            self.disk = self.disk.power_loss()
        self.counts["crashes"] += 1
        await self._stop(world)

    async def _stop(self, world: Shop) -> None:
        self.now_ms = world.clock.now_ms() + 1
        await world.producer.client.close()
        await world.client.close()
        with contextlib.suppress(StoreError, TransportError):
            await world.broker.stop()

    async def _finish(self, world: Shop) -> None:
        for _ in range(12):
            await world.clock.advance(seconds=30)
            await world.flushed()
            for index in range(len(world.producer.check_backs)):
                asked = world.producer.checked(index)
                self.known[asked.unique_id].append(asked)
                answer = await world.producer.end(asked, self.truth[asked.unique_id], check=True)
                assert answer.code == 0
            world.producer.check_backs.clear()
        assert world.transactions.is_idle, "something stays undecided"
        # Whoever repeats a decision now hears the same, and stores nothing.
        for unique_id in self.known:
            if unique_id not in self.lost:
                await self._decide(world, unique_id)
        found = Counter(record.body.decode() for record in world.records("T", 1))
        for unique_id, decision in self.truth.items():
            wanted = {1} if decision == COMMIT else {0}
            if unique_id in self.lost:
                wanted.add(0)
            assert found[unique_id] in wanted, (unique_id, decision, found[unique_id])
        self.counts["messages"] += len(self.truth)
        self.counts["lost"] += len(self.lost)


@pytest.mark.spec("spark.9.31")
@pytest.mark.parametrize(("synchronous", "power"), [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("seed", range(6))
async def test_every_message_ends_as_its_producer_meant(
    seed: int, synchronous: bool, power: bool
) -> None:
    run = Run(seed, synchronous=synchronous, power=power)
    try:
        await run.run()
    except BaseException as error:
        error.add_note(f"seed {seed}, {dict(run.counts)}")
        raise
    assert run.counts["crashes"] == LIVES - 1
