"""Files of a table, as a task writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skylark.spark.lake import lake_files
from skylark.spark.lake.delta_table import create_file
from skylark.spark.lake.lake_files import FilePlan, split, write_rows

SCHEMA = pa.schema([("topic", pa.string()), ("n", pa.int64()), ("dt", pa.date32())])
MONDAY, TUESDAY = date(2026, 11, 2), date(2026, 11, 3)


def batch(*rows: tuple[str | None, int, date]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def written(
    folder: Path, batches: Sequence[pa.RecordBatch], *, keep: bool = False, **plan: Any
) -> list[dict[str, Any]]:
    given = FilePlan(
        schema=SCHEMA,
        create=partial(create_file, str(folder)),
        keep_partition_columns=keep,
        **{"partition_by": ("dt", "topic"), **plan},
    )
    return [row for part in write_rows(iter(batches), plan=given) for row in part.to_pylist()]


def numbers(folder: Path, files: Sequence[dict[str, Any]]) -> Iterator[tuple[list[Any], list[int]]]:
    for file in files:
        path = folder / file["path"]
        assert path.stat().st_size == file["size"]
        table = pq.ParquetFile(path).read()
        assert table.num_rows == file["rows"]
        yield file["partition"], table["n"].to_pylist()


def test_each_partition_has_a_file_of_its_own(tmp_path: Path) -> None:
    batches = [
        batch(("a", 1, MONDAY), ("%DLQ%g", 2, MONDAY), ("a", 3, TUESDAY)),
        batch(("a", 4, MONDAY), ("a", 5, MONDAY)),
        batch((None, 6, TUESDAY), ("a", 7, TUESDAY)),
    ]
    files = written(tmp_path, batches)
    assert sorted(numbers(tmp_path, files), key=lambda found: found[1]) == [
        (["2026-11-02", "a"], [1, 4, 5]),
        (["2026-11-02", "%DLQ%g"], [2]),
        (["2026-11-03", "a"], [3, 7]),
        (["2026-11-03", None], [6]),
    ]
    folders = sorted(file["path"].rpartition("/")[0] for file in files)
    assert folders == [
        "dt=2026-11-02/topic=%25DLQ%25g",
        "dt=2026-11-02/topic=a",
        "dt=2026-11-03/topic=__HIVE_DEFAULT_PARTITION__",
        "dt=2026-11-03/topic=a",
    ]
    assert {*tmp_path.rglob("*.parquet")} == {tmp_path / file["path"] for file in files}


def test_files_have_the_columns_of_partitions_only_if_asked(tmp_path: Path) -> None:
    rows = [batch(("a", 1, MONDAY))]
    [without] = written(tmp_path, rows)
    [with_them] = written(tmp_path, rows, keep=True)
    [plain] = written(tmp_path, rows, partition_by=())
    assert pq.read_schema(tmp_path / without["path"]).names == ["n"]
    assert pq.read_schema(tmp_path / with_them["path"]).names == ["topic", "n", "dt"]
    assert "/" not in plain["path"]
    assert plain["partition"] == []


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, []) == []
    empty = batch(("a", 1, MONDAY)).slice(0, 0)
    assert written(tmp_path, [empty]) == written(tmp_path, [empty], partition_by=()) == []
    assert [*tmp_path.iterdir()] == []


def test_a_task_holds_few_rows_and_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "OPEN_FILES_MAX", 2)
    topics = ["a", "b", "a", "c", "d", "a"]
    files = written(tmp_path, [batch((topic, n, MONDAY)) for n, topic in enumerate(topics)])
    # b was used longest ago when c came, then a: it gets a second file.
    found = [(partition[1], rows) for partition, rows in numbers(tmp_path, files)]
    assert found == [("b", [1]), ("a", [0, 2]), ("c", [3]), ("d", [4]), ("a", [5])]

    monkeypatch.setattr(lake_files, "HELD_BYTES_MAX", 0)
    [file] = written(tmp_path, [batch(("a", n, MONDAY)) for n in range(3)])
    assert pq.ParquetFile(tmp_path / file["path"]).num_row_groups == 3


def test_rows_are_split_by_one_column_after_the_other() -> None:
    rows = batch(("a", 1, MONDAY), ("b", 2, TUESDAY), ("a", 3, TUESDAY))
    parts = {key: part.column("n").to_pylist() for key, part in split(rows, ("topic", "dt"))}
    assert parts == {
        ("a", "2026-11-02"): [1],
        ("a", "2026-11-03"): [3],
        ("b", "2026-11-03"): [2],
    }
