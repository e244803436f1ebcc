"""Shares of queues."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.groups.queue_assignment import STRATEGIES, allocate, allocate_pop
from skylark.wire.bodies.common_body import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue(topic="T", broker_name="b", queue_id=n) for n in range(count)]


def shares(strategy: str, queue_count: int, member_count: int) -> list[list[int]]:
    members = [f"c{n}" for n in range(member_count)]
    found = [allocate(strategy, queues(queue_count), members, member) for member in members]
    return [[queue.queue_id for queue in share or []] for share in found]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("AVG", [[0, 1, 2], [3, 4], [5, 6]]),
        ("AVG_BY_CIRCLE", [[0, 3, 6], [1, 4], [2, 5]]),
    ],
)
def test_seven_queues_for_three_members(strategy: str, expected: list[list[int]]) -> None:
    assert shares(strategy, 7, 3) == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_members_than_queues(strategy: str) -> None:
    assert shares(strategy, 2, 4) == [[0], [1], [], []]


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(0, 50), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_every_queue_has_one_consumer_and_shares_are_even(
    strategy: str, queue_count: int, member_count: int
) -> None:
    found = shares(strategy, queue_count, member_count)
    assert sorted(number for share in found for number in share) == list(range(queue_count))
    sizes = [len(share) for share in found]
    assert max(sizes) - min(sizes) <= 1


def test_the_order_of_members_and_queues_does_not_matter() -> None:
    first = allocate("AVG", queues(5), ["a", "b"], "a")
    assert first == allocate("AVG", reversed(queues(5)), ["b", "a"], "a")


def test_strangers_get_nothing_and_unknown_strategies_no_answer() -> None:
    assert allocate("AVG", queues(5), ["a"], "b") == []
    assert allocate("MACHINE_ROOM", queues(5), ["a"], "a") is None
    assert allocate(None, queues(5), ["a"], "a") is None


def test_pop_members_beyond_the_queues_share_one_each() -> None:
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=index) for index in range(2)]
    members = ["c1", "c2", "c3", "c4"]
    shares = [allocate_pop("AVG", queues, members, member, 1) for member in members]
    assert [[queue.queue_id for queue in share or []] for share in shares] == [[0], [1], [0], [1]]
    assert allocate_pop("AVG", queues, members, "stranger", 1) == []
    everything = allocate_pop("AVG", queues, members, "stranger", 3) or []
    assert [queue.queue_id for queue in everything] == [-1]
