"""One connection under pressure: full buffers, deaf peers, idle time, closing in the middle."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from skylark.core.clock import LoopClock
from skylark.core.errors import (
    ConnectionClosedError,
    RemoteProtocolError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.link import ByteFilter
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import SERIALIZE_BINARY, Command, response_to
from skylark.wire.frame import encode_frame
from tests.support.loops import on_both_loops
from tests.unit.net.echo import (
    BIG,
    ECHO,
    SLOW,
    Deaf,
    EchoService,
    MemoryWorld,
    client,
    close_raw,
    open_raw,
    read_frame,
    serving,
    until,
)

SMALL_BUFFERS = NetLimits(write_buffer_high=64 * 1024, write_buffer_max=1024 * 1024)


# --- back-pressure ------------------------------------------------------------------------------


@on_both_loops
async def test_two_ends_with_full_buffers_do_not_wait_for_each_other_forever() -> None:
    # Each way needs 40 MB, far more than the kernel holds: an end that stopped reading answers
    # because it cannot write requests would keep the other end from reading those requests.
    limits, service = SMALL_BUFFERS, EchoService()
    async with serving(service, limits) as (_, address), client(limits=limits) as remoting:
        body = bytes(400_000)
        answers = await asyncio.gather(
            *(remoting.call(address, Command(code=ECHO, body=body), 20) for _ in range(100))
        )
        assert [len(answer.body or b"") for answer in answers] == [400_000] * 100


@on_both_loops
async def test_handlers_that_call_their_peer_back_get_its_answer_past_waiting_requests() -> None:
    to_client = Dispatcher()
    to_client.add_hot(ECHO, lambda _connection, request: response_to(request, 0, body=b"back"))

    async def call_back(connection: Connection, request: Command) -> Command:
        answer = await connection.call(Command(code=ECHO), 100)
        return response_to(request, answer.code, body=answer.body)

    async with MemoryWorld(NetLimits(tasks_per_connection_max=1), dispatcher=to_client) as world:
        world.service.dispatcher.add_cold(1, call_back)
        async with LoopClock().timeout(10):  # virtual time stands still: no call may time out
            answers = await asyncio.gather(*(world.call(1, 100) for _ in range(10)))
        assert [answer.body for answer in answers] == [b"back"] * 10


@on_both_loops
async def test_callers_wait_for_room_in_the_write_buffer_in_their_order() -> None:
    service = EchoService()
    sizes: list[int] = []
    async with serving(service) as (_, address), client(limits=SMALL_BUFFERS) as remoting:
        await remoting.call(address, Command(code=ECHO), 10)
        (connection,) = (peer.connection for peer in remoting._peers.values())
        assert connection is not None
        transport = connection._link.transport
        assert transport is not None
        order: list[int] = []

        async def call(number: int) -> None:
            await remoting.call(address, Command(code=ECHO, body=bytes(100_000)), 20)
            sizes.append(transport.get_write_buffer_size())
            order.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(call(number))
        assert order == list(range(200))
        assert max(sizes) <= 64 * 1024 + 100_000 + 1000
        assert len(service.seen) == 201


async def test_no_call_waits_for_room_beyond_the_timeout_of_the_call() -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    listener = await network.listen(Deaf, "127.0.0.1", 9876)
    remoting = RemotingClient(network, clock, limits=SMALL_BUFFERS)
    body = bytes(200_000)  # above what the network and the buffer hold together
    first = asyncio.create_task(remoting.oneway("127.0.0.1:9876", Command(code=ECHO, body=body)))
    await clock.drain()
    assert first.done()
    for send in (remoting.oneway, remoting.call):
        waiting = asyncio.ensure_future(send("127.0.0.1:9876", Command(code=ECHO, body=body), 1.5))
        await clock.advance(seconds=1.4)
        assert not waiting.done()
        await clock.advance(seconds=0.2)
        with pytest.raises(TooManyRequestsError, match="no room for another request"):
            await waiting
    closing = asyncio.create_task(remoting.close())
    await clock.advance(seconds=10)
    await closing
    await clock.drain()
    listener.close()
    assert clock.timer_count == 0


@on_both_loops
async def test_answers_of_slow_handlers_wait_for_a_slow_reader() -> None:
    service = EchoService()
    limits = NetLimits(write_buffer_high=64 * 1024, write_buffer_max=1_500_000)
    async with serving(service, limits) as (server, address):
        reader, writer = await open_raw(address)
        body = bytes(500_000)
        for opaque in range(30):
            writer.write(encode_frame(Command(code=SLOW, opaque=opaque, body=body)))
        await until(lambda: service.slow_started == 30, "all handlers run")
        (connection,) = server.connections
        service.gate.set()
        await until(lambda: connection.write_paused, "the write buffer is above its mark")
        opaques = [(await read_frame(reader)).opaque for _ in range(30)]
        assert sorted(opaques) == list(range(30))
        await close_raw(writer)


async def test_a_server_is_refused_calls_beyond_the_limit_at_once() -> None:
    async with MemoryWorld(NetLimits(calls_max=2)) as world:
        connection = await world.connect()
        calls = [connection.call(Command(code=ECHO), 10) for _ in range(2)]
        with pytest.raises(TooManyRequestsError, match="2 calls"):
            connection.call(Command(code=ECHO), 10)
        assert [(await call).code for call in calls] == [3, 3]
        assert len(connection._calls) == 0


async def test_large_headers_count_as_bytes_at_work() -> None:
    limits = NetLimits(task_bytes_per_connection_max=100_000)
    async with MemoryWorld(limits) as world:
        calls = [
            asyncio.create_task(world.call(SLOW, ext={f"{n}": "x" * 60_000})) for n in range(5)
        ]
        await world.clock.drain()
        assert world.service.slow_started == 2
        world.service.gate.set()
        assert [(await call).code for call in calls] == [0] * 5


async def test_a_backlog_keeps_the_order_of_requests() -> None:
    limits = NetLimits(frames_per_turn_max=3, tasks_per_connection_max=2)
    async with MemoryWorld(limits) as world:
        connection = await world.connect()
        world.service.seen.clear()
        frames = [Command(code=SLOW if n % 10 == 9 else ECHO, opaque=n) for n in range(100)]
        connection.data_received(b"".join(map(encode_frame, frames)))
        await world.clock.drain()
        assert world.service.slow_started == 2
        assert world.service.seen == [n for n in range(19) if n % 10 != 9]
        world.service.gate.set()
        await world.clock.drain()
        assert world.service.seen == [n for n in range(100) if n % 10 != 9]
        assert world.service.slow_started == 10


async def test_answers_leave_in_portions_while_later_requests_are_still_worked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = NetLimits(frames_per_turn_max=8, frames_per_write_max=4, bytes_per_write_max=4_096)
    async with MemoryWorld(limits) as world:
        connection = await world.connect()
        world.service.seen.clear()
        transport = connection._link.transport
        assert transport is not None
        written_after: list[int] = []
        write = transport.write

        def noted(data: Any) -> None:
            written_after.append(len(world.service.seen))
            write(data)

        monkeypatch.setattr(transport, "write", noted)
        frames = [Command(code=ECHO, opaque=n) for n in range(18)]
        connection.data_received(b"".join(map(encode_frame, frames)))
        await world.clock.drain()
        assert world.service.seen == list(range(18))
        # The request that made the connection was the first of the first share.
        assert written_after == [4, 7, 11, 15, 18]
        world.service.seen.clear()
        written_after.clear()
        large = [Command(code=ECHO, opaque=n, body=bytes(3_000)) for n in range(5)]
        connection.data_received(b"".join(map(encode_frame, large)))
        await world.clock.drain()
        assert written_after == [2, 4, 5]  # 4 KB and more do not wait for a third


async def test_a_lone_call_is_written_at_once_and_others_join_it() -> None:
    async with MemoryWorld() as world:
        await world.call(ECHO)
        connection = world.client._connection(world.address)
        assert connection is not None
        written = connection.bytes_out
        first = connection.call(Command(code=ECHO), 5.0)
        size = connection.bytes_out - written
        assert size > 0
        others = [connection.call(Command(code=ECHO), 5.0) for _ in range(3)]
        assert connection.bytes_out == written + size
        assert [(await call).code for call in (first, *others)] == [0] * 4
        assert connection.bytes_out > written + 3 * size


# --- closing ------------------------------------------------------------------------------------


async def test_a_peer_that_never_reads_is_cut_off_when_it_is_idle_and_when_it_is_closed() -> None:
    for closed_by_us in (False, True):
        async with MemoryWorld(NetLimits(write_buffer_high=64 * 1024)) as world:
            _, port = world.address.split(":")
            deaf, _ = await world.network.connect(
                Deaf, "127.0.0.1", int(port), timeout_s=1, clock=world.clock
            )
            deaf.write(encode_frame(Command(code=BIG)))
            await world.clock.drain()
            (connection,) = world.server.connections
            assert connection.write_paused
            if closed_by_us:
                connection.close()
                await world.clock.drain()
                assert not connection.closed.done()  # its last answer may still be read
            await world.clock.advance(seconds=119)
            assert not connection.closed.done()
            await world.clock.advance(seconds=122)
            assert connection.closed.done()
            assert world.server.connections == set()


async def test_answers_that_wait_for_a_peer_to_read_do_not_keep_it_from_being_idle() -> None:
    async with MemoryWorld(NetLimits(write_buffer_high=64 * 1024)) as world:
        _, port = world.address.split(":")
        deaf, _ = await world.network.connect(
            Deaf, "127.0.0.1", int(port), timeout_s=1, clock=world.clock
        )
        deaf.write(encode_frame(Command(code=SLOW, body=bytes(1000))))
        deaf.write(encode_frame(Command(code=BIG)))
        await world.clock.drain()
        (connection,) = world.server.connections
        assert connection.write_paused
        world.service.gate.set()
        await world.clock.advance(seconds=119)
        assert len(world.server.dispatcher.tasks) == 1
        assert world.server.held_size() > 900_000
        await world.clock.advance(seconds=122)
        assert connection.closed.done()
        assert not world.server.dispatcher.tasks
        assert world.server.held_size() == 0


async def test_a_slow_reader_is_not_idle() -> None:
    async with MemoryWorld(NetLimits(write_buffer_high=64 * 1024)) as world:
        _, port = world.address.split(":")
        slow, _ = await world.network.connect(
            Deaf, "127.0.0.1", int(port), timeout_s=1, clock=world.clock
        )
        slow.write(encode_frame(Command(code=BIG)))
        await world.clock.drain()
        (connection,) = world.server.connections
        for _ in range(4):  # a little in each idle time; a megabyte takes sixteen of them
            await world.clock.advance(seconds=100)
            slow.resume_reading()
            await asyncio.sleep(0)
            slow.pause_reading()
        assert not connection.closed.done()
        await world.clock.advance(seconds=360)
        assert connection.closed.done()


@pytest.mark.parametrize("arrived_ms", [0, 37, 6_264_009, 6_264_031])
async def test_idle_closing_does_not_depend_on_the_rounding_of_seconds(arrived_ms: int) -> None:
    async with MemoryWorld() as world:
        await world.clock.advance(ms=arrived_ms)
        connection = await world.connect()
        await world.clock.advance(seconds=119.9)
        assert not connection.closed.done()
        await world.clock.advance(seconds=0.2)
        assert connection.closed.done()


async def test_touching_a_connection_restarts_its_idle_timeout() -> None:
    async with MemoryWorld() as world:
        _, port = world.address.split(":")
        await world.network.connect(
            asyncio.Protocol, "127.0.0.1", int(port), timeout_s=1, clock=world.clock
        )
        await world.clock.drain()
        (connection,) = world.server.connections
        await world.clock.advance(seconds=100)
        connection.touch()
        await world.clock.advance(seconds=119)
        assert not connection.closed.done()
        await world.clock.advance(seconds=2)
        assert connection.closed.done()


@on_both_loops
async def test_nothing_more_is_handled_once_a_handler_has_closed_the_connection() -> None:
    seen: list[int] = []

    def close_at_three(connection: Connection, request: Command) -> Command:
        seen.append(request.opaque)
        if request.opaque == 3:
            connection.close()
        return response_to(request, 0)

    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, close_at_three)
    server = RemotingServer(dispatcher, TcpNetwork(), LoopClock())
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await open_raw(f"{host}:{port}")
    writer.write(b"".join(encode_frame(Command(code=ECHO, opaque=n)) for n in range(200)))
    assert [(await read_frame(reader)).opaque for _ in range(3)] == [0, 1, 2]
    await until(lambda: not server.connections, "closed")
    assert seen == [0, 1, 2, 3]
    await close_raw(writer)
    await server.stop()


async def test_calls_on_a_closing_connection_fail_at_once() -> None:
    async with MemoryWorld() as world:
        connection = await world.connect()
        waiting = connection.call(Command(code=ECHO), 100)
        connection.close()
        with pytest.raises(ConnectionClosedError):
            connection.call(Command(code=ECHO), 100)
        with pytest.raises(ConnectionClosedError):
            connection.oneway(Command(code=ECHO))
        with pytest.raises(ConnectionClosedError, match="closed before the answer"):
            await waiting
        await connection.drain()


async def test_every_call_ends_and_leaves_no_timer() -> None:
    async with MemoryWorld() as world:
        connection = await world.connect()
        # the client knows no such requests and answers code 3
        answered = [connection.call(Command(code=ECHO), 50 + n) for n in range(10)]
        assert [(await call).code for call in answered] == [3] * 10
        world.network.cut_all()
        lost = [connection.call(Command(code=ECHO), 5) for _ in range(3)]
        for call in lost:
            with pytest.raises(ConnectionClosedError):
                await call
        assert len(connection._calls) == 0
        assert world.clock.timer_count == 0


# --- commands that cannot be sent, filters ------------------------------------------------------


@pytest.mark.parametrize("serialize_type", [0, SERIALIZE_BINARY])
async def test_an_answer_that_cannot_be_written_becomes_code_1(
    serialize_type: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, lambda _connection, request: response_to(request, 0, "\ud800"))
    dispatcher.add_hot(
        BIG, lambda _connection, request: response_to(request, 0, ext={"\udcff": ""})
    )
    server = RemotingServer(dispatcher, network, clock, serialize_type=serialize_type)
    await server.start("127.0.0.1", 9876)
    remoting = RemotingClient(network, clock)
    for code in (ECHO, BIG):
        with caplog.at_level(logging.ERROR):
            answer = await remoting.call("127.0.0.1:9876", Command(code=code))
        assert (answer.code, answer.serialize_type) == (1, serialize_type)
        assert "cannot be written" in (answer.remark or "")
    assert len(caplog.records) == 2
    await remoting.close()
    await server.stop()


class Breaking(ByteFilter):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        if self.where == "received":
            raise RemoteProtocolError("no such record")
        return data, b""

    def sending(self, data: bytes) -> bytes:
        if self.where == "sending":
            raise ValueError("no key")
        return data


@pytest.mark.parametrize("where", ["choosing", "received", "sending", "nowhere"])
@pytest.mark.parametrize("code", [ECHO, SLOW])
async def test_a_filter_that_fails_ends_its_connection(where: str, code: int) -> None:
    chunks: list[bytes] = []

    def choose(_connection: Connection, data: bytes) -> ByteFilter:
        chunks.append(data)
        if where == "choosing":
            raise RemoteProtocolError("neither frames nor TLS")
        return Breaking(where)

    clock = VirtualClock()
    network = MemoryNetwork(clock=clock, chunk_size=1)
    service = EchoService()
    service.gate.set()
    server = RemotingServer(service.dispatcher, network, clock, first_bytes=choose)
    await server.start("127.0.0.1", 9876)
    remoting = RemotingClient(network, clock)
    call = asyncio.ensure_future(remoting.call("127.0.0.1:9876", Command(code=code)))
    await clock.drain()
    if where == "nowhere":
        assert (await call).code == 0
    else:
        with pytest.raises(ConnectionClosedError):
            await call
        assert server.connections == set()
    assert chunks == [b"\0"]  # asked once, although the first chunk was a single byte
    await remoting.close()
    await server.stop()


async def test_late_responses_on_a_closed_connection_do_no_harm() -> None:
    async with MemoryWorld() as world:
        with_answer = asyncio.create_task(world.call(SLOW, timeout_s=0.05))
        await world.clock.advance(seconds=0.06)
        with pytest.raises(RequestTimeoutError):
            await with_answer
        world.service.gate.set()
        await world.clock.drain()
        assert (await world.call()).code == 0
