"""Whole tables for slaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.core.clock import LoopClock
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    TimerMetrics,
)
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.recorded import exchanges
from tests.unit.broker.stored import Stored, stored


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


async def on_disk(world: Stored) -> None:
    """Wait for the thread that syncs the log."""
    files, real = world.features.store.log.files, LoopClock()
    deadline = real.monotonic() + 10
    while files.flushed_where < files.max_offset:
        assert real.monotonic() < deadline
        await world.clock.advance(0.5)
        await real.sleep(0.001)


@pytest.mark.parametrize(
    "code", [RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE]
)
async def test_recorded_tables_of_a_new_broker(world: Stored, code: int) -> None:
    ((asked, recorded),) = exchanges("slave-sync", code)
    if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
        theirs = decode_body(ConsumerOffsetSerializeWrapper, recorded.body or b"").data_version
        assert theirs is not None
        world.features.groups.offsets.version = theirs
    answer = await world.call(code, asked.ext)
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    assert answer.body == recorded.body


async def test_the_timer(world: Stored) -> None:
    world.add_topic("FrameA", 1)
    answer = await world.call(RequestCode.GET_TIMER_CHECK_POINT)
    assert (answer.code, len(answer.body or b"")) == (0, 56)
    due_ms = world.clock.now_ms() + 60_000
    assert (await world.send("FrameA", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")).code == 0
    await world.clock.advance(2)
    ((asked, recorded),) = exchanges("slave-sync", RequestCode.GET_TIMER_METRICS)
    answer = await world.call(asked.code, asked.ext)
    ours = decode_body(TimerMetrics, answer.body or b"")
    theirs = decode_body(TimerMetrics, recorded.body or b"")
    assert ours.timing_count.keys() == theirs.timing_count.keys() == {"FrameA"}
    assert ours.timing_count["FrameA"].count == 1


async def test_a_broker_without_a_timer_refuses(tmp_path: Path) -> None:
    async with stored(tmp_path, timerWheelEnable="false") as world:
        answer = await world.call(RequestCode.GET_TIMER_CHECK_POINT)
        assert answer.code == 1
        assert (answer.remark or "").startswith("The checkpoint is null")
        answer = await world.call(RequestCode.GET_TIMER_METRICS)
        assert answer.code == 1
        assert (answer.remark or "").startswith("The timer message store is null")


async def test_offsets_are_those_of_the_table(world: Stored) -> None:
    offsets = world.features.groups.offsets
    for number in range(600):
        offsets.commit("g", f"T{number}", 3, number)
    offsets.commit_pulled("g", "T0", 3, 7)
    answer = await world.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    # Java's reader cannot skip a table that it does not know if its keys are bare numbers.
    bare, text = b'"pullOffsetTable":{"T0@g":{3:7}}', b'"pullOffsetTable":{"T0@g":{"3":7}}'
    assert answer.body == encode_body(offsets.dump()).replace(bare, text)
    assert text in answer.body
    body = decode_body(ConsumerOffsetSerializeWrapper, answer.body or b"")
    assert body.offset_table["T599@g"] == {3: 599}
    assert body.pull_offset_table == {"T0@g": {3: 7}}


async def test_recorded_delay_offsets(world: Stored) -> None:
    ((asked, recorded),) = exchanges("slave-sync", RequestCode.GET_ALL_DELAY_OFFSET)
    world.add_topic("T", 1)
    assert (await world.send("T", properties="DELAY\x011\x02")).code == 0
    await world.clock.advance(2)
    assert len(world.records("T")) == 1
    await on_disk(world)
    answer = await world.call(asked.code, asked.ext)
    ours = decode_body(DelayOffsetSerializeWrapper, answer.body or b"")
    theirs = decode_body(DelayOffsetSerializeWrapper, recorded.body or b"")
    assert ours.offset_table == theirs.offset_table == {1: 1}
    assert isinstance(ours.data_version, DataVersion)
