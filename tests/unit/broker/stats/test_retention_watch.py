"""Warnings before files go that groups still need, on a broker with a real store of small files."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.stats import retention_watch
from skylark.broker.stats.retention_watch import INTERVAL_S, Endangered
from tests.unit.broker.members import Member, silent
from tests.unit.broker.stats.test_metrics_exporter import ON, scrape
from tests.unit.broker.stored import Stored, await_flushes, stored

MINUTE_S = 60
FILE_SIZE = 64 * 1024
BODY = bytes(10_000)  # six messages fill a file


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    given = {
        "mappedFileSizeCommitLog": str(FILE_SIZE),
        "maxMessageSize": "16384",
        "fileReservedTime": "1",
        "diskMaxUsedSpaceRatio": "98",
        "cleanFileForciblyEnable": "false",
    }
    async with stored(tmp_path, **given) as running:
        await_flushes(running)
        running.add_topic("T", 2)
        yield running


async def fill(world: Stored, count: int, queue_id: int = 0) -> None:
    for _ in range(count):
        answer = await world.send("T", BODY, queue_id)
        assert answer.code == 0, answer.remark


async def look(world: Stored) -> None:
    await world.clock.advance(INTERVAL_S)


async def test_a_group_that_is_behind_is_warned_before_its_messages_go(
    world: Stored, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six messages a file: the first two files are old, the third is not."""
    monkeypatch.setattr(retention_watch, "REPEAT_MS", 5 * MINUTE_S * 1000)
    await fill(world, 12)
    await world.clock.advance(40 * MINUTE_S)
    await fill(world, 2)
    watch = world.features.stats.retention_watch
    world.features.groups.offsets.commit("slow", "T", 0, 4)
    world.features.groups.offsets.commit("fast", "T", 0, 12)
    with caplog.at_level(logging.WARNING, retention_watch.__name__):
        await look(world)
        assert (watch.endangered, caplog.messages) == ([], [])  # they have 19 minutes left
        await world.clock.advance(9 * MINUTE_S)
        assert watch.endangered == [Endangered("slow", "T", 8)]
        text = "retention soon deletes 8 messages of T that group slow has not consumed yet"
        assert caplog.messages == [text, text]
    world.features.groups.offsets.commit("slow", "T", 0, 11)
    world.features.groups.offsets.commit(
        "g@broadcast", "T", 0, 10
    )  # the last of some broadcast consumers
    await look(world)
    found = [Endangered("g@broadcast", "T", 2), Endangered("slow", "T", 1)]
    assert sorted(watch.endangered, key=lambda each: each.group) == found
    world.features.groups.offsets.commit("g@broadcast", "T", 0, 12)
    world.features.groups.offsets.commit("slow", "T", 0, 12)
    await look(world)
    assert watch.endangered == []


async def test_only_groups_in_use_count(world: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_watch, "IN_USE_MS", 30 * MINUTE_S * 1000)
    await fill(world, 14)
    member = Member(world, "c1", silent)
    await member.join("online", "T")
    for group in ("online", "busy", "forgotten"):
        world.features.groups.offsets.commit(group, "T", 0, 0)
    watch = world.features.stats.retention_watch
    await look(world)
    await world.clock.advance(20 * MINUTE_S)
    world.features.groups.offsets.commit("busy", "T", 0, 1)
    await world.clock.advance(25 * MINUTE_S)
    assert watch.endangered == [Endangered("online", "T", 12), Endangered("busy", "T", 11)]
    await member.leave()


async def test_files_deleted_without_a_warning_are_logged_once(
    world: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(world, 14)
    world.features.groups.offsets.commit("g", "T", 0, 2)
    watch = world.features.stats.retention_watch
    with caplog.at_level(logging.WARNING, retention_watch.__name__):
        watch.deleting(0, FILE_SIZE, True)
        watch.deleting(0, FILE_SIZE, True)
    assert watch.endangered == [Endangered("g", "T", 4)]
    assert caplog.messages == [
        "retention soon deletes 4 messages of T that group g has not consumed yet"
    ]


async def test_long_work_is_cut_into_slices(world: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(world, 14)
    for number in range(10):
        world.features.groups.offsets.commit(f"g{number}", "T", 0, 0)
    monkeypatch.setattr(retention_watch, "PAIRS_PER_SLICE", 3)
    watch = world.features.stats.retention_watch
    work = watch._check(FILE_SIZE)
    assert sum(1 for _ in work) == 3
    assert len(watch.endangered) == 10


async def test_the_log_may_grow_by_a_file_before_its_beginning_goes(tmp_path: Path) -> None:
    given = {
        "mappedFileSizeCommitLog": str(FILE_SIZE),
        "maxMessageSize": "16384",
        "diskUsedBytesMax": str(3 * FILE_SIZE),
        "cleanFileForciblyEnable": "false",
    }
    async with stored(tmp_path, **given) as world:
        await_flushes(world)
        world.add_topic("T", 1)
        await fill(world, 7)
        retention = world.features.store.retention
        assert retention.expiring_until(0) == 0
        await fill(world, 8)
        assert retention.expiring_until(0) == FILE_SIZE


async def test_a_broker_shows_and_logs_them_before_the_files_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Room for three files: the fourth one costs the group its first messages."""
    given = {
        "mappedFileSizeCommitLog": str(FILE_SIZE),
        "maxMessageSize": "16384",
        "diskUsedBytesMax": str(3 * FILE_SIZE),
        "cleanFileForciblyEnable": "false",
        **ON,
    }
    name = 'skylark_retention_endangered_messages{consumer_group="g",topic="T"}'
    async with stored(tmp_path, **given) as world:
        await_flushes(world)
        world.add_topic("T", 1)
        await fill(world, 15)
        world.features.groups.offsets.commit("g", "T", 0, 1)
        with caplog.at_level(logging.INFO):
            await world.clock.advance(2 * INTERVAL_S)
            assert (await scrape(world))[name] == 5
            assert world.features.store.log.min_offset == 0
            await fill(world, 6)
            await world.clock.advance(INTERVAL_S)
        assert world.features.store.log.min_offset == FILE_SIZE
        texts = [text for text in caplog.messages if "group g" in text or "deleting" in text]
        assert (
            texts[0] == "retention soon deletes 5 messages of T that group g has not consumed yet"
        )
        assert texts[1].endswith(": the disk or the log is too full")
