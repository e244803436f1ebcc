"""Bodies that are views: they arrive whole, and their leases end on every path, on both loops."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Sequence
from typing import Any

import pytest

from skylark.core.clock import LoopClock
from skylark.net import write_queue
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.link import ByteFilter
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.net.write_queue import (
    COPY_SIZE_MAX,
    JOIN_SIZE_MAX,
    Leased,
    ViewResponse,
    WriteQueue,
    discard,
    view_response,
)
from skylark.wire.command import FLAG_ONEWAY, Command, response_to
from skylark.wire.frame import decode_frame, encode_frame
from tests.support.loops import on_both_loops
from tests.unit.net.echo import EchoService, close_raw, open_raw, read_frame, serving, until

VIEWS = 2001
LARGE = 900_000


class Mapped:
    """A lease on a mapping of its own, which cannot be closed while anybody has a view of it."""

    def __init__(self, *sizes: int) -> None:
        self.mapping = mmap.mmap(-1, sum(sizes))
        self.mapping[:] = bytes(range(251)) * (sum(sizes) // 251) + bytes(sum(sizes) % 251)
        self.content = self.mapping[:]
        whole = memoryview(self.mapping)
        views, start = [], 0
        for size in sizes:
            views.append(whole[start : start + size])
            start += size
        whole.release()
        self.views: Sequence[memoryview] = views
        self.size = sum(sizes)
        self.release_count = 0

    def release(self) -> None:
        self.release_count += 1
        for view in self.views:
            view.release()
        self.views = ()

    @property
    def is_unmapped(self) -> bool:
        """Whether nobody has a view of it any more."""
        try:
            self.mapping.close()
        except BufferError:
            return False
        return True


class ViewService(EchoService):
    """Answers with views of mappings that it remembers."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.given: list[Mapped] = []
        self.dispatcher.add_hot(VIEWS, self.views)

    def views(self, _connection: Connection, request: Command) -> Command:
        leased = Mapped(*self.sizes)
        self.given.append(leased)
        return view_response(request, 0, "FOUND", ext={"a": "b"}, leased=leased)

    @property
    def held_count(self) -> int:
        return sum(not leased.release_count for leased in self.given)


def response(leased: Leased, **fields: Any) -> ViewResponse:
    return view_response(Command(opaque=7), 0, None, ext={}, leased=leased)


class Transport(asyncio.Transport):
    """Takes what is written and writes none of it by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[list[bytes | memoryview]] = []
        self.unsent_size = 0
        self._is_open = False

    def writelines(self, list_of_data: Any) -> None:
        self.lines.append(list(list_of_data))
        self._is_open = not write_queue.WRITELINES_PAUSES  # then the last piece comes by itself

    def write(self, data: Any) -> None:
        if self._is_open:
            self.lines[-1].append(data)
        else:
            self.lines.append([data])
        self._is_open = False

    def get_write_buffer_size(self) -> int:
        return self.unsent_size


# --- the queue itself ---


@pytest.fixture(params=[True, False], ids=["writelines pauses", "it does not"], autouse=True)
def both_kinds_of_asyncio(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param or write_queue.WRITELINES_PAUSES:  # a kind that is wrong cannot be chosen
        monkeypatch.setattr(write_queue, "WRITELINES_PAUSES", request.param)


def test_small_bodies_are_copied_and_large_slices_are_not() -> None:
    outbox, transport = WriteQueue(), Transport()
    small, mixed = Mapped(COPY_SIZE_MAX - 1), Mapped(100, JOIN_SIZE_MAX, 200)
    outbox.add(response(small))
    assert small.release_count == 1
    outbox.add(response(mixed))
    size = outbox.size
    assert outbox.write(transport) == size
    (lines,) = transport.lines
    assert [type(piece) for piece in lines] == [bytes, bytes, bytes, bytes, memoryview, bytes]
    assert sum(map(len, lines)) == size
    assert decode_frame(b"".join(lines[2:])).body == mixed.content
    lines.clear()
    assert (outbox.size, mixed.release_count) == (0, 0)
    outbox.sent()
    outbox.sent()
    assert mixed.release_count == 1
    assert mixed.is_unmapped


def test_small_writes_are_joined() -> None:
    outbox, transport = WriteQueue(), Transport()
    first, second = Mapped(COPY_SIZE_MAX, 300), Mapped(5_000, 10_000)
    outbox.add(response(first))
    outbox.add(response(second))
    size = outbox.size
    assert outbox.write(transport) == size
    assert (first.release_count, second.release_count) == (1, 1)
    ((piece,),) = transport.lines
    end = len(encode_frame(response_to(Command(opaque=7), 0, ext={}, body=first.content)))
    assert decode_frame(bytes(piece[:end])).body == first.content
    assert decode_frame(bytes(piece[end:])).body == second.content
    assert first.is_unmapped


def test_views_are_copied_while_the_peer_lags() -> None:
    outbox, transport = WriteQueue(), Transport()
    first, second = Mapped(JOIN_SIZE_MAX), Mapped(JOIN_SIZE_MAX)
    outbox.add(response(first))
    outbox.write(transport)
    transport.unsent_size = 1
    outbox.add(response(second))
    outbox.write(transport)
    assert (first.release_count, second.release_count) == (0, 1)
    assert decode_frame(b"".join(transport.lines[1])).body == second.content
    outbox.drop()
    assert first.release_count == 1


def test_bytes_for_a_filter_are_copied() -> None:
    outbox, transport, leased = WriteQueue(), Transport(), Mapped(5_000)
    outbox.add(response(leased))
    outbox.write(transport, lambda data: data[::-1])
    assert leased.release_count == 1
    ((piece,),) = transport.lines
    assert decode_frame(bytes(piece[::-1])).body == leased.content


def test_leases_of_dropped_responses_are_released() -> None:
    outbox, leased = WriteQueue(), Mapped(5_000)
    outbox.add(response(leased))
    outbox.drop()
    assert leased.release_count == 1
    assert not outbox
    assert outbox.size == 0


def test_a_response_that_is_kept_copies_its_body() -> None:
    leased = Mapped(5_000)
    kept = response(leased)
    kept.copy_body()
    kept.copy_body()
    assert leased.release_count == 1
    assert kept.body == leased.content
    outbox, transport = WriteQueue(), Transport()
    for _ in range(2):
        outbox.add(kept)
    outbox.write(transport)
    assert b"".join(transport.lines[0]) == encode_frame(kept) * 2
    discard(kept)
    discard(None)
    discard(Command())


# --- on connections ---


@on_both_loops
async def test_views_arrive_whole_and_are_released() -> None:
    service = ViewService(1_000, LARGE, 3_000)
    async with serving(service) as (_, address):
        reader, writer = await open_raw(address)
        writer.write(encode_frame(Command(code=VIEWS, opaque=1)) * 5)
        for _ in range(5):
            answer = await read_frame(reader)
            assert (answer.code, answer.remark, answer.ext) == (0, "FOUND", {"a": "b"})
            assert answer.body == service.given[0].content
        await until(lambda: service.held_count == 0, "given back")
        assert [leased.release_count for leased in service.given] == [1] * 5
        await until(lambda: all(leased.is_unmapped for leased in service.given), "unmapped")
        await close_raw(writer)


@on_both_loops
@pytest.mark.parametrize("how", ["abort", "close", "peer reads", "peer goes"])
async def test_a_peer_that_does_not_read_keeps_its_lease_until_the_end(how: str) -> None:
    # More than the kernel takes: the views stay with the transport.
    service = ViewService(8_000_000)
    async with serving(service) as (server, address):
        reader, writer = await open_raw(address)
        await until(lambda: len(server.connections) == 1, "accepted")
        (connection,) = server.connections
        writer.write(encode_frame(Command(code=VIEWS)) * 3)
        await until(lambda: connection.write_paused, "more waits than may")
        assert len(service.given) == 1, "nothing more is handled for it"
        assert service.held_count == 1
        assert server.held_size() > 100_000
        if how == "abort":
            connection.abort()
        elif how == "close":
            connection.close()
            assert service.held_count == 1, "its last answer may still be read"
            connection.abort()
        elif how == "peer goes":
            writer.transport.abort()
        else:
            bodies = [(await read_frame(reader)).body for _ in range(3)]
            assert bodies == [leased.content for leased in service.given]
        await until(lambda: service.held_count == 0, "given back")
        await until(lambda: all(leased.is_unmapped for leased in service.given), "unmapped")
        if how == "peer reads":
            await until(lambda: server.held_size() == 0, "nothing is held")
        await close_raw(writer)
    assert server.held_size() == 0


@on_both_loops
async def test_leases_of_answers_that_are_not_sent_end_at_once() -> None:
    service = ViewService(5_000)
    async with serving(service) as (server, address):
        reader, writer = await open_raw(address)
        writer.write(encode_frame(Command(code=VIEWS, flag=FLAG_ONEWAY)))
        await until(lambda: len(service.given) == 1, "handled")
        assert service.held_count == 0
        (connection,) = server.connections

        class Replacing:
            def before(self, _connection: Connection, _request: Command) -> None:
                return None

            def after(
                self, _connection: Connection, request: Command, _response: Command | None
            ) -> Command:
                return response_to(request, 5)

        service.dispatcher.interceptors = (Replacing(),)
        writer.write(encode_frame(Command(code=VIEWS)))
        assert (await read_frame(reader)).code == 5
        assert (len(service.given), service.held_count) == (2, 0)
        service.dispatcher.interceptors = ()
        bad = Mapped(5_000)
        too_late = Mapped(5_000)
        answer = response(bad)
        answer.remark = "\ud800"
        connection.reply(Command(opaque=3), answer)
        assert (await read_frame(reader)).code == 1
        assert bad.release_count == 1
        connection.close()
        connection.reply(Command(), response(too_late))
        assert too_late.release_count == 1
        await close_raw(writer)


class Plain(ByteFilter):
    def received(self, data: bytes) -> tuple[bytes, bytes]:
        return data, b""

    def sending(self, data: bytes) -> bytes:
        return data


@on_both_loops
async def test_views_through_a_filter() -> None:
    service = ViewService(5_000)
    server = RemotingServer(
        service.dispatcher,
        TcpNetwork(),
        LoopClock(),
        first_bytes=lambda _connection, _data: Plain(),
    )
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await open_raw(f"{host}:{port}")
    writer.write(encode_frame(Command(code=VIEWS)))
    assert (await read_frame(reader)).body == service.given[0].content
    assert service.held_count == 0
    await close_raw(writer)
    await server.stop()


@on_both_loops
async def test_unsent_bytes_are_counted() -> None:
    body = bytes(100_000)
    service = EchoService()
    parked: list[tuple[Connection, Command]] = []

    def park(connection: Connection, request: Command) -> Any:
        parked.append((connection, request))
        return LATER

    service.dispatcher.add_hot(VIEWS, park)
    async with serving(service) as (server, address):
        reader, writer = await open_raw(address)
        assert server.held_size() == 0
        frame = encode_frame(Command(code=VIEWS, body=body))
        writer.write(frame[:-1])
        await until(lambda: server.held_size() >= len(frame) - 1, "of a frame that is not complete")
        writer.write(frame[-1:])
        await until(lambda: len(parked) == 1, "parked")
        assert server.held_size() == len(body)
        connection, request = parked[0]
        connection.answer(request, response_to(request, 0, body=body))
        assert (await read_frame(reader)).body == body
        await until(lambda: server.held_size() == 0, "all is sent")
        writer.write(frame)
        await until(lambda: len(parked) == 2, "parked")
        await close_raw(writer)
        await until(lambda: not server.connections, "closed")
        assert server.held_size() == len(body), "the handler still has it"
        connection.answer(parked[1][1], None)
        assert server.held_size() == 0


@on_both_loops
async def test_bulk_data_waits_until_the_peer_reads() -> None:
    sent: list[int] = []
    limits = NetLimits(write_buffer_high=64 * 1024)
    dispatcher = Dispatcher()
    server = RemotingServer(dispatcher, TcpNetwork(), LoopClock(), limits=limits)
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await open_raw(f"{host}:{port}")
    await until(lambda: len(server.connections) == 1, "accepted")
    (connection,) = server.connections

    def send(number: int) -> None:
        sent.append(number)
        if not connection.is_closing:
            connection.oneway(Command(code=number, body=bytes(15_000_000)))

    send(0)
    await until(lambda: connection.write_paused, "more waits than may")
    for number in range(1, 4):
        connection.call_when_writable(lambda number=number: send(number))  # type: ignore[misc]
    assert (await read_frame(reader)).code == 0
    assert (await read_frame(reader)).code == 1
    await until(lambda: sent == [0, 1, 2], "the next as soon as all is read")
    connection.abort()
    await until(lambda: sent == [0, 1, 2, 3], "whoever waits hears of the end")
    await close_raw(writer)
    await server.stop()
