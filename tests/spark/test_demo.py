"""``skylark demo`` with Spark, in the session that all tests share."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from skylark.cli.main import cli


@pytest.mark.timeout(300)
def test_the_whole_demo(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "shop"
    run = CliRunner().invoke(cli, ["--output", "json", "demo", "--data", str(data)])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert found["ok"] is True
    checks = {check["check"]: check["found"] for check in found["checks"]}
    assert len(checks) == 28
    assert checks["Spark: hours that were sent"] == 10
    assert checks["lake: orders archived"] == 301
    assert found["topics"][-1]["topic"] == "totals"
    # The lake without Spark: one row for each order, none twice.
    bodies = pq.ParquetDataset(data / "lake" / "orders").read(columns=["body"])["body"].to_pylist()
    assert len({json.loads(body)["number"] for body in bodies}) == len(bodies) == 301
