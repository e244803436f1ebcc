"""Exactly-once over two brokers, finished by the resolver of ``skylark up`` alone; order kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType

from skylark import ClientOptions
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.errors import ConfigError
from skylark.spark.exactly_once import half_message_sender as half_sending
from skylark.spark.exactly_once.txn_log import QUEUE_COUNT, TxnLog
from skylark.spark.exactly_once.txn_log_records import LOG_TOPIC
from skylark.sync import Admin
from tests.spark.sink_site import (
    QUICK_CHECKS,
    CrashError,
    Query,
    client_of,
    count,
    crash_after,
    read,
    until,
    writer,
)
from tests.support.up import cluster


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a cluster of two brokers."""
    folder = tmp_path_factory.mktemp("pair")
    topics = ("--topic", "Gone:2", "--topic", "Ordered:2")
    with cluster(folder, "--brokers", "2", *topics, *QUICK_CHECKS) as namesrv:
        yield namesrv


@pytest.mark.spec("spark.9.29")
def test_the_resolver_completes_the_batch_of_a_lost_driver(
    pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_sending, "PORTION_COUNT", 5)  # so that each task reaches all queues
    query = Query(pair, "Gone", "gone")
    query.run(0)
    messages = query.write(1)
    with monkeypatch.context() as patch:
        crash_after(patch, 5)  # decided, and hardly begun
        with pytest.raises(CrashError):
            query.commit(messages, 1)
    until(lambda: count(pair, "Gone").total() >= 80, "the resolver does not finish")
    assert count(pair, "Gone") == query.everything(2)
    assert {row["brokerName"] for row in read(pair, "Gone")} == {"broker-a", "broker-b"}


def test_the_log_is_on_one_broker(pair: str) -> None:
    client = client_of(pair)
    queues = shared_portal().call(TxnLog(client).find())
    assert {queue.broker_name for queue in queues} == {"broker-a"}
    assert len(queues) == QUEUE_COUNT


def test_rows_with_a_key_are_committed_in_their_order(pair: str) -> None:
    types = {"body": BinaryType(), "shardingKey": StringType()}
    once = writer(pair, types, topic="Ordered", delivery="exactly-once")
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"%04d" % n for n in range(600)]),
            "shardingKey": pa.array([f"key-{n % 7}" for n in range(600)]),
        }
    )
    once.commit([once.write(iter([rows]))])
    until(lambda: count(pair, "Ordered").total() >= 600, "rows are missing")
    lanes: dict[tuple[str, int], list[bytes]] = {}
    for row in read(pair, "Ordered"):
        lanes.setdefault((row["brokerName"], row["queueId"]), []).append(row["body"])
    assert Counter(body for lane in lanes.values() for body in lane).total() == 600
    assert len(lanes) > 1
    for lane in lanes.values():
        assert lane == sorted(lane)


def test_a_log_on_two_brokers_is_refused(tmp_path: Path) -> None:
    """Two brokers could disagree about what is decided."""
    with cluster(tmp_path, "--brokers", "2", "--topic", "Gone:2") as namesrv:
        with Admin(ClientOptions(namesrv=namesrv)) as admin:
            admin.topics.create(LOG_TOPIC, queue_count=QUEUE_COUNT)
        with pytest.raises(ConfigError, match=f"topic {LOG_TOPIC} is on broker-a, broker-b"):
            writer(namesrv, topic="Gone", delivery="exactly-once")
