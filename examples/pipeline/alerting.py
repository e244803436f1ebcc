"""The function of the pipeline ``alerts``: from orders to alerts about large ones."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

LARGE = 1_000


def transform(orders: DataFrame) -> DataFrame:
    """The columns of the result are those that the sink knows: body, tags, keys and so on."""
    order = F.from_json(orders.body.cast("string"), "uid string, amount int")
    large = orders.select(order.alias("order"), "keys").where(F.col("order.amount") > LARGE)
    text = F.format_string("%s ordered for %d", "order.uid", "order.amount")
    return large.select(text.alias("body"), "keys", F.lit("LARGE").alias("tags"))
