"""Lags of groups, on a broker with a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.stats import consumer_lag as lag
from skylark.broker.stats.consumer_lag import Lag, LagReport
from skylark.core.errors import StoreError
from skylark.store.message_reader import Reader
from skylark.wire.codes import RequestCode
from tests.unit.broker.members import Member, silent
from tests.unit.broker.stored import Stored, stored


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        running.features.groups.table.find("g")
        yield running


def report_of(world: Stored) -> LagReport:
    features = world.features
    return LagReport(
        features.topics.table,
        features.groups.table,
        features.groups.offsets,
        features.groups.consumers,
        features.store.reader,
        world.clock,
    )


def lags(world: Stored) -> dict[tuple[str, str], Lag]:
    report = report_of(world)
    for _ in report.renew():
        pass
    return {(found.group, found.topic): found for found in report.lags}


async def test_what_a_group_has_not_consumed(world: Stored) -> None:
    world.add_topic("T", 2)
    for _ in range(4):
        await world.send("T", queue_id=0)
        await world.clock.advance(1)
    await world.send("T", queue_id=1)
    offsets = world.features.groups.offsets
    offsets.commit("g", "T", 0, 1)
    offsets.commit_pulled("g", "T", 0, 3)
    offsets.commit("g", "T", 1, 1)
    found = lags(world)["g", "T"]
    assert (found.lag_count, found.inflight_count, found.ready_count) == (3, 2, 1)
    assert (found.lag_ms, found.queueing_ms) == (3_000, 1_000)
    assert not found.is_system


async def test_a_deleted_group_has_no_lag_although_its_offsets_stay(world: Stored) -> None:
    world.add_topic("T", 1)
    await world.send("T")
    world.features.groups.offsets.commit("g", "T", 0, 0)
    assert lags(world)["g", "T"].lag_count == 1
    await world.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert world.features.groups.offsets.get("g", "T", 0) == 0
    assert lags(world) == {}
    world.features.groups.table.find("g")  # it consumes again
    assert lags(world)["g", "T"].lag_count == 1


async def test_queues_without_offset_count_as_consumed(world: Stored) -> None:
    world.add_topic("T", 2)
    await world.send("T")
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    found = lags(world)
    assert list(found) == [("g", "T")]  # without the topic of its retries
    assert (found["g", "T"].lag_count, found["g", "T"].lag_ms) == (0, 0)
    await member.leave()
    assert lags(world) == {}


async def test_the_report_changes_at_the_end_of_the_last_slice(world: Stored) -> None:
    for number in range(20):
        world.add_topic(f"T{number}", lag.QUEUES_PER_SLICE // 4)
        world.features.groups.offsets.commit("g", f"T{number}", 0, 0)
    world.features.groups.offsets.commit("g", "gone", 0, 0)
    report = report_of(world)
    slices = 0
    for _ in report.renew():
        slices += 1
        assert report.lags == []
    assert slices == 5
    assert len(report.lags) == 20


async def test_the_report_is_bounded(world: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "PAIR_COUNT_MAX", 3)
    for number in range(5):
        world.add_topic(f"T{number}", 1)
        world.features.groups.offsets.commit("g", f"T{number}", 0, 0)
    assert len(lags(world)) == 3


async def test_a_disk_that_fails_hides_one_lag_and_not_the_others(
    world: Stored, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("T", "U"):
        world.add_topic(topic, 1)
        await world.send(topic)
        world.features.groups.offsets.commit("g", topic, 0, 0)
    reader = world.features.store.reader

    def store_time(topic: str, queue_id: int, offset: int) -> int | None:
        if topic == "T":
            raise StoreError("cannot be read")
        return Reader.store_time(reader, topic, queue_id, offset)

    monkeypatch.setattr(reader, "store_time", store_time)
    assert list(lags(world)) == [("g", "U")]
    assert "cannot work out the lag of group g on topic T: cannot be read" in caplog.text


async def test_system_topics_and_groups_are_marked(world: Stored) -> None:
    world.add_topic("T", 1)
    world.features.groups.offsets.commit("CID_RMQ_SYS_TRANS", "T", 0, 0)
    world.features.groups.offsets.commit("g", "BenchmarkTest", 0, 0)
    assert all(found.is_system for found in lags(world).values())
    assert len(lags(world)) == 2
