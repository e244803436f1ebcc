"""The figures of the fairness benchmark, from what its Java programs print."""

from __future__ import annotations

from typing import Any

import pytest

from bench.compare_load.programs import LoadProgram, rate_between
from bench.fairness import FAIRNESS, flow_figures, quiet_figures, shared_figures
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


def asked(kind: str, at_ms: int, ms: float, messages: int = 0) -> dict[str, Any]:
    return {"event": kind, "at_ms": at_ms, "ms": ms, "answered": True, "messages": messages}


def test_what_came_out_is_set_beside_what_went_in() -> None:
    producer = [count(0, 0), count(1_000, 1_000), count(2_000, 2_000)]
    consumer = [count(0, 0), count(1_000, 0), count(2_000, 900)]
    assert flow_figures(producer, consumer, 500, 2_500) == {
        "produced": 1_000.0,
        "consumed": 900.0,
        "caught up": 90.0,
    }
    still = [count(0, 5), count(1_000, 5)]
    assert flow_figures(still, still, 0, 1_000)["caught up"] == 0


def test_requests_beside_a_flood_are_judged_by_their_kind_in_the_measured_time() -> None:
    warm_up = [asked("pull", 10, 900.0, 32), asked("end", 10, 900.0), count(10, 0)]
    pulls = [asked("pull", 1_000 + n, float(n), 32) for n in range(1, 101)]
    ends = [asked("end", 1_000 + n, n / 10) for n in range(1, 101)]
    lost = [asked("end", 1_500, 3_000.0) | {"answered": False}]
    counts = [count(1_100, 1_000), count(1_600, 2_000)]
    figures = shared_figures([*warm_up, *pulls, *ends, *lost, *counts], 1_000, 3_000)
    assert figures == {
        "pull p50": pytest.approx(50, abs=1),
        "pull p99": pytest.approx(99, abs=1),
        "end p50": pytest.approx(5, abs=0.1),
        "end p99": pytest.approx(9.9, abs=0.1),
        "pulled": 3_200 / 2,
        "produced": 2_000.0,
        "failed": 1,
    }


def test_a_kind_of_request_without_an_answer_is_no_result() -> None:
    counts = [count(0, 0), count(1_000, 1)]
    unanswered = asked("end", 500, 1.0) | {"answered": False}
    with pytest.raises(BenchError, match="no end was answered"):
        shared_figures([*counts, asked("pull", 500, 1.0), unanswered], 0, 1_000)


def test_each_row_can_be_measured_and_has_a_goal_or_only_shows_its_times() -> None:
    for row in FAIRNESS.rows:
        assert row.kind in FAIRNESS.measures
        has_goal = any(figure.goal is not None for figure in row.figures)
        assert has_goal == (row.name != "shared")


def test_a_program_gets_its_options_by_name(tmp_path: Any) -> None:
    program = LoadProgram("FairnessLoad", "flood", {"topic": "T", "batch": 32}, tmp_path)
    assert program.arguments() == ["kind=flood", "topic=T", "batch=32"]


@pytest.mark.parametrize("wrong", [["--rounds", "0"], ["--seconds", "0"], ["--warm-up", "-1"]])
def test_wrong_arguments_are_refused(wrong: list[str]) -> None:
    with pytest.raises(BenchError, match="positive"):
        FAIRNESS.parse_arguments(wrong)
