"""Which batches are written to a table, and what a missing library says."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from skylark.core.errors import ConfigError
from skylark.spark.jobs.archive_job import ArchiveOptions
from skylark.spark.jobs.compact_job import CompactOptions
from skylark.spark.jobs.mirror_job import MirrorOptions
from skylark.spark.jobs.replay_job import ReplayOptions
from skylark.spark.jobs.verify_job import VerifyOptions
from skylark.spark.lake import lake_table
from skylark.spark.lake.lake_files import DataFile, FilePlan
from skylark.spark.lake.lake_table import LakeTable, append_batch, open_table


class FakeTable:
    """Remembers what was appended."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.appended: list[tuple[list[str], str, int]] = []

    def last_batch(self, query: str) -> int:
        assert query == "q"
        return self._last

    def file_plan(self, schema: pa.Schema) -> FilePlan:
        return FilePlan(schema=schema, create=cast("Any", None))

    def append(self, files: Sequence[DataFile], query: str, batch: int) -> None:
        self.appended.append(([file.path for file in files], query, batch))


class FakeFrame:
    schema = StructType([StructField("n", LongType())])


@pytest.mark.parametrize(("last", "written"), [(-1, True), (4, True), (5, False), (6, False)])
def test_a_batch_is_written_unless_the_table_has_it(
    monkeypatch: pytest.MonkeyPatch, last: int, written: bool
) -> None:
    computed = []

    def write_files(frame: DataFrame, plan: FilePlan) -> list[DataFile]:
        computed.append(plan.schema.names)
        return [DataFile(path="a", size=1, rows=1, partition=())]

    monkeypatch.setattr(lake_table, "write_files", write_files)
    table = FakeTable(last)
    frame = cast("DataFrame", FakeFrame())
    assert append_batch(cast("LakeTable", table), frame, "q", 5) is written
    assert table.appended == [(["a"], "q", 5)] * written
    assert computed == [["n"]] * written


@pytest.mark.parametrize(
    ("lake_format", "library"), [("delta", "deltalake"), ("iceberg", "pyiceberg")]
)
def test_a_missing_library_is_named_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, lake_format: Any, library: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        lake_table, "find_spec", lambda name: None if name == library else find(name)
    )
    uses: list[Callable[[], object]] = [
        lambda: ArchiveOptions(topics=("a",), output="x", checkpoint="ck", format=lake_format),
        lambda: CompactOptions(topic="a", to_lake="x", format=lake_format),
        lambda: ReplayOptions(lake="x", format=lake_format),
        lambda: VerifyOptions(topic="a", lake="x", format=lake_format),
        lambda: MirrorOptions(
            topic="a", to_namesrv="h:1", checkpoint="ck", pairs="x", pairs_format=lake_format
        ),
        lambda: open_table(lake_format, "db.x"),
    ]
    sentence = (
        f"the Python package {library} is not installed: pip install 'skylark-mq[{lake_format}]'"
    )
    for use in uses:
        with pytest.raises(ConfigError) as caught:
            use()
        assert str(caught.value) == sentence


def test_a_mirror_with_pairs_in_iceberg_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="a table in Iceberg needs a name"):
        MirrorOptions(topic="a", to_namesrv="h:1", checkpoint="ck", pairs_format="iceberg")
