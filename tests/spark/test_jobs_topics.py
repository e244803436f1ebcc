"""The jobs between topics (transform, mirror) and about them (report), from the command line."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from skylark import ClientOptions, Message
from skylark.cli.main import cli
from skylark.core.errors import SkylarkError
from skylark.spark.cluster_client import shared_cluster
from skylark.spark.jobs.mirror_job import MIRROR_FROM, mirrored_rows
from skylark.spark.option_table import Connection
from skylark.sync import Admin, read_arrow
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import poll_until
from tests.spark.source_site import Site

WEST = "West"


class JobSite(Site):
    """A cluster, a second one called West, and ``skylark job`` in this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.west_namesrv = self.open.enter_context(SkylarkNamesrv(folder=folder / "west-namesrv"))
        settings = {
            "brokerName": "broker-w",
            "brokerClusterName": WEST,
            "mappedFileSizeCommitLog": 64 * 1024,
            "mappedFileSizeConsumeQueue": 60_000,
            "maxMessageSize": 16_384,
        }
        self.west_broker = self.open.enter_context(
            SkylarkBroker(self.west_namesrv.address, settings, folder=folder / "west")
        )
        self.west = ClientOptions(namesrv=self.west_namesrv.address)
        self.west_admin = self.open.enter_context(Admin(self.west))

    def run(self, *arguments: str, output: str = "json", namesrv: str | None = None) -> Result:
        job = ["--output", output, "job", *arguments, "--master", "local[2]"]
        return CliRunner().invoke(cli, [*job, "-n", namesrv or self.namesrv.address])

    def done(self, *arguments: str, namesrv: str | None = None) -> Any:
        """The result of a job that must succeed."""
        result = self.run(*arguments, namesrv=namesrv)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refused(self, *arguments: str, namesrv: str | None = None) -> tuple[int, str]:
        """Exit code and sentence of a job that must fail."""
        result = self.run(*arguments, namesrv=namesrv)
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        return result.exit_code, lines[0].removeprefix("Error: ")

    def publish(self, topic: str, counts: dict[int, int], first: int = 0) -> None:
        """Messages with all that users may give them, so many to each queue."""
        futures = [
            self.producer.submit(
                Message(
                    topic,
                    json.dumps({"n": n, "queue": queue_id}).encode(),
                    "AB"[n % 2],
                    keys=[f"k{n % 3}", "all"],
                    properties={"n": str(n), "text": "ä=ö", "__SHARDINGKEY": f"s{n % 2}"},
                    flag=7,
                ),
                queue=MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id),
            )
            for queue_id, count in counts.items()
            for n in range(first, first + count)
        ]
        for future in futures:
            future.result(30)

    def rows(self, topic: str, options: ClientOptions | None = None) -> list[dict[str, Any]]:
        columns = ["queueId", "queueOffset", "msgId", "tags", "keys", "body", "flag", "properties"]
        parts = read_arrow(topic, options or self.options, columns=columns)
        return [row | {"properties": dict(row["properties"])}
                for part in parts for row in part.to_pylist()]  # fmt: skip


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSite]:
    spark.sparkContext.setLogLevel("OFF")
    site = JobSite(tmp_path_factory.mktemp("jobs"))
    with site.open:
        yield site
    spark.sparkContext.setLogLevel("WARN")


# ---- transform -----------------------------------------------------------------------------------

SQL = """
    SELECT concat('W', o.n) AS body, concat('n', o.n) AS keys, 'T' AS tags,
           map('queue', cast(o.queue AS string)) AS properties
    FROM (SELECT from_json(cast(body AS string), 'n INT, queue INT') AS o, tags FROM input)
    WHERE tags = 'A'
"""


def test_a_topic_becomes_another_by_sql(site: JobSite, tmp_path: Path) -> None:
    source, target = site.topic(2), site.topic(2)
    site.publish(source, {0: 30, 1: 10})
    (tmp_path / "job.sql").write_text(SQL)
    job = ("transform", source, target, "--sql-file", str(tmp_path / "job.sql"),
           "--checkpoint", str(tmp_path / "ck"))  # fmt: skip
    plan = site.done(*job, "--dry-run")
    assert plan["columns"][0] == {"column": "body", "type": "string", "used": True}
    assert [each["column"] for each in plan["columns"]] == ["body", "keys", "tags", "properties"]
    assert [(each["start"], each["end"]) for each in plan["queues"]] == [(0, 30), (0, 10)]
    assert site.rows(target) == []

    first = site.done(*job)
    assert (first["rows_read"], first["delivery"], first["lag"]) == (40, "at-least-once", 0)
    rows = site.rows(target)
    wanted = Counter(
        (b"W%d" % n, f"n{n}", str(q)) for q, c in ((0, 30), (1, 10)) for n in range(0, c, 2)
    )
    found = Counter((row["body"], row["keys"], row["properties"]["queue"]) for row in rows)
    assert found == wanted
    assert {row["tags"] for row in rows} == {"T"}

    site.publish(source, {0: 2}, first=30)
    again = site.done(*job, "--dry-run")
    assert [(each["start"], each["end"]) for each in again["queues"]] == [(30, 32), (10, 10)]
    second = site.done(*job)
    assert second["rows_read"] == 2
    assert len(site.rows(target)) == 21


def test_a_transformation_may_be_exactly_once(site: JobSite, tmp_path: Path) -> None:
    source, target = site.topic(2), site.topic(2)
    site.publish(source, {0: 20, 1: 20})
    summary = site.done(
        *("transform", source, target, "--delivery", "exactly-once", "--batch-rows", "25"),
        *("--sql", "SELECT * FROM input WHERE queueOffset < 15"),
        *("--checkpoint", str(tmp_path / "ck")),
    )
    assert (summary["rows_read"], summary["batches"]) == (40, 2)
    sent = Counter(row["body"] for row in site.rows(source) if row["queueOffset"] < 15)
    assert Counter(row["body"] for row in site.rows(target)) == sent
    assert sum(sent.values()) == 30


def test_errors_of_a_transformation_are_one_sentence(site: JobSite, tmp_path: Path) -> None:
    source, target = site.topic(1), site.topic(1)

    def refused(sql: str, to: str = target, **more: str | None) -> tuple[int, str]:
        job = ["transform", source, to, "--sql", sql, "--checkpoint", str(tmp_path / "ck")]
        return site.refused(*job, **more)

    for sql, sentence in (
        ("SELECT nosuch FROM input", "name `nosuch` cannot be resolved"),
        ("SELEC body FROM input", "the SQL is not valid: Syntax error at or near 'SELEC' (line 1"),
        ("SELECT body FROM elsewhere", "`elsewhere` cannot be found"),
        ("SELECT 'x' AS body", "the SQL does not read the messages, which are the view input"),
        ("SELECT keys FROM input", "the sink needs a column body"),
        ("SELECT body, 1 AS extra FROM input", "the sink has no column extra"),
        ("SELECT cast(count(*) AS string) AS body FROM input GROUP BY tags", "watermark"),
    ):
        code, text = refused(sql)
        assert (code, sentence in text) == (2, True), text
    assert refused("SELECT body FROM input", source)[0] == 2
    elsewhere = site.namesrv.address.replace("127.0.0.1", "localhost")
    code, text = site.refused(
        *("transform", source, source, "--sql", "SELECT body FROM input"),
        *("--checkpoint", str(tmp_path / "ck"), "--to-namesrv", elsewhere),
    )
    assert (code, text.partition(":")[0]) == (2, "the job would read its own output")
    assert refused("SELECT body FROM input", "Nowhere") == (
        4,
        "topic Nowhere does not exist: create it with `skylark topic create Nowhere`, or check that"
        " its brokers run",
    )
    code, text = refused("SELECT body FROM input", namesrv="127.0.0.1:1")
    assert (code, text.startswith("no name server responds")) == (3, True)
    assert not (tmp_path / "ck").exists() or site.rows(target) == []


# ---- mirror --------------------------------------------------------------------------------------


def users(row: dict[str, Any]) -> dict[str, str]:
    """The properties without the one that the broker writes for some messages."""
    return {name: value for name, value in row["properties"].items() if name != "CLUSTER"}


def in_order(rows: list[dict[str, Any]], of_queue: int) -> list[int]:
    """The numbers of the messages of one source queue, as they lie in the target."""
    bodies = [json.loads(row["body"]) for row in rows]
    return [body["n"] for body in bodies if body["queue"] == of_queue]


def test_a_mirror_keeps_messages_and_order_and_pairs_offsets(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic = site.topic(4)
    site.west_admin.topics.create(topic, queue_count=3)
    counts = {0: 700, 1: 5, 2: 0, 3: 300}
    site.publish(topic, counts)
    job = ("mirror", topic, "--to-namesrv", site.west_namesrv.address,
           "--checkpoint", str(tmp_path / "ck"))  # fmt: skip
    plan = site.done(*job, "--dry-run")
    assert [(each["queue_id"], each["rows"], each["to_queue_id"]) for each in plan] == [
        (0, 700, 0),
        (1, 5, 1),
        (2, 0, 2),
        (3, 300, 0),
    ]
    assert {each["to_broker_name"] for each in plan} == {"broker-w"}
    assert site.rows(topic, site.west) == []

    summary = site.done(*job, "--batch-rows", "600")
    assert (summary["rows_read"], summary["rows_sent"], summary["rows_skipped"]) == (1005, 1005, 0)
    assert (summary["from_cluster"], summary["to_cluster"]) == ("DefaultCluster", WEST)
    before = {row["msgId"]: row for row in site.rows(topic)}
    after = site.rows(topic, site.west)
    assert Counter(row["msgId"] for row in after) == Counter(before.keys())
    for row in after:
        old = before[row["msgId"]]
        for column in ("body", "tags", "keys", "flag"):
            assert row[column] == old[column]
        assert users(row) == users(old) | {MIRROR_FROM: "DefaultCluster"}
        assert row["queueId"] == old["queueId"] % 3
    for queue_id, count in counts.items():
        order = in_order(list(before.values()), queue_id)  # many sends were under way at once
        assert sorted(order) == list(range(count))
        assert in_order(after, queue_id) == order

    pairs = spark.read.parquet(summary["pairs"]).collect()
    places = {(row["queueId"], row["queueOffset"]): row["msgId"] for row in after}
    found: dict[tuple[int, int], str] = {}
    for pair in pairs:
        assert (pair.sourceTopic, pair.targetTopic) == (topic, topic)
        assert (pair.sourceBroker, pair.targetBroker) == ("broker-a", "broker-w")
        for k in range(pair["count"]):
            source = (pair.sourceQueueId, pair.sourceOffset + k)
            found[source] = places[pair.targetQueueId, pair.targetOffset + k]
    assert found == {(row["queueId"], row["queueOffset"]): row["msgId"] for row in before.values()}
    # Queue 1 has its target for itself: one pair for each of the two batches at most. Queues 0 and
    # 3 share theirs, and how often they take turns there is up to the scheduler.
    assert 1 <= sum(pair.sourceQueueId == 1 for pair in pairs) <= 2

    back = site.done(
        *("mirror", topic, "--to-namesrv", site.namesrv.address),
        *("--checkpoint", str(tmp_path / "back")),
        namesrv=site.west_namesrv.address,
    )
    assert (back["rows_sent"], back["rows_skipped"]) == (0, 1005)
    site.publish(topic, {2: 4})
    more = site.done(*job)
    assert (more["rows_read"], more["rows_sent"]) == (4, 4)
    assert in_order(site.rows(topic, site.west), 2) == in_order(site.rows(topic), 2)


def test_a_row_that_came_from_the_target_is_skipped(spark: SparkSession) -> None:
    columns = (
        "brokerName string, queueId int, queueOffset bigint, msgId string, tags string,"
        " keys string, body binary, flag int, properties map<string,string>"
    )
    marks = {0: None, 1: "A", 2: "C", 3: "A,C", 4: "CC"}
    frame = spark.createDataFrame(
        [
            ("b", 9, n, f"m{n}", None, None, b"x", 0,
             {"u": "1", "DELAY": "3", **({MIRROR_FROM: mark} if mark else {})})
            for n, mark in marks.items()
        ],
        columns,
    )  # fmt: skip
    target = [MessageQueue(topic="T", broker_name="t", queue_id=n) for n in range(2)]
    known = {MessageQueue(topic="T", broker_name="b", queue_id=0): target[0]}
    rows = mirrored_rows(frame, known, target, "B", "C").collect()
    assert {row.msgId: row.properties for row in rows} == {
        "m0": {"u": "1", MIRROR_FROM: "B"},
        "m1": {"u": "1", MIRROR_FROM: "A,B"},
        "m4": {"u": "1", MIRROR_FROM: "CC,B"},
    }
    assert {(row.brokerName, row.queueId) for row in rows} == {("t", 1)}  # 9 mod 2


AWAY_S = 4.0


def test_a_mirror_rides_out_outages_of_its_target(site: JobSite, tmp_path: Path) -> None:
    topic = site.topic(2)
    site.west_admin.topics.create(topic, queue_count=2)
    job = ("mirror", topic, "--to-namesrv", site.west_namesrv.address,
           "--checkpoint", str(tmp_path / "ck"), "--batch-rows", "40")  # fmt: skip

    def copied() -> set[str]:
        with suppress(SkylarkError):
            return {row["msgId"] for row in site.rows(topic, site.west)}
        return set()

    servers = (site.west_broker, site.west_namesrv)
    errors: list[BaseException] = []

    def interrupt() -> None:
        try:
            poll_until(lambda: len(copied()) >= 40, timeout_s=120, what="the first rows")
            for server in servers:
                server.kill()
            threading.Event().wait(AWAY_S)
            for server in servers:
                server.start()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            errors.append(error)

    def all_ids() -> set[str]:
        return {row["msgId"] for row in site.rows(topic)}

    site.publish(topic, {0: 200, 1: 100})
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        found = site.done(*job)
    finally:
        thread.join()
    assert not errors
    assert found["rows_sent"] == 300
    assert found["batches"] > 3  # so that there were some after the first rows
    poll_until(lambda: copied() == all_ids(), timeout_s=30, what="all rows at the target")

    site.publish(topic, {0: 5}, first=200)
    site.west_broker.kill()  # it is away when the mirror is started again
    later = threading.Timer(AWAY_S, site.west_broker.start)
    later.start()
    try:
        assert site.done(*job)["rows_sent"] == 5
    finally:
        later.join()
    poll_until(lambda: copied() == all_ids(), timeout_s=30, what="all rows at the target")


def test_errors_of_a_mirror_are_one_sentence(site: JobSite, tmp_path: Path) -> None:
    topic = site.topic(1)
    checkpoint = ("--checkpoint", str(tmp_path / "ck"))
    itself = site.refused("mirror", topic, "--to-namesrv", site.namesrv.address, *checkpoint)
    assert itself == (
        2,
        f"both clusters are the same one: topic {topic} would be copied to itself: check -n and"
        " --to-namesrv, or give --to-topic",
    )
    code, text = site.refused(
        *("mirror", topic, "--to-namesrv", site.west_namesrv.address, "--to-topic", "Nowhere"),
        *checkpoint,
    )
    assert (code, text.startswith("topic Nowhere does not exist")) == (4, True)


# ---- report --------------------------------------------------------------------------------------


def test_a_report_has_the_figures_of_a_topic(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic = site.topic(3)
    site.publish(topic, {0: 60, 1: 30})
    connection = Connection(name_server=site.namesrv.address)
    cluster = shared_cluster(connection)
    site.admin.groups.create("readers")
    for queue_id, offset in ((0, 50), (1, 30)):
        queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)
        address = cluster.run(cluster.session.broker("broker-a"))[1]
        cluster.run(cluster.session.calls.update_offset(address, "readers", queue, offset))
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    report = site.done(
        *("report", topic, "--group", "readers", "--html", str(page), "--png", str(picture)),
        *("--parquet", str(tmp_path / "tables")),
    )
    assert (report["topic"], report["rows"]) == (topic, 90)
    assert report["queue_skew"] == 1.33  # 60 / 45, rounded as all measured values
    assert max(span["rows"] for span in report["spans"]) <= report["peak_per_minute"] <= 90
    assert sum(span["rows"] for span in report["spans"]) == 90
    assert sum(span["unread"] for span in report["spans"]) == 10
    assert sum(each["rows"] for each in report["size_classes"]) == 90
    assert sum(span["size"] for span in report["spans"]) == report["size"]
    queues = [(q["queue_id"], q["rows"], q["first_offset"], q["last_offset"], q["lag"])
              for q in report["queues"]]  # fmt: skip
    assert queues == [(0, 60, 0, 59, 10), (1, 30, 0, 29, 0)]
    hot = {each["key"]: each["rows"] for each in report["keys"]["hottest"]}
    assert hot == {"all": 90, "k0": 30, "k1": 30, "k2": 30}
    assert report["keys"]["distinct"] == 4
    shards = {each["key"]: each["rows"] for each in report["sharding_keys"]["hottest"]}
    assert shards == {"s0": 45, "s1": 45}
    assert report["group"]["lag"] == 10
    assert report["group"]["oldest_ms"] <= report["last_ms"]
    sizes = report["sizes"]
    assert 100 < sizes["least"] <= sizes["p50"] <= sizes["p99"] <= sizes["most"] < 1_000
    assert sizes["least"] * 90 <= report["size"] <= sizes["most"] * 90
    assert report["latencies_ms"]["p99"] < 30_000
    text = page.read_text()
    assert text.count("<svg") == 7
    assert "Lag of readers" in text
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")

    tables = {name: spark.read.parquet(str(tmp_path / "tables" / name))
              for name in ("spans", "queues", "size_classes", "keys", "sharding_keys")}  # fmt: skip
    kept = tables["queues"].orderBy("queue_id").collect()
    assert [(row.topic, row.queue_id, row["rows"], row.lag) for row in kept] == [
        (topic, 0, 60, 10),
        (topic, 1, 30, 0),
    ]
    assert {row["key"]: row["rows"] for row in tables["keys"].collect()} == hot

    shown = site.run("report", topic, "--tags", "A", output="table")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[1].split() == ["messages", "45"]
    assert ["broker-a", "0", "30"] in [line.split()[:3] for line in lines]
    assert "PERCENTILE" in shown.stdout
    assert ["all", "45"] in [line.split() for line in lines]


def test_a_report_of_an_empty_topic_and_mistakes(site: JobSite, tmp_path: Path) -> None:
    topic = site.topic(1)
    page = tmp_path / "empty.html"
    report = site.done("report", topic, "--html", str(page))
    assert (report["rows"], report["spans"], report["sizes"]) == (0, [], None)
    assert "no messages" in page.read_text()
    code, text = site.refused("report", "Nowhere")
    assert (code, text.startswith("topic Nowhere does not exist")) == (4, True)
    assert site.refused("report", topic, "--group", "nobody") == (
        4,
        f"group nobody has consumed nothing of topic {topic}",
    )
