"""The pull task of a queue, against a broker whose answers are scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_runtime import inline_runtime
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.message import encode_record
from tests.unit.client.consumer.pull_world import BROKER, bodies, pull_world, queue
from tests.unit.client.scripted import ScriptedServer, Stumbles
from tests.unit.client.worlds import World, world


def found(body: bytes, next_offset: int, code: int = 0) -> Callable[[Command], Command]:
    """An answer to a pull of a queue with ten messages."""
    ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "10"}
    ext["nextBeginOffset"] = str(next_offset)
    return lambda request: response_to(request, code, ext=ext, body=body)


@asynccontextmanager
async def scripted(
    root: Path, **given: Any
) -> AsyncIterator[tuple[World, ScriptedServer, LitePullConsumer]]:
    """A consumer of queue 0 of a broker that answers as told; ``given`` are its options."""
    async with world(root) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.serve_route("T", **{BROKER: address})
        server.answer_ok(RequestCode.QUERY_CONSUMER_OFFSET, {"offset": "7"})
        server.answer(RequestCode.UPDATE_CONSUMER_OFFSET, 0)
        consumer = LitePullConsumer(
            "g", w.options(namesrv=address, **given), runtime=inline_runtime(w.network, w.clock)
        ).assign([queue()])
        try:
            yield w, server, consumer
        finally:
            await w.finish(consumer.stop())
            await w.finish(server.stop())


async def test_brokers_before_5_know_plain_pulls_only(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (w, server, consumer):
        server.answer(RequestCode.LITE_PULL_MESSAGE, 3)
        server.answer(RequestCode.PULL_MESSAGE, found(record(7), 8), found(record(8), 9), None)
        await w.finish(consumer.start())
        messages = await w.finish(consumer.poll()) + await w.finish(consumer.poll())
        assert bodies(messages) == [b"7", b"8"]
        assert len(server.of(RequestCode.LITE_PULL_MESSAGE)) == 1
        assert len(server.of(RequestCode.PULL_MESSAGE)) == 3


def record(offset: int) -> bytes:
    return encode_record("T", b"%d" % offset, b"a\x01b", queue_offset=offset)


async def test_a_message_that_is_none_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as (w, server, consumer):
        server.answer(
            RequestCode.LITE_PULL_MESSAGE,
            found(record(7) + b"junk" + record(9), 10),
            found(b"junk" + record(9), 10),
            found(b"junk", 9),
            found(record(9), 10),
            None,
        )
        await w.finish(consumer.start())
        messages = await w.finish(consumer.poll()) + await w.finish(consumer.poll())
        assert bodies(messages) == [b"7", b"9"]
        assert messages[0].properties == {"a": "b", "MIN_OFFSET": "0", "MAX_OFFSET": "10"}
        asked = [request.ext or {} for request in server.of(RequestCode.LITE_PULL_MESSAGE)]
        assert [(ext["queueOffset"], ext["maxMsgNums"]) for ext in asked] == [
            ("7", "10"),
            ("8", "10"),
            ("8", "1"),
            ("9", "10"),
            ("10", "10"),
        ]
        [error] = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "offset 8" in error.getMessage()


async def test_errors_and_flow_control_delay_the_next_pull(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (w, server, consumer):
        server.answer(RequestCode.LITE_PULL_MESSAGE, 215, 1, None)
        await w.finish(consumer.start())
        pulls = server.of
        for passed_s, count in ((0.01, 1), (0.02, 2), (0.9, 2), (0.2, 3)):
            await w.clock.advance(seconds=passed_s)
            assert len(pulls(RequestCode.LITE_PULL_MESSAGE)) == count
        ext = pulls(RequestCode.LITE_PULL_MESSAGE)[-1].ext or {}
        names = ("queueOffset", "sysFlag", "subVersion", "suspendTimeoutMillis", "maxMsgNums")
        assert [ext[name] for name in names] == ["7", "22", "0", "20000", "10"]


async def test_an_offset_that_the_broker_does_not_have_is_corrected(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (w, server, consumer):
        answers = (found(b"", 9, code=21), found(record(9), 10), None)
        server.answer(RequestCode.LITE_PULL_MESSAGE, *answers)
        await w.finish(consumer.start())
        assert bodies(await w.finish(consumer.poll())) == [b"9"]


async def test_a_queue_waits_until_it_is_known_where_to_begin(tmp_path: Path) -> None:
    async with scripted(tmp_path) as (w, server, consumer):
        server.answer(RequestCode.QUERY_CONSUMER_OFFSET, 1)
        server.answer(RequestCode.LITE_PULL_MESSAGE, None)
        await w.finish(consumer.start())
        await w.clock.advance(seconds=2)
        assert len(server.of(RequestCode.QUERY_CONSUMER_OFFSET)) == 1
        server.answer_ok(RequestCode.QUERY_CONSUMER_OFFSET, {"offset": "7"})
        await w.clock.advance(seconds=1.5)
        assert len(server.of(RequestCode.LITE_PULL_MESSAGE)) == 1


@pytest.mark.parametrize("code", [RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.LITE_PULL_MESSAGE])
async def test_a_hook_that_raises_only_delays_the_next_pull(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: RequestCode
) -> None:
    hook = Stumbles(code)
    async with scripted(tmp_path, rpc_hooks=[hook]) as (w, server, consumer):
        server.answer(RequestCode.LITE_PULL_MESSAGE, found(record(7), 8), None)
        await w.finish(consumer.start())
        await w.clock.advance(seconds=2)
        assert "LookupError" in caplog.text
        hook.codes.clear()
        assert bodies(await w.finish(consumer.poll(10))) == [b"7"]


async def test_what_nobody_got_is_handed_out_again(tmp_path: Path) -> None:
    everything = [b"%d" % number for number in range(6)]
    async with pull_world(tmp_path) as w, w.lite(pull_batch_size=2, auto_commit=False) as consumer:
        await w.send(*everything)
        await w.finish(consumer.assign([queue()]).start())
        await w.clock.advance(seconds=1)  # all of it waits here by now
        batch = await w.finish(consumer.poll())
        assert bodies(batch) == [b"0", b"1"]
        consumer._put_back(batch)
        await consumer.commit(persist=True)
        assert await w.committed("g") == 0
        again: list[MessageExt] = []
        while len(again) < len(everything):
            again += await w.finish(consumer.poll())
        assert bodies(again) == everything
        await consumer.commit(persist=True)
        assert await w.committed("g") == 6


async def test_what_nobody_got_is_left_to_a_queue_that_went_back_or_away(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite(auto_commit=False) as consumer:
        await w.send(b"0", b"1")
        await w.finish(consumer.assign([queue()]).start())
        await w.clock.advance(seconds=1)
        lost: list[MessageExt] = []
        while len(lost) < 2:
            lost += await w.finish(consumer.poll())
        await w.finish(consumer.seek(queue(), 0))
        consumer._put_back(lost)
        again: list[MessageExt] = []
        while len(again) < 2:
            again += await w.finish(consumer.poll())
        assert bodies(again) == [b"0", b"1"]
        consumer.assign([])
        consumer._put_back(again)
        assert await w.finish(consumer.poll(1)) == []
