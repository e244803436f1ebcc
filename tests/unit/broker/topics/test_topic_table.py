"""Topics: made at start and by use, changed by administrators, told to name servers and slaves."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from skylark.broker.table_pages import PageRequest
from skylark.broker.topics.topic_table import (
    QUEUE_COUNT_MAX,
    TopicChange,
    TopicTable,
    describe,
    system_topics,
)
from skylark.core.errors import BrokerError, InvalidParameterError
from skylark.store import config_tables
from skylark.store.config_files import TOPICS
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import CreateTopicListRequestBody, TopicConfig
from skylark.wire.bodies.register import RegisterBrokerBody
from skylark.wire.bodies.slave_sync_body import TopicConfigAndMappingSerializeWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.tables import GOLDEN, NOW_MS, SteppingClock, live_settings, recorded


class Topics(TopicTable):
    """A table that records the changes that it publishes."""

    def __init__(self, **settings: str) -> None:
        self.clock = SteppingClock()
        self.settings = live_settings(**settings)
        super().__init__(self.settings, self.clock)
        self.published: list[TopicChange] = []
        self.changes.subscribe(self.published.append)

    @property
    def registered(self) -> list[str]:
        return [topic.topic_name for change in self.published for topic in change.register]


def topic(name: str, queues: int = 4, **fields: object) -> TopicConfig:
    config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
    for field, value in fields.items():
        setattr(config, field, value)
    return config


def send(table: TopicTable, name: str, queues: int, default: str = "TBW102") -> TopicConfig | None:
    return table.create_on_send(name, default_topic=default, queue_count=queues)


# --- at start ---


def test_a_real_broker_starts_with_the_same_topics() -> None:
    """That of ``store-basic``, whose timer was off; the others in its file were made later."""
    theirs = TOPICS.decode((GOLDEN / "store-basic/config/topics.json").read_bytes())
    ours = {t.topic_name: t for t in system_topics(live_settings(timerWheelEnable="false").current)}
    made_later = {
        name
        for name in theirs.topic_config_table
        if name.startswith(("Golden", "%RETRY%golden", "%DLQ%golden"))
    }
    assert len(made_later) == theirs.data_version.counter == 12  # one step for each
    assert {
        name: config for name, config in theirs.topic_config_table.items() if name not in made_later
    } == ours


def test_a_real_broker_registers_the_same_topics_at_start() -> None:
    frames = recorded("broker-registration", RequestCode.REGISTER_BROKER)
    body = next(command.body for is_request, command in frames if is_request)
    theirs = decode_body(RegisterBrokerBody, body or b"").topic_config_serialize_wrapper
    table = Topics()
    ours = table.registration()
    assert ours.topic_config_table == theirs.topic_config_table
    assert theirs.data_version.counter == table.version.counter == 0
    assert ours.mapping_data_version == DataVersion(timestamp=NOW_MS)


@pytest.mark.parametrize(
    ("settings", "name", "expected"),
    [
        ({"autoCreateTopicEnable": "false"}, "TBW102", None),
        ({"defaultTopicQueueNums": "3"}, "TBW102", (3, 7)),
        ({"clusterTopicEnable": "false"}, "DefaultCluster", (16, 1)),
        ({"brokerTopicEnable": "false"}, "broker-a", (1, 1)),
        ({}, "RMQ_SYS_TRACE_TOPIC", None),
        ({"traceTopicEnable": "true"}, "RMQ_SYS_TRACE_TOPIC", (1, 6)),
        ({"traceTopicEnable": "true", "msgTraceTopicName": "Trace"}, "Trace", (1, 6)),
        ({"timerWheelEnable": "false"}, "rmq_sys_wheel_timer", None),
        ({"reviveQueueNum": "2"}, "rmq_sys_REVIVE_LOG_DefaultCluster", (2, 6)),
        ({"brokerClusterName": "c"}, "c_REPLY_TOPIC", (1, 6)),
    ],
)
def test_settings_decide_on_system_topics(
    settings: dict[str, str], name: str, expected: tuple[int, int] | None
) -> None:
    found = Topics(**settings).get(name)
    assert (found and (found.write_queue_nums, found.perm)) == expected


def test_what_counts_as_a_system_topic() -> None:
    table = Topics(traceTopicEnable="true", msgTraceTopicName="Trace")
    for name in (
        "TBW102",
        "CHECKPOINT_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "DefaultCluster",
        "broker-a",
        "Trace",
        "rmq_sys_anything",
    ):
        assert table.is_system(name), name
    assert not table.is_system("T")
    assert "CHECKPOINT_TOPIC" in table.system_names
    assert "CHECKPOINT_TOPIC" not in table


# --- created by use ---


@pytest.mark.spec("broker.13.4")
def test_a_send_creates_its_topic() -> None:
    table = Topics()
    created = send(table, "T", 4)
    assert created == TopicConfig(
        topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=6, topic_sys_flag=0
    )
    wide = send(table, "Wide", 32)
    assert wide is not None
    assert (wide.read_queue_nums, wide.write_queue_nums) == (8, 8)
    assert table.registered == ["T", "Wide"]
    assert table.version == DataVersion(counter=2, timestamp=NOW_MS)
    assert send(table, "T", 7) is created  # it is there now
    assert table.version.counter == 2
    assert send(Topics(autoCreateTopicEnable="false"), "T", 4) is None


def test_a_send_creates_what_a_real_broker_created() -> None:
    """``FrameAuto`` was asked for with four queues, as the fourth topic of its broker."""
    requests = [c for is_request, c in recorded("send-autocreate", 310) if is_request]
    ext = requests[0].ext or {}
    table = Topics()
    for name in ("FrameA", "FrameOrder", "FrameTx"):
        send(table, name, 1)
    created = send(table, ext["b"], int(ext["d"]), ext["c"])
    registrations = [
        decode_body(RegisterBrokerBody, command.body or b"").topic_config_serialize_wrapper
        for is_request, command in recorded("broker-registration", RequestCode.REGISTER_BROKER)
        if is_request
    ]
    (theirs,) = (r for r in registrations if r.topic_config_table.keys() == {"FrameAuto"})
    assert created is not None
    ours = table.registration([created])
    assert ours.topic_config_table == theirs.topic_config_table
    assert ours.data_version.counter == theirs.data_version.counter == 4


def test_a_topic_inherits_from_any_topic_that_allows_it() -> None:
    table = Topics()
    assert send(table, "A", 99, "DefaultCluster") == topic("A", 16)
    assert send(table, "B", 99, "SELF_TEST_TOPIC") is None  # not to be inherited from
    assert send(table, "B", 99, "NoSuchTopic") is None
    assert send(table, "C", -3) == topic("C", 0)
    assert table.registered == ["A", "C"]


def test_a_template_from_a_file_does_not_outlive_the_setting() -> None:
    table = Topics(autoCreateTopicEnable="false")
    stored = Topics().snapshot()
    table.load(stored)
    assert "TBW102" in table
    assert send(table, "T", 4) is None
    assert stored.topic_config_table["TBW102"].perm == 7  # nothing was changed in place


def test_auto_creation_can_be_switched_while_running() -> None:
    table = Topics()
    table.settings.update("autoCreateTopicEnable=false\n", NOW_MS)
    assert send(table, "T", 4) is None
    table.settings.update("autoCreateTopicEnable=true\n", NOW_MS)
    assert send(table, "T", 4) == topic("T")


def test_unit_mode_leaves_a_flag() -> None:
    table = Topics()
    flags = {}
    for name in ("T", "%RETRY%G"):
        created = table.create_on_send(name, default_topic="TBW102", queue_count=1, unit_mode=True)
        flags[name] = created and created.topic_sys_flag
    assert flags == {"T": 1, "%RETRY%G": 2}


def test_a_retry_topic_exists_when_it_is_needed() -> None:
    table = Topics(autoCreateTopicEnable="false")
    assert send(table, "%RETRY%G", 4) == topic("%RETRY%G", 1)
    assert send(table, "%DLQ%G", 4) is None
    assert table.ensure("%DLQ%G", queue_count=1) == topic("%DLQ%G", 1)
    assert table.ensure("%RETRY%H", queue_count=3) == topic("%RETRY%H", 3)
    assert table.ensure("%RETRY%H", queue_count=9) == topic("%RETRY%H", 3)  # stays
    assert table.registered == ["%RETRY%G", "%DLQ%G", "%RETRY%H"]
    assert table.version.counter == 3


def test_the_order_flag_of_a_retry_topic_is_corrected() -> None:
    table = Topics()
    table.ensure("%RETRY%G", queue_count=1)
    assert table.ensure("%RETRY%G", queue_count=1, order=True) == topic("%RETRY%G", 1, order=True)
    assert table.is_order("%RETRY%G")
    assert table.version.counter == 2
    assert table.published[1] == TopicChange()  # to be written, but not registered at once
    assert not table.is_order("%RETRY%other")


def test_topics_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    table = Topics()
    table.settings.update(f"topicCountMax={len(table) + 1}\n", NOW_MS)
    assert send(table, "T", 1) is not None
    with caplog.at_level(logging.WARNING):
        assert send(table, "U", 1) is None
        assert table.ensure("%RETRY%G", queue_count=1) is None
    assert "raise topicCountMax" in caplog.text
    with pytest.raises(BrokerError, match="raise topicCountMax"):
        table.update(topic("V"))
    assert table.update(topic("T", 2))  # no further one


# --- changed by administrators ---


def test_a_topic_is_created_and_replaced() -> None:
    table = Topics()
    assert table.update(topic("T", perm=6), "+message.type=FIFO")
    assert table.get("T") == topic("T", attributes={"message.type": "FIFO"})
    assert table.update(topic("T", 9, perm=4, order=True, topic_sys_flag=1), "")
    assert table.get("T") == topic(
        "T", 9, perm=4, order=True, topic_sys_flag=1, attributes={"message.type": "FIFO"}
    )
    assert table.registered == ["T", "T"]
    assert table.version.counter == 2


def test_asking_for_what_is_there_is_no_change() -> None:
    table = Topics()
    table.update(topic("T"))
    assert not table.update(topic("T"), "")
    assert (table.version.counter, len(table.published)) == (1, 1)


def test_java_compares_attributes_with_their_signs() -> None:
    """So these count as changes, although the topic is the same afterwards."""
    table = Topics()
    table.update(topic("T"), "+message.type=FIFO")
    before = table.get("T")
    assert table.update(topic("T"), "+message.type=FIFO")
    assert table.update(topic("T"), None)
    assert table.get("T") == before
    assert table.version.counter == 3


@pytest.mark.parametrize(
    ("requested", "attributes", "remark"),
    [
        (topic(" "), "", "The specified topic is blank."),
        (
            topic("a.b"),
            "",
            "The specified topic: a.b, contains illegal characters,"
            " allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (topic("TBW102"), "nonsense", "The topic[TBW102] is conflict with system topic."),
        (topic("broker-a"), "", "The topic[broker-a] is conflict with system topic."),
        (topic("T"), "+message.type=MIXED", "MIXED message type is not supported."),
        (topic("T", -1), "", f"-1 queues for topic T: 0 to {QUEUE_COUNT_MAX} are possible"),
        (topic("T", 65537), "", f"65537 queues for topic T: 0 to {QUEUE_COUNT_MAX} are possible"),
    ],
)
def test_topics_that_cannot_be(requested: TopicConfig, attributes: str, remark: str) -> None:
    table = Topics()
    with pytest.raises(InvalidParameterError) as caught:
        table.update(requested, attributes)
    assert (caught.value.code, caught.value.remark) == (29, remark)
    assert table.published == []


def test_a_real_broker_refuses_system_topics_in_the_same_words() -> None:
    table = Topics()
    attempts: dict[int, Callable[[], object]] = {
        RequestCode.UPDATE_AND_CREATE_TOPIC: lambda: table.update(topic("TBW102")),
        RequestCode.DELETE_TOPIC_IN_BROKER: lambda: table.delete("TBW102", []),
    }
    for code, attempt in attempts.items():
        (answer,) = (c for is_request, c in recorded("errors", code) if not is_request)
        with pytest.raises(InvalidParameterError) as caught:
            attempt()
        assert (caught.value.code, caught.value.remark) == (answer.code, answer.remark)


def test_wrong_attributes_are_code_1() -> None:
    table = Topics()
    for attributes in ("+no.such=1", "-message.type", "+a"):
        with pytest.raises(BrokerError) as caught:
            table.update(topic("T"), attributes)
        assert caught.value.code == 1
    assert "T" not in table


def test_what_settings_allow_goes() -> None:
    table = Topics(enableMixedMessageType="true", validateSystemTopicWhenUpdateTopic="false")
    assert table.update(topic("T"), "+message.type=MIXED")
    assert table.update(topic("TBW102", 2))
    assert table.delete("TBW102", []) == ["TBW102"]


def test_several_topics_at_once() -> None:
    table = Topics()
    body = CreateTopicListRequestBody(
        topic_config_list=[topic("A"), topic("B", attributes={"+message.type": "FIFO"})]
    )
    sent = decode_body(CreateTopicListRequestBody, encode_body(body))
    assert table.update_all(sent.topic_config_list)
    assert table.get("B") == topic("B", attributes={"message.type": "FIFO"})
    assert table.registered == ["A", "B"]
    assert (table.version.counter, len(table.published)) == (2, 1)
    assert not table.update_all([])


def test_one_unchanged_topic_stops_the_whole_list() -> None:
    table = Topics()
    table.update(topic("A"))
    assert not table.update_all([topic("B"), topic("A"), topic("C")])
    assert "B" not in table
    assert "C" not in table
    assert table.version.counter == 1


def test_one_bad_topic_stops_the_whole_list() -> None:
    table = Topics()
    for bad, code in (
        (topic("a.b"), 29),
        (topic("TBW102"), 29),
        (topic("C", attributes={"+no": "1"}), 1),
    ):
        with pytest.raises(BrokerError) as caught:
            table.update_all([topic("A"), bad])
        assert caught.value.code == code
    assert "A" not in table
    assert table.published == []


def test_a_topic_twice_in_a_list_counts_twice() -> None:
    table = Topics()
    table.update_all([topic("A", 1), topic("A", 2, attributes={"+message.type": "FIFO"})])
    assert table.get("A") == topic("A", 2, attributes={"message.type": "FIFO"})
    assert table.version.counter == 2


@pytest.mark.spec("broker.13.23")
def test_a_deleted_topic_takes_its_pop_retry_topics_along() -> None:
    table = Topics()
    table.update(topic("T"))
    for name in ("%RETRY%G_T", "%RETRY%G+T", "%RETRY%G", "%RETRY%H_T"):
        table.ensure(name, queue_count=1)
    version = table.version.counter
    assert table.delete("T", ["G"]) == ["T", "%RETRY%G+T", "%RETRY%G_T"]
    assert {name for name in ("T", "%RETRY%G", "%RETRY%G_T", "%RETRY%H_T") if name in table} == {
        "%RETRY%G",
        "%RETRY%H_T",
    }
    assert table.version.counter == version + 3
    assert [change.deleted for change in table.published[-3:]] == [
        ("T",),
        ("%RETRY%G+T",),
        ("%RETRY%G_T",),
    ]


def test_retry_topics_can_be_kept() -> None:
    table = Topics(clearRetryTopicWhenDeleteTopic="false")
    table.update(topic("T"))
    table.ensure("%RETRY%G_T", queue_count=1)
    assert table.delete("T", ["G"]) == ["T"]
    assert "%RETRY%G_T" in table


def test_deleting_what_is_not_there() -> None:
    table = Topics()
    assert table.delete("T", ["G"]) == ["T"]  # its data may be there
    assert table.published == []
    with pytest.raises(InvalidParameterError, match=r"^The specified topic is blank\.$"):
        table.delete(" ", [])


def test_name_servers_mark_topics_as_ordered() -> None:
    table = Topics()
    table.update_all([topic("A"), topic("B"), topic("C", order=True)])
    assert table.apply_order_table({"A": "b:4", "C": "b:4", "unknown": "b:4"})
    assert [table.is_order(name) for name in "ABC"] == [True, False, True]
    assert (table.version.counter, table.published[-1]) == (4, TopicChange())
    assert not table.apply_order_table({"A": "b:4"})
    assert table.version.counter == 4


# --- for name servers, slaves and the disk ---


@pytest.mark.parametrize(
    ("permission", "perms"),
    [("6", [6, 7]), ("7", [6, 7]), ("4", [4, 4]), ("2", [2, 2]), ("0", [0, 0])],
)
def test_the_broker_registers_no_more_than_it_permits(permission: str, perms: list[int]) -> None:
    table = Topics(brokerPermission=permission)
    send(table, "T", 1)
    registered = table.registration().topic_config_table
    assert [registered[name].perm for name in ("T", "TBW102")] == perms
    assert [t.perm for t in table if t.topic_name in ("T", "TBW102")] == [7, 6]


def test_a_changed_permission_raises_the_version() -> None:
    table = Topics()
    table.renew_version()
    assert (table.version.counter, table.published) == (1, [TopicChange()])


@pytest.mark.spec("remoting.10.24")
def test_the_table_is_handed_out_whole_or_in_pages() -> None:
    table = Topics()
    total = len(table)
    whole = table.page(PageRequest())
    assert len(whole.topic_config_table) == total
    first = table.page(PageRequest(seq=0, data_version="", count=2))
    version = encode_body(first.data_version).decode()
    second = table.page(PageRequest(seq=2, data_version=version, count=2))
    names = sorted(whole.topic_config_table)
    assert list(first.topic_config_table) == names[:2]
    assert list(second.topic_config_table) == names[2:4]
    send(table, "T", 1)
    stale = table.page(PageRequest(seq=4, data_version=version, count=2))
    assert list(stale.topic_config_table) == sorted([*names, "T"])[:2]
    assert stale.data_version.counter == 1
    table.settings.update("enableSplitMetadata=false\n", NOW_MS)
    assert len(table.page(PageRequest(seq=0, count=2)).topic_config_table) == total + 1


def test_a_slave_gets_what_a_real_one_got() -> None:
    (_, request), (_, answer) = recorded("slave-sync", RequestCode.GET_ALL_TOPIC_CONFIG)
    theirs = decode_body(TopicConfigAndMappingSerializeWrapper, answer.body or b"")
    table = Topics()
    table.load(TOPICS.decode(answer.body or b""))
    ext = request.ext or {}
    ours = table.page(
        PageRequest(
            seq=int(ext["topicSeq"]),
            data_version=ext["dataVersion"],
            count=int(ext["maxTopicNum"]),
        )
    )
    assert ours.topic_config_table == theirs.topic_config_table
    assert ours.data_version == theirs.data_version
    assert str(len(table)) == (answer.ext or {})["totalTopicNum"]


def test_a_table_of_a_real_broker_comes_back_as_it_was() -> None:
    stored = TOPICS.decode((GOLDEN / "store-basic/config/topics.json").read_bytes())
    table = Topics(timerWheelEnable="false")
    table.load(stored)
    assert table.snapshot() == stored
    assert table.published == []


def test_a_missing_file_changes_nothing() -> None:
    table = Topics()
    before = table.snapshot()
    table.load(TOPICS.table_type())
    assert table.snapshot() == before


def test_a_snapshot_does_not_follow_the_table() -> None:
    table = Topics()
    before = table.snapshot()
    send(table, "T", 1)
    assert "T" not in before.topic_config_table
    assert before.data_version.counter == 0


def test_topics_in_the_words_of_a_real_broker() -> None:
    answers = [c for is_request, c in recorded("errors", 310) if not is_request]
    (remark,) = (c.remark or "" for c in answers if "queueId[99]" in (c.remark or ""))
    text = describe(topic("FrameA", 2))
    assert text in remark
    odd = topic("T", 1, perm=1, order=True, attributes={"message.type": "FIFO"})
    assert "perm=--X" in describe(odd)
    assert describe(odd).endswith("order=true, attributes={message.type=FIFO}]")


def test_topics_that_are_compacted_are_refused() -> None:
    """Messages would be kept for ever that the user expects to be replaced."""
    table = Topics()
    config = TopicConfig(topic_name="C")
    with pytest.raises(InvalidParameterError, match=r"topic C .* has no compaction") as refused:
        table.update(config, "+message.type=FIFO,+cleanup.policy=COMPACTION")
    assert "cleanup.policy" in str(refused.value)
    signed = msgspec.structs.replace(config, attributes={"+cleanup.policy": "COMPACTION"})
    with pytest.raises(InvalidParameterError):
        table.update_all([TopicConfig(topic_name="D"), signed])
    assert "C" not in table
    assert "D" not in table
    assert table.update(config, "+cleanup.policy=DELETE")
    # One in the table of a Java broker stays, with all its messages.
    stored = TopicConfig(topic_name="J", attributes={"cleanup.policy": "COMPACTION"})
    table.load(config_tables.TopicTable(topic_config_table={"J": stored}))
    assert table.update(msgspec.structs.replace(stored, perm=4, attributes={}))
    assert table.get("J") == msgspec.structs.replace(stored, perm=4)
