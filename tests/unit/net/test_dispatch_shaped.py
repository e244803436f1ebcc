"""Shaped responses: a frame where the connection takes frames, a command everywhere else."""

from __future__ import annotations

import logging

import pytest

from skylark.wire.command import FLAG_ONEWAY, SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.command_codec import DECIMAL, FRAME_SIZE_MAX, ResponseShape, ShapedResponse
from tests.unit.net.test_runs import LATE, LONE, Alike, Watching, requests, running

SHAPE = ResponseShape(0, {"number": DECIMAL, "fixed": "x"})


@pytest.mark.parametrize("serialize_type", [SERIALIZE_JSON, SERIALIZE_BINARY])
@pytest.mark.parametrize("watched", [False, True])
async def test_shaped_responses_arrive_on_connections_of_both_kinds(
    serialize_type: int, watched: bool
) -> None:
    watching = Watching()
    interceptors = (Alike(), watching) if watched else (Alike(),)
    async with running(*interceptors, serialize_type=serialize_type) as world:
        world.answer = lambda _connection, request: ShapedResponse(
            SHAPE, (10 + request.opaque, request.opaque), b"body"
        )
        sent = requests(3)
        sent[1].flag = FLAG_ONEWAY
        answers = await world.ask(*sent)
        alone = await world.ask(Command(code=LONE, opaque=7))
        assert [(answer.opaque, answer.ext, answer.body) for answer in answers + alone] == [
            (number, {"number": str(10 + number), "fixed": "x"}, b"body") for number in (0, 2, 7)
        ]
        assert {answer.serialize_type for answer in answers} == {serialize_type}
        if watched:
            assert watching.afters == [(0, 0), (1, 0), (2, 0), (7, 0)]


async def test_a_shaped_response_that_comes_later() -> None:
    async with running(Alike()) as world:
        world.receive(Command(code=LATE, opaque=5))
        (request,) = world.held
        world.connection.answer(request, ShapedResponse(SHAPE, (1, request.opaque)))
        await world.clock.drain()
        assert [(answer.opaque, answer.ext) for answer in world.peer.answers] == [
            (5, {"number": "1", "fixed": "x"})
        ]


async def test_a_shaped_response_that_is_too_large_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Alike()) as world:
        world.answer = lambda _connection, request: ShapedResponse(
            SHAPE, (1, request.opaque), bytes(FRAME_SIZE_MAX) if request.opaque == 1 else None
        )
        with caplog.at_level(logging.ERROR):
            answers = await world.ask(*requests(3))
        assert [(answer.opaque, answer.code) for answer in answers] == [(0, 0), (1, 1), (2, 0)]
        assert "exceeds 16777216" in (answers[1].remark or "")
