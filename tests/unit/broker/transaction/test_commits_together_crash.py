"""Commits that came together, and a kill after it: each final message is known to the next start.

The next start looks for final messages only after the last op message
(:mod:`skylark.broker.transaction.op_messages`). So no op message may stand after the final
messages of a run and leave out some of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker.transaction.halves import killed, shop
from tests.unit.broker.transaction.test_end_transaction import ended


@pytest.mark.parametrize("op_size_max", [1, 3, 5, 1_000])
async def test_an_op_message_leaves_out_no_final_message_before_it(
    tmp_path: Path, op_size_max: int
) -> None:
    async with shop(tmp_path, transactionOpMsgMaxSize=str(op_size_max)) as world:
        sent = [await world.producer.send(f"U{number}") for number in range(4)]
        await ended(world, sent)
        assert world.bodies() == [b"x"] * 4
        left = killed(world, tmp_path / "left")
    async with shop(left) as world:
        assert [(await world.producer.end(each)).code for each in sent] == [0, 0, 0, 0]
        assert world.bodies() == [b"x"] * 4  # and none of them twice
        await world.rounds(2)
        assert world.producer.check_backs == []
