"""The replication stream of an Apache master and slave, with either end played by ours."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from skylark.store.config import BrokerRole
from skylark.wire.ha_frame import HaFrameBuffer
from tests.unit.replication.sites import HA_HOST, HA_PORT, Peer, connect, log_bytes, site

STREAM = Path(__file__).parent / "data" / "frames" / "ha-stream.jsonl"
FILE_SIZE = 1 << 20  # of the broker that was recorded


class Chunk(NamedTuple):
    """Bytes as they were read."""

    at_ms: int
    from_slave: bool
    data: bytes


def chunks() -> list[Chunk]:
    rows = map(json.loads, STREAM.read_text().splitlines())
    return [Chunk(row["t_ms"], row["dir"] == "c2s", base64.b64decode(row["raw"])) for row in rows]


def stream(*, from_slave: bool) -> bytes:
    return b"".join(chunk.data for chunk in chunks() if chunk.from_slave is from_slave)


def master_log() -> bytes:
    return b"".join(frame.body for frame in HaFrameBuffer().feed(stream(from_slave=False)))


@pytest.mark.spec("store.12.42")
async def test_our_slave_says_byte_for_byte_what_the_apache_slave_said() -> None:
    async with site() as place:
        peers: list[Peer] = []

        def accept() -> Peer:
            peers.append(Peer())
            return peers[-1]

        await place.network.listen(accept, HA_HOST, HA_PORT)
        slave = place.store(BrokerRole.SLAVE, mapped_file_size_commit_log=FILE_SIZE)
        now_ms = chunks()[0].at_ms
        place.follow(slave)
        await place.clock.drain()
        for chunk in chunks():
            await place.clock.advance(ms=chunk.at_ms - now_ms)
            now_ms = chunk.at_ms
            if not chunk.from_slave:
                peers[0].send(chunk.data)
        await place.clock.drain()
        assert peers[0].received == stream(from_slave=True)
        assert log_bytes(slave) == master_log()
        assert sum(queue.max_offset for queue in slave.queues) == 11


@pytest.mark.spec("store.12.42")
async def test_our_master_sends_byte_for_byte_what_the_apache_master_sent() -> None:
    bodies = [frame.body for frame in HaFrameBuffer().feed(stream(from_slave=False)) if frame.body]
    assert [len(body) for body in bodies] == [2_461, 795]
    async with site() as place:
        # A slave's store takes the recorded bytes; what is served from it is no matter of role.
        store = place.store(BrokerRole.SLAVE, mapped_file_size_commit_log=FILE_SIZE)
        assert store.replica is not None
        server = await place.serve(store)
        store.replica.append(0, bodies[0])
        peer = await connect(place)
        now_ms = chunks()[0].at_ms
        for chunk in chunks():
            await place.clock.advance(ms=chunk.at_ms - now_ms)
            now_ms = chunk.at_ms
            if chunk.from_slave:
                peer.send(chunk.data)
            elif len(chunk.data) == 12 + len(bodies[1]):
                store.replica.append(len(bodies[0]), bodies[1])
                server.wake()
            await place.clock.drain()
        assert peer.received == stream(from_slave=False)
