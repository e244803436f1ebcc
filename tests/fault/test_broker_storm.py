"""Recorded requests, sound and damaged, in any order, against a whole broker in virtual time.

Several connections at once send what clients and tools once sent to a real broker: a part of it as
it was, a part with fields and bodies exchanged for those of other requests or for nonsense, a part
with damaged bytes. Some connections are cut, some never read, and time moves on in leaps. Between
them a witness sends and pulls. In the end the witness finds every message it sent, nothing is left
of the others, the store passes ``skylark store check``, and a second broker on it serves the same
messages. Seeds are printed; a failure names its own.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.store.inspection.check_findings import Finding, Severity
from skylark.store.inspection.store_check import CheckReport, check_store
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import FLAG_ONEWAY, Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.golden.replay.recording import RUNS, Scenario
from tests.support.mutations import INTERESTING_TEXTS, mutated_frames
from tests.unit.broker.stored import Stored, bodies_of, in_place, texts

FRAME_COUNT: Final = 3_000
CONNECTION_COUNT: Final = 6
WITNESS_EVERY: Final = 100
#: Python objects that the second half of a storm may leave behind.
BLOCKS_GROWN_MAX: Final = 30_000
PYTHON_ERROR: Final = re.compile(r"\w*(Error|Exception|Iteration|Interrupt|Exit)\b")
TOPIC: Final = "Witnessed"


@cache
def golden_requests() -> list[Command]:
    """What was sent to brokers, in the recorded order."""
    return [
        frame.command for run in RUNS for name in run.scenarios for frame in Scenario(name).requests
    ]


@cache
def golden_values() -> dict[str, list[str]]:
    """What stood in each field of any request."""
    values: dict[str, set[str]] = defaultdict(set)
    for request in golden_requests():
        for name, value in (request.ext or {}).items():
            values[name].add(value)
    return {name: sorted(each) for name, each in values.items()}


def falsified(rng: random.Random) -> Command:
    """A request in which something is not as it was."""
    request = rng.choice(golden_requests())
    ext = dict(request.ext or {})
    for name in rng.sample(sorted(ext), k=min(len(ext), rng.choice((0, 1, 1, 2, 4)))):
        others = golden_values()[name] if rng.random() < 0.5 else INTERESTING_TEXTS
        ext[name] = rng.choice(others)
        if rng.random() < 0.1:
            del ext[name]
    body = rng.choice(golden_requests()).body if rng.random() < 0.2 else request.body
    flag = request.flag ^ (FLAG_ONEWAY if rng.random() < 0.1 else 0)
    return msgspec.structs.replace(
        request, ext=ext, ext_entries=None, body=body, flag=flag, opaque=rng.randrange(1 << 20)
    )


class Hostile(asyncio.Protocol):
    """A connection of the storm: keeps count of what it is answered."""

    def __init__(self, counts: Counter[str]) -> None:
        self._frames = FrameBuffer()
        self._counts = counts
        self.transport: asyncio.Transport
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        for command in self._frames.feed(data):
            if command.is_response:
                self._check(command)
            elif not command.is_oneway:
                self._counts["asked"] += 1

    def _check(self, answer: Command) -> None:
        self._counts["answers"] += 1
        self._counts["refusals"] += answer.code != 0
        remark = answer.remark or ""
        assert not PYTHON_ERROR.match(remark), remark
        assert answer.code == 0 or remark, answer


class Storm:
    """One broker, its enemies and its witness."""

    def __init__(self, world: Stored, seed: int) -> None:
        self._world = world
        self._rng = random.Random(f"broker storm {seed}")
        self._damaged = mutated_frames(seed, 10 * FRAME_COUNT)
        self._hostile: list[Hostile] = []
        self.counts: Counter[str] = Counter()
        self.witnessed = 0

    async def rage(self, frame_count: int) -> None:
        rng = self._rng
        for number in range(frame_count):
            hostile = await self._any_connection()
            hostile.transport.write(self._next_frame())
            match rng.randrange(60):
                case 0 | 1 | 2:
                    hostile.transport.abort()
                case 3:
                    hostile.transport.pause_reading()
                case 4:
                    await self._world.clock.advance(rng.random() * 5)
                case 5:
                    await self._world.clock.advance(minutes=1, clients_alive=rng.random() < 0.7)
                case _:
                    pass
            if rng.random() < 0.8:
                await self._world.clock.drain()
            if number % WITNESS_EVERY == 0:
                await self.witness()

    async def end(self) -> None:
        for hostile in self._hostile:
            hostile.transport.abort()
        self._hostile.clear()
        await self._world.clock.advance(minutes=5)

    async def witness(self) -> None:
        body = b"%d" % self.witnessed
        sent = await self._world.send(TOPIC, body)
        assert (sent.code, (sent.ext or {})["queueOffset"]) == (0, body.decode())
        found = await self._world.pull(self.witnessed, topic=TOPIC, consumerGroup="witness")
        assert bodies_of(found) == [body]
        self.witnessed += 1

    def _next_frame(self) -> bytes:
        draw = self._rng.random()
        if draw < 0.1:
            self.counts["damaged"] += 1
            return next(self._damaged)
        if draw < 0.6:
            self.counts["falsified"] += 1
            return encode_frame(falsified(self._rng))
        self.counts["sound"] += 1
        requests = golden_requests()
        return encode_frame(requests[self.counts["sound"] % len(requests)])

    async def _any_connection(self) -> Hostile:
        self._hostile = [each for each in self._hostile if not each.is_lost]
        if len(self._hostile) < CONNECTION_COUNT:
            world = self._world
            _, hostile = await world.network.connect(
                lambda: Hostile(self.counts),
                "127.0.0.1",
                world.broker.address.port,
                timeout_s=5,
                clock=world.clock,
            )
            self._hostile.append(hostile)
            self.counts["connections"] += 1
        return self._rng.choice(self._hostile)


def new_broker(root: Path, clock: VirtualClock, network: MemoryNetwork) -> Broker:
    settings = texts(
        root,
        enablePropertyFilter="true",
        transactionCheckInterval="3000",
        transactionTimeOut="2000",
        topicCountMax="200",
        groupCountMax="200",
        heldPullCountMax="100",
    )
    return Broker(load_broker_config(settings), network=network, clock=clock, in_thread=in_place)


def split_network(seed: int, clock: VirtualClock) -> MemoryNetwork:
    plan = FaultPlan(seed=seed)
    plan.chance("memory.deliver", 0.1, action=FaultAction.SPLIT)
    return MemoryNetwork(plan, clock=clock)


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.exc_info or record.levelno >= logging.ERROR
    ]


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_broker_in_a_storm(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    network = split_network(seed, clock)
    broker = new_broker(tmp_path, clock, network)
    await broker.start()
    clock.on_advance(broker.clock_advanced)
    world = Stored(broker, clock, network)
    for name, count in {"FrameA": 2, "FrameOrder": 2, "FrameTx": 1, TOPIC: 1}.items():
        world.add_topic(name, count)
    deleted: set[str] = set()
    broker.features.topics.table.changes.subscribe(lambda change: deleted.update(change.deleted))
    storm = Storm(world, seed)
    try:
        await storm.rage(FRAME_COUNT // 2)
        await storm.end()
        gc.collect()
        blocks = sys.getallocatedblocks()
        await storm.rage(FRAME_COUNT // 2)
        await storm.end()
        gc.collect()
        storm.counts["blocks grown"] = sys.getallocatedblocks() - blocks
        await storm.witness()
        features = broker.features
        assert len(features.endpoint.connections) == 1, "that of the witness"
        assert features.endpoint.held_size() == 0
        assert len(features.pull.service.held) == 0
        assert len(features.topics.table) <= 200
    finally:
        await world.client.close()
        await broker.stop()
    print(f"\nseed {seed}: {dict(storm.counts)}, {storm.witnessed} messages of the witness")
    assert errors_of(caplog) == []
    assert storm.counts["answers"] > FRAME_COUNT // 3
    assert storm.counts["refusals"] > FRAME_COUNT // 10
    assert storm.counts["blocks grown"] < BLOCKS_GROWN_MAX
    report = check_store(tmp_path / "store", delays_ms=broker.config.store.delay_levels_ms)
    assert unexplained(report, deleted) == []
    await served_again(tmp_path, clock, storm.witnessed)


def unexplained(report: CheckReport, deleted: set[str]) -> list[Finding]:
    """What is wrong with the store. A topic that was deleted and made again lacks the entries of
    its first life, until a queue has a message: a check cannot tell this from a loss."""
    return [
        finding
        for finding in report.findings
        if finding.severity is not Severity.NOTE
        and not (finding.kind == "queue.missing" and finding.file.parent.name in deleted)
    ]


async def served_again(root: Path, clock: VirtualClock, count: int) -> None:
    """A second broker on the store finds all messages of the witness."""
    network = MemoryNetwork(clock=clock)
    broker = new_broker(root, clock, network)
    await broker.start()
    world = Stored(broker, clock, network)
    try:
        assert [record.body for record in world.records(TOPIC)] == [b"%d" % n for n in range(count)]
        assert (await world.send(TOPIC)).code == 0
    finally:
        await world.client.close()
        await broker.stop()
