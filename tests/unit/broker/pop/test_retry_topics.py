"""Retry topics that the revive creates: many at a time, and what happens if one cannot be made."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.unit.broker.pop.pop_client import PopClient, fill, popping
from tests.unit.broker.pop.test_revive_runner import RETRY, pop_again, revive_of


def limit_topics(client: PopClient, count: int) -> None:
    """Let the broker have so many more topics than it has now."""
    count += len(client.world.features.topics.table)
    client.world.context.live.update(f"topicCountMax={count}", 0)


async def test_messages_of_many_groups_come_back_together(tmp_path: Path) -> None:
    count = 100
    async with popping(tmp_path) as client:
        await fill(client, 1)
        groups = [PopClient(client.world, group=f"g{number}") for number in range(count)]
        for group in groups:
            assert len(await group.pop()) == 1
        await client.world.clock.advance(16)
        for group in groups:
            (again,) = await pop_again(group)
            assert again.record.reconsume_times == 1


async def test_a_topic_that_cannot_be_made_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with popping(tmp_path, reviveQueueNum="1") as client:
        bodies = await fill(client, 3)
        limit_topics(client, 0)
        await client.pop()
        limit_topics(client, 1)
        other = PopClient(client.world, group="other")
        await other.pop()
        client.world.features.topics.table.ensure("%RETRY%other_T", queue_count=1)
        await client.world.clock.advance(16)
        assert [each.body for each in await pop_again(other)] == bodies
        assert client.world.records(RETRY) == []
        await client.world.clock.advance(1_000)
        runner = revive_of(client)
        assert runner.copies.put_off_count > 3
        assert runner.copies.lost_count == 0
        refused = [each for each in caplog.messages if RETRY in each]
        assert len(refused) == 1
        limit_topics(client, 1)
        await client.world.clock.advance(60)
        again = await pop_again(client)
        assert [each.body for each in again] == bodies
        assert {each.record.reconsume_times for each in again} == {1}
