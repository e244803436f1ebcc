"""The judge of the storms: which deliveries it accepts, and which it refuses."""

from __future__ import annotations

import pytest

from tests.support.pop_deliveries import STAY_MS, Deliveries, Place

FIRST: Place = ("0", 1, 7)
COPY: Place = ("1", 0, 0)
SECOND_COPY: Place = ("1", 0, 1)


def popped_and_acked(*, merging: bool) -> Deliveries:
    judge = Deliveries(merging=merging)
    judge.popped(b"m", FIRST, 0, 100)
    judge.ack_sent(b"m", FIRST, 190)
    assert not judge.messages[b"m"].is_settled
    judge.acked(b"m", FIRST, 200)
    assert not judge.must_come(b"m")
    return judge


@pytest.mark.parametrize("place", [FIRST, COPY])
def test_what_was_acked_does_not_come_again(place: Place) -> None:
    judge = popped_and_acked(merging=False)
    judge.kills_ms.append(300)
    with pytest.raises(AssertionError):
        judge.popped(b"m", place, 1, 400)


@pytest.mark.parametrize("place", [FIRST, COPY])
@pytest.mark.parametrize(("kill_ms", "is_allowed"), [(300, True), (201 + STAY_MS, False)])
def test_merging_repeats_what_was_acked_shortly_before_a_kill(
    place: Place, kill_ms: int, is_allowed: bool
) -> None:
    judge = popped_and_acked(merging=True)
    judge.kills_ms.append(kill_ms)
    if not is_allowed:
        with pytest.raises(AssertionError):
            judge.popped(b"m", place, 1, kill_ms + 1)
        return
    judge.popped(b"m", place, 1, kill_ms + 1)
    assert (judge.repeat_count, judge.redelivered_count) == (1, 0)
    assert not judge.must_come(b"m")  # one ack in time is enough


def test_one_copy_of_a_message_that_was_not_acked() -> None:
    judge = Deliveries(merging=False)
    assert judge.must_come(b"m")
    judge.popped(b"m", FIRST, 0, 100)
    assert judge.must_come(b"m")
    judge.popped(b"m", COPY, 1, 5_000)
    with pytest.raises(AssertionError, match="a copy"):
        judge.popped(b"m", SECOND_COPY, 1, 6_000)
    judge.popped(b"m", SECOND_COPY, 2, 6_000)
    assert (judge.repeat_count, judge.redelivered_count) == (0, 2)
    with pytest.raises(AssertionError, match="twice"):
        judge.popped(b"m", SECOND_COPY, 2, 7_000)


def test_an_ack_that_was_not_answered_says_nothing() -> None:
    judge = Deliveries(merging=False)
    judge.popped(b"m", FIRST, 0, 100)
    judge.ack_sent(b"m", FIRST, 190)
    assert not judge.must_come(b"m")
    judge.popped(b"m", COPY, 1, 5_000)
    assert judge.must_come(b"m")
