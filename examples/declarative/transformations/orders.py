"""A table fed by a topic, a view over it, and a sink that is a topic, with two flows into it.

Each flow is a query with a checkpoint and an identity of its own, so that both are exactly once.
"""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

CLUSTER = {"nameServer": os.environ.get("SKYLARK_NAMESRV", "127.0.0.1:9876")}
spark = SparkSession.active()

dp.create_sink("alerts", "rocketmq", {**CLUSTER, "topic": "alerts", "delivery": "exactly-once"})


@dp.table
def orders() -> DataFrame:
    """The topic as a table that grows."""
    topic = spark.readStream.format("rocketmq").options(**CLUSTER, topic="orders")
    rows = topic.option("startingOffsets", "earliest").load()
    order = F.from_json(rows.body.cast("string"), "uid string, amount int")
    return (
        rows.select("queueId", "queueOffset", "tags", order.alias("o")).select("*", "o.*").drop("o")
    )


@dp.append_flow(target="alerts")
def large_orders() -> DataFrame:
    """Rows of the table that become messages."""
    large = spark.readStream.table("orders").where("amount > 1000")
    text = F.format_string("%s ordered for %d", "uid", "amount")
    return large.select(text.cast("binary").alias("body"))  # the flows of a sink share a schema


@dp.append_flow(target="alerts")
def returned_orders() -> DataFrame:
    """A second flow into the same sink, straight from another topic."""
    topic = spark.readStream.format("rocketmq").options(**CLUSTER, topic="returns")
    return topic.option("startingOffsets", "earliest").load().select("body")
