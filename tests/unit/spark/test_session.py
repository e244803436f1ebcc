"""Settings of a session, the Python of its workers, and the import of the plug-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.session import check_worker_python, session_settings


def test_settings_of_a_local_session() -> None:
    settings = session_settings("local[3]")
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.speculation"] == "false"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert session_settings("local")["spark.sql.shuffle.partitions"] == "1"
    assert session_settings("local[2,3]")["spark.sql.shuffle.partitions"] == "2"
    assert session_settings("local[*]")["spark.sql.shuffle.partitions"] == str(os.cpu_count())


def test_settings_on_a_cluster() -> None:
    settings = session_settings("spark://h:7077")
    assert settings["spark.executor.pyspark.memory"] == "512m"
    assert settings["spark.sql.planner.pythonExecution.memory"] == "512m"
    assert "spark.driver.host" not in settings
    assert "spark.sql.shuffle.partitions" not in settings


def fake_python(folder: Path, answer: str) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho {answer}\n")
    program.chmod(0o755)
    return str(program)


def test_the_python_of_the_workers(tmp_path: Path) -> None:
    check_worker_python(sys.executable)
    ours = f"{sys.version_info[0]} {sys.version_info[1]}"
    check_worker_python(fake_python(tmp_path, ours))
    with pytest.raises(ConfigError, match=r"is Python 3\.1, and this is.*set it to .*python"):
        check_worker_python(fake_python(tmp_path, "3 1"))
    with pytest.raises(ConfigError, match="has no skylark"):
        check_worker_python(fake_python(tmp_path, f"{ours} skylark"))
    with pytest.raises(ConfigError, match="is no working Python"):
        check_worker_python(str(tmp_path / "nosuch"))


PROGRAM = """
import socket, sys, time
import pyspark.sql.datasource
before = set(sys.modules)
def refuse(*_, **__):
    raise AssertionError("a socket was opened")
socket.socket.connect = refuse
began = time.process_time()
import pyspark_rocketmq
took = time.process_time() - began
assert issubclass(pyspark_rocketmq.DefaultSource, pyspark.sql.datasource.DataSource)
assert pyspark_rocketmq.DefaultSource.name() == "rocketmq"
heavy = {"numpy", "pyarrow", "pandas", "asyncio"} & (set(sys.modules) - before)
print(took, *heavy)
"""


@pytest.mark.spec("spark.9.2")
def test_the_plug_in_is_imported_quickly() -> None:
    """After pyspark itself, which has been loaded wherever Spark looks for sources."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    took, *heavy = found.stdout.split()
    assert float(took) < 0.3
    assert heavy == []
