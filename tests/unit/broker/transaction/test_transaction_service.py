"""Decisions while the store refuses messages, or too many decisions are collected."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.transaction import op_messages as op_batches
from skylark.store.running_flags import StoreFlag
from tests.unit.broker.transaction.halves import OP, ROLLBACK, shop


async def test_while_nothing_can_be_stored_nothing_is_promised(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        one, two, three = [await world.producer.send(f"U{number}") for number in range(3)]
        flags = world.features.store.flags
        flags.set(StoreFlag.NOT_WRITEABLE)
        refused = await world.producer.end(one)
        assert refused.code == 14
        assert (refused.remark or "").startswith("Service not available now.")
        for _ in range(2):
            refused = await world.producer.end(two, ROLLBACK)
            assert refused.code == 14
        await world.producer.end_oneway(three, ROLLBACK)
        await world.rounds()  # a round that can copy nothing, either
        assert (world.op_bodies(), world.producer.check_backs) == ([], [])
        flags.set(StoreFlag.NOT_WRITEABLE, False)
        await world.clock.advance(seconds=3)
        assert world.op_bodies() == [b"1,2,"]
        assert (await world.producer.end(one)).code == 0
        assert (await world.producer.end(two, ROLLBACK)).code == 0
        assert (await world.producer.end(two)).code == 1
        await world.rounds(2)
        assert (world.bodies(), world.producer.check_backs) == ([b"x"], [])


async def test_too_many_decisions_without_op_message_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op_batches, "COLLECTED_SIZE_MAX", 4)
    async with shop(tmp_path) as world:
        sent = [await world.producer.send(f"U{number}") for number in range(3)]
        world.features.store.flags.set(StoreFlag.NOT_WRITEABLE)
        for each in sent[:2]:
            await world.producer.end_oneway(each, ROLLBACK)
        assert (await world.producer.end(sent[2])).code == 2
        world.features.store.flags.set(StoreFlag.NOT_WRITEABLE, False)
        assert (await world.producer.end(sent[2])).code == 0
        assert world.op_bodies() == [b"0,1,"]


async def test_a_stop_writes_what_was_collected(tmp_path: Path) -> None:
    """A rollback: the next start could find a commit without its op message in the log."""
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        await world.producer.end_oneway(sent, ROLLBACK)
        assert world.op_bodies() == []
        assert not world.transactions.is_idle
    async with shop(tmp_path, start_ms=world.clock.now_ms()) as world:
        assert [record.body for record in world.records(OP)] == [b"0,"]
        await world.rounds(2)
        assert world.producer.check_backs == []


async def test_a_stop_that_cannot_write_leaves_no_timer_behind(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        sent = await world.producer.send("U1")
        await world.producer.end_oneway(sent, ROLLBACK)
        world.features.store.flags.set(StoreFlag.NOT_WRITEABLE)
    assert world.transactions.is_idle


async def test_an_idle_broker_has_no_timer(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        idle = []
        idle.append(world.transactions.is_idle)
        sent = await world.producer.send("U1")
        await world.producer.end_oneway(sent)
        idle.append(world.transactions.is_idle)
        await world.rounds()
        await world.flushed()
        await world.rounds()
        idle.append(world.transactions.is_idle)
        assert world.position() == (1, 1)
        await world.producer.send("U2")
        idle.append(world.transactions.is_idle)
        assert idle == [True, False, True, False]
