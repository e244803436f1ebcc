"""The fault proxy between real sockets, on both loops; time is virtual where it matters."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.core.clock import Clock
from skylark.core.errors import ConnectError
from skylark.net.transport import Listener, TcpNetwork
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.tcp_proxy import HELD_SIZE_MAX, Direction, FaultProxy
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import on_both_loops
from tests.support.recorder import CLOCK, Recorder, until

HOST = "127.0.0.1"
MUCH = 16 * 1024 * 1024
TO_SERVER, TO_CLIENT = Direction


class Stage:
    """A server, a proxy before it, and clients that connect through it."""

    def __init__(
        self, plan: FaultPlan | None = None, *, clock: Clock = CLOCK, keep_open: bool = False
    ) -> None:
        self.proxy = FaultProxy(clock, plan)
        self.keep_open = keep_open
        self.network = TcpNetwork()
        self.servers: list[Recorder] = []
        self.clients: list[Recorder] = []
        self.listeners: list[Listener] = []

    async def __aenter__(self) -> Stage:
        self.open_before = open_sockets()
        self.tasks_before = asyncio.all_tasks()
        self.address = await self.proxy.add_target(HOST, await self.serve())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.proxy.close()
        for listener in self.listeners:
            listener.close()
            await listener.wait_closed()
        await until(lambda: all(end.events for end in self.servers))  # accepted at the last moment
        for end in (*self.servers, *self.clients):
            if not end.is_lost():
                end.wire.abort()
        await until(lambda: all(end.is_lost() for end in (*self.servers, *self.clients)))
        await until(lambda: open_sockets() == self.open_before)
        assert asyncio.all_tasks() == self.tasks_before
        assert self.proxy.link_count == 0

    async def serve(self) -> int:
        listener = await self.network.listen(self._accept, HOST, 0)
        self.listeners.append(listener)
        return listener.addresses[0][1]

    def _accept(self) -> Recorder:
        self.servers.append(Recorder(keep_open=self.keep_open))
        return self.servers[-1]

    async def dial(self, address: tuple[str, int] | None = None) -> Recorder:
        """A client, connected to the proxy only."""
        client = Recorder(keep_open=self.keep_open)
        await self.network.connect(
            lambda: client, *(address or self.address), timeout_s=5, clock=CLOCK
        )
        self.clients.append(client)
        return client

    async def connect(self, address: tuple[str, int] | None = None) -> tuple[Recorder, Recorder]:
        """A client and the server's end of its connection."""
        count = len(self.servers)
        client = await self.dial(address)
        await until(lambda: len(self.servers) > count and self.servers[-1].events)
        return client, self.servers[-1]


def open_sockets() -> set[str]:
    """The sockets of this process; libuv keeps other descriptors for itself, too."""
    names = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            names.add(str(link.readlink()))
    return {name for name in names if name.startswith("socket:")}


def reset_on_close(end: Recorder) -> None:
    link = end.wire.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@on_both_loops
async def test_bytes_pass_both_ways_and_are_counted() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        content = bytes(range(256)) * (MUCH // 256)
        client.wire.write(content)
        server.wire.write(b"answer")
        await until(lambda: len(server.received) == MUCH and client.received == b"answer")
        assert server.received == content
        assert stage.proxy.stats.bytes_passed == {TO_SERVER: MUCH, TO_CLIENT: 6}
        assert stage.proxy.stats.connections == 1
        assert stage.proxy.link_count == 1


@on_both_loops
async def test_end_of_file_passes_each_way_by_itself() -> None:
    async with Stage(keep_open=True) as stage:
        client, server = await stage.connect()
        client.wire.write(b"question")
        client.wire.write_eof()
        await until(lambda: "eof" in server.events)
        assert server.received == b"question"
        server.wire.write(b"answer")
        server.wire.write_eof()
        await until(lambda: "eof" in client.events)
        assert client.received == b"answer"
        await until(lambda: stage.proxy.link_count == 0)


@on_both_loops
async def test_close_of_a_client_reaches_the_server_after_its_bytes() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        client.wire.write(bytes(MUCH))
        client.wire.close()
        await until(server.is_lost)
        assert len(server.received) == MUCH
        assert server.error is None


@on_both_loops
async def test_reset_of_a_client_reaches_the_server() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        reset_on_close(client)
        client.wire.abort()
        await until(server.is_lost)
        assert isinstance(server.error, ConnectionResetError)


@on_both_loops
async def test_cut_resets_and_close_ends_in_order() -> None:
    async with Stage() as stage:
        for reset in (True, False):
            pairs = [await stage.connect(), await stage.connect()]
            assert stage.proxy.cut(reset=reset) == 2
            ends = [end for pair in pairs for end in pair]
            await until(lambda ends=ends: all(end.is_lost() for end in ends))  # type: ignore[misc]
            assert {type(end.error) for end in ends} == {
                ConnectionResetError if reset else type(None)
            }
        assert stage.proxy.stats.faults == {"cut": 2, "close": 2}
        assert stage.proxy.stats.faults_in_flight == {}  # nobody was speaking


@on_both_loops
async def test_each_direction_stalls_by_itself() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        stage.proxy.stall(TO_CLIENT)
        client.wire.write(b"question")
        await until(lambda: server.received == b"question")
        server.wire.write(b"answer")
        await until(lambda: stage.proxy.held_size(TO_CLIENT) == 6)
        server.wire.close()  # the end is held back as well
        late, late_server = await stage.connect()  # new connections stall, too
        late_server.wire.write(b"more")
        await until(lambda: stage.proxy.held_size(TO_CLIENT) == 10)
        assert client.events == ["made"]
        stage.proxy.resume()
        await until(lambda: client.received == b"answer" and late.received == b"more")
        await until(client.is_lost)
        assert client.events == ["made", "data", "eof", "lost"]


@on_both_loops
async def test_stall_reaches_the_sender_as_back_pressure() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        stage.proxy.stall()
        client.wire.write(bytes(MUCH))
        await until(lambda: client.events == ["made", "pause"])
        await until(lambda: stage.proxy.held_size(TO_SERVER) >= HELD_SIZE_MAX)
        assert stage.proxy.held_size(TO_SERVER) < 4 * HELD_SIZE_MAX
        assert client.wire.get_write_buffer_size() > 0
        stage.proxy.resume(TO_SERVER)
        await until(lambda: len(server.received) == MUCH)
        assert stage.proxy.held_size(TO_SERVER) == 0


@on_both_loops
async def test_slow_reader_reaches_the_sender_as_back_pressure() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        server.wire.pause_reading()
        client.wire.write(2 * bytes(MUCH))
        await until(lambda: stage.proxy.held_size(TO_SERVER) >= HELD_SIZE_MAX)
        server.wire.resume_reading()
        await until(lambda: len(server.received) == 2 * MUCH)


@on_both_loops
async def test_halve_delivers_the_first_half_and_ends() -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        assert stage.proxy.halve(TO_SERVER) == 0
        stage.proxy.stall(TO_SERVER)
        client.wire.write(b"1234567890")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 10)
        assert stage.proxy.halve(TO_SERVER) == 1
        await until(lambda: client.is_lost() and server.is_lost())
        assert server.received == b"12345"
        assert server.events == ["made", "data", "eof", "lost"]
        assert stage.proxy.stats.faults_in_flight == {"halve": 1}


@on_both_loops
@pytest.mark.parametrize(
    ("action", "arrives", "error"),
    [
        (FaultAction.HALVE, b"ans", type(None)),
        (FaultAction.CLOSE, b"", type(None)),
        (FaultAction.CUT, b"", ConnectionResetError),
    ],
)
async def test_armed_fault_strikes_the_next_bytes(
    action: FaultAction, arrives: bytes, error: type
) -> None:
    async with Stage() as stage:
        client, server = await stage.connect()
        stage.proxy.arm(action, TO_CLIENT)
        client.wire.write(b"question")
        await until(lambda: server.received == b"question")
        server.wire.write(b"answer")
        await until(lambda: client.is_lost() and server.is_lost())
        assert client.received == arrives
        assert type(client.error) is error
        assert stage.proxy.stats.faults_in_flight == {action.value: 1}
        client, server = await stage.connect()  # once only
        server.wire.write(b"answer")
        await until(lambda: client.received == b"answer")


@on_both_loops
async def test_delay_and_throttle_follow_the_clock() -> None:
    clock = VirtualClock()
    async with Stage(clock=clock) as stage:
        client, server = await stage.connect()
        stage.proxy.delay(1000, TO_SERVER)
        client.wire.write(b"late")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 4)
        await clock.advance(ms=999)
        assert stage.proxy.held_size(TO_SERVER) == 4
        await clock.advance(ms=1)
        await until(lambda: server.received == b"late")
        stage.proxy.delay(0)

        stage.proxy.throttle(1000, TO_CLIENT)
        server.wire.write(bytes(500))
        await until(lambda: stage.proxy.held_size(TO_CLIENT) == 500)
        await clock.advance(ms=250)
        await until(lambda: len(client.received) == 250)
        assert stage.proxy.held_size(TO_CLIENT) == 250
        await clock.advance(ms=250)
        await until(lambda: len(client.received) == 500)


@on_both_loops
async def test_plan_strikes_by_chunk_and_counts_its_hits() -> None:
    plan = FaultPlan(5).at("proxy.to_server", nth=2, action=FaultAction.STALL)
    plan.at("proxy.to_client", nth=2, action=FaultAction.CUT)
    async with Stage(plan) as stage:
        client, server = await stage.connect()
        client.wire.write(b"one")
        await until(lambda: server.received == b"one")
        client.wire.write(b"two")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 3)
        stage.proxy.resume()
        await until(lambda: server.received == b"onetwo")
        server.wire.write(b"one")
        await until(lambda: client.received == b"one")
        server.wire.write(b"two")
        await until(lambda: client.is_lost() and server.is_lost())
        assert client.received == b"one"
    assert plan.hits == {"proxy.to_server/stall": 1, "proxy.to_client/cut": 1}
    assert stage.proxy.stats.faults_in_flight == {"stall": 1, "cut": 1}


@on_both_loops
async def test_delay_by_plan_keeps_order() -> None:
    clock = VirtualClock()
    plan = FaultPlan(5).at("proxy.to_server", delay_ms=300)
    async with Stage(plan, clock=clock) as stage:
        client, server = await stage.connect()
        client.wire.write(b"one")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 3)
        client.wire.write(b"two")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 6)
        await clock.advance(ms=300)
        await until(lambda: server.received == b"onetwo")
    assert stage.proxy.stats.faults_in_flight == {"delay": 1}


@on_both_loops
async def test_connections_refused_by_plan_are_reset() -> None:
    plan = FaultPlan(5).at("proxy.connect", error=1)
    async with Stage(plan) as stage:
        client = await stage.dial()
        await until(client.is_lost)
        assert stage.proxy.stats.connections_refused == 1
        assert stage.servers == []
        await stage.connect()


@on_both_loops
async def test_server_may_be_absent_and_come_back_elsewhere() -> None:
    async with Stage() as stage:
        stage.listeners[0].close()
        client = await stage.dial()
        client.wire.write(b"lost")
        await until(client.is_lost)
        assert stage.proxy.stats.connections_refused == 1
        stage.proxy.move_target(stage.address, HOST, await stage.serve())
        client, server = await stage.connect()
        client.wire.write(b"found")
        await until(lambda: server.received == b"found")


@on_both_loops
async def test_targets_are_independent() -> None:
    async with Stage() as stage:
        other = await stage.proxy.add_target(HOST, await stage.serve())
        first, first_server = await stage.connect()
        second, second_server = await stage.connect(other)
        stage.proxy.stall(target=other)
        first.wire.write(b"a")
        second.wire.write(b"b")
        await until(lambda: first_server.received == b"a")
        await until(lambda: stage.proxy.held_size(TO_SERVER, other) == 1)
        assert stage.proxy.held_size(TO_SERVER, stage.address) == 0
        assert stage.proxy.cut(other) == 1
        await until(second_server.is_lost)
        assert not first.is_lost()
        await stage.proxy.remove_target(other)
        with pytest.raises(ConnectError):
            await stage.network.connect(Recorder, *other, timeout_s=5, clock=CLOCK)
        assert stage.proxy.link_count == 1


@on_both_loops
async def test_close_leaves_nothing_while_connecting_or_holding_bytes() -> None:
    clock = VirtualClock()
    plan = FaultPlan(1).at("proxy.connect", nth=2, delay_ms=1000)
    async with Stage(plan, clock=clock) as stage:
        client, _ = await stage.connect()
        stage.proxy.delay(1000)
        client.wire.write(b"held")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 4)
        waiting = await stage.dial()
        await until(lambda: stage.proxy.link_count == 2)
        waiting.wire.write(b"early")
        await until(lambda: stage.proxy.held_size(TO_SERVER) == 9)
        await stage.proxy.close()
        await until(lambda: client.is_lost() and waiting.is_lost())
    assert clock.timer_count == 0
    assert stage.proxy.stats.faults == {}


@on_both_loops
async def test_impossible_actions_are_refused() -> None:
    async with Stage() as stage:
        with pytest.raises(ValueError, match="arm knows nothing of duplicate"):
            stage.proxy.arm(FaultAction.DUPLICATE, TO_SERVER)
        with pytest.raises(ValueError, match="arm knows nothing of delay"):
            stage.proxy.arm(FaultAction.DELAY, TO_SERVER)


def disturb(end: Recorder, stream: random.Random) -> None:
    """Let one end write, finish, close or reset its connection, or do nothing."""
    if end.events[:1] != ["made"] or end.wire.is_closing():
        return
    choice = stream.randrange(6)
    with contextlib.suppress(OSError, RuntimeError):  # ended meanwhile
        if choice == 0:
            reset_on_close(end)
            end.wire.abort()
        elif choice == 1:
            end.wire.close()
        elif choice == 2:
            end.wire.write_eof()
        elif choice == 3:
            end.wire.write(bytes(stream.randrange(300_000)))


@on_both_loops
@pytest.mark.parametrize("seed", range(12))
async def test_any_mixture_of_endings_leaves_nothing(seed: int) -> None:
    stream = random.Random(seed)
    async with Stage(keep_open=seed % 2 == 0) as stage:
        proxy = stage.proxy
        faults: list[Callable[[], object]] = [
            proxy.cut,
            lambda: proxy.cut(reset=False),
            lambda: proxy.halve(TO_SERVER),
            lambda: proxy.arm(FaultAction.CUT, TO_CLIENT),
            lambda: proxy.stall(TO_SERVER),
            proxy.resume,
        ]
        for _ in range(6):
            await stage.dial()
            for end in (*stage.clients, *stage.servers):
                disturb(end, stream)
            stream.choice(faults)()
            for _ in range(stream.randrange(4)):
                await CLOCK.sleep(0)
        async with CLOCK.timeout(10):
            await proxy.close()
        assert proxy.held_size(TO_SERVER) == 0
