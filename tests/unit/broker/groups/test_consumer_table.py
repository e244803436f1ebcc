"""Groups of consumers: membership, subscriptions, heartbeats V1 and V2, notices of changes."""

from __future__ import annotations

import logging

import msgspec
import pytest

from skylark.broker.api import Peer
from skylark.broker.groups.client_channel import ClientChannel, channel_of
from skylark.broker.groups.consumer_table import (
    COMPENSATION_COUNT_MAX,
    COMPENSATION_MS,
    SMALL_GROUP_SIZE,
    ConsumerTable,
    GroupNotice,
    HeartbeatResult,
)
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.connections import FakeConnection, channel


def subscription(topic: str, expression: str = "*", version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version)


def consumer(
    *subscriptions: SubscriptionData,
    group: str = "g",
    model: MessageModel = MessageModel.CLUSTERING,
) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscription_data_set=list(subscriptions),
    )


T = subscription("T")


def told(result: HeartbeatResult) -> list[Peer]:
    return result.notice.peers if result.notice is not None else []


def test_joins_and_leaves_are_notified_and_repetitions_are_not() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    first = table.heartbeat(consumer(T), a, 0)
    assert first.changed
    assert first.notice == GroupNotice("g", [a.peer])
    joined = table.heartbeat(consumer(T), b, 10)
    assert joined.changed
    assert joined.notice == GroupNotice("g", [a.peer, b.peer])

    for now_ms in (20, 30_000):
        for member in (a, b):
            repeated = table.heartbeat(consumer(T), member, now_ms)
            assert (repeated.changed, repeated.notice) == (False, None)
    other_tag = table.heartbeat(consumer(subscription("T", "TagA", version=2)), b, 30_001)
    assert (other_tag.changed, other_tag.notice) == (False, None)

    closed = table.channel_closed(b.peer, 40_000)
    assert closed.notices == [GroupNotice("g", [a.peer])]
    assert closed.groups_gone == []
    assert table.channel_closed(b.peer, 40_000).notices == []


def test_the_list_of_members_follows_every_change() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(consumer(T), a, 0)
    assert table.client_ids("g") == ["a"]
    table.heartbeat(consumer(T), b, 0)
    both = table.client_ids("g")
    assert both == ["a", "b"]
    table.heartbeat(consumer(T), a, 30_000)
    assert table.client_ids("g") is both, "it is made once for all who ask"
    renamed = msgspec.structs.replace(b, client_id="c")
    table.heartbeat(consumer(T), renamed, 30_001)
    assert table.client_ids("g") == ["a", "c"]
    table.channel_closed(a.peer, 40_000)
    assert table.client_ids("g") == ["c"]
    table.channel_closed(b.peer, 40_000)
    assert table.client_ids("g") == []


def test_an_added_and_a_removed_topic_are_notified() -> None:
    table = ConsumerTable()
    a = channel("a")
    table.heartbeat(consumer(T), a, 0)
    assert told(table.heartbeat(consumer(T, subscription("U")), a, 1)) == [a.peer]
    assert table.heartbeat(consumer(subscription("U")), a, 2).changed
    group = table.group("g")
    assert group is not None
    assert list(group.subscriptions) == ["U"]


def test_only_a_newer_subscription_replaces() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(consumer(subscription("T", "new", version=5)), a, 0)
    table.heartbeat(consumer(subscription("T", "old", version=4)), b, 1)
    table.heartbeat(consumer(subscription("T", "same", version=5)), b, 2)
    found = table.subscription("g", "T")
    assert found is not None
    assert (found.sub_string, found.sub_version) == ("new", 5)
    table.heartbeat(consumer(subscription("T", "newest", version=6)), b, 3)
    found = table.subscription("g", "T")
    assert found is not None
    assert found.sub_string == "newest"


def test_type_and_model_are_those_of_the_last_heartbeat() -> None:
    table = ConsumerTable()
    table.heartbeat(consumer(T), channel("a", 1), 0)
    pulling = consumer(T, model=MessageModel.BROADCASTING)
    pulling.consume_type = ConsumeType.CONSUME_ACTIVELY
    pulling.consume_from_where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    table.heartbeat(pulling, channel("b", 2), 0)
    shown = table.connection_list("g")
    assert shown is not None
    assert shown.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert shown.message_model is MessageModel.BROADCASTING
    assert shown.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def test_broadcasting_groups_hear_nothing() -> None:
    table = ConsumerTable()
    data = consumer(T, model=MessageModel.BROADCASTING)
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(data, a, 0)
    joined = table.heartbeat(data, b, 0)
    assert (joined.changed, joined.notice) == (True, None)
    assert table.channel_closed(b.peer, 0).notices == []


def test_notices_can_be_switched_off() -> None:
    a, b = channel("a", 1), channel("b", 2)
    silent_group = ConsumerTable()
    silent_group.heartbeat(consumer(T), a, 0)
    assert silent_group.heartbeat(consumer(T), b, 0, notify=False).notice is None
    assert silent_group.unregister("g", b.peer, 0, notify=False).notices == []
    silent_broker = ConsumerTable(notify_enabled=False)
    assert silent_broker.heartbeat(consumer(T), a, 0).notice is None
    silent_broker.heartbeat(consumer(T), b, 0)
    assert silent_broker.channel_closed(b.peer, 0).notices == []


def test_notices_in_batches() -> None:
    table = ConsumerTable(notice_batch_ms=15_000)
    a, b = channel("a", 1), channel("b", 2)
    assert table.heartbeat(consumer(T), a, 0).notice is None
    assert table.heartbeat(consumer(T), b, 9_000).notice is None
    assert table.notices.next_due() == 15_000
    assert table.due_notices(15_000) == [GroupNotice("g", [a.peer, b.peer])]
    table.channel_closed(a.peer, 15_001)
    table.channel_closed(b.peer, 15_001)
    assert table.notices.next_due() is None, "nobody is left"


def test_closing_connections_are_not_notified() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(consumer(T), a, 0)
    a.peer.close()
    assert told(table.heartbeat(consumer(T), b, 0)) == [b.peer]


# ---- heartbeat V2 ------------------------------------------------------------------------------


def test_fingerprints_decide_whether_the_full_form_is_wanted() -> None:
    table = ConsumerTable()
    a = channel("a")

    def sub_changed(fingerprint: int) -> bool:
        return table.heartbeat(consumer(T), a, 0, fingerprint=fingerprint).sub_changed

    assert not sub_changed(7), "nothing was stored"
    assert not sub_changed(7)
    assert sub_changed(8)
    assert not sub_changed(8)
    assert sub_changed(0), "V1 always"
    assert sub_changed(8), "after V1, which stores zero"


def test_the_short_form_keeps_subscriptions_and_refreshes_the_channel() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(consumer(T), a, 0, fingerprint=7)
    before = encode_body(table.connection_list("g"))
    short = table.heartbeat(consumer(), a, 100_000, fingerprint=7, without_sub=True)
    assert short == HeartbeatResult(changed=False, sub_changed=False, notice=None)
    assert encode_body(table.connection_list("g")) == before
    assert table.expire(130_000).peers == []
    joined = table.heartbeat(consumer(), b, 130_000, fingerprint=7, without_sub=True)
    assert told(joined) == [a.peer, b.peer], "a new channel is news in any form"
    assert not table.groups_in_conflict(), "what b subscribes to is unknown, not different"


def test_the_short_form_is_refused_while_subscriptions_are_unknown() -> None:
    """As after a restart of the broker: the client must not stay without subscriptions."""
    table = ConsumerTable()
    a = channel("a")
    short = table.heartbeat(consumer(), a, 0, fingerprint=7, without_sub=True)
    assert short.sub_changed
    full = table.heartbeat(consumer(T), a, 1, fingerprint=7)
    assert not full.sub_changed
    assert table.subscription("g", "T") == T


def test_without_a_fingerprint_the_empty_set_is_meant() -> None:
    table = ConsumerTable()
    a = channel("a")
    table.heartbeat(consumer(T), a, 0)
    assert table.heartbeat(consumer(), a, 0, without_sub=True).changed
    assert table.subscription("g", "T") is None


# ---- leaving -----------------------------------------------------------------------------------


def test_unregister_leaves_one_group_only() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    for group in ("g", "h"):
        for member in (a, b):
            table.heartbeat(consumer(T, group=group), member, 0)
    left = table.unregister("g", b.peer, 1)
    assert left.notices == [GroupNotice("g", [a.peer])]
    assert table.client_ids("g") == ["a"]
    assert table.client_ids("h") == ["a", "b"]
    assert table.unregister("g", b.peer, 2).notices == [], "a repetition changes nothing"
    assert table.unregister("unknown", b.peer, 2).notices == []
    last = table.unregister("g", a.peer, 3)
    assert (last.notices, last.groups_gone) == ([], ["g"])
    closed = table.channel_closed(a.peer, 4)
    assert closed.notices == [GroupNotice("h", [b.peer])]
    assert table.channel_closed(b.peer, 5).groups_gone == ["h"]
    assert len(table) == 0


def test_silent_channels_are_closed_without_a_notice() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    for group in ("g", "h"):
        table.heartbeat(consumer(T, group=group), a, 0)
    table.heartbeat(consumer(T), b, 1)
    assert table.expire(120_000).peers == [], "120 s are not yet too long"
    table.heartbeat(consumer(T), b, 120_000)
    expired = table.expire(120_001)
    assert expired.peers == [a.peer]
    assert expired.groups_gone == ["h"]
    assert table.client_ids("g") == ["b"]
    assert table.notices.next_due() is None
    assert table.channel_closed(a.peer, 120_002).notices == [], "it left already"


def test_virtual_time_does_not_expire_open_connections() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(consumer(T), a, 0)
    table.heartbeat(consumer(T), b, 0)
    b.peer.close()
    table.refresh(7_200_000)
    assert table.expire(7_200_000).peers == [b.peer]
    assert table.expire(7_320_001).peers == [a.peer]


def test_a_clock_set_back_expires_no_client() -> None:
    table = ConsumerTable()
    table.heartbeat(consumer(T), channel("a"), 10_000_000)
    assert table.expire(0).peers == []


# ---- questions ---------------------------------------------------------------------------------


def test_client_ids_name_each_client_once() -> None:
    table = ConsumerTable()
    assert table.client_ids("g") == []
    old, new = channel("a", 1), channel("a", 2)
    for member in (old, channel("b", 3), new):
        table.heartbeat(consumer(T), member, 0)
    assert table.client_ids("g") == ["a", "b"]
    found = table.find("g", "a")
    assert found is not None
    assert found.peer is new.peer
    assert table.find("g", "c") is None
    assert table.find("unknown", "a") is None


def test_a_connection_may_change_its_client_id(caplog: pytest.LogCaptureFixture) -> None:
    table = ConsumerTable()
    a = channel("a")
    table.heartbeat(consumer(T), a, 0)
    renamed = channel("z", peer=a.peer)
    with caplog.at_level(logging.WARNING):
        assert not table.heartbeat(consumer(T), renamed, 1).changed
    assert table.client_ids("g") == ["z"]
    assert caplog.messages == ["consumer group g: a at 10.0.0.1:1 is now z"]


def test_groups_of_a_topic() -> None:
    table = ConsumerTable()
    a = channel("a")
    table.heartbeat(consumer(T, group="g"), a, 0)
    table.heartbeat(consumer(T, subscription("U"), group="h"), a, 0)
    assert table.groups_of_topic("T") == ["g", "h"]
    assert table.groups_of_topic("U") == ["h"]
    assert [group.name for group in table.groups()] == ["g", "h"]


def test_pulls_that_bring_their_subscription_are_remembered_for_a_while() -> None:
    table = ConsumerTable()
    pulled = subscription("T", "TagA", version=9)
    table.compensate("g", pulled, 0)
    assert table.subscription("g", "T") == pulled
    assert table.group("g") is None, "it is no member"
    table.heartbeat(consumer(T), channel("a"), 0)
    assert table.subscription("g", "T") == T, "heartbeats are asked first"

    table.compensate("g", subscription("U"), 1)
    table.compensate("h", subscription("U"), 2)
    table.compensate("g", subscription("U"), 3)
    table.expire(COMPENSATION_MS + 2)
    assert table.subscription("h", "U") is not None
    table.expire(COMPENSATION_MS + 3)
    assert table.subscription("h", "U") is None
    assert table.subscription("g", "U") is not None, "the last pull counts"
    table.expire(COMPENSATION_MS + 4)
    assert table.subscription("g", "U") is None


def test_the_memory_of_pulls_is_bounded() -> None:
    table = ConsumerTable()
    for number in range(COMPENSATION_COUNT_MAX + 1):
        table.compensate(f"g{number}", T, number)
    assert table.subscription("g0", "T") is None, "the oldest gave way"
    assert table.subscription("g1", "T") == T
    assert table.subscription(f"g{COMPENSATION_COUNT_MAX}", "T") == T


def test_conflicting_members_are_shown_and_forgotten_when_they_leave() -> None:
    table = ConsumerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat(consumer(subscription("T", "x", version=1)), a, 0)
    table.heartbeat(consumer(subscription("T", "y", version=2)), b, 0)
    assert table.groups_in_conflict() == ["g"]
    (conflict,) = table.conflicts("g")
    assert conflict.topic == "T"
    assert [(side.expression, side.client_ids) for side in conflict.sides] == [
        ("x", ["a"]),
        ("y", ["b"]),
    ]
    table.channel_closed(b.peer, 1)
    assert table.groups_in_conflict() == []
    assert table.conflicts("g") == table.conflicts("unknown") == []


def test_the_connection_list_is_byte_equal_to_javas() -> None:
    """The body recorded in ``frames/admin-consumerConnection``."""
    java = (
        b'{"connectionSet":[{"clientAddr":"127.0.0.1:42080","clientId":"127.0.0.1@hold1",'
        b'"language":"JAVA","version":513}],"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{'
        b'"%RETRY%golden_hold_cg":{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
        b'"subString":"*","subVersion":1794711836703,"tagsSet":[],'
        b'"topic":"%RETRY%golden_hold_cg"},'
        b'"FrameA":{"classFilterMode":false,"codeSet":[2598919,2112],"expressionType":"TAG",'
        b'"subString":"TagA || Aa","subVersion":1794711840258,"tagsSet":["TagA","Aa"],'
        b'"topic":"FrameA"}}}'
    )
    data = consumer(
        subscription("%RETRY%golden_hold_cg", version=1794711836703),
        SubscriptionData(
            topic="FrameA",
            sub_string="TagA || Aa",
            tags_set=["TagA", "Aa"],
            code_set=[2598919, 2112],
            sub_version=1794711840258,
        ),
        group="golden_hold_cg",
    )
    data.consume_from_where = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    connection = FakeConnection()
    connection.remote_address = ("127.0.0.1", 42080)
    table = ConsumerTable()
    table.heartbeat(data, channel("127.0.0.1@hold1", peer=connection), 0)
    assert encode_body(table.connection_list("golden_hold_cg")) == java
    assert table.connection_list("unknown") is None


def test_a_heartbeat_of_the_cpp_client_is_shown_in_javas_words() -> None:
    body = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,'
        b'"groupName":"g","messageModel":1,"subscriptionDataSet":[{"codeSet":["97"],'
        b'"subString":"a","subVersion":"123","tagsSet":["a"],"topic":"T"}]}],'
        b'"producerDataSet":[]}'
    )
    heartbeat = decode_body(HeartbeatData, body)
    table = ConsumerTable()
    client = channel_of(FakeConnection(7), heartbeat.client_id, language="CPP", version=333)
    table.heartbeat(heartbeat.consumer_data_set[0], client, 0)
    shown = table.connection_list("g")
    assert shown is not None
    assert encode_body(shown.connection_set) == (
        b'[{"clientAddr":"10.0.0.1:7","clientId":"c","language":"CPP","version":333}]'
    )
    assert shown.consume_type == "CONSUME_PASSIVELY"
    assert shown.message_model == "CLUSTERING"
    assert shown.subscription_table["T"].sub_version == 123


def test_a_language_without_a_name_is_shown_as_other() -> None:
    unnamed = channel_of(FakeConnection(), "c", language=99, version=0)
    assert unnamed.body().language == "OTHER"


# ---- large groups ------------------------------------------------------------------------------


class Watch:
    """Runs a table's notices on a clock of plain numbers, and counts."""

    def __init__(self, table: ConsumerTable) -> None:
        self.table = table
        self.sent = 0
        self.rounds = 0
        self.heard_ms: dict[Peer, int] = {}

    def send(self, notice: GroupNotice | None, now_ms: int) -> None:
        if notice is not None:
            self.rounds += 1
            self.sent += len(notice.peers)
            self.heard_ms.update(dict.fromkeys(notice.peers, now_ms))

    def run(self, from_ms: int, until_ms: int) -> None:
        now_ms = from_ms
        while (due_ms := self.table.notices.next_due()) is not None and due_ms <= until_ms:
            now_ms = due_ms
            for notice in self.table.due_notices(now_ms):
                self.send(notice, now_ms)


def crowd(size: int) -> list[ClientChannel]:
    return [channel(f"c{number}", number) for number in range(size)]


def test_a_thousand_members_joining_at_once() -> None:
    table = ConsumerTable()
    watch = Watch(table)
    members = crowd(1_000)
    for member in members:
        watch.send(table.heartbeat(consumer(T), member, 0).notice, 0)
    small_rounds = SMALL_GROUP_SIZE * (SMALL_GROUP_SIZE + 1) // 2
    first_large = SMALL_GROUP_SIZE + 1
    assert watch.sent == small_rounds + first_large
    watch.run(0, 1_000)
    assert watch.sent == small_rounds + first_large + 1_000
    assert len(watch.heard_ms) == 1_000
    assert min(watch.heard_ms.values()) == max(watch.heard_ms.values()) > 0
    assert max(watch.heard_ms.values()) <= 1_000
    assert table.notices.next_due() is None


def test_a_thousand_members_joining_over_three_seconds() -> None:
    table = ConsumerTable()
    watch = Watch(table)
    for number, member in enumerate(crowd(1_000)):
        now_ms = 3 * number
        watch.run(now_ms - 3, now_ms)
        watch.send(table.heartbeat(consumer(T), member, now_ms).notice, now_ms)
    last_ms = now_ms
    watch.run(last_ms, last_ms + 1_000)
    assert len(watch.heard_ms) == 1_000
    assert last_ms <= min(watch.heard_ms.values()) <= last_ms + 1_000
    assert watch.sent < 6_000, "about one notice per millisecond"


def test_a_thousand_members_leaving_at_once() -> None:
    table = ConsumerTable()
    watch = Watch(table)
    members = crowd(1_000)
    for member in members:
        table.heartbeat(consumer(T), member, 0)
    watch.run(0, 10_000)
    watch.sent = 0
    for member in members:
        for notice in table.channel_closed(member.peer, 20_000).notices:
            watch.send(notice, 20_000)
    assert watch.sent == 999 + sum(range(1, SMALL_GROUP_SIZE + 1))
    assert table.notices.next_due() is None
    assert len(table) == 0


def test_a_hundred_small_groups_are_notified_as_in_java() -> None:
    table = ConsumerTable()
    watch = Watch(table)
    for group in range(100):
        for member in crowd(10):
            data = consumer(T, group=f"g{group}")
            watch.send(table.heartbeat(data, member, 0).notice, 0)
    assert watch.sent == 100 * sum(range(1, 11))
    assert table.notices.next_due() is None
