"""Server and client over real sockets: calls, errors, limits, back-pressure, shutdown."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from skylark.core.backoff import Backoff
from skylark.core.clock import LoopClock
from skylark.core.errors import (
    ConnectError,
    ConnectionClosedError,
    GoAwayError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.link import ByteFilter
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.wire.command import SERIALIZE_BINARY, Command, response_to
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.support.loops import on_both_loops
from tests.unit.net.echo import (
    BIG,
    ECHO,
    RAISES,
    REFUSES,
    SILENT,
    SLOW,
    EchoService,
    client,
    close_raw,
    open_raw,
    read_frame,
    serving,
    until,
)


@on_both_loops
async def test_calls_are_pipelined_and_answered_by_their_own_answers() -> None:
    service = EchoService()
    async with serving(service) as (_, address), client() as remoting:
        slow = asyncio.create_task(remoting.call(address, Command(code=SLOW, body=b"slow"), 10))
        await until(lambda: service.slow_started == 1, "the slow handler runs")
        answers = await asyncio.gather(
            *(remoting.call(address, Command(code=ECHO, body=b"%d" % n), 10) for n in range(200))
        )
        assert [answer.body for answer in answers] == [b"%d" % n for n in range(200)]
        assert all(answer.is_response and answer.code == 0 for answer in answers)
        assert not slow.done()
        service.gate.set()
        assert (await slow).body == b"slow"


@on_both_loops
@pytest.mark.spec("remoting.10.4")
async def test_an_unknown_code_is_refused_by_name_and_a_oneway_one_in_silence() -> None:
    async with serving(EchoService()) as (_, address):
        reader, writer = await open_raw(address)
        writer.write(encode_frame(Command(code=9999, opaque=5)))
        answer = await read_frame(reader)
        assert (answer.code, answer.opaque, answer.flag) == (3, 5, 1)
        assert answer.remark == " request type 9999 not supported"
        # a one-way request and a response nobody waits for get no answer; the next request does
        writer.write(encode_frame(Command(code=9999, opaque=6, flag=2)))
        writer.write(encode_frame(Command(code=0, opaque=77, flag=1)))
        writer.write(encode_frame(Command(code=ECHO, opaque=7)))
        assert (await read_frame(reader)).opaque == 7
        await close_raw(writer)


@on_both_loops
@pytest.mark.spec("remoting.10.5")
async def test_extreme_opaques_are_echoed() -> None:
    async with serving(EchoService()) as (_, address):
        reader, writer = await open_raw(address)
        for opaque in (-5, 2147483647, -2147483648, 0):
            writer.write(encode_frame(Command(code=ECHO, opaque=opaque)))
            assert (await read_frame(reader)).opaque == opaque
        await close_raw(writer)


@on_both_loops
@pytest.mark.spec("remoting.10.6")
async def test_the_server_answers_in_its_own_serialize_type() -> None:
    for configured in (0, SERIALIZE_BINARY):
        async with serving(EchoService(), serialize_type=configured) as (_, address):
            reader, writer = await open_raw(address)
            for asked in (0, SERIALIZE_BINARY):
                request = Command(code=ECHO, ext={"a": "1"}, serialize_type=asked)
                writer.write(encode_frame(request))
                answer = await read_frame(reader)
                assert answer.serialize_type == configured
                assert answer.version == 513
                assert answer.ext == {"a": "1"}
            await close_raw(writer)


@on_both_loops
async def test_a_raising_handler_is_answered_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(EchoService()) as (_, address), client() as remoting:
        with caplog.at_level(logging.WARNING):
            answer = await remoting.call(address, Command(code=RAISES), 10)
            assert (answer.code, answer.remark) == (1, "ZeroDivisionError: no such luck")
            assert len(caplog.records) == 1
            caplog.clear()
            answer = await remoting.call(address, Command(code=REFUSES), 10)
            assert (answer.code, answer.remark) == (17, "topic orders does not exist: create it")
            answer = await remoting.call(address, Command(code=REFUSES, ext={"field": ""}), 10)
            assert (answer.code, answer.remark) == (1, "the custom field <field> is null")
            assert caplog.records == []
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0


@on_both_loops
async def test_garbage_closes_only_its_own_connection() -> None:
    async with serving(EchoService()) as (server, address), client() as remoting:
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0
        reader, writer = await open_raw(address)
        good = encode_frame(Command(code=ECHO, opaque=1))
        writer.write(good + b"\xff\xff\xff\xff\xff\xff\xff\xff" + good)
        assert (await read_frame(reader)).opaque == 1
        assert await LoopClock().wait_for(reader.read(), 10) == b""
        await close_raw(writer)
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0
        assert len(server.connections) == 1


@on_both_loops
@pytest.mark.spec("remoting.10.31")
async def test_unanswered_calls_fail_in_time_and_give_their_permits_back() -> None:
    limits = NetLimits(calls_max=1000)
    async with serving(EchoService()) as (_, address), client(limits=limits) as remoting:
        await remoting.call(address, Command(code=ECHO), 10)
        clock = LoopClock()
        started = clock.monotonic()
        results = await asyncio.gather(
            *(
                remoting.call(address, Command(code=SILENT), 1.0)
                if n % 10 == 0
                else remoting.call(address, Command(code=ECHO), 60)
                for n in range(1000)
            ),
            return_exceptions=True,
        )
        assert clock.monotonic() - started < 60
        for n, result in enumerate(results):
            if n % 10 == 0:
                assert isinstance(result, RequestTimeoutError)
            else:
                assert isinstance(result, Command)
        again = await asyncio.gather(
            *(remoting.call(address, Command(code=ECHO), 10) for _ in range(1000))
        )
        assert len(again) == 1000


@on_both_loops
async def test_late_answers_are_dropped_and_the_call_limit_is_an_error() -> None:
    service = EchoService()
    limits = NetLimits(calls_max=2)
    async with serving(service) as (_, address), client(limits=limits) as remoting:
        late = asyncio.create_task(remoting.call(address, Command(code=SLOW), 0.05))
        with pytest.raises(RequestTimeoutError):
            await late
        first = asyncio.create_task(remoting.call(address, Command(code=SLOW), 10))
        second = asyncio.create_task(remoting.call(address, Command(code=SLOW), 10))
        await until(lambda: service.slow_started == 3, "three slow handlers run")
        with pytest.raises(TooManyRequestsError, match="no room"):
            await remoting.call(address, Command(code=ECHO), 0.05)
        service.gate.set()
        assert (await first).code == (await second).code == 0


@on_both_loops
async def test_a_peer_that_does_not_read_is_not_read_from_and_delays_no_other_peer() -> None:
    service = EchoService()
    limits = NetLimits(write_buffer_high=64 * 1024)
    async with serving(service, limits) as (server, address), client() as remoting:
        reader, writer = await open_raw(address)
        await until(lambda: len(server.connections) == 1, "the connection is accepted")
        (deaf,) = server.connections
        flood = encode_frame(Command(code=BIG)) * 500
        writer.write(flood)
        await until(lambda: deaf.write_paused, "the write buffer is above its mark")
        assert not deaf._inbound.is_reading
        assert deaf.bytes_out < 100_000_000  # 500 answers would be 500 MB
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0
        # it reads after all: everything arrives
        received = 0
        while received < 500 * 1_000_000:
            chunk = await LoopClock().wait_for(reader.read(1 << 20), 10)
            assert chunk
            received += len(chunk)
        await close_raw(writer)


@on_both_loops
async def test_a_peer_that_leaves_too_much_unread_is_cut_off() -> None:
    limits = NetLimits(write_buffer_high=1 << 30, write_buffer_max=1_000_000)
    async with serving(EchoService(), limits) as (server, address):
        cut_off: list[bool] = []
        server.on_close(lambda _connection, _error: cut_off.append(True))
        _, writer = await open_raw(address)
        writer.write(encode_frame(Command(code=BIG)) * 50)
        await until(lambda: cut_off == [True], "cut off")
        await close_raw(writer)


@on_both_loops
async def test_slow_requests_of_one_connection_are_bounded() -> None:
    service = EchoService()
    limits = NetLimits(tasks_per_connection_max=10, frames_per_turn_max=4)
    async with serving(service, limits) as (_, address), client() as remoting:
        reader, writer = await open_raw(address)
        writer.write(b"".join(encode_frame(Command(code=SLOW, opaque=n)) for n in range(50)))
        await until(lambda: service.slow_started == 10, "ten handlers run")
        for _ in range(20):
            assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0
        assert service.slow_started == 10
        service.gate.set()
        opaques = {(await read_frame(reader)).opaque for _ in range(50)}
        assert opaques == set(range(50))
        await close_raw(writer)


@on_both_loops
async def test_too_many_tasks_on_the_server_are_answered_busy() -> None:
    service = EchoService()
    service.dispatcher.tasks_max = 3
    async with serving(service) as (_, address), client() as remoting:
        held = [
            asyncio.create_task(remoting.call(address, Command(code=SLOW), 10)) for _ in range(3)
        ]
        await until(lambda: service.slow_started == 3, "three handlers run")
        answer = await remoting.call(address, Command(code=SLOW), 10)
        assert answer.code == 2
        assert (answer.remark or "").startswith("[OVERLOAD]system busy, start flow control")
        service.gate.set()
        await asyncio.gather(*held)


@on_both_loops
async def test_connections_beyond_the_limit_are_closed_at_once() -> None:
    async with serving(EchoService(), NetLimits(connections_max=1)) as (server, address):
        first_reader, first = await open_raw(address)
        first.write(encode_frame(Command(code=ECHO, opaque=1)))
        assert (await read_frame(first_reader)).opaque == 1
        second_reader, second = await open_raw(address)
        with suppress(ConnectionResetError):
            assert await LoopClock().wait_for(second_reader.read(), 10) == b""
        assert server.connections_refused == 1
        await close_raw(first)
        await close_raw(second)


@on_both_loops
async def test_shutdown_answers_what_is_in_hand_and_sends_new_clients_away() -> None:
    service = EchoService()
    async with serving(service) as (server, address):
        reader, writer = await open_raw(address)
        writer.write(encode_frame(Command(code=SLOW, opaque=1, version=513)))
        await until(lambda: service.slow_started == 1, "the slow handler runs")
        stopping = asyncio.create_task(server.stop(grace_s=10))
        await until(lambda: service.dispatcher.shutting_down, "shutting down")
        writer.write(encode_frame(Command(code=ECHO, opaque=2, version=513)))
        writer.write(encode_frame(Command(code=ECHO, opaque=3, version=399)))
        assert (await read_frame(reader)).code == 1500
        assert (await read_frame(reader)).code == 0
        assert service.seen == [3]
        service.gate.set()
        assert (await read_frame(reader)).opaque == 1
        assert await LoopClock().wait_for(reader.read(), 10) == b""
        await stopping
        await close_raw(writer)
        with pytest.raises(ConnectError):
            async with client() as remoting:
                await remoting.call(address, Command(code=ECHO), 1)


@on_both_loops
async def test_a_handler_that_never_ends_is_cancelled_after_the_grace_time() -> None:
    service = EchoService()
    async with serving(service) as (server, address), client() as remoting:
        call = asyncio.create_task(remoting.call(address, Command(code=SLOW), 10))
        await until(lambda: service.slow_started == 1, "the slow handler runs")
        await server.stop(grace_s=0.05)
        with pytest.raises(ConnectionClosedError):
            await call


class GoingAway:
    """A server that answers the first ``refusals`` requests with GO_AWAY."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.connections: set[Connection] = set()
        self.dispatcher = Dispatcher()
        self.dispatcher.add_hot(ECHO, self.echo)

    def echo(self, connection: Connection, request: Command) -> Command:
        self.connections.add(connection)
        if self.refusals:
            self.refusals -= 1
            return response_to(request, 1500, "please go away")
        return response_to(request, 0)


@on_both_loops
async def test_go_away_is_repeated_once_on_a_new_connection() -> None:
    for refusals in (1, 2):
        service = GoingAway(refusals)
        server = RemotingServer(service.dispatcher, TcpNetwork(), LoopClock())
        host, port = await server.start("127.0.0.1", 0)
        async with client() as remoting:
            if refusals == 1:
                assert (await remoting.call(f"{host}:{port}", Command(code=ECHO), 10)).code == 0
            else:
                with pytest.raises(GoAwayError, match="please go away"):
                    await remoting.call(f"{host}:{port}", Command(code=ECHO), 10)
            assert len(service.connections) == 2
        await server.stop()


@on_both_loops
async def test_lost_connections_fail_their_calls_and_the_next_call_reconnects() -> None:
    service = EchoService()
    async with serving(service) as (server, address), client() as remoting:
        call = asyncio.create_task(remoting.call(address, Command(code=SLOW), 10))
        await until(lambda: service.slow_started == 1, "the slow handler runs")
        assert remoting.connected(address)
        for connection in tuple(server.connections):
            connection.abort()
        with pytest.raises(ConnectionClosedError, match="closed before the answer"):
            await call
        assert not remoting.connected(address)
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0


@on_both_loops
async def test_a_dead_address_fails_by_the_callers_timeout_and_backs_off() -> None:
    back_off = Backoff(first_s=5.0, most_s=60.0)
    async with client(back_off=back_off) as remoting:
        listener = await TcpNetwork().listen(asyncio.Protocol, "127.0.0.1", 0)
        host, port = listener.addresses[0]
        listener.close()
        address = f"{host}:{port}"
        with pytest.raises(ConnectError, match="nothing listens there"):
            await remoting.call(address, Command(code=ECHO), 5)
        with pytest.raises(ConnectError, match="within the timeout of the call"):
            await remoting.call(address, Command(code=ECHO), 0.05)
    assert [back_off.pause_s(n) for n in range(6)] == [0.0, 5.0, 10.0, 20.0, 40.0, 60.0]


@on_both_loops
async def test_the_server_calls_its_clients_too() -> None:
    service = EchoService()
    to_client = Dispatcher()
    to_client.add_hot(ECHO, lambda _connection, request: response_to(request, 0, body=b"client"))
    async with serving(service) as (server, address), client(dispatcher=to_client) as remoting:
        await remoting.call(address, Command(code=ECHO), 10)
        (connection,) = server.connections
        answer = await connection.call(Command(code=ECHO, version=513), 10)
        assert answer.body == b"client"
        connection.oneway(Command(code=ECHO))
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0


@on_both_loops
async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    service = EchoService()
    async with serving(service, NetLimits(idle_timeout_s=0.05)) as (server, address):
        reader, writer = await open_raw(address)
        assert await LoopClock().wait_for(reader.read(), 10) == b""
        await close_raw(writer)
        reader, writer = await open_raw(address)
        writer.write(encode_frame(Command(code=SLOW, opaque=1)))
        await until(lambda: service.slow_started == 1, "the slow handler runs")
        for _ in range(3):  # so many idle periods pass: the request at work keeps it open
            idle_reader, idle_writer = await open_raw(address)
            assert await LoopClock().wait_for(idle_reader.read(), 10) == b""
            await close_raw(idle_writer)
        await until(lambda: len(server.connections) == 1, "only the one at work is left")
        service.gate.set()
        assert (await read_frame(reader)).opaque == 1
        await close_raw(writer)


class Counting:
    """An interceptor that counts, refuses one code and drops the answers of another."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int]] = []

    def before(self, connection: Connection, request: Command) -> Command | None:
        self.log.append(("before", request.code))
        if request.code == SLOW:
            return response_to(request, 16, "not you")
        return None

    def after(
        self, connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        self.log.append(("after", request.code))
        return None if request.code == BIG else response


@on_both_loops
async def test_interceptors_see_answer_and_drop() -> None:
    service = EchoService()
    counting = Counting()
    service.dispatcher.interceptors = (counting,)
    async with serving(service) as (_, address), client() as remoting:
        assert (await remoting.call(address, Command(code=ECHO), 10)).code == 0
        assert (await remoting.call(address, Command(code=SLOW), 10)).code == 16
        with pytest.raises(RequestTimeoutError):
            await remoting.call(address, Command(code=BIG), 0.05)
    assert service.slow_started == 0
    assert counting.log == [
        (when, code) for code in (ECHO, SLOW, BIG) for when in ("before", "after")
    ]


class Xor(ByteFilter):
    """Stands in for TLS: every byte is flipped on the wire, and a greeting is answered."""

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        if data.startswith(b"\x16"):
            return bytes(byte ^ 0x55 for byte in data[1:]), b"hello"
        return bytes(byte ^ 0x55 for byte in data), b""

    def sending(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x55 for byte in data)


@on_both_loops
async def test_the_first_byte_may_choose_a_filter() -> None:
    def choose(connection: Connection, data: bytes) -> ByteFilter | None:
        return Xor() if data[0] == 0x16 else None

    async with serving(EchoService(), first_bytes=choose) as (_, address):
        reader, writer = await open_raw(address)
        frame = encode_frame(Command(code=ECHO, opaque=4))
        writer.write(b"\x16" + bytes(byte ^ 0x55 for byte in frame))
        assert await LoopClock().wait_for(reader.readexactly(5), 10) == b"hello"
        buffer = FrameBuffer()
        commands: list[Command] = []
        while not commands:
            chunk = await LoopClock().wait_for(reader.read(4096), 10)
            commands = buffer.feed(bytes(byte ^ 0x55 for byte in chunk))
        assert commands[0].opaque == 4
        await close_raw(writer)
        reader, writer = await open_raw(address)
        writer.write(frame)
        assert (await read_frame(reader)).opaque == 4
        await close_raw(writer)


def test_two_handlers_for_one_code_are_refused() -> None:
    dispatcher = Dispatcher()
    dispatcher.add_hot(1, lambda _connection, _request: None)
    with pytest.raises(ValueError, match="request code 1 "):
        dispatcher.add_hot(1, lambda _connection, _request: None)
    assert dispatcher.codes == {1}
