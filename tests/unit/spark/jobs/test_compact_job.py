"""The options of a compaction."""

from __future__ import annotations

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.jobs.compact_job import CompactOptions


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "to a lake or to a topic"),
        ({"to_lake": "x", "to_topic": "y"}, "to a lake or to a topic"),
        ({"to_topic": "T"}, "cannot be compacted into itself"),
        ({"to_topic": "U", "overwrite": True}, "cannot be overwritten"),
    ],
)
def test_invalid_compact_options_are_refused(given: dict[str, str | bool], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CompactOptions(topic="T", **given)  # type: ignore[arg-type]
