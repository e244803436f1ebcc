"""Which half messages are decided: pure, on plain numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.transaction import decisions as module
from skylark.broker.transaction.decisions import BLOCK_SIZE, Fate, Resolved


def test_a_decision_is_found_by_every_copy() -> None:
    resolved = Resolved()
    assert resolved.fate(5, 5) is Fate.OPEN
    resolved.copied(5, 9)
    resolved.copied(5, 12)
    for offset in (5, 9, 12):
        assert resolved.fate(offset, 5) is Fate.OPEN
    assert resolved.decide(9, 5, Fate.COMMITTED) == [9, 5, 12]
    for offset in (5, 9, 12):
        assert resolved.fate(offset, 5) is Fate.COMMITTED
    assert resolved.fate(6, 6) is Fate.OPEN
    assert resolved.copies == {}


def test_what_was_given_up_can_be_opened_again() -> None:
    resolved = Resolved()
    resolved.copied(5, 9)
    resolved.decide(9, 5, Fate.GIVEN_UP)
    assert resolved.fate(9, 5) is Fate.GIVEN_UP
    resolved.reopen(5, 20)
    assert resolved.fate(20, 5) is Fate.OPEN
    assert resolved.next_open(0, 21) == 0
    assert resolved.next_open(9, 21) == 10
    assert resolved.decide(20, 5, Fate.ROLLED_BACK) == [20, 5]
    assert resolved.fate(9, 5) is Fate.ROLLED_BACK


def test_below_the_floor_only_copies_and_what_was_read_are_known() -> None:
    resolved = Resolved(100)
    assert resolved.fate(99, 99) is None
    assert resolved.fate(100, 100) is Fate.OPEN
    resolved.read_op(50)
    assert resolved.fate(50, 50) is Fate.DECIDED
    resolved.read_copy(120, 60)
    assert resolved.fate(60, 60) is Fate.OPEN
    assert resolved.fate(80, 60) is Fate.OPEN
    assert resolved.decide(60, 60, Fate.COMMITTED) == [60, 120]
    assert resolved.fate(120, 60) is Fate.COMMITTED


def test_what_the_log_says_fits_together() -> None:
    resolved = Resolved(10)
    resolved.read_op(12)  # a Java broker names the copy only
    resolved.read_op(15)
    resolved.read_final(15, 3)
    resolved.read_op(15)  # says less
    resolved.read_copy(11, 11)
    resolved.read_copy(12, 4)
    resolved.read_copy(13, 5)
    resolved.read_copy(14, 5)  # the one before was not passed when the process was killed
    resolved.read_copy(16, 3)
    assert resolved.fate(4, 4) is Fate.DECIDED
    assert resolved.fate(16, 3) is resolved.fate(15, 15) is Fate.COMMITTED
    assert resolved.copies == {5: 14}
    assert [offset for offset in range(10, 17) if not resolved.at(offset)] == [10, 11, 14]


def test_long_runs_of_decided_messages_are_passed_over() -> None:
    resolved = Resolved()
    count = 3 * BLOCK_SIZE
    for offset in range(count):
        resolved.decide(offset, offset, Fate.COMMITTED)
    assert resolved.next_open(0, count) == count
    assert resolved.next_open(0, count + 5) == count
    assert resolved.next_open(7, 9) == 9
    assert resolved.next_open(9, 7) == 7


def test_old_blocks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLD_BLOCKS_MAX", 2)
    resolved = Resolved()
    for number in range(6):
        resolved.decide(number * BLOCK_SIZE, number * BLOCK_SIZE, Fate.COMMITTED)
    resolved.forget_below(5 * BLOCK_SIZE + 1)
    assert resolved.floor == 3 * BLOCK_SIZE
    assert resolved.fate(2 * BLOCK_SIZE, 2 * BLOCK_SIZE) is None
    assert resolved.fate(3 * BLOCK_SIZE, 3 * BLOCK_SIZE) is Fate.COMMITTED
    # Nothing that may be undecided is forgotten, however much there is.
    resolved.forget_below(3 * BLOCK_SIZE)
    assert resolved.fate(5 * BLOCK_SIZE, 5 * BLOCK_SIZE) is Fate.COMMITTED


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["new", "copy", "decide", "repeat"]), st.integers(0, 20)))
)
def test_every_message_is_decided_at_most_once(steps: list[tuple[str, int]]) -> None:
    """Whatever copies are made and whichever is named, the first decision stands."""
    resolved = Resolved()
    messages: list[list[int]] = []  # the copies of each
    fates: dict[int, Fate] = {}
    size = 0
    for step, number in steps:
        if step == "new" or not messages:
            messages.append([size])
            size += 1
            continue
        which = number % len(messages)
        copies = messages[which]
        fate = resolved.fate(copies[number % len(copies)], copies[0])
        assert fate == fates.get(which, Fate.OPEN)
        if fate:
            continue
        if step == "copy":
            copies.append(size)
            resolved.copied(copies[0], size)
            size += 1
        else:
            fates[which] = Fate.COMMITTED if number % 2 else Fate.ROLLED_BACK
            named = resolved.decide(copies[number % len(copies)], copies[0], fates[which])
            assert {copies[0], copies[-1]} <= set(named)
    undecided = {copies[-1] for which, copies in enumerate(messages) if which not in fates}
    assert {offset for offset in range(size) if not resolved.at(offset)} == undecided


def test_what_is_surely_open_and_alone() -> None:
    resolved = Resolved(floor=3)
    assert [resolved.is_open_alone(offset) for offset in (2, 3, 100_000)] == [False, True, True]
    resolved.decide(4, 4, Fate.COMMITTED)
    resolved.copied(5, 6)
    resolved.pass_over(7)
    resolved.decide(8, 8, Fate.GIVEN_UP)
    assert [offset for offset in range(3, 10) if resolved.is_open_alone(offset)] == [3, 6, 9]
    resolved.reopen(8, 9)
    assert not resolved.is_open_alone(8)
