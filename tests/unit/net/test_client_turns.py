"""The loop of a client: the answers of one busy broker take their share of each turn."""

from __future__ import annotations

import asyncio
from typing import cast

from skylark.net.client import RemotingClient
from skylark.net.limits import NetLimits
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import FLAG_RESPONSE, Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.unit.net.test_turn_share import FLOOD, READS_PER_TURN, turns_until


class AnsweringAtOnce(asyncio.Protocol):
    """A server that answers when it is told to, all requests in one write."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self._frames = FrameBuffer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.requests += self._frames.feed(data)

    def answer(self, size: int) -> None:
        answers = (
            encode_frame(Command(opaque=each.opaque, flag=FLAG_RESPONSE, body=bytes(size)))
            for each in self.requests
        )
        self._transport.write(b"".join(answers))


async def test_a_client_reads_the_answers_of_a_busy_broker_in_shares() -> None:
    """Heartbeats, which are timers and tasks, and the other brokers' answers get their turns."""
    clock, limits = VirtualClock(), NetLimits()
    network = MemoryNetwork(clock=clock, window_size=8 << 20, reads_per_turn=READS_PER_TURN)
    servers = {9001: AnsweringAtOnce(), 9002: AnsweringAtOnce()}
    for port, server in servers.items():
        await network.listen(lambda server=server: server, "127.0.0.1", port)  # type: ignore[misc]
    remoting = RemotingClient(network, clock, limits=limits)
    done: list[str] = []

    async def call(port: int, name: str) -> None:
        await remoting.call(f"127.0.0.1:{port}", Command(code=FLOOD), 30)
        done.append(name)

    calls = [asyncio.ensure_future(call(9001, "flood")) for _ in range(500)]
    calls.append(asyncio.ensure_future(call(9002, "quiet")))
    await turns_until(lambda: sum(len(each.requests) for each in servers.values()) == 501)
    servers[9001].answer(8_000)
    servers[9002].answer(0)
    while not all(each.done() for each in calls):
        done.append("heartbeat")  # it has a turn as well
        await asyncio.sleep(0)
    share = 2 * limits.bytes_per_turn_max // 8_000 + 1
    turns = " ".join(done).split("heartbeat")
    assert max(each.count("flood") for each in turns) <= share
    assert done[: done.index("quiet")].count("flood") <= 2 * share
    await remoting.close()
    await clock.drain()
