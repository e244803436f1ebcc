"""What handlers and interceptors raise: always an answer, one log line, never the connection."""

from __future__ import annotations

import asyncio
import logging

import pytest

from skylark.core.errors import (
    BrokerError,
    ConnectionClosedError,
    LocalProtocolError,
    RemoteProtocolError,
)
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer, Dispatcher, NoAnswerError
from skylark.net.inbound import Owner
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import Command, response_to
from skylark.wire.frame import encode_frame
from tests.support.loops import on_both_loops
from tests.support.turn_watch import CountingWatch
from tests.unit.net.echo import ECHO, RAISES, REFUSES, SILENT, SLOW, MemoryWorld
from tests.unit.net.test_turn_share import Socket

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


class Counting:
    """Counts what it sees of each request, by opaque."""

    def __init__(self) -> None:
        self.before_count = 0
        self.afters: list[tuple[int, int | None]] = []

    def before(self, _connection: Connection, request: Command) -> Command | None:
        self.before_count += 1
        if request.remark == "no answer":
            raise NoAnswerError
        return None

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        self.afters.append((request.code, None if response is None else response.code))
        return response


async def test_an_answer_that_comes_later_passes_the_interceptors_when_it_comes() -> None:
    held: list[tuple[Connection, Command]] = []

    def hold(connection: Connection, request: Command) -> Answer:
        held.append((connection, request))
        return LATER

    async with MemoryWorld() as world:
        counting = Counting()
        world.service.dispatcher.add_hot(HOT, hold)
        world.service.dispatcher.interceptors = (counting,)
        calls = [asyncio.create_task(world.call(HOT, 10)) for _ in range(2)]
        await world.clock.advance(seconds=5)
        assert (counting.before_count, counting.afters) == (2, [])
        connection, request = held[0]
        connection.answer(request, response_to(request, 0, body=b"later"))
        assert (await calls[0]).body == b"later"
        assert counting.afters == [(HOT, 0)]
        world.network.cut_all()
        await world.clock.drain()
        with pytest.raises(ConnectionClosedError):
            await calls[1]
        connection.answer(held[1][1], response_to(request, 0))  # too late: nobody is there
        assert counting.afters == [(HOT, 0)] * 2


async def test_interceptors_see_the_end_of_every_request_once() -> None:
    async with MemoryWorld() as world:
        counting = Counting()
        world.service.gate.set()
        world.service.dispatcher.interceptors = (counting,)
        for code in (ECHO, SLOW, REFUSES, RAISES):
            await world.call(code)
        assert counting.afters == [(ECHO, 0), (SLOW, 0), (REFUSES, 17), (RAISES, 1)]
        counting.afters.clear()
        for code in (SILENT, ECHO, SLOW):
            await world.client.oneway(world.address, Command(code=code, remark="no answer"))
        await world.client.oneway(world.address, Command(code=SLOW))
        await world.clock.drain()
        assert counting.afters == [(SILENT, None), (ECHO, None), (SLOW, None), (SLOW, 0)]
        assert counting.before_count == 8
        await world.call(9999)
        assert counting.before_count == 8, "nobody handles it"


async def test_a_slow_handler_is_judged_while_its_bytes_are_read() -> None:
    """What an interceptor refuses does not even become a task."""
    arrivals: list[float] = []

    class Judging(Counting):
        def before(self, connection: Connection, _request: Command) -> Command | None:
            arrivals.append(connection.arrived_at)
            raise BrokerError("no", code=2)

    async with MemoryWorld() as world:
        connection = await world.connect()
        world.service.dispatcher.interceptors = (Judging(),)
        await world.clock.advance(seconds=5)
        connection.data_received(encode_frame(Command(code=SLOW)))
        assert arrivals == [world.clock.monotonic()]
        assert not world.service.dispatcher.tasks


async def test_a_watch_defines_when_bytes_arrived_and_that_stays_with_requests_that_wait() -> None:
    watch = CountingWatch()
    seen: list[tuple[int, float]] = []

    def handle(connection: Connection, request: Command) -> None:
        seen.append((request.opaque, connection.arrived_at))

    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    dispatcher = Dispatcher()
    dispatcher.add_hot(HOT, handle)
    server = RemotingServer(
        dispatcher,
        network,
        clock,
        limits=NetLimits(frames_per_turn_max=2),
        watch=watch,
    )
    await server.start("127.0.0.1", 9876)
    await network.connect(asyncio.Protocol, "127.0.0.1", 9876, timeout_s=1, clock=clock)
    await clock.drain()
    (connection,) = server.connections
    for first in (0, 5):
        frames = [Command(code=HOT, opaque=number) for number in range(first, first + 5)]
        connection.data_received(b"".join(map(encode_frame, frames)))
    await clock.drain()
    # Two in each turn; the second read has to wait until the requests of the first are handled.
    assert seen == [(n, 1.0) for n in range(5)] + [(n, 3.0) for n in range(5, 10)]
    assert watch.going_on == [False] * watch.turns
    await server.stop()


async def test_a_watch_learns_which_turns_start_tasks() -> None:
    watch = CountingWatch()
    async with MemoryWorld() as world:
        connection = Connection(
            world.service.dispatcher, world.clock, NetLimits(), owner=Owner(watch=watch)
        )
        connection.connection_made(Socket("peer", 1, b""))
        for code in (ECHO, SLOW, ECHO):
            connection.data_received(encode_frame(Command(code=code)))
        assert watch.going_on == [False, True, False]
        connection.data_received(encode_frame(Command(code=0, flag=1)))
        assert watch.going_on[3:] == [True], "a response lets its caller go on"
        await world.clock.drain()


async def test_parked_requests_count_as_work_of_their_connection() -> None:
    held: list[Command] = []
    limits = NetLimits(task_bytes_per_connection_max=250_000)
    async with MemoryWorld(limits) as world:

        def hold(_connection: Connection, request: Command) -> Answer:
            held.append(request)
            return LATER

        world.service.dispatcher.add_hot(HOT, hold)
        connection = await world.connect()
        calls = [asyncio.create_task(world.call(HOT, 100, body=bytes(100_000))) for _ in range(6)]
        await world.clock.drain()
        assert len(held) == 3
        while held:
            request = held.pop()
            connection.answer(request, response_to(request, 0))
            await world.clock.drain()
        assert [(await call).code for call in calls] == [0] * 6


async def test_an_answer_that_comes_before_its_handler_returns_leaves_nothing_held() -> None:
    async with MemoryWorld() as world:

        def answer_at_once(connection: Connection, request: Command) -> Answer:
            connection.answer(request, response_to(request, 0, body=b"now"))
            return LATER

        world.service.dispatcher.add_hot(HOT, answer_at_once)
        connection = await world.connect()
        for _ in range(3):
            assert (await world.call(HOT, 10, body=bytes(1000))).body == b"now"
            assert connection.held_size == 0
