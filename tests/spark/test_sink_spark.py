"""The sink in a real Spark session, against a real broker: modes, SQL, streams, killed drivers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from skylark import ClientOptions, Message
from skylark.spark.errors import find_cause
from skylark.sync import Admin, Producer, read_arrow
from tests.interop.process import poll_until
from tests.support.up import cluster

RUN_WITHIN_S = 180
HERE = Path(__file__).parent
CODE = os.pathsep.join(map(str, (HERE.parents[1] / "src", HERE.parents[1])))


class Site:
    """A cluster in a process, and a session."""

    def __init__(self, namesrv: str, spark: SparkSession) -> None:
        self.namesrv = namesrv
        self.options = ClientOptions(namesrv=namesrv)
        self.spark = spark

    def topic(self, name: str, queue_count: int = 4) -> str:
        with Admin(self.options) as admin:
            admin.topics.create(name, queue_count=queue_count)
        return name

    def send(self, topic: str, bodies: list[bytes]) -> None:
        with Producer("test", self.options) as producer:
            for future in [producer.submit(Message(topic, body)) for body in bodies]:
                future.result(30)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        parts = read_arrow(topic, self.options, columns=["body", "properties"])
        return [row for part in parts for row in part.to_pylist()]

    def count(self, topic: str) -> Counter[bytes]:
        return Counter(row["body"] for row in self.rows(topic))

    def frame(self, count: int) -> DataFrame:
        return self.spark.range(0, count, 1, 2).selectExpr(
            "cast(id AS string) AS body",
            "concat('Tag', id % 2) AS tags",
            "map('n', cast(id AS string)) AS properties",
        )


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    quick = ("--set", "transactionCheckInterval=500")
    with cluster(tmp_path_factory.mktemp("up"), *quick) as namesrv:
        yield Site(namesrv, spark)


def failure(action: Callable[[], object]) -> str:
    """The text of what Spark raises."""
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


@pytest.mark.spec("spark.9.24")
def test_a_batch_is_appended_and_nothing_else(site: Site, tmp_path: Path) -> None:
    topic = site.topic("Modes")
    writer = site.frame(1_000).write.format("rocketmq").option("nameServer", site.namesrv)
    writer = writer.option("topic", topic)
    writer.mode("append").save()
    rows = site.rows(topic)
    assert Counter(row["body"] for row in rows) == Counter(b"%d" % n for n in range(1_000))
    assert {dict(row["properties"])["TAGS"] for row in rows} == {"Tag0", "Tag1"}
    assert all(dict(row["properties"])["n"].encode() == row["body"] for row in rows)
    assert "SAVE_MODE" in failure(lambda: writer.mode("error").save())
    overwritten = failure(lambda: writer.mode("overwrite").save())
    assert (find_cause(overwritten) or "").startswith("a topic cannot be overwritten")
    missing = failure(lambda: writer.mode("append").option("topic", "Nowhere").save())
    assert (find_cause(missing) or "").startswith("topic Nowhere does not exist")

    counted = (
        site.spark.readStream.format("rate").load().groupBy("value").count()
        .selectExpr("cast(count AS string) AS body")
        .writeStream.format("rocketmq").option("nameServer", site.namesrv).option("topic", topic)
        .option("checkpointLocation", str(tmp_path)).outputMode("complete")
    )  # fmt: skip
    query = counted.start()
    complete = failure(lambda: query.awaitTermination(RUN_WITHIN_S))
    assert "a topic cannot be overwritten" in complete


@pytest.mark.spec("spark.9.23")
def test_sql_reads_and_inserts_where_the_options_arrive(site: Site) -> None:
    """Spark forgets the options of a table, unless the statement names them; a view keeps them."""
    topic, sql = site.topic("Inserted"), site.spark.sql
    site.send(topic, [b"1", b"2"])
    options = f"'nameServer' = '{site.namesrv}', 'topic' = '{topic}'"
    given = f"(nameServer '{site.namesrv}', topic '{topic}', columns 'body')"
    sql(f"CREATE TABLE inserted USING rocketmq OPTIONS {given}")
    sql(f"CREATE TEMPORARY VIEW viewed (body binary) USING rocketmq OPTIONS {given}")
    try:
        found = sql(f"SELECT cast(body AS string) AS b FROM inserted WITH ({options})").collect()
        assert sorted(row.b for row in found) == ["1", "2"]
        row = "SELECT cast('3' AS binary) AS body"
        message = find_cause(failure(lambda: sql(f"INSERT INTO inserted {row}"))) or ""
        assert "does not pass those of a table to INSERT INTO" in message
        assert "INSERT INTO t WITH ('nameServer' = '...'" in message
        sql(f"INSERT INTO inserted WITH ({options}) {row}")
        bare = find_cause(failure(lambda: sql("SELECT * FROM inserted").collect())) or ""
        assert "does not pass those of a table to this statement" in bare
        assert "CREATE TEMPORARY VIEW" in bare
        assert sql("SELECT * FROM viewed").count() == 3
        sql(f"INSERT INTO viewed {row}")  # the view has the option columns, which is of sources
        assert site.count(topic).total() == 4
    finally:
        sql("DROP TABLE inserted")
        sql("DROP VIEW viewed")


@pytest.mark.spec("spark.9.27")
def test_rows_of_the_source_are_not_written_back(site: Site) -> None:
    topic, copy = site.topic("Original"), site.topic("Copy")
    site.send(topic, [b"a", b"b"])
    rows = (
        site.spark.read.format("rocketmq")
        .option("nameServer", site.namesrv)
        .option("topic", topic)
        .load()
    )
    writer = rows.write.format("rocketmq").option("nameServer", site.namesrv).mode("append")
    message = find_cause(failure(writer.save)) or ""
    assert "they would be written back to the topic that they came from" in message
    writer.option("topic", copy).save()
    assert site.count(copy) == Counter([b"a", b"b"])


def test_a_stream_writes_every_row_once(site: Site, tmp_path: Path) -> None:
    source, target = site.topic("StreamIn"), site.topic("StreamOut")
    sent = [b"%d" % n for n in range(300)]

    def run() -> int:
        query = (
            site.spark.readStream.format("rocketmq").option("nameServer", site.namesrv)
            .option("topic", source).option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 100).load()
            .writeStream.format("rocketmq").option("nameServer", site.namesrv)
            .option("topic", target).option("delivery", "exactly-once")
            .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(RUN_WITHIN_S)
        return sum(progress.numInputRows for progress in query.recentProgress)

    site.send(source, sent[:250])
    assert run() == 250
    site.send(source, sent[250:])
    assert run() == 50
    poll_until(lambda: site.count(target).total() >= 300, timeout_s=60, what="all rows")
    assert site.count(target) == Counter(sent)


@pytest.mark.spec("spark.9.28")
@pytest.mark.spec("spark.9.29")
def test_a_driver_is_killed_while_it_writes_and_while_it_commits(
    site: Site, tmp_path: Path
) -> None:
    source = site.topic("Killed", queue_count=1)
    plain, exact = site.topic("KilledPlain"), site.topic("KilledOnce")
    sent = [b"%d" % n for n in range(400)]
    site.send(source, sent)
    for mode in ("die", "live"):
        with (tmp_path / f"{mode}.log").open("wb") as log:
            child = subprocess.run(
                [
                    *(sys.executable, HERE / "killed_sink.py", site.namesrv, source, plain, exact),
                    *(tmp_path, mode),
                ],
                env={**os.environ, "PYTHONPATH": CODE},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=RUN_WITHIN_S,
                check=False,
            )
        text = (tmp_path / f"{mode}.log").read_text()
        assert (child.returncode == 0) == (mode == "live"), text[-4_000:]
    poll_until(lambda: site.count(exact).total() >= len(sent), timeout_s=60, what="all rows")
    assert site.count(exact) == Counter(sent)
    rows = site.rows(plain)
    assert {row["body"] for row in rows} == {*sent}
    # The stamp names query, batch, partition and row: deduplication by it gives the exact set.
    stamped = {dict(row["properties"])["SPARK_ID"]: row["body"] for row in rows}
    assert Counter(stamped.values()) == Counter(sent)
