"""The action for an undecided half message in a round of check-backs, without a store."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.broker.transaction.check_policy import (
    CheckAction,
    CheckRules,
    ImmuneMessages,
    choose_action,
    due_ms,
)
from tests.unit.broker.transaction.halves import half_of

HOUR_MS = 3_600_000
RULES = CheckRules(timeout_ms=6_000, check_count_max=15, age_max_ms=72 * HOUR_MS)
BORN_MS = 1_000_000_000


def verdict(age_ms: int, *, stored_ms: int = BORN_MS, **changes: Any) -> CheckAction:
    half = half_of(born_timestamp=BORN_MS, store_timestamp=stored_ms, **changes)
    now_ms = BORN_MS + age_ms
    return choose_action(half, RULES, started_ms=now_ms, now_ms=now_ms)


@pytest.mark.parametrize(
    ("age_ms", "expected"),
    [
        (1, CheckAction.STOP), (6_000, CheckAction.STOP), (6_001, CheckAction.CHECK_BACK),
        (72 * HOUR_MS, CheckAction.CHECK_BACK), (72 * HOUR_MS + 1, CheckAction.GIVE_UP),
    ],
)  # fmt: skip
def test_age_decides(age_ms: int, expected: CheckAction) -> None:
    assert verdict(age_ms) is expected


def test_a_message_stored_during_the_round_is_left_to_the_next() -> None:
    assert verdict(7_000, stored_ms=BORN_MS + 6_999) is CheckAction.CHECK_BACK
    assert verdict(7_000, stored_ms=BORN_MS + 7_000) is CheckAction.STOP
    # Also the copy about which its producer was just asked for the last time.
    fresh = verdict(7_000, stored_ms=BORN_MS + 7_000, TRANSACTION_CHECK_TIMES="15")
    assert fresh is CheckAction.STOP


def test_a_born_time_in_the_future_does_not_delay_the_check_back() -> None:
    assert verdict(-1, stored_ms=BORN_MS - 10) is CheckAction.CHECK_BACK


@pytest.mark.parametrize(
    ("check_count", "expected"),
    [
        ("14", CheckAction.CHECK_BACK),
        ("15", CheckAction.GIVE_UP),
        ("99", CheckAction.GIVE_UP),
        ("x", CheckAction.CHECK_BACK),
    ],
)
def test_a_message_is_given_up_after_the_maximum_of_check_backs(
    check_count: str, expected: CheckAction
) -> None:
    assert verdict(10_000, TRANSACTION_CHECK_TIMES=check_count) is expected


def test_there_is_always_a_first_check_back() -> None:
    rules = CheckRules(timeout_ms=6_000, check_count_max=0, age_max_ms=HOUR_MS)
    half = half_of(born_timestamp=BORN_MS, store_timestamp=BORN_MS)
    now_ms = BORN_MS + 10_000
    assert choose_action(half, rules, started_ms=now_ms, now_ms=now_ms) is CheckAction.CHECK_BACK


def test_an_immune_message_waits() -> None:
    immunity: dict[str, Any] = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}
    assert verdict(1, **immunity) is CheckAction.WAIT
    assert verdict(100_000, **immunity) is CheckAction.WAIT
    assert verdict(100_001, **immunity) is CheckAction.CHECK_BACK
    assert due_ms(half_of(born_timestamp=BORN_MS, **immunity), RULES) == BORN_MS + 100_001
    # Less than the time-out of all, or no number: as without it.
    for text in ("1", "soon"):
        assert verdict(6_001, CHECK_IMMUNITY_TIME_IN_SECONDS=text) is CheckAction.CHECK_BACK
        assert verdict(6_000, CHECK_IMMUNITY_TIME_IN_SECONDS=text) is CheckAction.WAIT


def test_immune_messages_are_returned_in_order_when_due() -> None:
    waiting = ImmuneMessages()
    for offset, due in [(3, 5_001), (4, 9_000), (5, 5_000), (9, 1), (10, 6_000)]:
        assert waiting.add(offset, due)
    assert len(waiting) == 5
    assert waiting.due(0) == []
    assert waiting.due(5_000) == [5, 9]
    assert waiting.due(6_000) == [3, 10]
    assert waiting.due(8_999) == []
    assert waiting.due(9_000) == [4]
    assert len(waiting) == 0


def test_the_number_of_immune_messages_is_limited() -> None:
    waiting = ImmuneMessages(count_max=2)
    assert [waiting.add(offset, 1_000) for offset in range(3)] == [True, True, False]
    assert waiting.due(1_000) == [0, 1]
    assert waiting.add(2, 1_000)
