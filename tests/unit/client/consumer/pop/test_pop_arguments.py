"""What calls of a pop consumer refuse, and that a wrong argument stops no other message."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from skylark import ClientError, ClientStateError, ConfigError, ConsumeFromWhere
from tests.unit.client.consumer.pops import ACK, CHANGE, pop_world
from tests.unit.client.consumer.pushes import Seen


async def test_a_receive_without_subscription(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        consumer.unsubscribe("T")
        with pytest.raises(ClientError, match=r"g subscribes nothing: call subscribe\(\)"):
            await w.finish(consumer.receive(wait=1))
        with pytest.raises(ClientError, match="g subscribes nothing"):
            await w.finish(anext(consumer.messages()))


async def test_only_received_messages_are_acknowledged(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        for wrong in (None, 5, "text", b"bytes", [None], [5]):
            with pytest.raises(ClientError, match="messages must be a received message, or a list"):
                await consumer.ack(wrong)  # type: ignore[arg-type]
        for call in (consumer.nack(None), consumer.extend(5, 10)):  # type: ignore[arg-type]
            with pytest.raises(ClientError, match="message must be a received message"):
                await call
        assert not w.server.of(ACK)


async def test_a_wrong_message_stops_no_other_ack(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, other = w.pop_consumer(), w.pop_consumer("other")
        await w.start(consumer)
        await w.start(other)
        w.server.put(b"a", b"b", b"given back", b"c")
        a, b, given_back, c = await w.finish(consumer.receive())
        w.server.put(b"foreign")
        (foreign,) = await w.finish(other.receive())
        await w.finish(given_back.nack(delay=60))
        with pytest.raises(ClientStateError, match="was given back"):
            await w.finish(consumer.ack([given_back, a]))
        with pytest.raises(ClientError, match="not received by this consumer of group g"):
            await w.finish(consumer.ack([foreign, b]))
        with pytest.raises(ClientError, match="messages must be"):
            await w.finish(consumer.ack(["no message", c]))  # type: ignore[list-item]
        assert w.server.acked == [b"a", b"b", b"c"]
        for call in (consumer.nack(foreign), consumer.extend(foreign, 10)):
            with pytest.raises(ClientError, match="not received by this consumer"):
                await w.finish(call)
        await w.finish(foreign.ack())
        assert w.server.of_body(b"foreign").acked


async def test_durations_out_of_range(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive())
        for seconds in (0, -1, 43_201):
            with pytest.raises(ClientError, match="seconds must be from 1 to 43200 s") as raised:
                await message.extend(seconds)
            assert raised.value.hint
        with pytest.raises(ClientError, match="delay must be from 0 to 43200 s") as raised:
            await message.nack(delay=-1)
        assert raised.value.hint
        not_numbers: tuple[Any, ...] = (math.nan, "5")
        for wrong in not_numbers:
            with pytest.raises(ClientError, match="seconds must be a number of seconds"):
                await message.extend(wrong)
        assert not w.server.of(CHANGE)
        for settings in ({"invisible": 0.5}, {"batch": 33}, {"max_reconsume_times": -2}):
            with pytest.raises(ConfigError) as refused:
                w.pop_consumer(**settings)
            assert refused.value.hint


async def test_what_a_push_consumer_that_pops_cannot_do(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        for mode in ("pop", "auto"):
            with pytest.raises(ConfigError, match="cannot start at a time"):
                w.push_consumer(mode=mode, consume_from_where=where)
        for mode in ("pop", "auto"):
            consumer = w.push_consumer(f"of-{mode}", mode=mode)
            consumer.subscribe("T", Seen().handler)
            await w.start(consumer)
            with pytest.raises(ClientError, match=f"skylark group reset-offset of-{mode} TOPIC"):
                await consumer.reset_to(datetime(2020, 1, 1, tzinfo=UTC))
