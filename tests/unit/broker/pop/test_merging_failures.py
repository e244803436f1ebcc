"""Merging in memory while the log takes no records: nothing is lost, and all is tried again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.pop.pop_record_writer import PopRecord
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from tests.unit.broker.pop.pop_client import PopClient, Popped, fill, popping


@asynccontextmanager
async def merging(root: Path) -> AsyncIterator[PopClient]:
    """A broker that merges check-points in memory."""
    async with popping(root, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)  # merging begins when the offsets are saved
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
