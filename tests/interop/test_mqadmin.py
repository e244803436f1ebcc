"""The real mqadmin on ``skylark up``: topics, groups, settings, and what stays refused.

mqadmin prints stack traces and reports success, so everything here looks at what it prints. The
expectations were checked against Apache's servers (5.5.0), on which both files of these tests pass
but for this: what is refused here is done there, a path can be changed while the broker runs,
topics can be LITE, and a deleted group is back at once, with default settings.
Messages and clients are in ``test_mqadmin_clients.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.broker.admin.refused_requests import ACCESS_CONTROL, REFUSED
from skylark.wire.codes import RequestCode
from tests.interop import mqadmin_commands
from tests.interop.admin_site import AdminView, SkylarkUp
from tests.interop.cluster import BrokerRow, QueueRow
from tests.interop.java import MqAdmin, mqadmin_once
from tests.interop.shown import shown_by, shows

pytestmark = pytest.mark.interop

CLUSTER = ("-c", "DefaultCluster")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkylarkUp]:
    with SkylarkUp({}, folder=tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def admin(mqadmin: MqAdmin, up: SkylarkUp, request: pytest.FixtureRequest) -> Iterator[AdminView]:
    view = AdminView(mqadmin, up)
    yield view
    view.check(*shown_by(request.function))


# Topics


@shows(
    "updateTopic", "updateTopicPerm", "topicList", "topicRoute", "topicStatus", "topicClusterList",
    "deleteTopic",
    codes=[
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, RequestCode.DELETE_TOPIC_IN_BROKER,
    ],
)  # fmt: skip
def test_topics(admin: AdminView) -> None:
    printed = admin.run(
        *("updateTopic", *CLUSTER, "-t", "Made", "-r", "3", "-w", "3"),
        expect=f"create topic to {admin.broker} success.",
    )
    assert "topicName=Made, readQueueNums=3, writeQueueNums=3, perm=RW-" in printed
    assert admin.route("Made").addresses == {"broker-a": {0: admin.broker}}
    assert admin.route("Made").queues == [QueueRow("broker-a", 3, 3, 6)]
    assert admin.run("topicClusterList", "-t", "Made").split() == ["DefaultCluster"]
    assert admin.rows("topicStatus", "-t", "Made") == [
        ["broker-a", str(queue_id), "0", "0"] for queue_id in range(3)
    ]
    assert {"Made", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= admin.topics()
    assert ["DefaultCluster", "Made"] in admin.rows("topicList", "-c")

    admin.run(
        *("updateTopic", "-b", admin.broker, "-t", "Made", "-r", "5", "-w", "4"),
        *("-a", "+message.type=NORMAL"),
        expect="attributes={+message.type=NORMAL}",
    )
    admin.run(
        *("updateTopicPerm", *CLUSTER, "-t", "Made", "-p", "4"),
        expect=f"update topic perm from 6 to 4 in {admin.broker} success.",
    )
    assert admin.route("Made").queues == [QueueRow("broker-a", 5, 4, 4)]
    code, remark = admin.refusal(
        "updateTopic", "-b", admin.broker, "-t", "Made", "-a", "+message.type=NONE"
    )
    assert (code, remark.split(" BROKER")[0]) == (
        1,
        "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE,"
        " NORMAL]",
    )

    printed = admin.run("deleteTopic", *CLUSTER, "-t", "Made")
    assert printed.splitlines() == [
        "delete topic [Made] from cluster [DefaultCluster] success.",
        "delete topic [Made] from NameServer success.",
    ]
    assert "Made" not in admin.topics()
    assert admin.refusal("topicStatus", "-t", "Made") == (
        17,
        "No topic route info in name server for the topic: Made",
    )


@shows("updateTopicList", codes=[RequestCode.UPDATE_AND_CREATE_TOPIC_LIST])
def test_topics_from_a_file(admin: AdminView, tmp_path: Path) -> None:
    wanted = [{"topicName": f"Listed{n}", "readQueueNums": n, "writeQueueNums": n} for n in (2, 3)]
    path = tmp_path / "topics.json"
    path.write_text(json.dumps(wanted))
    admin.run(
        *("updateTopicList", "-b", admin.broker, "-f", str(path)),
        expect=f"submit batch of topic config to {admin.broker} success",
    )
    for queues in (2, 3):
        assert admin.route(f"Listed{queues}").queues == [QueueRow("broker-a", queues, queues, 6)]


@shows(
    "updateTopic", "updateOrderConf", codes=[RequestCode.PUT_KV_CONFIG, RequestCode.GET_KV_CONFIG]
)
def test_ordered_topics(admin: AdminView) -> None:
    admin.run(
        *("updateTopic", *CLUSTER, "-t", "Ordered", "-r", "2", "-w", "2", "-o", "true"),
        expect="set cluster orderConf. isOrder=true, orderConf=[broker-a:2]",
    )
    get = ("updateOrderConf", "-t", "Ordered", "-m", "get")
    admin.run(*get, expect="get orderConf success. topic=[Ordered], orderConf=[broker-a:2]")
    admin.run(
        *("updateOrderConf", "-t", "Ordered", "-m", "put", "-v", "broker-a:1"),
        expect="update orderConf success. topic=[Ordered], orderConf=[broker-a:1]",
    )
    admin.run(*get, expect="orderConf=[broker-a:1]")
    admin.run(
        *("updateOrderConf", "-t", "Ordered", "-m", "delete"),
        expect="delete orderConf success. topic=[Ordered]",
    )
    assert admin.refusal(*get) == (
        22,
        "No config item, Namespace: ORDER_TOPIC_CONFIG Key: Ordered",
    )


@shows(
    "wipeWritePerm", "addWritePerm",
    codes=[RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER],
)  # fmt: skip
def test_write_permission_of_a_broker(admin: AdminView) -> None:
    admin.create_topic("Wiped", cluster="DefaultCluster", queues=2)
    changed = f"in name server[{admin.namesrv}] OK, {len(admin.topics())}"
    admin.run("wipeWritePerm", "-b", "broker-a", expect=changed)
    assert admin.route("Wiped").queues == [QueueRow("broker-a", 2, 2, 4)]
    admin.run("addWritePerm", "-b", "broker-a", expect=changed)
    assert admin.route("Wiped").queues == [QueueRow("broker-a", 2, 2, 6)]


# The servers


@shows(
    "clusterList", "brokerStatus", "haStatus",
    codes=[RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_HA_STATUS],
)  # fmt: skip
def test_state_of_the_broker(admin: AdminView) -> None:
    assert admin.brokers() == [BrokerRow("DefaultCluster", "broker-a", 0, admin.broker, "V5_5_0")]
    (totals,) = admin.rows("clusterList", "-m")
    assert totals[:2] == ["DefaultCluster", "broker-a"]
    assert all(word.isdigit() for word in totals[2:])
    status = admin.settings("brokerStatus", "-b", admin.broker)
    assert status["brokerActive"] == "true"
    assert status["brokerVersionDesc"] == "V5_5_0"
    assert status["sendThreadPoolQueueSize"] == "0"
    for name in ("putTps", "getTotalTps", "runtime", "commitLogMaxOffset", "msgPutTotalTodayNow"):
        assert name in status
    by_cluster = admin.run("brokerStatus", *CLUSTER, expect=admin.broker)
    assert len(by_cluster.splitlines()) >= len(status)
    printed = admin.run("haStatus", "-b", admin.broker, expect=f"#MasterAddr\t{admin.broker}")
    assert "#SlaveNum\t0\n#InSyncSlaveNum\t0\n" in printed
    assert admin.run("haStatus", *CLUSTER, expect=admin.broker)


@shows(
    "getBrokerConfig", "updateBrokerConfig",
    codes=[RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG],
)  # fmt: skip
def test_settings_of_the_broker(admin: AdminView) -> None:
    get = ("getBrokerConfig", "-b", admin.broker)
    before = admin.settings(*get)
    assert before["brokerName"] == "broker-a"
    assert before["flushIntervalCommitLog"] == "500"
    assert before["transactionEndIdempotent"] == "true"
    assert before == admin.settings("getBrokerConfig", *CLUSTER)
    changed = f"update broker config success, {admin.broker}"
    for options in (("-b", admin.broker), CLUSTER):
        value = "600" if options is CLUSTER else "700"
        admin.run(
            *("updateBrokerConfig", *options, "-k", "flushIntervalCommitLog", "-v", value),
            expect=changed,
        )
        assert admin.settings(*get) == {**before, "flushIntervalCommitLog": value}
    # Java changes a path while it runs; here that stays refused.
    code, remark = admin.refusal(
        *("updateBrokerConfig", "-b", admin.broker, "-k", "storePathRootDir", "-v", "elsewhere")
    )
    assert (code, remark.split(" BROKER")[0]) == (16, "Can not update config in black list.")
    assert admin.settings(*get)["storePathRootDir"] == before["storePathRootDir"]


@shows(
    "getNamesrvConfig", "updateNamesrvConfig",
    codes=[RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG],
)  # fmt: skip
def test_settings_of_the_name_server(admin: AdminView) -> None:
    before = admin.settings("getNamesrvConfig")
    assert before["orderMessageEnable"] == "false"
    admin.run(
        *("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"),
        expect=f"update name server config success![{admin.namesrv}]",
    )
    assert admin.settings("getNamesrvConfig") == {**before, "orderMessageEnable": "true"}
    code, _ = admin.refusal("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "elsewhere")
    assert code == 16


@shows(
    "updateKvConfig", "deleteKvConfig",
    codes=[RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG],
)  # fmt: skip
def test_kv_entries(admin: AdminView) -> None:
    entry = ("-s", "ORDER_TOPIC_CONFIG", "-k", "Kept")
    admin.run(
        *("updateKvConfig", *entry, "-v", "broker-a:4"),
        expect="create or update kv config to namespace success.",
    )
    get = ("updateOrderConf", "-t", "Kept", "-m", "get")
    admin.run(*get, expect="orderConf=[broker-a:4]")
    admin.run("deleteKvConfig", *entry, expect="delete kv config from namespace success.")
    assert admin.refusal(*get)[0] == 22


@shows(
    "cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog",
    codes=[
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    ],
)  # fmt: skip
def test_cleaning(admin: AdminView, up: SkylarkUp) -> None:
    admin.create_topic("Kept", cluster="DefaultCluster", queues=1)
    admin.run("sendMessage", "-t", "Kept", "-p", "body", expect="SEND_OK")
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        for options in (("-b", admin.broker), CLUSTER, ()):
            assert admin.run(command, *options).strip() == "success"
    assert admin.rows("topicStatus", "-t", "Kept")[0][:4] == ["broker-a", "0", "0", "1"]


@shows(
    "exportMetadata", "exportConfigs", "exportMetrics",
    codes=[RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG],
)  # fmt: skip
def test_exports(admin: AdminView, tmp_path: Path) -> None:
    admin.create_topic("Exported", cluster="DefaultCluster", queues=6)
    admin.run("updateSubGroup", *CLUSTER, "-g", "ExportedGroup", expect="success")

    def exported(command: str, name: str) -> dict[str, dict[str, object]]:
        path = tmp_path / name
        admin.run(command, *CLUSTER, "-f", str(tmp_path), expect=f"export {path} success")
        read: dict[str, dict[str, object]] = json.loads(path.read_text())
        return read

    metadata = exported("exportMetadata", "metadata.json")
    topic = metadata["topicConfigTable"]["Exported"]
    assert isinstance(topic, dict)
    assert topic["writeQueueNums"] == 6
    assert "ExportedGroup" in metadata["subscriptionGroupTable"]
    configs = exported("exportConfigs", "configs.json")
    assert configs["clusterScale"] == {
        "namesrvSize": 1,
        "slaveBrokerSize": 0,
        "masterBrokerSize": 1,
    }
    metrics = exported("exportMetrics", "metrics.json")
    assert set(metrics) == {"evaluateReport", "totalData"}


# Groups


@shows(
    "updateSubGroup", "getConsumerConfig", "deleteSubGroup",
    codes=[
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    ],
)  # fmt: skip
def test_groups(admin: AdminView) -> None:
    admin.run(
        *("updateSubGroup", "-b", admin.broker, "-g", "Plain"),
        expect=f"create subscription group to {admin.broker} success.",
    )
    admin.run(
        *("updateSubGroup", *CLUSTER, "-g", "Made", "-r", "5", "-q", "2", "-d", "true"),
        expect="groupName=Made, consumeEnable=true, consumeFromMinEnable=false,",
    )
    shown = admin.settings("getConsumerConfig", "-g", "Made")
    assert (shown["retryMaxTimes"], shown["retryQueueNums"]) == ("5", "2")
    assert shown["consumeBroadcastEnable"] == "true"
    assert admin.settings("getConsumerConfig", "-g", "Plain")["retryMaxTimes"] == "16"
    admin.run(
        *("deleteSubGroup", "-b", admin.broker, "-g", "Plain"),
        expect=f"delete subscription group [Plain] from broker [{admin.broker}] success.",
    )
    admin.run(
        *("deleteSubGroup", *CLUSTER, "-g", "Made", "-r", "true"),
        expect=f"delete subscription group [Made] from broker [{admin.broker}] in cluster",
    )
    for group in ("Plain", "Made"):
        assert admin.run("getConsumerConfig", "-g", group).strip() == ""


@shows("updateSubGroupList", codes=[RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST])
def test_groups_from_a_file(admin: AdminView, tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(json.dumps([{"groupName": "ListedA"}, {"groupName": "ListedB", "brokerId": 1}]))
    admin.run(
        *("updateSubGroupList", "-b", admin.broker, "-f", str(path)),
        expect=f"submit batch of group config to {admin.broker} success",
    )
    assert admin.settings("getConsumerConfig", "-g", "ListedA")["brokerId"] == "0"
    assert admin.settings("getConsumerConfig", "-g", "ListedB")["brokerId"] == "1"


def test_a_group_that_was_never_online(admin: AdminView) -> None:
    """It has no retry topic, which is where mqadmin looks for it: the same on Apache's broker."""
    admin.create_topic("Lonely", cluster="DefaultCluster", queues=1)
    admin.run("updateSubGroup", *CLUSTER, "-g", "Absent", expect="success")
    no_route = (17, "No topic route info in name server for the topic: %RETRY%Absent")
    for command in ("consumerProgress", "consumerStatus", "consumerConnection"):
        assert admin.refusal(command, "-g", "Absent") == no_route
    assert admin.refusal("skipAccumulatedMessage", "-g", "Nobody", "-t", "Lonely") == (
        26,
        "Group Nobody does not exist",
    )
    code, remark = admin.refusal("producerConnection", "-g", "Nobody", "-t", "Lonely")
    assert (code, remark.split(" BROKER")[0]) == (1, "the producer group[Nobody] not exist")


@shows(
    "getColdDataFlowCtrInfo",
    "updateColdDataFlowCtrGroupConfig",
    "removeColdDataFlowCtrGroupConfig",
    codes=[
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    ],
)
def test_limits_of_cold_reads(admin: AdminView) -> None:
    broker = ("-b", admin.broker)
    admin.run(
        *("updateColdDataFlowCtrGroupConfig", *broker, "-g", "Cold", "-v", "1024"),
        expect=f"updateColdDataFlowCtrGroupConfig success, {admin.broker}",
    )
    printed = admin.run("getColdDataFlowCtrInfo", *broker, expect="runtimeTable")
    shown = json.loads(printed[printed.index("{") :])
    assert shown == {
        "runtimeTable": {},
        "configTable": {"Cold": 1024},
        "cgColdReadThreshold": 3_145_728,
        "globalColdReadThreshold": 104_857_600,
        "globalAcc": 0,
    }
    admin.run(
        *("removeColdDataFlowCtrGroupConfig", *broker, "-g", "Cold"),
        expect=f"remove broker cold read threshold success, {admin.broker}",
    )
    printed = admin.run("getColdDataFlowCtrInfo", *broker, expect="runtimeTable")
    assert json.loads(printed[printed.index("{") :])["configTable"] == {}


@shows(
    "setCommitLogReadAheadMode",
    "resetMasterFlushOffset",
    "checkRocksdbCqWriteProgress",
    "rocksDBConfigToJson",
    codes=[
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    ],
)
def test_requests_about_the_store_that_change_little(admin: AdminView) -> None:
    for mode in ("1", "0"):
        admin.run(
            *("setCommitLogReadAheadMode", "-b", admin.broker, "-m", mode),
            expect=f"set commitlog readahead mode success, mode: {mode}",
        )
    admin.run(
        *("resetMasterFlushOffset", "-b", admin.broker, "-o", "0"),
        expect="reset master flush offset to 0 success",
    )
    admin.run("checkRocksdbCqWriteProgress", *CLUSTER, expect="broker-a check doing, please wait")
    admin.run("rocksDBConfigToJson", *CLUSTER, "-t", "topics", expect="broker export done.")


# Refused by name

USER = ("-s", "User:u")
RULE = (*USER, "-r", "Topic:*", "-a", "Pub", "-d", "Allow")
BROKER = ("-b", "BROKER")  # stands for its address

#: Options with which a command gets as far as the request that is refused.
OPTIONS = {
    "createUser": (*BROKER, "-u", "u", "-p", "p"),
    "updateUser": (*BROKER, "-u", "u", "-p", "p"),
    "deleteUser": (*BROKER, "-u", "u"),
    "getUser": (*BROKER, "-u", "u"),
    "listUser": BROKER,
    "copyUser": ("-f", "BROKER", "-t", "BROKER"),
    "createAcl": (*BROKER, *RULE),
    "updateAcl": (*BROKER, *RULE),
    "deleteAcl": (*BROKER, *USER),
    "getAcl": (*BROKER, *USER),
    "listAcl": BROKER,
    "copyAcl": ("-f", "BROKER", "-t", "BROKER"),
    "exportPopRecord": BROKER,
    "addBroker": ("-c", "BROKER", "-b", "b.conf"),
    "removeBroker": ("-c", "BROKER", "-b", "DefaultCluster:broker-b:0"),
    "getBrokerEpoch": ("-b", "broker-a"),
    "switchTimerEngine": (*BROKER, "-e", "R"),
    "updateStaticTopic": (*CLUSTER, "-t", "Static", "-qn", "4"),
    "getBrokerLiteInfo": BROKER,
}
#: mqadmin keeps the reason of these to itself.
SILENT_OPTIONS = {
    "getParentTopicInfo": (),
    "getLiteTopicInfo": ("-l", "child"),
    "getLiteClientInfo": ("-g", "G", "-c", "client"),
    "getLiteGroupInfo": ("-g", "G"),
    "triggerLiteDispatch": ("-g", "G"),
}


def test_every_command_is_listed() -> None:
    printed = re.findall(r"^   (\w+) ", mqadmin_once(), re.MULTILINE)
    assert sorted(printed) == sorted(mqadmin_commands.NAMES)
    refused = mqadmin_commands.REFUSED_BY_CODE
    assert {*OPTIONS, *SILENT_OPTIONS} == refused.keys()


@pytest.mark.parametrize("command", OPTIONS)
def test_refusals(admin: AdminView, command: str) -> None:
    words = [admin.broker if word == "BROKER" else word for word in OPTIONS[command]]
    code, remark = admin.refusal(command, *words)
    refused = mqadmin_commands.REFUSED_BY_CODE[command]
    reason = f"{refused.name}: {REFUSED[refused]}"
    if refused in ACCESS_CONTROL:
        assert code == 1
        assert remark.startswith(reason)
    else:
        assert code == 3
        assert remark.startswith(f" request type {refused.value} not supported: {reason}")


@pytest.mark.parametrize("command", SILENT_OPTIONS)
def test_silent_refusals(admin: AdminView, command: str) -> None:
    admin.create_topic("Parent", cluster="DefaultCluster", queues=1)
    lines = admin.run(command, "-p", "Parent", *SILENT_OPTIONS[command]).splitlines()
    assert any("broker-a" in line and "error" in line for line in lines)
