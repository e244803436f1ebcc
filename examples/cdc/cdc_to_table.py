"""Change data capture: the changes of a database table, as Debezium writes them, become a table.

    skylark up --topic customers:4
    python examples/cdc/cdc_to_table.py customers lake/customers

Each message is one change, with the row after it, and the key of the row is its sharding key, so
that the changes of a row are in order in one queue. The last change of each row counts; a row that
was deleted is not in the table. Messages that are no changes are listed, and change nothing.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from skylark.spark.session import make_session

CHANGE = "op string, ts_ms bigint, before struct<id:bigint>, after struct<{columns}>"
COLUMNS = "id:bigint,name:string,city:string"


def latest_rows(changes: DataFrame) -> DataFrame:
    """The rows of the database table after all changes."""
    key = F.coalesce("value.after.id", "value.before.id")
    last = F.max_by("value", "queueOffset").alias("last")
    found = changes.where(key.isNotNull()).groupBy(key.alias("key")).agg(last)
    return found.where("last.op <> 'd'").select("last.after.*")


def read_changes(spark: SparkSession, topic: str, **more: str) -> DataFrame:
    options = {
        **more,
        "topic": topic,
        "valueFormat": "json",
        "valueSchema": CHANGE.format(columns=COLUMNS),
        "columns": "queueOffset,value,_corrupt_record",
    }
    return spark.read.format("rocketmq").options(**options).load()


if __name__ == "__main__":
    changes = read_changes(make_session(), sys.argv[1]).cache()
    changes.where("_corrupt_record IS NOT NULL").select("_corrupt_record").show(truncate=False)
    latest_rows(changes).write.mode("overwrite").parquet(sys.argv[2])
