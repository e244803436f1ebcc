"""The pipelines of ``examples/pipeline`` on ``local[2]``, standalone and Spark Connect.

And archives in Delta Lake and Iceberg, whose files are written by the workers of a cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from skylark import ClientOptions, Message
from skylark.spark.java import java_home
from skylark.sync import Admin, Producer, read_arrow
from tests.interop.process import poll_until
from tests.interop.spark_site import HOST, PATIENT, ROOT, connect_server, standalone_cluster
from tests.support.iceberg_catalog import iceberg_catalog
from tests.support.up import cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

EXAMPLE: Final = ROOT / "examples" / "pipeline"
ORDERS: Final = 400
RUN_WITHIN_S: Final = 420
LARGE: Final = 1_000
#: Spark gives some of its Python processes ten seconds to start, which a busy machine exceeds.
LATE: Final = "Python worker failed to connect back"
RETRIES: Final = 3
CONF: Final = '{spark.sql.shuffle.partitions: "4"}'

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster with orders, and a topic of alerts for each kind of Spark."""
    quick = ("--set", "transactionCheckInterval=500", "--topic", "orders:4")
    with cluster(tmp_path_factory.mktemp("up"), *quick) as address:
        options = ClientOptions(namesrv=address)
        with Admin(options) as admin:
            for kind in KINDS:
                admin.topics.create(f"alerts-{kind}", queue_count=1)
        with Producer("test", options) as producer:
            for number in range(ORDERS):
                body = json.dumps({"uid": f"u{number % 7}", "amount": 10 * number}).encode()
                tag = "PAID" if number % 2 else "OPEN"
                producer.send(Message("orders", body, tag, keys=[f"order-{number}"]))
        yield address


KINDS: Final[dict[str, Callable[[Path], AbstractContextManager[str]]]] = {
    "local": lambda _: nullcontext("local[2]"),
    "standalone": standalone_cluster,
    "connect": connect_server,
}


@pytest.mark.spec("spark.9.37")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_everywhere(kind: str, namesrv: str, tmp_path: Path) -> None:
    project, lake = tmp_path / "project", tmp_path / "lake"
    shutil.copytree(EXAMPLE, project)
    file = project / "orders.yaml"
    text = file.read_text()
    assert ("{topic: alerts," in text, CONF in text) == (True, True)
    text = text.replace("{topic: alerts,", f"{{topic: alerts-{kind},")
    file.write_text(text.replace(CONF, json.dumps(PATIENT if kind != "connect" else {})))
    with KINDS[kind](tmp_path / kind) as master:
        printed = run_pipelines(file, namesrv, master, lake)
        for _ in range(RETRIES):  # they go on from where they are
            if LATE in printed:
                printed = run_pipelines(file, namesrv, master, lake)
    assert '"problem": null' in printed, printed
    assert '"state": "failed"' not in printed, printed
    assert paid_rows(lake / "paid") == sorted(
        (f"order-{number}", "PAID", f"u{number % 7}") for number in range(1, ORDERS, 2)
    )
    wanted = [
        (f"u{number % 7} ordered for {10 * number}", f"order-{number}", "LARGE")
        for number in range(LARGE // 10 + 1, ORDERS)
    ]
    options = ClientOptions(namesrv=namesrv)

    def alerts() -> list[Row]:
        parts = read_arrow(f"alerts-{kind}", options, columns=["body", "keys", "tags"])
        rows = [row for part in parts for row in part.to_pylist()]
        return sorted((row["body"].decode(), row["keys"], row["tags"]) for row in rows)

    poll_until(lambda: len(alerts()) >= len(wanted), timeout_s=60, what="all alerts")
    assert alerts() == sorted(wanted)


def run_pipelines(file: Path, namesrv: str, master: str, lake: Path) -> str:
    """What the command prints."""
    given = {"ORDERS_FOLDER": lake.as_uri(), "ORDERS_MASTER": master, "SKYLARK_NAMESRV": namesrv}
    return run_skylark("pipeline", "run", file.name, "--available-now", folder=file.parent, **given)


def run_skylark(*arguments: str, folder: Path, **given: str) -> str:
    """What a command prints on both streams."""
    environ = {
        **os.environ,
        "JAVA_HOME": str(java_home(os.environ, Path(sys.prefix, "java"))),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        **given,
    }
    done = subprocess.run(
        [sys.executable, "-m", "skylark", "--output", "json", *arguments],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    return done.stdout + done.stderr


def paid_rows(folder: Path) -> list[Row]:
    """What the lake holds, by key."""
    table = pq.ParquetDataset(folder).read(columns=["keys", "tags", "uid"])
    return sorted((row["keys"], row["tags"], row["uid"]) for row in table.to_pylist())


def test_workers_write_the_files_of_tables(namesrv: str, tmp_path: Path) -> None:
    catalog = {
        "PYICEBERG_CATALOG__TESTS__URI": f"sqlite:///{tmp_path}/catalog.db",
        "PYICEBERG_CATALOG__TESTS__WAREHOUSE": f"file://{tmp_path}/warehouse",
    }
    conf = [part for name, value in PATIENT.items() for part in ("--conf", f"{name}={value}")]
    with standalone_cluster(tmp_path / "spark") as master:
        for lake_format, name in (("delta", "lake"), ("iceberg", "tests.db.lake")):
            printed = run_skylark(
                *("job", "archive", "orders", "--to", name, "--format", lake_format),
                *("--checkpoint", lake_format, "-n", namesrv, "--master", master, *conf),
                folder=tmp_path,
                **catalog,
            )
            assert f'"rows": {ORDERS}' in printed, printed
    wanted = sorted(f"order-{number}" for number in range(ORDERS))
    delta = DeltaTable(tmp_path / "lake").to_pyarrow_table()
    with iceberg_catalog(tmp_path) as found:
        iceberg = found.load_table("db.lake").scan().to_arrow()
    for table in (delta, iceberg):
        assert sorted(table["keys"].to_pylist()) == wanted
