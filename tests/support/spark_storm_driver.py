"""The driver of a storm: two queries from one topic to two others, started again when they fail.

One writes at least once, the other exactly once. A row names the place of its message, which is
unique. Ends on request, or with the process that started it; see
:mod:`tests.support.spark_storm`.
Usage: spark_storm_driver.py NAMESRV SOURCE PLAIN EXACT IMMUNITY_SEC, the folder in the environment
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from skylark.spark.session import make_session
from tests.support.spark_storm_steps import (
    DRIVER_FILE,
    FOLDER_VARIABLE,
    STOP_FILE,
    Driver,
    ExactSource,
    PlainSource,
    put_file,
)

ROWS_PER_BATCH: Final = 60
KEY: Final = "concat(queueId, '-', queueOffset, '-', cast(body AS string)) AS body"
#: What makes a session start fast.
QUICK: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.driver.memory": "512m",
    "spark.python.authenticate.socketTimeout": "120s",  # workers may start slowly
    "spark.ui.enabled": "false",
}


def start(
    spark: SparkSession, namesrv: str, source: str, folder: Path, sink: Mapping[str, str]
) -> StreamingQuery:
    name = (ExactSource if "delivery" in sink else PlainSource).name()
    return (
        spark.readStream.format(name)
        .option("nameServer", namesrv)
        .option("topic", source)
        .option("columns", "queueId,queueOffset,body")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .option("idlePollMs", 50)
        .load()
        .selectExpr(KEY)
        .writeStream.format(name)
        .option("nameServer", namesrv)
        .options(**sink)
        .option("checkpointLocation", str(folder / "checkpoints" / sink["topic"]))
        .start()
    )


def main(namesrv: str, source: str, plain: str, exact: str, immunity: str) -> None:
    folder, parent = Path(os.environ[FOLDER_VARIABLE]), os.getppid()
    conf = {**QUICK, "spark.local.dir": str(folder / "local")}
    spark = make_session("local[2,4]", conf=conf)  # a task may fail three times
    for source_class in (PlainSource, ExactSource):
        spark.dataSource.register(source_class)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    put_file(folder / DRIVER_FILE, Driver(jvm=gateway.proc.pid, program=os.getpid()))
    sinks = [
        {"topic": plain, "stampId": "true"},
        {"topic": exact, "delivery": "exactly-once", "txnImmunitySec": immunity},
    ]
    queries: dict[str, StreamingQuery] = {}
    while not (folder / STOP_FILE).exists() and os.getppid() == parent:
        for sink in sinks:
            query = queries.get(sink["topic"])
            if query is None or not query.isActive:
                if query is not None:
                    sys.stdout.write(f"failed {sink['topic']}: {query.exception()}\n")
                    sys.stdout.flush()
                queries[sink["topic"]] = start(spark, namesrv, source, folder, sink)
        time.sleep(0.05)
    for query in queries.values():
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
