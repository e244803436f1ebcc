"""The benchmark of starting: how rows are chosen and judged, and a small run."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from bench import startup
from bench.harness import BenchError
from bench.startup import (
    APART,
    FIRST_AIO,
    FIRST_SYNC,
    IMPORT,
    MEMORY,
    READY,
    ROWS,
    Row,
    format_table,
    make_result,
    select,
)


def row(name: str) -> Row:
    (found,) = (each for each in ROWS if each.name == name)
    return found


def test_rows_are_chosen_by_patterns() -> None:
    assert select("") == list(ROWS)
    assert [each.name for each in select("first*")] == [FIRST_SYNC, FIRST_AIO]
    assert [each.name for each in select("ready, import s*")] == [READY, IMPORT]
    with pytest.raises(BenchError, match="no row matches nosuch; there are: ready, memory idle"):
        select("nosuch")


def test_a_goal_is_on_the_median() -> None:
    ours = [{READY: seconds} for seconds in (0.5, 0.7, 3.0)]
    result = make_result(row(READY), ours, [{READY: 7.0, MEMORY: 500.0}])
    assert (result.median, result.goal) == (0.7, ("under 1 s", True))
    assert result.ratio == pytest.approx(10)
    late = make_result(row(READY), [{READY: 1.0}], [])
    assert (late.goal, late.ratio) == (("under 1 s", False), None)


def test_the_table_says_what_was_missed_and_what_a_sum_is_made_of() -> None:
    ours = [{APART: 95.0, f"{APART}: namesrv": 30.0, f"{APART}: broker": 65.0}]
    heading, line = format_table([make_result(row(APART), ours, [])]).splitlines()
    assert heading.split() == [
        "row", "unit", "median", "from", "to", "apache", "ratio", "goal", "parts",
    ]  # fmt: skip
    assert line.split() == [
        "memory", "apart", "MB", "95", "95", "95", "under", "90", "MB:", "MISSED",
        "namesrv", "30,", "broker", "65",
    ]  # fmt: skip


@pytest.mark.timeout(120)
def test_a_small_run_measures_ours_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "current_commit", lambda _folder: "c0ffee")
    results = tmp_path / "results.jsonl"
    arguments = ["--alone", "--rounds", "1", "--idle-s", "0", "--json", str(results)]
    stdout = io.StringIO()
    startup.run(arguments, stdout=stdout)
    assert "load average " in stdout.getvalue()
    entries = {entry["case"]: entry for entry in map(json.loads, results.read_text().splitlines())}
    assert list(entries) == [each.name for each in ROWS]
    assert entries[READY]["samples"][0] > 0.05
    assert entries[MEMORY]["samples"][0] > 5
    assert sorted(entries[APART]["parts"]) == ["broker", "namesrv"]
    assert sorted(entries["memory of three"]["parts"]) == ["broker 1", "broker 2", "supervisor"]
    for name in (FIRST_SYNC, FIRST_AIO):
        assert entries[name]["unit"] == "ms"
        assert entries[name]["samples"][0] > 0.1  # of a broker and a client, over requests
    again = io.StringIO()
    startup.run(arguments, stdout=again)
    assert (
        again.getvalue().splitlines()[-len(ROWS) :]
        == (stdout.getvalue().splitlines()[-len(ROWS) :])
    )
    assert "load average " not in again.getvalue()
