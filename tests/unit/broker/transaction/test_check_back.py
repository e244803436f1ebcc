"""Rounds of check-backs: slices, producers that do not read, and the committed position."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.transaction import check_back as check_rounds
from skylark.broker.transaction.check_back import SLICE_COUNT
from skylark.broker.transaction.check_policy import ImmuneMessages
from skylark.broker.transaction.half_message import turn_into_half
from skylark.core.clock import LoopClock
from skylark.net.connection import Connection
from skylark.store.commit_log import Draft
from skylark.store.running_flags import StoreFlag
from skylark.testing.memory_net import MemoryNetwork
from skylark.wire.properties import encode_properties
from tests.unit.broker.stored import in_place, texts
from tests.unit.broker.transaction.halves import HALF, Producer, shop


def half_draft(number: int, born_ms: int) -> Draft:
    draft = Draft("T", 0, b"body", born_timestamp=born_ms)
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"U{number}"}
    draft.properties = encode_properties(properties).encode()
    turn_into_half(draft, f"U{number}")
    return draft


async def test_many_messages_are_checked_in_slices(tmp_path: Path) -> None:
    """On the real loop: between two of its turns, no more than a slice is done."""
    clock = LoopClock()
    given = {"transactionCheckInterval": "20", "transactionTimeOut": "1"}
    broker = Broker(
        load_broker_config(texts(tmp_path, **given)),
        network=MemoryNetwork(clock=clock),
        clock=clock,
        in_thread=in_place,
    )
    await broker.start()
    try:
        store, transactions = broker.features.store, broker.features.transaction.service
        count = 2_000
        for number in range(count):
            draft = half_draft(number, clock.now_ms() - 10_000)
            assert store.put(draft).status.stored
        transactions.count_halves("T", 1)
        queue = store.queues.get(HALF, 0)
        assert queue is not None
        sizes = [queue.max_offset]
        async with asyncio.timeout(20):
            while queue.max_offset < 2 * count:
                await asyncio.sleep(0)
                sizes.append(queue.max_offset)
        steps = [after - before for before, after in pairwise(sizes)]
        assert max(steps) == SLICE_COUNT
    finally:
        await broker.stop()


async def test_a_round_waits_for_a_producer_that_does_not_read(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        await world.producer.send("U1")
        connection = world.features.groups.producers.next_channel("pg")
        assert isinstance(connection, Connection)
        connection._outbound.paused = True
        await world.clock.advance(seconds=32)
        assert len(world.records(HALF)) == 1
        connection._outbound.paused = False
        await world.clock.advance(seconds=0.1)
        assert len(world.records(HALF)) == 2
        connection._outbound.paused = True
        # Not for ever: a round ends after a minute, and the next one tries again.
        await world.clock.advance(seconds=200)
        assert len(world.records(HALF)) == 2
        connection._outbound.paused = False
        await world.clock.advance(seconds=0.1)
        assert len(world.records(HALF)) == 3
        assert len(world.producer.check_backs) == 2


async def test_a_producer_that_does_not_read_holds_up_no_other_group(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        other = Producer(world, "other")
        await other.join()
        for number in range(150):  # more than a slice
            await world.producer.send(f"U{number}")
        await other.send("V1")
        connection = world.features.groups.producers.next_channel("pg")
        assert isinstance(connection, Connection)
        connection._outbound.paused = True
        await world.clock.advance(seconds=31)
        assert len(other.check_backs) == 1
        await other.send("V2")
        await world.clock.advance(seconds=60)
        assert [len(world.producer.check_backs), len(other.check_backs)] == [0, 5]
        connection._outbound.paused = False
        await world.clock.advance(seconds=1)
        assert len(world.producer.check_backs) == 150
        await other.client.close()


async def test_the_position_is_never_ahead_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(tmp_path) as world:
        await world.producer.send("U1")
        files = world.features.store.log.files
        await world.flushed()
        durable = files.flushed_where
        with monkeypatch.context() as patch:
            patch.setattr(files, "mark_flushed", lambda _synced: None)
            await world.rounds(4)
            assert files.flushed_where == durable
            assert len(world.records(HALF)) == 5
            assert world.position() == (-1, -1)
        await world.flushed()
        await world.rounds()
        assert world.position()[0] == 4


async def test_a_copy_that_failed_is_retried(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        await world.producer.send("U1")
        flags = world.features.store.flags
        for copies in ("half queue", "given up"):
            flags.set(StoreFlag.NOT_WRITEABLE)
            await world.rounds(2)
            assert len(world.records(HALF)) == (1 if copies == "half queue" else 2)
            assert world.records("TRANS_CHECK_MAX_TIME_TOPIC") == []
            flags.set(StoreFlag.NOT_WRITEABLE, False)
            await world.rounds()
        assert len(world.records(HALF)) == 2
        assert len(world.records("TRANS_CHECK_MAX_TIME_TOPIC")) == 1


async def test_records_that_are_not_half_messages_are_skipped(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        store = world.features.store
        assert store.put(Draft(HALF, 0, b"stray", born_timestamp=1)).status.stored
        await world.producer.send("U1")
        await world.rounds()
        assert [world.producer.checked(0).unique_id] == ["U1"]
        await world.flushed()
        await world.rounds()
        assert world.position()[0] == 2


async def test_a_round_ends_when_too_many_messages_are_immune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_rounds, "ImmuneMessages", partial(ImmuneMessages, 1))
    async with shop(tmp_path) as world:
        for number in range(2):
            await world.producer.send(f"U{number}", CHECK_IMMUNITY_TIME_IN_SECONDS="50")
        await world.producer.send("U2")
        await world.rounds()
        assert world.producer.check_backs == []
        await world.rounds()
        questions = range(len(world.producer.check_backs))
        assert [world.producer.checked(index).unique_id for index in questions] == [
            "U0",
            "U1",
            "U2",
        ]


async def test_a_round_logs_one_line_per_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        for number in range(3):
            await world.producer.send(f"U{number}")
        await world.producer.client.close()
        await world.rounds(3)
        lines = [
            record.getMessage() for record in caplog.records if record.name.endswith("check_back")
        ]
        assert lines == [
            "no producer of group pg is connected to check 3 half messages",
            "3 half messages of group pg moved to TRANS_CHECK_MAX_TIME_TOPIC: no decision came"
            " in time",
        ]
