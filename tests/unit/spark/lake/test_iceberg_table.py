"""Iceberg tables, with the real library and a catalog in SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from skylark.admin.errors import NotFoundError
from skylark.core.errors import ClientError, ConfigError
from skylark.spark.lake.iceberg_table import IcebergLakeTable
from skylark.spark.lake.lake_files import DataFile, write_rows
from tests.support.iceberg_catalog import iceberg_catalog

SCHEMA = pa.schema([("topic", pa.string()), ("n", pa.int64()), ("dt", pa.date32())])
PARTITIONS = ("dt", "topic")
DAY = date(2026, 11, 2)


def files_of(table: IcebergLakeTable, *numbers: int, topic: str = "a") -> list[DataFile]:
    rows = [{"topic": topic, "n": number, "dt": DAY} for number in numbers]
    parts = write_rows(
        iter([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)]), plan=table.file_plan(SCHEMA)
    )
    found: list[dict[str, Any]] = [row for part in parts for row in part.to_pylist()]
    return [DataFile(**{**row, "partition": tuple(row["partition"])}) for row in found]


def stored(table: IcebergLakeTable) -> list[int]:
    return sorted(table._open().scan().to_arrow()["n"].to_pylist())


@pytest.fixture(autouse=True)
def _catalog(tmp_path: Path) -> Iterator[None]:
    with iceberg_catalog(tmp_path):
        yield


@pytest.fixture
def table() -> IcebergLakeTable:
    table = IcebergLakeTable("tests.db.lake")
    table.create(SCHEMA, PARTITIONS)
    return table


def test_a_batch_is_added_once(table: IcebergLakeTable) -> None:
    assert table.last_batch("q") == -1
    table.append([], "q", 0)
    table.append(files_of(table, 1, 2), "q", 1)
    table.append(files_of(table, 1, 2), "q", 1)
    assert (stored(table), table.last_batch("q")) == ([1, 2], 1)
    table.append([], "q", 2)
    table.append(files_of(table, 3), "q", 3)
    table.append(files_of(table, 2), "q", 2)
    assert (stored(table), table.last_batch("q")) == ([1, 2, 3], 3)
    assert table.values("topic") == {"a"}
    snapshot = table._open().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (snapshot.summary["skylark.query"], snapshot.summary["skylark.batch"]) == ("q", "3")


def test_batches_are_known_without_their_snapshots(table: IcebergLakeTable) -> None:
    table.append(files_of(table, 1), "q", 0)
    table.append(files_of(table, 9), "other", 0)
    first = table._open().metadata.snapshots[0].snapshot_id
    table._open().maintenance.expire_snapshots().by_id(first).commit()
    assert len(table._open().metadata.snapshots) == 1
    table.append(files_of(table, 1), "q", 0)
    assert stored(table) == [1, 9]


def test_queries_do_not_disturb_each_other(table: IcebergLakeTable) -> None:
    assert table.values("topic") == set()
    table.append(files_of(table, 1), "q", 5)
    table.append(files_of(table, 2, topic="%DLQ%g"), "other", 0)
    assert (table.last_batch("q"), table.last_batch("other")) == (5, 0)
    assert (stored(table), table.values("topic")) == ([1, 2], {"a", "%DLQ%g"})


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("others", [("q",), ("other",), ("other", "q")])
def test_what_comes_between_look_and_commit_is_no_second_copy(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch, others: Sequence[str], first: bool
) -> None:
    if not first:
        table.append(files_of(table, 0), "q", 0)
    batch = 0 if first else 1
    files = files_of(table, 1)
    mine = IcebergLakeTable._add

    def add_late(self: IcebergLakeTable, *given: Any) -> None:
        monkeypatch.setattr(IcebergLakeTable, "_add", mine)
        for query in others:
            table.append(files_of(table, 1 if query == "q" else 9), query, batch)
        mine(self, *given)

    monkeypatch.setattr(IcebergLakeTable, "_add", add_late)
    table.append(files, "q", batch)
    assert stored(table) == [0] * (not first) + [1] + [9] * ("other" in others)
    assert table.last_batch("q") == batch


def test_a_commit_that_fails_leaves_files_that_nobody_reads(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError("disk full")

    files = files_of(table, 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(table._catalog), "commit_table", full)
        with pytest.raises(ClientError, match=r"the Iceberg table tests.db.lake failed: disk full"):
            table.append(files, "q", 0)
    assert (stored(table), table.last_batch("q")) == ([], -1)
    table.append(files_of(table, 1), "q", 0)
    assert stored(table) == [1]
    assert len([*tmp_path.rglob("data/**/*.parquet")]) == 2


def test_conflicts_without_end_are_an_error(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    tried = []

    def lost(*given: object, **more: object) -> None:
        tried.append(given)
        raise CommitFailedException("another one was first")

    monkeypatch.setattr(type(table._catalog), "commit_table", lost)
    with pytest.raises(ClientError, match="another one was first"):
        table.append(files_of(table, 1), "q", 0)
    assert len(tried) == 20  # each asks for the batch first: the library repeats nothing


def test_other_columns_are_refused(table: IcebergLakeTable) -> None:
    table.create(SCHEMA, PARTITIONS)
    more = SCHEMA.append(pa.field("m", pa.string()))
    for schema, partitions in ((more, PARTITIONS), (SCHEMA, ("dt",))):
        with pytest.raises(ConfigError, match="has other columns or partitions"):
            table.create(schema, partitions)


def test_all_rows_can_be_replaced() -> None:
    table = IcebergLakeTable("tests.db.latest")
    table.create(SCHEMA, ())
    table.replace(files_of(table, 1, 2))
    table.replace(files_of(table, 3))
    assert stored(table) == [3]
    assert len(table.paths()) == 1
    assert table.columns() == ["topic", "n", "dt"]


def test_deleted_rows_are_not_read(
    table: IcebergLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append(files_of(table, 1), "q", 0)
    [task] = table._open().scan().plan_files()
    monkeypatch.setattr(type(task), "delete_files", {task.file}, raising=False)
    monkeypatch.setattr("pyiceberg.table.DataScan.plan_files", lambda scan: [task])
    task.delete_files = {task.file}
    with pytest.raises(ConfigError, match="has deleted rows"):
        table.paths()


def test_a_missing_table_or_catalog_is_named() -> None:
    table = IcebergLakeTable("tests.db.none")
    assert not table.exists()
    assert table.last_batch("q") == -1
    with pytest.raises(NotFoundError, match=r"there is no Iceberg table tests\.db\.none"):
        table.paths()
    with pytest.raises(ConfigError, match="the Iceberg catalog nowhere is not known"):
        IcebergLakeTable("nowhere.db.t").exists()
    for name in ("t", "a..t", ".t", "db."):
        with pytest.raises(ConfigError, match="is no name of an Iceberg table"):
            IcebergLakeTable(name)
