"""Snapshots of the queues of a cluster when parts of it do not answer."""

from __future__ import annotations

from typing import cast

import pytest

from skylark.admin.admin_session import Session
from skylark.admin.errors import NotFoundError
from skylark.core.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    NoNameServerError,
    TransportError,
)
from skylark.spark.source.queue_bounds import Bounds, ClusterInspector
from skylark.spark.source.source_options import source_options
from tests.unit.spark.source.fake_cluster import FakeSession, queue


def inspector(session: FakeSession, **more: str) -> ClusterInspector:
    given = {"nameserver": "h:1", "topic": "T", **more}
    if "topicspattern" in more:
        del given["topic"]
    options = source_options(given, streaming=True, environ={})
    return ClusterInspector(cast(Session, session), options)


ALL = {queue(n, broker) for broker in ("broker-a", "broker-b") for n in range(2)}


async def test_every_broker_gets_one_request() -> None:
    session = FakeSession()
    found = await inspector(session).snapshot()
    assert found.bounds == dict.fromkeys(ALL, Bounds(1, 10))
    assert sorted(session.asked) == ["a:1", "b:1", "route"]
    assert found.versions == {"broker-a": 500, "broker-b": 500}
    assert found.address("broker-b") == "b:1"
    with pytest.raises(TransportError, match="broker-c has no address"):
        found.address("broker-c")


async def test_routes_are_requested_once_a_second() -> None:
    session = FakeSession()
    each = inspector(session)
    await each.snapshot()
    await each.snapshot()
    assert session.asked.count("route") == 1
    await session.clock.advance(1.1)
    await each.snapshot()
    assert session.asked.count("route") == 2


async def test_routes_stay_if_no_name_server_answers() -> None:
    session = FakeSession()
    each = inspector(session)
    await each.snapshot()
    session.namesrv_answers = False
    await session.clock.advance(5)
    found = await each.snapshot(ALL)
    assert set(found.bounds) == ALL
    with pytest.raises(NoNameServerError):
        await inspector(session).snapshot()


async def test_offsets_are_requested_per_queue_if_statistics_are_refused() -> None:
    session = FakeSession()
    session.stats["a:1"] = BrokerError("no", code=1)
    found = await inspector(session).snapshot()
    assert found.bounds[queue(1)] == Bounds(3, 30)
    assert found.bounds[queue(1, "broker-b")] == Bounds(1, 10)
    assert not found.unreachable


async def test_a_broker_that_does_not_answer_is_unreachable() -> None:
    session = FakeSession()
    session.stats["a:1"] = ConnectError("refused")
    each = inspector(session)
    found = await each.snapshot()
    assert set(found.bounds) == {queue(0, "broker-b"), queue(1, "broker-b")}
    assert found.unreachable == {"broker-a": "refused"}
    with pytest.raises(TransportError, match=r"broker broker-a does not answer: refused"):
        await each.first_snapshot()


async def test_an_unregistered_broker_is_unreachable() -> None:
    session = FakeSession()
    del session.brokers["broker-a"]
    found = await inspector(session).snapshot(ALL)
    assert list(found.unreachable) == ["broker-a"]
    assert not found.deleted_topics
    session.brokers.clear()
    await session.clock.advance(2)
    alone = await inspector(session).snapshot(ALL)
    assert (set(alone.unreachable), alone.deleted_topics) == ({"broker-a", "broker-b"}, set())


async def test_a_topic_without_route_is_deleted_if_its_brokers_are_registered() -> None:
    session = FakeSession()
    session.topic_exists = False
    found = await inspector(session).snapshot(ALL)
    assert (found.deleted_topics, found.unreachable, found.bounds) == ({"T"}, {}, {})
    with pytest.raises(NotFoundError, match="topic T does not exist"):
        await inspector(session).first_snapshot()


async def test_a_topic_is_not_deleted_while_its_only_broker_restarts() -> None:
    """The route is from before the broker registered again, the list of brokers from after."""
    session = FakeSession()
    looker = inspector(session)
    brokers, session.brokers = session.brokers, {}
    away = await looker.snapshot(ALL)
    assert (set(away.unreachable), away.deleted_topics) == ({"broker-a", "broker-b"}, set())
    session.brokers = brokers
    back = await looker.snapshot(ALL)
    assert (back.unreachable, back.deleted_topics, back.unreadable) == ({}, set(), set())
    assert back.bounds == dict.fromkeys(ALL, Bounds(1, 10))


async def test_queues_that_the_route_no_longer_names_are_unreadable() -> None:
    session = FakeSession()
    session.queue_count = 1
    found = await inspector(session).snapshot(ALL)
    assert set(found.bounds) == ALL  # so it is known whether everything in them was read
    assert found.unreadable == {queue(1), queue(1, "broker-b")}


async def test_queues_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"no topic has the queue broker-a:7: readable are topic"):
        await inspector(FakeSession(), queues="broker-a:1,broker-a:7").first_snapshot()
    found = await inspector(FakeSession(), queues="broker-a:1").first_snapshot()
    assert set(found.bounds) == {queue(1)}
