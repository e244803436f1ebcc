"""Exactly-once after its log has expired, against a real broker with small log files."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import count as count_up
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.errors import ConfigError
from skylark.core.hashing import java_hash
from skylark.spark.exactly_once.commit_protocol import (
    OtherDataError,
    OutcomeUnknownError,
    PredecessorMissingError,
)
from skylark.spark.exactly_once.txn_admin import forget, settle
from skylark.spark.exactly_once.txn_log import QUEUE_COUNT, Entry, TxnLog
from skylark.spark.exactly_once.txn_log_records import SinkMemory
from skylark.spark.sink.sink_writer import SinkWriter
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.process import poll_until
from tests.spark.sink_site import CrashError, Query, bodies, client_of, count, crash_after, writer
from tests.spark.source_site import Site

ROWS = [b"1", b"2", b"3"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, flushConsumerOffsetInterval=600_000)
    with made.open:
        yield made


def expire(site: Site) -> None:
    """Let the whole log of transactions expire, and all other topics with it."""
    log = TxnLog(client_of(site.namesrv.address), make=False)
    queues = shared_portal().call(log.find())
    ends = {queue: shared_portal().call(log.bounds(queue))[1] for queue in queues}
    site.send(site.topic(1), 60, size=4000)
    site.broker.stop()
    for file in sorted((site.broker.store / "commitlog").iterdir())[:-3]:
        file.unlink()
    site.broker.start()

    def has_expired() -> bool:
        return all(shared_portal().call(log.bounds(queue))[0] == end for queue, end in ends.items())

    poll_until(has_expired, timeout_s=30, what="the log to expire")


def write_once(site: Site, topic: str, rows: list[bytes], **options: str) -> None:
    options = {"topic": topic, "delivery": "exactly-once", "txnId": "daily-2026.11.15", **options}
    once = writer(site.namesrv.address, None, **options)
    once.commit([once.write(bodies(rows))])


def memory(site: Site, sink: str) -> SinkMemory:
    log = TxnLog(client_of(site.namesrv.address), make=False)

    async def read() -> SinkMemory:
        return await log.memories.read(await log.queue_of(sink), sink)

    return shared_portal().call(read())


def reaffirm(site: Site) -> None:
    shared_portal().call(TxnLog(client_of(site.namesrv.address), make=False).reaffirm())


def test_an_id_is_remembered_after_its_log_has_expired(site: Site) -> None:
    topic, at = site.topic(), site.namesrv.address
    write_once(site, topic, ROWS)
    with pytest.raises(OtherDataError, match=r"txnId daily-2026.11.15 was used before"):
        write_once(site, topic, [*ROWS, b"4"])
    write_once(site, topic, ROWS[::-1])
    assert count(at, topic) == Counter(ROWS)
    expire(site)
    other = site.topic()
    with pytest.raises(OtherDataError):
        write_once(site, other, ROWS)  # another topic is other data
    with pytest.raises(OtherDataError):
        write_once(site, topic, [b"1", b"2", b"33"])
    write_once(site, topic, ROWS)
    assert count(at, other) == Counter()
    shared_portal().call(forget(client_of(at), "daily-2026.11.15"))
    write_once(site, other, [b"4"])
    assert count(at, other) == Counter([b"4"])


def test_a_batch_that_was_done_is_not_repeated_after_the_log_has_expired(site: Site) -> None:
    topic, at = site.topic(), site.namesrv.address
    query = Query(at, topic, "restarted")
    for batch in range(3):
        query.run(batch)
    assert memory(site, query.sink).done == 2
    expire(site)
    assert count(at, topic) == Counter()  # the rows have expired as well
    query.run(2)  # Spark has not recorded it, and runs it again
    assert count(at, topic) == Counter()
    query.run(3)
    assert count(at, topic) == Counter(query.everything(4)) - Counter(query.everything(3))


@pytest.mark.parametrize("is_written", [True, False])
def test_a_batch_of_which_nobody_knows_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    topic, at = site.topic(), site.namesrv.address
    query = Query(at, topic, "unknown")
    query.run(0)
    messages = query.write(1)
    with monkeypatch.context() as patch:
        crash_after(patch, 10)
        with pytest.raises(CrashError):
            query.commit(messages, 1)
    with pytest.raises(ConfigError, match="batch 1 of sink unknown was decided"):
        shared_portal().call(settle(client_of(at), query.sink, 0))
    expire(site)
    with pytest.raises(OutcomeUnknownError, match="whether batch 1 of sink unknown was written"):
        query.write(1)
    shared_portal().call(settle(client_of(at), query.sink, 1 if is_written else 0))
    query.run(1)
    query.run(2)
    first = 2 if is_written else 1
    assert count(at, topic) == Counter(query.everything(3)) - Counter(query.everything(first))


def test_a_query_whose_predecessor_is_missing_is_refused(site: Site) -> None:
    topic, at = site.topic(), site.namesrv.address
    query = Query(at, topic, "was-at-least-once")
    for _ in range(2):
        with pytest.raises(PredecessorMissingError, match="cannot go on at batch 7") as caught:
            query.write(7)
        assert "txn settle was-at-least-once --written-through 6" in str(caught.value.hint)
    shared_portal().call(settle(client_of(at), query.sink, 6))
    query.run(7)
    query.run(8)
    assert count(at, topic).total() == 80


def test_a_log_of_an_earlier_version_is_remembered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, at = site.topic(), site.namesrv.address
    query = Query(at, topic, "earlier")
    with monkeypatch.context() as patch:
        patch.setattr(SinkWriter, "returns", False)
        query.run(0)
        query.run(1)
    assert memory(site, query.sink) == SinkMemory()
    reaffirm(site)
    assert memory(site, query.sink).done == 1
    expire(site)
    query.run(1)
    assert count(at, topic) == Counter()
    query.run(2)


def test_what_a_killed_broker_has_forgotten_is_written_again(site: Site) -> None:
    """Brokers write offsets to disk now and then; this one does it every ten minutes."""
    topic, at = site.topic(), site.namesrv.address
    query = Query(at, topic, "killed")
    query.run(0)
    site.broker.kill()
    site.broker.start()

    def forgotten() -> Any:
        return memory(site, query.sink)

    assert poll_until(lambda: (forgotten(),), timeout_s=30, what="the broker") == (SinkMemory(),)
    reaffirm(site)
    assert memory(site, query.sink).done == 0
    expire(site)
    query.run(0)
    assert count(at, topic) == Counter()


def test_a_comparison_reads_the_log_once_for_all_sinks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sinks of one queue of the log share its pulls, of which there are few and none twice."""
    topic, at = site.topic(), site.namesrv.address
    names = (f"shared-{n}" for n in count_up())
    sinks = list(islice((n for n in names if abs(java_hash(n)) % QUEUE_COUNT == 3), 3))
    for sink, batches in zip(sinks, (1, 3, 2), strict=True):
        for batch in range(batches):
            Query(at, topic, sink).run(batch)
    asked: list[tuple[int, int, int]] = []
    real = TxnLog._entries

    def entries(
        self: TxnLog, queue: MessageQueue, low: int, high: int, tags: str
    ) -> AsyncIterator[Entry]:
        asked.append((queue.queue_id, low, high))
        return real(self, queue, low, high, tags)

    reaffirm(site)  # marks the log as one of this version
    monkeypatch.setattr(TxnLog, "_entries", entries)
    reaffirm(site)
    assert [memory(site, sink).done for sink in sinks] == [0, 2, 1]
    mine = sorted((low, high) for queue_id, low, high in asked if queue_id == 3)
    assert mine
    assert all(high <= low for (_, high), (low, _) in pairwise(mine)), mine
