"""The Spark benchmark without Spark: rows, ratios and goals, and what it watches."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from bench.harness import BenchError
from bench.spark import Row, format_table, make_result, read_arguments, rows, select
from bench.spark_load import ready
from bench.spark_load.site import Site
from bench.spark_load.taking import Sample
from bench.spark_load.watching import descendants, own_mib, processor_s


def never(site: Site) -> Sample:
    raise AssertionError(site)


def test_rows_come_with_what_they_are_compared_with() -> None:
    found = rows([1_000_000, 10_000_000])
    names = [row.name for row in found]
    assert len(set(names)) == len(names)
    assert all(floor in names for row in found for floor, _ in row.floors)
    chosen = [row.name for row in select(found, "100 B pull two*,archive 10*")]
    assert chosen == [
        "100 B push", "100 B ceiling two columns", "100 B pull two columns",
        "archive 1,000,000", "archive 10,000,000",
    ]  # fmt: skip
    with pytest.raises(BenchError, match="no row matches nothing"):
        select(found, "nothing")


def test_the_goals_of_the_issue() -> None:
    goals = {row.name: dict.fromkeys(row.floors) for row in rows()}
    assert ("100 B push", 8.0) in goals["100 B pull two columns"]
    assert ("1 KB ceiling two columns", 0.3) in goals["1 KB pull two columns"]
    assert ("1 KB ceiling two columns", 0.4) in goals["1 KB file two columns"]
    assert ("100 B ceiling all columns", 0.2) in goals["100 B file all columns"]
    assert ("100 B two clients", 0.5) in goals["100 B at-least-once"]
    least = "100 B at-least-once"
    assert list(goals["100 B exactly-once"]) == [(least, 0.1), (least, 0.3)]
    limits = {row.name: row.rate_min for row in rows() if row.rate_min is not None}
    assert limits == {"1 KB file all columns": 200_000}


def test_a_ratio_is_that_within_a_round() -> None:
    samples = {
        "floor": [Sample(100, 1.0), Sample(200, 1.0), Sample(400, 1.0)],
        "row": [Sample(50, 1.0), Sample(50, 1.0), Sample(100, 1.0, ["seen"], [("kept", True)])],
    }
    row = Row("row", "g", never, (("floor", 0.3), ("floor", 0.2)), rate_min=60.0)
    result = make_result(row, samples)
    assert result.ratios == {"floor": 0.25}
    assert result.goals == [("0.3x", False), ("0.2x", True), ("60/s", False), ("kept", True)]
    table = format_table([result])
    assert "0.25x floor" in table
    assert "0.3x: MISSED, 0.2x: met, 60/s: MISSED, kept: met" in table


@pytest.mark.parametrize(
    "arguments", [["--archive", "many"], ["--archive", "0"], ["--rounds", "0"]]
)
def test_arguments_that_make_no_sense(arguments: list[str]) -> None:
    with pytest.raises(BenchError):
        read_arguments(arguments)


def test_ready_made_batches(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"a", b"b", b"c"])})
    ready.save(batch, tmp_path / "batch")
    options = {"path": str(tmp_path / "batch"), "rows": "7", "parts": "2"}
    reader = ready.ReadySource(options).reader(None)  # type: ignore[arg-type]
    parts = reader.partitions()
    assert len(parts) == 2
    found = list(reader.read(parts[0]))
    assert [each.num_rows for each in found] == [3, 3, 1]
    assert found[2].column(0).to_pylist() == [b"a"]


def test_watching_a_process() -> None:
    assert os.getpid() in descendants(os.getppid())
    assert own_mib(os.getpid()) > 1
    assert own_mib(1 << 30) == 0
    assert processor_s(os.getpid()) > 0
