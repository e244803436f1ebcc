"""A driver with two queries from one topic to two others, one of them exactly once.

``die`` kills the JVM while the driver commits batch 1 of the one, and a task of the other has
written half of its batch 1; ``live`` lets both run to the end of what is there. The topic has one
queue, so that a query has one task, and two of them fit into ``local[2]``.
Usage: killed_sink.py NAMESRV SOURCE AT_LEAST_ONCE EXACTLY_ONCE FOLDER die|live
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from skylark.spark.exactly_once.half_message_completion import HalfLocation, HalfMessageCompleter
from skylark.spark.session import make_session, register
from skylark.spark.sink.sink_writer import StreamWriter, stream_writer
from tests.interop.process import poll_until

ROWS_PER_BATCH = 100


def killing_sink(jvm: int) -> type[DataSource]:
    """A data source whose commits of batch 1 end the JVM after ten rows."""

    class Writer(StreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            real = HalfMessageCompleter._end_together

            async def end(
                ends: HalfMessageCompleter, places: Sequence[HalfLocation], what: int
            ) -> NoReturn:
                await real(ends, places[:10], what)
                os.kill(jvm, signal.SIGKILL)
                os._exit(9)

            if batchId == 1:
                HalfMessageCompleter._end_together = end  # type: ignore[method-assign, assignment]
            super().commit(messages, batchId)

    class KillingSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "killing"

        def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
            made = stream_writer(self.options, schema, overwrite)
            assert isinstance(made, StreamWriter)
            return Writer(made.options, made.plan)

    return KillingSink


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def start(
    spark: SparkSession, namesrv: str, source: str, folder: Path, sink: Mapping[str, str], mode: str
) -> StreamingQuery:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            context = TaskContext.get()
            assert context is not None
            is_second = context.getLocalProperty("streaming.sql.batchId") == "1"
            if mode == "die" and "delivery" not in sink and is_second:
                yield batch.slice(0, batch.num_rows // 2)
                # The other query is about to end us all.
                gone = partial(has_ended, jvm)
                poll_until(gone, timeout_s=120, what="the end of the JVM")
            yield batch

    kind = "rocketmq"
    if mode == "die" and "delivery" in sink:
        kind = "killing"
        spark.dataSource.register(killing_sink(jvm))
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", source)
        .option("columns", "body")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .load()
        .mapInArrow(pass_on, "body binary")
        .writeStream.format(kind)
        .option("nameServer", namesrv)
        .options(**sink)
        .option("checkpointLocation", str(folder / sink["topic"]))
        .trigger(availableNow=True)
        .start()
    )


def main(namesrv: str, source: str, plain: str, exact: str, folder: Path, mode: str) -> None:
    conf = {"spark.ui.enabled": "false", "spark.local.dir": str(folder / "local")}
    spark = make_session("local[2]", conf=conf)
    register(spark)
    sinks = [
        {"topic": exact, "delivery": "exactly-once", "txnImmunitySec": "20"},
        {"topic": plain, "stampId": "true"},
    ]
    queries = [start(spark, namesrv, source, folder, sink, mode) for sink in sinks]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    namesrv, source, plain, exact, folder, mode = sys.argv[1:]
    main(namesrv, source, plain, exact, Path(folder), mode)
