"""integrations/kombu_clients.py: how long messages are held, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import skylark.testing
from skylark import Message
from skylark.integrations.kombu_clients import ConnectionClients, ConsumerSettings, Wanted
from skylark.testing import FaultAction, FaultPlan
from skylark.testing.local_broker import LocalBroker
from skylark.wire.codes import RequestCode

SETTINGS = ConsumerSettings(group="workers", invisible_s=60.0, max_reconsume_times=-1)


@pytest.fixture
async def local() -> AsyncIterator[LocalBroker]:
    async with skylark.testing.broker(clock="virtual") as made:
        yield made


@asynccontextmanager
async def clients_of(local: LocalBroker) -> AsyncIterator[ConnectionClients]:
    clients = ConnectionClients(local.options, SETTINGS, local.clock)
    await clients.start()
    try:
        yield clients
    finally:
        await clients.close()


async def receive(clients: ConnectionClients, topic: str) -> list[tuple[int, int]]:
    """The tags of what is there now, and how often it was delivered."""
    found = await clients.receive([Wanted([topic], 32)], 0.0)
    return [(each.tag, each.attempt) for each in found]


async def test_a_message_is_held_for_as_long_as_its_connection_is_open(local: LocalBroker) -> None:
    topic = await local.topic()
    async with clients_of(local) as holder, clients_of(local) as other:
        await holder.send(Message(topic, b"x"), {})
        ((tag, attempt),) = await receive(holder, topic)
        assert attempt == 1
        for _ in range(3):
            await local.clock.advance(minutes=10)
            assert await receive(other, topic) == []
        holder.ack(tag)
        await local.clock.advance(minutes=10)
        assert await receive(other, topic) == []
        assert await other.size(topic) == 0


async def test_a_message_whose_renewal_fails_for_too_long_is_delivered_to_others(
    local: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await local.topic()
    async with clients_of(local) as holder, clients_of(local) as other:
        await holder.send(Message(topic, b"x"), {})
        ((tag, _),) = await receive(holder, topic)
        point = f"request.{RequestCode.CHANGE_MESSAGE_INVISIBLETIME}"
        local.faults = FaultPlan(seed=1).chance(point, 1.0, action=FaultAction.DROP)
        await local.clock.advance(minutes=2)
        local.faults = None
        assert "is not renewed and may be delivered again" in caplog.text
        ((again, attempt),) = await receive(other, topic)
        assert attempt == 2
        await local.clock.advance(minutes=2)
        holder.ack(tag)  # too late: it belongs to the other by now
        other.nack(again)
        await local.clock.advance(seconds=5)
        ((again, attempt),) = await receive(other, topic)
        assert attempt == 3
        other.ack(again)


async def test_what_is_given_back_counts_no_attempt(local: LocalBroker) -> None:
    topic = await local.topic()
    async with clients_of(local) as clients:
        await clients.send(Message(topic, b"x"), {})
        ((tag, _),) = await receive(clients, topic)
        clients.give_back([tag])
        ((tag, attempt),) = await receive(clients, topic)
        assert attempt == 1
        clients.ack(tag)


async def test_a_receive_that_is_cancelled_loses_nothing(local: LocalBroker) -> None:
    topics = [await local.topic(), await local.topic()]
    async with clients_of(local) as clients:
        for _ in range(3):
            waiting = asyncio.create_task(clients.receive([Wanted(topics, 8)], 10.0))
            await local.clock.advance(seconds=1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        for topic in topics:
            await clients.send(Message(topic, topic.encode()), {})
        await local.clock.advance(seconds=1)
        found: dict[str, str] = {}
        while len(found) < 2:
            for each in await clients.receive([Wanted(topics, 8)], 10.0):
                found[each.body.decode()] = each.topic
                clients.ack(each.tag)
        assert found == {topic: topic for topic in topics}


async def test_a_topic_that_does_not_exist_is_waited_for(local: LocalBroker) -> None:
    async with clients_of(local) as clients:
        assert await clients.size("later") is None
        waiting = asyncio.create_task(clients.receive([Wanted(["later"], 1)], 10.0))
        await local.clock.advance(seconds=3)
        assert await waiting == []  # after a pause, so that new queues are seen
        await clients.send(Message("later", b"x"), {})
        ((tag, _),) = await receive(clients, "later")
        clients.ack(tag)
