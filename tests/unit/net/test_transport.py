"""The network seam: the same promises on TCP and in memory, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, cast

import pytest

from skylark.core.errors import ConnectError, TransportError
from skylark.net.transport import (
    ListenError,
    Network,
    PortInUseError,
    TcpNetwork,
    connect_error,
    listen_error,
)
from skylark.testing.memory_net import MemoryNetwork
from tests.support.loops import on_both_loops
from tests.support.recorder import CLOCK, Recorder, until

HOST = "127.0.0.1"
# More than the buffers of both kernels' sockets can take, so that the rest waits in the transport.
MUCH = 16 * 1024 * 1024


@pytest.fixture(params=[TcpNetwork, MemoryNetwork])
def network(request: pytest.FixtureRequest) -> Network:
    return cast("Network", request.param())


class Pair:
    """A listener and one connection to it."""

    def __init__(self, network: Network, client: Recorder, server: Recorder) -> None:
        self._network = network
        self.client = client
        self.server = server

    async def __aenter__(self) -> Pair:
        self.listener = await self._network.listen(lambda: self.server, HOST, 0)
        self.address = self.listener.addresses[0]
        await self._network.connect(lambda: self.client, *self.address, timeout_s=5, clock=CLOCK)
        await until(lambda: self.server.events)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.listener.close()
        for end in (self.client, self.server):
            if "lost" not in end.events:  # asyncio 3.11 may raise in abort() after that
                end.wire.abort()
        await until(lambda: "lost" in self.client.events and "lost" in self.server.events)
        await self.listener.wait_closed()


def pair(network: Network, *, keep_open: bool = False) -> Pair:
    return Pair(network, Recorder(keep_open=keep_open), Recorder(keep_open=keep_open))


@on_both_loops
async def test_bytes_go_both_ways_and_addresses_agree(network: Network) -> None:
    async with pair(network) as ends:
        client, server = ends.client, ends.server
        assert client.events == ["made"]
        assert client.wire.get_extra_info("peername") == ends.address
        assert server.wire.get_extra_info("sockname") == ends.address
        assert server.wire.get_extra_info("peername") == client.wire.get_extra_info("sockname")
        assert client.wire.get_extra_info("no such thing", 7) == 7
        client.wire.writelines([b"he", bytearray(b"l"), memoryview(b"lo")])
        await until(lambda: server.received == b"hello")
        server.wire.write(b"HELLO")
        server.wire.write(b"")
        await until(lambda: client.received == b"HELLO")
        assert client.wire.get_protocol() is client


@on_both_loops
async def test_close_delivers_everything_first(network: Network) -> None:
    async with pair(network) as ends:
        content = bytes(range(256)) * (MUCH // 256)
        ends.client.wire.write(content)
        ends.client.wire.close()
        assert ends.client.wire.is_closing()
        await until(lambda: "lost" in ends.server.events)
        assert ends.server.received == content
        assert ends.server.events == ["made", "data", "eof", "lost"]
        assert ends.server.error is None
        await until(lambda: "lost" in ends.client.events)
        assert ends.client.error is None
        assert [event for event in ends.client.events if event not in ("pause", "resume")] == [
            "made",
            "lost",
        ]
        ends.client.wire.close()
    assert ends.server.events.count("lost") == ends.client.events.count("lost") == 1


@on_both_loops
async def test_writer_is_paused_while_the_reader_does_not_read(network: Network) -> None:
    async with pair(network) as ends:
        client, server = ends.client, ends.server
        server.wire.pause_reading()
        assert not server.wire.is_reading()
        client.wire.set_write_buffer_limits(high=1000)
        assert client.wire.get_write_buffer_limits() == (250, 1000)
        client.wire.write(bytes(MUCH))
        await until(lambda: client.events == ["made", "pause"])
        assert client.wire.get_write_buffer_size() > 1000
        assert not server.received
        server.wire.resume_reading()
        await until(lambda: len(server.received) == MUCH)
        await until(lambda: client.events == ["made", "pause", "resume"])
        assert client.wire.get_write_buffer_size() == 0


@on_both_loops
async def test_paused_reader_gets_its_bytes_later_and_in_order(network: Network) -> None:
    async with pair(network) as ends:
        ends.server.wire.pause_reading()
        for index in range(10):
            ends.client.wire.write(bytes([index]) * 10)
        ends.client.wire.close()
        await until(lambda: "lost" in ends.client.events)
        assert ends.server.events == ["made"]
        ends.server.wire.resume_reading()
        await until(lambda: "lost" in ends.server.events)
        assert ends.server.received == b"".join(bytes([index]) * 10 for index in range(10))


@on_both_loops
async def test_half_closed_connection_still_answers(network: Network) -> None:
    async with pair(network, keep_open=True) as ends:
        client, server = ends.client, ends.server
        assert client.wire.can_write_eof()
        client.wire.write(b"question")
        client.wire.write_eof()
        client.wire.write_eof()
        with pytest.raises(RuntimeError):
            client.wire.write(b"more")
        await until(lambda: "eof" in server.events)
        assert server.received == b"question"
        assert not server.wire.is_closing()
        server.wire.write(b"answer")
        server.wire.write_eof()
        await until(lambda: "eof" in client.events)
        assert client.received == b"answer"
        assert client.events == ["made", "data", "eof"]


@on_both_loops
async def test_abort_drops_what_waits_and_the_peer_sees_the_end(network: Network) -> None:
    async with pair(network) as ends:
        ends.server.wire.pause_reading()
        ends.client.wire.write(bytes(MUCH))
        assert ends.client.wire.get_write_buffer_size() > 0
        ends.client.wire.abort()
        ends.client.wire.write(b"ignored")
        await until(lambda: "lost" in ends.client.events)
        assert ends.client.error is None
        ends.server.wire.resume_reading()
        await until(lambda: "lost" in ends.server.events)
        assert len(ends.server.received) < MUCH


@on_both_loops
async def test_server_may_refuse_in_connection_made(network: Network) -> None:
    class Refusing(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.wire.abort()

    async with Pair(network, Recorder(), Refusing()) as ends:
        await until(lambda: "lost" in ends.client.events and "lost" in ends.server.events)
        assert ends.server.events == ["made", "lost"]


@on_both_loops
async def test_raising_protocol_loses_its_connection_only(network: Network) -> None:
    class Raising(Recorder):
        def data_received(self, data: bytes) -> None:
            raise KeyError(bytes(data))

    reports: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    async with pair(network) as other, Pair(network, Recorder(), Raising()) as ends:
        ends.client.wire.write(b"x")
        await until(lambda: "lost" in ends.server.events and "lost" in ends.client.events)
        assert isinstance(ends.server.error, KeyError)
        assert [type(context["exception"]) for context in reports] == [KeyError]
        other.client.wire.write(b"fine")
        await until(lambda: other.server.received == b"fine")


@on_both_loops
async def test_buffered_protocols_are_filled(network: Network) -> None:
    class Buffered(asyncio.BufferedProtocol):
        def __init__(self) -> None:
            self.buffer = bytearray(1000)
            self.received = bytearray()

        def get_buffer(self, sizehint: int) -> bytearray:
            return self.buffer

        def buffer_updated(self, nbytes: int) -> None:
            self.received += self.buffer[:nbytes]

    buffered = Buffered()
    listener = await network.listen(lambda: buffered, HOST, 0)
    transport, _ = await network.connect(Recorder, *listener.addresses[0], timeout_s=5, clock=CLOCK)
    content = bytes(range(256)) * 40
    transport.write(content)
    await until(lambda: len(buffered.received) == len(content))
    assert buffered.received == content
    transport.close()
    listener.close()
    await listener.wait_closed()
    await until(lambda: transport.get_write_buffer_size() == 0)


@on_both_loops
async def test_limits_and_types_are_checked(network: Network) -> None:
    async with pair(network) as ends:
        with pytest.raises(ValueError, match="low"):
            ends.client.wire.set_write_buffer_limits(high=1, low=2)
        ends.client.wire.set_write_buffer_limits(low=10)
        assert ends.client.wire.get_write_buffer_limits() == (10, 40)
        with pytest.raises(TypeError):
            ends.client.wire.write(cast("bytes", "text"))


@on_both_loops
async def test_connecting_to_a_port_without_a_listener(network: Network) -> None:
    listener = await network.listen(Recorder, HOST, 0)
    host, port = listener.addresses[0]
    listener.close()
    listener.close()
    await listener.wait_closed()
    with pytest.raises(ConnectError) as caught:
        await network.connect(Recorder, host, port, timeout_s=5, clock=CLOCK)
    assert str(caught.value) == (
        f"no connection to 127.0.0.1:{port}: nothing listens there (Connection refused): "
        "start the server, or correct the address"
    )
    assert caught.value.retriable


@on_both_loops
async def test_busy_port_names_itself_and_the_remedy(network: Network) -> None:
    listener = await network.listen(Recorder, HOST, 0)
    port = listener.addresses[0][1]
    with pytest.raises(PortInUseError) as caught:
        await network.listen(Recorder, HOST, port)
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use: "
        f"stop what listens on port {port}, or set another listenPort"
    )
    assert not caught.value.retriable
    listener.close()
    await listener.wait_closed()
    again = await network.listen(Recorder, HOST, port)
    assert again.addresses == [(HOST, port)]
    again.close()
    await again.wait_closed()


@on_both_loops
async def test_closed_listener_leaves_its_connections_alone(network: Network) -> None:
    async with pair(network) as ends:
        ends.listener.close()
        await ends.listener.wait_closed()
        ends.client.wire.write(b"still here")
        await until(lambda: ends.server.received == b"still here")
        with pytest.raises(ConnectError):
            await network.connect(Recorder, *ends.address, timeout_s=5, clock=CLOCK)


@on_both_loops
async def test_connection_that_is_being_accepted_survives_the_close(network: Network) -> None:
    server = Recorder()

    def accept() -> Recorder:
        listener.close()
        return server

    listener = await network.listen(accept, HOST, 0)
    _, client = await network.connect(Recorder, *listener.addresses[0], timeout_s=5, clock=CLOCK)
    await until(lambda: server.events == ["made"])
    client.wire.write(b"still here")
    await until(lambda: server.received == b"still here")
    client.wire.close()
    await until(server.is_lost)
    await until(client.is_lost)


# TCP alone


@on_both_loops
async def test_tcp_sends_at_once_and_keeps_no_alive_timer() -> None:
    async with pair(TcpNetwork()) as ends:
        for end in (ends.client, ends.server):
            link = end.wire.get_extra_info("socket")
            assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


@on_both_loops
async def test_connecting_is_bounded_by_its_timeout() -> None:
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        try:
            for filler in fillers:  # nobody accepts, so that further ones get no answer at all
                filler.setblocking(False)
                filler.connect_ex(address)
            with pytest.raises(ConnectError, match=r"no connection to .* within 0\.05 s"):
                await TcpNetwork().connect(Recorder, *address, timeout_s=0.05, clock=CLOCK)
        finally:
            for filler in fillers:
                filler.close()


@on_both_loops
async def test_reuse_port_shares_a_port() -> None:
    network = TcpNetwork()
    first = await network.listen(Recorder, HOST, 0, reuse_port=True)
    second = await network.listen(Recorder, HOST, first.addresses[0][1], reuse_port=True)
    assert first.addresses == second.addresses
    for listener in (first, second):
        listener.close()
        await listener.wait_closed()


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "ports below 1024 need privileges: choose a higher listenPort"),
        (errno.EADDRNOTAVAIL, "bindAddress must be an address of this machine"),
        (errno.EMFILE, None),
    ],
)
def test_listen_errors_name_a_remedy(number: int, hint: str | None) -> None:
    error = listen_error("10.0.0.1", 80, OSError(number, "whatever the loop says"))
    assert type(error) is ListenError
    assert isinstance(error, TransportError)
    assert error.hint == hint
    assert error.message.startswith("cannot listen on 10.0.0.1:80: ")


def test_connect_errors_name_the_cause() -> None:
    error = connect_error("nowhere", 1, socket.gaierror(-2, "Name or service not known"))
    assert str(error) == (
        "no connection to nowhere:1: Name or service not known: the name nowhere cannot be resolved"
    )
    error = connect_error("h", 2, OSError("Multiple exceptions: a, b"))
    assert str(error) == "no connection to h:2: Multiple exceptions: a, b"
