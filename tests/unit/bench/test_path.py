"""The benchmark of the broker's path: statistics, verdict, and a small run beside itself."""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

from bench import path
from bench.harness import ROOT, Base, BenchError
from bench.path import TURNS, Result, format_table, make_result, measure, median_interval
from bench.path_load.rows import ROWS, Row

SEND = Row("send", "send", 2)


def test_an_interval_cuts_off_as_much_as_the_binomial_allows() -> None:
    assert median_interval(range(20)) == (5, 14)  # P(at most 5 of 20) = 0.0207
    assert median_interval(range(24)) == (6, 17)
    assert median_interval(range(6)) == (0, 5)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    stream = random.Random(7)
    runs = [median_interval([stream.expovariate(1) for _ in range(24)]) for _ in range(1_000)]
    held = sum(low <= 0.6931 <= high for low, high in runs)
    assert 940 <= held <= 990


def test_turns_are_fair_to_both_sides() -> None:
    first = [place for place, side in enumerate(TURNS) if side == 0]
    second = [place for place, side in enumerate(TURNS) if side == 1]
    for power in (0, 1, 2, 3):
        assert sum(place**power for place in first) == sum(place**power for place in second)


def test_a_ratio_is_the_median_of_those_of_the_pairs() -> None:
    result = make_result(SEND, [110.0, 220.0, 330.0], [100.0, 200.0, 200.0])
    assert result.ratio == pytest.approx(1.1)
    assert (result.low, result.high) == pytest.approx((1.1, 1.65))
    assert (result.median_ns, result.base_ns) == (220.0, 200.0)
    alone = make_result(SEND, [100.0], [])
    assert (alone.ratio, alone.spread, alone.passed) == (None, 0.0, True)


@pytest.mark.parametrize(
    ("factor", "noise", "passed"),
    [(1.0, 0.0, True), (1.03, 0.0, True), (1.05, 0.0, False), (1.05, 0.2, True)],
)
def test_a_row_fails_when_its_whole_interval_is_above_the_limit(
    factor: float, noise: float, passed: bool
) -> None:
    ours = [100 * factor * (1 + noise * (-1) ** number) for number in range(24)]
    result = make_result(SEND, ours, [100.0] * 24)
    assert result.passed is passed
    assert ("FAILED: above 1.03" in format_table([result])) is not passed


def test_the_table_has_no_ratio_without_a_base() -> None:
    heading, line = format_table([make_result(SEND, [20_000.0], [])]).splitlines()
    assert heading.startswith("case")
    assert line.split() == ["send", "20,000", "ns/message", "0%"]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces the measurement; the names of the rows of each call."""
    calls: list[list[str]] = []

    def pretend(
        rows: Sequence[Row], source: Path, base: Path | None, pairs: int, *, progress: TextIO
    ) -> list[Result]:
        calls.append([row.name for row in rows])
        return [
            make_result(row, [110.0 if row.kind == "pull" else 100.0] * pairs, [100.0] * pairs)
            for row in rows
        ]

    monkeypatch.setattr(path, "measure", pretend)
    monkeypatch.setattr(path, "checkout_base", lambda name: Base(name * 10, ROOT))
    monkeypatch.setattr(path, "current_commit", lambda folder: "c0ffee")
    return calls


def test_the_command_fails_with_a_row_and_resumes(
    measured: list[list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "results"
    common = ["--base", "abcd", "--json", str(file)]
    shown = io.StringIO()
    assert path.run([*common, "--rows", "batch*"], stdout=shown)
    assert "beside abcdabcdab, 24 pairs" in shown.getvalue()
    assert not path.run([*common, "--rows", "batch*,pull*"], stdout=io.StringIO())
    assert not path.run([*common, "--rows", "pull*"], stdout=io.StringIO())
    assert measured == [["batch of 32"], ["pull of 32"]]
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(entry["case"], entry["ratio"]) for entry in entries] == [
        ("batch of 32", 1.0),
        ("pull of 32", 1.1),
    ]
    assert entries[0]["base"] == "abcd" * 10
    assert entries[0]["machine"]["cores"]


def test_too_few_pairs_are_refused(measured: list[list[str]]) -> None:
    with pytest.raises(BenchError, match="at least 6 with a base"):
        path.run(["--base", "abcd", "--pairs", "5"], stdout=io.StringIO())
    with pytest.raises(BenchError, match="no row matches nosuch; there are: send 100 B, one"):
        path.run(["--rows", "nosuch"], stdout=io.StringIO())
    assert measured == []


def test_every_kind_of_row_runs_beside_itself() -> None:
    """Real brokers in processes: the frames are accepted, and the messages are counted."""
    rows = [
        Row("send", "send", 2, in_a_read=3),
        Row("old", "send", 2, body_size=1024, version="4.9.8"),
        Row("batch", "batch", 2),
        Row("pull", "pull", 2),
        Row("wake", "wake", 5, body_size=1024),
        Row("pop", "pop", 2),
        Row("pop written", "pop written", 2),
        Row("half", "half", 2, in_a_read=3),
    ]
    assert {row.kind for row in rows} == {row.kind for row in ROWS}
    source = ROOT / "src"
    cores = os.sched_getaffinity(0)
    results = measure(rows, source, source, 1, progress=io.StringIO())
    assert [result.case for result in results] == [row.name for row in rows]
    assert all(result.median_ns > 0 and result.base_ns for result in results)
    assert os.sched_getaffinity(0) == cores


def test_a_broker_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "skylark").mkdir()
    (tmp_path / "skylark" / "__init__.py").write_text("raise SystemExit(0)")
    with pytest.raises(BenchError, match="did not start"), path.brokers([tmp_path]):
        pass
