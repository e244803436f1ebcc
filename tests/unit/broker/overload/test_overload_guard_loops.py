"""How long requests waited, on both event loops and over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from skylark.broker.overload.overload_guard import (
    LoopWatch,
    OverloadGuard,
    Reason,
)
from skylark.core.clock import LoopClock
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.net.transport import Network, TcpNetwork
from skylark.wire.command import Command, response_to
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.support.loops import on_both_loops
from tests.unit.broker.overload.test_overload_guard import (
    PCBUSY,
    SEND,
    STALL,
    TIMEOUT,
    FakeTime,
    live_settings,
)


class OnFakeTime:
    """Tells the watch its own time: the connections have that of the machine."""

    def __init__(self, watch: LoopWatch, time: FakeTime) -> None:
        self._watch = watch
        self._time = time

    def read(self, _now: float) -> float:
        return self._watch.read(self._time.now)

    def served(self, *, goes_on: bool) -> None:
        self._watch.served(goes_on=goes_on)


class World:
    """A broker's port with two handlers: one stores in no time, one stalls the loop."""

    def __init__(self, network: Network | None = None) -> None:
        self.time = FakeTime()
        self.watch = LoopWatch(self.time)
        self.guard = OverloadGuard(
            live_settings(),
            self.watch,
            self.time,
            held_size=lambda: 0,
            pool_is_empty=lambda: False,
        )
        dispatcher = Dispatcher([self.guard])
        dispatcher.add_hot(SEND, lambda _connection, request: response_to(request, 0))
        dispatcher.add_hot(STALL, self.stall)
        self.server = RemotingServer(
            dispatcher,
            network or TcpNetwork(),
            LoopClock(),
            limits=NetLimits(frames_per_turn_max=4),
            watch=OnFakeTime(self.watch, self.time),
        )
        self.stall_s = 0.0
        self.is_append = False
        self.meanwhile: Callable[[], None] = lambda: None

    def stall(self, _connection: Connection, request: Command) -> Command:
        began_at = self.time.now
        self.time.now += self.stall_s
        if self.is_append:
            self.guard.appended(began_at, self.time.now)
        self.meanwhile()
        return response_to(request, 0)


class Peer:
    """A client on a plain socket: what it sends is in the kernel when ``send`` returns."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setblocking(False)
        self._frames = FrameBuffer()

    def send(self, *codes: int) -> None:
        frames = [encode_frame(Command(code=code, version=513)) for code in codes]
        self._socket.send(b"".join(frames))

    async def answers(self, count: int = 1) -> list[tuple[int, str | None]]:
        loop = asyncio.get_running_loop()
        found: list[Command] = []
        async with LoopClock().timeout(10):
            while len(found) < count:
                found += self._frames.feed(await loop.sock_recv(self._socket, 65_536))
        return [(answer.code, answer.remark) for answer in found]

    def close(self) -> None:
        self._socket.close()


@contextmanager
def peers(world: World, count: int) -> Iterator[list[Peer]]:
    connected = [Peer(world.server.address) for _ in range(count)]
    try:
        yield connected
    finally:
        for peer in connected:
            peer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    world = World()
    await world.server.start("127.0.0.1", 0)
    try:
        yield world
    finally:
        await world.server.stop()


async def settle(peer: Peer) -> None:
    """A request that is answered, and a loop that then waits."""
    peer.send(SEND)
    assert await peer.answers() == [(0, None)]


@on_both_loops
async def test_the_first_send_after_60_idle_seconds_is_accepted() -> None:
    async with serving() as world:
        with peers(world, 1) as (peer,):
            for _ in range(3):
                await settle(peer)
                world.time.now += 60
            await settle(peer)
            assert world.guard.refused_counts[Reason.WAITED] == 0


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_a_send_that_came_while_the_loop_was_busy_is_refused() -> None:
    async with serving() as world:
        with peers(world, 2) as (busy, other):
            await settle(busy)
            await settle(other)
            world.time.now += 60
            world.stall_s = 0.25
            world.meanwhile = lambda: other.send(SEND)  # reaches the kernel during the stall
            busy.send(STALL)
            ((code, remark),) = await other.answers()
            assert code == 2
            assert (remark or "").startswith(f"{TIMEOUT}250ms, size of queue: 0: ")
            assert await busy.answers() == [(0, None)]
            world.time.now += 1
            await settle(other)


@on_both_loops
async def test_a_send_read_in_the_same_turn_waited_as_well() -> None:
    async with serving() as world:
        with peers(world, 9) as connected:
            for peer in connected:
                await settle(peer)
            world.time.now += 60
            world.stall_s = 0.05  # nine of them take 450 ms
            for peer in connected:
                peer.send(STALL, SEND)
            answers = [(await peer.answers(2))[1] for peer in connected]
            codes = [code for code, _ in answers]
            # In one turn or in several: who was read first is served, who was read last is not.
            assert codes.count(0) >= 3
            assert codes.count(2) >= 3
            assert world.guard.refused_counts[Reason.WAITED] == codes.count(2)


@on_both_loops
@pytest.mark.spec("broker.13.22")
async def test_refusals_of_sends_behind_a_stalled_append_name_the_disk() -> None:
    async with serving() as world:
        with peers(world, 2) as (busy, other):
            await settle(busy)
            await settle(other)
            world.stall_s, world.is_append = 1.2, True
            world.meanwhile = lambda: other.send(SEND)
            busy.send(STALL, SEND)  # one behind it on the same connection
            answers = [(await busy.answers(2))[1], *await other.answers()]
            for code, remark in answers:
                assert code == 2
                assert (remark or "").startswith(f"{PCBUSY}1200ms")
            for _ in range(3):  # until no turn is watched any more
                await asyncio.sleep(0)
            assert not world.watch.in_turn
            world.time.now += 1
            await settle(other)


@on_both_loops
async def test_a_flood_is_slowed_and_the_quiet_producer_beside_it_is_never_refused() -> None:
    """8 MB of one producer wait in the kernel: without shares they would be one turn of 2.5 s."""
    async with serving() as world:
        with peers(world, 2) as (flood, quiet):
            await settle(flood)
            await settle(quiet)
            world.time.now += 60
            frame = encode_frame(Command(code=STALL, version=513, body=bytes(33_000)))
            world.stall_s = 0.01  # each batch of the flood
            left = 250
            unsent = b""
            handled_count = -1

            def fill() -> None:
                nonlocal left, unsent, handled_count
                handled_count += 1
                with suppress(BlockingIOError):
                    while left or unsent:
                        if not unsent:
                            left, unsent = left - 1, frame
                        unsent = unsent[flood._socket.send(unsent) :]

            world.meanwhile = fill
            fill()
            quiet_codes: list[int] = []
            refused_counts = world.guard.refused_counts
            while handled_count + refused_counts[Reason.WAITED] < 250:
                quiet.send(SEND)
                quiet_codes += [code for code, _ in await quiet.answers()]
            assert len(quiet_codes) >= 15, "it was served while the flood lasted"
            assert set(quiet_codes) == {0}
            assert {code for code, _ in await flood.answers(250)} == {0}
            assert world.guard.refused_counts[Reason.WAITED] == 0


@on_both_loops
async def test_requests_that_wait_behind_others_of_their_connection_keep_their_arrival() -> None:
    """More frames than a turn takes: the rest is handled in later turns, each of them short."""
    async with serving() as world:
        with peers(world, 1) as (peer,):
            await settle(peer)
            world.time.now += 60
            world.stall_s = 0.03  # four frames per turn: 120 ms, below the limit of 200 ms
            peer.send(*[STALL] * 8, SEND)
            answers = await peer.answers(9)
            assert [code for code, _ in answers] == [0] * 8 + [2]
            assert (answers[-1][1] or "").startswith(f"{TIMEOUT}240ms")
