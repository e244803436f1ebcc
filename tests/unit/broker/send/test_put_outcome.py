"""Responses while topics cannot be saved: each is sent, none waits for a failing disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.wire.codes import RequestCode
from skylark.wire.frame import encode_frame
from tests.unit.broker.send.send_runs import connect, prepare, request, send_together
from tests.unit.broker.stored import Stored, stored


class Disk:
    """Where the tables go: it takes its time, and may fail."""

    def __init__(self, world: Stored) -> None:
        self.is_free = asyncio.Event()
        self.error: Exception | None = None
        self.write_count = 0
        world.features.saver._in_thread = self._write

    async def _write(self, function: Callable[..., None], /, *args: Any) -> None:
        await self.is_free.wait()
        self.write_count += 1
        if self.error is not None:
            raise self.error
        function(*args)


@asynccontextmanager
async def stored_with_disk(root: Path) -> AsyncIterator[tuple[Stored, Disk]]:
    """At the end the disk takes everything, also for a test that failed."""
    async with stored(root) as world:
        prepare(world)
        await world.clock.drain()
        disk = Disk(world)
        try:
            yield world, disk
        finally:
            disk.error = None
            disk.is_free.set()
            await world.clock.advance(2)


async def test_after_a_failed_save_responses_do_not_wait(tmp_path: Path) -> None:
    async with stored_with_disk(tmp_path) as (world, disk):
        disk.is_free.set()
        disk.error = OSError("the disk of the settings is full")
        await send_together(world, [request(0, "New")])
        assert world.features.groups.saved.topics.failed
        for topic in ("T", "New", "Newer"):
            connection, producer = await connect(world)
            plain, other = request(1, topic), request(2, topic, properties="TAGS\x01A\x02")
            connection.data_received(encode_frame(plain) + encode_frame(other))
            assert connection.held_size == 0, "nothing waits"
            await world.clock.drain()
            assert producer.codes == {1: 0, 2: 0}
        await world.features.puts.durability.topics_saved()
        assert disk.write_count == 1, "no second has passed"
        disk.error = None
        await world.clock.advance(1)
        disk.is_free.clear()
        producer = await send_together(world, [request(3, "Newest")])
        assert producer.codes == {}, "it is worth waiting again"
        disk.is_free.set()
        await world.clock.drain()
        assert producer.codes == {3: 0}
        assert b"Newest" in (tmp_path / "store/config/topics.json").read_bytes()


async def test_an_unexpected_error_of_the_save_holds_no_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored_with_disk(tmp_path) as (world, disk):
        disk.error = ZeroDivisionError("a defect")
        connection, producer = await connect(world)
        with caplog.at_level(logging.ERROR):
            connection.data_received(b"".join(encode_frame(request(n, "New")) for n in range(3)))
            await world.clock.drain()
            assert producer.codes == {}
            assert connection.held_size > 0
            disk.is_free.set()
            await world.clock.drain()
        assert producer.codes == {0: 0, 1: 0, 2: 0}
        assert connection.held_size == 0
        assert [
            record.getMessage().split(":")[0]
            for record in caplog.records
            if record.levelno >= logging.ERROR
        ] == ["topics.json cannot be saved, changes hold until restart"]
        disk.error = None


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_cancelled_wait_holds_no_response(tmp_path: Path, has_begun: bool) -> None:
    """As at the end of a loop: also a task that has not begun yet. Nothing is acknowledged."""
    async with stored_with_disk(tmp_path) as (world, disk):
        connection, producer = await connect(world)
        connection.data_received(encode_frame(request(0, "New")))
        waiting = world.features.puts.durability._saving
        assert waiting is not None
        if has_begun:
            await world.clock.drain()
        waiting.cancel()
        await world.clock.drain()
        assert waiting.cancelled()
        assert (connection.held_size, producer.codes) == (0, {0: 14})
        assert not disk.is_free.is_set()


async def test_a_send_back_does_not_wait_for_a_failed_save(tmp_path: Path) -> None:
    async with stored_with_disk(tmp_path) as (world, disk):
        disk.is_free.set()
        assert (await world.send()).code == 0
        disk.error = OSError("no")
        ext = {"group": "G", "offset": "0", "delayLevel": "0", "originTopic": "T"}
        sending = asyncio.create_task(world.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
        await world.clock.drain()
        assert world.features.groups.saved.topics.failed
        assert sending.done()
        assert (await sending).code == 0
