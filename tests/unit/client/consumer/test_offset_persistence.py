"""Offsets on their way to brokers: the first goes alone, the last are waited for, none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.classic_pull_consumer import PullConsumer
from skylark.client.consumer.offset_persistence import LocalOffsets
from skylark.client.consumer.offset_table import LocalOffsetFile
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.route_cache import Target
from skylark.core.errors import BrokerError, ClientError
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pull_world import BROKER, queue
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import World, world

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET


@asynccontextmanager
async def three_offsets(root: Path) -> AsyncIterator[tuple[World, ScriptedServer, PullConsumer]]:
    """A consumer that has counted three queues as consumed and told nobody."""
    async with world(root) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.serve_route("T", **{BROKER: address})
        options = w.options(namesrv=address, offset_interval=600.0)
        consumer = PullConsumer("g", options, runtime=inline_runtime(w.network, w.clock))
        await w.finish(consumer.start())
        await w.finish(consumer.fetch_queues("T"))
        for number in range(3):
            consumer.update_consume_offset(queue(number), 5 + number)
        try:
            yield w, server, consumer
        finally:
            await w.finish(server.stop())


async def test_brokers_have_answered_before_a_consumer_is_gone(tmp_path: Path) -> None:
    async with three_offsets(tmp_path) as (w, server, consumer):
        server.answer(UPDATE, 0)
        await w.finish(consumer.stop())
        saved = [request for request in server.requests if request.code == UPDATE]
        assert [(request.ext or {})["commitOffset"] for request in saved] == ["5", "6", "7"]
        assert not any(request.is_oneway for request in saved)
        codes = [request.code for request in server.requests]
        assert codes[-4:] == [UPDATE, UPDATE, UPDATE, RequestCode.UNREGISTER_CLIENT]


async def test_the_first_offset_goes_alone(tmp_path: Path) -> None:
    """Apache's broker loses offsets of a new group that arrive at the same time."""
    async with three_offsets(tmp_path) as (w, server, consumer):
        server.answer(UPDATE, None)
        stopping = asyncio.ensure_future(consumer.stop())
        await w.clock.advance(seconds=4.9)
        assert len(server.of(UPDATE)) == 1
        await w.finish(stopping)
        # Nobody waits for a broker that does not answer more than once.
        assert [request.is_oneway for request in server.of(UPDATE)] == [False, True, True]


async def test_later_rounds_wait_for_no_answer(tmp_path: Path) -> None:
    async with three_offsets(tmp_path) as (w, server, consumer):
        server.answer(UPDATE, 0)
        await w.clock.advance(seconds=11)  # the first round
        assert [request.is_oneway for request in server.of(UPDATE)] == [False, True, True]
        for number in range(3):
            consumer.update_consume_offset(queue(number), 10)
        await w.clock.advance(seconds=601)
        assert [request.is_oneway for request in server.of(UPDATE)[3:]] == [True, True, True]
        await w.finish(consumer.stop())


async def test_an_offset_that_was_not_saved_is_sent_again(tmp_path: Path) -> None:
    async with three_offsets(tmp_path) as (w, server, consumer):
        server.answer(UPDATE, 1, 0)
        await w.clock.advance(seconds=11)  # the first round
        assert len(server.of(UPDATE)) == 3
        await w.finish(consumer.stop())
        saved = [(request.ext or {})["commitOffset"] for request in server.of(UPDATE)]
        assert saved == ["5", "6", "7", "5"]


async def test_a_slow_round_does_not_overwrite_a_later_commit(tmp_path: Path) -> None:
    async with three_offsets(tmp_path) as (w, server, consumer):
        server.answer(UPDATE, 0)
        store = consumer._session._store
        await w.finish(store.commit([queue(0)]))
        lookup = consumer._session.instance.control_link.lookup
        may_go_on, reader_of = asyncio.Event(), lookup.reader_of

        async def slowly(*given: Any, **named: Any) -> Target:
            await may_go_on.wait()
            return await reader_of(*given, **named)

        lookup.reader_of = slowly  # type: ignore[method-assign]
        round_ = asyncio.ensure_future(store.save([queue(0)]))
        await w.clock.drain()
        lookup.reader_of = reader_of  # type: ignore[method-assign]
        store.table.update(queue(0), 50)
        await w.finish(store.commit([queue(0)]))
        may_go_on.set()
        assert await w.finish(round_) == {queue(0): 50}
        saved = [(request.ext or {})["commitOffset"] for request in server.of(UPDATE)]
        assert saved == ["5", "50", "50"]
        await w.finish(consumer.stop())


async def test_a_commit_waits_for_all_answers_and_raises_for_one(tmp_path: Path) -> None:
    async with three_offsets(tmp_path) as (w, server, consumer):
        server.answer(UPDATE, 0, 1, 0)
        store = consumer._session._store
        with pytest.raises(BrokerError, match="scripted 1"):
            await w.finish(store.commit([queue(0), queue(1), queue(2)]))
        assert [request.is_oneway for request in server.of(UPDATE)] == [False] * 3
        await w.finish(consumer.stop())


async def test_a_file_that_cannot_be_written_commits_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    offsets = LocalOffsets(LocalOffsetFile(folder / "offsets.json"))
    offsets.table.update(queue(), 5)
    folder.write_bytes(b"")  # a file is in the way
    with pytest.raises(ClientError, match="cannot be read"):
        await offsets.commit([queue()])


async def test_a_file_that_cannot_be_written_has_saved_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    offsets = LocalOffsets(LocalOffsetFile(folder / "offsets.json"))
    offsets.table.update(queue(), 5)
    folder.write_bytes(b"")  # a file is in the way
    assert await offsets.save([queue()]) == {}
    folder.unlink()
    assert await offsets.save([queue(), queue(1)]) == {queue(): 5}
