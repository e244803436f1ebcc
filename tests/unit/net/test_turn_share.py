"""One connection must not starve the others: the share of a connection in a turn of the loop.

A flood is a connection that always has more to deliver; the quiet one always has one request ready.
Frames are counted between two services of the quiet connection, never wall time.

Three kinds of networks deliver the bytes: one that reads like libuv (up to 32 times from one socket
in one turn), the memory network, and real sockets on both loops.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import pytest

from skylark.core.clock import LoopClock
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer, Dispatcher
from skylark.net.inbound import Owner
from skylark.net.limits import NetLimits
from skylark.net.link import ByteFilter
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.net.turn_share import ReadPacer
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import FLAG_RESPONSE, Command, response_to
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.support.loops import on_both_loops
from tests.support.turn_watch import CountingWatch

FLOOD, QUIET, COLD = 1, 2, 3
READS_PER_TURN = 32  # of libuv
READ_SIZE = 256 * 1024  # of uvloop


def flood_frames(count: int, size: int = 0) -> bytes:
    frames = (Command(code=FLOOD, opaque=n, body=bytes(size)) for n in range(count))
    return b"".join(map(encode_frame, frames))


QUIET_FRAME = encode_frame(Command(code=QUIET))


class Mirrored(ByteFilter):
    """Stands for TLS: other bytes on the socket than in the frames."""

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        return mirrored(data), b""

    def sending(self, data: bytes) -> bytes:
        return mirrored(data)


def mirrored(data: bytes) -> bytes:
    return data.translate(bytes(255 - n for n in range(256)))


async def turns_until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn, without waiting for anything."""
    async with LoopClock().timeout(60):
        while not is_so():  # noqa: ASYNC110 - the turns of the loop are what is counted
            await asyncio.sleep(0)


class Service:
    """Notes what was handled, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.on_quiet: Callable[[], None] = lambda: None
        self.on_flood: Callable[[], None] = lambda: None
        self.reply_size = 0
        self.dispatcher = Dispatcher()
        self.dispatcher.add_hot(FLOOD, self._flood)
        self.dispatcher.add_hot(QUIET, self._quiet)
        self.dispatcher.add_cold(COLD, self._cold)

    def _flood(self, _connection: Connection, request: Command) -> Answer:
        self.seen.append((FLOOD, request.opaque))
        self.on_flood()
        return response_to(request, 0, body=bytes(self.reply_size))

    def _quiet(self, _connection: Connection, request: Command) -> Answer:
        self.seen.append((QUIET, request.opaque))
        self.on_quiet()
        return response_to(request, 0)

    async def _cold(self, _connection: Connection, request: Command) -> Command:
        self.seen.append((FLOOD, request.opaque))
        return response_to(request, 0)

    @property
    def flood_opaques(self) -> list[int]:
        return [opaque for code, opaque in self.seen if code == FLOOD]

    def between_services(self) -> list[int]:
        """Flood frames before each service of the quiet connection, while the flood lasted."""
        counts, count = [], 0
        for code, _ in self.seen:
            if code == QUIET:
                counts.append(count)
                count = 0
            else:
                count += 1
        return counts


# ---- a poll like libuv's -------------------------------------------------------------------------


class Socket(asyncio.Transport):
    """A transport whose "kernel" holds all that its peer will ever send."""

    def __init__(self, name: str, port: int, unread: bytes) -> None:
        super().__init__({"peername": (name, port), "sockname": ("here", 1)})
        self.unread = unread
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


class GreedyPoll:
    """Reads from each socket as long as it can, or 32 times, before it looks at the next."""

    def __init__(
        self, service: Service, limits: NetLimits, cut: Callable[[], int], *, filtered: bool = False
    ) -> None:
        self.clock = VirtualClock()
        self._service = service
        self._limits = limits
        self._cut = cut
        self._owner = Owner(first_bytes=lambda _c, _d: Mirrored()) if filtered else Owner()
        self._encode = mirrored if filtered else bytes
        self._sockets: list[tuple[Socket, Connection]] = []
        service.on_quiet = self._next_quiet

    def connect(self, unread: bytes) -> Socket:
        transport = Socket("peer", len(self._sockets), self._encode(unread))
        connection = Connection(
            self._service.dispatcher, self.clock, self._limits, owner=self._owner
        )
        connection.connection_made(transport)
        self._sockets.append((transport, connection))
        return transport

    def _next_quiet(self) -> None:
        self._sockets[-1][0].unread += self._encode(QUIET_FRAME)

    async def run_until_flood_is_read(self) -> None:
        flood, _ = self._sockets[0]
        while flood.unread or not flood.reading:
            for transport, connection in self._sockets:
                left = len(transport.unread)
                for _ in range(READS_PER_TURN):
                    if not (transport.reading and left):
                        break
                    size = min(left, self._cut())
                    chunk, transport.unread = transport.unread[:size], transport.unread[size:]
                    connection.data_received(chunk)
                    left -= size
            await asyncio.sleep(0)
        self._service.on_quiet = lambda: None
        await self.clock.drain()
        for _, connection in self._sockets:
            connection.connection_lost(None)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("size", [0, 33_000, 200_000])
@pytest.mark.parametrize("read_size", [1_000, 65_536, 65_537, READ_SIZE])
async def test_a_quiet_connection_is_served_after_each_share_of_a_flood(
    read_size: int, size: int, filtered: bool
) -> None:
    service, limits = Service(), NetLimits()
    poll = GreedyPoll(service, limits, lambda: read_size, filtered=filtered)
    frame_size = len(flood_frames(1, size))
    count = 4_000_000 // frame_size if size else 5_000
    poll.connect(flood_frames(count, size))
    poll.connect(QUIET_FRAME)
    await poll.run_until_flood_is_read()
    assert service.flood_opaques == list(range(count)), "the order of arrival"
    # What was read is not cut to fit the share, and a frame may have begun in an earlier one.
    bytes_max = 2 * limits.bytes_per_turn_max // frame_size + 1
    frames_max = min(bytes_max, 2 * limits.frames_per_turn_max)
    assert max(service.between_services()) <= frames_max
    assert len(service.between_services()) >= count // frames_max


@pytest.mark.parametrize("seed", range(15))
async def test_a_quiet_connection_is_served_for_any_split_of_the_flood(seed: int) -> None:
    rng = random.Random(seed)
    limits = NetLimits(frames_per_turn_max=8, bytes_per_turn_max=2_000)
    service = Service()
    poll = GreedyPoll(
        service, limits, lambda: rng.choice([1, 2, rng.randint(1, 100), rng.randint(1, 9_000)])
    )
    frames = [
        encode_frame(Command(code=FLOOD, opaque=n, body=bytes(rng.randint(0, 400))))
        for n in range(400)
    ]
    poll.connect(b"".join(frames))
    poll.connect(QUIET_FRAME)
    await poll.run_until_flood_is_read()
    assert service.flood_opaques == list(range(400))
    assert max(service.between_services()) < 2 * 8


async def test_time_ends_a_turn_when_requests_cost_much() -> None:
    service = Service()
    poll = GreedyPoll(service, NetLimits(seconds_per_turn_max=0.002), lambda: READ_SIZE)
    now = poll.clock.monotonic()
    costs = iter([0.0005] * 40 + [0.1] * 20)

    def work() -> None:
        nonlocal now
        now += next(costs)

    service.on_flood = work
    poll.clock.monotonic = lambda: now  # type: ignore[method-assign]
    poll.connect(flood_frames(60))
    poll.connect(QUIET_FRAME)
    await poll.run_until_flood_is_read()
    counts = service.between_services()
    assert max(counts) <= 5
    assert counts[-18:].count(1) >= 17, "one at a time when each is over the limit alone"
    assert service.flood_opaques == list(range(60))


async def test_coroutine_handlers_are_started_in_shares() -> None:
    service = Service()
    poll = GreedyPoll(service, NetLimits(tasks_per_turn_max=4), lambda: READ_SIZE)
    frames = (encode_frame(Command(code=COLD, opaque=n)) for n in range(100))
    poll.connect(b"".join(frames))
    poll.connect(QUIET_FRAME)
    await poll.run_until_flood_is_read()
    assert service.flood_opaques == list(range(100))
    assert max(service.between_services()) <= 4
    assert len(service.between_services()) >= 20


async def test_a_connection_that_catches_up_gets_its_replies_in_shares() -> None:
    service = Service()
    service.reply_size = 100_000
    poll = GreedyPoll(service, NetLimits(seconds_per_turn_max=60.0), lambda: READ_SIZE)
    poll.connect(flood_frames(500))
    poll.connect(QUIET_FRAME)
    await poll.run_until_flood_is_read()
    assert service.flood_opaques == list(range(500))
    assert max(service.between_services()) == 6  # 512 KB, and the one that reached it


async def test_several_floods_get_a_share_each() -> None:
    service = Service()
    poll = GreedyPoll(service, NetLimits(), lambda: READ_SIZE)
    for _ in range(4):
        poll.connect(flood_frames(60, 33_000))
    poll.connect(QUIET_FRAME)
    await poll.run_until_flood_is_read()
    assert max(service.between_services()) <= 4 * 4


async def test_bytes_beyond_the_share_count_as_held_and_arrive_when_they_are_read() -> None:
    clock, service = VirtualClock(), Service()
    arrived: list[float] = []
    holders: set[Connection] = set()
    owner = Owner(watch=CountingWatch(), holders=holders)
    limits = NetLimits(bytes_per_turn_max=1_000)
    connection = Connection(service.dispatcher, clock, limits, owner=owner)
    service.on_flood = lambda: arrived.append(connection.arrived_at)
    transport = Socket("peer", 1, b"")
    connection.connection_made(transport)
    flood = flood_frames(10, 500)
    connection.data_received(flood)
    was_reading = transport.reading
    assert connection in holders
    assert connection.held_size >= len(flood) - 1_000
    await clock.drain()
    assert (was_reading, transport.reading) == (False, True)
    assert connection.held_size == 0
    assert service.flood_opaques == list(range(10))
    assert arrived == sorted(arrived)
    assert len(set(arrived)) > 3
    connection.connection_lost(None)


async def test_a_connection_that_is_lost_leaves_the_rest_of_its_bytes() -> None:
    clock, service = VirtualClock(), Service()
    connection = Connection(service.dispatcher, clock, NetLimits())
    connection.connection_made(Socket("peer", 1, b""))
    connection.data_received(flood_frames(10, 33_000))
    handled = len(service.seen)
    assert handled < 10
    connection.connection_lost(None)
    await clock.drain()
    assert len(service.seen) == handled
    assert connection.held_size == 0


# ---- the memory network --------------------------------------------------------------------------


class Peer(asyncio.Protocol):
    """A client that keeps its answers."""

    def __init__(self) -> None:
        self.answers: list[Command] = []
        self._frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        self.answers += self._frames.feed(data)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [0, 3_000, 33_000])
async def test_a_quiet_connection_is_served_on_the_memory_network(seed: int, size: int) -> None:
    clock, rng = VirtualClock(), random.Random(seed)
    plan = FaultPlan(seed).chance("memory.deliver", 0.3, action=FaultAction.SPLIT)
    network = MemoryNetwork(
        plan,
        clock=clock,
        window_size=2 << 20,
        chunk_size=rng.choice([65_536, 262_144, 1 << 20]),
        reads_per_turn=READS_PER_TURN,
    )
    service, limits = Service(), NetLimits()
    server = RemotingServer(service.dispatcher, network, clock, limits=limits)
    await server.start("127.0.0.1", 9876)
    transports = []
    for _ in range(2):
        transport, _peer = await network.connect(Peer, "127.0.0.1", 9876, timeout_s=1, clock=clock)
        transports.append(transport)
    flood, quiet = transports
    service.on_quiet = lambda: quiet.write(QUIET_FRAME)
    frame_size = len(flood_frames(1, size))
    count = 1_500_000 // frame_size if size else 3_000
    flood.write(flood_frames(count, size))
    quiet.write(QUIET_FRAME)
    await turns_until(lambda: (FLOOD, count - 1) in service.seen)
    service.on_quiet = lambda: None
    await clock.drain()
    # Its frame and its answer take a turn each way, and a split one more.
    turns = 6
    share = min(limits.frames_per_turn_max, 2 * limits.bytes_per_turn_max // frame_size + 1)
    counts = service.between_services()
    assert len(counts) > count // (turns * share)
    assert max(counts[:-1]) <= turns * share
    for transport in transports:
        transport.close()
    await clock.drain()
    await server.stop()


# ---- real sockets --------------------------------------------------------------------------------


@contextmanager
def raw_socket(address: tuple[str, int]) -> Iterator[socket.socket]:
    """What it sends is in the kernel when ``send`` returns; nothing of it needs the loop."""
    with socket.create_connection(address) as raw:
        raw.setblocking(False)
        yield raw


class RawFlood:
    """Keeps the kernel full of the frames of one connection, and drops the answers."""

    def __init__(self, raw: socket.socket, frames: bytes, count: int) -> None:
        self._raw = raw
        self._frames = frames
        self._left = count
        self._unsent = b""

    @property
    def is_over(self) -> bool:
        return not (self._left or self._unsent)

    def fill(self) -> None:
        try:
            while self._raw.recv(1 << 20):
                pass
        except BlockingIOError:
            pass
        try:
            while not self.is_over:
                if not self._unsent:
                    self._left -= 1
                    self._unsent = self._frames
                self._unsent = self._unsent[self._raw.send(self._unsent) :]
        except BlockingIOError:
            pass


@asynccontextmanager
async def serving(service: Service, **options: Any) -> AsyncIterator[tuple[str, int]]:
    server = RemotingServer(service.dispatcher, TcpNetwork(), LoopClock(), **options)
    address = await server.start("127.0.0.1", 0)
    try:
        yield address
    finally:
        await server.stop()


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("size", [100, 33_000])
@on_both_loops
async def test_a_flood_gets_no_more_than_its_share_between_two_services(
    size: int, filtered: bool
) -> None:
    service, limits = Service(), NetLimits(seconds_per_turn_max=60.0)
    encode = mirrored if filtered else bytes
    options: dict[str, Any] = {"limits": limits}
    if filtered:
        options["first_bytes"] = lambda _connection, _data: Mirrored()
    async with serving(service, **options) as address:
        with raw_socket(address) as quiet, raw_socket(address) as busy:
            batch = flood_frames(1_000_000 // (size + 100), size)
            flood = RawFlood(busy, encode(batch), 8)

            def serve_again() -> None:
                flood.fill()
                if not flood.is_over:
                    quiet.send(encode(QUIET_FRAME))

            service.on_quiet = serve_again
            flood.fill()
            quiet.send(encode(QUIET_FRAME))
            await turns_until(lambda: flood.is_over)
            counts = service.between_services()
    frame_size = len(flood_frames(1, size))
    share = min(limits.frames_per_turn_max, 2 * limits.bytes_per_turn_max // frame_size + 1)
    # The first service comes when both connections are accepted.
    assert len(counts) > 20
    assert max(counts[1:]) <= 2 * share


@on_both_loops
async def test_replies_to_one_busy_connection_do_not_hold_up_those_of_others() -> None:
    """The own client: heartbeats and other brokers' answers are not behind one broker's flood."""
    with (
        socket.create_server(("127.0.0.1", 0)) as flood,
        socket.create_server(("127.0.0.1", 0)) as quiet,
    ):
        limits = NetLimits()
        remoting = RemotingClient(TcpNetwork(), LoopClock(), limits=limits)
        loop, peers = asyncio.get_running_loop(), []
        done: list[int] = []
        calls = []

        def note(port: int, _task: asyncio.Future[Command]) -> None:
            done.append(port)

        for listening, count in ((flood, 300), (quiet, 1)):
            host, port = listening.getsockname()
            for _ in range(count):
                call = remoting.call(f"{host}:{port}", Command(code=FLOOD), 30)
                task = asyncio.ensure_future(call)
                task.add_done_callback(partial(note, port))
                calls.append(task)
            listening.setblocking(False)
            peer, _ = await loop.sock_accept(listening)
            requests = FrameBuffer()
            found: list[Command] = []
            while len(found) < count:
                found += requests.feed(await loop.sock_recv(peer, 1 << 20))
            peers.append((peer, found))
        for peer, requests_found in peers:
            peer.setblocking(True)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
            peer.settimeout(5)
            answers = (
                encode_frame(Command(opaque=each.opaque, flag=FLAG_RESPONSE, body=bytes(8_000)))
                for each in requests_found
            )
            peer.sendall(b"".join(answers))  # without a turn of the loop: all is in the kernel
        await asyncio.gather(*calls)
        quiet_port = quiet.getsockname()[1]
        # An answer wakes its caller in the turn after: two turns of 64 KB and what was begun.
        assert done.index(quiet_port) <= 3 * (limits.bytes_per_turn_max // 8_000 + 1)
        assert len(done) == 301
        for peer, _ in peers:
            peer.close()
        await remoting.close()


# ---- ReadPacer -----------------------------------------------------------------------------------


class Paced(asyncio.Protocol):
    """Bytes without frames, as replication has them."""

    def __init__(
        self, sizes: list[tuple[str, int]], on_quiet: Callable[[], None], ended: list[str]
    ) -> None:
        self._ended = ended
        self._sizes = sizes
        self._on_quiet = on_quiet
        self._pacer = ReadPacer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.append("lost")

    def data_received(self, data: bytes) -> None:
        is_quiet = data[:1] == b"q"
        self._sizes.append(("quiet" if is_quiet else "flood", len(data)))
        if is_quiet:
            self._on_quiet()
        self._pacer.delivered(self._transport, len(data))


@on_both_loops
async def test_a_paced_reader_gets_one_read_between_two_services_of_another() -> None:
    sizes: list[tuple[str, int]] = []
    again: list[Callable[[], None]] = []
    ended: list[str] = []
    listener = await TcpNetwork().listen(
        lambda: Paced(sizes, lambda: again[0](), ended), "127.0.0.1", 0
    )
    with raw_socket(listener.addresses[0]) as quiet, raw_socket(listener.addresses[0]) as busy:
        flood = RawFlood(busy, bytes(1 << 20), 30)

        def serve_again() -> None:
            flood.fill()
            if not flood.is_over:
                quiet.send(b"q")

        again.append(serve_again)
        flood.fill()
        quiet.send(b"q")
        await turns_until(lambda: flood.is_over)
    between, size = [], 0
    for name, count in sizes:
        if name == "quiet":
            between.append(size)
            size = 0
        else:
            size += count
    assert len(between) > 20
    assert max(between[1:]) <= 2 * READ_SIZE
    listener.close()
    await listener.wait_closed()
    await turns_until(lambda: ended == ["lost", "lost"])


async def test_a_pacer_leaves_a_closing_transport_alone() -> None:
    class Closing(Socket):
        def is_closing(self) -> bool:
            return True

    transport = Closing("peer", 1, b"")
    ReadPacer(10).delivered(transport, 11)
    assert transport.reading
