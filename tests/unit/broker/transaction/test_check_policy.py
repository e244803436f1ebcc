"""What a round does with an undecided half message: pure, on plain numbers."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.broker.transaction.check_policy import CheckRules, Verdict, Waiting, due_ms, judge
from tests.unit.broker.transaction.halves import half_of

HOUR_MS = 3_600_000
RULES = CheckRules(timeout_ms=6_000, check_count_max=15, age_max_ms=72 * HOUR_MS)
BORN_MS = 1_000_000_000


def verdict(age_ms: int, *, stored_ms: int = BORN_MS, **changes: Any) -> Verdict:
    half = half_of(born_timestamp=BORN_MS, store_timestamp=stored_ms, **changes)
    now_ms = BORN_MS + age_ms
    return judge(half, RULES, started_ms=now_ms, now_ms=now_ms)


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        (1, Verdict.STOP), (6_000, Verdict.STOP), (6_001, Verdict.ASK),
        (72 * HOUR_MS, Verdict.ASK), (72 * HOUR_MS + 1, Verdict.GIVE_UP),
    ],
)  # fmt: skip
def test_age_decides(age_ms: int, expected: Verdict) -> None:
    assert verdict(age_ms) is expected


def test_what_came_during_the_round_is_left_to_the_next() -> None:
    assert verdict(7_000, stored_ms=BORN_MS + 6_999) is Verdict.ASK
    assert verdict(7_000, stored_ms=BORN_MS + 7_000) is Verdict.STOP
    # Also the copy about which its producer was just asked for the last time.
    fresh = verdict(7_000, stored_ms=BORN_MS + 7_000, TRANSACTION_CHECK_TIMES="15")
    assert fresh is Verdict.STOP


def test_a_birth_in_the_future_does_not_wait_for_it() -> None:
    assert verdict(-1, stored_ms=BORN_MS - 10) is Verdict.ASK


@pytest.mark.parametrize(
    ("check_count", "expected"),
    [("14", Verdict.ASK), ("15", Verdict.GIVE_UP), ("99", Verdict.GIVE_UP), ("x", Verdict.ASK)],
)
def test_after_enough_questions_it_is_given_up(check_count: str, expected: Verdict) -> None:
    assert verdict(10_000, TRANSACTION_CHECK_TIMES=check_count) is expected


def test_the_first_question_is_always_asked() -> None:
    rules = CheckRules(timeout_ms=6_000, check_count_max=0, age_max_ms=HOUR_MS)
    half = half_of(born_timestamp=BORN_MS, store_timestamp=BORN_MS)
    now_ms = BORN_MS + 10_000
    assert judge(half, rules, started_ms=now_ms, now_ms=now_ms) is Verdict.ASK


def test_an_immune_message_waits() -> None:
    immunity: dict[str, Any] = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}
    assert verdict(1, **immunity) is Verdict.WAIT
    assert verdict(100_000, **immunity) is Verdict.WAIT
    assert verdict(100_001, **immunity) is Verdict.ASK
    assert due_ms(half_of(born_timestamp=BORN_MS, **immunity), RULES) == BORN_MS + 100_001
    # Less than the time-out of all, or no number: as without it.
    for text in ("1", "soon"):
        assert verdict(6_001, CHECK_IMMUNITY_TIME_IN_SECONDS=text) is Verdict.ASK
        assert verdict(6_000, CHECK_IMMUNITY_TIME_IN_SECONDS=text) is Verdict.WAIT


def test_waiting_messages_come_out_in_order_when_they_are_due() -> None:
    waiting = Waiting()
    for offset, due in [(3, 5_001), (4, 9_000), (5, 5_000), (9, 1), (10, 6_000)]:
        assert waiting.add(offset, due)
    assert len(waiting) == 5
    assert waiting.due(0) == []
    assert waiting.due(5_000) == [5, 9]
    assert waiting.due(6_000) == [3, 10]
    assert waiting.due(8_999) == []
    assert waiting.due(9_000) == [4]
    assert len(waiting) == 0


def test_only_so_many_can_wait() -> None:
    waiting = Waiting(count_max=2)
    assert [waiting.add(offset, 1_000) for offset in range(3)] == [True, True, False]
    assert waiting.due(1_000) == [0, 1]
    assert waiting.add(2, 1_000)
