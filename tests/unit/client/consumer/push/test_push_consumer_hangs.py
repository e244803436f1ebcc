"""Handlers that take longer than ``consume_timeout``: each message goes back once, or is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.client_message import MessageExt
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from tests.unit.client.consumer.pushes import Script, records, scripted, until

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


def sent_back(script: Script) -> list[tuple[str, str]]:
    """Log offset and delay level of each message that was sent back, in order."""
    return [
        (ext["offset"], ext["delayLevel"])
        for ext in (request.ext or {} for request in script.server.of(SEND_BACK))
    ]


@pytest.mark.spec("client.8.30")
async def test_each_message_of_a_hung_batch_goes_back_once(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, 0)
        script.pulls.found(0, records(0, 1, 2, 3), 4)
        consumer = script.consumer(consume_timeout=60)

        @consumer.subscribe("T", batch=4)
        async def hang(messages: list[MessageExt]) -> None:
            await asyncio.Event().wait()

        await script.start(consumer)
        await script.clock.advance(minutes=3)
        assert sorted(sent_back(script)) == [(f"{1000 + offset}", "3") for offset in range(4)]
        assert (consumer.in_flight, consumer.stats.sent_back) == (0, 4)
        assert script.committed[-1] == 4


async def test_all_handlers_that_hang_are_cancelled_at_once(tmp_path: Path) -> None:
    """Not only those of the messages in front, of which a check takes a few."""
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, 0)
        script.pulls.found(0, records(*range(40)), 40)
        consumer = script.consumer(consume_timeout=60, concurrency=40)
        cancelled: list[int] = []

        @consumer.subscribe("T")
        async def hang(message: MessageExt) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.queue_offset)
                raise

        await script.start(consumer)
        await script.clock.advance(minutes=2)
        assert sorted(cancelled) == list(range(40))
        assert sorted(sent_back(script)) == [(f"{1000 + offset}", "3") for offset in range(40)]


async def test_a_handler_that_returns_when_it_is_cancelled_has_failed(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, 0)
        script.pulls.found(0, records(0), 1)
        consumer = script.consumer(consume_timeout=60)

        @consumer.subscribe("T")
        async def give_up(message: MessageExt) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        await script.start(consumer)
        await script.clock.advance(minutes=3)
        assert sent_back(script) == [("1000", "3")]
        assert (consumer.stats.consumed, consumer.stats.failed) == (0, 1)


async def test_a_handler_that_goes_on_when_it_is_cancelled_loses_its_message_too(
    tmp_path: Path,
) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, 0)
        script.pulls.found(0, records(0), 1)
        consumer = script.consumer(consume_timeout=60)
        gate = asyncio.Event()

        @consumer.subscribe("T")
        async def go_on(message: MessageExt) -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        await script.start(consumer)
        try:
            await script.clock.advance(minutes=5)
            assert sent_back(script) == [("1000", "3")]
            assert consumer.in_flight == 0
        finally:
            gate.set()
        await script.clock.advance(minutes=2)
        assert sent_back(script) == [("1000", "3")]


async def test_a_function_that_fails_while_its_message_goes_back(tmp_path: Path) -> None:
    """The message is on its way to the broker when the handler ends with an error."""
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, None)
        script.pulls.found(0, records(0, 1), 2)
        consumer = script.consumer(consume_timeout=60)
        begun, gate = threading.Event(), threading.Event()

        @consumer.subscribe("T", batch=2)
        def hang(messages: list[MessageExt]) -> None:
            begun.set()
            gate.wait(10)
            raise ValueError("too late")

        await script.start(consumer)
        await until(begun.is_set)
        for _ in range(300):
            await script.clock.advance(seconds=0.5)
            if script.server.of(SEND_BACK):
                break
        assert sent_back(script) == [("1000", "3")]
        script.server.answer(SEND_BACK, 0)
        script.server.answer(RequestCode.SEND_MESSAGE_V2, send_stored)
        gate.set()
        await until(lambda: consumer.stats.failed == 2)
        await script.clock.advance(minutes=5)
        # The broker gave no answer for the first, so it is published to the retry topic instead.
        assert sent_back(script) == [("1000", "3"), ("1001", "0")]
        assert len(script.server.of(RequestCode.SEND_MESSAGE_V2)) == 1
        assert (consumer.in_flight, consumer.stats.sent_back) == (0, 2)
        assert script.committed[-1] == 2


def send_stored(request: Command) -> Command:
    return response_to(request, 0, ext={"msgId": "X", "queueId": "0", "queueOffset": "0"})


def hanging(kind: str, gate: threading.Event) -> Callable[[MessageExt], Any]:
    async def coroutine(message: MessageExt) -> None:
        await asyncio.Event().wait()

    def function(message: MessageExt) -> None:
        gate.wait(10)

    return coroutine if kind == "coroutine" else function


@pytest.mark.parametrize("kind", ["coroutine", "function"])
async def test_broadcasting_sends_nothing_back(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, 0)
        script.pulls.found(0, records(0, 1), 2)
        gate = threading.Event()
        consumer = script.consumer(
            consume_timeout=60,
            message_model=MessageModel.BROADCASTING,
            offset_folder=tmp_path / "offsets",
        )
        consumer.subscribe("T", hanging(kind, gate))
        await script.start(consumer)
        await until(lambda: consumer.in_flight == 2)
        await script.clock.advance(minutes=5)
        assert sent_back(script) == []
        assert script.server.of(RequestCode.SEND_MESSAGE_V2) == []
        assert (consumer.in_flight, consumer.stats.sent_back) == (0, 0)
        assert caplog.text.count(" lost") == 2
        gate.set()


async def test_the_result_of_a_cancelled_handler_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(SEND_BACK, 0)
        script.pulls.found(0, records(0), 1)
        consumer = script.consumer(consume_timeout=60)

        @consumer.subscribe("T")
        async def give_up(message: MessageExt) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "cancelled"
            return "done"

        await script.start(consumer)
        await script.clock.advance(minutes=3)
        assert sent_back(script) == [("1000", "3")]
        assert "counts as success" not in caplog.text
