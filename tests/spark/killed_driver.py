"""A driver that kills its JVM and itself inside the first batch of a stream.

Its Python path holds a broken plug-in, so that Spark finds no Python source by itself.
Usage: killed_driver.py NAMESRV TOPIC FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from skylark.spark.session import make_session, register


def found_unaided(spark: SparkSession) -> bool:
    try:
        spark.readStream.format("rocketmq").load()
    except Py4JJavaError as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            return False
        raise
    return True


def main(namesrv: str, topic: str, folder: Path) -> None:
    conf = {  # a session that starts fast
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder / "local"),
        "spark.ui.enabled": "false",
    }
    spark = make_session("local[2]", conf=conf)
    assert not found_unaided(spark)
    register(spark)
    gateway = spark.sparkContext._gateway
    assert gateway is not None

    def die(frame: DataFrame, batch_id: int) -> None:
        frame.count()
        os.kill(gateway.proc.pid, signal.SIGKILL)
        os._exit(9)

    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", topic)
        .option("columns", "queueOffset")
        .load()
        .writeStream.foreachBatch(die)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
