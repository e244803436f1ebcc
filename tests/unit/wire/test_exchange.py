"""Pending calls: answers, deadlines, late answers, wrapping correlation ids."""

from __future__ import annotations

import random

from skylark.wire.exchange import OpaqueCounter, PendingCalls


def test_opaque_wraps_to_negative_numbers() -> None:
    counter = OpaqueCounter(2**31 - 2)
    assert [counter.take() for _ in range(4)] == [2**31 - 2, 2**31 - 1, -(2**31), -(2**31) + 1]


def test_a_response_is_taken_once_and_a_late_one_matches_no_call() -> None:
    calls: PendingCalls[str] = PendingCalls()
    calls.add(1, 10.0, "one")
    calls.add(2, 5.0, "two")
    assert calls.take(1) == "one"
    assert calls.take(1) is None
    assert calls.next_deadline() == 5.0
    assert calls.expire(4.9) == []
    assert calls.expire(5.0) == ["two"]
    assert calls.take(2) is None
    assert calls.next_deadline() is None
    assert len(calls) == 0


def test_an_opaque_may_be_used_again_while_its_old_deadline_is_still_known() -> None:
    calls: PendingCalls[str] = PendingCalls()
    calls.add(7, 1.0, "old")
    assert calls.take(7) == "old"
    calls.add(7, 9.0, "new")
    assert calls.expire(5.0) == []
    assert calls.take(7) == "new"


def test_expiry_is_in_order_of_deadline_and_the_heap_stays_small() -> None:
    calls: PendingCalls[int] = PendingCalls()
    rng = random.Random(7)
    for opaque in range(20_000):
        calls.add(opaque, rng.random(), opaque)
        if opaque % 100:
            calls.take(opaque)
    assert len(calls) == 200
    assert len(calls._deadlines) < 1000
    deadlines = {opaque: calls._calls[opaque][0] for opaque in range(0, 20_000, 100)}
    assert calls.expire(1.0) == sorted(deadlines, key=lambda opaque: deadlines[opaque])


def test_drain_returns_all_calls_in_order() -> None:
    calls: PendingCalls[str] = PendingCalls()
    calls.add(3, 1.0, "a")
    calls.add(1, 0.5, "b")
    assert calls.drain() == ["a", "b"]
    assert calls.next_deadline() is None
