"""The mode of a group at brokers that differ, and how a push consumer sets it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from skylark import ClientError
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.rebalance_executor import describe_conflicts
from skylark.wire.bodies.admin_body import ConsumerConnection, SubscriptionConflict
from skylark.wire.bodies.pop_body import MessageRequestMode
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pops import PopWorld, pop_world
from tests.unit.client.consumer.pushes import Seen

POP, PULL = MessageRequestMode.POP, MessageRequestMode.PULL
SET_MODE = RequestCode.SET_MESSAGE_REQUEST_MODE


def brokers_of(consumer: PushConsumer) -> set[str]:
    return {each.broker_name for each in consumer.assignment if each.topic == "T"}


async def assert_steady(w: PopWorld, consumer: PushConsumer) -> None:
    """The assignment does not change from round to round."""
    for _ in range(6):
        await w.clock.advance(seconds=20)
        assert brokers_of(consumer) == {each.name for each in w.servers}


@pytest.mark.parametrize("odd", [0, 2])
async def test_a_broker_that_differs_is_named_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, odd: int
) -> None:
    async with pop_world(tmp_path, broker_count=3) as w:
        w.servers[odd].mode = PULL
        consumer, seen = w.push_consumer(), Seen()
        consumer.subscribe("T", seen.handler)
        with caplog.at_level(logging.ERROR):
            await w.start(consumer)
            await assert_steady(w, consumer)
        text = f"by the setting of {w.servers[odd].name}, and this consumer has mode='pop'"
        assert text in caplog.text
        assert "skylark group mode T g pop" in caplog.text
        for server in w.servers:
            server.put(server.name.encode())
        await w.clock.advance(seconds=1)
        assert len(seen) == 3


async def test_a_broker_without_response_stops_nothing(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        w.server.silent.add(RequestCode.QUERY_ASSIGNMENT)
        consumer = w.push_consumer()
        consumer.subscribe("T", Seen().handler)
        await w.start(consumer)
        await assert_steady(w, consumer)


async def test_all_brokers_that_differ_are_named_by_the_error(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        for server in w.servers:
            server.mode = PULL
        consumer = w.push_consumer()
        consumer.subscribe("T", Seen().handler)
        with pytest.raises(ClientError, match="the setting of broker-a, broker-b, and this"):
            await w.finish(consumer.start())


async def test_the_mode_is_set_at_a_broker_that_comes_later(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        first, later = w.servers
        first.mode = later.mode = PULL
        w.serve_brokers(first)
        consumer = w.push_consumer(set_mode=True)
        consumer.subscribe("T", Seen().handler)
        await w.start(consumer)
        assert (len(first.modes_set), len(later.modes_set)) == (1, 0)
        w.serve_brokers(first, later)
        await w.clock.advance(seconds=60)
        await assert_steady(w, consumer)
        assert (len(first.modes_set), len(later.modes_set)) == (1, 1)


async def test_a_broker_that_has_the_mode_keeps_its_setting(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        shared, other = w.servers  # as with `skylark group mode T g pop --share-queues 1`
        other.mode = PULL
        consumer = w.push_consumer(set_mode=True)
        consumer.subscribe("T", Seen().handler)
        await w.start(consumer)
        await w.clock.advance(seconds=60)
        assert (len(shared.modes_set), len(other.modes_set)) == (0, 1)


async def test_a_broker_that_does_not_set_the_mode_is_asked_again(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=2) as w:
        first, failing = w.servers
        first.mode = failing.mode = PULL
        failing.refuses[SET_MODE] = 1
        consumer = w.push_consumer(set_mode=True)
        consumer.subscribe("T", Seen().handler)
        await w.start(consumer)
        assert brokers_of(consumer) == {"broker-a", "broker-b"}
        failing.refuses.clear()
        await w.clock.advance(seconds=40)
        assert (len(first.modes_set), len(failing.modes_set)) == (1, 1)


async def test_auto_follows_the_same_broker_in_each_round(tmp_path: Path) -> None:
    async with pop_world(tmp_path, broker_count=3) as w:
        w.servers[1].mode = PULL
        consumer = w.push_consumer(mode="auto")
        consumer.subscribe("T", Seen().handler)
        await w.start(consumer)
        for _ in range(6):
            await w.clock.advance(seconds=20)
            assert {each.queue_id for each in consumer.assignment if each.topic == "T"} == {-1}


def test_retry_topics_are_no_conflict() -> None:
    members = ConsumerConnection(
        subscription_conflicts=[
            SubscriptionConflict(topic="%RETRY%g_T"),
            SubscriptionConflict(topic="%RETRY%g"),
        ]
    )
    assert describe_conflicts(members, "me", ["%RETRY%g", "%RETRY%g_T"]) == ""
    members.subscription_conflicts = [SubscriptionConflict(topic="T")]
    assert describe_conflicts(members, "me", ["T"]).startswith("topic T")
