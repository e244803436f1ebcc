"""Spark and Apache's broker: what Java clients send is read, what Spark writes they receive."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from skylark.spark.errors import find_cause
from tests.interop.cluster import Cluster
from tests.interop.java import ApacheBroker, ApacheNamesrv, MqAdmin, Record, run_program
from tests.interop.process import poll_until
from tests.interop.spark_site import running_session

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES: Final = 4
PER_QUEUE: Final = 1_000
WRITTEN: Final = 100_000
KEYS: Final = 997
RUN_WITHIN_S: Final = 240
#: What a Java consumer adds to a message after it has it.
ADDED_BY_CONSUMER: Final = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}


class Site:
    """Apache's servers, and a session."""

    def __init__(self, namesrv: str, cluster: Cluster, spark: SparkSession) -> None:
        self.namesrv = namesrv
        self._cluster = cluster
        self.spark = spark

    def topic(self, name: str) -> str:
        self._cluster.create_topic(name, cluster="DefaultCluster", queues=QUEUES)
        self._cluster.wait_route(name, timeout_s=60)
        return name

    def java(self, mode: str, topic: str, count: int) -> list[Record]:
        options: dict[str, str | int] = {
            "namesrv": self.namesrv, "topic": topic, "group": f"Java{topic}",
            "mode": mode, "count": count, "deadline_s": RUN_WITHIN_S,
        }  # fmt: skip
        return run_program("SparkPeer", options, timeout_s=RUN_WITHIN_S + 60)

    def read(self, topic: str, **options: str) -> DataFrame:
        return (
            self.spark.read.format("rocketmq")
            .option("nameServer", self.namesrv)
            .option("topic", topic)
            .options(**options)
            .load()
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, mqadmin: MqAdmin) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("spark")
    with (
        ApacheNamesrv(folder=folder / "namesrv") as namesrv,
        ApacheBroker(namesrv.address, folder=folder / "broker") as broker,
        running_session(folder) as spark,
    ):
        cluster = Cluster(mqadmin, namesrv.address)
        cluster.wait_brokers(broker.broker_name, timeout_s=60)

        def settled() -> bool:
            cluster.create_topic("Settled", cluster=broker.cluster, queues=1)
            return "Settled" in cluster.topics()

        poll_until(settled, timeout_s=60, what="a topic listed by the name server")
        yield Site(namesrv.address, cluster, spark)


def as_java_shows(row: dict[str, Any]) -> Record:
    """A row of Spark's in the words of the Java program."""
    return {
        "event": "got",
        "queue": row["queueId"],
        "offset": row["queueOffset"],
        "id": row["msgId"],
        "tags": row["tags"],
        "keys": row["keys"],
        "flag": row["flag"],
        "born": round(row["bornTimestamp"].timestamp() * 1000),
        "stored": round(row["storeTimestamp"].timestamp() * 1000),
        "body": base64.b64encode(row["body"]).decode(),
        "properties": dict(row["properties"]),
        "selected": None,
    }


def without_additions(record: Record) -> Record:
    properties = record["properties"]
    assert isinstance(properties, dict)
    kept = {name: value for name, value in properties.items() if name not in ADDED_BY_CONSUMER}
    return {**record, "properties": kept}


@pytest.mark.spec("spark.9.3")
def test_spark_reads_what_a_java_consumer_sees(site: Site, tmp_path: Path) -> None:
    topic = site.topic("FromJava")
    assert site.java("send", topic, PER_QUEUE) == [{"event": "sent", "queues": QUEUES}]
    seen = [without_additions(record) for record in site.java("receive", topic, QUEUES * PER_QUEUE)]
    assert len(seen) == QUEUES * PER_QUEUE
    columns = (
        "queueId,queueOffset,msgId,tags,keys,flag,bornTimestamp,storeTimestamp,body,properties"
    )
    frame = site.read(topic, columns=columns)
    rows = [row.asDict() for row in frame.collect()]
    batch = sorted((as_java_shows(row) for row in rows), key=place)
    assert batch == seen
    assert {len(base64.b64decode(str(record["body"]))) > 4096 for record in seen} == {True, False}

    target = str(tmp_path / "rows")
    query = (
        site.spark.readStream.format("rocketmq")
        .option("nameServer", site.namesrv).option("topic", topic).option("columns", columns)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 1_500).load()
        .writeStream.format("parquet").option("path", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(RUN_WITHIN_S)
    assert [progress.numInputRows for progress in query.recentProgress] == [1_500, 1_500, 1_000]
    streamed = [row.asDict() for row in site.spark.read.parquet(target).collect()]
    assert sorted((as_java_shows(row) for row in streamed), key=place) == seen

    tagged = {row.body for row in site.read(topic, tags="TagA").select("body").collect()}
    assert tagged == {base64.b64decode(str(r["body"])) for r in seen if r["tags"] == "TagA"}


def place(record: Record) -> tuple[Any, Any]:
    return record["queue"], record["offset"]


@pytest.mark.spec("spark.9.25")
def test_a_java_consumer_receives_what_spark_writes(site: Site) -> None:
    topic = site.topic("FromSpark")
    frame = site.spark.range(0, WRITTEN, 1, 2).selectExpr(
        "cast(concat('row ', id) AS binary) AS body",
        "concat('Tag', id % 5) AS tags",
        "array(concat('a-', id), concat('b-', id)) AS keys",
        "map('number', cast(id AS string), 'text', concat('k\u00e4se \u732b ', id)) AS properties",
        f"concat('shard-', id % {KEYS}) AS shardingKey",
    )
    writer = frame.write.format("rocketmq").option("nameServer", site.namesrv)
    writer.option("topic", topic).mode("append").save()
    records = site.java("receive", topic, WRITTEN)
    numbers = Counter(int(str(properties(record)["number"])) for record in records)
    assert numbers == Counter(range(WRITTEN))
    shards: defaultdict[str, list[int]] = defaultdict(list)
    for record in records:
        found = properties(record)
        number = int(found["number"])
        assert base64.b64decode(str(record["body"])) == b"row %d" % number
        assert (record["tags"], record["keys"]) == (f"Tag{number % 5}", f"a-{number} b-{number}")
        assert found["text"] == f"k\u00e4se \u732b {number}"
        assert record["selected"] == record["queue"]
        shards[found["__SHARDINGKEY"]].append(number)
    assert len(shards) == KEYS
    assert {record["queue"] for record in records} == set(range(QUEUES))
    half = WRITTEN // 2  # each task keeps the order of its own rows
    for shard in shards.values():
        for task in (range(half), range(half, WRITTEN)):
            mine = [number for number in shard if number in task]
            assert mine == sorted(mine)


def properties(record: Record) -> dict[str, str]:
    found = record["properties"]
    assert isinstance(found, dict)
    return found


def test_exactly_once_is_refused_by_its_broker(site: Site) -> None:
    topic = site.topic("Once")
    frame = site.spark.range(10).selectExpr("cast(id AS string) AS body")
    writer = frame.write.format("rocketmq").option("nameServer", site.namesrv)
    writer = writer.option("topic", topic).option("delivery", "exactly-once").mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.save()
    cause = find_cause(str(caught.value)) or ""
    assert cause.startswith("broker-a cannot do delivery=exactly-once")
    assert site.read(topic).count() == 0
