"""A consumer that catches up does not delay sends of others; the network reads like libuv.

Pulls are counted between two answers to the quiet producer, never wall time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from skylark.net.limits import NetLimits
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.support.bad_requests import send_fields
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
