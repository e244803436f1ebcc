"""The real mqadmin on ``skylark up``: messages, consumers and producers that are online.

The clients are real ones, too: Java's, driven by the test. What mqadmin changes is looked at from
their side where they notice, above all offsets that are set back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from skylark.wire.codes import RequestCode
from tests.interop.admin_site import AdminView, SkylarkUp
from tests.interop.broker_scenarios.table import JAVA_5
from tests.interop.driver import Client
from tests.interop.java import MqAdmin, run_program
from tests.interop.process import poll_until
from tests.interop.shown import shown_by, shows

pytestmark = pytest.mark.interop

QUEUES = 4
COUNT = 40
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkylarkUp]:
    settings = {
        "traceTopicEnable": "true",
        "enableSingleTopicRegister": "true",  # by a request of its own for each new topic
        # A message of which nobody knows the fate is soon given up.
        "transactionTimeOut": 1_000,
        "transactionCheckInterval": 1_000,
        "transactionCheckMax": 1,
    }
    with SkylarkUp(settings, folder=tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture
def admin(mqadmin: MqAdmin, up: SkylarkUp, request: pytest.FixtureRequest) -> Iterator[AdminView]:
    view = AdminView(mqadmin, up)
    yield view
    view.check(*shown_by(request.function))


class Traffic:
    """A topic with messages, their producer, and a group with one consumer that has them all."""

    def __init__(self, name: str, client: Client, namesrv: str) -> None:
        self.topic, self.group, self.producers = name, f"{name}_group", f"{name}_producers"
        self.consumer, self.producer = f"{name}_c", f"{name}_p"
        self._client = client
        self._namesrv = namesrv
        self.sent: list[tuple[str, int, int, str]] = []  # key, queue, offset, id

    def start(self) -> None:
        call, namesrv = self._client.call, self._namesrv
        call("producer", name=self.producer, group=self.producers, namesrv=namesrv)
        self.send(COUNT)
        self.consume()
        self.wait_got(COUNT)

    def send(self, count: int) -> None:
        results = self._client.call(
            "send", name=self.producer, topic=self.topic, how="sync", tags="A,B", count=count,
            first=len(self.sent),
        )  # fmt: skip
        self.sent += [(key, queue, offset, msg_id) for key, queue, offset, msg_id in results]

    def begin_transaction(self) -> None:
        call, name = self._client.call, f"{self.producer}_t"
        call("producer", name=name, group=name, namesrv=self._namesrv, transactional="yes")
        assert (
            call("transaction", name=name, topic=self.topic, first=0, answer="UNKNOW") == "SEND_OK"
        )

    def consume(self) -> None:
        options = {"group": self.group, "topic": self.topic, "namesrv": self._namesrv}
        self._client.call("push", name=self.consumer, **options)

    def stop_consumer(self) -> None:
        self._client.call("stop", name=self.consumer)

    def wait_got(self, count: int) -> None:
        self._client.wait_got([self.consumer], count, timeout_s=TIMEOUT_S)

    def got(self) -> int:
        return len(self._client.got(self.consumer))

    def stop(self) -> None:
        for name in (self.consumer, self.producer, f"{self.producer}_t"):
            self._client.call("stop", name=name)


@pytest.fixture
def traffic(
    admin: AdminView, client_of: Callable[[str], Client], request: pytest.FixtureRequest
) -> Iterator[Traffic]:
    made = Traffic(request.node.name.removeprefix("test_"), client_of(JAVA_5), admin.namesrv)
    admin.create_topic(made.topic, cluster="DefaultCluster", queues=QUEUES)
    made.start()
    yield made
    made.stop()


def progress(admin: AdminView, traffic: Traffic) -> dict[int, tuple[int, int]]:
    """Broker offset and consumer offset by queue, as consumerProgress shows them."""
    rows = admin.rows("consumerProgress", "-g", traffic.group, "-t", traffic.topic)
    return {int(row[2]): (int(row[3]), int(row[4])) for row in rows}


def wait_progress(admin: AdminView, traffic: Traffic, wanted: int) -> None:
    """Until all queues are consumed up to an offset: clients tell theirs every few seconds."""
    expected = dict.fromkeys(range(QUEUES), (wanted, wanted))
    poll_until(
        lambda: progress(admin, traffic) == expected,
        timeout_s=TIMEOUT_S,
        what=f"progress {expected}",
    )


# Messages


@shows(
    "sendMessage", "queryMsgById", "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset",
    codes=[
        RequestCode.SEND_MESSAGE_V2, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.PULL_MESSAGE, RequestCode.CONSUME_MESSAGE_DIRECTLY,
    ],
)  # fmt: skip
def test_queries(admin: AdminView, traffic: Traffic) -> None:
    send = ("sendMessage", "-t", traffic.topic, "-p", "the body", "-k", "the-key", "-c", "TagX")
    ((broker, queue_id, status, unique_id),) = admin.rows(*send, "-b", "broker-a", "-i", "1")
    assert (broker, queue_id, status) == ("broker-a", "1", "SEND_OK")
    traffic.wait_got(COUNT + 1)

    def message(command: str, *options: str) -> dict[str, str]:
        printed = admin.run(command, *options, expect="Message Body Path:")
        return dict(re.findall(r"^([A-Z][\w ]*): +(.*?) *$", printed, re.MULTILINE))

    in_topic = ("-t", traffic.topic)
    shown = message("queryMsgByUniqueKey", *in_topic, "-i", unique_id)
    assert shown["Topic"] == traffic.topic
    assert (shown["Tags"], shown["Keys"]) == ("[TagX]", "[the-key]")
    assert (shown["Queue ID"], shown["Queue Offset"]) == ("1", str(COUNT // QUEUES))
    assert shown["Store Host"] == admin.broker
    assert f"UNIQ_KEY={unique_id}" in shown["Properties"]
    place = ("-b", "broker-a", "-i", "1", "-o", shown["Queue Offset"])
    by_offset = message("queryMsgByOffset", *in_topic, *place)
    assert by_offset["CommitLog Offset"] == shown["CommitLog Offset"]
    for message_id in (by_offset["OffsetID"], unique_id):
        by_id = message("queryMsgById", *in_topic, "-i", message_id)
        assert by_id["CommitLog Offset"] == shown["CommitLog Offset"]
        assert by_id["OffsetID"] == by_offset["OffsetID"]
    rows = admin.rows("queryMsgByKey", *in_topic, "-k", "the-key")
    assert [row[:3] for row in rows] == [[unique_id, "1", shown["Queue Offset"]]]
    code, remark = admin.refusal("queryMsgByKey", *in_topic, "-k", "no-such-key")
    assert (code, remark) == (208, "query message by key finished, but no message.")

    # A message is given to a consumer once more.
    (client_id,) = {row[0] for row in admin.rows("consumerConnection", "-g", traffic.group)[:1]}
    admin.run(
        *("queryMsgByUniqueKey", *in_topic, "-i", unique_id, "-g", traffic.group, "-d", client_id),
        expect="ConsumeMessageDirectlyResult [order=false, autoCommit=true, "
        "consumeResult=CR_SUCCESS, remark=null",
    )
    traffic.wait_got(COUNT + 2)


@shows(
    "printMsg", "printMsgByQueue", "consumeMessage", "queryCq", "sendMsgStatus", "checkMsgSendRT",
    codes=[
        RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET,
        RequestCode.QUERY_CONSUME_QUEUE,
    ],
)  # fmt: skip
def test_reading_and_sending(admin: AdminView, traffic: Traffic) -> None:
    ids = {msg_id for _, _, _, msg_id in traffic.sent}
    in_topic = ("-t", traffic.topic)

    def printed_ids(command: str, *options: str) -> list[str]:
        return re.findall(r"^MSGID: (\w+)", admin.run(command, *in_topic, *options), re.MULTILINE)

    assert sorted(printed_ids("printMsg", "-d", "true")) == sorted(ids)
    assert len(printed_ids("printMsg", "-s", "A")) == COUNT // 2
    in_first = {msg_id for _, queue, _, msg_id in traffic.sent if queue == 0}
    first = ("-a", "broker-a", "-i", "0")
    assert set(printed_ids("printMsgByQueue", *first, "-p", "true")) == in_first
    assert sorted(printed_ids("consumeMessage")) == sorted(ids)
    some = printed_ids("consumeMessage", "-b", "broker-a", "-i", "0", "-o", "2", "-c", "3")
    wanted = {
        msg_id for _, queue, offset, msg_id in traffic.sent if queue == 0 and 2 <= offset <= 4
    }
    assert set(some) == wanted

    printed = admin.run("queryCq", *in_topic, "-b", admin.broker, "-q", "0", "-i", "0", "-c", "3")
    assert f"max: {COUNT // QUEUES}, min: 0" in printed
    assert len(re.findall(r"physicOffset=\d+, physicSize=\d+, tagsCode=6[56],", printed)) == 3

    sent = admin.run("sendMsgStatus", "-b", "broker-a", "-s", "128", "-c", "3")
    assert sent.count("sendStatus=SEND_OK") == 3
    rows = admin.rows("checkMsgSendRT", *in_topic, "-a", "4", "-s", "64")
    assert [row[:3] for row in rows[:-1]] == [["broker-a", str(n), "true"] for n in range(4)]
    assert rows[-1][:2] == ["Avg", "RT:"]


@shows("sendMessage", "queryMsgTraceById", codes=[RequestCode.QUERY_MESSAGE])
def test_trace(admin: AdminView) -> None:
    admin.create_topic("Traced", cluster="DefaultCluster", queues=1)
    ((_, _, status, message_id),) = admin.rows(
        "sendMessage", "-t", "Traced", "-p", "x", "-m", "true"
    )
    assert status == "SEND_OK"

    def trace() -> list[list[str]] | None:
        printed = admin.raw("queryMsgTraceById", "-i", message_id)
        if "no message" in printed:
            return None  # it is sent behind the message
        return [line.split() for line in printed.splitlines() if line.startswith("Pub")]

    ((kind, *_, status),) = poll_until(trace, timeout_s=TIMEOUT_S, what="the trace of a message")
    assert (kind, status) == ("Pub", "success")


# Who is online


@shows(
    "consumerProgress", "consumerStatus", "consumerConnection", "producerConnection", "producer",
    codes=[
        RequestCode.GET_CONSUME_STATS, RequestCode.GET_CONSUMER_CONNECTION_LIST,
        RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.GET_PRODUCER_CONNECTION_LIST,
        RequestCode.GET_ALL_PRODUCER_INFO,
    ],
)  # fmt: skip
def test_clients(admin: AdminView, traffic: Traffic) -> None:
    group = ("-g", traffic.group)
    wait_progress(admin, traffic, COUNT // QUEUES)
    printed = admin.run("consumerProgress", *group, "-s", "true")
    assert "Consume Diff Total: 0" in printed
    (in_list,) = (row for row in admin.rows("consumerProgress") if row[0] == traffic.group)
    assert in_list[1:5] == ["1", "V5_5_0", "PUSH", "CLUSTERING"]

    printed = admin.run("consumerConnection", *group, expect="ConsumeType: CONSUME_PASSIVELY")
    client_id, _, language, version = printed.splitlines()[1].split()
    assert (language, version) == ("JAVA", "V5_5_0")
    assert client_id.endswith(f"@{traffic.consumer}")
    subscriptions = re.findall(r"^(\S+) +(\S+)$", printed, re.MULTILINE)
    assert {(traffic.topic, "*"), (f"%RETRY%{traffic.group}", "*")} <= set(subscriptions)
    assert "MessageModel: CLUSTERING\nConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed

    printed = admin.run("consumerStatus", *group, expect=client_id)
    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed
    printed = admin.run("consumerStatus", *group, "-i", client_id, "-s", "true")
    assert "#Consumer Properties#" in printed
    assert "PROP_CONSUME_TYPE                       : CONSUME_PASSIVELY" in printed
    assert "#Consumer jstack#" in printed

    printed = admin.run("producerConnection", "-g", traffic.producers, "-t", traffic.topic)
    number, client_id, _, language, version = printed.split()
    assert (number, language, version) == ("0001", "JAVA", "V5_5_0")
    assert client_id.endswith(f"@{traffic.producer}")
    line = f"producer group ({traffic.producers}) instance : clientId={client_id},"
    assert line in admin.run("producer", "-b", admin.broker)


@shows(
    "statsAll", "brokerConsumeStats",
    codes=[
        RequestCode.VIEW_BROKER_STATS_DATA, RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    ],
)  # fmt: skip
def test_statistics(admin: AdminView, traffic: Traffic) -> None:
    wait_progress(admin, traffic, COUNT // QUEUES)
    (row,) = admin.rows("statsAll", "-t", traffic.topic)
    assert row[:3] == [traffic.topic, traffic.group, "0"]
    assert row[5:] == [str(COUNT), str(COUNT)]
    assert row[:2] in [each[:2] for each in admin.rows("statsAll")]
    rows = admin.rows("brokerConsumeStats", "-b", admin.broker)
    offset = str(COUNT // QUEUES)
    assert [row[2:7] for row in rows if row[:2] == [traffic.topic, traffic.group]] == [
        ["broker-a", str(queue_id), offset, offset, "0"] for queue_id in range(QUEUES)
    ]


@shows("allocateMQ", "setConsumeMode", codes=[RequestCode.SET_MESSAGE_REQUEST_MODE])
def test_queues_and_modes(admin: AdminView, traffic: Traffic) -> None:
    printed = admin.run("allocateMQ", "-t", traffic.topic, "-i", "192.0.2.1,192.0.2.9")
    shares = json.loads(printed)["result"]
    assert {host: len(queues) for host, queues in shares.items()} == {
        "192.0.2.1": 2,
        "192.0.2.9": 2,
    }
    queues = {queue["queueId"] for share in shares.values() for queue in share}
    assert queues == set(range(QUEUES))
    mode = ("setConsumeMode", "-t", traffic.topic, "-g", traffic.group)
    for options in (("-b", admin.broker), ("-c", "DefaultCluster")):
        admin.run(
            *(*mode, *options, "-m", "PULL", "-q", "0"),
            expect=f"set consume mode to {admin.broker} success.",
        )
    printed = admin.run(
        *(*mode, "-b", admin.broker, "-m", "POP", "-q", "2"),
        expect=f"set consume mode to {admin.broker} success.",
    )
    assert "consume mode[POP] popShareQueueNum[2]" in printed


# Offsets


@shows(
    "resetOffsetByTime", "skipAccumulatedMessage",
    codes=[RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.RESET_CONSUMER_CLIENT_OFFSET],
)  # fmt: skip
def test_offsets_are_set_back_and_forth(admin: AdminView, traffic: Traffic) -> None:
    end = COUNT // QUEUES
    wait_progress(admin, traffic, end)
    reset = ("resetOffsetByTime", "-g", traffic.group, "-t", traffic.topic)

    def offsets(*command: str) -> dict[int, int]:
        return {int(row[1]): int(row[2]) for row in admin.rows(*command, expect="#brokerName")}

    # The consumer is online, and starts over.
    assert offsets(*reset, "-s", "0") == dict.fromkeys(range(QUEUES), 0)
    traffic.wait_got(2 * COUNT)
    wait_progress(admin, traffic, end)

    # Nobody is online: the broker keeps it for who comes next.
    traffic.stop_consumer()
    assert offsets(*reset, "-s", "0") == dict.fromkeys(range(QUEUES), 0)
    assert offsets(*reset, "-s", "-1") == dict.fromkeys(range(QUEUES), end)
    traffic.send(COUNT)
    skip = ("skipAccumulatedMessage", "-g", traffic.group, "-t", traffic.topic)
    assert offsets(*skip) == dict.fromkeys(range(QUEUES), 2 * end)
    traffic.consume()
    wait_progress(admin, traffic, 2 * end)
    assert traffic.got() == 2 * COUNT
    assert offsets(*reset, "-s", "now") == dict.fromkeys(range(QUEUES), 2 * end)


@shows(
    "cloneGroupOffset", codes=[RequestCode.GET_CONSUME_STATS, RequestCode.UPDATE_CONSUMER_OFFSET]
)
def test_offsets_are_cloned(admin: AdminView, traffic: Traffic) -> None:
    wait_progress(admin, traffic, COUNT // QUEUES)
    clone = ("cloneGroupOffset", "-s", traffic.group, "-t", traffic.topic, "-d")
    code, remark = admin.refusal(*clone, "Unknown")
    assert (code, remark.split(" BROKER")[0]) == (26, "Group Unknown not exist!")
    admin.run("updateSubGroup", "-c", "DefaultCluster", "-g", "Cloned", expect="success")
    admin.run(*clone, "Cloned", expect=f"clone group offset success. srcGroup[{traffic.group}]")
    rows = admin.rows("brokerConsumeStats", "-b", admin.broker)
    offset = str(COUNT // QUEUES)
    assert [row[4:6] for row in rows if row[:2] == [traffic.topic, "Cloned"]] == [
        [offset, offset] for _ in range(QUEUES)
    ]


# Calls of the Java interface for tools that no command makes


def given_up_message(admin: AdminView, traffic: Traffic) -> str:
    """Send one whose transaction stays open; where it is, when the broker has put it aside."""
    traffic.begin_transaction()
    place = ("-t", "TRANS_CHECK_MAX_TIME_TOPIC", "-b", "broker-a", "-i", "0", "-o", "0")
    found = poll_until(
        lambda: re.search(r"OffsetID: +(\w+)", admin.raw("queryMsgByOffset", *place)),
        timeout_s=60,
        what="a message that was given up",
    )
    return found.group(1)


@shows(
    codes=[
        RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.GET_EARLIEST_MSG_STORETIME, RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.QUERY_CONSUME_TIME_SPAN, RequestCode.QUERY_TOPICS_BY_CONSUMER,
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, RequestCode.QUERY_CORRECTION_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        # of clients
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        # of the name server
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_KVLIST_BY_NAMESPACE, RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.GET_UNIT_TOPIC_LIST, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    ],
)  # fmt: skip
def test_calls_without_command(admin: AdminView, traffic: Traffic) -> None:
    wait_progress(admin, traffic, COUNT // QUEUES)
    cluster = ("-c", "DefaultCluster")
    admin.run("updateTopic", *cluster, "-t", "InUnit", "-u", "true", expect="success")
    admin.run("updateSubGroup", *cluster, "-g", "CalledClone", expect="success")
    admin.run(
        *("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Called", "-v", "broker-a:4"),
        expect="success",
    )
    admin.create_topic("Asked", cluster="DefaultCluster", queues=1)
    options = {
        "namesrv": admin.namesrv,
        "broker": admin.broker,
        "topic": traffic.topic,
        "group": traffic.group,
        "clone": "CalledClone",
        "requests": "Asked",
        "half": given_up_message(admin, traffic),
    }
    records = run_program("AdminCalls", options)
    failed = [record for record in records if record["event"] != "answered"]
    assert failed == []
    results = {str(record["call"]): record["result"] for record in records}
    assert results["send"] == "SEND_OK"
    assert results["request"] == "reply"
    spans = results["queryConsumeTimeSpan"]
    assert isinstance(spans, dict)
    assert sorted(spans) == ["0", "1", "2", "3"]
    assert spans["0"][0] == results["earliestMsgStoreTime"]
    topics = results["queryTopicsByConsumer"]
    assert isinstance(topics, list)
    assert set(topics) - {f"%RETRY%{traffic.group}"} == {traffic.topic}
    assert results["querySubscription"] == "*"
    status = results["getConsumeStatus"]
    assert isinstance(status, dict)
    assert [client.rpartition("@")[2] for client in status] == [traffic.consumer]
    correction = results["queryCorrectionOffset"]
    assert isinstance(correction, dict)
    assert {key: correction[key] for key in "123"} == dict.fromkeys("123", COUNT // QUEUES)
    assert results["cloneGroupOffset"] == "done"
    assert results["updateAndGetGroupReadForbidden"] is True
    assert results["examineSubscriptionGroupConfig"] == 16
    assert results["getSubscriptionGroupConfig"] == 16
    assert results["resumeCheckHalfMessage"] is True
    system = results["getSystemTopicListFromBroker"]
    assert isinstance(system, list)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "rmq_sys_wheel_timer"} <= set(system)
    # These are the name server's.
    assert results["getSystemTopicList"] == system
    assert results["fetchTopicsByCLuster"] is True
    assert results["getKVListByNamespace"] == {"Called": "broker-a:4"}
    assert results["getUnitTopicList"] == ["InUnit"]
    assert results["getHasUnitSubTopicList"] == []
    assert results["getHasUnitSubUnUnitTopicList"] == []
