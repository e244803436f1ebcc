"""Recorded conversations with a real broker (5.5.0), held again with ours.

Requests are sent as recorded, in the recorded order; answers must have the recorded code and
remark, and where nothing else is said, the recorded ext fields with their values. Message ids hold
the place in the log, so equal ids mean that every record before has the length it has in Java.

What is different, and why:

* Topics and messages that other recordings made are made up for (:func:`fill`).
* Where Java answers with an exception, only code and ext fields count; the same for ids drawn by
  the broker.
* The timer message of ``send-delay`` is refused: there is no timer wheel yet.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.wire.command import Command
from skylark.wire.frame import decode_frame
from tests.unit.broker.handlers.stored import CALL_TIMEOUT_S, Stored, stored

FRAMES = Path(__file__).parent / "data" / "frames"
SENDS = {10, 310, 320}
#: Requests of ``errors`` that the data plane answers.
DATA_CODES = SENDS | {9999, 11, 12, 14, 15, 29, 30, 31, 33}
#: The broker of the recordings advertised this address; the answers show it.
RECORDED = {"brokerIP1": "127.0.0.2", "listenPort": "20911", "enablePropertyFilter": "true"}


def recorded(scenario: str, codes: set[int]) -> list[tuple[Command, Command | None]]:
    """Requests to the broker and their answers; None where there is none."""
    lines = [json.loads(line) for line in (FRAMES / f"{scenario}.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["link"].startswith("client-broker")]
    answers = {(line["conn"], line["opaque"]): line for line in lines if line["response"]}
    return [
        (_command(line), None if answer is None else _command(answer))
        for line in lines
        if not line["response"] and line["code"] in codes
        for answer in [answers.get((line["conn"], line["opaque"]))]
    ]


def _command(line: dict[str, str]) -> Command:
    return decode_frame(base64.b64decode(line["raw"]))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path, **RECORDED) as started:
        started.add_topic("FrameA", 2)
        yield started


async def replay(world: Stored, request: Command, answer: Command | None) -> Command | None:
    if answer is None:
        await world.client.oneway(world.address, request)
        await world.clock.drain()
        return None
    return await world.client.call(world.address, request, CALL_TIMEOUT_S)


async def fill(world: Stored, message_count: int) -> None:
    """Make the first queue of the topic as long as it was."""
    while len(world.records("FrameA")) < message_count:
        await world.send("FrameA", properties="TAGS\x01TagB\x02")


def place(exchange: tuple[Command, Command | None]) -> str:
    """Where the message went: requests that were under way together were stored in this order."""
    answer = exchange[1]
    return "" if answer is None else (answer.ext or {})["msgId"]


async def test_sends(world: Stored) -> None:
    """From an empty log on; the last message is a delayed one."""
    scenarios = ["send-sync", "send-autocreate", "send-async", "send-oneway", "send-batch"]
    exchanges = [
        exchange for name in scenarios for exchange in sorted(recorded(name, SENDS), key=place)
    ]
    delayed, timer = recorded("send-delay", SENDS)
    exchanges.append(delayed)
    assert len(exchanges) == 12
    for request, answer in exchanges:
        ours = await replay(world, request, answer)
        if ours is not None and answer is not None:
            assert (ours.code, ours.remark, ours.ext) == (answer.code, None, answer.ext)
    refused = await world.client.call(world.address, timer[0], CALL_TIMEOUT_S)
    assert (refused.code, set(refused.ext or {})) == (1, {"MSG_REGION", "TRACE_ON"})


async def test_pulls(world: Stored) -> None:
    await fill(world, 11)
    exchanges = recorded("pull", {11, 14, 15, 29, 30, 31})
    assert {request.code for request, _ in exchanges} == {11, 14, 15, 29, 30, 31}
    for request, answer in exchanges:
        ours = await replay(world, request, answer)
        assert ours is not None
        assert answer is not None
        # 31 has an empty remark in Java.
        expected = (answer.code, answer.remark or None, answer.ext)
        assert (ours.code, ours.remark, ours.ext) == expected
        assert bool(ours.body) == bool(answer.body)


async def test_errors(world: Stored) -> None:
    await fill(world, 15)
    exchanges = recorded("errors", DATA_CODES)
    assert len(exchanges) > 25
    for request, answer in exchanges:
        ours = await replay(world, request, answer)
        assert ours is not None
        assert answer is not None
        assert ours.code == answer.code, (request, ours)
        remark = answer.remark or ""
        if remark.startswith("java."):
            assert ours.ext is None
        elif request.code in SENDS and answer.code == 0:
            assert (ours.ext or {}).keys() == (answer.ext or {}).keys()
        else:
            assert ours.ext == answer.ext, (request, ours)
            # The address of the client, at the end of two remarks, is another one.
            assert (ours.remark or "").startswith(remark.partition("127.0.0.1:")[0])
