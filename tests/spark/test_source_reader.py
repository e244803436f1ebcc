"""The source against a real broker, called in the order that Spark calls it, without Spark."""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from skylark import Message
from skylark.admin.admin_session import Session
from skylark.core.clock import SystemClock
from skylark.core.errors import ConfigError, SkylarkError
from skylark.spark.errors import DataLossError
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.process import poll_until
from tests.spark.driven import Row, batch_reader, read_batch, read_part
from tests.spark.source_site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    with site.open:
        yield site


def places(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return [(row["queueId"], row["queueOffset"]) for row in rows]


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.7")
@pytest.mark.parametrize("mode", ["pull", "auto"])
def test_tags_are_exact(site: Site, mode: str) -> None:
    topic = site.topic(1)
    site.send(topic, 40, tags=("Aa", "BB", "TagB", "C"))  # the first two have the same hash
    rows = read_batch(site.given(topic, tags="Aa", readMode=mode))
    assert [row["queueOffset"] for row in rows] == list(range(0, 40, 4))
    assert {row["tags"] for row in rows} == {"Aa"}
    both = read_batch(site.given(topic, subExpression="TagB || C", readMode=mode))
    assert [row["queueOffset"] for row in both] == [n for n in range(40) if n % 4 >= 2]


@pytest.mark.spec("spark.9.8")
def test_an_empty_topic(site: Site) -> None:
    topic = site.topic()
    reader = batch_reader(site.given(topic))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark asks for then
    stream = site.stream(topic)
    assert stream.trigger() == []  # batch 0 runs in any case
    assert stream.trigger() is None
    assert stream.ends[0]["fresh"]


@pytest.mark.spec("spark.9.20")
def test_times(site: Site) -> None:
    topic = site.topic(1)
    queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
    site.send(topic, 10)
    clock = SystemClock()
    site.producer.send_batch([Message(topic, b"x") for _ in range(5)], queue=queue)
    sent_ms = clock.now_ms()
    poll_until(lambda: clock.now_ms() > sent_ms, timeout_s=10, what="the next millisecond")
    site.send(topic, 15)
    times = read_batch(site.given(topic, columns="queueOffset,storeTimestamp"))
    moment = times[10]["storeTimestamp"]  # a batch is stored at once
    first = next(row["queueOffset"] for row in times if row["storeTimestamp"] == moment)
    count = sum(row["storeTimestamp"] == moment for row in times)
    assert count >= 5
    ms = round(moment.timestamp() * 1000)
    since = read_batch(site.given(topic, startingTimestamp=ms))
    assert [row["queueOffset"] for row in since] == list(range(first, 30))
    before = read_batch(site.given(topic, endingTimestamp=ms))
    assert [row["queueOffset"] for row in before] == list(range(first))
    just = read_batch(site.given(topic, startingTimestamp=ms, endingTimestamp=ms + 1))
    assert [row["queueOffset"] for row in just] == list(range(first, first + count))
    assert len(read_batch(site.given(topic, startingOffsets="-10m"))) == 30
    assert read_batch(site.given(topic, startingTimestamp=ms + 3_600_000)) == []


def test_offsets_by_queue(site: Site) -> None:
    topic = site.topic(3)
    for queue_id in range(3):
        site.send(topic, 10, queue_id)
    start = json.dumps({topic: {"broker-a": {"0": 7, "1": -1}}})
    end = json.dumps({topic: {"broker-a": {"2": 4}}})
    rows = read_batch(site.given(topic, startingOffsets=start, endingOffsets=end))
    assert places(rows) == [(0, 7), (0, 8), (0, 9), (2, 0), (2, 1), (2, 2), (2, 3)]
    rows = read_batch(site.given(topic, queues="broker-a:1-2", endingOffsets=end))
    assert len(rows) == 14
    wrong = json.dumps({topic: {"broker-a": {"9": 7}}})
    with pytest.raises(ConfigError, match=r"not read.*queue 9.*there are"):
        read_batch(site.given(topic, startingOffsets=wrong))
    behind = json.dumps({topic: {"broker-a": {"0": 11}}})
    with pytest.raises(ConfigError, match="ends at offset 10, and 11 is its start"):
        read_batch(site.given(topic, startingOffsets=behind))


def test_a_group_is_a_start(site: Site) -> None:
    topic = site.topic(2)
    site.send(topic, 10, 0)
    site.send(topic, 10, 1)
    site.admin.groups.create(f"g-{topic}")
    queue = MessageQueue(topic=topic, broker_name="broker-a", queue_id=0)
    site.admin.offsets.commit(f"g-{topic}", {queue: 8})
    given = site.given(topic, startingOffsets="group", group=f"g-{topic}")
    assert len(read_batch(given)) == 12
    assert places(read_batch(given | {"startingDefault": "latest"})) == [(0, 8), (0, 9)]


@pytest.mark.spec("spark.9.19")
def test_queues_are_cut_into_tasks(site: Site) -> None:
    topic = site.topic(2)
    site.send(topic, 1000, 0)
    site.send(topic, 1000, 1)
    whole = [(queue_id, offset) for queue_id in (0, 1) for offset in range(1000)]
    for option in ({"minPartitions": 8}, {"maxRecordsPerPartition": 300}):
        given = site.given(topic, **option)
        assert len(batch_reader(given).partitions()) == 8
        assert places(read_batch(given)) == whole


def test_mistakes_are_reported(site: Site) -> None:
    with pytest.raises(SkylarkError, match=r"topic nosuch does not exist.*create it"):
        read_batch(site.given("nosuch"))
    with pytest.raises(ConfigError, match="no topic matches"):
        read_batch({"nameServer": site.namesrv.address, "topicsPattern": "nosuch.*"})
    nobody = {"nameServer": "127.0.0.1:1", "fetchOffset.numRetries": 0}
    with pytest.raises(SkylarkError, match="no name server responds"):
        read_batch(site.given("T") | nobody)


def test_a_pattern_finds_topics(site: Site) -> None:
    topics = [site.topic(1) for _ in range(2)]
    for topic in topics:
        site.send(topic, 3)
    given = {"nameServer": site.namesrv.address, "topicsPattern": "|".join(topics)}
    rows = read_batch(given | {"columns": "topic,queueOffset"})
    assert Counter(row["topic"] for row in rows) == dict.fromkeys(topics, 3)


# ---- files ---------------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.21")
def test_files_give_the_same_as_pulls(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    topic, other = site.topic(2), site.topic(1)
    for _ in range(10):
        for queue_id in range(2):
            site.send(topic, 20, queue_id, tags=("A", "B"), size=200)
        site.send(other, 20, size=1000)  # stands between them in the log
    for queue_id in range(2):
        site.wait_written(topic, queue_id, 200)
    columns = "queueId,queueOffset,body,properties,commitLogOffset,storeTimestamp,offsetMsgId"
    given = site.given(topic, columns=columns)
    store = str(site.broker.store)
    logs = len(list((site.broker.store / "commitlog").iterdir()))
    assert logs > 3  # the queue spans several files
    with caplog.at_level(logging.INFO):
        pulled = read_batch(given | {"readMode": "pull"})
        files = read_batch(given | {"readMode": "file", "storePath": store})
        auto = read_batch(given)
    assert len(pulled) == 400
    assert files == pulled
    assert auto == pulled
    assert "instead of reading files" not in caplog.text
    tagged = given | {"tags": "B"}
    assert read_batch(tagged | {"storePath": store}) == read_batch(tagged | {"readMode": "pull"})


@pytest.mark.spec("spark.9.21")
def test_files_are_read_while_the_broker_writes(site: Site) -> None:
    topic = site.topic(1)
    stream = site.stream(topic, storePath=site.broker.store)
    rows: list[Row] = []
    for _ in range(10):
        site.send(topic, 37, size=500)
        rows += stream.trigger() or []
    rows += stream.drain()
    assert [row["queueOffset"] for row in rows] == list(range(370))


@pytest.mark.spec("spark.9.21")
def test_unreadable_files_are_pulled_instead(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.topic(1)
    site.send(topic, 10)
    with caplog.at_level(logging.WARNING):
        rows = read_batch(site.given(topic, storePath=tmp_path / "nosuch", readMode="file"))
    assert len(rows) == 10
    assert "from offset 0 on instead of reading files" in caplog.text
    assert "nosuch" in caplog.text


def test_files_of_another_store_are_not_trusted(site: Site, tmp_path: Path) -> None:
    """The entries lead to other messages: what was read before them stays, the rest is pulled."""
    topic = site.topic(1)
    site.send(topic, 40, size=1500)
    site.wait_written(topic, 0, 40)
    wrong = tmp_path / "store"
    for folder in ("commitlog", f"consumequeue/{topic}/0"):
        (wrong / folder).mkdir(parents=True)
        for file in (site.broker.store / folder).iterdir():
            (wrong / folder / file.name).write_bytes(file.read_bytes())
    last = max((wrong / "commitlog").iterdir())
    last.write_bytes(bytes(last.stat().st_size))
    rows = read_batch(site.given(topic, storePath=wrong))
    assert [row["queueOffset"] for row in rows] == list(range(40))
    assert rows == read_batch(site.given(topic, readMode="pull"))


@pytest.mark.spec("spark.9.21")
def test_a_folder_is_the_store_of_one_broker(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files that fit each other in everything, of a broker that has other messages there."""
    topic = site.topic(1)
    site.send(topic, 5, tags=("A",))
    site.wait_written(topic, 0, 5)
    copy = tmp_path / "store"
    for folder in ("commitlog", f"consumequeue/{topic}/0"):
        shutil.copytree(site.broker.store / folder, copy / folder)
    for file in (copy / "commitlog").iterdir():
        raw = file.read_bytes()
        file.write_bytes(raw.replace(b"TAGS\x01A", b"TAGS\x01B"))
    with caplog.at_level(logging.WARNING):
        rows = read_batch(site.given(topic, storePath=copy))
    assert [row["tags"] for row in rows] == ["A"] * 5
    assert f"{copy} is not the store of broker-a" in caplog.text


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.9")
def test_the_first_batch_is_the_same_after_a_crash(site: Site) -> None:
    topic = site.topic(2)
    site.send(topic, 100)
    stream = site.stream(topic, startingOffsets="latest")
    stream.reader.initialOffset()
    site.send(topic, 50)
    assert stream.plan()  # the driver dies in batch 0
    site.send(topic, 250)
    stream.restart()
    assert [row["queueOffset"] for row in stream.run()] == list(range(100, 150))
    assert [row["queueOffset"] for row in stream.drain()] == list(range(150, 400))
    assert "s" in stream.ends[0]
    assert all("s" not in end and "fresh" not in end for end in stream.ends[1:])


def test_an_empty_first_batch_stays_empty_after_a_crash(site: Site) -> None:
    topic = site.topic(1)
    stream = site.stream(topic, startingOffsets="latest")
    assert stream.plan()
    site.send(topic, 5)
    stream.restart()
    assert stream.run() == []
    assert [row["queueOffset"] for row in stream.drain()] == list(range(5))


@pytest.mark.spec("spark.9.10")
def test_limits_per_trigger(site: Site) -> None:
    topic = site.topic(3)
    for queue_id, count in enumerate((101, 11, 1)):
        site.send(topic, count, queue_id)
    stream = site.stream(topic, maxOffsetsPerTrigger=10)
    assert stream.limit == ReadMaxRows(10)
    batches = [stream.trigger()]
    while batches[-1] is not None:
        batches.append(stream.trigger())
    sizes = [len(rows) for rows in batches if rows is not None]
    assert sizes == [10] * 11 + [3]
    rows = [place for each in batches if each for place in places(each)]
    assert sorted(rows) == sorted(
        (queue_id, n) for queue_id, count in enumerate((101, 11, 1)) for n in range(count)
    )
    once = site.stream(topic, maxOffsetsPerTrigger=10)
    assert len(once.trigger(ReadAllAvailable()) or ()) == 113  # the trigger "once" knows no limit


def test_bytes_per_trigger(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 100, size=1000)
    stream = site.stream(topic, maxBytesPerTrigger=12_000, columns="queueOffset,storeSize")
    assert stream.limit == ReadMaxBytes(12_000)
    rows = stream.trigger() or []
    assert len(rows) == 12_000 // rows[0]["storeSize"]
    tiny = site.stream(topic, maxBytesPerTrigger=10)
    assert len(tiny.trigger() or ()) == 1


def test_small_backlogs_wait(site: Site) -> None:
    topic = site.topic(1)
    stream = site.stream(topic, minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    assert stream.trigger() == []
    site.send(topic, 9)
    assert stream.trigger() is None
    site.send(topic, 1)
    assert len(stream.trigger() or ()) == 10
    site.send(topic, 1)
    assert stream.trigger() is None
    stream.restart(maxTriggerDelay="0ms")
    assert len(stream.trigger() or ()) == 1


@pytest.mark.spec("spark.9.11")
def test_available_now_ends_while_a_producer_still_sends(site: Site) -> None:
    topic = site.topic(2)
    site.send(topic, 12, 0)
    site.send(topic, 8, 1)
    stream = site.stream(topic, maxOffsetsPerTrigger=8)
    stream.reader.prepareForTriggerAvailableNow()
    sizes = []
    while (rows := stream.trigger()) is not None:
        sizes.append(len(rows))
        site.send(topic, 5, 0)
    assert sizes == [8, 8, 4]
    stream.restart()
    assert [len(rows) for rows in stream.available_now()] == [8, 7]


@pytest.mark.spec("spark.9.12")
@pytest.mark.spec("spark.9.13")
def test_an_idle_stream_polls_rarely(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = site.topic(4)
    site.send(topic, 5)
    stream = site.stream(topic, idlePollMs=200, group="idle")
    stream.drain()
    asked: list[str] = []
    call = Session.call

    async def counted(self: Session, address: str, *args: object, **kwargs: object) -> object:
        asked.append(address)
        return await call(self, address, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "call", counted)
    text = json.dumps(stream.ends[-1])
    clock = SystemClock()
    began = clock.monotonic()
    for _ in range(10):
        assert json.dumps(stream.reader.latestOffset(stream.ends[-1], stream.limit)) == text
        stream.reader.reportLatestOffset()
    took_s = clock.monotonic() - began
    assert took_s > 1.7  # the first does not wait
    assert 9 <= len(asked) <= 10


@pytest.mark.spec("spark.9.14")
def test_the_group_shows_the_progress(site: Site) -> None:
    topic = site.topic(2)
    site.send(topic, 12, 0)
    site.send(topic, 8, 1)
    group = f"g-{topic}"
    stream = site.stream(topic, group=group, maxOffsetsPerTrigger=8)
    stream.available_now()
    progress = site.admin.groups.progress(group)
    lags = {each.queue.queue_id: (each.consumer_offset, each.lag) for each in progress.queues}
    assert lags == {0: (12, 0), 1: (8, 0)}
    silent = site.stream(topic, group=f"{group}-2", commitGroupOffsets="false")
    silent.available_now()
    with pytest.raises(SkylarkError):
        site.admin.groups.progress(f"{group}-2")


@pytest.mark.spec("spark.9.15")
def test_new_queues_are_read_from_their_start(site: Site) -> None:
    topic = site.topic(4)
    site.send(topic, 3)
    stream = site.stream(topic)
    assert len(stream.drain()) == 3
    site.admin.topics.update(topic, read_queue_count=6, write_queue_count=6)
    site.send(topic, 7, 5)

    def grown() -> list[Row]:
        return stream.drain()

    rows = poll_until(grown, timeout_s=30, what="the rows of the new queue")
    assert places(rows) == [(5, n) for n in range(7)]
    stream.restart()
    site.send(topic, 1, 4)
    assert places(stream.drain()) == [(4, 0)]
    assert list(stream.ends[-1]["q"][topic]["broker-a"]) == [str(n) for n in range(6)]


def later_end(end: dict[str, Any], topic: str) -> dict[str, Any]:
    """The end of a batch with the two messages of queue 3."""
    return {**end, "q": {topic: {"broker-a": {**end["q"][topic]["broker-a"], "3": 2}}}}


def test_a_topic_with_fewer_read_queues(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    topic = site.topic(4)
    site.send(topic, 3, 2)
    stream = site.stream(topic)
    assert len(stream.drain()) == 3
    site.send(topic, 2, 3)

    def read_queues(count: int) -> None:
        site.admin.topics.update(topic, read_queue_count=count)
        poll_until(
            lambda: site.admin.topics.route(topic).queue_datas[0].read_queue_nums == count,
            timeout_s=30,
            what="the route",
        )

    read_queues(2)
    planned = site.stream(topic)
    planned.ends, planned.committed = [stream.ends[-1], later_end(stream.ends[-1], topic)], 1
    with pytest.raises(SkylarkError, match=rf"queue 3: raise readQueueNums of {topic} to 4 until"):
        planned.run()
    stream.restart()
    with pytest.raises(SkylarkError, match=rf"queue 3: raise readQueueNums of {topic} to 4 until"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    site.send(topic, 1, 0)
    with caplog.at_level(logging.WARNING):
        assert places(stream.drain()) == [(0, 0)]
    assert "1 queues are not read now: readQueueNums was lowered" in caplog.text
    read_queues(4)
    rows = poll_until(stream.drain, timeout_s=30, what="the rows of the queue")
    assert places(rows) == [(3, 0), (3, 1)]


@pytest.mark.spec("spark.9.17")
def test_a_topic_that_was_created_again(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 20)
    stream = site.stream(topic)
    assert len(stream.drain()) == 20
    site.admin.topics.delete(topic)
    site.admin.topics.create(topic, queue_count=1)
    site.send(topic, 5)
    stream.restart()
    with pytest.raises(DataLossError, match="ends at offset 5, and 20 is wanted"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert [row["queueOffset"] for row in stream.drain()] == list(range(5))


def test_a_deleted_topic(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 2)
    stream = site.stream(topic)
    stream.drain()
    site.admin.topics.delete(topic)
    stream.restart()
    with pytest.raises(SkylarkError, match=f"topic {topic} does not exist any more"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert stream.trigger() is None


@pytest.mark.spec("spark.9.16")
def test_messages_that_expired_before_they_were_read(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.topic(1)
    stream = site.stream(topic)
    stream.trigger()

    def first_offset() -> int:
        return site.admin.offsets.bounds(topic).queues[0].min_offset

    site.send(topic, 100, size=4000)
    assert stream.plan()  # up to 100, and then the log loses its beginning
    site.broker.stop()
    for file in sorted((site.broker.store / "commitlog").iterdir())[:-3]:
        file.unlink()
    site.broker.start()
    low = poll_until(first_offset, timeout_s=30, what="the first offset to rise")
    stream.restart(readMode="pull")
    with pytest.raises(DataLossError, match=rf"queue 0 are gone: offset 0 is wanted.*{low}"):
        stream.run()
    stream.restart(failOnDataLoss="false", readMode="pull")
    with caplog.at_level(logging.WARNING):
        rows = stream.run()
    assert [row["queueOffset"] for row in rows] == list(range(low, 100))
    assert f"{low} messages of topic {topic}" in caplog.text


def test_another_topic_needs_another_checkpoint(site: Site) -> None:
    one, other = site.topic(1), site.topic(1)
    stream = site.stream(one)
    stream.trigger()
    stream.restart(topic=other)
    with pytest.raises(
        ConfigError, match=f"checkpoint is of topic {one}, the options name {other}"
    ):
        stream.trigger()


# ---- brokers that are away -----------------------------------------------------------------------


@pytest.mark.spec("spark.9.18")
def test_a_broker_that_is_down(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    broker = site.make_broker("broker-b")
    with broker:
        topic = site.topic(1)
        site.send(topic, 5)
        site.send(topic, 5, broker="broker-b")
        stream = site.stream(topic)
        assert len(stream.drain()) == 10
        site.send(topic, 5, broker="broker-b")
        broker.kill()
        site.send(topic, 5)
        with caplog.at_level(logging.WARNING):
            rows = stream.drain()
        assert {(row["brokerName"], row["queueOffset"]) for row in rows} == {
            ("broker-a", n) for n in range(5, 10)
        }
        assert "broker broker-b is down" in caplog.text
        assert stream.ends[-1]["q"][topic] == {"broker-a": {"0": 10}, "broker-b": {"0": 5}}
        stream.restart(brokerDownGraceMs=0)
        stream.trigger()
        with pytest.raises(SkylarkError, match="broker-b has been down for"):
            stream.trigger()
        stream.restart(brokerDownGraceMs=600_000)
        broker.start()
        late = poll_until(stream.drain, timeout_s=30, what="the rows of the broker")
        assert [(row["brokerName"], row["queueOffset"]) for row in late] == [
            ("broker-b", n) for n in range(5, 10)
        ]


def test_a_task_finds_a_broker_that_moved(site: Site) -> None:
    topic = site.topic(1)
    site.send(topic, 5)
    reader = batch_reader(site.given(topic, readMode="pull", pullTimeoutMs=5000))
    (part,) = reader.partitions()
    object.__setattr__(part, "addresses", {0: "127.0.0.1:1"})
    assert len(read_part(reader, part)) == 5


# ---- pulls ---------------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.22")
def test_a_hint_about_small_replies_is_logged_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    topic = site.topic(1)
    site.send(topic, 800)
    with caplog.at_level(logging.WARNING):
        rows = read_batch(site.given(topic, readMode="pull", pullBatchSize=8))
    assert len(rows) == 800
    hints = [each for each in caplog.messages if "maxTransferCountOnMessageInDisk" in each]
    assert len(hints) == 1
