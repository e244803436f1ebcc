"""A consumer that catches up, or a flood, does not delay sends of others.

The network reads like libuv: up to 32 times from one socket in one turn. Pulls are counted between
two answers to the quiet producer, never wall time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from skylark.broker.overload.overload_guard import Reason
from skylark.core.clock import LoopClock
from skylark.net.limits import NetLimits
from skylark.testing.memory_net import MemoryNetwork
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.support.bad_requests import send_fields
from tests.unit.broker.overload.test_overload_guard import SEND, STALL
from tests.unit.broker.overload.test_overload_guard_loops import World
from tests.unit.broker.stored import OWN, stored

MESSAGES, SIZE = 64, 4_000
PULLS = 300
PER_PULL = 32


class Asking(asyncio.Protocol):
    """Keeps its answers, and does something at each."""

    def __init__(self, on_answer: Callable[[], None] = lambda: None) -> None:
        self.codes: list[int] = []
        self._on_answer = on_answer
        self._frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        for answer in self._frames.feed(data):
            self.codes.append(answer.code)
            self._on_answer()


def request(code: int, ext: dict[str, str], body: bytes | None = None) -> bytes:
    return encode_frame(Command(code=code, ext=ext, body=body, version=CURRENT_VERSION))


def pull() -> bytes:
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": str(PER_PULL), "sysFlag": str(OWN), "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, ext)


async def test_a_consumer_that_catches_up_does_not_delay_sends(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        for _ in range(MESSAGES):
            sent = await world.call(
                RequestCode.SEND_MESSAGE_V2, send_fields(b="T", e="0"), bytes(SIZE)
            )
            assert sent.code == 0
        # The consumer takes all that it is sent, in the turn after.
        world.network.window_size = world.network.chunk_size = 64 << 20
        world.network.reads_per_turn = 32
        send = request(RequestCode.SEND_MESSAGE_V2, send_fields(b="T", e="0"), b"quiet")
        host, port = world.broker.address
        pulled: list[int] = []  # at each answer to the producer

        def send_again() -> None:
            pulled.append(len(consuming.codes))
            if len(consuming.codes) < PULLS:
                producer.write(send)

        async def connected(protocol: Asking) -> asyncio.Transport:
            transport, _ = await world.network.connect(
                lambda: protocol, host, port, timeout_s=1, clock=world.clock
            )
            return transport

        consuming, producing = Asking(), Asking(send_again)
        consumer, producer = await connected(consuming), await connected(producing)
        consumer.write(pull() * PULLS)
        producer.write(send)
        await world.clock.drain()
        assert consuming.codes == [0] * PULLS
        assert set(producing.codes) == {0}
        # A send and its answer take four turns of this network, in each of which the consumer gets
        # its share: 512 KB, and the pull that reached it.
        share = NetLimits().reply_bytes_per_turn_max // (PER_PULL * SIZE) + 1
        assert max(after - before for before, after in pairwise(pulled)) <= 6 * share
        assert len(pulled) >= PULLS // (6 * share)
        consumer.close()
        producer.close()
        await world.clock.drain()


async def test_a_flood_that_is_read_as_libuv_reads_has_no_quiet_producer_refused() -> None:
    """One poll brings the whole flood, 2.5 s of work, before it looks at the quiet producer."""
    network = MemoryNetwork(window_size=16 << 20, chunk_size=256 << 10, reads_per_turn=32)
    world, clock = World(network), LoopClock()
    host, port = await world.server.start("127.0.0.1", 9876)
    frame = encode_frame(Command(code=SEND, version=513))
    world.stall_s = 0.01

    def send_again() -> None:
        if len(flooding.codes) < 250:
            quiet.write(frame)

    flood, flooding = await network.connect(Asking, host, port, timeout_s=1, clock=clock)
    quiet, asking = await network.connect(
        lambda: Asking(send_again), host, port, timeout_s=1, clock=clock
    )
    batch = encode_frame(Command(code=STALL, version=513, body=bytes(33_000)))
    flood.write(batch * 250)
    quiet.write(frame)
    async with clock.timeout(60):
        while len(flooding.codes) < 250:  # noqa: ASYNC110 - it takes turns of the loop, not time
            await asyncio.sleep(0)
    assert set(asking.codes) == {0}
    assert len(asking.codes) >= 15, "it was served while the flood lasted"
    assert set(flooding.codes) == {0}, "it is slowed, not refused"
    assert world.guard.refused_counts[Reason.WAITED] == 0
    for transport in (flood, quiet):
        transport.close()
    await world.server.stop()
