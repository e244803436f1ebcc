"""Our name server among Apache's own: its broker registers, its mqadmin asks, its clients route.

The same tests pass with the Apache name server in place of ours, which is how their expectations
were checked.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.interop.cluster import BrokerRow, Cluster, QueueRow
from tests.interop.java import ApacheBroker, MqAdmin, run_program
from tests.interop.ours import SkylarkNamesrv
from tests.interop.process import poll_until
from tests.interop.toolchain import CURRENT, OLD_CLIENT

pytestmark = pytest.mark.interop

#: Topics that every Apache broker creates at its start (broker-a of DefaultCluster).
SYSTEM_TOPICS = {
    "BenchmarkTest",
    "DefaultCluster",
    "DefaultCluster_REPLY_TOPIC",
    "OFFSET_MOVED_EVENT",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
    "SELF_TEST_TOPIC",
    "TBW102",
    "broker-a",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
    "rmq_sys_wheel_timer",
}


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkylarkNamesrv]:
    with SkylarkNamesrv(folder=tmp_path_factory.mktemp("namesrv")) as running:
        yield running


@pytest.fixture(scope="module")
def broker(
    namesrv: SkylarkNamesrv, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    settings = {"registerNameServerPeriod": 10_000}
    folder = tmp_path_factory.mktemp("broker")
    with ApacheBroker(namesrv.address, settings, folder=folder) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(mqadmin: MqAdmin, namesrv: SkylarkNamesrv, broker: ApacheBroker) -> Cluster:
    view = Cluster(mqadmin, namesrv.address)
    view.wait_brokers(broker.broker_name, timeout_s=30)
    return view


def send_and_consume(cluster: Cluster, topic: str, version: str = CURRENT) -> None:
    """Let a Java client send 200 messages to ``topic`` and consume every one of them."""
    options = {"namesrv": cluster.namesrv, "topic": topic, "group": f"{topic}_group"}
    sent, consumed = run_program(
        "SendAndConsume",
        {**options, "send": 200, "consume": 200, "deadline_s": 60},
        version=version,
    )
    assert sent["count"] == 200
    assert sent["queues"] == {f"broker-a:{queue_id}": 50 for queue_id in range(4)}
    assert consumed == {"event": "consumed", "deliveries": 200, "distinct": 200}


def test_cluster_list_shows_the_registered_broker(cluster: Cluster, broker: ApacheBroker) -> None:
    row = BrokerRow("DefaultCluster", "broker-a", 0, broker.address, "V5_5_0")
    assert cluster.brokers() == [row]


def test_topic_created_right_after_registration_is_routed(
    cluster: Cluster, broker: ApacheBroker
) -> None:
    cluster.create_topic("First", cluster=broker.cluster, queues=3)
    route = cluster.wait_route("First", timeout_s=5)
    assert route.addresses == {"broker-a": {0: broker.address}}
    assert route.clusters == {"broker-a": "DefaultCluster"}
    assert route.queues == [QueueRow("broker-a", 3, 3, 6)]


def test_topic_list_holds_created_and_system_topics(cluster: Cluster, broker: ApacheBroker) -> None:
    cluster.create_topic("Listed", cluster=broker.cluster, queues=1)
    topics = cluster.topics()
    assert topics >= {*SYSTEM_TOPICS, "Listed"}
    assert cluster.route("TBW102").queues == [QueueRow("broker-a", 8, 8, 7)]
    assert cluster.route("BenchmarkTest").queues == [QueueRow("broker-a", 1024, 1024, 6)]
    assert cluster.run("topicClusterList", "-t", "Listed").split() == ["DefaultCluster"]


def test_changed_topic_changes_its_route(cluster: Cluster, broker: ApacheBroker) -> None:
    cluster.create_topic("Changed", cluster=broker.cluster, queues=2)
    cluster.run(
        *("updateTopic", "-b", broker.address, "-t", "Changed", "-r", "6", "-w", "5", "-p", "4"),
        expect="perm=R--",
    )
    assert cluster.route("Changed").queues == [QueueRow("broker-a", 6, 5, 4)]


def test_deleted_topic_is_gone(cluster: Cluster, broker: ApacheBroker) -> None:
    cluster.create_topic("Deleted", cluster=broker.cluster, queues=1)
    assert "Deleted" in cluster.topics()
    cluster.run(
        *("deleteTopic", "-c", broker.cluster, "-t", "Deleted"),
        expect="delete topic [Deleted] from NameServer success.",
    )
    assert "Deleted" not in cluster.topics()
    assert cluster.refusal("topicRoute", "-t", "Deleted") == (
        17,
        "No topic route info in name server for the topic: Deleted",
    )


@pytest.mark.parametrize("version", [CURRENT, OLD_CLIENT])
def test_java_client_sends_and_consumes_by_our_routes(
    cluster: Cluster, broker: ApacheBroker, version: str
) -> None:
    topic = f"Client_{version.replace('.', '_')}"
    cluster.create_topic(topic, cluster=broker.cluster, queues=4)
    send_and_consume(cluster, topic, version)


def test_first_send_creates_its_topic(cluster: Cluster) -> None:
    assert "CreatedBySend" not in cluster.topics()
    send_and_consume(cluster, "CreatedBySend")
    assert cluster.route("CreatedBySend").queues == [QueueRow("broker-a", 4, 4, 6)]


def test_configuration_is_shown_and_changed(cluster: Cluster, namesrv: SkylarkNamesrv) -> None:
    def shown() -> dict[str, str]:
        lines = cluster.run("getNamesrvConfig", expect=f"={namesrv.address}=").splitlines()
        pairs = (line.split("=", 1) for line in lines if "  =  " in line)
        return {key.strip(): value.strip() for key, value in pairs}

    before = shown()
    assert before["listenPort"] == namesrv.address.rpartition(":")[2]
    assert before["deleteTopicWithBrokerRegistration"] == "false"
    assert before["scanNotActiveBrokerInterval"] == "5000"
    assert before["orderMessageEnable"] == "false"
    cluster.run(
        *("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"),
        expect="update name server config success!",
    )
    assert shown() == {**before, "orderMessageEnable": "true"}
    code, _ = cluster.refusal("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "elsewhere")
    assert code == 16
    assert shown()["kvConfigPath"] == before["kvConfigPath"]


def test_kv_config_is_kept_and_deleted(cluster: Cluster, namesrv: SkylarkNamesrv) -> None:
    entry = ("-s", "ORDER_TOPIC_CONFIG", "-k", "Ordered")
    cluster.run("updateKvConfig", *entry, "-v", "broker-a:4", expect="to namespace success.")
    assert "orderConf=[broker-a:4]" in cluster.run("updateOrderConf", "-m", "get", "-t", "Ordered")
    saved = json.loads(Path(str(namesrv.settings["kvConfigPath"])).read_text())
    assert saved == {"configTable": {"ORDER_TOPIC_CONFIG": {"Ordered": "broker-a:4"}}}
    cluster.run("deleteKvConfig", *entry, expect="from namespace success.")
    assert cluster.refusal("updateOrderConf", "-m", "get", "-t", "Ordered") == (
        22,
        "No config item, Namespace: ORDER_TOPIC_CONFIG Key: Ordered",
    )


def test_write_permission_is_wiped_and_given_back(cluster: Cluster, broker: ApacheBroker) -> None:
    cluster.create_topic("Wiped", cluster=broker.cluster, queues=2)
    changed = f"OK, {len(cluster.topics())}"
    cluster.run("wipeWritePerm", "-b", "broker-a", expect=changed)
    assert cluster.route("Wiped").queues == [QueueRow("broker-a", 2, 2, 4)]
    cluster.run("addWritePerm", "-b", "broker-a", expect=changed)
    assert cluster.route("Wiped").queues == [QueueRow("broker-a", 2, 2, 6)]


def test_second_broker_joins_and_leaves(
    cluster: Cluster, broker: ApacheBroker, tmp_path: Path
) -> None:
    second = ApacheBroker(cluster.namesrv, {"brokerName": "broker-b"}, folder=tmp_path)
    with second:
        rows = cluster.wait_brokers("broker-a", "broker-b", timeout_s=30)
        assert [row.address for row in rows] == [broker.address, second.address]
        cluster.create_topic("Shared", cluster="DefaultCluster", queues=2)
        route = cluster.wait_route("Shared", timeout_s=5)
        both = {"broker-a": {0: broker.address}, "broker-b": {0: second.address}}
        assert route.addresses == both
        assert route.queues == [QueueRow("broker-a", 2, 2, 6), QueueRow("broker-b", 2, 2, 6)]

        second.stop()
        cluster.wait_brokers("broker-a", timeout_s=5)
        assert cluster.route("Shared").queues == [QueueRow("broker-a", 2, 2, 6)]
        assert "broker-b" not in cluster.topics()

        # A crash says no goodbye; the closed connection must do.
        second.start()
        cluster.wait_brokers("broker-a", "broker-b", timeout_s=30)
        assert cluster.wait_route("Shared", timeout_s=5).addresses == both
        second.kill()
        cluster.wait_brokers("broker-a", timeout_s=10)
        assert cluster.route("Shared").addresses == {"broker-a": {0: broker.address}}


def test_topic_created_while_its_broker_registers_gets_a_route(
    mqadmin: MqAdmin, cluster: Cluster, tmp_path: Path
) -> None:
    young = ApacheBroker(cluster.namesrv, {"brokerName": "broker-c"}, folder=tmp_path)
    order = ("updateTopic", "-n", cluster.namesrv, "-b", young.address, "-t", "Early")
    with closing(young):
        young.launch()
        poll_until(
            lambda: "create topic to" in mqadmin.run(*order),
            timeout_s=60,
            what="a topic accepted by the starting broker",
        )
        route = cluster.wait_route("Early", timeout_s=45)
        assert route.addresses == {"broker-c": {0: young.address}}
    cluster.wait_brokers("broker-a", timeout_s=10)


def test_restart_brings_back_kv_config_and_broker(
    cluster: Cluster, namesrv: SkylarkNamesrv, broker: ApacheBroker
) -> None:
    cluster.create_topic("Lasting", cluster=broker.cluster, queues=4)
    kept = ("-s", "ORDER_TOPIC_CONFIG", "-k", "Kept", "-v", "broker-a:1")
    cluster.run("updateKvConfig", *kept, expect="to namespace success.")
    status = namesrv.stop()
    assert status not in (None, -signal.SIGKILL), "did not end by SIGTERM in time"
    namesrv.start()
    assert "orderConf=[broker-a:1]" in cluster.run("updateOrderConf", "-m", "get", "-t", "Kept")
    cluster.wait_brokers(broker.broker_name, timeout_s=45)
    assert cluster.wait_route("Lasting", timeout_s=5).addresses == {"broker-a": {0: broker.address}}
    send_and_consume(cluster, "Lasting")
