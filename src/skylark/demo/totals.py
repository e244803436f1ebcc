"""The function of the pipeline ``totals``: aggregates orders to the revenue per hour.

An hour is complete when an order of a later hour was read (the watermark); then its sum is
sent, once, and never changes.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ORDER = "number int, cents long, at timestamp"


def hourly_totals(orders: DataFrame) -> DataFrame:
    """Returns the columns of the sink: body, keys and so on."""
    order = F.from_json(orders.body.cast("string"), ORDER).alias("order")
    hours = (
        orders.select(order)
        .select("order.*")
        .withWatermark("at", "0 seconds")
        .groupBy(F.window("at", "1 hour"))
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )
    hour = F.date_format("window.start", "HH:mm")
    return hours.select(
        F.to_json(F.struct(hour.alias("hour"), "orders", "cents")).alias("body"),
        hour.alias("keys"),
    )
