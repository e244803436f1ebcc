"""Records of POP consumption: check-points and acks, as they stand in the revive topic.

A **check-point** says which messages of a queue one pop has handed out, and until when they are
invisible. An **ack** names one of them, a **batch ack** several. All three are messages of the
topic ``rmq_sys_REVIVE_LOG_<cluster>``; their body is JSON as Java's fastjson writes it, members in
the order of their names, absent ones left out::

    ck    {"bm":0,"bn":"broker-a","c":"group","d":[0,1,2],"it":10000,"n":3,"pt":1700000000000,
           "q":1,"reviveTime":1700000010000,"ro":0,"so":7,"sp":false,"t":"topic"}
    ack   {"ao":8,"bn":"broker-a","c":"group","pt":1700000000000,"q":1,"so":7,"t":"topic"}
    bAck  {"ao":-1,"aol":[7,8],"bn":"broker-a","c":"group","pt":1700000000000,"q":1,"so":7,"t":...}

    so  queue offset at which the pop began to read     bm  bits of messages that are acknowledged
    d   offset of each message minus so                 n   number of messages
    pt  time of the pop, it  invisible time, in ms      rp  how often an unreadable message was
    t   topic, of a retry the retry topic; c  group         put off, absent for never
    ao  acknowledged offset, aol  several of them       sp  the next delivery counts no attempt

The tag of the message is the kind, UNIQ_KEY a text that names its content, and TIMER_DELIVER_MS
holds it back in the timer wheel: a check-point until a second before its messages become visible,
an ack until they do. So a check-point is in the revive queue before its acks.

**Reading is strict**: a body that is torn, hostile or of another kind raises
:class:`RemoteProtocolError`, and nothing else. A check-point of Java before 5.0 has no ``d``; its
messages follow each other. Some versions of Java wrote the members of acks under long names.

Counterpart of Java's ``PopCheckPoint``, ``AckMsg``, ``BatchAckMsg`` and ``PopAckConstants``.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.wire.fields import Int32, Int64

#: The tags of the three kinds.
CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

#: The timer delivers a check-point so long before its messages become visible.
CHECK_POINT_LEAD_MS: Final = 1_000
#: Messages of one check-point: the number is a signed byte in Java.
COUNT_MAX: Final = 127
#: Messages of one check-point that bits can stand for, in an int.
BITS: Final = 32
#: Offsets of one batch ack that are read; more than a check-point can have are pointless.
BATCH_ACK_MAX: Final = 65_536
#: ``ao`` of a batch ack that a client has sent.
NO_OFFSET: Final = -1

_INT32_SIGN: Final = 1 << 31
_INT32_SPAN: Final = 1 << 32


class PopKey(NamedTuple):
    """Which check-point an ack belongs to; Java's merge key."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str


class CheckPoint(msgspec.Struct, kw_only=True, gc=False):
    """What one pop has handed out of one queue."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    broker_name: str
    #: Offset of each message minus ``start_offset``, ascending.
    offset_diffs: Sequence[int]
    #: Messages that are acknowledged, by their place in ``offset_diffs``.
    bits: int = 0
    #: How often the messages could not be read when they were due; None: never, "" is not a number.
    re_put_times: str | None = None
    #: The next delivery does not count as an attempt.
    suspend: bool = False

    @property
    def key(self) -> PopKey:
        return PopKey(
            self.topic,
            self.group,
            self.queue_id,
            self.start_offset,
            self.pop_time_ms,
            self.broker_name,
        )

    @property
    def revive_time_ms(self) -> int:
        """When the messages become visible again."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def deliver_ms(self) -> int:
        """When the timer puts the record into the revive queue."""
        return self.pop_time_ms + self.invisible_ms - CHECK_POINT_LEAD_MS

    @property
    def unique_key(self) -> str:
        return (
            f"{self.topic}@{self.queue_id}@{self.start_offset}@{self.group}"
            f"@{self.pop_time_ms}@{self.broker_name}@{CHECK_POINT_TAG}"
        )

    @property
    def next_offset(self) -> int:
        """The offset behind the last message."""
        diffs = self.offset_diffs
        return self.start_offset + (diffs[-1] + 1 if diffs else 0)

    @property
    def all_bits(self) -> int:
        """The bits of a check-point whose messages are all acknowledged."""
        return (1 << len(self.offset_diffs)) - 1

    def mark(self, queue_offset: int) -> bool:
        """Mark a message as acknowledged; False if the check-point does not have it."""
        try:
            place = self.offset_diffs.index(queue_offset - self.start_offset)
        except ValueError:
            return False
        self.bits |= 1 << place
        return True

    def waiting_offsets(self) -> list[int]:
        """The queue offsets of the messages that are not acknowledged."""
        start, bits = self.start_offset, self.bits
        return [
            start + diff
            for place, diff in enumerate(self.offset_diffs)
            if not bits >> place & 1  # Java's bits are an int: messages behind the 32nd have none
        ]

    @property
    def re_put_count(self) -> int:
        """How often the messages were put off; a text that is no number counts as often enough."""
        if self.re_put_times is None:
            return 0
        return int(self.re_put_times) if self.re_put_times.isdecimal() else COUNT_MAX

    def encode(self) -> bytes:
        """The body of the record."""
        assert len(self.offset_diffs) <= COUNT_MAX, "a reader would refuse it, and lose messages"
        bits = self.bits & (_INT32_SPAN - 1)
        bits = bits - _INT32_SPAN if bits >= _INT32_SIGN else bits
        diffs = ",".join(map(str, self.offset_diffs))
        re_put = "" if self.re_put_times is None else f'"rp":{_quote(self.re_put_times)},'
        return (
            f'{{"bm":{bits},"bn":{_quote(self.broker_name)},"c":{_quote(self.group)},'
            f'"d":[{diffs}],"it":{self.invisible_ms},"n":{len(self.offset_diffs)},'
            f'"pt":{self.pop_time_ms},"q":{self.queue_id},"reviveTime":{self.revive_time_ms},'
            f'"ro":0,{re_put}"so":{self.start_offset},"sp":{"true" if self.suspend else "false"},'
            f'"t":{_quote(self.topic)}}}'
        ).encode()


class Ack(msgspec.Struct, kw_only=True, gc=False):
    """Acknowledged messages of one check-point: an ``ack`` has one message, a ``bAck`` several."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    #: None in batch acks that Java's buffer has written: the broker's own name is meant.
    broker_name: str | None
    queue_offsets: Sequence[int]
    is_batch: bool = False

    def key(self, own_name: str) -> PopKey:
        """The check-point that is meant, at the broker of that name."""
        name = self.broker_name
        if name is None or not name.strip():
            name = own_name
        return PopKey(
            self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms, name
        )

    @property
    def tag(self) -> str:
        return BATCH_ACK_TAG if self.is_batch else ACK_TAG

    @property
    def unique_key(self) -> str:
        """The UNIQ_KEY of the record; that of a batch ack names offset -1, as in Java."""
        offset = NO_OFFSET if self.is_batch else self.queue_offsets[0]
        return (
            f"{self.topic}@{self.queue_id}@{offset}@{self.group}"
            f"@{self.pop_time_ms}@{self.broker_name}@{ACK_TAG}"
        )

    def encode(self) -> bytes:
        """The body of the record."""
        if self.is_batch:
            offsets = f'"ao":{NO_OFFSET},"aol":[{",".join(map(str, self.queue_offsets))}]'
        else:
            offsets = f'"ao":{self.queue_offsets[0]}'
        name = "" if self.broker_name is None else f'"bn":{_quote(self.broker_name)},'
        return (
            f'{{{offsets},{name}"c":{_quote(self.group)},"pt":{self.pop_time_ms},'
            f'"q":{self.queue_id},"so":{self.start_offset},"t":{_quote(self.topic)}}}'
        ).encode()


# ---- reading -------------------------------------------------------------------------------------

_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Diff = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_QueueId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]


class _StoredCheckPoint(msgspec.Struct):
    so: _Offset
    pt: Int64
    it: Int64
    t: _Name
    c: _Name
    n: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
    bm: Int32 = 0
    q: _QueueId = 0
    d: Annotated[list[_Diff], msgspec.Meta(max_length=COUNT_MAX)] | None = None
    bn: str | None = None
    rp: str | None = None
    sp: bool = False


class _StoredAck(msgspec.Struct):
    so: _Offset
    pt: Int64
    t: _Name
    c: _Name
    ao: Int64 = 0
    q: _QueueId = 0
    bn: str | None = None
    aol: Annotated[list[_Offset], msgspec.Meta(max_length=BATCH_ACK_MAX)] | None = None


#: The long names under which some versions of Java wrote the members of acks.
_LONG_NAMES: Final = {
    "ackOffset": "ao",
    "startOffset": "so",
    "consumerGroup": "c",
    "topic": "t",
    "queueId": "q",
    "popTime": "pt",
    "brokerName": "bn",
    "ackOffsetList": "aol",
}

_decode_check_point = msgspec.json.Decoder(_StoredCheckPoint).decode
_decode_ack = msgspec.json.Decoder(_StoredAck).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def decode_check_point(body: bytes | memoryview) -> CheckPoint:
    """Read the body of a ``ck`` record; raises RemoteProtocolError."""
    try:
        stored = _decode_check_point(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a pop check-point is unreadable: {error}") from error
    diffs: Sequence[int] = stored.d or range(stored.n)
    if len(diffs) < stored.n:
        raise RemoteProtocolError(f"a pop check-point of {stored.n} messages names {len(diffs)}")
    return CheckPoint(
        topic=stored.t,
        group=stored.c,
        queue_id=stored.q,
        start_offset=stored.so,
        pop_time_ms=stored.pt,
        invisible_ms=stored.it,
        broker_name="null" if stored.bn is None else stored.bn,  # so it stands in Java's merge key
        offset_diffs=diffs[: stored.n],
        bits=stored.bm & (_INT32_SPAN - 1),
        re_put_times=stored.rp,
        suspend=stored.sp,
    )


def decode_ack(body: bytes | memoryview, *, is_batch: bool = False) -> Ack:
    """Read the body of an ``ack`` record, or of a ``bAck`` record; raises RemoteProtocolError."""
    try:
        try:
            stored = _decode_ack(body)
        except msgspec.ValidationError:
            members = _decode_object(body)
            members = {_LONG_NAMES.get(name, name): value for name, value in members.items()}
            stored = msgspec.convert(members, _StoredAck)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a pop ack is unreadable: {error}") from error
    return Ack(
        topic=stored.t,
        group=stored.c,
        queue_id=stored.q,
        start_offset=stored.so,
        pop_time_ms=stored.pt,
        broker_name=stored.bn,
        queue_offsets=(stored.aol or ()) if is_batch else (stored.ao,),
        is_batch=is_batch,
    )


_quote = encode_basestring
