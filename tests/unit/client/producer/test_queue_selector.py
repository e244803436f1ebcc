"""Queue choice: turns, retries, faults, and keys as Java hashes them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.core.client_message import Message
from skylark.client.producer.queue_selector import (
    RoundRobin,
    apply_selector,
    choose_in_turn,
    select_by_hash,
    select_randomly,
    shard_index,
)
from skylark.core.errors import ClientError
from skylark.core.hashing import java_hash
from skylark.wire.bodies.common_body import MessageQueue


def queues(**counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic="T", broker_name=name, queue_id=number)
        for name, count in counts.items()
        for number in range(count)
    ]


class Faults:
    def __init__(self, available: str, reachable: str) -> None:
        self._available = available
        self._reachable = reachable

    def is_available(self, broker_name: str) -> bool:
        return broker_name in self._available

    def is_reachable(self, broker_name: str) -> bool:
        return broker_name in self._reachable


@pytest.mark.spec("client.8.15")
def test_keys_have_the_queues_that_java_gives_them() -> None:
    assert [shard_index(key, 4) for key in ("order-1", "order-2")] == [2, 1]
    assert java_hash("polygenelubricants") == -(2**31)
    assert shard_index("polygenelubricants", 4) == 0


def test_integers_hash_as_integer_and_long() -> None:
    assert shard_index(7, 4) == 3
    assert shard_index(-7, 4) == 3  # Java: abs(-7 % 4)
    assert shard_index(-(2**31), 7) == 2  # 2147483648 % 7
    assert shard_index(2**31, 7) == 2  # Long: 0x80000000 folds to -2147483648
    assert shard_index(2**32 + 5, 10) == 4  # 5 ^ 1
    assert shard_index(-1 - 2**40, 100) == (1 << 8) % 100  # 0xFFFFFEFF ^ 0xFFFFFFFF = 0x100
    with pytest.raises(ClientError, match="64 bits"):
        shard_index(2**63, 4)
    with pytest.raises(ClientError, match="not float"):
        shard_index(1.5, 4)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1)), st.integers(1, 1000))
def test_a_key_always_has_a_queue(key: str | int, count: int) -> None:
    assert 0 <= shard_index(key, count) < count


def test_turns_go_round_from_anywhere() -> None:
    turn = RoundRobin(random.Random(1))
    first = turn.draw(4)
    assert [turn.draw(4) for _ in range(4)] == [(first + n) % 4 for n in (1, 2, 3, 4)]
    assert len({RoundRobin(random.Random(seed)).draw(1000) for seed in range(20)}) > 10


def test_the_count_never_becomes_negative() -> None:
    turn = RoundRobin(random.Random(1))
    turn._count = 0x7FFF_FFFF
    assert turn.draw(5) == 0


def test_a_retry_goes_to_another_broker_if_there_is_one() -> None:
    turn = RoundRobin(random.Random(3))
    two = queues(a=4, b=1)
    assert {choose_in_turn(two, turn, "a").broker_name for _ in range(20)} == {"b"}
    one = queues(a=4)
    assert {choose_in_turn(one, turn, "a").queue_id for _ in range(8)} == {0, 1, 2, 3}
    assert {choose_in_turn(two, turn) for _ in range(5)} == set(two)


@pytest.mark.parametrize(
    ("available", "reachable", "last", "expected"),
    [
        ("ab", "abc", None, {"a", "b"}),
        ("ab", "abc", "a", {"b"}),
        ("a", "ac", "a", {"c"}),  # nothing available but the last one: what is reachable
        ("", "c", None, {"c"}),
        ("", "", None, {"a", "b", "c"}),  # all isolated: still sends
        ("", "", "a", {"a", "b", "c"}),
    ],
)
@pytest.mark.spec("client.8.14")
def test_brokers_in_trouble_are_passed_over(
    available: str, reachable: str, last: str | None, expected: set[str]
) -> None:
    turn = RoundRobin(random.Random(5))
    three = queues(a=2, b=2, c=2)
    faults = Faults(available, reachable)
    chosen = {choose_in_turn(three, turn, last, faults).broker_name for _ in range(60)}
    assert chosen == expected


def test_with_fault_tolerance_retries_go_on_at_a_random_place() -> None:
    many = queues(a=1000, b=1000)
    places = set()
    for seed in range(20):
        turn = RoundRobin(random.Random(seed))
        turn._count = 0
        places.add(choose_in_turn(many, turn, "a", Faults("ab", "ab")).queue_id)
    assert len(places) > 2
    turn._count = 0
    assert choose_in_turn(many, turn, None, Faults("ab", "ab")) == many[1]


def test_selectors() -> None:
    message = Message("T", b"x")
    four = queues(a=4)
    assert select_by_hash(four, message, "order-1") == four[2]
    assert {select_randomly(four, message, None) for _ in range(100)} == set(four)
    assert apply_selector(lambda q, m, arg: q[arg], four, message, 3) == four[3]
    with pytest.raises(ClientError, match="the selector failed: IndexError") as raised:
        apply_selector(lambda q, m, arg: q[arg], four, message, 9)
    assert isinstance(raised.value.__cause__, IndexError)
    with pytest.raises(ClientError, match="the selector returned None"):
        apply_selector(lambda q, m, arg: None, four, message, None)
    with pytest.raises(ClientError, match="returned int"):
        apply_selector(lambda q, m, arg: 1, four, message, None)  # type: ignore[arg-type, return-value]
