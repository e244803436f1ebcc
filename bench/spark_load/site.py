"""Where Spark is measured: a broker with its topics, and a session beside it."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.client_load.job import Job, bodies
from bench.replication import run_python
from bench.spark_load import ready
from skylark import ClientOptions
from skylark.client.core.broker_calls import BrokerCalls, open_caller
from skylark.spark.cluster_client import close_clusters
from skylark.spark.data_source import DefaultSource
from skylark.spark.session import make_session
from skylark.sync import Admin
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import draw_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader

TASKS = 2
QUEUES = 4
READY_ROWS = 10_000
FILL_PORTION = 200_000


class Site:
    """A broker with its topics, and Spark beside it."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        namesrv: SkylarkNamesrv,
        broker: SkylarkBroker,
        admin: Admin,
    ) -> None:
        self.spark = spark
        self.folder = folder
        self.namesrv = namesrv.address
        self._broker = broker
        self._admin = admin
        self._numbers = itertools.count()
        self._full: dict[tuple[int, int], str] = {}
        self._ready: dict[str, Path] = {}

    @property
    def metrics_port(self) -> int:
        return int(str(self._broker.settings["metricsPromExporterPort"]))

    @cached_property
    def jvm_pid(self) -> int:
        pid: int = self.spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        return pid

    def number(self) -> int:
        return next(self._numbers)

    def topic(self) -> str:
        """A new topic."""
        name = f"bench-{self.number()}"
        self._admin.topics.create(name, queue_count=QUEUES)
        return name

    def full_topic(self, count: int, body_size: int) -> str:
        """A topic with so many messages, made once."""
        key = count, body_size
        if key not in self._full:
            topic = self._full[key] = self.topic()
            for first in range(0, count, FILL_PORTION):
                portion = min(FILL_PORTION, count - first)
                self.client("send", "submitted", topic, portion, body_size)
        return self._full[key]

    def client(self, kind: str, how: str, topic: str, count: int, body_size: int) -> dict[str, Any]:
        """A job of our client, in a process of its own."""
        group = f"group-{self.number()}"
        job = Job(kind, how, self.namesrv, topic, count, body_size, group)
        return run_python("bench.client_load.ours", job.to_json())

    def stored(self, topic: str) -> int:
        """How many messages a topic has."""

        async def ask() -> int:
            async with open_caller() as caller:
                calls = BrokerCalls(caller)
                name, address = self._broker.broker_name, self._broker.address
                queues = [
                    MessageQueue(topic=topic, broker_name=name, queue_id=number)
                    for number in range(QUEUES)
                ]
                return sum([await calls.max_offset(address, queue) for queue in queues])

        return asyncio.run(ask())

    # ---- frames ----------------------------------------------------------------------------------

    def source_options(self, topic: str, columns: str, mode: str) -> dict[str, str]:
        options = {"nameServer": self.namesrv, "topic": topic, "readMode": mode}
        if columns:
            options["columns"] = columns
        if mode == "file":
            options["storePath"] = str(self._broker.store)
        return options

    def rows_of(self, topic: str, columns: str, mode: str) -> DataFrame:
        options = self.source_options(topic, columns, mode)
        return self.spark.read.format("rocketmq").options(**options).load()

    def ready_rows(self, topic: str, columns: str, count: int) -> DataFrame:
        """Rows as the source makes them of a topic, without the source."""
        path = self._ready.get(f"{topic} {columns}")
        if path is None:
            path = self._ready[f"{topic} {columns}"] = self.folder / f"ready-{self.number()}"
            options = self.source_options(topic, columns, "pull")
            source = DefaultSource({name.lower(): value for name, value in options.items()})
            reader = source.reader(source.schema())
            ready.save(next(iter(reader.read(reader.partitions()[0]))), path)
            close_clusters()
        schema = self.rows_of(topic, columns, "pull").schema
        return self._ready_frame(path, count, QUEUES).schema(schema).load()

    def bodies(self, count: int, body_size: int) -> DataFrame:
        """Rows for the sink, in as many partitions as there are tasks."""
        path = self.folder / f"bodies-{body_size}"
        if not path.exists():
            import pyarrow as pa

            raw = [body.encode() for body in bodies(READY_ROWS, body_size)]
            ready.save(pa.RecordBatch.from_pydict({"body": pa.array(raw, pa.binary())}), path)
        return self._ready_frame(path, count, TASKS).schema("body binary").load()

    def _ready_frame(self, path: Path, count: int, parts: int) -> DataFrameReader:
        options = {"path": path, "rows": count // parts, "parts": parts}
        reader = self.spark.read.format(ready.ReadySource.name())
        return reader.options(**{name: str(value) for name, value in options.items()})


# ---- opening ------------------------------------------------------------------------------------


@contextmanager
def opened_spark(folder: Path) -> Iterator[SparkSession]:
    """``local[2]``, with workers that find this package."""
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    conf = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.log.level": "ERROR",
    }
    spark = make_session(f"local[{TASKS}]", app_name="bench", conf=conf)
    try:
        spark.dataSource.register(ready.ReadySource)
        yield spark
    finally:
        spark.stop()


@contextmanager
def opened_site() -> Iterator[Site]:
    """Servers first and Spark last, so that none of its workers misses them at the end."""
    settings = {
        "brokerIP1": "127.0.0.1",
        "mappedFileSizeCommitLog": 256 << 20,
        "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": draw_port(),
    }
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-spark-") as name,
        SkylarkNamesrv(folder=Path(name) / "namesrv") as namesrv,
        SkylarkBroker(namesrv.address, settings, folder=Path(name) / "broker") as broker,
        Admin(ClientOptions(namesrv=namesrv.address)) as admin,
        opened_spark(Path(name) / "spark") as spark,
    ):
        yield Site(spark, Path(name), namesrv, broker, admin)
