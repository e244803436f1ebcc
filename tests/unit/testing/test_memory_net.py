"""Faults of the memory network; what it shares with TCP is shown in net/test_transport.py."""

from __future__ import annotations

import asyncio
import errno

import pytest

from skylark.core.errors import ConnectError
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import on_both_loops
from tests.support.recorder import CLOCK, Recorder, until

HOST = "broker-a"
PORT = 10911


class Chunks(Recorder):
    """Also keeps the borders of what arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.chunks.append(bytes(data))


async def joined(network: MemoryNetwork) -> tuple[Recorder, Chunks]:
    server = Chunks()
    listener = await network.listen(lambda: server, HOST, PORT)
    _, client = await network.connect(Recorder, HOST, PORT, timeout_s=5, clock=CLOCK)
    await until(lambda: server.events)
    listener.close()
    return client, server


def both_reset(*ends: Recorder) -> bool:
    return all(isinstance(end.error, ConnectionResetError) for end in ends)


@on_both_loops
async def test_delay_holds_back_a_chunk_and_all_behind_it() -> None:
    clock = VirtualClock()
    plan = FaultPlan(1).at("memory.deliver", delay_ms=500)
    network = MemoryNetwork(plan, clock=clock)
    client, server = await joined(network)
    client.wire.write(b"first")
    await clock.drain()
    client.wire.write(b"second")
    client.wire.close()
    await clock.advance(ms=499)
    assert server.events == ["made"]
    await clock.advance(ms=1)
    assert server.chunks == [b"firstsecond"]
    assert server.events == ["made", "data", "eof", "lost"]
    assert plan.hits == {"memory.deliver/delay": 1}
    assert network.connection_count == 0


@on_both_loops
async def test_delay_at_every_chunk_still_delivers() -> None:
    clock = VirtualClock()
    plan = FaultPlan(1).chance("memory.deliver", 1.0, delay_ms=10)
    client, server = await joined(MemoryNetwork(plan, clock=clock, chunk_size=4))
    client.wire.write(b"0123456789")
    await clock.advance(ms=30)
    assert server.chunks == [b"0123", b"4567", b"89"]
    client.wire.abort()
    await clock.drain()


@on_both_loops
async def test_split_changes_borders_and_nothing_else() -> None:
    content = bytes(range(256)) * 8
    borders = set()
    for seed in range(10):
        plan = FaultPlan(seed).chance("memory.deliver", 0.7, action=FaultAction.SPLIT)
        client, server = await joined(MemoryNetwork(plan, chunk_size=500))
        client.wire.write(content)
        client.wire.close()
        await until(server.is_lost)
        assert server.received == content
        borders.add(tuple(map(len, server.chunks)))
    assert len(borders) == 10


@on_both_loops
async def test_halve_delivers_the_first_half_and_cuts() -> None:
    plan = FaultPlan(1).at("memory.deliver", nth=2, action=FaultAction.HALVE)
    network = MemoryNetwork(plan)
    client, server = await joined(network)
    client.wire.write(b"whole")
    await until(lambda: server.received == b"whole")
    client.wire.write(b"12345678")
    await until(lambda: both_reset(client, server))
    assert server.chunks == [b"whole", b"1234"]
    assert server.events == ["made", "data", "lost"]
    assert client.events == ["made", "lost"]
    assert network.connection_count == 0


@on_both_loops
async def test_cut_loses_what_is_in_flight() -> None:
    plan = FaultPlan(1).at("memory.deliver", action=FaultAction.CUT)
    client, server = await joined(MemoryNetwork(plan))
    client.wire.write(b"never seen")
    await until(lambda: both_reset(client, server))
    assert server.received == b""
    assert client.wire.is_closing()
    client.wire.write(b"ignored")


@on_both_loops
async def test_close_by_fault_is_an_orderly_end() -> None:
    plan = FaultPlan(1).at("memory.deliver", action=FaultAction.CLOSE)
    client, server = await joined(MemoryNetwork(plan))
    client.wire.write(b"never seen")
    await until(lambda: "lost" in client.events and "lost" in server.events)
    assert client.error is None
    assert server.error is None
    assert server.received == b""


@on_both_loops
async def test_cut_all_breaks_every_connection() -> None:
    network = MemoryNetwork()
    server = await network.listen(Recorder, HOST, PORT)
    clients = [
        (await network.connect(Recorder, HOST, PORT, timeout_s=5, clock=CLOCK))[1] for _ in range(3)
    ]
    assert network.connection_count == 6
    assert network.cut_all() == 3
    await until(lambda: both_reset(*clients))
    assert network.connection_count == 0
    server.close()


@on_both_loops
async def test_connections_are_refused_and_late_by_plan() -> None:
    clock = VirtualClock()
    plan = FaultPlan(1).at("memory.connect", error=errno.EHOSTUNREACH)
    plan.at("memory.connect", nth=(2, 3), delay_ms=2000)
    network = MemoryNetwork(plan, clock=clock)
    listener = await network.listen(Recorder, HOST, PORT)
    with pytest.raises(ConnectError, match="No route to host"):
        await network.connect(Recorder, HOST, PORT, timeout_s=1, clock=clock)

    async def connect(timeout_s: float) -> Recorder:
        return (await network.connect(Recorder, HOST, PORT, timeout_s=timeout_s, clock=clock))[1]

    late = asyncio.ensure_future(connect(timeout_s=1))
    slow = asyncio.ensure_future(connect(timeout_s=3))
    await clock.advance(1)
    with pytest.raises(ConnectError, match=f"no connection to {HOST}:{PORT} within 1 s"):
        await late
    assert not slow.done()
    await clock.advance(1)
    client = await slow
    assert client.events == ["made"]
    client.wire.abort()
    await clock.drain()
    listener.close()
    assert network.connection_count == 0


@on_both_loops
async def test_wildcard_and_loopback_names_are_found() -> None:
    network = MemoryNetwork()
    anywhere = await network.listen(Recorder, "0.0.0.0", 9876)
    local = await network.listen(Recorder, "127.0.0.1", 9877)
    for host, port in (("10.1.2.3", 9876), ("localhost", 9877), ("127.0.0.1", 9876)):
        wire, _ = await network.connect(Recorder, host, port, timeout_s=5, clock=CLOCK)
        assert wire.get_extra_info("peername") == (host, port)
        wire.abort()
    with pytest.raises(ConnectError):
        await network.connect(Recorder, "10.1.2.3", 9877, timeout_s=5, clock=CLOCK)
    drawn = await network.listen(Recorder, HOST, 0)
    assert drawn.addresses[0][1] > 0
    for listener in (anywhere, local, drawn):
        listener.close()


@on_both_loops
async def test_small_window_gives_back_pressure_at_once() -> None:
    client, server = await joined(MemoryNetwork(window_size=10, chunk_size=3))
    client.wire.set_write_buffer_limits(high=5)
    client.wire.write(b"0123456789")
    assert client.wire.get_write_buffer_size() == 0
    client.wire.write(b"abcdef")
    assert client.events == ["made", "pause"]
    await until(lambda: len(server.received) == 16)
    assert server.chunks[:3] == [b"012", b"345", b"678"]
    assert client.events == ["made", "pause", "resume"]
    client.wire.abort()
    await until(lambda: "lost" in server.events)


@on_both_loops
async def test_several_reads_in_one_turn_stop_when_the_receiver_pauses() -> None:
    client, server = await joined(MemoryNetwork(chunk_size=3, reads_per_turn=3))
    client.wire.write(b"0123456789abcdef")
    client.wire.close()
    await asyncio.sleep(0)
    assert server.chunks == [b"012", b"345", b"678"]
    server.wire.pause_reading()
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(server.chunks) == 3
    server.wire.resume_reading()
    await until(lambda: "lost" in server.events)
    assert server.received == b"0123456789abcdef"


@on_both_loops
async def test_unknown_actions_are_refused() -> None:
    network = MemoryNetwork(FaultPlan(1).at("memory.connect", action=FaultAction.CUT))
    with pytest.raises(ValueError, match=r"memory\.connect knows nothing of cut"):
        await network.connect(Recorder, HOST, PORT, timeout_s=5, clock=CLOCK)
