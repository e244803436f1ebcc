"""Acks, nacks and extends that fail in part, or that meet on one message."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark import ClientStateError
from skylark.core.errors import BrokerError
from tests.unit.client.consumer.pops import ACK, BATCH_ACK, CHANGE, pop_world


async def test_an_ack_that_one_broker_refuses_settles_the_others(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        refusing, other = w.servers
        refusing.put(b"a", b"b")
        other.put(b"c", b"d")
        found = await w.finish(consumer.receive(4, wait=5))
        assert len(found) == 4
        refusing.refuses[BATCH_ACK] = 13
        with pytest.raises(BrokerError, match="refused by the test") as raised:
            await w.finish(consumer.ack(found))
        assert raised.value.code == 13
        unsettled = [each for each in found if not each.is_settled]
        assert sorted(each.body for each in unsettled) == [b"a", b"b"]
        for message in found:
            assert (str(message) in str(raised.value)) == (message in unsettled)
        assert other.acked == [b"c", b"d"]
        refusing.refuses.clear()
        await w.finish(consumer.ack(found))
        assert refusing.acked == [b"a", b"b"]
        assert len(other.of(BATCH_ACK)) == 1  # not acknowledged a second time


async def test_an_error_of_many_messages_stays_readable(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        for server in w.servers:
            server.put(*(b"%d" % n for n in range(30)))
            server.refuses[BATCH_ACK] = 13
        found = await w.finish(consumer.receive(60, wait=5))
        with pytest.raises(BrokerError, match="60 of 60 messages are not acknowledged") as raised:
            await w.finish(consumer.ack(found))
        assert len(str(raised.value)) < 2_000
        assert not any(each.is_settled for each in found)


async def test_a_cancelled_ack_may_be_repeated(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        silent, other = w.servers
        silent.put(b"a")
        other.put(b"b")
        found = await w.finish(consumer.receive(2, wait=5))
        silent.silent.add(ACK)
        acking = asyncio.ensure_future(consumer.ack(found))
        await w.clock.advance(seconds=1)
        acking.cancel()
        await w.clock.drain()
        assert [each.body for each in found if not each.is_settled] == [b"a"]
        silent.silent.clear()
        await w.finish(consumer.ack(found))
        assert (silent.acked, other.acked) == ([b"a"], [b"b"])


async def test_a_message_is_given_back_once(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive(wait=5))
        results = await w.finish(
            asyncio.gather(
                message.nack(delay=5),
                message.nack(delay=600),
                message.extend(600),
                message.ack(),
                return_exceptions=True,
            )
        )
        assert results[0] is None
        assert [type(each) for each in results[1:]] == [ClientStateError] * 3
        assert all("was given back" in str(each) for each in results[1:])
        assert [ext["invisibleTime"] for ext in w.server.ext_of(CHANGE)] == ["5000"]
        (again,) = await w.finish(consumer.receive(wait=8))
        assert again.attempt == 2


async def test_changes_of_one_message_use_the_newest_receipt(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive(wait=5))
        await w.finish(
            asyncio.gather(message.extend(100), message.extend(200), message.nack(delay=5))
        )
        held = w.server.of_body(b"a")
        assert [ext["extraInfo"] for ext in w.server.ext_of(CHANGE)] == held.handles[:3]
        assert [ext["invisibleTime"] for ext in w.server.ext_of(CHANGE)] == [
            "100000",
            "200000",
            "5000",
        ]


async def test_an_acknowledged_message_is_not_given_back(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a")
        (message,) = await w.finish(consumer.receive(wait=5))
        results = await w.finish(
            asyncio.gather(
                message.extend(100), message.ack(), message.nack(delay=5), return_exceptions=True
            )
        )
        assert (results[0], results[1]) == (None, None)
        assert isinstance(results[2], ClientStateError)
        assert w.server.acked == [b"a"]
        assert len(w.server.of(CHANGE)) == 1


async def test_a_list_is_checked_after_all_its_changes(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.pop_consumer()
        await w.start(consumer)
        w.server.put(b"a", b"b")
        first, second = await w.finish(consumer.receive(wait=5))
        w.server.silent.add(CHANGE)
        extending = asyncio.ensure_future(second.extend(100))
        await w.clock.advance(seconds=1)
        acking = asyncio.ensure_future(consumer.ack([first, second]))  # waits for the second
        await w.clock.drain()
        w.server.silent.clear()
        await w.finish(first.nack(delay=5))
        with pytest.raises(ClientStateError, match="was given back"):
            await w.finish(acking)
        assert isinstance(await asyncio.gather(extending, return_exceptions=True), list)
        assert w.server.acked == [b"b"]
