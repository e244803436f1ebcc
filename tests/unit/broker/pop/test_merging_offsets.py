"""Merging in memory: what it commits beside others, and when its check-points leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.wire.codes import RequestCode
from tests.unit.broker.pop.pop_client import MERGING, PopClient, fill, popping
from tests.unit.broker.stored import bodies_of


def stored_offset(client: PopClient) -> int:
    """What the file of offsets would have; a pending reset is in memory only."""
    return client.world.features.groups.offsets.committed("g", "T")[0]


@MERGING
async def test_acks_do_not_move_the_offset_back(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 9)
        popped = await client.pop(maxMsgNums=3)
        pulled = await client.world.pull(3, sysFlag=4)
        assert len(bodies_of(pulled)) == 6
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "8"}
        answer = await client.world.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == 0
        await client.ack_all(popped)
        assert client.committed() == 8
        (last,) = await client.pop()
        assert last.offset == 8
        await client.ack_all([last])
        assert client.committed() == 9


@MERGING
@pytest.mark.parametrize("target", [0, 4])
async def test_a_reset_that_no_pop_has_taken_wins_over_acks(
    tmp_path: Path, merge: str, target: int
) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 5)
        first = await client.pop(maxMsgNums=2)
        second = await client.pop(maxMsgNums=1)
        client.world.features.groups.offsets.reset("g", "T", {0: target})
        await client.ack_all([*first, *second])
        assert (client.committed(), stored_offset(client)) == (target, target)
        again = await client.pop()
        assert [message.offset for message in again] == list(range(target, 5))
        await client.ack_all(again)
        assert (client.committed(), stored_offset(client)) == (5, 5)


@MERGING
async def test_a_short_time_after_a_long_one_is_kept(tmp_path: Path, merge: str) -> None:
    settings = {"enablePopBufferMerge": merge, "popCkStayBufferTime": "60000"}
    async with popping(tmp_path, **settings) as client:  # type: ignore[arg-type]
        await fill(client, 2)
        await client.pop(maxMsgNums=1, invisibleTime=100_000)
        (short,) = await client.pop(maxMsgNums=1, invisibleTime=10_000)
        await client.world.clock.advance(16)
        assert [message.body for message in await client.pop()] == [short.body]
