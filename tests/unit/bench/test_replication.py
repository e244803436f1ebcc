"""The benchmark of replication: how rows are chosen and judged, and a small run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from bench import replication
from bench.harness import BenchError
from bench.replication import (
    ALONE,
    CATCH_UP,
    COPY,
    REPLICATED,
    Sample,
    format_table,
    make_result,
    select,
)


def samples(*rates: float, used_s: float = 0.5) -> list[Sample]:
    return [Sample(1_000, 1_000 / rate, {"slave": used_s}) for rate in rates]


def test_what_a_row_is_compared_with_comes_along() -> None:
    assert select("") == [ALONE, REPLICATED, COPY, CATCH_UP]
    assert select("catch*") == [COPY, CATCH_UP]
    assert select("*replicated") == [ALONE, REPLICATED]
    with pytest.raises(BenchError, match="no row matches nosuch; there are: 64 senders, "):
        select("nosuch")


def test_ratios_are_taken_within_rounds() -> None:
    result = make_result(REPLICATED, samples(40, 90, 300), samples(100, 200, 300))
    assert result.floor == ALONE
    assert result.rate == pytest.approx(90)
    assert result.ratio == pytest.approx(0.45)
    assert result.goals == [("0.5x", False)]
    assert result.processor_s == {"slave": pytest.approx(50)}


def test_catching_up_may_be_quick_enough_by_itself() -> None:
    slow, quick = samples(100e6), samples(151e6)
    assert make_result(CATCH_UP, slow, samples(900e6)).goals == [("150 MB/s or 0.5x", False)]
    assert make_result(CATCH_UP, quick, samples(900e6)).goals == [("150 MB/s or 0.5x", True)]
    assert make_result(CATCH_UP, slow, samples(150e6)).goals == [("150 MB/s or 0.5x", True)]


def test_the_table_says_what_was_missed() -> None:
    result = make_result(CATCH_UP, samples(90e6, 100e6, 110e6), samples(*[400e6] * 3))
    text = format_table([result]).splitlines()[1]
    assert "catch-up  100 MB/s    90  110         0.25x  150 MB/s or 0.5x: MISSED" in text


@pytest.mark.timeout(120)
def test_a_small_run_measures_both_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "LOG_FILE_SIZE", 1 << 20)
    monkeypatch.setattr(replication, "current_commit", lambda _folder: "c0ffee")
    results = tmp_path / "results.jsonl"
    arguments = ["--rounds", "1", "--log-size", str(2 << 20), "--rows", "catch*"]
    arguments += ["--json", str(results)]
    stdout = io.StringIO()
    replication.run(arguments, stdout=stdout)
    assert "catch-up" in stdout.getvalue()
    entries = [json.loads(line) for line in results.read_text().splitlines()]
    assert [entry["case"] for entry in entries] == [COPY, CATCH_UP]
    assert entries[1]["ratio"] > 0
    again = io.StringIO()
    replication.run(arguments, stdout=again)
    assert again.getvalue() == stdout.getvalue()
