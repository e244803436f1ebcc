"""A checkpoint of commit 8b204fb: today's code continues its query.

The checkpoint is of a query that copied topic ``orders`` to topic ``alerts`` exactly once, in three
batches, up to offset 6 of queue 0 and offset 4 of queue 1. The log of its cluster is gone, so that
the sink refuses to go on until an operator has said which batches were written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import skylark.testing
from skylark import Message
from skylark.cli.main import cli
from skylark.sync import Admin, Producer
from skylark.wire.bodies.common_body import MessageQueue

CHECKPOINT = Path(__file__).parents[1] / "golden" / "spark-8b204fb" / "checkpoint"
QUERY_ID = "bbac3300-4ca3-4342-b295-2bd5a26835be"
RUN_WITHIN_S = 120


def continue_query(spark: SparkSession, namesrv: str, checkpoint: Path) -> tuple[str, list[int]]:
    """Run until all is read; the id of the query and the numbers of its batches."""
    query = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 4)
        .load()
        .select("body")
        .writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", "alerts")
        .option("delivery", "exactly-once")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(RUN_WITHIN_S)
    return str(query.id), [progress.batchId for progress in query.recentProgress]


@pytest.mark.parametrize(
    ("is_killed", "batches", "wanted"),
    [
        pytest.param(False, [3], {"0/6", "0/7", "1/4"}, id="stopped"),
        # Batch 2 was planned and not committed: it runs again, with the offsets of its file.
        pytest.param(True, [2, 3], {"0/5", "1/3", "0/6", "0/7", "1/4"}, id="killed in batch 2"),
    ],
)
def test_a_query_continues_from_an_old_checkpoint(
    spark: SparkSession, tmp_path: Path, is_killed: bool, batches: list[int], wanted: set[str]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, checkpoint)
    if is_killed:
        (checkpoint / "commits" / "2").unlink()
        (checkpoint / "commits" / ".2.crc").unlink()
    with skylark.testing.sync_broker(brokerName="broker-a") as broker:
        with Admin(broker.options) as admin:
            admin.topics.create("orders", queue_count=2)
            admin.topics.create("alerts", queue_count=1)
        with Producer("shop", broker.options, batching=False) as producer:
            for queue_id, count in enumerate((8, 5)):
                queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=queue_id)
                for number in range(count):
                    producer.send(Message("orders", b"%d/%d" % (queue_id, number)), queue=queue)
        if is_killed:
            with pytest.raises(StreamingQueryException, match="cannot go on at batch 2"):
                continue_query(spark, broker.namesrv, checkpoint)
        settled = CliRunner().invoke(
            cli,
            ["txn", "settle", QUERY_ID, "--written-through", str(batches[0] - 1), "--yes",
             "-n", broker.namesrv],
        )  # fmt: skip
        assert settled.exit_code == 0, settled.output
        assert continue_query(spark, broker.namesrv, checkpoint) == (QUERY_ID, batches)
        frame = spark.read.format("rocketmq").option("nameServer", broker.namesrv)
        bodies = [bytes(row.body) for row in frame.option("topic", "alerts").load().collect()]
    assert sorted(bodies) == sorted(body.encode() for body in wanted)
