"""What handlers and interceptors raise: always an answer, one log line, never the connection."""

from __future__ import annotations

import asyncio
import logging

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.net.connection import Connection
from skylark.wire.command import Command, response_to
from tests.loops import on_both_loops
from tests.unit.net.echo import ECHO, SLOW, MemoryWorld

HOT, COLD = 1, 2


def cancelled_future() -> asyncio.Future[Command]:
    future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


@on_both_loops
async def test_a_cancelled_future_in_a_handler_is_answered_like_any_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def cold(_connection: Connection, _request: Command) -> Command:
        return await cancelled_future()

    async with MemoryWorld() as world:
        world.service.dispatcher.add_hot(HOT, lambda _c, _r: cancelled_future().result())
        world.service.dispatcher.add_cold(COLD, cold)
        connection = await world.connect()
        with caplog.at_level(logging.WARNING):
            answers = await asyncio.gather(*(world.call(code) for code in (HOT, ECHO, COLD, ECHO)))
        assert [answer.code for answer in answers] == [1, 0, 1, 0]
        assert (answers[0].remark or "").startswith("CancelledError")
        assert len(caplog.records) == 2
        assert world.server.connections == {connection}


class RaisingAfter:
    """An interceptor whose second half fails."""

    def before(self, _connection: Connection, _request: Command) -> Command | None:
        return None

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        if request.ext:
            raise ZeroDivisionError("no such luck")
        return response


class Outermost:
    """Sees what really leaves."""

    def __init__(self) -> None:
        self.codes: list[int | None] = []

    def before(self, _connection: Connection, _request: Command) -> Command | None:
        return None

    def after(
        self, _connection: Connection, _request: Command, response: Command | None
    ) -> Command | None:
        self.codes.append(None if response is None else response.code)
        return response


@pytest.mark.parametrize("code", [ECHO, SLOW])
async def test_an_interceptor_that_raises_on_the_way_out_is_answered(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with MemoryWorld() as world:
        outermost = Outermost()
        world.service.gate.set()
        connection = await world.connect()
        world.service.dispatcher.interceptors = (outermost, RaisingAfter())
        with caplog.at_level(logging.WARNING):
            bad, good = await asyncio.gather(world.call(code, ext={"a": "b"}), world.call(code))
        assert (bad.code, bad.remark) == (1, "ZeroDivisionError: no such luck")
        assert good.code == 0
        assert outermost.codes == [1, 0]
        assert len(caplog.records) == 1
        assert world.server.connections == {connection}


async def test_bytes_of_the_peer_are_not_logged_as_our_errors_and_our_own_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(_connection: Connection, request: Command) -> Command:
        if request.body == b"theirs":
            raise RemoteProtocolError("the body is no JSON")
        raise LocalProtocolError("a frame too large")

    async with MemoryWorld() as world:
        world.service.dispatcher.add_hot(HOT, handle)
        with caplog.at_level(logging.WARNING):
            theirs = await world.call(HOT, body=b"theirs")
            assert caplog.records == []
            ours = await world.call(HOT, body=b"ours")
        assert (theirs.code, theirs.remark) == (1, "the body is no JSON")
        assert (ours.code, len(caplog.records)) == (1, 1)


async def test_a_handler_that_answers_later_does_so_through_its_connection() -> None:
    async with MemoryWorld() as world:
        held: list[tuple[Connection, Command]] = []
        world.service.dispatcher.add_hot(HOT, lambda c, r: held.append((c, r)))
        call = asyncio.create_task(world.call(HOT, 10))
        await world.clock.advance(seconds=5)
        ((connection, request),) = held
        connection.reply(request, response_to(request, 0, body=b"later"))
        assert (await call).body == b"later"
        world.network.cut_all()
        await world.clock.drain()
        connection.reply(request, response_to(request, 0))  # too late: nobody is there
