"""Objects encoded bit by bit."""

from __future__ import annotations

import asyncio

import pytest

from skylark.broker.admin.chunked_json import ObjectPieces
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.fastjson import encode_body


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
async def test_pieces_give_the_bytes_of_the_whole(count: int) -> None:
    table = {MessageQueue(topic="T", broker_name="b", queue_id=n): n * 10 for n in range(count)}
    pieces = ObjectPieces(VirtualClock(), per_turn=3)
    for key, value in table.items():
        await pieces.put(key, value)
    assert pieces.encode() == encode_body(table)


async def test_others_have_their_turn() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await clock.sleep(0)

    clock = VirtualClock()
    pieces = ObjectPieces(clock, per_turn=10)
    other = asyncio.create_task(count_turns())
    for number in range(95):
        await pieces.put(f"key{number}", number)
    assert turns == 9
    other.cancel()
