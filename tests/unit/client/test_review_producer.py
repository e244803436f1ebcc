"""Producers in clumsy hands: stopped while they start, flooded, and given what is no argument."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.instance_registry import instance_count
from skylark.client.core.service_state import ServiceState
from skylark.client.producer.producer import Producer
from skylark.core.errors import (
    ClientError,
    ClientStateError,
    ConfigError,
    InvalidMessageError,
    TooManyRequestsError,
)
from skylark.net.connection import Connection
from skylark.wire.command import Command
from tests.unit.client.producer_world import MESSAGE, scripted, stored


async def test_a_producer_stopped_while_it_starts_is_not_left_running(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        before = instance_count()
        producer = Producer("other", script.options(), runtime=script.runtime)
        starting = asyncio.ensure_future(producer.start())
        await asyncio.sleep(0)
        await script.world.finish(producer.stop())
        with pytest.raises(ClientStateError, match="producer other was stopped while it started"):
            await script.world.finish(starting)
        assert producer.state is ServiceState.SHUTDOWN_ALREADY
        assert instance_count() == before


async def test_a_flood_of_submits_waits_for_a_slow_broker(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        # At most 8 batches of some 430 messages at a time, 0.4 s each: 8,600 messages a second.
        server = script.brokers["a"]

        async def slowly(connection: Connection, request: Command) -> Command | None:
            await script.clock.sleep(0.4)
            return await server._handle(connection, request)

        server._dispatcher.set_default(slowly)

        async def flood() -> list[object]:
            futures = [await script.producer.submit(MESSAGE) for _ in range(36_000)]
            return await asyncio.gather(*futures, return_exceptions=True)

        found = await script.world.finish(flood())
        assert [each for each in found if isinstance(each, Exception)][:1] == []
        assert len(found) == 36_000


async def test_who_waits_for_room_is_told_which_setting_gives_more(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a", pending_max=1, batching=False) as script:
        script.answer(None)
        first = await script.producer.submit(MESSAGE)
        waiting = await script.later(script.producer.submit(MESSAGE, timeout=1))
        await script.clock.advance(seconds=1.1)
        with pytest.raises(TooManyRequestsError) as caught:
            await waiting
        assert caught.value.hint is not None
        assert "pending_max" in caught.value.hint
        await script.clock.advance(seconds=3)
        assert first.exception() is not None


async def test_a_misspelt_keyword_is_refused(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        misspelt: dict[str, Any] = {"delay_seconds": 30}
        for send in (
            script.producer.send,
            script.producer.submit,
            script.producer.send_oneway,
        ):
            with pytest.raises(TypeError, match="unexpected keyword argument 'delay_seconds'"):
                await send(MESSAGE, **misspelt)
        with pytest.raises(TypeError, match="unexpected keyword argument 'delay_seconds'"):
            await script.producer.send_batch([MESSAGE], **misspelt)
        assert script.sent() == []


async def test_a_request_ends_with_its_producer(tmp_path: Path) -> None:
    async with scripted(tmp_path, "a") as script:
        waiting = await script.later(script.producer.request(MESSAGE, timeout=60))
        began = script.clock.monotonic()
        await script.world.finish(script.producer.stop())
        with pytest.raises(ClientStateError, match="the producer was stopped meanwhile"):
            await script.world.finish(waiting)
        assert script.clock.monotonic() - began < 5


async def test_arguments_of_a_wrong_type_are_named(tmp_path: Path) -> None:
    anything: Any = None
    with pytest.raises(ClientError, match="the name of a group is text, not NoneType"):
        Producer(anything)
    async with scripted(tmp_path, "a") as script:
        send = script.producer.send
        with pytest.raises(ClientError, match="the name of a topic is text, not NoneType"):
            await send(Message(anything, b"x"))
        numbers: Any = [1, 2]
        with pytest.raises(InvalidMessageError, match="keys are text, not int"):
            await send(Message("T", b"x", keys=numbers))
        with pytest.raises(InvalidMessageError, match="keys are text, not int"):
            await send(Message("T", b"x", keys=numbers, properties={"a": "b"}))
        with pytest.raises(ClientError, match=r"must be a number of seconds .*, not inf"):
            await send(MESSAGE, delay=float("inf"))
        assert script.sent() == []


async def test_settings_take_timedeltas(tmp_path: Path) -> None:
    producer = Producer("g", send_timeout=timedelta(seconds=2), linger=timedelta(milliseconds=5))
    assert producer.settings.send_timeout == 2.0
    assert producer.settings.linger == 0.005
    assert ClientOptions(request_timeout=timedelta(seconds=4)).request_timeout == 4.0
    with pytest.raises(ConfigError, match="send_timeout must be positive"):
        Producer("g", send_timeout=timedelta(0))
    async with scripted(tmp_path, "ab", attempt_timeout=timedelta(seconds=1)) as script:
        script.answer(None, stored())
        task = await script.later(script.producer.send(MESSAGE))
        await script.clock.advance(seconds=1.1)
        await script.clock.drain()
        assert len(script.sent()) == 2
        await script.world.finish(task)
