"""Requests that store messages, of every kind, as hypothesis draws them and as frames.

A request is a small value without offsets: :class:`Send` (10, 310 and 320), :class:`SendBack` (36)
and :class:`EndTransaction` (37). The last two name a message that was stored before, and
:meth:`~Request.command` is told where it is (:class:`Places`). So one list of requests can be
played against several brokers. Recorded ones are in :mod:`tests.property.java_requests`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st

from skylark.core.names import SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.testing.virtual_clock import START_MS
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.bodies.config import TopicFilterType
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import FLAG_ONEWAY, SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.frame import encode_frame
from skylark.wire.headers.txn import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_UNKNOWN

GROUP: Final = "G"  # its retry and dead-letter topics are sent to
RETURNING_GROUP: Final = "B"  # sends back and nothing else: see ``SendBack``
PRODUCER_GROUP: Final = "pg"
BODY_SIZE_MAX: Final = 2_000
#: Topics that exist, and in which way they are special.
TOPICS: Final[Mapping[str, Mapping[str, object]]] = {
    "T": {},
    "Other": {"read_queue_nums": 2, "write_queue_nums": 2},
    "Normal": {"attributes": {"+message.type": "NORMAL"}},
    "Fifo": {"attributes": {"+message.type": "FIFO"}},
    "Delay": {"attributes": {"+message.type": "DELAY"}},
    "Transaction": {"attributes": {"+message.type": "TRANSACTION"}},
    "Mixed": {"attributes": {"+message.type": "MIXED"}},
    "Batches": {"attributes": {"+queue.type": "BatchCQ"}},
    "Compacted": {"attributes": {"cleanup.policy": "COMPACTION"}},  # from a store of Java
    "ReadOnly": {"perm": 4},
    "Ordered": {"order": True},
    "MultiTag": {"topic_filter_type": TopicFilterType.MULTI_TAG},
    f"%RETRY%{GROUP}": {"read_queue_nums": 1, "write_queue_nums": 1},
    f"%DLQ%{GROUP}": {"read_queue_nums": 1, "write_queue_nums": 1},
}
OTHER_TOPICS: Final = (
    "New",
    "New-2",
    "%RETRY%Unknown",
    "%DLQ%New",
    TIMER_TOPIC,
    SCHEDULE_TOPIC,
    "RMQ_SYS_TRACE_TOPIC",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "a b",
    "größe",
    "L" * 128,
    "%RETRY%" + "l" * 250,
    "%RETRY%",
)
BATCH_TOPIC: Final = "Batches"
#: What brokers are started with, beside the defaults.
SETTINGS: Final[tuple[Mapping[str, str], ...]] = (
    {},
    {"brokerPermission": "4", "traceOn": "false"},
    {"rejectTransactionMessage": "true"},
    {"timerWheelEnable": "false", "autoCreateTopicEnable": "false"},
    {"enabledAppendPropCRC": "true", "regionId": "50%s<key>ü"},
)


@dataclass(frozen=True)
class Place:
    """Where a message is that was stored before."""

    log_offset: int
    queue_offset: int
    unique_id: str


@dataclass
class Places:
    """Where everything is that later requests may name."""

    messages: list[Place]
    halves: list[Place]
    #: The half message that an earlier request of the list has stored.
    latest_half: Place | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What requests have in common."""

    is_oneway: bool = False
    is_binary: bool = False
    version: int = CURRENT_VERSION

    def command(self, opaque: int, places: Places) -> Command:
        """The request with this opaque."""
        raise NotImplementedError

    def frame(self, opaque: int, places: Places) -> bytes:
        """The same as it is written."""
        return encode_frame(self.command(opaque, places))

    def enclose(
        self, code: int, opaque: int, ext: Mapping[str, str | None], body: bytes | None = None
    ) -> Command:
        return Command(
            code=code,
            opaque=opaque,
            flag=FLAG_ONEWAY if self.is_oneway else 0,
            version=self.version,
            ext={name: value for name, value in ext.items() if value is not None},
            body=body,
            serialize_type=SERIALIZE_BINARY if self.is_binary else SERIALIZE_JSON,
        )


@dataclass(frozen=True, kw_only=True)
class Send(Request):
    """One message, or a batch if there are ``parts``.

    ``{id}`` in properties stands for the number of the request, so that unique ids differ.
    """

    code: int = RequestCode.SEND_MESSAGE_V2
    topic: str = "T"
    queue_id: int = 0
    properties: str | None = "UNIQ_KEY\x01U{id}\x02"
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int | None = None
    max_reconsume_times: int | None = None
    default_topic: str = "TBW102"
    is_empty: bool = False
    size: int = 0
    content: bytes | None = None  # the body, if it is not to have the number of the request
    parts: tuple[BatchMessage, ...] = ()
    changed: Mapping[str, str | None] = field(default_factory=dict)  # ext fields; None: left out

    def text(self, opaque: int) -> str | None:
        """The property string as it is sent."""
        return None if self.properties is None else self.properties.replace("{id}", str(opaque))

    def messages(self, opaque: int) -> list[BatchMessage]:
        """The messages of a batch as they are sent."""
        number = str(opaque).encode()
        return [
            BatchMessage(
                b"%b, part %d of %d" % (part.body, index, opaque),
                part.properties.replace(b"{id}", b"%b-%d" % (number, index)),
                part.flag,
            )
            for index, part in enumerate(self.parts)
        ]

    def body(self, opaque: int) -> bytes | None:
        if self.is_empty:
            return None
        if self.parts:
            return encode_batch(self.messages(opaque))
        if self.content is not None:
            return self.content
        return (b"body %d " % opaque).ljust(self.size, b".")

    def command(self, opaque: int, _places: Places) -> Command:
        fields: dict[str, str | None] = {
            "a": PRODUCER_GROUP,
            "b": self.topic,
            "c": self.default_topic,
            "d": "4",
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(START_MS - 1_000),
            "h": str(self.flag),
            "i": self.text(opaque),
            "j": None if self.reconsume_times is None else str(self.reconsume_times),
            "k": "false",
            "l": None if self.max_reconsume_times is None else str(self.max_reconsume_times),
            "m": "true" if self.parts else None,
            **self.changed,
        }
        if self.code == RequestCode.SEND_MESSAGE:
            fields = {LONG_NAMES[letter]: value for letter, value in fields.items()}
        return self.enclose(self.code, opaque, fields, self.body(opaque))


#: The names that code 10 has for the letters of 310 and 320.
LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


@dataclass(frozen=True, kw_only=True)
class SendBack(Request):
    """A message that was stored before comes back.

    Its group has no other use: this request is handled by a task, after the sends that came with
    it, and would otherwise find, or make, other topics than alone.
    """

    message: int = 0
    group: str = RETURNING_GROUP
    delay_level: int = 0
    max_reconsume_times: int | None = None
    shift: int = 0  # of the offset, which is wrong then

    def command(self, opaque: int, places: Places) -> Command:
        times = self.max_reconsume_times
        ext = {
            "offset": str(places.messages[self.message].log_offset + self.shift),
            "group": self.group,
            "delayLevel": str(self.delay_level),
            "originMsgId": "id",
            "originTopic": "T",
            "maxReconsumeTimes": None if times is None else str(times),
        }
        return self.enclose(RequestCode.CONSUMER_SEND_MSG_BACK, opaque, ext)


@dataclass(frozen=True, kw_only=True)
class EndTransaction(Request):
    """The decision about a half message: ``half`` of those stored before the list, or the latest of
    the list itself (None)."""

    half: int | None = 0
    decision: int = TRANSACTION_COMMIT
    group: str = PRODUCER_GROUP
    transaction_id: str | None = "{id}"
    queue_shift: int = 0
    log_shift: int = 0
    from_check: bool = False

    def command(self, opaque: int, places: Places) -> Command:
        place = None if self.half is not None else places.latest_half
        if place is None:
            place = places.halves[self.half or 0]
        transaction_id = self.transaction_id
        if transaction_id is not None:
            transaction_id = transaction_id.replace("{id}", place.unique_id)
        ext = {
            "topic": "T",
            "producerGroup": self.group,
            "tranStateTableOffset": str(place.queue_offset + self.queue_shift),
            "commitLogOffset": str(place.log_offset + self.log_shift),
            "commitOrRollback": str(self.decision),
            "fromTransactionCheck": "true" if self.from_check else "false",
            "msgId": place.unique_id,
            "transactionId": transaction_id,
        }
        return self.enclose(RequestCode.END_TRANSACTION, opaque, ext)


# ---- messages that are there before --------------------------------------------------------------

_HALF: Final = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01half{id}\x02"
#: Messages that come back.
MESSAGES: Final = (
    Send(properties="UNIQ_KEY\x01seed{id}\x02TAGS\x01A\x02KEYS\x01k1 k2\x02"),
    Send(reconsume_times=2, flag=7, sys_flag=1, properties="RETRY_TOPIC\x01First\x02WAIT\x01true"),
    Send(topic=f"%RETRY%{GROUP}", properties="ORIGIN_MESSAGE_ID\x01first id\x02größe\x01消息\x02"),
    Send(topic="Fifo", properties="TAGS\x01A\x02TAGS\x01B\x02"),
    Send(properties="DELAY\x015\x02KEYS\x01late\x02"),
)
#: Half messages that are decided about: two of each kind, but for the last ones.
HALVES: Final = (
    *(Send(properties=_HALF, sys_flag=4, queue_id=number) for number in range(4)),
    *(Send(properties=f"{_HALF}DELAY\x012\x02", topic="Other") for _ in range(2)),
    *(Send(properties=f"{_HALF}TIMER_DELAY_SEC\x015\x02TAGS\x01A\x02") for _ in range(2)),
    *(Send(properties=f"{_HALF}_SYS_MSG_PRIORITY_\x011\x02", topic="Mixed") for _ in range(2)),
    Send(properties=f"{_HALF}CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02"),
    Send(properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02"),
    Send(properties="TRAN_MSG\x01TRUE\x02UNIQ_KEY\x01half{id}\x02"),
)

# ---- what hypothesis draws -----------------------------------------------------------------------

_TEXTS: Final = ("v", "true", "0", "größe", "消息", 'a"\\b', "%s {x}", "a\x01b", "x" * 300, " ")
_NUMBERS: Final = ("0", "1", "3", "18", "99", "-1", "+2", "", "x", "1.5", "٣", "9" * 12)
_TIMES: Final = tuple(
    str(START_MS + shift_ms)
    for shift_ms in (-1, 0, 1, 1_000, 1_500, 7_200_000, 4 * 86_400_000, 8 * 86_400_000)
)
_DELAYS: Final = ("0", "-5", "1", "5", "90", "86400", "259200", "259201", "x", "9" * 19, "9" * 30)
#: Names that a broker knows, and values that they may come with.
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "UNIQ_KEY": ("U{id}", "unique-{id}", "long-unique-id-{id}", "{id}ü"),
    "KEYS": ("k{id}", "k{id} common", "größe", " ", "common common"),
    "TAGS": ("A", "B", "größe", "A||B"),
    "WAIT": ("true", "false", "FALSE", "x"),
    "DELAY": _NUMBERS,
    "TIMER_DELIVER_MS": (*_TIMES, "x", "-1"),
    "TIMER_DELAY_SEC": _DELAYS,
    "TIMER_DELAY_MS": _DELAYS,
    "TIMER_OUT_MS": _TIMES,
    "TIMER_DEL_UNIQKEY": ("T+U1",),
    "_SYS_MSG_PRIORITY_": _NUMBERS,
    "__SHARDINGKEY": ("s",),
    "TRAN_MSG": ("true", "TRUE", "false", "x"),
    "PGROUP": ("pg", "other"),
    "CHECK_IMMUNITY_TIME_IN_SECONDS": ("5", "x"),
    "TRAN_PREPARED_QUEUE_OFFSET": ("1", "x"),
    "TRANSACTION_CHECK_TIMES": ("2",),
    "__transactionId__": ("mine",),
    "INNER_NUM": ("2", "x"),
    "INNER_BASE": ("0",),
    "POP_CK": ("0 1 2 3",),
    "CLUSTER": ("mine", "DefaultCluster"),
    "TRACE_ON": ("mine", "true"),
    "MSG_REGION": ("mine", "DefaultRegion"),
    "RETRY_TOPIC": ("T", "First"),
    "ORIGIN_MESSAGE_ID": ("first",),
    "REAL_TOPIC": ("T", "Nowhere", TIMER_TOPIC),
    "REAL_QID": ("0", "1", "99", "x"),
    "__CRC32#": ("1",),
    "name": _TEXTS,
    "größe": _TEXTS,
    "UNIQ_KEYS": ("near",),
}
#: Items that are no property, or a strange one.
_ODD_ITEMS: Final = (
    "",
    "novalue",
    "novalue\x01",
    "\x01noname",
    "\x01",
    "DELAY\x01",
    "UNIQ_KEY\x01",
)


def _item(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from(_VALUES[name]).map(lambda value: f"{name}\x01{value}")


_items = st.sampled_from(sorted(_VALUES)).flatmap(_item)
_harmless = st.sampled_from(["KEYS", "TAGS", "WAIT", "name", "größe", "UNIQ_KEYS"]).flatmap(_item)
_unique_id = _item("UNIQ_KEY")
_half = st.tuples(st.just("TRAN_MSG\x01true"), _item("PGROUP"), _unique_id).map(list)


def _joined(items: list[str], end: str) -> str:
    return "\x02".join(items) + end


def _strings(items: st.SearchStrategy[list[str]]) -> st.SearchStrategy[str]:
    ends = st.sampled_from(["\x02"] * 5 + ["", "\x02\x02"])
    return st.builds(_joined, items, ends)


def _with(
    first: st.SearchStrategy[list[str]], more: st.SearchStrategy[str], count_max: int
) -> st.SearchStrategy[list[str]]:
    return st.tuples(first, st.lists(more, max_size=count_max)).map(lambda both: both[0] + both[1])


#: Property strings: half of them plain or nearly so, the others of anything.
properties = st.one_of(
    _strings(_with(_unique_id.map(lambda item: [item]), _harmless, 3)),
    _strings(_with(_unique_id.map(lambda item: [item]), _items, 2)),
    _strings(_with(_half, _harmless, 2)),
    _strings(_with(_half, _items, 2)),
    _strings(st.lists(_items | st.sampled_from(_ODD_ITEMS), max_size=5)),
    st.sampled_from(["", "\x02", None]),
)
_envelopes = {
    "is_oneway": st.sampled_from([False] * 6 + [True]),
    "is_binary": st.booleans(),
    "version": st.sampled_from([CURRENT_VERSION] * 5 + [0]),
}
_topics = st.one_of(
    st.just("T"),
    st.sampled_from(["T", "Other", "Fifo", f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "New"]),
    st.sampled_from([*TOPICS, *OTHER_TOPICS]),
)
_queue_ids = st.sampled_from([0, 0, 0, 1, 1, 2, -1, 3, 4, 99])
_sys_flags = st.sampled_from([0] * 8 + [1, 2, 4, 8, 12, 0x10, 0x20, 0x40, 0x80, 0x101, 0x301])
_times = st.sampled_from([None, None, None, 0, 1, 2, 3, 17, -1])
_changes = st.sampled_from(
    [{}] * 12 + [{"h": "x"}, {"a": None}, {"e": None}, {"g": ""}, {"k": "true"}, {"m": "false"}]
)
sends = st.builds(
    Send,
    code=st.sampled_from([310] * 5 + [10] * 3 + [320]),
    topic=_topics,
    queue_id=_queue_ids,
    properties=properties,
    flag=st.sampled_from([0, 0, 7, -1]),
    sys_flag=_sys_flags,
    reconsume_times=_times,
    max_reconsume_times=_times,
    default_topic=st.sampled_from(["TBW102"] * 6 + ["Nothing", "T"]),
    is_empty=st.sampled_from([False] * 15 + [True]),
    size=st.sampled_from([0] * 10 + [BODY_SIZE_MAX, BODY_SIZE_MAX + 1]),
    changed=_changes,
    **_envelopes,
)
#: Sends that nothing speaks against: without enough of these, runs would be short.
plain_sends = st.builds(
    Send,
    code=st.sampled_from([310, 310, 10]),
    topic=st.sampled_from(["T", "T", "Other", "Mixed"]),
    queue_id=st.sampled_from([0, 1, -1]),
    properties=_strings(_with(_unique_id.map(lambda item: [item]), _harmless, 2))
    | _strings(_with(_half, _harmless, 1)),
    **_envelopes,
)
_parts = st.builds(
    BatchMessage,
    body=st.sampled_from([b"body", b"longer body", b"b" * 90]),
    properties=properties.filter(lambda text: text is not None).map(str.encode),
    flag=st.sampled_from([0, 0, 3]),
)
batches = st.builds(
    Send,
    code=st.sampled_from([320, 320, 320, 310, 10]),
    topic=_topics | st.just(BATCH_TOPIC),
    queue_id=_queue_ids,
    properties=properties,
    flag=st.sampled_from([0, 7]),
    sys_flag=_sys_flags,
    reconsume_times=_times,
    parts=st.lists(_parts, min_size=1, max_size=3).map(tuple),
    **_envelopes,
)
send_backs = st.builds(
    SendBack,
    message=st.integers(0, len(MESSAGES) - 1),
    group=st.sampled_from([RETURNING_GROUP] * 6 + ["Never", "a b", "None"]),
    delay_level=st.sampled_from([0, 0, 3, 1, -1, 18, 99]),
    max_reconsume_times=st.sampled_from([None, None, 0, 1, 16]),
    shift=st.sampled_from([0] * 8 + [1]),
    **_envelopes,
)
ends = st.builds(
    EndTransaction,
    half=st.integers(0, len(HALVES) - 1) | st.integers(0, 3) | st.none(),
    decision=st.sampled_from(
        [TRANSACTION_COMMIT] * 6 + [TRANSACTION_ROLLBACK] * 3 + [TRANSACTION_UNKNOWN, 4]
    ),
    group=st.sampled_from([PRODUCER_GROUP] * 8 + ["other"]),
    transaction_id=st.sampled_from(["{id}"] * 8 + [None, "", "wrong"]),
    queue_shift=st.sampled_from([0] * 12 + [1]),
    log_shift=st.sampled_from([0] * 12 + [1]),
    from_check=st.booleans(),
    **_envelopes,
)
#: Lists of requests; the ones with requests that come back are fewer.
requests = st.lists(plain_sends | sends | batches | ends, min_size=2, max_size=12) | st.lists(
    plain_sends | sends | batches | ends | send_backs, min_size=2, max_size=12
)


# ---- one request of each kind --------------------------------------------------------------------


def _of(*items: str, end: str = "\x02") -> str:
    """A property string with a unique id and these items, which have ``=`` for the separator."""
    return "\x02".join(item.replace("=", "\x01") for item in ("UNIQ_KEY=U{id}", *items)) + end


_HALF_ITEMS: Final = ("TRAN_MSG=true", "PGROUP=pg")
#: A list with every kind of request and of outcome; plain messages stand between the others, so
#: that there are runs. What it leaves behind was recorded (:mod:`tests.property.send_oracle`):
#: further kinds go into lists of their own.
EVERY_KIND: Final[tuple[Request, ...]] = (
    Send(),
    Send(queue_id=1, flag=7, reconsume_times=1, properties=_of("TAGS=A", "KEYS=k{id} common")),
    Send(code=10, topic="Other", properties=_of("TAGS=A", "name=größe", "消息=v")),
    Send(is_binary=True, properties=_of("TAGS=B")),
    Send(is_binary=True, queue_id=2, properties=_of("TAGS=A")),
    Send(is_binary=True, queue_id=1, properties=_of("TAGS=B")),
    Send(is_oneway=True, properties=_of("WAIT=false")),
    Send(queue_id=-1),
    Send(topic="New", queue_id=3),
    Send(properties=_of("TAGS=A", end="")),
    Send(properties=""),
    Send(properties=None),
    Send(properties=_of("novalue=", "novalue", "=noname")),
    Send(properties="KEYS\x01k\x02"),
    *(Send(topic=topic) for topic in (*TOPICS, *OTHER_TOPICS)),
    Send(topic="Compacted", properties=_of("KEYS=k")),
    Send(topic="Nowhere", default_topic="Nothing"),
    Send(queue_id=99),
    Send(is_empty=True),
    Send(size=BODY_SIZE_MAX + 1),
    Send(properties=_of("name=" + "y" * 33_000)),
    Send(changed={"h": "x"}),
    Send(changed={"a": None}, is_binary=True),
    *(Send(sys_flag=sys_flag) for sys_flag in (1, 2, 4, 8, 12, 0x10, 0x80, 0x301)),
    *(Send(properties=_of(f"DELAY={level}")) for level in ("1", "18", "99", "-1", "x")),
    Send(properties=_of("TIMER_DELAY_SEC=5")),
    Send(properties=_of("TIMER_DELAY_MS=1500")),
    *(Send(properties=_of(f"TIMER_DELIVER_MS={time}")) for time in (*_TIMES, "x")),
    Send(topic=TIMER_TOPIC, properties=_of("REAL_TOPIC=T", "REAL_QID=0")),
    Send(topic=TIMER_TOPIC, properties=_of("REAL_TOPIC=Nowhere", "REAL_QID=0")),
    *(Send(properties=_of(f"_SYS_MSG_PRIORITY_={number}")) for number in ("1", "9", "x")),
    Send(properties=_of("INNER_NUM=2")),
    Send(properties=_of("POP_CK=0 1 2", "CLUSTER=mine", "TRACE_ON=mine", "MSG_REGION=mine")),
    Send(topic=f"%RETRY%{GROUP}", reconsume_times=3, properties=_of("RETRY_TOPIC=First")),
    Send(topic=f"%RETRY%{GROUP}", reconsume_times=3, max_reconsume_times=5),
    Send(topic=f"%RETRY%{GROUP}", properties=_of("DELAY=2", "ORIGIN_MESSAGE_ID=first")),
    Send(properties=_of(*_HALF_ITEMS), sys_flag=4, queue_id=2),
    Send(properties=_of(*_HALF_ITEMS), topic="Other", sys_flag=4, queue_id=1),
    EndTransaction(half=None),
    Send(properties=_of(*_HALF_ITEMS, "DELAY=1")),
    EndTransaction(half=None),
    Send(properties=_of("TRAN_MSG=true")),
    *(EndTransaction(half=index) for index in range(len(HALVES))),
    EndTransaction(half=0),
    EndTransaction(half=1, decision=TRANSACTION_ROLLBACK),
    EndTransaction(half=2, group="other"),
    EndTransaction(half=2, decision=TRANSACTION_UNKNOWN),
    Send(parts=(BatchMessage(b"one", b"TAGS\x01A\x02"), BatchMessage(b"two")), code=320),
    Send(parts=(BatchMessage(b"one"),), topic=BATCH_TOPIC, code=320),
    Send(parts=(BatchMessage(b"one"),), topic=f"%RETRY%{GROUP}", code=320),
    Send(parts=(BatchMessage(b"one"),), properties="DELAY\x011\x02", code=320),
    Send(),
    Send(queue_id=1),
)
#: The same with messages that come back.
EVERY_KIND_BACK: Final[tuple[Request, ...]] = (
    Send(),
    *(SendBack(message=index) for index in range(len(MESSAGES))),
    Send(queue_id=1),
    SendBack(delay_level=-1),
    SendBack(delay_level=2, is_oneway=True),
    SendBack(max_reconsume_times=0, is_binary=True),
    Send(properties=_of("DELAY=3")),
    SendBack(group="Never"),
    SendBack(group="a b"),
    SendBack(group="None"),
    SendBack(shift=1),
    Send(properties=_of(*_HALF_ITEMS), sys_flag=4),
    EndTransaction(half=0),
)
#: Names that occur twice, in messages that nothing else is special about and in others.
NAMES_TWICE: Final[tuple[Request, ...]] = (
    Send(properties=_of("TAGS=A", "TAGS=B")),
    Send(properties=_of("TAGS=A", "TAGS=B", end="")),
    Send(properties=_of("UNIQ_KEY=V{id}", "KEYS=k{id}", "KEYS=l{id}")),
    Send(properties=_of(*_HALF_ITEMS, "PGROUP=other", "PGROUP=pg"), sys_flag=4),
    EndTransaction(half=None),
    Send(properties=_of("DELAY=1", "DELAY=2")),
    Send(properties=_of("TRAN_MSG=true", "TRAN_MSG=false")),
)
#: Names that the broker replaces or removes, in messages of every kind that has them.
_FORWARDED: Final = ("TRACE_ON=no", "MSG_REGION=mine", "CLUSTER=mine", "POP_CK=0 1")
EDITED: Final[tuple[Request, ...]] = (
    *(Send(properties=_of(item)) for item in _FORWARDED),
    *(Send(properties=f"{item}\x02".replace("=", "\x01")) for item in _FORWARDED),
    Send(properties=_of(*_FORWARDED, "TAGS=A", end="")),
    Send(code=10, topic="Fifo", properties=_of("TAGS=A", *_FORWARDED, "TRACE_ON=yes")),
    Send(properties=_of(*_FORWARDED, *_HALF_ITEMS), sys_flag=4),
    EndTransaction(half=None),
    Send(properties=_of(*_HALF_ITEMS, "CLUSTER=mine", "CLUSTER=mine"), sys_flag=4),
    EndTransaction(half=None),
    Send(properties=_of(*_FORWARDED, "TRAN_MSG=false")),
    Send(properties=_of(*_FORWARDED, "DELAY=1")),
    Send(topic=f"%RETRY%{GROUP}", properties=_of(*_FORWARDED)),
    Send(topic="Compacted", properties=_of(*_FORWARDED)),
)
#: Messages of one producer, with nothing but the end of the unique id to tell them apart.
ALIKE: Final[tuple[Request, ...]] = (
    Send(properties="UNIQ_KEY\x01long-unique-id-{id}\x02KEYS\x01common\x02"),
) * 8
