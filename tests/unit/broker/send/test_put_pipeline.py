"""An error of one request in a run, or of one kind of requests, does not affect the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.api import Peer, SendRequest
from skylark.broker.send.send_step import SendStep
from tests.unit.broker.send.send_runs import prepare, request, send_together
from tests.unit.broker.stored import stored
from tests.unit.broker.transaction.halves import shop
from tests.unit.broker.transaction.test_end_transaction import request as commit_request
from tests.unit.broker.transaction.test_end_transaction import run


async def test_a_failing_draft_does_not_affect_other_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = SendStep.draft

    def broken(self: SendStep, peer: Peer, asked: SendRequest) -> object:
        if asked.body == b"body 3":
            raise ZeroDivisionError
        return draft(self, peer, asked)

    monkeypatch.setattr(SendStep, "draft", broken)
    async with stored(tmp_path) as world:
        prepare(world)
        sent = await send_together(world, [request(opaque) for opaque in (1, 2, 3, 4)])
        assert sent.codes == {1: 0, 2: 0, 3: 1, 4: 0}
        assert len(world.records("T")) == 3


async def test_a_failing_finish_does_not_affect_other_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a commit would be in the log and unknown, and be stored a second time when repeated."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with shop(tmp_path) as world:
        half = await world.producer.send("U1")
        await world.clock.advance(seconds=1)
        with monkeypatch.context() as patch:
            patch.setattr(SendStep, "finish", broken)
            answers = run(world, [request(1), commit_request(world, half, oneway=False)])
        assert [answer.code for answer in answers] == [1, 0]
        once = world.bodies()
        assert (await world.producer.end(half)).code == 0
        assert world.bodies() == once
