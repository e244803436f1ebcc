"""The jobs between topics and a lake, run from the command line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from skylark import Message
from skylark.cli.main import cli
from skylark.spark.jobs import archive_job as archive
from skylark.spark.jobs.archive_job import ArchiveOptions, read_lake
from skylark.spark.jobs.job_runner import JobProgress
from skylark.spark.jobs.replay_job import REPLAY_OF
from skylark.sync import read_arrow
from skylark.wire.bodies.common_body import MessageQueue
from tests.spark.source_site import Site

NOWHERE = "127.0.0.1:1"


class JobSite(Site):
    """A broker, and ``skylark job`` in this process with the session of the tests."""

    def run(self, *arguments: str, namesrv: str | None = None) -> Result:
        job = ["--output", "json", "job", *arguments, "--master", "local[2]"]
        return CliRunner().invoke(cli, [*job, "-n", namesrv or self.namesrv.address])

    def done(self, *arguments: str) -> Any:
        """The result of a job that must succeed."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refused(self, *arguments: str, namesrv: str | None = None) -> tuple[int, str]:
        """Exit code and sentence of a job that must fail."""
        result = self.run(*arguments, namesrv=namesrv)
        assert result.stdout == ""
        lines = result.stderr.splitlines()
        assert len(lines) == 1, result.stderr
        return result.exit_code, lines[0].removeprefix("Error: ")

    def publish(self, topic: str, counts: dict[int, int]) -> None:
        """Messages with all that users may give them, so many to each queue."""
        futures = [
            self.producer.submit(
                Message(
                    topic,
                    f"{queue_id}-{number}".encode(),
                    ("A", "B")[number % 2],
                    keys=f"k{number % 3} all",
                    properties={"n": str(number), "text": "ä=ö"},
                ),
                queue=MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id),
            )
            for queue_id, count in counts.items()
            for number in range(count)
        ]
        for future in futures:
            future.result(30)

    def bodies(self, topic: str) -> dict[int, list[bytes]]:
        """The bodies of each queue, in order."""
        found: dict[int, list[bytes]] = {}
        for part in read_arrow(topic, self.options, columns=["queueId", "queueOffset", "body"]):
            for row in part.to_pylist():
                found.setdefault(row["queueId"], []).append(row["body"])
        return found


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSite]:
    site = JobSite(tmp_path_factory.mktemp("jobs"))
    with site.open:
        yield site


def archived(spark: SparkSession, lake: Path) -> dict[int, list[dict[str, Any]]]:
    """The rows of each queue by offset."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in read_lake(spark, str(lake), "parquet").sort("queueId", "queueOffset").collect():
        found.setdefault(row.queueId, []).append(row.asDict())
    return found


def as_sent(rows: dict[int, list[dict[str, Any]]]) -> dict[int, list[tuple[Any, ...]]]:
    """What a user knows of the messages of each queue, in order."""
    users = ("n", "text")
    return {
        queue_id: [
            (
                row["body"],
                row["tags"],
                row["keys"],
                {name: row["properties"].get(name) for name in users},
            )
            for row in queue
        ]
        for queue_id, queue in rows.items()
    }


@pytest.mark.spec("spark.9.35")
def test_an_archive_of_a_replay_is_the_archive(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    first, second = site.topic(), site.topic()
    site.publish(first, {0: 40, 1: 25, 3: 7})
    lake, copy = tmp_path / "lake", tmp_path / "copy"

    planned = site.done("archive", first, "--to", str(lake), "--dry-run")
    assert [span["rows"] for span in planned] == [40, 25, 0, 7]
    assert not lake.exists()
    summary = site.done("archive", first, "--to", str(lake), "--batch-rows", "30")
    assert (summary["rows"], summary["batches"], summary["lag"]) == (72, 3, 0)
    assert summary["checkpoint"] == f"{lake}.checkpoint"
    days = [folder.name for folder in lake.glob("dt=*")]
    assert all((lake / day / f"topic={first}").is_dir() for day in days)
    assert days

    queues = site.done("replay", str(lake), "--to", second, "--dry-run")
    assert [(queue["queue_id"], queue["rows"], queue["to_queue"]) for queue in queues] == [
        (0, 40, 0),
        (1, 25, 1),
        (3, 7, 3),
    ]
    assert site.bodies(second) == {}
    sent = site.done("replay", str(lake), "--to", second)
    assert (sent["rows"], sent["queues"], sent["to"]) == (72, 3, [second])
    assert sent["body_size"] == sum(
        len(body) for queue in site.bodies(first).values() for body in queue
    )

    assert site.done("archive", second, "--to", str(copy))["rows"] == 72
    before, after = archived(spark, lake), archived(spark, copy)
    assert as_sent(after) == as_sent(before)
    assert {row["topic"] for queue in after.values() for row in queue} == {second}
    for queue_id, rows in after.items():
        originals = [row["offsetMsgId"] for row in before[queue_id]]
        assert [row["properties"][REPLAY_OF] for row in rows] == originals
        assert not {row["msgId"] for row in rows} & {row["msgId"] for row in before[queue_id]}


def test_an_archive_continues_from_its_checkpoint(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic = site.topic(2)
    lake = tmp_path / "lake"
    site.publish(topic, {0: 10})
    assert site.done("archive", topic, "--to", str(lake))["rows"] == 10
    site.publish(topic, {0: 3, 1: 4})
    planned = site.done("archive", topic, "--to", str(lake), "--dry-run")
    assert [(span["start"], span["end"]) for span in planned] == [(10, 13), (0, 4)]
    assert site.done("archive", topic, "--to", str(lake))["rows"] == 7
    assert site.done("archive", topic, "--to", str(lake))["rows"] == 0
    rows = archived(spark, lake)
    assert [row["queueOffset"] for row in rows[0]] == list(range(13))
    assert [row["queueOffset"] for row in rows[1]] == list(range(4))

    # Where the first run began does not matter any more, be it gone or not there yet.
    start = json.dumps({topic: {"broker-a": {"0": 1_000_000}}})
    again = ("archive", topic, "--to", str(lake), "--from", start)
    assert [span["start"] for span in site.done(*again, "--dry-run")] == [13, 4]
    assert site.done(*again)["rows"] == 0

    # A folder whose batches another checkpoint counts would lose rows without a word.
    code, text = site.refused(
        "archive", topic, "--to", str(lake), "--checkpoint", str(tmp_path / "other")
    )
    assert code == 2
    assert text.startswith(f"{lake} was not written with the checkpoint {tmp_path / 'other'}")
    code, text = site.refused(
        "archive", topic, "--to", str(tmp_path / "new"), "--checkpoint", f"{lake}.checkpoint"
    )
    assert code == 2
    assert text.startswith(f"{tmp_path / 'new'} was not written with the checkpoint")
    other = site.topic(1)
    code, text = site.refused("archive", other, "--to", str(lake))
    assert code == 2
    assert text == (
        f"the checkpoint {lake}.checkpoint is one of topic {topic}, not of {other}:"
        " use a separate checkpoint for each archive"
    )


class StopsLater:
    """Asks a job to stop when it has some rows."""

    def __init__(self, rows: int) -> None:
        self.stop = Event()
        self._rows = rows
        self.last: JobProgress | None = None

    def progress(self, progress: JobProgress) -> None:
        self.last = progress
        if progress.rows >= self._rows:
            self.stop.set()


def test_a_continuous_archive_ends_its_batch_when_asked(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic = site.topic(1)
    site.publish(topic, {0: 20})
    lake = tmp_path / "lake"
    options = ArchiveOptions(
        topics=(topic,), output=str(lake), namesrv=site.namesrv.address, interval_ms=100
    )
    report = StopsLater(20)
    summary = archive.run(spark, options, report.progress, report.stop)
    assert (summary.rows, summary.stopped, summary.lag) == (20, True, 0)
    assert report.last is not None
    assert (report.last.rows, report.last.lag, report.last.done) == (20, 0, True)
    assert site.done("archive", topic, "--to", str(lake))["rows"] == 0


def test_replay_keeps_a_pace_and_takes_what_was_chosen(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic, target = site.topic(2), site.topic(1)
    site.publish(topic, {0: 30, 1: 30})
    lake = tmp_path / "lake"
    site.done("archive", topic, "--to", str(lake))
    moments = [row["storeTimestamp"] for row in archived(spark, lake)[0]]

    sent = site.done("replay", str(lake), "--to", target, "--rate", "40")
    assert sent["rows"] == 60
    assert sent["seconds"] > 1.4  # the last of 60 rows is due after 1.475 s
    bodies = site.bodies(target)[0]
    for queue_id in (0, 1):  # two queues in one, and each in its order
        mine = [body for body in bodies if body.startswith(b"%d-" % queue_id)]
        assert mine == [b"%d-%d" % (queue_id, number) for number in range(30)]

    span_s = (max(moments) - min(moments)).total_seconds()
    scaled = site.done("replay", str(lake), "--to", target, "--time-scale", "0.5", "--keep-ids")
    assert scaled["rows"] == 60
    assert scaled["seconds"] >= 2 * span_s
    rows = [
        row
        for part in read_arrow(target, site.options, columns=["msgId", "queueOffset"])
        for row in part.to_pylist()
    ]
    kept = {row["msgId"] for row in rows if row["queueOffset"] >= 60}
    assert kept == {row["msgId"] for queue in archived(spark, lake).values() for row in queue}

    nothing = ("--since", "2100-01-01T00:00:00Z", "--dry-run")
    assert site.done("replay", str(lake), "--to", target, *nothing) == []
    assert site.done("replay", str(lake), "--to", target, "--topic", "Other")["rows"] == 0
    original = site.done("replay", str(lake), "--to-original", "--until", "2100-01-01T00:00:00Z")
    assert (original["rows"], original["to"]) == (60, [topic])
    assert Counter(map(len, site.bodies(topic).values())) == {60: 2}


def test_verify_finds_what_is_missing_doubled_or_changed(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic = site.topic(2)
    lake = tmp_path / "lake"
    site.publish(topic, {0: 25, 1: 5})
    site.done("archive", topic, "--to", str(lake))
    same = site.done("verify", topic, "--lake", str(lake), "--range", "10")
    assert (same["agree"], same["ranges"], same["different"], same["expired"]) == (True, 4, 0, 0)
    assert (same["topic_rows"], same["lake_rows"]) == (30, 30)

    site.publish(topic, {1: 2})
    result = site.run("verify", topic, "--lake", str(lake), "--range", "10")
    assert result.exit_code == 1
    [found] = json.loads(result.stdout)["differences"]
    assert (found["queue_id"], found["first_offset"], found["last_offset"]) == (1, 0, 9)
    assert (found["topic_rows"], found["lake_rows"]) == (7, 5)
    assert site.done("verify", topic, "--lake", str(lake), "--archived-only")["agree"] is True

    # Of queue 0 one row is missing, one changed, one doubled; two of queue 1 have changed places.
    rows = read_lake(spark, str(lake), "parquet")
    rows = rows.where("queueId != 0 OR queueOffset != 3").withColumn(
        "body", F.expr("if(queueId = 0 AND queueOffset = 13, encode('x', 'UTF-8'), body)")
    )
    rows = rows.union(rows.where("queueId = 0 AND queueOffset = 23")).withColumn(
        "queueOffset", F.expr("if(queueId = 1 AND queueOffset < 2, 1 - queueOffset, queueOffset)")
    )
    wrong = str(tmp_path / "wrong")
    rows.write.parquet(wrong)
    result = site.run("verify", topic, "--lake", wrong, "--range", "10", "--archived-only")
    assert result.exit_code == 1
    differences = json.loads(result.stdout)["differences"]
    assert [
        (each["queue_id"], each["first_offset"], each["topic_rows"], each["lake_rows"])
        for each in differences
    ] == [(0, 0, 10, 9), (0, 10, 10, 10), (0, 20, 5, 6), (1, 0, 5, 5)]
    assert all(each["topic_crc"] != each["lake_crc"] for each in differences)


def test_compact_keeps_the_latest_row_of_each_key(
    site: JobSite, spark: SparkSession, tmp_path: Path
) -> None:
    topic, target = site.topic(1), site.topic(1)
    for key, body, deleted in (
        ("a", "a1", False), ("b", "b1", False), ("a", "a2", False), ("c", "c1", False),
        ("b", "", True), ("c", "", True), ("c", "c2", False), (None, "none", False),
    ):  # fmt: skip
        properties = {"DELETED": "true"} if deleted else {"p": body}
        message = Message(topic, body.encode() or b"-", keys=key or "", properties=properties)
        site.producer.send(message)
    lake = tmp_path / "latest"
    figures = {"rows": 8, "without_key": 1, "keys": 3, "deleted": 1, "written": 2}

    planned = site.done("compact", topic, "--to-lake", str(lake), "--dry-run")
    assert {name: planned[name] for name in figures} == figures
    assert not lake.exists()
    summary = site.done("compact", topic, "--to-lake", str(lake))
    assert {name: summary[name] for name in figures} == figures
    rows = {row.key: row.body for row in spark.read.parquet(str(lake)).collect()}
    assert rows == {"a": b"a2", "c": b"c2"}
    code, text = site.refused("compact", topic, "--to-lake", str(lake))
    assert code == 2
    assert text.startswith(f"{lake} exists already")

    by_body = ("--key", "substr(cast(body AS string), 1, 1)", "--overwrite")
    assert site.done("compact", topic, "--to-lake", str(lake), *by_body)["keys"] == 5
    assert site.done("compact", topic, "--to-topic", target)["written"] == 2
    assert sorted(site.bodies(target)[0]) == [b"a2", b"c2"]
    code, text = site.refused("compact", topic, "--to-topic", target, "--key", "nosuch")
    assert (code, "nosuch" in text) == (2, True)


def test_mistakes_are_one_sentence(site: JobSite, tmp_path: Path) -> None:
    topic = site.topic(1)
    lake = str(tmp_path / "lake")
    for arguments in (
        ("archive", "Nowhere", "--to", lake),
        ("compact", "Nowhere", "--to-lake", lake),
        ("verify", "Nowhere", "--lake", lake),
        ("replay", lake, "--to", "Nowhere"),
    ):
        code, text = site.refused(*arguments)
        assert code == 4, text
        assert text.startswith("topic Nowhere does not exist")
    for arguments in (("archive", topic, "--to", lake), ("replay", lake, "--to", topic)):
        code, text = site.refused(*arguments, namesrv=NOWHERE)
        assert code == 3, text
        assert NOWHERE in text
    for arguments in (("replay", lake, "--to", topic), ("verify", topic, "--lake", lake)):
        code, text = site.refused(*arguments)
        assert code == 4
        assert text.startswith("Path does not exist: file:")
    code, text = site.refused("archive", topic, "--to", lake, "--from", "yesterday")
    assert (code, "yesterday" in text) == (2, True)
    assert site.done("archive", topic, "--to", lake)["rows"] == 0
    assert site.done("verify", topic, "--lake", lake)["ranges"] == 0
