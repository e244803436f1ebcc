"""The accumulator: what goes together, when, and that no byte is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.producer.send_accumulator import Accumulator, AccumulatorLimits, Batch


def made(**limits: float) -> Accumulator[str, int]:
    return Accumulator(AccumulatorLimits(**limits))  # type: ignore[arg-type]


def wants_turn(accumulator: Accumulator[str, int]) -> bool:
    return accumulator.wants_turn


def entries(batches: list[Batch[str, int]]) -> list[list[int]]:
    return [batch.entries for batch in batches]


@pytest.mark.spec("client.8.17")
def test_what_comes_in_one_turn_goes_at_its_end() -> None:
    accumulator = made()
    assert not wants_turn(accumulator)
    for number in range(10):
        assert accumulator.add("k", number, 100, 1.0) is None
    accumulator.add("other", 99, 10, 1.0)
    assert wants_turn(accumulator)
    assert accumulator.size == 1010
    first, second = accumulator.turn_ended()
    assert (first.key, first.entries, first.size) == ("k", list(range(10)), 1000)
    assert (second.key, second.entries) == ("other", [99])
    assert not wants_turn(accumulator)
    assert len(accumulator) == 0
    accumulator.ended(first)
    accumulator.ended(second)
    assert accumulator.size == 0


def test_under_load_messages_collect_until_an_answer_comes() -> None:
    accumulator = made(in_flight_max=2)
    flying = []
    for number in range(2):
        accumulator.add("k", number, 1, 0.0)
        flying += accumulator.turn_ended()
    accumulator.add("k", 2, 1, 0.001)
    assert not wants_turn(accumulator)
    assert accumulator.turn_ended() == []
    accumulator.add("free", 7, 1, 0.001)  # another key does not wait
    assert wants_turn(accumulator)
    assert entries(accumulator.turn_ended()) == [[7]]
    accumulator.add("k", 3, 1, 0.002)
    assert not wants_turn(accumulator)
    accumulator.ended(flying[0])
    assert wants_turn(accumulator)
    accumulator.add("k", 4, 1, 0.002)  # whom the answer has woken goes along
    assert entries(accumulator.turn_ended()) == [[2, 3, 4]]


def test_nobody_waits_for_an_answer_longer_than_the_delay() -> None:
    accumulator = made(in_flight_max=1, delay_max_s=0.010)
    accumulator.add("k", 0, 1, 5.0)
    accumulator.turn_ended()
    assert accumulator.next_due() is None
    accumulator.add("k", 1, 1, 5.1)
    accumulator.turn_ended()
    assert accumulator.next_due() == pytest.approx(5.11)
    assert accumulator.release_due(5.109) == []
    assert entries(accumulator.release_due(5.111)) == [[1]]
    assert accumulator.next_due() is None


def test_a_full_batch_goes_at_once() -> None:
    accumulator = made(size_max=100)
    assert accumulator.add("k", 0, 60, 0.0) is None
    assert accumulator.add("k", 1, 40, 0.0) is None
    full = accumulator.add("k", 2, 1, 0.0)
    assert full is not None
    assert (full.entries, full.size) == ([0, 1], 100)
    assert entries(accumulator.turn_ended()) == [[2]]
    accumulator = made(count_max=2)
    accumulator.add("k", 0, 1, 0.0)
    full = accumulator.add("k", 1, 1, 0.0)
    assert full is not None
    assert full.entries == [0, 1]
    assert accumulator.turn_ended() == []


def test_full_batches_wait_where_many_are_on_their_way() -> None:
    accumulator = made(count_max=2, in_flight_max=1, full_in_flight_max=2, delay_max_s=0.010)
    flying = []
    for number in range(7):
        full = accumulator.add("k", number, 1, 0.0)
        flying += [full] if full else []
    assert entries(flying) == [[0, 1], [2, 3]]
    assert len(accumulator) == 2  # a full one, and a begun one behind it
    assert accumulator.turn_ended() == []
    assert accumulator.next_due() is None  # however old: only an answer lets them go
    assert accumulator.release_due(9.0) == []
    accumulator.ended(flying[0])
    assert wants_turn(accumulator)
    assert entries(accumulator.turn_ended()) == [[4, 5]]
    accumulator.add("k", 7, 1, 0.001)
    assert entries(accumulator.turn_ended()) == []
    assert accumulator.next_due() is None
    accumulator.add("other", 8, 1, 0.002)
    assert accumulator.next_due() == pytest.approx(0.012)
    assert entries(accumulator.drain()) == [[6, 7], [8]]


def test_full_batches_wait_for_answers_with_a_linger_too() -> None:
    accumulator = made(count_max=1, full_in_flight_max=1, linger_s=0.5)
    first = accumulator.add("k", 0, 1, 0.0)
    assert first is not None
    assert accumulator.add("k", 1, 1, 0.0) is None
    assert accumulator.next_due() is None
    accumulator.ended(first)
    assert wants_turn(accumulator)
    assert entries(accumulator.turn_ended()) == [[1]]


def test_with_a_linger_batches_wait_for_company() -> None:
    accumulator = made(linger_s=0.5)
    accumulator.add("k", 0, 1, 1.0)
    assert not wants_turn(accumulator)
    assert accumulator.turn_ended() == []
    accumulator.add("k", 1, 1, 1.4)
    accumulator.add("l", 2, 1, 1.4)
    assert accumulator.next_due() == 1.5
    (batch,) = accumulator.release_due(1.5)
    assert batch.entries == [0, 1]
    assert accumulator.next_due() == pytest.approx(1.9)
    accumulator.add("k", 3, 1, 1.6)
    accumulator.ended(batch)
    assert not wants_turn(accumulator)  # it still lingers
    assert entries(accumulator.drain()) == [[2], [3]]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.sampled_from("aaaatel")),
        max_size=60,
    ),
    st.sampled_from([0.0, 0.01]),
)
def test_every_message_goes_once_and_every_byte_comes_back(
    steps: list[tuple[str, int, str]], linger_s: float
) -> None:
    accumulator = made(
        size_max=100, count_max=4, in_flight_max=2, full_in_flight_max=3, linger_s=linger_s
    )
    flying: list[Batch[str, int]] = []
    gone: list[int] = []
    now = 0.0

    def go(batches: list[Batch[str, int]]) -> None:
        for batch in batches:
            assert 0 < len(batch.entries) <= 4
            assert batch.size <= 100
            flying.append(batch)
            gone.extend(batch.entries)

    for number, (key, size, action) in enumerate(steps):
        now += 0.004
        full = accumulator.add(key, number, size, now)
        go([full] if full else [])
        if action == "t" and wants_turn(accumulator):
            go(accumulator.turn_ended())
        elif action == "e" and flying:
            accumulator.ended(flying.pop(0))
        elif action == "l":
            go(accumulator.release_due(now))
            when = accumulator.next_due()
            assert when is None or when > now
    go(accumulator.drain())
    assert sorted(gone) == list(range(len(steps)))
    for batch in flying:
        accumulator.ended(batch)
    assert (accumulator.size, len(accumulator), accumulator.next_due()) == (0, 0, None)
    for key in "abc":  # of each key, in order
        numbers = [n for n, step in enumerate(steps) if step[0] == key]
        assert [n for n in gone if steps[n][0] == key] == numbers
