"""Peers of a name server for its tests: requests as brokers send them, and a raw connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from skylark.core.clock import LoopClock
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.register import (
    RegisterBrokerBody,
    encode_register_body,
    register_body_crc,
)
from skylark.wire.bodies.route_body import TopicRouteData
from skylark.wire.bodies.slave_sync_body import TopicConfigAndMappingSerializeWrapper
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import encode_ext
from skylark.wire.frame import FrameBuffer, encode_frame
from skylark.wire.headers.route import RegisterBrokerRequestHeader

ANSWER_TIMEOUT_S = 10.0
BROKER_ADDR = "10.0.0.1:10911"


def register_request(
    *topics: str,
    counter: int = 1,
    perm: int = 6,
    body: bytes | None = None,
    compress: bool = False,
    **changes: Any,
) -> Command:
    """REGISTER_BROKER of broker ``b``; ``changes`` are fields of its header."""
    table = {name: TopicConfig(topic_name=name, perm=perm) for name in topics}
    if body is None:
        content = RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
                topic_config_table=table,
                data_version=DataVersion(counter=counter, timestamp=1_700_000_000_000 + counter),
            )
        )
        body = encode_register_body(content, compress=compress)
    fields: dict[str, Any] = {
        "broker_name": "b",
        "broker_addr": BROKER_ADDR,
        "cluster_name": "c",
        "ha_server_addr": "10.0.0.1:10912",
        "broker_id": 0,
        "enable_acting_master": False,
        "body_crc32": register_body_crc(body),
    }
    header = RegisterBrokerRequestHeader(**{**fields, **changes})
    return Command(code=RequestCode.REGISTER_BROKER, ext=encode_ext(header), body=body)


def request(code: int, ext: Mapping[str, str] | None = None, body: bytes | None = None) -> Command:
    return Command(code=code, ext=None if ext is None else dict(ext), body=body)


def route_request(topic: str, **ext: str) -> Command:
    return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **ext})


async def ask_route(client: RemotingClient, address: str, topic: str) -> TopicRouteData | None:
    """The route of a topic; None if the name server has none."""
    response = await client.call(address, route_request(topic))
    if response.code == 17:
        return None
    assert response.code == 0
    return decode_body(TopicRouteData, response.body or b"")


class RawPeer:
    """A connection that writes any bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = FrameBuffer()
        self._frames: list[Command] = []

    async def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, command: Command) -> None:
        command.version = command.version or CURRENT_VERSION
        await self.send_bytes(encode_frame(command))

    async def receive(self) -> Command:
        """The next frame; fails after a while without one."""
        async with LoopClock().timeout(ANSWER_TIMEOUT_S):
            while not self._frames:
                data = await self._reader.read(65_536)
                assert data, "the name server closed the connection"
                self._frames += self._buffer.feed(data)
        return self._frames.pop(0)

    async def receive_bytes(self) -> bytes:
        """The next frame as it comes over the wire; nothing may have been read ahead."""
        assert not self._frames
        async with LoopClock().timeout(ANSWER_TIMEOUT_S):
            length = await self._reader.readexactly(4)
            return length + await self._reader.readexactly(int.from_bytes(length))

    async def call(self, command: Command) -> Command:
        await self.send(command)
        response = await self.receive()
        assert response.opaque == command.opaque
        assert response.is_response
        return response

    async def is_at_end(self) -> bool:
        """Whether the name server closes the connection without another frame."""
        async with LoopClock().timeout(ANSWER_TIMEOUT_S):
            return not self._frames and await self._reader.read(1) == b""

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def open_peer(address: tuple[str, int]) -> RawPeer:
    return RawPeer(*await asyncio.open_connection(*address))


@asynccontextmanager
async def raw_peer(address: tuple[str, int]) -> AsyncIterator[RawPeer]:
    peer = await open_peer(address)
    try:
        yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[NameServer]:
    """A name server with these settings on a free port."""
    server = NameServer(NamesrvConfig(**{"listen_port": 0, **settings}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def calling(server: NameServer) -> AsyncIterator[tuple[RemotingClient, str]]:
    """Our own client, and the address to call."""
    client = RemotingClient(TcpNetwork(), LoopClock())
    try:
        yield client, str(server.address)
    finally:
        await client.close()


async def until_connections(server: NameServer, count: int) -> None:
    """Wait until the name server has seen connections come or go."""
    async with LoopClock().timeout(10):
        while f"skylark_namesrv_connections {count}\n" not in server.metrics.render():
            await LoopClock().sleep(0.01)
