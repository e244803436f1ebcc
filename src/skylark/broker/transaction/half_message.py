"""What a half message is, and what is made of one.

A producer's transactional message is stored out of sight, in the only queue of
RMQ_SYS_TRANS_HALF_TOPIC, with its destination in ``REAL_TOPIC`` and ``REAL_QID``
(:func:`turn_into_half`). From there it becomes

* the *final* message, when it is committed (:func:`final_draft`): transaction type "commit", the
  log offset of the half message in the field for it. The destination leaves the properties, all
  others stay, ``TRAN_MSG`` among them;
* the *next copy* of itself, when its producer is asked about it (:meth:`Half.renewed`): the queue
  is read from its front, so what stays undecided moves to its end;
* a copy in TRANS_CHECK_MAX_TIME_TOPIC, when it is given up (:meth:`Half.given_up`), from where an
  administrator can bring it back (:func:`resumed`).

**Identity.** A half message is known by the queue offset of its *first* copy, which every later one
carries in ``TRAN_PREPARED_QUEUE_OFFSET``. So two answers to two questions are answers about one
message. Java sets that property only while a message is immune; here it comes with every copy.
A producer cannot set it: :func:`drop_half_names` removes it.

**Delay.** ``DELAY`` and the names of the timer stay in the properties of a half message and count
when it is committed. In Java a half message with a delay is lost.

Counterpart of ``TransactionalMessageBridge`` and ``EndTransactionProcessor.endMessageTransaction``.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from skylark.broker.send.message_writer import copy_of
from skylark.broker.send.own_copies import without_optional
from skylark.core.hashing import encode_offset_id
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from skylark.store.commit_log import Draft, PutLimits
from skylark.wire import properties as names
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.txn import CheckTransactionStateRequestHeader
from skylark.wire.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_MASK,
    PROPERTIES_SIZE_MAX,
)
from skylark.wire.message import MessageRecord, encode_record

#: Java knows one queue of half messages, and one of op messages.
HALF_QUEUE_ID: Final = 0
EXT_BROKER_NAME: Final = "bname"

_NUMBER_SIZE_MAX: Final = 18  # digits that surely fit into 64 bits
_QUEUE_ID_MAX: Final = (1 << 31) - 1


#: Names that the broker sets in a half message.
_SET_BY_BROKER: Final = (
    names.PROPERTY_TRANSACTION_ID,
    names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    names.PROPERTY_REAL_TOPIC,
    names.PROPERTY_REAL_QID,
)
_TRANSACTION_ID: Final = b"%b\x01%%b\x02" % names.PROPERTY_TRANSACTION_ID.encode()
_DESTINATION: Final = b"%b\x01%%b\x02%b\x01%%d\x02" % (
    names.PROPERTY_REAL_TOPIC.encode(),
    names.PROPERTY_REAL_QID.encode(),
)
_REAL_TOPIC_ITEM: Final = b"\x02%b\x01" % names.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE_ITEM: Final = b"\x02%b\x01" % names.PROPERTY_REAL_QID.encode()
_DROPPED: Final = (
    names.PROPERTY_REAL_TOPIC.encode(),
    names.PROPERTY_REAL_QID.encode(),
    names.PROPERTY_CRC32.encode(),
)


def drop_half_names(properties: dict[str, str]) -> None:
    """Remove what the broker itself says in a half message: a producer must not."""
    for name in _SET_BY_BROKER:
        properties.pop(name, None)


def half_suffix(unique_id: bytes, topic: str, queue_id: int) -> bytes:
    """What the broker appends to the property string of a half message."""
    return _TRANSACTION_ID % unique_id + _DESTINATION % (topic.encode(), queue_id)


def turn_into_half(draft: Draft, unique_id: str) -> int:
    """Turn a producer's message into a half message.

    Its property string ends with a separator, and has none of the names that the broker sets
    (:func:`drop_half_names`). The destination comes last, where :func:`final_properties` finds it;
    returned is how many bytes stand before it.
    """
    kept = draft.properties + _TRANSACTION_ID % unique_id.encode()
    draft.properties = kept + _DESTINATION % (draft.topic.encode(), draft.queue_id)
    draft.sys_flag &= ~FLAG_TRANSACTION_MASK
    draft.topic = HALF_TOPIC
    draft.queue_id = HALF_QUEUE_ID
    return len(kept)


def final_properties(raw: bytes) -> bytes:
    """The property string of the final message: that of the half message without its destination.

    The checksum of the half message's own record goes as well.
    """
    border = raw.rfind(_REAL_TOPIC_ITEM) + 1
    if border and raw.count(b"\x02", border) == 2 and raw.find(_REAL_QUEUE_ITEM, border) > 0:
        kept = raw[:border]  # it is the end, as turn_into_half writes it
        if _DROPPED[0] not in kept and _DROPPED[1] not in kept and _DROPPED[2] not in kept:
            return kept
    for name in _DROPPED:
        raw = names.without_property(raw, name)
    return raw


class HalfSource(Protocol):
    """A half message as it was drafted, or as it stands in the log."""

    @property
    def body(self) -> bytes: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp(self) -> int: ...
    @property
    def born_host(self) -> bytes: ...
    @property
    def reconsume_times(self) -> int: ...


class FinalDraft(Draft, gc=False):
    """A final message on its way into the log, and the half message that it was made of."""

    half_offset: int = 0
    first_offset: int = 0
    #: Where it belongs, also if it is delayed and goes elsewhere first.
    real_topic: str = ""
    #: What the half message was before: open, or given up.
    fate: int = 0


def final_draft(
    half: HalfSource, properties: bytes, topic: str, queue_id: int, log_offset: int
) -> FinalDraft:
    """The message that consumers get; its properties are the :func:`final_properties` of a half.

    It is held to the record format only: the half message was acknowledged.
    """
    sys_flag = half.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT
    return FinalDraft(
        topic, queue_id, half.body, properties, half.flag, sys_flag,
        half.born_timestamp, half.born_host, half.reconsume_times, log_offset,
        real_topic=topic, limits=PutLimits.RECORD_FORMAT_ONLY,
    )  # fmt: skip


class Half(msgspec.Struct, frozen=True, gc=False):
    """A half message as it stands in the log, or a copy of one that was given up."""

    record: MessageRecord
    properties: dict[str, str]
    #: Queue offset of the first copy: who this is.
    first_offset: int
    real_topic: str
    real_queue_id: int

    @property
    def offset(self) -> int:
        """Queue offset of this copy."""
        return self.record.queue_offset

    @property
    def group(self) -> str | None:
        """The producer group that decides."""
        return self.properties.get(names.PROPERTY_PGROUP)

    @property
    def unique_id(self) -> str | None:
        return self.properties.get(names.PROPERTY_UNIQ_KEY)

    @property
    def check_count(self) -> int:
        """How often its producer was asked; -1 if that cannot be read, as in Java."""
        text = self.properties.get(names.PROPERTY_TRANSACTION_CHECK_TIMES)
        if text is None:
            return 0
        number = parse_number(text)
        return -1 if number is None else number

    @property
    def has_immunity(self) -> bool:
        """Whether the producer said for how long it does not want to be asked."""
        return names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS in self.properties

    def immunity_ms(self, timeout_ms: int) -> int:
        """For how long after its birth nobody is asked; ``timeout_ms`` at least."""
        text = self.properties.get(names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        return max(timeout_ms, (parse_number(text) or 0) * 1000)

    # --- what becomes of it -----------------------------------------------------------------------

    def final(self) -> FinalDraft:
        """The message that consumers get."""
        record = self.record
        draft = final_draft(
            record,
            final_properties(record.raw_properties),
            self.real_topic,
            self.real_queue_id,
            record.log_offset,
        )
        draft.half_offset, draft.first_offset = self.offset, self.first_offset
        return draft

    def renewed(self) -> Draft:
        """The next copy, which has been asked about once more."""
        return self._with(HALF_TOPIC, self.check_count + 1)

    def given_up(self) -> Draft:
        """The copy that is kept when nobody is asked any more."""
        return self._with(CHECK_MAX_TIME_TOPIC, None)

    def resumed(self) -> Draft:
        """A copy of one that was given up, to be asked about from the beginning."""
        return self._with(HALF_TOPIC, 0)

    def _with(self, topic: str, check_count: int | None) -> Draft:
        properties = self._marked(check_count)
        # Java forgets flag and reconsume times with the first question; here a copy is a copy.
        draft = copy_of(self.record, topic, HALF_QUEUE_ID)
        draft.properties = names.encode_properties(properties).encode()
        return draft

    def _marked(self, check_count: int | None) -> dict[str, str]:
        properties = dict(self.properties)
        properties[names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET] = str(self.first_offset)
        if check_count is not None:
            properties[names.PROPERTY_TRANSACTION_CHECK_TIMES] = str(check_count)
        return properties

    def question(self, log_offset: int, queue_offset: int, broker_name: str) -> Command:
        """CHECK_TRANSACTION_STATE (39) about the copy just made, which stands at these offsets.

        The body is the message with its real topic and queue. As in Java it has the store time of
        the copy before, and WAIT=false.
        """
        record = self.record
        properties = self._marked(self.check_count + 1)
        properties[names.PROPERTY_WAIT] = "false"
        body = encode_record(
            self.real_topic,
            record.body,
            self._fitted(names.encode_properties(properties).encode()),
            queue_id=self.real_queue_id,
            queue_offset=queue_offset,
            log_offset=log_offset,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_timestamp=record.store_timestamp,
            store_host=record.store_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
        )
        header = CheckTransactionStateRequestHeader(
            topic=HALF_TOPIC,
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            msg_id=self.unique_id,
            transaction_id=self.unique_id,
            offset_msg_id=encode_offset_id(record.store_host, log_offset),
        )
        ext = encode_ext(header)
        ext[EXT_BROKER_NAME] = broker_name
        return Command(code=RequestCode.CHECK_TRANSACTION_STATE, ext=ext, body=body)

    def _fitted(self, properties: bytes) -> bytes:
        """Properties that a question can hold: without optional ones, or else the stored ones."""
        properties = without_optional(HALF_TOPIC, properties, _fits)
        stored = names.without_property(self.record.raw_properties, _CRC32)
        return properties if _fits(properties) else stored


def _fits(properties: bytes) -> bool:
    return len(properties) <= PROPERTIES_SIZE_MAX


def read_half(record: MessageRecord, topic: str = HALF_TOPIC) -> Half | None:
    """A record as a half message; None if it is none, or does not say where it belongs."""
    if record.topic != topic:
        return None
    properties = dict(record.properties)
    real_topic = properties.get(names.PROPERTY_REAL_TOPIC)
    real_queue_id = parse_number(properties.get(names.PROPERTY_REAL_QID, ""))
    if real_topic is None or real_queue_id is None or not 0 <= real_queue_id <= _QUEUE_ID_MAX:
        return None
    properties.pop(names.PROPERTY_CRC32, None)  # of this record
    return Half(record, properties, first_offset_of(record), real_topic, real_queue_id)


def first_offset_of(record: MessageRecord) -> int:
    """Queue offset of the first copy of a half message."""
    text = names.find_raw_property(record.raw_properties, _FIRST_OFFSET)
    number = None if text is None else parse_number(text.decode("utf-8", "replace"))
    return record.queue_offset if number is None or number < 0 else number


_FIRST_OFFSET: Final = names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET.encode()
_CRC32: Final = names.PROPERTY_CRC32.encode()


def parse_number(text: str) -> int | None:
    """A whole number as Java reads one; None for anything else."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or len(digits) > _NUMBER_SIZE_MAX:
        return None
    return int(text)
