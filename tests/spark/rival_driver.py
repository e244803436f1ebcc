"""A driver that writes a topic to another one exactly once, until a file tells it to stop.

Two of them on one checkpoint are rivals. It prints the error that ends its query.
Usage: rival_driver.py NAME NAMESRV SOURCE TARGET FOLDER
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from skylark.core.errors import SkylarkError
from skylark.spark.error_translation import translate_errors
from skylark.spark.jobs.job_runner import run_query
from skylark.spark.session import make_session, register

ROWS_PER_BATCH = 50


def main(name: str, namesrv: str, source: str, target: str, folder: Path) -> None:
    conf = {"spark.ui.enabled": "false", "spark.local.dir": str(folder / name)}
    spark = make_session("local[1]", conf=conf)
    register(spark)
    cluster = {"nameServer": namesrv}
    reading = {"topic": source, "columns": "body", "startingOffsets": "earliest"}

    def start() -> StreamingQuery:
        return (
            spark.readStream.format("rocketmq")
            .options(**cluster, **reading, maxOffsetsPerTrigger=ROWS_PER_BATCH)
            .load()
            .writeStream.format("rocketmq")
            .options(**cluster, topic=target, delivery="exactly-once", txnImmunitySec="20")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )

    stop = threading.Event()

    def watch() -> None:
        while not (folder / "stop").exists():
            stop.wait(0.2)
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    with translate_errors():
        run_query(start, lambda _: None, stop)
    spark.stop()


if __name__ == "__main__":
    name, namesrv, source, target, folder = sys.argv[1:]
    try:
        main(name, namesrv, source, target, Path(folder))
    except SkylarkError as error:
        sys.exit(f"{type(error).__name__}: {error}")
