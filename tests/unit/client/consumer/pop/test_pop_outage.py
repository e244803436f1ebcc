"""Iterations over a pop consumer while brokers, or routes, are away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark import ClientError
from skylark.client.consumer.pop.popped_message import PoppedMessage
from skylark.net.server import RemotingServer
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pops import POP, PopWorld, pop_world


def following(messages: AsyncIterator[PoppedMessage]) -> asyncio.Future[PoppedMessage]:
    return asyncio.ensure_future(anext(messages))


async def test_an_iteration_goes_on_after_a_restart_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        messages = consumer.messages()
        w.server.put(b"a")
        await w.finish((await w.finish(anext(messages))).ack())
        coming = following(messages)
        await w.clock.advance(seconds=1)
        host, port = w.server.server.address
        with caplog.at_level(logging.INFO):
            await w.finish(w.server.stop())
            await w.clock.advance(seconds=40)
            assert not coming.done()
            assert caplog.text.count("receiving messages for g failed") == 1
            await restart(w, host, port)
            w.server.put(b"b")
            await w.clock.advance(seconds=5)
            assert caplog.text.count("receiving messages for g failed") == 1
        assert coming.result().body == b"b"
        await w.finish(coming.result().ack())
        assert w.server.acked == [b"a", b"b"]


async def restart(w: PopWorld, host: str, port: int) -> None:
    """The broker again, with the messages that it had."""
    dispatcher = w.server._dispatcher
    dispatcher.shutting_down = False
    w.server.server = RemotingServer(dispatcher, w.world.network, w.clock)
    await w.server.start(host, port)


async def test_an_iteration_goes_on_after_refusals(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.refuses[POP] = 16
        coming = following(consumer.messages())
        await w.clock.advance(seconds=30)
        assert not coming.done()
        assert 10 <= len(w.server.of(POP)) <= 40  # it backs off
        w.server.refuses.clear()
        w.server.put(b"a")
        await w.clock.advance(seconds=3)
        assert coming.result().body == b"a"


async def test_an_iteration_waits_for_a_route(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        w.server.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, 17)
        consumer = w.pop_consumer()
        await w.start(consumer)
        coming = following(consumer.messages())
        await w.clock.advance(seconds=60)
        assert not coming.done()
        w.serve_brokers(w.server)
        w.server.put(b"a")
        await w.clock.advance(seconds=40)
        assert coming.result().body == b"a"


async def test_a_stop_ends_an_iteration_that_waits_for_a_broker(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.refuses[POP] = 2

        async def all_of_them() -> list[PoppedMessage]:
            return [message async for message in consumer]

        coming = asyncio.ensure_future(all_of_them())
        await w.clock.advance(seconds=5)
        assert not coming.done()
        await w.finish(consumer.stop())
        await w.clock.advance(seconds=2)
        assert coming.result() == []


async def test_an_iteration_over_nothing_raises(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        consumer.unsubscribe("T")
        with pytest.raises(ClientError, match="subscribes nothing"):
            await w.finish(anext(consumer.messages()))
