"""The stream reader, called as Spark calls it, with a cluster that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest

from skylark.core.errors import ClientError
from skylark.spark.cluster_client import Cluster
from skylark.spark.source import queue_bounds, source_readers
from skylark.spark.source.source_options import source_options
from skylark.spark.source.source_readers import StreamReader
from tests.unit.spark.source.fake_cluster import FakeSession

T = TypeVar("T")


class FakeCluster:
    """Runs the work of a reader on a loop of its own."""

    def __init__(self) -> None:
        self.session = FakeSession()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    for module in (queue_bounds, source_readers):
        monkeypatch.setattr(module, "shared_cluster", lambda _: cast(Cluster, cluster))
    return cluster


def reader(**more: str) -> StreamReader:
    given = {"nameserver": "h:1", "topic": "T", "readmode": "pull", **more}
    return StreamReader(source_options(given, streaming=True, environ={}), ["body"])


def offset(*ends: int) -> dict[str, Any]:
    return {"v": 1, "q": {"T": {"broker-a": {str(number): end for number, end in enumerate(ends)}}}}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_planned_queue_that_was_cut_off_stops_the_restart(
    cluster: FakeCluster, fail: str
) -> None:
    planned = reader().partitions(offset(1, 1), offset(5, 5))
    assert len(planned) == 2
    cluster.session.queue_count = 1  # readQueueNums was lowered after the batch was planned
    restarted = reader(failondataloss=fail)
    with pytest.raises(
        ClientError, match=r"queue 1: raise readQueueNums of T to 2 until"
    ) as caught:
        restarted.partitions(offset(1, 1), offset(5, 5))
    assert "failOnDataLoss" not in str(caught.value)  # it does not help: the checkpoint has them
    assert len(reader().partitions(offset(1, 5), offset(5, 5))) == 1  # nothing of it is planned
