"""Damaged frames by socket against a real name server, while a well-behaved client is served.

Each hostile connection sends a few damaged frames, ends its side, and reads until the server ends
the other. Between them a witness on a connection of its own asks for a route and must get the right
answer, always.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from skylark.core.clock import LoopClock
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.wire.command import Command
from tests.support.mutations import mutated_frames

FRAMES_PER_CONNECTION = 4
HOSTILE_CONNECTIONS = 8
WITNESS_EVERY = 25  # connections
ANSWER_WITHIN_S = 10.0


@dataclass
class StormResult:
    """What happened: the caller decides what of it is a failure."""

    frames_sent: int = 0
    connections_made: int = 0
    bytes_answered: int = 0
    witness_answers: int = 0
    connections_left: int = 0
    memory_grown: int = 0


def resident_size() -> int:
    """Bytes of memory this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def storm(seed: int, frame_count: int, folder: Path) -> StormResult:
    """Send ``frame_count`` damaged frames; raises if the witness is not served or a call hangs."""
    result = StormResult()
    config = NamesrvConfig(listen_port=0, kv_config_path=folder / "kvConfig.json")
    server = NameServer(config)
    await server.start()
    witness = RemotingClient(TcpNetwork(), LoopClock())
    frames = mutated_frames(seed, frame_count)
    try:
        await _ask(witness, server)
        warm_up = min(frame_count // 4, 1000)
        await _attack(server, witness, islice(frames, warm_up), result)
        gc.collect()
        before = resident_size()
        await _attack(server, witness, frames, result)
        gc.collect()
        result.memory_grown = resident_size() - before
        result.connections_left = await _connections_left(server)
    finally:
        await witness.close()
        await server.stop()
    return result


async def _attack(
    server: NameServer, witness: RemotingClient, frames: Iterator[bytes], result: StormResult
) -> None:
    async def hostile() -> None:
        while chunk := b"".join(batch := list(islice(frames, FRAMES_PER_CONNECTION))):
            result.frames_sent += len(batch)
            result.connections_made += 1
            result.bytes_answered += await _send_and_read(server, chunk)
            if result.connections_made % WITNESS_EVERY == 0:
                await _ask(witness, server)
                result.witness_answers += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(HOSTILE_CONNECTIONS):
            group.create_task(hostile())


async def _send_and_read(server: NameServer, chunk: bytes) -> int:
    reader, writer = await asyncio.open_connection(*server.address)
    answered = 0
    with suppress(ConnectionError):  # being cut off is a proper answer to garbage
        writer.write(chunk)
        writer.write_eof()
        answered = len(await LoopClock().wait_for(reader.read(), ANSWER_WITHIN_S))
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return answered


async def _ask(witness: RemotingClient, server: NameServer) -> None:
    request = Command(code=105, ext={"topic": "NoSuchTopicAtAll"})
    answer = await witness.call(str(server.address), request, ANSWER_WITHIN_S)
    assert answer.code == 17, answer
    assert (answer.remark or "").startswith("No topic route info in name server"), answer


async def _connections_left(server: NameServer) -> int:
    """Connections beside the witness's, once the last hostile ones have been noticed as closed."""
    clock = LoopClock()
    with suppress(TimeoutError):
        async with clock.timeout(ANSWER_WITHIN_S):
            while len(server._server.connections) > 1:
                await clock.sleep(0.01)
    return len(server._server.connections) - 1
