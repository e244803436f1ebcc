"""The table of outcomes of half messages, without a store."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.transaction import decisions as module
from skylark.broker.transaction.decisions import BLOCK_SIZE, Decisions, HalfOutcome


def test_a_decision_is_found_by_every_copy() -> None:
    decisions = Decisions()
    assert decisions.outcome(5, 5) is HalfOutcome.OPEN
    decisions.copied(5, 9)
    decisions.copied(5, 12)
    for offset in (5, 9, 12):
        assert decisions.outcome(offset, 5) is HalfOutcome.OPEN
    assert decisions.decide(9, 5, HalfOutcome.COMMITTED) == [9, 5, 12]
    for offset in (5, 9, 12):
        assert decisions.outcome(offset, 5) is HalfOutcome.COMMITTED
    assert decisions.outcome(6, 6) is HalfOutcome.OPEN
    assert decisions.copies == {}


def test_a_message_that_was_given_up_can_be_reopened() -> None:
    decisions = Decisions()
    decisions.copied(5, 9)
    decisions.decide(9, 5, HalfOutcome.GIVEN_UP)
    assert decisions.outcome(9, 5) is HalfOutcome.GIVEN_UP
    decisions.reopen(5, 20)
    assert decisions.outcome(20, 5) is HalfOutcome.OPEN
    assert decisions.next_undecided(0, 21) == 0
    assert decisions.next_undecided(9, 21) == 10
    assert decisions.decide(20, 5, HalfOutcome.ROLLED_BACK) == [20, 5]
    assert decisions.outcome(9, 5) is HalfOutcome.ROLLED_BACK


def test_below_the_floor_only_copies_and_recovered_decisions_are_known() -> None:
    decisions = Decisions(100)
    assert decisions.outcome(99, 99) is None
    assert decisions.outcome(100, 100) is HalfOutcome.OPEN
    decisions.read_op(50)
    assert decisions.outcome(50, 50) is HalfOutcome.DECIDED
    decisions.read_copy(120, 60)
    assert decisions.outcome(60, 60) is HalfOutcome.OPEN
    assert decisions.outcome(80, 60) is HalfOutcome.OPEN
    assert decisions.decide(60, 60, HalfOutcome.COMMITTED) == [60, 120]
    assert decisions.outcome(120, 60) is HalfOutcome.COMMITTED


def test_decisions_recovered_from_the_log_are_combined() -> None:
    decisions = Decisions(10)
    decisions.read_op(12)  # a Java broker names the copy only
    decisions.read_op(15)
    decisions.read_final(15, 3)
    decisions.read_op(15)  # does not replace the commit
    decisions.read_copy(11, 11)
    decisions.read_copy(12, 4)
    decisions.read_copy(13, 5)
    decisions.read_copy(14, 5)  # the one before was not passed when the process was killed
    decisions.read_copy(16, 3)
    assert decisions.outcome(4, 4) is HalfOutcome.DECIDED
    assert decisions.outcome(16, 3) is decisions.outcome(15, 15) is HalfOutcome.COMMITTED
    assert decisions.copies == {5: 14}
    assert [offset for offset in range(10, 17) if not decisions.outcome_at(offset)] == [10, 11, 14]


def test_long_runs_of_decided_messages_are_skipped() -> None:
    decisions = Decisions()
    count = 3 * BLOCK_SIZE
    for offset in range(count):
        decisions.decide(offset, offset, HalfOutcome.COMMITTED)
    assert decisions.next_undecided(0, count) == count
    assert decisions.next_undecided(0, count + 5) == count
    assert decisions.next_undecided(7, 9) == 9
    assert decisions.next_undecided(9, 7) == 7


def test_old_blocks_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLD_BLOCKS_MAX", 2)
    decisions = Decisions()
    for number in range(6):
        decisions.decide(number * BLOCK_SIZE, number * BLOCK_SIZE, HalfOutcome.COMMITTED)
    decisions.forget_below(5 * BLOCK_SIZE + 1)
    assert decisions.floor == 3 * BLOCK_SIZE
    assert decisions.outcome(2 * BLOCK_SIZE, 2 * BLOCK_SIZE) is None
    assert decisions.outcome(3 * BLOCK_SIZE, 3 * BLOCK_SIZE) is HalfOutcome.COMMITTED
    # Nothing that may be undecided is forgotten, however much there is.
    decisions.forget_below(3 * BLOCK_SIZE)
    assert decisions.outcome(5 * BLOCK_SIZE, 5 * BLOCK_SIZE) is HalfOutcome.COMMITTED


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["new", "copy", "decide", "repeat"]), st.integers(0, 20)))
)
def test_every_message_is_decided_at_most_once(steps: list[tuple[str, int]]) -> None:
    """The first decision stands, for any copies and for any copy that it names."""
    decisions = Decisions()
    messages: list[list[int]] = []  # the copies of each
    outcomes: dict[int, HalfOutcome] = {}
    size = 0
    for step, number in steps:
        if step == "new" or not messages:
            messages.append([size])
            size += 1
            continue
        which = number % len(messages)
        copies = messages[which]
        outcome = decisions.outcome(copies[number % len(copies)], copies[0])
        assert outcome == outcomes.get(which, HalfOutcome.OPEN)
        if outcome:
            continue
        if step == "copy":
            copies.append(size)
            decisions.copied(copies[0], size)
            size += 1
        else:
            outcomes[which] = HalfOutcome.COMMITTED if number % 2 else HalfOutcome.ROLLED_BACK
            named = decisions.decide(copies[number % len(copies)], copies[0], outcomes[which])
            assert {copies[0], copies[-1]} <= set(named)
    undecided = {copies[-1] for which, copies in enumerate(messages) if which not in outcomes}
    assert {offset for offset in range(size) if not decisions.outcome_at(offset)} == undecided


def test_undecided_messages_without_copies() -> None:
    decisions = Decisions(floor=3)
    assert [decisions.is_sole_undecided(offset) for offset in (2, 3, 100_000)] == [
        False,
        True,
        True,
    ]
    decisions.decide(4, 4, HalfOutcome.COMMITTED)
    decisions.copied(5, 6)
    decisions.pass_over(7)
    decisions.decide(8, 8, HalfOutcome.GIVEN_UP)
    assert [offset for offset in range(3, 10) if decisions.is_sole_undecided(offset)] == [3, 6, 9]
    decisions.reopen(8, 9)
    assert not decisions.is_sole_undecided(8)
