"""Delta tables, with the real library."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from skylark.admin.errors import NotFoundError
from skylark.core.errors import ClientError, ConfigError
from skylark.spark.lake import delta_table
from skylark.spark.lake.delta_table import DeltaLakeTable, location
from skylark.spark.lake.lake_files import DataFile, write_rows

SCHEMA = pa.schema([("topic", pa.string()), ("n", pa.int64()), ("dt", pa.date32())])
PARTITIONS = ("dt", "topic")
DAY = date(2026, 11, 2)


def files_of(table: DeltaLakeTable, *numbers: int, topic: str = "a") -> list[DataFile]:
    rows = [{"topic": topic, "n": number, "dt": DAY} for number in numbers]
    parts = write_rows(
        iter([pa.RecordBatch.from_pylist(rows, schema=SCHEMA)]), plan=table.file_plan(SCHEMA)
    )
    found: list[dict[str, Any]] = [row for part in parts for row in part.to_pylist()]
    return [DataFile(**{**row, "partition": tuple(row["partition"])}) for row in found]


def stored(table: DeltaLakeTable) -> list[int]:
    return sorted(DeltaTable(table.name).to_pyarrow_table()["n"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> DeltaLakeTable:
    table = DeltaLakeTable(str(tmp_path / "lake"))
    table.create(SCHEMA, PARTITIONS)
    return table


def test_a_batch_is_added_once(table: DeltaLakeTable) -> None:
    assert table.last_batch("q") == -1
    table.append(files_of(table, 1, 2), "q", 0)
    table.append(files_of(table, 1, 2), "q", 0)
    assert (stored(table), table.last_batch("q")) == ([1, 2], 0)
    table.append([], "q", 1)
    table.append(files_of(table, 3), "q", 2)
    table.append(files_of(table, 2), "q", 1)
    assert (stored(table), table.last_batch("q")) == ([1, 2, 3], 2)
    assert table.values("topic") == {"a"}


def test_queries_do_not_disturb_each_other(table: DeltaLakeTable) -> None:
    table.append(files_of(table, 1), "q", 5)
    table.append(files_of(table, 2, topic="%DLQ%g"), "other", 0)
    assert (table.last_batch("q"), table.last_batch("other")) == (5, 0)
    assert (stored(table), table.values("topic")) == ([1, 2], {"a", "%DLQ%g"})
    rows = DeltaTable(table.name).to_pyarrow_table().to_pylist()
    assert {(row["topic"], row["n"]) for row in rows} == {("a", 1), ("%DLQ%g", 2)}


@pytest.mark.parametrize("others", [("q",), ("other",), ("other", "q")])
def test_what_comes_between_look_and_commit_is_no_second_copy(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch, others: Sequence[str]
) -> None:
    files = files_of(table, 1)
    mine = DeltaLakeTable._commit

    def commit_late(self: DeltaLakeTable, *given: Any) -> None:
        monkeypatch.setattr(DeltaLakeTable, "_commit", mine)
        for query in others:
            table.append(files_of(table, 1 if query == "q" else 9), query, 0)
        mine(self, *given)

    monkeypatch.setattr(DeltaLakeTable, "_commit", commit_late)
    table.append(files, "q", 0)
    assert stored(table) == [1] + [9] * ("other" in others)
    assert table.last_batch("q") == 0


def test_a_commit_that_fails_leaves_files_that_nobody_reads(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError("disk full")

    files = files_of(table, 1)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", full)
        with pytest.raises(ClientError, match=r"the Delta table .*lake failed: disk full"):
            table.append(files, "q", 0)
    assert (stored(table), table.last_batch("q")) == ([], -1)
    table.append(files_of(table, 1), "q", 0)
    assert stored(table) == [1]
    assert len([*Path(table.name).rglob("*.parquet")]) == 2


def test_other_columns_are_refused(table: DeltaLakeTable) -> None:
    table.create(SCHEMA, PARTITIONS)
    fewer = pa.schema([SCHEMA.field("topic"), SCHEMA.field("dt")])
    table.create(fewer, PARTITIONS)  # its rows have null in the other column
    more = SCHEMA.append(pa.field("m", pa.string()))
    texts = pa.schema([("topic", pa.string()), ("n", pa.string()), ("dt", pa.date32())])
    for schema, partitions in ((more, PARTITIONS), (texts, PARTITIONS), (SCHEMA, ("dt",))):
        with pytest.raises(ConfigError, match="has other columns or partitions"):
            table.create(schema, partitions)


def test_all_rows_can_be_replaced(tmp_path: Path) -> None:
    table = DeltaLakeTable(str(tmp_path / "lake"))
    table.create(SCHEMA, ())
    table.replace(files_of(table, 1, 2))
    table.replace(files_of(table, 3))
    assert stored(table) == [3]
    assert len(table.paths()) == 1


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    table = DeltaLakeTable(str(tmp_path / "none"))
    assert not table.exists()
    assert table.last_batch("q") == -1
    with pytest.raises(NotFoundError, match=r"there is no Delta table in .*none"):
        table.paths()


def test_features_that_change_the_rows_of_files_are_refused(
    table: DeltaLakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "_HARMLESS_FEATURES", frozenset())
    assert table.paths() == []
    DeltaTable(table.name).alter.add_feature(
        delta_table_feature(), allow_protocol_versions_increase=True
    )
    with pytest.raises(ConfigError, match="features that cannot be read here: timestampNtz"):
        table.paths()


def delta_table_feature() -> Any:
    from deltalake import TableFeatures

    return TableFeatures.TimestampWithoutTimezone


def test_folders_are_absolute_paths_or_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert location("lake/a/") == f"{tmp_path}/lake/a"
    assert location("file:///lake/a") == location("file:/lake/a") == "/lake/a"
    assert location("s3://bucket/lake/") == "s3://bucket/lake"
