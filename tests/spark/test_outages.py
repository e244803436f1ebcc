"""A stream and an exactly-once sink while brokers and name servers restart; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType

from skylark import ClientOptions, Message
from skylark.admin.errors import NotFoundError
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.clock import LoopClock
from skylark.core.errors import NoRouteError, SkylarkError
from skylark.spark.cluster_client import close_clusters
from skylark.spark.outages import OutageError
from skylark.spark.sink.row_encoder import BadRowError
from skylark.spark.sink.sink_client import close_clients
from skylark.spark.sink.sink_writer import SinkWriter, stream_writer
from skylark.spark.sink.task_writer import TaskId
from skylark.sync import Admin, Producer
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import ManagedProcess
from tests.spark.driven import DrivenStream
from tests.spark.sink_site import BODY, Query, client_of, count, read, schema, stream, until

AWAY_S = 4.0


class Cluster:
    """A name server and a broker, as processes."""

    def __init__(self, folder: Path) -> None:
        self.namesrv = SkylarkNamesrv({"orderMessageEnable": "true"}, folder=folder / "namesrv")
        self.address = f"127.0.0.1:{self.namesrv.settings['listenPort']}"
        self.broker = SkylarkBroker(self.address, folder=folder / "broker")
        self.options = ClientOptions(namesrv=self.address, metrics=False)

    def wait_route(self, topic: str) -> None:
        """Wait until the broker has registered with a name server that started again."""
        deadline = LoopClock().monotonic() + 60
        with Admin(self.options) as admin:
            while True:
                with suppress(SkylarkError):
                    if admin.topics.route(topic).queue_datas:
                        return
                assert LoopClock().monotonic() < deadline, f"there is no route of {topic}"
                threading.Event().wait(0.05)

    @contextmanager
    def away(self, *servers: ManagedProcess) -> Iterator[None]:
        """Kill these; they start again a few seconds later, while the block runs."""
        for server in servers:
            server.kill()
        timer = threading.Timer(AWAY_S, lambda: [server.start() for server in servers])
        timer.start()
        try:
            yield
        finally:
            timer.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    with ExitStack() as stack:
        for server in (cluster.namesrv, cluster.broker):
            stack.enter_context(server)
        with Admin(cluster.options) as admin:
            for topic in ("Source", "Target"):
                admin.topics.create(topic, queue_count=2)
        yield cluster


def forget() -> None:
    """As a process of Spark that has just started: it has no connection and no route."""
    close_clients()
    close_clusters()


def masters(cluster: Cluster) -> Collection[str]:
    return shared_portal().call(client_of(cluster.address).session.masters())


def has_route(admin: Admin, topic: str) -> bool:
    try:
        return bool(admin.topics.route(topic).queue_datas)
    except NotFoundError:
        return False


def send(cluster: Cluster, bodies: Sequence[bytes]) -> None:
    with Producer("test", cluster.options) as producer:
        for body in bodies:
            producer.send(Message("Source", body))


@pytest.mark.parametrize("everything", [False, True], ids=["broker", "broker and name server"])
@pytest.mark.parametrize("fresh", [False, True], ids=["known", "fresh"])
def test_a_restart_costs_time_and_nothing_else(
    cluster: Cluster, everything: bool, fresh: bool
) -> None:
    source = DrivenStream(
        nameServer=cluster.address, topic="Source", startingOffsets="earliest", readMode="pull"
    )
    query = Query(cluster.address, "Target", "sink", txnImmunitySec="900")
    source.trigger()
    query.run(0)
    send(cluster, [b"%d" % n for n in range(10)])
    assert source.plan()
    away = [cluster.broker, cluster.namesrv] if everything else [cluster.broker]
    with cluster.away(*away):
        if fresh:
            forget()
            source.restart()
        messages = query.write(1)  # plans the batch, reads the log, stores half messages
        assert len(source.run()) == 10
    with cluster.away(*away):
        if fresh:
            forget()
        query.commit(messages, 1)
    cluster.wait_route("Target")
    assert count(cluster.address, "Target") == query.everything(2)


def test_a_longer_outage_is_one_clear_error(cluster: Cluster) -> None:
    cluster.broker.kill()
    cluster.namesrv.kill()
    with pytest.raises(OutageError, match=r"the cluster did not answer for 11 s: no name server"):
        stream(cluster.address, topic="Target", outageTimeout="11s")


def test_a_topic_that_does_not_exist_is_not_an_outage(cluster: Cluster) -> None:
    """The first batch of a stream is refused, and so is a check before it."""
    missing = r"topic Nowhere does not exist.*create it"
    with pytest.raises(NotFoundError, match=missing):
        Query(cluster.address, "Nowhere", "sink", delivery="at-least-once").write(0)
    given = {"nameserver": cluster.address, "topic": "Nowhere"}
    with pytest.raises(NotFoundError, match=missing):
        stream_writer(given, schema(BODY), False, strict=True)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_all_brokers_of_the_topic_are_away_and_others_are_not(
    cluster: Cluster, tmp_path: Path, delivery: str
) -> None:
    """Name servers forget the topic, as if it had never existed."""
    query = Query(cluster.address, "Beside", "sink", delivery=delivery, txnImmunitySec="900")
    other = SkylarkBroker(cluster.address, {"brokerName": "broker-b"}, folder=tmp_path / "other")
    with other, Admin(cluster.options) as admin:
        until(lambda: "broker-b" in masters(cluster), "it does not register")
        admin.topics.create("Beside", queue_count=2, broker="broker-b")
        query.run(0)
        with cluster.away(other):
            until(lambda: not has_route(admin, "Beside"), "the topic keeps its route")
            forget()
            messages = query.write(1)
        query.commit(messages, 1)
        assert count(cluster.address, "Beside") == query.everything(2)


@pytest.fixture
def other(cluster: Cluster, tmp_path: Path) -> Iterator[SkylarkBroker]:
    """A second broker, ``broker-b``; topic ``Both`` is on both of them."""
    other = SkylarkBroker(cluster.address, {"brokerName": "broker-b"}, folder=tmp_path / "other")
    with other, Admin(cluster.options) as admin:
        until(lambda: "broker-b" in masters(cluster), "it does not register")
        admin.topics.create("Both", queue_count=1)
        yield other


@contextmanager
def away_and_forgotten(cluster: Cluster, broker: SkylarkBroker) -> Iterator[None]:
    """The broker is away for seconds, no name server knows it, and processes are new."""
    name = str(broker.settings["brokerName"])
    with cluster.away(broker):
        until(lambda: name not in masters(cluster), "it stays registered")
        forget()
        yield


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("with_log", [False, True])
def test_one_broker_of_the_topic_is_away(
    cluster: Cluster, other: SkylarkBroker, delivery: str, with_log: bool
) -> None:
    """Rows that may go to any queue go to the others; the log of exactly-once is waited for."""
    query = Query(cluster.address, "Both", "sink", delivery=delivery, txnImmunitySec="900")
    query.run(0)
    messages = query.write(1)
    with away_and_forgotten(cluster, cluster.broker if with_log else other):
        query.commit(messages, 1)
        query.run(2)
    until(lambda: len(masters(cluster)) == 2, "it does not come back")
    assert count(cluster.address, "Both") == query.everything(3)


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_the_queue_that_a_row_names_is_away(
    cluster: Cluster, other: SkylarkBroker, delivery: str
) -> None:
    types = {**BODY, "brokerName": StringType(), "queueId": IntegerType()}
    given = {"nameserver": cluster.address, "topic": "Both", "explicitqueue": "true"}
    given |= {"delivery": delivery, "txnimmunitysec": "900"}

    def write(batch: int, broker: str, queue_id: int = 0) -> None:
        rows = pa.RecordBatch.from_pydict(
            {
                "body": pa.array([f"{batch}/{n}".encode() for n in range(9)]),
                "brokerName": [broker] * 9,
                "queueId": pa.array([queue_id] * 9, pa.int32()),
            }
        )
        made = stream_writer(given, schema(types), False)
        assert isinstance(made, SinkWriter)
        message = made.write_task(iter([rows]), TaskId(sink="named", batch=batch, partition=0))
        made.commit_batch([message], batch)

    write(0, "broker-b")
    with away_and_forgotten(cluster, other):
        write(1, "broker-b")
    rows = read(cluster.address, "Both")
    assert {(row["brokerName"], row["queueId"]) for row in rows} == {("broker-b", 0)}
    assert [row["body"] for row in rows] == [f"{b}/{n}".encode() for b in (0, 1) for n in range(9)]
    with pytest.raises(BadRowError, match="queue 7 of broker-b, which its topic does not have"):
        write(2, "broker-b", 7)
    given["outagetimeout"] = "1s"
    with pytest.raises(NoRouteError, match="a row is for broker-c, and no such broker is there"):
        write(2, "broker-c")


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_the_queues_of_a_topic_are_fixed_and_one_broker_is_away(
    cluster: Cluster, other: SkylarkBroker, delivery: str
) -> None:
    """With an order configuration the route has the queues of brokers that are down."""
    query = Query(cluster.address, "Both", "sink", delivery=delivery, txnImmunitySec="900")
    with Admin(cluster.options) as admin:
        admin.topics.set_order_config("Both", {"broker-a": 1, "broker-b": 1})
    query.run(0)
    with away_and_forgotten(cluster, other):
        query.run(1)
    until(lambda: len(masters(cluster)) == 2, "it does not come back")
    assert count(cluster.address, "Both") == query.everything(2)
