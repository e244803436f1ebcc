"""Merging in memory while the log takes no records: nothing is lost, and all is tried again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.pop.pop_record_writer import PopRecord
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.testing.virtual_clock import START_MS
from tests.unit.broker.pop.pop_client import PopClient, Popped, fill, popping


@asynccontextmanager
async def merging(
    root: Path, queue_count: int = 1, *, start_ms: int = START_MS, **given: str
) -> AsyncIterator[PopClient]:
    """A broker that merges check-points in memory."""
    given = {"enablePopBufferMerge": "true", **given}
    async with popping(root, queue_count, start_ms=start_ms, **given) as client:
        yield client


def fail_records(
    client: PopClient, monkeypatch: pytest.MonkeyPatch, numbers: Collection[int]
) -> list[int]:
    """Let the log refuse some records of POP, counted from 1; the numbers refused so far."""
    writer = client.world.features.puts.writer
    put_run = writer.put_run
    refused: list[int] = []
    count = 0

    def put_some(drafts: Sequence[Draft]) -> list[PutResult]:
        nonlocal count
        results = []
        for draft in drafts:
            if isinstance(draft, PopRecord):
                count += 1
                if count in numbers:
                    refused.append(count)
                    results.append(PutResult(PutStatus.SERVICE_NOT_AVAILABLE))
                    continue
            results += put_run([draft])
        return results

    monkeypatch.setattr(writer, "put_run", put_some)
    return refused


async def until(client: PopClient, refused: list[int]) -> None:
    """Let time pass until the log has refused a record."""
    deadline_ms = client.world.clock.now_ms() + 10_000
    while not refused:
        assert client.world.clock.now_ms() < deadline_ms, "no record was written"
        await client.world.clock.advance(0.1)


async def pop_for(client: PopClient, seconds: int) -> list[Popped]:
    """What comes back within some seconds; it is acknowledged."""
    found: list[Popped] = []
    for _ in range(seconds):
        await client.world.clock.advance(1)
        found += await client.pop()
        await client.ack_all(found)
    return found


async def give_back_first(client: PopClient) -> tuple[list[bytes], Popped]:
    """Pop two messages, change the time of the first; their bodies, and the second."""
    bodies = await fill(client, 2)
    first, second = await client.pop(invisibleTime=20_000)
    await client.world.clock.advance(1)
    assert (await client.change(first, 4_000)).code == 0
    return bodies, second


@pytest.mark.parametrize("number", [1, 2])
async def test_a_check_point_and_its_parts_are_each_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with merging(tmp_path) as client:
        bodies, _ = await give_back_first(client)
        refused = fail_records(client, monkeypatch, {number})
        await until(client, refused)
        assert client.committed() == 0
        again = await pop_for(client, 60)
        assert sorted(message.body for message in again) == bodies
        assert client.committed() == 2


async def test_an_ack_does_not_settle_a_part_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with merging(tmp_path) as client:
        bodies, second = await give_back_first(client)
        refused = fail_records(client, monkeypatch, {1})
        await until(client, refused)
        await client.ack_all([second])
        again = await pop_for(client, 60)
        assert [message.body for message in again] == bodies[:1]
        assert client.committed() == 2


async def test_a_stop_writes_all_that_the_log_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with merging(tmp_path, 3) as client:
        for queue_id in range(3):
            await fill(client, 1, queue_id)
            assert len(await client.pop(queueId=queue_id)) == 1
        now_ms = client.world.clock.now_ms()
        refused = fail_records(client, monkeypatch, {1})
    assert refused == [1]
    assert "1 pop check-points cannot be written, and are popped again: " in caplog.text
    async with popping(tmp_path, 3, start_ms=now_ms) as client:
        assert [message.body for message in await client.pop(invisibleTime=60_000)] == [b"0-0"]
        again = await pop_for(client, 20)
        assert sorted(message.body for message in again) == [b"1-0", b"2-0"]


async def test_a_stop_that_leaves_a_gap_repeats_from_there_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with merging(tmp_path) as client:
        bodies = await fill(client, 3)
        for _ in bodies:
            assert len(await client.pop(maxMsgNums=1)) == 1
        now_ms = client.world.clock.now_ms()
        refused = fail_records(client, monkeypatch, {2})
    assert refused == [2]
    async with popping(tmp_path, start_ms=now_ms) as client:
        assert client.committed() == 1
        again = await client.pop(invisibleTime=60_000)
        assert [message.body for message in again] == bodies[1:]
        await client.ack_all(again)
        assert [message.body for message in await pop_for(client, 70)] == bodies[:1]


async def test_a_check_point_that_the_timer_cannot_take_is_not_kept(tmp_path: Path) -> None:
    async with merging(tmp_path, timerMaxDelaySec="60") as client:
        bodies = await fill(client, 1)
        answer = await client.answer(invisibleTime=62_000)
        assert answer.code == 13
        assert "timer message illegal" in (answer.remark or "")
        (message,) = await client.pop(invisibleTime=60_000)  # nothing was taken
        assert message.body == bodies[0]
        assert (await client.change(message, 62_000)).code == 1
        await client.ack_all([message])
        assert client.committed() == 1


async def test_a_lower_limit_of_the_timer_keeps_what_was_popped_before(tmp_path: Path) -> None:
    """A check-point in memory may lie beyond the new limit when it is written."""
    async with merging(tmp_path) as client:
        bodies = await fill(client, 1)
        assert len(await client.pop(invisibleTime=120_000)) == 1
        client.world.context.live.update("timerMaxDelaySec=20", 0)
        assert await pop_for(client, 110) == []
        assert [message.body for message in await pop_for(client, 30)] == bodies
