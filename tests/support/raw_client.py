"""Clients on plain sockets: what they send is in the kernel at once, also while the loop stalls."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from skylark.core.clock import LoopClock
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import FrameBuffer, encode_frame

#: Ends a test that hangs; a busy machine stays below it.
DEADLINE_S = 60.0


class RawClient:
    """One connection. ``send`` may be called from any thread."""

    def __init__(self, address: tuple[str, int], *, receive_size: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_size is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
        self._socket.connect(address)
        self._socket.setblocking(False)
        self._frames = FrameBuffer()
        self._found: list[Command] = []

    def send(self, *requests: Command) -> None:
        data = b"".join(map(encode_frame, requests))
        assert self._socket.send(data) == len(data)

    async def answer(self, timeout_s: float = DEADLINE_S) -> Command:
        """The next answer, in order of arrival."""
        loop = asyncio.get_running_loop()
        async with LoopClock().timeout(timeout_s):
            while not self._found:
                data = await loop.sock_recv(self._socket, 1 << 20)
                assert data, "the connection was closed"
                self._found += self._frames.feed(data)
        return self._found.pop(0)

    async def call(self, request: Command) -> Command:
        self.send(request)
        return await self.answer()

    async def closed(self) -> None:
        """Wait until the other end has closed."""
        async with LoopClock().timeout(DEADLINE_S):
            while await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20):
                pass

    def close(self) -> None:
        self._socket.close()


def send_message(
    body: bytes = b"x", topic: str = "T", *, queue_id: int = 0, **fields: Any
) -> Command:
    ext = {
        "a": "pg", "b": topic, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1",
        "h": "0", "i": "",
    }  # fmt: skip
    options = {"version": CURRENT_VERSION, **fields}
    return Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=body, **options)


def pull_messages(offset: int = 0, *, queue_id: int = 0, sys_flag: int = 4) -> Command:
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(sys_flag), "commitOffset": "0",
        "suspendTimeoutMillis": "20000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return Command(code=RequestCode.PULL_MESSAGE, ext=ext, version=CURRENT_VERSION)
