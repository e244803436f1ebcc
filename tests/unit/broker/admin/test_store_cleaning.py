"""Queues and files that go on demand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.store.retention import local_hour
from skylark.testing.virtual_clock import START_MS
from skylark.wire.codes import RequestCode
from tests.unit.broker.stored import Stored, stored

FILE_SIZE = 64 << 10


async def fill_files(world: Stored, topic: str, count: int) -> None:
    """Send until the log has so many files."""
    while len(world.features.store.log.files.files) < count:
        assert (await world.send(topic, bytes(10_000))).code == 0


async def test_queues_without_messages_go(tmp_path: Path) -> None:
    async with stored(tmp_path, mappedFileSizeCommitLog=str(FILE_SIZE)) as world:
        store = world.features.store
        for topic in ("T", "U"):
            world.add_topic(topic, 1)
        await world.send("T")
        await world.send("BenchmarkTest")  # a system topic
        await fill_files(world, "U", 2)
        assert (await world.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert store.queues.get("T", 0) is not None
        store.log.files.retire_oldest(world.clock.monotonic())
        store.log.files.sweep(world.clock.monotonic())
        answer = await world.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert (answer.code, answer.remark, answer.body) == (0, None, None)
        assert store.queues.get("T", 0) is None
        assert store.queues.get("U", 0) is not None
        assert store.queues.get("BenchmarkTest", 0) is not None
        assert (await world.send("T")).code == 0
        assert store.reader.max_offset("T", 0) == 1


async def test_others_have_their_turn_between_queues(tmp_path: Path) -> None:
    async with stored(tmp_path, mappedFileSizeCommitLog=str(FILE_SIZE)) as world:
        store = world.features.store
        for topic in ("A", "B", "C", "D"):
            world.add_topic(topic, 1)
            await world.send(topic)
        world.add_topic("U", 1)
        await fill_files(world, "U", 2)
        store.log.files.retire_oldest(world.clock.monotonic())
        store.log.files.sweep(world.clock.monotonic())
        left: list[list[str]] = []

        async def others() -> None:
            while "D" in store.queues.topics():
                left.append(sorted(store.queues.topics()))
                if left[-1] == ["C", "D", "U"]:
                    store.delete_topic("C")  # which is on the list of queues to be looked at
                await world.clock.sleep(0)

        cleaning = asyncio.create_task(others())
        answer = await world.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert (answer.code, answer.remark) == (0, None)
        await cleaning
        assert store.queues.topics() == ["U"]
        assert ["B", "C", "D", "U"] in left
        assert ["C", "D", "U"] in left


async def test_queues_of_no_topic_go(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        store = world.features.store
        for topic in ("T", "U"):
            world.add_topic(topic, 1)
            await world.send(topic)
        await world.send("BenchmarkTest")
        for topic in ("%LMQ%x", "gone"):
            store.queues.get_or_create(topic, 0).append(0, 100, 0)
        answer = await world.call(RequestCode.CLEAN_UNUSED_TOPIC)
        assert (answer.code, answer.remark) == (0, None)
        assert sorted(store.queues.topics()) == ["%LMQ%x", "BenchmarkTest", "T", "U"]


@pytest.mark.parametrize("asked", [True, False])
async def test_expired_files_are_deleted_at_once_on_request(tmp_path: Path, asked: bool) -> None:
    hour = local_hour(START_MS + 12 * 3_600_000)  # far from the hours of this test
    settings = {
        "mappedFileSizeCommitLog": str(FILE_SIZE),
        "fileReservedTime": "1",
        "deleteWhen": f"{hour:02d}",
        "diskMaxUsedSpaceRatio": "95",
        "cleanFileForciblyEnable": "false",
    }
    async with stored(tmp_path, **settings) as world:
        world.add_topic("T", 1)
        await fill_files(world, "T", 3)
        await world.clock.advance(2 * 3_600)
        await fill_files(world, "T", 4)
        files = world.features.store.log.files
        assert len(files.files) == 4
        if asked:
            answer = await world.call(RequestCode.DELETE_EXPIRED_COMMITLOG)
            assert (answer.code, answer.remark) == (0, None)
        await world.clock.advance(60)
        assert len(files.files) == (2 if asked else 4)
