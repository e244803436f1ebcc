"""Receipt handles of before a change of invisible time: no effect, merged in memory or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.broker.pop.pop_client import MERGING, PopClient, Popped, fill, popping

#: A part of a check-point in memory, and a time that is always written.
TIMES = pytest.mark.parametrize("invisible_ms", [3_000, 30_000])


@asynccontextmanager
async def two_popped(root: Path, merge: str) -> AsyncIterator[tuple[PopClient, Popped, Popped]]:
    """A consumer that has popped two messages."""
    async with popping(root, enablePopBufferMerge=merge) as client:
        await fill(client, 2)
        first, second = await client.pop(invisibleTime=60_000)
        yield client, first, second


async def change(client: PopClient, message: Popped, invisible_ms: int) -> Popped:
    answer = await client.change(message, invisible_ms)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    return client.changed(message, answer)


async def returned(client: PopClient) -> list[bytes]:
    """What comes back in the next minutes, where each message is acknowledged."""
    found: list[Popped] = []
    for _ in range(120):
        await client.world.clock.advance(1)
        part = await client.pop(invisibleTime=60_000)
        await client.ack_all(part)
        found += part
    assert client.committed() == 2
    return [message.body for message in found]


@MERGING
@TIMES
async def test_an_ack_by_the_old_handle(tmp_path: Path, merge: str, invisible_ms: int) -> None:
    async with two_popped(tmp_path, merge) as (client, first, second):
        await change(client, first, invisible_ms)
        await client.ack_all([first, second])
        assert await returned(client) == [first.body]


@MERGING
@TIMES
async def test_a_second_change_by_the_old_handle(
    tmp_path: Path, merge: str, invisible_ms: int
) -> None:
    async with two_popped(tmp_path, merge) as (client, first, second):
        changed = await change(client, first, 3_000)
        await client.world.clock.advance(0.5)
        await change(client, first, invisible_ms)  # a second time of its own, that no ack ends
        await client.ack_all([changed, first, second])
        assert await returned(client) == [first.body]


@MERGING
@TIMES
async def test_a_change_after_the_ack(tmp_path: Path, merge: str, invisible_ms: int) -> None:
    async with two_popped(tmp_path, merge) as (client, first, second):
        await client.ack_all([first])
        await change(client, first, invisible_ms)
        await client.ack_all([second])
        assert await returned(client) == [first.body]


@MERGING
async def test_only_the_newest_handle_ends_the_time(tmp_path: Path, merge: str) -> None:
    async with two_popped(tmp_path, merge) as (client, first, second):
        changed = await change(client, first, 3_000)
        await client.world.clock.advance(0.5)
        newest = await change(client, changed, 3_000)
        await client.ack_all([first, changed, second])
        assert client.committed() == (0 if merge == "true" else 2)
        await client.ack_all([newest])
        assert await returned(client) == []
