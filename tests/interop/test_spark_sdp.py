"""The project of ``examples/declarative`` under Spark Declarative Pipelines, run twice.

``spark-pipelines`` starts a JVM of its own each time. The tables of the first run are known to the
second by a metastore of Hive, in files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from skylark import ClientOptions, Message
from skylark.spark.java import java_home
from skylark.sync import Producer, read_arrow
from tests.support.up import cluster

pytestmark = pytest.mark.interop

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
STORAGE = "file:///tmp/orders-declarative"
RUN_WITHIN_S = 600


def run(project: Path, namesrv: str) -> str:
    """``spark-pipelines run``; what it says."""
    programs = Path(sys.executable).parent
    environ = {
        **os.environ,
        "SKYLARK_NAMESRV": namesrv,
        "JAVA_HOME": str(java_home(os.environ, Path(sys.prefix, "java"))),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(project.parent / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={project.parent}",
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(programs / "spark-pipelines"), "run", "--remote", "local[2]", *given],
        cwd=project,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(2 * RUN_WITHIN_S)
@pytest.mark.spec("spark.9.36")
def test_the_project_completes_twice_and_moves_rows_once(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    assert STORAGE in spec.read_text()
    spec.write_text(spec.read_text().replace(STORAGE, (tmp_path / "storage").as_uri()))
    topics = ("--topic", "orders:2", "--topic", "returns:1", "--topic", "alerts:1")
    with cluster(tmp_path, *topics) as namesrv:
        options = ClientOptions(namesrv=namesrv)

        def alerts() -> Counter[bytes]:
            parts = read_arrow("alerts", options, columns=["body"])
            return Counter(row["body"] for part in parts for row in part.to_pylist())

        with Producer("test", options) as producer:
            for number in range(20):
                body = b'{"uid": "u%d", "amount": %d}' % (number % 3, number * 100)
                producer.send(Message("orders", body, "PAID" if number % 2 else "NEW"))
            producer.send(Message("returns", b"u1 returned it"))
        wanted = Counter(b"u%d ordered for %d" % (n % 3, n * 100) for n in range(11, 20))
        wanted[b"u1 returned it"] = 1
        for _ in range(2):
            said = run(project, namesrv)
            assert "Run is COMPLETED" in said
            assert alerts() == wanted
    checkpoints = tmp_path / "storage" / "_checkpoints"
    done = [file for file in checkpoints.rglob("commits/*") if file.name.isdecimal()]
    names = {"orders", "paid", "alerts"}
    flows = [(names.intersection(file.relative_to(checkpoints).parts), file.name) for file in done]
    # No second batch anywhere.
    assert sorted((*found, batch) for found, batch in flows) == [
        ("alerts", "0"),
        ("alerts", "0"),
        ("orders", "0"),
        ("paid", "0"),
    ]
