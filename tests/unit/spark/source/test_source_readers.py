"""The stream reader, called as Spark calls it, with a cluster that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from skylark.admin.errors import NotFoundError
from skylark.core.errors import ClientError, NoNameServerError, SkylarkError
from skylark.spark.cluster_client import Cluster
from skylark.spark.outages import OutageError
from skylark.spark.source import queue_bounds, source_readers
from skylark.spark.source.source_options import source_options
from skylark.spark.source.source_readers import BatchReader, StreamReader
from skylark.wire.bodies.route_body import TopicRouteData
from tests.unit.spark.source.fake_cluster import FakeSession

T = TypeVar("T")


class FakeCluster:
    """Runs the work of a reader on a loop of its own."""

    def __init__(self) -> None:
        self.session = FakeSession()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work while time goes by."""

        async def passing() -> T:
            task = asyncio.get_running_loop().create_task(work)
            while not task.done():
                await self.session.clock.advance(0.2)
            return task.result()

        return asyncio.run(passing())


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


# ---- outages -------------------------------------------------------------------------------------


class Away(FakeSession):
    """A cluster whose name servers do not answer for a while."""

    def __init__(self, away_s: float) -> None:
        super().__init__()
        self.until = self.clock.monotonic() + away_s

    async def find_route(self, topic: str) -> TopicRouteData | None:
        self.namesrv_answers = self.clock.monotonic() >= self.until
        return await super().find_route(topic)


def test_a_stream_starts_when_the_name_servers_are_back(cluster: FakeCluster) -> None:
    cluster.session = Away(240)
    found = reader(startingoffsets="earliest").initialOffset()
    assert found["q"]["T"]["broker-a"] == {"0": 1, "1": 1}


@pytest.mark.parametrize(
    ("given", "kind", "waited_s"),
    [
        ({}, OutageError, 300),
        ({"outagetimeout": "1m"}, OutageError, 60),
        ({"fetchoffset.numretries": "2"}, NoNameServerError, 0.4),
        ({"fetchoffset.numretries": "0"}, NoNameServerError, 0),
    ],
)
def test_how_long_a_stream_waits_for_name_servers(
    cluster: FakeCluster, given: dict[str, str], kind: type[Exception], waited_s: float
) -> None:
    cluster.session = Away(1_000)
    clock = cluster.session.clock
    began = clock.monotonic()
    with pytest.raises(kind, match="no name server responds"):
        reader(**given).initialOffset()
    assert waited_s - 5 <= clock.monotonic() - began <= waited_s + 1


def test_a_batch_read_waits_too(cluster: FakeCluster) -> None:
    cluster.session = Away(60)
    options = source_options(
        {"nameserver": "h:1", "topic": "T", "readmode": "pull", "maxpartitions": "4"},
        streaming=False,
        environ={},
    )
    assert len(BatchReader(options, ["body"]).partitions()) == 4


@pytest.mark.parametrize("error", [NoNameServerError("away"), NotFoundError("no topic")])
def test_an_error_about_servers_has_no_frames_of_the_client(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, error: SkylarkError
) -> None:
    async def fail(topic: str) -> TopicRouteData | None:
        raise error from ConnectionRefusedError("a cause that the message tells")

    monkeypatch.setattr(cluster.session, "find_route", fail)
    given = {"nameserver": "h:1", "topic": "T", "fetchoffset.numretries": "0"}
    batch = BatchReader(source_options(given, streaming=False, environ={}), ["body"])
    stream = reader(**given)
    for method, arguments in (
        (batch.partitions, ()),
        (stream.initialOffset, ()),
        (stream.prepareForTriggerAvailableNow, ()),
        (stream.latestOffset, (offset(1, 1), ReadAllAvailable())),
        (stream.partitions, (offset(1, 1), offset(5, 5))),
    ):
        with pytest.raises(type(error)) as caught:
            method(*arguments)
        _here, *below = caught.traceback
        assert len(below) == 1, caught.traceback
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
