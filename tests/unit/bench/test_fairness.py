"""The figures of the fairness benchmark, from what its Java programs print."""

from __future__ import annotations

from typing import Any

import pytest

from bench.compare_load.programs import LoadProgram, rate_between
from bench.fairness import FAIRNESS, quiet_figures
from bench.harness import BenchError


def count(at_ms: int, messages: int) -> dict[str, Any]:
    return {"event": "count", "at_ms": at_ms, "count": messages, "failed": 0}


def sent(at_ms: int, ms: float, *, stored: bool = True) -> dict[str, Any]:
    return {"event": "sent", "at_ms": at_ms, "ms": ms, "stored": stored}


def test_a_rate_is_what_was_counted_between_two_moments() -> None:
    records = [count(0, 0), count(1_000, 500), count(1_500, 1_000), count(3_000, 4_000)]
    assert rate_between(records, 900, 3_100) == pytest.approx(3_500 / 2.0)
    assert rate_between(records, 0, 1_600) == pytest.approx(1_000 / 1.5)


def test_two_counts_make_a_rate_and_one_does_not() -> None:
    with pytest.raises(BenchError, match="measure for longer"):
        rate_between([count(0, 0), count(1_000, 500)], 500, 2_000)


def test_a_quiet_producer_is_judged_by_the_sends_of_the_measured_time() -> None:
    warm_up = [sent(at, 900.0) for at in range(10)]
    measured = [sent(100 + n, float(n)) for n in range(1, 101)]
    refused = [sent(150, 3_000.0, stored=False)]
    figures = quiet_figures([*warm_up, *measured, *refused], 100, 300)
    assert figures["quiet p50"] == pytest.approx(50, abs=1)
    assert figures["quiet p99"] == pytest.approx(99, abs=1)
    assert figures["refused"] == 1


def test_a_quiet_producer_that_sent_nothing_is_no_result() -> None:
    with pytest.raises(BenchError, match="sent nothing"):
        quiet_figures([sent(1, 1.0)], 100, 200)


def test_each_row_can_be_measured_and_has_a_goal() -> None:
    for row in FAIRNESS.rows:
        assert row.kind in FAIRNESS.measures
        assert any(figure.goal is not None for figure in row.figures)


def test_a_program_gets_its_options_by_name(tmp_path: Any) -> None:
    program = LoadProgram("FairnessLoad", "flood", {"topic": "T", "batch": 32}, tmp_path)
    assert program.arguments() == ["kind=flood", "topic=T", "batch=32"]


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--seconds", "0"], ["--warm-up", "-1"]])
def test_wrong_arguments_are_refused(wrong: list[str]) -> None:
    with pytest.raises(BenchError, match="positive"):
        FAIRNESS.parse_arguments(wrong)
