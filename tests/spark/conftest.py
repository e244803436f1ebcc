"""One real Spark session for all tests of this folder: starting one costs seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from skylark.spark.cluster_client import close_clusters
from skylark.spark.java import java_home
from skylark.spark.sink.sink_client import close_clients


@pytest.fixture(scope="module", autouse=True)
def _shared_connections() -> Iterator[None]:
    """Close what tests without a session open in this process."""
    yield
    close_clients()
    close_clusters()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """``local[2]``, no web UI, UTC, two shuffle partitions, its files in a temporary folder."""
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java_home(os.environ, Path(sys.prefix, "java"))))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("skylark-tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.ui.enabled", "false")
            .config("spark.python.authenticate.socketTimeout", "120s")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()
