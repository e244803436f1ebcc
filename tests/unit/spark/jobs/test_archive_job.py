"""The options of an archive."""

from __future__ import annotations

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.jobs.archive_job import ArchiveOptions
from skylark.spark.source.schema import ALL_TYPES


def test_the_checkpoint_is_beside_the_folder() -> None:
    options = ArchiveOptions(topics=("a",), output="file:///lake/a/")
    assert options.checkpoint_folder == "file:///lake/a.checkpoint"
    other = ArchiveOptions(topics=("a",), output="/lake/a", checkpoint="/ck")
    assert other.checkpoint_folder == "/ck"


def test_the_source_reads_all_columns_of_all_topics() -> None:
    options = ArchiveOptions(
        topics=("a", "b"), output="x", namesrv="h:1", tags="A || B", rows_per_batch=7
    )
    assert options.source == {
        "nameServer": "h:1",
        "topics": "a,b",
        "columns": ",".join(ALL_TYPES),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "7",
        "tags": "A || B",
    }


def test_invalid_archive_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="no topic is given"):
        ArchiveOptions(topics=(), output="x")
    with pytest.raises(ConfigError, match="Iceberg needs a checkpoint"):
        ArchiveOptions(topics=("a",), output="lake.db.a", format="iceberg")
