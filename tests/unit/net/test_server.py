"""The listening side: shutting down while clients come, ask and do not go; close listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from skylark.net.connection import Connection
from skylark.net.limits import NetLimits
from skylark.wire.command import Command, response_to
from skylark.wire.frame import encode_frame
from tests.support.loops import on_both_loops
from tests.unit.net.echo import ECHO, SLOW, Deaf, EchoService, MemoryWorld, open_raw, serving


async def test_a_connection_that_arrives_while_the_server_stops_is_refused() -> None:
    world = MemoryWorld()
    await world.server.start("127.0.0.1", 9876)
    # The network has accepted it; the server hears of it in the next turn, in the midst of stop.
    transport, _ = await world.network.connect(
        asyncio.Protocol, "127.0.0.1", 9876, timeout_s=1, clock=world.clock
    )
    await world.server.stop()
    await world.clock.drain()
    assert transport.is_closing()
    assert world.server.connections == set()
    assert world.network.connection_count == 0
    assert world.clock.timer_count == 0


async def test_a_crowd_that_is_refused_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with MemoryWorld(NetLimits(connections_max=1)) as world:
        await world.connect()

        async def knock(count: int) -> list[str]:
            caplog.clear()
            for _ in range(count):
                await world.network.connect(
                    asyncio.Protocol, *world.server.address, timeout_s=1, clock=world.clock
                )
            await world.clock.drain()
            return [message.partition(">: ")[2] for message in caplog.messages]

        assert await knock(20) == ["1 connections are open, the limit; 1 refused so far"]
        await world.clock.advance(9)
        assert await knock(5) == []
        await world.clock.advance(1)
        assert await knock(2) == ["1 connections are open, the limit; 26 refused so far"]
        assert world.server.connections_refused == 27


async def test_requests_of_old_clients_during_the_grace_time_are_finished_too() -> None:
    async with MemoryWorld() as world:
        connection = await world.connect()
        gates: list[asyncio.Event] = []

        async def wait(_connection: Connection, request: Command) -> Command:
            gates.append(asyncio.Event())
            await gates[-1].wait()
            return response_to(request, 0)

        world.service.dispatcher.add_cold(1, wait)
        old_request = encode_frame(Command(code=1, version=399))
        connection.data_received(old_request)
        await world.clock.drain()
        stopping = asyncio.create_task(world.server.stop(grace_s=5))
        await world.clock.drain()
        connection.data_received(old_request)
        await world.clock.drain()
        gates[0].set()
        await world.clock.drain()
        assert not stopping.done()
        gates[1].set()
        await world.clock.drain()
        assert stopping.done()
        assert world.service.dispatcher.tasks == set()


async def test_a_handler_that_refuses_to_be_cancelled_does_not_hang_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with MemoryWorld() as world:
        release = asyncio.Event()

        async def stubborn(_connection: Connection, _request: Command) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        world.service.dispatcher.add_cold(1, stubborn)
        call = asyncio.create_task(world.call(1, 100))
        await world.clock.drain()
        stopping = asyncio.create_task(world.server.stop(grace_s=2))
        with caplog.at_level(logging.WARNING):
            await world.clock.advance(seconds=10)
        done = stopping.done(), call.done()
        release.set()  # before an assertion can fail: the loop would wait for the handler
        await asyncio.gather(call, return_exceptions=True)
        assert done == (True, True)
        assert "1 handlers did not end" in caplog.text


async def test_stopping_twice_and_at_the_same_time() -> None:
    async with MemoryWorld() as world:
        await world.connect()
        call = asyncio.create_task(world.call(SLOW, 100))
        await world.clock.drain()
        both = asyncio.gather(world.server.stop(5), world.server.stop(5))
        await world.clock.advance(seconds=1)
        world.service.gate.set()
        await both
        assert (await call).code == 0
        await world.server.stop()


async def test_a_deaf_client_does_not_hold_up_the_end() -> None:
    world = MemoryWorld(NetLimits(write_buffer_high=1000))
    _, port = await world.server.start("127.0.0.1", 0)
    deaf, _ = await world.network.connect(Deaf, "127.0.0.1", port, timeout_s=1, clock=world.clock)
    for opaque in range(5):
        deaf.write(encode_frame(Command(code=SLOW, opaque=opaque, body=bytes(100_000))))
    await world.clock.drain()
    assert world.service.slow_started == 5
    world.service.gate.set()
    await world.clock.drain()
    assert len(world.service.dispatcher.tasks) == 4  # their answers wait until the first is read
    stopping = asyncio.create_task(world.server.stop(grace_s=2))
    await world.clock.advance(seconds=5)
    assert stopping.done()
    assert world.server.connections == set()
    assert world.service.dispatcher.tasks == set()
    assert world.clock.timer_count == 0
    deaf.abort()


@on_both_loops
async def test_a_close_listener_that_raises_does_not_keep_the_others_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Connection] = []

    def raises(_connection: Connection, _error: Exception | None) -> None:
        raise ZeroDivisionError("no such luck")

    def hears(connection: Connection, _error: Exception | None) -> None:
        heard.append(connection)

    listeners: tuple[Callable[[Connection, Exception | None], None], ...] = (raises, hears)
    with caplog.at_level(logging.ERROR):
        async with serving(EchoService()) as (server, address):
            for listener in listeners:
                server.on_close(listener)
            _, writer = await open_raw(address)
            writer.write(encode_frame(Command(code=ECHO, flag=2)))
            writer.close()
            await writer.wait_closed()
    assert len(heard) == 1
    assert [record.name for record in caplog.records] == ["skylark.net.server"]
