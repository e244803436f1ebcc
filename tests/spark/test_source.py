"""The source in a real Spark session, against a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import skylark
from skylark import ClientOptions, Message
from skylark.admin.blocking_admin import Admin
from skylark.core.clock import SystemClock
from skylark.core.metrics import Registry
from skylark.spark.errors import find_cause
from skylark.spark.lag_listener import LagListener
from skylark.sync import Producer
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.process import poll_until
from tests.support.up import cluster

RUN_WITHIN_S = 120


class Site:
    """A cluster in a process, a session, and a producer."""

    def __init__(self, namesrv: str, admin: Admin, spark: SparkSession) -> None:
        self.namesrv = namesrv
        self.options = ClientOptions(namesrv=namesrv)
        self.admin = admin
        self.spark = spark
        self._count = 0

    def topic(self, queue_count: int = 4) -> str:
        self._count += 1
        name = f"S{self._count}"
        self.admin.topics.create(name, queue_count=queue_count)
        return name

    def send(self, topic: str, count: int, queue_id: int = 0) -> None:
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)
        with Producer("test", self.options, batching=False) as producer:
            sent = [
                producer.submit(Message(topic, b"%d" % index, "A"), queue=queue)
                for index in range(count)
            ]
            for each in sent:
                each.result(30)

    def load(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("RocketMQ").option("nameServer", self.namesrv)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.option("topic", topic).load()

    def available_now(self, topic: str, folder: Path, **options: object) -> StreamingQuery:
        """A run over what is there, into Parquet files."""
        reader = self.spark.readStream.format("rocketmq").option("nameServer", self.namesrv)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.option("topic", topic)
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "rows"))
        )
        assert query.awaitTermination(RUN_WITHIN_S)
        return query


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with cluster(tmp_path_factory.mktemp("up")) as namesrv:  # noqa: SIM117 - the admin needs it
        with Admin(ClientOptions(namesrv=namesrv)) as admin:
            yield Site(namesrv, admin, spark)


@pytest.mark.spec("spark.9.1")
@pytest.mark.spec("spark.9.3")
@pytest.mark.spec("spark.9.4")
def test_a_batch_read_gives_every_message_once(site: Site) -> None:
    """Nothing was registered: Spark found the package by its name."""
    topic = site.topic(4)
    wanted: dict[tuple[int, int], tuple[bytes, str, str, str]] = {}
    for number, compress_type in enumerate(("ZLIB", "LZ4", "ZSTD", "ZLIB")):
        with Producer(
            "test", site.options, compress_type=compress_type, compress_over=500
        ) as producer:
            queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=number)
            for index in range(20):
                body = bytes([index]) * (1000 if index % 2 else 100)
                tag, key = f"Tag{index % 3}", f"key{index}"
                message = Message(topic, body, tag, (key, "more"), {"a": f"ä{index}"})
                sent = producer.send(message, queue=queue)
                wanted[number, sent.queue_offset] = (body, tag, f"{key} more", f"ä{index}")
    frame = site.load(topic)
    rows = frame.select("*", frame.properties["a"].alias("a")).collect()
    assert len(rows) == 80
    found = {
        (row.queueId, row.queueOffset): (bytes(row.body), row.tags, row["keys"], row.a)
        for row in rows
    }
    assert found == wanted
    assert {(row.topic, row.brokerName) for row in rows} == {(topic, "broker-a")}
    assert any(row.sysFlag & 1 for row in rows)
    site.send(topic, 10)
    assert frame.count() == 80
    assert site.load(topic).count() == 90


@pytest.mark.spec("spark.9.5")
@pytest.mark.spec("spark.9.6")
def test_columns_and_filters(site: Site) -> None:
    topic = site.topic(4)
    for queue_id in range(4):
        site.send(topic, 3, queue_id)
    reader = site.spark.read.format("rocketmq").option("nameServer", site.namesrv)
    two = reader.schema("body binary, queueOffset bigint").option("topic", topic).load()
    assert two.columns == ["body", "queueOffset"]
    assert sorted(two.collect())[0] == (bytearray(b"0"), 0)
    assert site.load(topic, columns="queueOffset,body").columns == ["queueOffset", "body"]
    with pytest.raises(PySparkException) as caught:
        reader.schema("nosuch int").load().count()
    assert (find_cause(caught.value) or "").startswith("the source has no column nosuch: there are")
    for enabled in ("false", "true"):
        site.spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            frame = site.load(topic)
            assert frame.where("queueId=1").count() == 3
            assert frame.count() == 12
            both = frame.where("queueId=1").union(frame.where("queueId=2"))
            assert sorted(row.queueId for row in both.collect()) == [1, 1, 1, 2, 2, 2]
        finally:
            site.spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_can_be_read_by_sql(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 4)
    site.spark.sql(
        "CREATE TEMPORARY VIEW v USING rocketmq"
        f" OPTIONS(nameServer '{site.namesrv}', topic '{topic}')"
    )
    try:
        rows = site.spark.sql("SELECT max(queueOffset), cast(max(body) AS string) FROM v").collect()
        assert rows == [(3, "3")]
    finally:
        site.spark.sql("DROP VIEW v")


def test_mistakes_are_one_sentence(site: Site) -> None:
    with pytest.raises(PySparkException) as caught:
        site.load("T", maxOffsetPerTrigger=5)
    assert find_cause(caught.value) == (
        "option maxoffsetpertrigger is unknown: did you mean maxOffsetsPerTrigger or"
        " minOffsetsPerTrigger?"
    )
    with pytest.raises(PySparkException) as caught:
        site.load("nosuch").count()
    assert (find_cause(caught.value) or "").startswith(
        "topic nosuch does not exist: create it with"
    )
    assert_few_frames(caught.value)


def assert_few_frames(error: PySparkException) -> None:
    """Spark shows the frames of the source to its user, twice: one of ours is enough."""
    frames = [line for line in str(error).splitlines() if line.startswith("  File ")]
    ours = [line for line in frames if str(Path(skylark.__file__).parent) in line]
    assert len(ours) <= 1, frames
    assert "direct cause" not in str(error)


def count_rows(spark: SparkSession, folder: Path, given: dict[str, str]) -> None:
    spark.read.format("rocketmq").options(**given).load().count()


def stream_rows(spark: SparkSession, folder: Path, given: dict[str, str]) -> None:
    rows = spark.readStream.format("rocketmq").options(**given).load().writeStream.format("parquet")
    folders = {"path": str(folder / "rows"), "checkpointLocation": str(folder / "checkpoint")}
    query = rows.options(**folders).trigger(availableNow=True).start()
    query.awaitTermination(RUN_WITHIN_S)


@pytest.mark.parametrize("read", [count_rows, stream_rows])
def test_a_name_server_that_is_not_there_is_one_sentence(
    spark: SparkSession,
    tmp_path: Path,
    read: Callable[[SparkSession, Path, dict[str, str]], None],
) -> None:
    given = {"nameServer": "127.0.0.1:1", "topic": "T", "outageTimeout": "1s"}
    with pytest.raises(PySparkException) as caught:
        read(spark, tmp_path, given)
    assert (find_cause(caught.value) or "").startswith(
        "no name server responds: no connection to 127.0.0.1:1: nothing listens there"
    )
    assert_few_frames(caught.value)


@pytest.mark.spec("spark.9.8")
def test_an_empty_topic_into_the_sink(site: Site, tmp_path: Path) -> None:
    topic, target = site.topic(2), site.topic(1)
    assert site.load(topic).count() == 0
    query = (
        site.spark.readStream.format("rocketmq")
        .option("nameServer", site.namesrv)
        .option("topic", topic)
        .load()
        .writeStream.format("rocketmq")
        .option("nameServer", site.namesrv)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(RUN_WITHIN_S)
    assert (tmp_path / "commits" / "0").exists()
    assert site.load(target).count() == 0


@pytest.mark.spec("spark.9.11")
@pytest.mark.spec("spark.9.14")
def test_available_now(site: Site, tmp_path: Path) -> None:
    topic, group = site.topic(2), "spark-job"
    registry = Registry()
    listener = LagListener(registry)
    site.spark.streams.addListener(listener)
    try:
        options = {"maxOffsetsPerTrigger": 8, "group": group}
        query = site.available_now(topic, tmp_path, **options)  # the topic is empty
        assert [each.numInputRows for each in query.recentProgress] == [0]
        site.send(topic, 12, 0)
        site.send(topic, 8, 1)
        query = site.available_now(topic, tmp_path, **options)
        progress = [each for each in query.recentProgress if each.numInputRows]
        assert [each.numInputRows for each in progress] == [8, 8, 4]
        last = json.loads(progress[-1].sources[0].endOffset)
        assert last["q"] == {topic: {"broker-a": {"0": 12, "1": 8}}}
        assert json.loads(progress[0].sources[0].latestOffset)["q"] == last["q"]
        lags = {
            each.queue.queue_id: (each.consumer_offset, each.lag)
            for each in site.admin.groups.progress(group).queues
        }
        assert lags == {0: (12, 0), 1: (8, 0)}
        site.send(topic, 3)
        query = site.available_now(topic, tmp_path, **options)
        assert sum(each.numInputRows for each in query.recentProgress) == 3
        rows = site.spark.read.parquet(str(tmp_path / "rows"))
        assert rows.count() == rows.select("queueId", "queueOffset").distinct().count() == 23

        def shows_no_lag() -> bool:
            return 'statistic="max"} 0' in registry.render()

        poll_until(shows_no_lag, timeout_s=30, what="the lag of the last batch")
        assert f'topic="{topic}",broker="broker-a",queue="0"}} 0' in registry.render()
    finally:
        site.spark.streams.removeListener(listener)


@pytest.mark.spec("spark.9.13")
def test_idle_triggers_write_nothing(site: Site, tmp_path: Path) -> None:
    topic = site.topic(1)
    site.send(topic, 5)
    query = (
        site.spark.readStream.format("rocketmq")
        .option("nameServer", site.namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("idlePollMs", "10")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        offsets, commits = tmp_path / "offsets", tmp_path / "commits"
        poll_until((commits / "0").exists, timeout_s=RUN_WITHIN_S, what="batch 0")
        site.send(topic, 1)
        poll_until((commits / "1").exists, timeout_s=RUN_WITHIN_S, what="batch 1")
        # A hundred triggers later: Spark reports an idle query every ten seconds at most.
        clock = SystemClock()
        until = clock.monotonic() + 2
        poll_until(lambda: clock.monotonic() > until, timeout_s=30, what="two seconds")
        assert query.isActive
        assert sorted(file.name for file in offsets.iterdir() if file.name.isdecimal()) == [
            "0",
            "1",
        ]
    finally:
        query.stop()


@pytest.mark.spec("spark.9.1")
@pytest.mark.spec("spark.9.9")
def test_a_driver_killed_in_its_first_batch(site: Site, tmp_path: Path) -> None:
    topic = site.topic(1)
    site.send(topic, 100)
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "pyspark_zzz.py").write_text("raise RuntimeError('broken')\n")
    root = Path(__file__).resolve().parents[2]
    paths = (root / "src", root, plugins)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    environ.pop("PYSPARK_PYTHON", None)

    def drive() -> int:
        command = [sys.executable, "-m", "tests.spark.killed_driver"]
        with (tmp_path / "driver.log").open("wb") as log:
            return subprocess.run(
                [*command, site.namesrv, topic, str(tmp_path)],
                env=environ,
                stdout=log,
                stderr=log,
                timeout=RUN_WITHIN_S,
                check=False,
            ).returncode

    stop = threading.Event()

    def produce() -> None:
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
        with Producer("test", site.options) as producer:
            while not stop.wait(0.002):
                producer.send(Message(topic, b"x"), queue=queue)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        status = drive()
    finally:
        stop.set()
        producer.join()
    assert status == 9, (tmp_path / "driver.log").read_text()[-4000:]
    first_end = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    site.send(topic, 250)
    batches: dict[int, list[int]] = {}

    def take(frame: DataFrame, batch_id: int) -> None:
        batches[batch_id] = sorted(row.queueOffset for row in frame.collect())

    query = (
        site.spark.readStream.format("rocketmq")
        .option("nameServer", site.namesrv)
        .option("topic", topic)
        .option("columns", "queueOffset")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(RUN_WITHIN_S)
    start = first_end.get("s", first_end["q"])[topic]["broker-a"]["0"]
    end = first_end["q"][topic]["broker-a"]["0"]
    assert start > 100
    assert batches[0] == list(range(start, end))  # as the first run had it
    high = site.admin.offsets.bounds(topic).queues[0].max_offset
    assert [offset for number in sorted(batches) for offset in batches[number]] == list(
        range(start, high)
    )
