"""An echo service with handlers of every kind, its server and clients, and a peer that is deaf."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from skylark.core.clock import LoopClock
from skylark.core.errors import BrokerError, HeaderFieldError
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import Command, response_to
from skylark.wire.frame import decode_frame

ECHO, SLOW, RAISES, REFUSES, SILENT, BIG = 1001, 1002, 1003, 1004, 1005, 1006


class EchoService:
    """Handlers of every kind, and a gate that slow ones wait at."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.slow_started = 0
        self.seen: list[int] = []
        self.dispatcher = Dispatcher()
        self.dispatcher.add_hot(ECHO, self.echo)
        self.dispatcher.add_cold(SLOW, self.slow)
        self.dispatcher.add_cold(RAISES, self.raises)
        self.dispatcher.add_hot(REFUSES, self.refuses)
        self.dispatcher.add_hot(SILENT, lambda _connection, _request: None)
        self.dispatcher.add_hot(BIG, self.big)

    def echo(self, connection: Connection, request: Command) -> Command:
        self.seen.append(request.opaque)
        return response_to(request, 0, ext=request.ext, body=request.body)

    async def slow(self, connection: Connection, request: Command) -> Command:
        self.slow_started += 1
        await self.gate.wait()
        return response_to(request, 0, body=request.body)

    async def raises(self, connection: Connection, request: Command) -> Command:
        raise ZeroDivisionError("no such luck")

    def refuses(self, connection: Connection, request: Command) -> Command:
        if request.ext and "field" in request.ext:
            raise HeaderFieldError("field")
        raise BrokerError("topic orders does not exist", code=17, hint="create it")

    def big(self, connection: Connection, request: Command) -> Command:
        return response_to(request, 0, body=bytes(1_000_000))


class MemoryWorld:
    """Server and client on the memory network and on virtual time: nothing waits for real."""

    def __init__(
        self,
        limits: NetLimits | None = None,
        client_limits: NetLimits | None = None,
        **client_options: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(clock=self.clock)
        self.service = EchoService()
        self.server = RemotingServer(
            self.service.dispatcher, self.network, self.clock, limits=limits
        )
        self.client = RemotingClient(
            self.network, self.clock, limits=client_limits, **client_options
        )
        self.address = ""

    async def __aenter__(self) -> MemoryWorld:
        host, port = await self.server.start("127.0.0.1", 0)
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.service.gate.set()
        ending = asyncio.gather(self.client.close(), self.server.stop())
        await self.clock.advance(seconds=20)  # a deaf peer, or a test that failed, takes its time
        await ending

    async def call(self, code: int = ECHO, timeout_s: float = 3.0, **fields: Any) -> Command:
        return await self.client.call(self.address, Command(code=code, **fields), timeout_s)

    async def connect(self) -> Connection:
        """The server's end of the client's connection."""
        await self.call()
        (connection,) = self.server.connections
        return connection


class Deaf(asyncio.Protocol):
    """A peer that never reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()


@asynccontextmanager
async def serving(
    service: EchoService, limits: NetLimits | None = None, **options: Any
) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(
        service.dispatcher, TcpNetwork(), LoopClock(), limits=limits or NetLimits(), **options
    )
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield server, f"{host}:{port}"
    finally:
        service.gate.set()
        await server.stop(grace_s=5.0)


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[RemotingClient]:
    remoting = RemotingClient(TcpNetwork(), LoopClock(), **options)
    try:
        yield remoting
    finally:
        await remoting.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    clock = LoopClock()
    async with clock.timeout(10):
        while not condition():
            await clock.sleep(0.001)
    assert condition(), what


async def open_raw(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def read_frame(reader: asyncio.StreamReader) -> Command:
    prefix = await LoopClock().wait_for(reader.readexactly(4), 10)
    (length,) = struct.unpack(">i", prefix)
    return decode_frame(prefix + await reader.readexactly(length))


async def close_raw(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):  # the server may have reset it, as the test wanted
        await writer.wait_closed()
