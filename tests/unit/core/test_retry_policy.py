"""The dead-letter decision."""

from __future__ import annotations

import pytest

from skylark.core.retry_policy import (
    FIRST_RETRY_LEVEL,
    RetryAction,
    RetryDecision,
    decide_retry,
)

DELIVER = RetryDecision(RetryAction.DELIVER)
DEAD = RetryDecision(RetryAction.DEAD_LETTER)


def postponed(level: int) -> RetryDecision:
    return RetryDecision(RetryAction.POSTPONE, level)


@pytest.mark.parametrize(
    ("failure_count", "delay_level", "decision"),
    [
        (1, 0, postponed(3)),
        (2, 0, postponed(4)),
        (16, 0, postponed(18)),
        (17, 0, DEAD),
        (99, 0, DEAD),
        (1, 5, postponed(5)),
        (16, 5, postponed(5)),
        (17, 5, DEAD),
        (1, -1, DEAD),
        (1, None, DELIVER),
        (16, None, DELIVER),
        (17, None, DEAD),
        (0, 0, postponed(FIRST_RETRY_LEVEL)),  # a client that does not count
    ],
)
def test_failures_and_levels(
    failure_count: int, delay_level: int | None, decision: RetryDecision
) -> None:
    assert decide_retry(failure_count, 16, delay_level=delay_level) == decision
    assert decision.is_dead is (decision is DEAD)


@pytest.mark.spec("broker.13.17")
@pytest.mark.parametrize("times", range(5))
@pytest.mark.parametrize("times_max", range(-1, 4))
def test_both_requests_compare_as_java_does(times: int, times_max: int) -> None:
    """Given back: retried that often before. Published: the number is raised already."""
    given_back = decide_retry(times + 1, times_max, delay_level=0)
    assert given_back.is_dead is (times >= times_max)
    published = decide_retry(times, times_max)
    assert published.is_dead is (times > times_max)


@pytest.mark.parametrize("delay_level", [None, 0, 3])
def test_an_ordered_group_has_dead_letters_only(delay_level: int | None) -> None:
    assert decide_retry(1, 16, delay_level=delay_level, is_ordered=True) == DEAD


def test_a_group_without_retries() -> None:
    assert decide_retry(1, 0, delay_level=0) == DEAD
