"""Responses to pulls as views of the log, clients that do not read them, and late responses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.overload.overload_guard import Reason
from skylark.broker.pull.held_request_runner import HeldRequest
from skylark.net.connection import Connection
from skylark.net.write_queue import WriteQueue
from skylark.store.message_reader import GetResult
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import encode_frame
from tests.unit.broker.stored import OWN, SUSPEND, Stored, bodies_of, stored

# --- answers as views of the log ---


def lease_count(world: Stored) -> int:
    return sum(file.leases for file in world.features.store.log.files.files)


async def test_large_responses_are_views_that_are_released(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        bodies = [bytes([number]) * 15_000 for number in range(10)]
        for body in bodies:
            await world.send(body=body)
        results: list[GetResult] = []
        leases: list[int] = []
        read = world.features.store.reader.get

        def get(*args: Any, **options: Any) -> GetResult:
            results.append(read(*args, **options))
            leases.append(lease_count(world))
            return results[-1]

        world.features.store.reader.get = get  # type: ignore[method-assign]
        assert bodies_of(await world.pull()) == bodies
        (result,) = results
        assert (result.size > 150_000, result.views, leases) == (True, (), [1])
        assert lease_count(world) == 0


class Deaf(asyncio.Protocol):
    """A client that sends and never reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


async def deaf(world: Stored) -> asyncio.Transport:
    host, port = world.broker.address
    transport, _ = await world.network.connect(Deaf, host, port, timeout_s=1, clock=world.clock)
    return transport


def pull_frame(world: Stored, opaque: int, offset: int = 0, **changes: Any) -> bytes:
    ext = world.pull_request(offset, **changes)
    return encode_frame(Command(code=RequestCode.PULL_MESSAGE, opaque=opaque, ext=ext))


async def test_pulls_of_a_client_that_never_reads_are_not_run(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 40)
        await world.send(body=bytes(2_000_000))
        held = 30
        client = await deaf(world)
        client.write(
            b"".join(
                pull_frame(world, n, queueId=n, sysFlag=OWN | SUSPEND) for n in range(1, held + 1)
            )
        )
        await world.clock.drain()
        assert len(world.features.pull.service.held) == held
        client.write(pull_frame(world, 100))  # two megabytes that it leaves unread
        await world.clock.drain()
        connection = next(c for c in world.features.endpoint.server.connections if c.write_paused)
        assert lease_count(world) == 1
        assert 1_900_000 < world.features.endpoint.held_size() < 2_100_000
        for queue_id in range(1, held + 1):
            await world.send(queue_id=queue_id, body=bytes(2_000_000))
        await world.clock.drain()
        # All are woken, none has run: sixty megabytes would wait for a client that does not read.
        assert len(world.features.pull.service.held) == 0
        assert 1_900_000 < world.features.endpoint.held_size() < 2_100_000
        assert bodies_of(await world.pull()) == [bytes(2_000_000)]  # others are served
        client.resume_reading()
        await world.clock.drain()
        assert connection.bytes_out > (held + 1) * 2_000_000
        assert lease_count(world) == 0
        assert world.features.endpoint.held_size() == 0


@pytest.mark.parametrize("how", ["goes", "is idle", "broker stops"])
async def test_the_lease_of_a_client_that_never_reads_ends_with_it(
    tmp_path: Path, how: str
) -> None:
    async with stored(tmp_path) as world:
        await world.send(body=bytes(2_000_000))
        client = await deaf(world)
        client.write(pull_frame(world, 1))
        await world.clock.drain()
        files = world.features.store.log.files
        (file,) = files.files
        assert lease_count(world) == 1
        if how == "goes":
            client.abort()
        elif how == "is idle":
            await world.clock.advance(seconds=300, clients_alive=False)
        else:
            stopping = asyncio.create_task(world.broker.stop())
            await world.clock.advance(seconds=20)
            await stopping
        await world.clock.drain()
        assert file.leases == 0


async def test_a_store_that_closes_leaves_leased_bytes_readable(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(body=b"x" * 2_000_000)
        client = await deaf(world)
        client.write(pull_frame(world, 1))
        await world.clock.drain()
        (file,) = world.features.store.log.files.files
        result = world.features.store.reader.get("T", 0, 0, 1)
        stopping = asyncio.create_task(world.broker.stop())
        await world.clock.advance(seconds=20)
        await stopping
        assert result.views[0][-1_000:].tobytes().count(b"x") > 0
        assert file.leases == 1
        result.release()
        assert file.leases == 0


async def test_sends_and_pulls_are_refused_beyond_the_limit_of_held_bytes(tmp_path: Path) -> None:
    async with stored(tmp_path, heldSizeMax="1000000") as world:
        await world.send(body=bytes(2_000_000))
        client = await deaf(world)
        client.write(pull_frame(world, 1))
        await world.clock.advance(ms=200)  # bytes are added up a few times a second
        for answer in (await world.send(), await world.pull()):
            assert answer.code == 2
            assert (answer.remark or "").startswith(
                "[OVERLOAD]system busy, start flow control for a while: "
            )
        assert (await world.call(RequestCode.GET_MAX_OFFSET, world.pull_request())).code == 0
        assert world.features.overload.guard.refused_counts[Reason.OUTSTANDING_BYTES] == 2
        client.abort()
        await world.clock.advance(ms=200)
        assert (await world.send()).code == 0


# --- waking ---


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_producers_get_their_responses_before_pulls_wake(tmp_path: Path, flush: str) -> None:
    events: list[str] = []
    async with stored(tmp_path, flushDiskType=flush) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        pulls, (consumer,) = (
            world.features.pull.service.waiting,
            world.features.endpoint.server.connections,
        )
        run, sender = pulls._run_again, await deaf(world)
        await world.clock.drain()
        (producer,) = world.features.endpoint.server.connections - {consumer}
        write = producer._outbound.queue.write

        def noted(*args: Any) -> int:
            events.append("answers")
            return write(*args)

        def noted_run(pull: HeldRequest) -> None:
            events.append("wake")
            run(pull)

        producer._outbound.queue = Wrapped(producer._outbound.queue, noted)  # type: ignore[assignment]
        pulls._run_again = noted_run  # type: ignore[method-assign,assignment]
        fields = {
            "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
            "h": "0", "i": "",
        }  # fmt: skip
        frame = encode_frame(Command(code=310, ext=fields, body=b"x"))
        sender.write(frame * 20)
        await held
        assert events[-1] == "wake"
        assert set(events[:-1]) == {"answers"}


class Wrapped:
    """A write queue with a replaced ``write``."""

    def __init__(self, queue: WriteQueue, write: Any) -> None:
        self._queue = queue
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def __bool__(self) -> bool:
        return bool(self._queue)


async def test_many_pulls_are_woken_in_several_turns(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        tasks = [await world.begin_pull() for _ in range(200)]
        ran: list[int] = []
        run_some = world.features.pull.service.waiting._run_woken

        def noted() -> None:
            before = len(world.features.pull.service.waiting._woken)
            run_some()
            ran.append(before - len(world.features.pull.service.waiting._woken))

        world.features.pull.service.waiting._run_woken = noted  # type: ignore[method-assign]
        await world.send()
        assert [bodies_of(await task) for task in tasks] == [[b"hello"]] * 200
        assert ran == [64, 64, 64, 8]


# --- interceptors ---


class Ends:
    """Notes the end of each request."""

    def __init__(self) -> None:
        self.begun_count = 0
        self.codes: list[tuple[int, int | None]] = []

    def before(self, _connection: Connection, _request: Command) -> None:
        self.begun_count += 1

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        self.codes.append((request.code, None if response is None else response.code))
        return response


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_interceptors_see_the_end_of_answers_that_come_late(
    tmp_path: Path, flush: str
) -> None:
    async with stored(tmp_path, flushDiskType=flush) as world:
        ends = Ends()
        dispatcher = world.features.endpoint.server.dispatcher
        dispatcher.interceptors = (ends, *dispatcher.interceptors)
        await world.send()  # waits for the topic as well, which is new
        await world.send()
        assert ends.codes == [(310, 0)] * 2
        held = [await world.begin_pull(2), await world.begin_pull(0, queueId=1)]
        assert len(ends.codes) == 2
        await world.send()
        assert (await held[0]).code == 0
        assert sorted(ends.codes[2:]) == [(11, 0), (310, 0)]
        world.network.cut_all()
        await world.clock.drain()
        assert ends.codes[4:] == [(11, None)]
        assert ends.begun_count == len(ends.codes) == 5
        with pytest.raises(Exception, match="closed"):
            await held[1]
