"""Copies of expired messages: where they go, what they have, and how they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from tests.unit.broker.pop.pop_client import PopClient, Popped, fill, popping
from tests.unit.broker.pop.test_revive_runner import RETRY, pop_again, revive_of

EXPIRY_S = 16


def queue_counts(client: PopClient, topic: str = RETRY) -> tuple[int, int]:
    found = client.world.features.topics.table.get(topic)
    assert found is not None
    return found.read_queue_nums, found.write_queue_nums


async def expire(client: PopClient) -> None:
    await client.world.clock.advance(EXPIRY_S)


async def test_a_copy_has_all_that_its_message_has(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1, properties="TAGS\x01A\x02KEYS\x01k\x02own\x01x\x02")
        (message,) = await client.pop()
        await expire(client)
        (copy,) = client.world.records(RETRY)
        assert copy.properties == {
            **message.record.properties,
            "ORIGIN_GROUP": "g",
            "1ST_POP_TIME": str(message.handle.pop_time_ms),
        }
        assert (copy.body, copy.flag, copy.sys_flag) == (
            message.body,
            message.record.flag,
            message.record.sys_flag,
        )
        assert copy.born_timestamp == message.record.born_timestamp
        assert copy.born_host == copy.store_host == client.world.context.store_host
        assert (copy.queue_id, copy.reconsume_times) == (0, 1)
        (again,) = await pop_again(client, exp="A")
        assert again.record.properties["POP_CK"] == str(again.handle)


async def test_a_handle_of_a_producer_does_not_reach_the_consumer(tmp_path: Path) -> None:
    """Java leaves a forged POP_CK in a retried message, whose ack then has no effect."""
    async with popping(tmp_path) as client:
        forged = "0 1 2 3 1 broker-a 0 0"
        await fill(client, 1, properties=f"POP_CK\x01{forged}\x02")
        await client.answer()
        await expire(client)
        (again,) = await pop_again(client)
        assert str(again.handle) != forged
        await client.ack_all([again])
        await client.world.clock.advance(60)
        assert await pop_again(client) == []


async def test_the_retry_topic_grows_with_its_topic(tmp_path: Path) -> None:
    async with popping(tmp_path, 1, useSeparateRetryQueue="true") as client:
        await fill(client, 1)
        await client.ack_all(await _expired(client))
        assert queue_counts(client) == (1, 1)
        client.world.add_topic("T", 4)
        bodies = await fill(client, 1, queue_id=3)
        (again,) = await _expired(client)
        assert queue_counts(client) == (4, 4)
        assert (again.body, again.record.queue_id) == (bodies[0], 3)
        offsets = client.world.features.groups.offsets
        assert [offsets.get("g", RETRY, queue_id) for queue_id in range(4)] == [1, 0, 0, 1]


async def test_the_copy_of_a_queue_that_is_gone_is_found_all_the_same(tmp_path: Path) -> None:
    async with popping(tmp_path, 4, useSeparateRetryQueue="true") as client:
        bodies = await fill(client, 1, queue_id=3)
        await client.pop()
        client.world.add_topic("T", 2)
        await expire(client)
        (again,) = await pop_again(client)
        assert (again.body, again.record.queue_id) == (bodies[0], 0)
        assert queue_counts(client) == (2, 2)


async def _expired(client: PopClient) -> list[Popped]:
    await client.pop()
    await expire(client)
    return await pop_again(client)


def refuse_copies(
    client: PopClient, monkeypatch: pytest.MonkeyPatch, runs: dict[int, int]
) -> list[int]:
    """Store of some runs of copies (1: the first) only so many; returns the runs as they come."""
    writer = revive_of(client).copies._writer
    put_run = writer.put_run
    refused: list[int] = []
    count = 0

    def put_some(drafts: Sequence[Draft]) -> list[PutResult]:
        nonlocal count
        if drafts[0].topic == RETRY:
            count += 1
            if count in runs:
                refused.append(count)
                stored = put_run(drafts[: runs[count]]) if runs[count] else []
                missing = len(drafts) - len(stored)
                return [*stored, *([PutResult(PutStatus.SERVICE_NOT_AVAILABLE)] * missing)]
        return put_run(drafts)

    monkeypatch.setattr(writer, "put_run", put_some)
    return refused


@pytest.mark.parametrize("merge", ["false", "true"])
async def test_a_run_of_copies_that_breaks_off_goes_on_where_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge: str
) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        bodies = await fill(client, 5)
        await client.pop()
        refused = refuse_copies(client, monkeypatch, {1: 2, 2: 0, 3: 1})
        await client.world.clock.advance(60)
        assert refused == [1, 2, 3]
        assert [copy.body for copy in client.world.records(RETRY)] == bodies
        assert client.world.features.pop.state.in_flight("T", "g", 0) == 0


async def test_what_was_deleted_is_counted_once_and_no_longer_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as client:
        copies = revive_of(client).copies
        await fill(client, 2)
        await client.pop()
        place = copies._log_offset
        monkeypatch.setattr(
            copies, "_log_offset", lambda point, offset: place(point, offset) if offset else None
        )
        refused = refuse_copies(client, monkeypatch, {1: 0, 2: 0, 3: 0})
        await client.world.clock.advance(60)
        assert refused == [1, 2, 3]
        assert len(client.world.records(RETRY)) == 1
        assert copies.lost_count == 1
        assert client.world.features.pop.state.in_flight("T", "g", 0) == 0


async def test_copies_are_counted_by_the_topic_that_was_popped(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        totals = client.world.features.pop.state.totals
        await _expired(client)
        assert totals.copied == {("g", "T"): 1}
        await expire(client)
        assert totals.copied == {("g", "T"): 1, ("g", RETRY): 1}
        assert totals.written == {("g", "T", "CK"): 1, ("g", RETRY, "CK"): 1}
        assert sum(totals.read.values()) == 2
        client.world.features.pop.state.topic_deleted("T")
        assert totals.copied == {("g", RETRY): 1}
        client.world.features.groups.table.delete("g")
        assert not totals.copied
        assert not totals.written
        assert not totals.read


async def test_a_group_that_was_not_saved_is_created_again(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        bodies = await fill(client, 3)
        await client.pop()
        client.world.features.groups.table._groups.clear()  # as after a crash
        await client.world.clock.advance(30)
        assert [copy.body for copy in client.world.records(RETRY)] == bodies
        assert "g" in client.world.features.groups.table
