"""A stream and an exactly-once sink while brokers and name servers restart; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from skylark import ClientOptions, Message
from skylark.admin.errors import NotFoundError
from skylark.core.clock import LoopClock
from skylark.core.errors import SkylarkError
from skylark.spark.cluster_client import close_clusters
from skylark.spark.outages import OutageError
from skylark.spark.sink.sink_client import close_clients
from skylark.sync import Admin, Producer
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv
from tests.interop.process import ManagedProcess
from tests.spark.driven import DrivenStream
from tests.spark.sink_site import Query, count, stream

AWAY_S = 4.0


class Cluster:
    """A name server and a broker, as processes."""

    def __init__(self, folder: Path) -> None:
        self.namesrv = SkylarkNamesrv(folder=folder / "namesrv")
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
    with pytest.raises(NotFoundError, match=r"topic Nowhere does not exist.*create it"):
        stream(cluster.address, topic="Nowhere")
