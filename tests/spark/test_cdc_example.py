"""The example of change data capture, on a real broker."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import skylark.testing
from skylark import Message
from skylark.sync import Admin, Producer

EXAMPLE = Path(__file__).parents[2] / "examples" / "cdc" / "cdc_to_table.py"


def change(op: str, before: int | None, after: tuple[int, str, str] | None) -> bytes:
    """A change as Debezium writes it, with more fields than the example reads."""
    row = None if after is None else dict(zip(("id", "name", "city"), after, strict=True))
    value: dict[str, Any] = {
        "op": op, "ts_ms": 1_790_000_000_000, "source": {"table": "customers"},
        "before": None if before is None else {"id": before}, "after": row,
    }  # fmt: skip
    return json.dumps(value).encode()


def test_the_last_change_of_each_row_counts(spark: SparkSession) -> None:
    spec = importlib.util.spec_from_file_location("cdc_to_table", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with skylark.testing.sync_broker() as broker:
        with Admin(broker.options) as admin:
            admin.topics.create("customers", queue_count=2)
        with Producer("db", broker.options) as producer:
            for body, key in (
                (change("c", None, (1, "Ada", "London")), "1"),
                (change("c", None, (2, "Bo", "Oslo")), "2"),
                (change("u", 1, (1, "Ada", "Paris")), "1"),
                (b"no change", "1"),
                (change("d", 2, None), "2"),
                (change("r", None, (3, "Cy", "Rome")), "3"),
            ):
                producer.send(Message("customers", body), shard=key)
        changes = example.read_changes(spark, "customers", nameServer=broker.namesrv)
        rows = sorted(tuple(row) for row in example.latest_rows(changes).collect())
        assert rows == [(1, "Ada", "Paris"), (3, "Cy", "Rome")]
        (bad,) = changes.where("_corrupt_record IS NOT NULL").collect()
        assert "topic customers" in bad._corrupt_record
