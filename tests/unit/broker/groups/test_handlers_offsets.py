"""Committed offsets, and the bounds of queues, as clients and tools ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.broker.stored import Stored, stored


async def ask(world: Stored, code: int, **ext: str) -> Command:
    return await world.call(code, {"topic": "T", "queueId": "0", **ext})


async def query(world: Stored, group: str = "g", **ext: str) -> Command:
    return await ask(world, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, **ext)


async def commit(world: Stored, offset: int, group: str = "g", **ext: str) -> Command:
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    return await ask(world, code, consumerGroup=group, commitOffset=str(offset), **ext)


@pytest.mark.spec("broker.13.14")
async def test_a_new_group_starts_at_the_beginning_of_a_young_topic(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for _ in range(5):
            await world.send()
        answer = await query(world)
        assert (answer.code, answer.ext, answer.remark) == (0, {"offset": "0"}, None)
        refused = await query(world, setZeroIfNotFound="false")
        assert (refused.code, refused.ext) == (22, {})
        assert refused.remark == "Not found, do not set to zero, maybe this group boot first"
        nothing = await query(world, topic="Unknown")
        assert (nothing.code, nothing.ext) == (22, {})
        assert (nothing.remark or "").startswith("Not found, V3_0_6_SNAPSHOT maybe")


@pytest.mark.spec("remoting.10.21")
async def test_a_queue_that_has_lost_its_beginning_is_not_young(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for _ in range(5):
            await world.send()
        queue = world.features.store.queues.get("T", 0)
        entry = None if queue is None else queue.read_entry(2)
        assert queue is not None
        assert entry is not None
        queue.correct_min(entry.log_offset)
        assert (await query(world)).code == 22
        assert (await query(world, setZeroIfNotFound="false")).code == 22


async def test_commits(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        unknown = await commit(world, 5)
        assert (unknown.code, unknown.ext, unknown.remark) == (26, {}, "Group g not exist!")
        world.features.groups.table.find("g")
        no_topic = await commit(world, 5, topic="No")
        assert (no_topic.code, no_topic.remark) == (17, "Topic No not exist!")
        bare = {"consumerGroup": "g", "topic": "T"}
        for missing, ext in (("QueueId", {"commitOffset": "5"}), ("Offset", {"queueId": "0"})):
            refused = await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**bare, **ext})
            assert (refused.code, refused.ext) == (29, {})
            assert refused.remark == f"{missing} is null, topic is T"
        for offset in (5, 3):
            done = await commit(world, offset)
            assert (done.code, done.ext, done.remark) == (0, {}, None)
            assert (await query(world)).ext == {"offset": str(offset)}


async def test_a_commit_during_a_reset_is_ignored(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        world.features.groups.table.find("g")
        world.features.groups.offsets.reset("g", "T", {0: 1})
        ignored = await commit(world, 9)
        assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
        assert (await query(world)).ext == {"offset": "1"}


async def test_bounds_and_times(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        times = []
        for _ in range(3):
            await world.send()
            times.append(world.clock.now_ms())
            await world.clock.advance(1)
        assert (await ask(world, RequestCode.GET_MAX_OFFSET)).ext == {"offset": "3"}
        assert (await ask(world, RequestCode.GET_MIN_OFFSET)).ext == {"offset": "0"}
        earliest = await ask(world, RequestCode.GET_EARLIEST_MSG_STORETIME)
        assert earliest.ext == {"timestamp": str(times[0])}
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        for time_ms, boundary, offset in [
            (0, "LOWER", 0),
            (times[1], "LOWER", 1),
            (times[1] + 1, "LOWER", 2),
            (times[1] + 1, "upper", 1),
            (times[2] + 1, "LOWER", 3),
            (times[2] + 1, "UPPER", 2),
        ]:
            answer = await ask(world, search, timestamp=str(time_ms), boundaryType=boundary)
            assert (answer.code, answer.ext) == (0, {"offset": str(offset)})


async def test_unknown_queues_are_empty(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for code, ext in [
            (RequestCode.GET_MAX_OFFSET, {"offset": "0"}),
            (RequestCode.GET_MIN_OFFSET, {"offset": "0"}),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"offset": "0"}),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, {"timestamp": "-1"}),
        ]:
            answer = await ask(world, code, timestamp="1")
            assert (answer.code, answer.ext) == (0, ext)
