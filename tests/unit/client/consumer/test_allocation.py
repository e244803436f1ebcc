"""Shares of queues: printed vectors, Java's own results, and nothing lost or given twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.consumer.allocation import (
    Allocation,
    Averagely,
    ByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    NearbyMachineRoom,
)
from skylark.core.errors import ClientError
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.client.consumer.samples import GOLDEN, queue


def room_of_queue(each: MessageQueue) -> str:
    room, at, _ = each.broker_name.partition("@")
    return room if at else "r0"


def room_of_member(client_id: str) -> str:
    return client_id.partition("-")[0]


def nearby(inner: Allocation) -> NearbyMachineRoom:
    return NearbyMachineRoom(inner, room_of_queue, room_of_member)


STRATEGIES: dict[str, Allocation] = {
    strategy.name: strategy
    for strategy in (
        Averagely(),
        ByCircle(),
        ByMachineRoom({"r1", "r2"}),
        ConsistentHash(),
        nearby(Averagely()),
        nearby(ConsistentHash()),
    )
}


def shares(
    strategy: Allocation, queues: Sequence[MessageQueue], members: Sequence[str]
) -> list[str]:
    """The queue ids of each member."""
    return [
        "".join(str(each.queue_id) for each in strategy.allocate("G", member, queues, members))
        for member in members
    ]


def queues_of(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [queue(queue_id, broker=broker) for queue_id in range(count)]


@pytest.mark.spec("client.8.21")
def test_printed_shares() -> None:
    three = ["a", "b", "c"]
    assert shares(Averagely(), queues_of(8), three) == ["012", "345", "67"]
    assert shares(Averagely(), queues_of(2), three) == ["0", "1", ""]
    assert shares(Averagely(), queues_of(10), ["a", "b", "c", "d"]) == ["012", "345", "67", "89"]
    assert shares(ByCircle(), queues_of(8), three) == ["036", "147", "25"]
    in_room = queues_of(8, "r1@a")
    assert shares(ByMachineRoom({"r1"}), in_room, three) == ["016", "237", "45"]


@pytest.mark.spec("client.8.22")
def test_printed_shares_of_the_ring() -> None:
    members = ["10.0.0.1@1", "10.0.0.2@2", "10.0.0.3@3"]
    assert shares(ConsistentHash(), queues_of(8), members) == ["347", "25", "016"]


def test_shares_are_those_of_java() -> None:
    seen = Counter[str]()
    for line in (GOLDEN / "allocations.jsonl").read_text().splitlines():
        case = json.loads(line)
        queues = [queue(queue_id, broker=broker) for broker, queue_id in case["queues"]]
        members = list(case["shares"])
        strategy = STRATEGIES[case["strategy"]]
        for member, indexes in case["shares"].items():
            found = strategy.allocate("G", member, queues, members)
            assert found == [queues[index] for index in indexes], line
        seen[strategy.name] += 1
    assert seen == dict.fromkeys(STRATEGIES, 12)


@settings(max_examples=200, deadline=None)
@given(
    st.sets(st.tuples(st.sampled_from(["r1@a", "r2@a", "r2@b"]), st.integers(0, 9))),
    st.sets(st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.integers(0, 99)), min_size=1),
)
def test_no_queue_is_left_out_or_given_twice(
    places: set[tuple[str, int]], names: set[tuple[str, int]]
) -> None:
    queues = sorted(queue(queue_id, broker=broker) for broker, queue_id in places)
    members = sorted(f"{room}-10.0.0.1@{number}" for room, number in names)
    for strategy in STRATEGIES.values():
        given_out = Counter[MessageQueue]()
        for member in members:
            given_out.update(strategy.allocate("G", member, queues, members))
        assert given_out == Counter(queues), strategy.name


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=lambda each: each.name)
def test_a_stranger_gets_nothing(strategy: Allocation) -> None:
    assert strategy.allocate("G", "r1-x", queues_of(4, "r1@a"), ["r1-a", "r1-b"]) == []


def test_configured_queues_are_not_looked_at() -> None:
    mine = [queue(7, topic="Other")]
    strategy = ByConfig(mine)
    assert strategy.name == "CONFIG"
    assert strategy.allocate("G", "x", queues_of(4), ["a"]) == mine


def test_only_brokers_of_the_rooms_are_shared() -> None:
    queues = [queue(0, broker=name) for name in ("r1@a", "r2@a", "plain", "r1@a@b", "@r1")]
    assert ByMachineRoom({"r1"}).allocate("G", "a", queues, ["a"]) == [queues[0]]


def test_a_room_must_be_known() -> None:
    strategy = NearbyMachineRoom(Averagely(), lambda _: "", room_of_member)
    with pytest.raises(ClientError, match="machine room of MessageQueue"):
        strategy.allocate("G", "r1-a", queues_of(1), ["r1-a"])
    strategy = NearbyMachineRoom(Averagely(), room_of_queue, lambda _: "")
    with pytest.raises(ClientError, match="machine room of r1-a"):
        strategy.allocate("G", "r1-a", queues_of(1), ["r1-a"])


def test_a_queue_on_the_place_of_a_member_is_its_own() -> None:
    places = {"a-0": 5, "b-0": 9}
    strategy = ConsistentHash(1, lambda text: places.get(text, 5))
    assert shares(strategy, queues_of(2), ["a", "b"]) == ["01", ""]
    beyond = ConsistentHash(1, lambda text: places.get(text, 10))
    assert shares(beyond, queues_of(2), ["a", "b"]) == ["01", ""]


def test_a_ring_needs_nodes() -> None:
    with pytest.raises(ClientError, match="at least one"):
        ConsistentHash(0)
