"""The harness itself: the Apache name server and broker, mqadmin and Java clients, without us.

What fails here is the harness or the machine; what fails elsewhere in this folder is Skylark.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cluster import AdminError, BrokerRow, Cluster, QueueRow
from tests.interop.java import ApacheBroker, ApacheNamesrv, MqAdmin, mqadmin_once, run_program
from tests.interop.process import ProcessError, draw_port, poll_until
from tests.interop.toolchain import CURRENT, OLD_CLIENT, ToolchainError, check_tools

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheNamesrv]:
    with ApacheNamesrv(folder=tmp_path_factory.mktemp("namesrv")) as running:
        yield running


@pytest.fixture(scope="module")
def broker(
    namesrv: ApacheNamesrv, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    with ApacheBroker(namesrv.address, folder=tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(mqadmin: MqAdmin, namesrv: ApacheNamesrv, broker: ApacheBroker) -> Cluster:
    """The cluster, past the moment at which Apache's name server may lose a new topic.

    A topic announced while its broker registers for the first time was seen without a route for
    long; announcing it again helps, so one is announced until it is there.
    """
    view = Cluster(mqadmin, namesrv.address)
    view.wait_brokers(broker.broker_name, timeout_s=30)

    def settled() -> bool:
        view.create_topic("Settled", cluster=broker.cluster, queues=1)
        return "Settled" in view.topics()

    poll_until(settled, timeout_s=60, what="a topic listed by the name server")
    return view


def test_cluster_list_shows_the_broker(cluster: Cluster, broker: ApacheBroker) -> None:
    row = BrokerRow("DefaultCluster", "broker-a", 0, broker.address, "V5_5_0")
    assert cluster.brokers() == [row]


def test_created_topic_is_listed_and_routed(cluster: Cluster, broker: ApacheBroker) -> None:
    cluster.create_topic("Created", cluster=broker.cluster, queues=3)
    assert {"Created", "SELF_TEST_TOPIC", "DefaultCluster", "broker-a"} <= cluster.topics()
    route = cluster.route("Created")
    assert route.addresses == {"broker-a": {0: broker.address}}
    assert route.clusters == {"broker-a": "DefaultCluster"}
    assert route.queues == [QueueRow("broker-a", 3, 3, 6)]


def test_unknown_topic_is_refused_with_its_code(cluster: Cluster) -> None:
    code, remark = cluster.refusal("topicRoute", "-t", "Nowhere")
    assert code == 17
    assert remark == "No topic route info in name server for the topic: Nowhere"
    with pytest.raises(AdminError, match="SubCommandException"):
        cluster.route("Nowhere")


def test_one_process_runs_many_commands_and_survives_wrong_usage(
    mqadmin: MqAdmin, cluster: Cluster, namesrv: ApacheNamesrv
) -> None:
    pid = mqadmin.pid
    assert "The sub command noSuchCommand not exist." in mqadmin.run("noSuchCommand")
    assert len(cluster.brokers()) == 1
    assert mqadmin.pid == pid
    # mqadmin calls System.exit here, and takes the process with it.
    assert "Missing required option: t" in mqadmin.run("topicRoute", "-n", namesrv.address)
    assert len(cluster.brokers()) == 1
    assert mqadmin.pid != pid
    with pytest.raises(ValueError, match="tab"):
        mqadmin.run("topicRoute", "a\tb")


def test_one_process_per_command_prints_the_same(cluster: Cluster, broker: ApacheBroker) -> None:
    shown = mqadmin_once("clusterList", "-n", cluster.namesrv)
    assert broker.address in shown
    assert "V5_5_0" in shown
    usage = mqadmin_once("topicRoute", "-n", cluster.namesrv)
    assert usage.startswith("Missing required option: t")


@pytest.mark.parametrize("version", [CURRENT, OLD_CLIENT])
def test_java_client_sends_and_consumes(
    cluster: Cluster, broker: ApacheBroker, version: str
) -> None:
    name = f"Client_{version.replace('.', '_')}"
    cluster.create_topic(name, cluster=broker.cluster, queues=4)
    options = {"namesrv": cluster.namesrv, "topic": name, "group": f"{name}_group"}
    sent, consumed = run_program(
        "SendAndConsume",
        {**options, "send": 200, "consume": 200, "deadline_s": 60},
        version=version,
    )
    assert sent == {
        "event": "sent",
        "count": 200,
        "queues": {f"broker-a:{queue_id}": 50 for queue_id in range(4)},
    }
    assert consumed == {"event": "consumed", "deliveries": 200, "distinct": 200}


def test_failing_program_reports_its_cause() -> None:
    with pytest.raises(ProcessError, match=r"at SendAndConsume\.send"):
        run_program(
            "SendAndConsume",
            {"namesrv": f"127.0.0.1:{draw_port()}", "topic": "Nowhere", "group": "g", "send": 1},
        )


def test_killed_broker_restarts_on_its_store(cluster: Cluster, broker: ApacheBroker) -> None:
    cluster.create_topic("Crash", cluster=broker.cluster, queues=2)
    client: dict[str, str | int] = {
        "namesrv": cluster.namesrv,
        "topic": "Crash",
        "consume": 100,
        "deadline_s": 60,
    }
    run_program("SendAndConsume", {**client, "group": "before_crash", "send": 100})
    pid = broker.pid
    broker.kill()
    assert (broker.store / "abort").exists()
    assert not broker.running
    broker.start()
    assert broker.pid != pid
    cluster.wait_brokers("broker-a", timeout_s=30)
    cluster.wait_route("Crash", timeout_s=60)
    _, consumed = run_program("SendAndConsume", {**client, "group": "after_crash", "send": 0})
    assert consumed["distinct"] == 100


def test_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    wrong = {"brokerRole": "SLAVE", "brokerId": 0}
    broker = ApacheBroker("127.0.0.1:1", wrong, folder=tmp_path)
    with pytest.raises(ProcessError, match="Slave's brokerId must be > 0"), broker:
        pytest.fail("started")
    assert not broker.running


def test_server_ends_when_the_test_run_is_killed(tmp_path: Path) -> None:
    port = draw_port()
    script = (
        "import os, pathlib, signal\n"
        "from tests.interop.java import ApacheNamesrv\n"
        f"ApacheNamesrv(port={port}, folder=pathlib.Path({str(tmp_path)!r})).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, timeout=90, check=False)
    assert run.returncode == -9
    assert "boot success" in (tmp_path / "namesrv-1.out").read_text()

    def gone() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    poll_until(gone, timeout_s=20, what="the name server's end")


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"need java and javac, .* apt-get install") as caught:
        check_tools()
    assert os.linesep not in str(caught.value)
