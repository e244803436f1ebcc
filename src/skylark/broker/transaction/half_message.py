"""Half messages, and the copies and final messages made from them.

A producer's transactional message is stored where consumers cannot see it, in the only queue of
RMQ_SYS_TRANS_HALF_TOPIC, with its destination in ``REAL_TOPIC`` and ``REAL_QID``
(:func:`turn_into_half`). The broker makes from it

* the *final* message, when it is committed (:func:`final_draft`): transaction type "commit", with
  the log offset of the half message in the prepared transaction offset. All properties but the
  destination stay, ``TRAN_MSG`` included;
* the *next copy*, with each check-back (:meth:`Half.next_copy`): rounds read the queue from its
  front, so an undecided message moves to its end;
* a copy in TRANS_CHECK_MAX_TIME_TOPIC, when it is given up (:meth:`Half.given_up_copy`), which an
  administrator can resume (:meth:`Half.resumed_copy`).

**Identity.** A half message is identified by the queue offset of its *first* copy, which every
later copy has in ``TRAN_PREPARED_QUEUE_OFFSET``. So both results of two check-backs are about one
message. Java sets that property only during immunity; here every copy has it. A producer cannot set
it: :func:`drop_half_names` removes it.

**Delay.** ``DELAY`` and the timer properties of a half message apply when it is committed. In Java
a half message with a delay is lost.

Counterpart of ``TransactionalMessageBridge`` and ``EndTransactionProcessor.endMessageTransaction``.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from skylark.broker.send.message_writer import copy_of
from skylark.broker.send.own_copies import without_optional
from skylark.core.hashing import encode_offset_id
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from skylark.store.commit_log import Draft, PutLimits
from skylark.store.message_reader import Views
from skylark.store.message_store import MessageStore
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
from skylark.wire.message import (
    MessageRecord,
    RecordError,
    decode_record,
    encode_record,
    iter_records,
)

#: The half topic and the op topic have one queue each, as in Java.
HALF_QUEUE_ID: Final = 0
EXT_BROKER_NAME: Final = "bname"

_READ_SIZE_MAX: Final = 1 << 20
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
    """Remove properties that only the broker may set in a half message."""
    for name in _SET_BY_BROKER:
        properties.pop(name, None)


def half_suffix(unique_id: bytes, topic: str, queue_id: int) -> bytes:
    """The properties that the broker appends to those of a half message."""
    return _TRANSACTION_ID % unique_id + _DESTINATION % (topic.encode(), queue_id)


def turn_into_half(draft: Draft, unique_id: str) -> int:
    """Turn a producer's message into a half message.

    Its property string must end with a separator and have no name that the broker sets
    (:func:`drop_half_names`). The destination comes last, where :func:`final_properties` finds it.
    Returns the size of the properties before the destination.
    """
    kept = draft.properties + _TRANSACTION_ID % unique_id.encode()
    draft.properties = kept + _DESTINATION % (draft.topic.encode(), draft.queue_id)
    draft.sys_flag &= ~FLAG_TRANSACTION_MASK
    draft.topic = HALF_TOPIC
    draft.queue_id = HALF_QUEUE_ID
    return len(kept)


def final_properties(raw: bytes) -> bytes:
    """The property string of the final message: that of the half message without its destination.

    The checksum of the half message's record is removed too.
    """
    border = raw.rfind(_REAL_TOPIC_ITEM) + 1
    is_last = raw.endswith(b"\x02") and raw.count(b"\x02", border) == 2
    if border and is_last and raw.find(_REAL_QUEUE_ITEM, border) > 0:
        kept = raw[:border]  # the destination is at the end, as turn_into_half writes it
        if not has_half_names(kept):
            return kept
    for name in _DROPPED:
        raw = names.without_property(raw, name)
    return raw


def has_half_names(raw: bytes) -> bool:
    """Whether property strings may have names that final messages must not have."""
    return _DROPPED[0] in raw or _DROPPED[1] in raw or _DROPPED[2] in raw


class FinalDraft(Draft, gc=False):
    """Draft of a final message, with the offsets of its half message."""

    half_offset: int = 0
    first_offset: int = 0
    #: Topic of the final message, also if it is delayed and stored in another topic first.
    real_topic: str = ""
    #: Outcome of the half message before this commit: open or given up.
    outcome: int = 0


def final_draft(
    half: Draft | MessageRecord, properties: bytes, topic: str, queue_id: int, log_offset: int
) -> FinalDraft:
    """The message for consumers; ``properties`` are the :func:`final_properties` of the half.

    ``half`` is the draft of the half message, or its record in the log.
    Only the record format limits it, not the settings: the half message was acknowledged.
    """
    sys_flag = half.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT
    return FinalDraft(
        topic, queue_id, half.body, properties, half.flag, sys_flag,
        half.born_timestamp, half.born_host, half.reconsume_times, log_offset,
        real_topic=topic, limits=PutLimits.RECORD_FORMAT_ONLY,
    )  # fmt: skip


class Half(msgspec.Struct, frozen=True, gc=False):
    """A half message in the log, or a copy of one that was given up."""

    record: MessageRecord
    properties: dict[str, str]
    #: Queue offset of the first copy: the identity of the message.
    first_offset: int
    real_topic: str
    real_queue_id: int

    @property
    def offset(self) -> int:
        """Queue offset of this copy."""
        return self.record.queue_offset

    @property
    def group(self) -> str | None:
        """The producer group."""
        return self.properties.get(names.PROPERTY_PGROUP)

    @property
    def unique_id(self) -> str | None:
        return self.properties.get(names.PROPERTY_UNIQ_KEY)

    @property
    def check_count(self) -> int:
        """Number of check-backs; -1 if the property is not a number, as in Java."""
        text = self.properties.get(names.PROPERTY_TRANSACTION_CHECK_TIMES)
        if text is None:
            return 0
        number = parse_number(text)
        return -1 if number is None else number

    @property
    def has_immunity(self) -> bool:
        """Whether the producer has set a time without check-backs."""
        return names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS in self.properties

    def immunity_ms(self, timeout_ms: int) -> int:
        """Time after the born time without check-backs; ``timeout_ms`` at least."""
        text = self.properties.get(names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS, "")
        return max(timeout_ms, (parse_number(text) or 0) * 1000)

    # --- copies and the final message -------------------------------------------------------------

    def final_message(self) -> FinalDraft:
        """The message for consumers."""
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

    def next_copy(self) -> Draft:
        """The copy for one more check-back."""
        return self._copy(HALF_TOPIC, self.check_count + 1)

    def given_up_copy(self) -> Draft:
        """The copy for TRANS_CHECK_MAX_TIME_TOPIC."""
        return self._copy(CHECK_MAX_TIME_TOPIC, None)

    def resumed_copy(self) -> Draft:
        """A copy of a message that was given up, with its check count set to zero."""
        return self._copy(HALF_TOPIC, 0)

    def _copy(self, topic: str, check_count: int | None) -> Draft:
        properties = self._copy_properties(check_count)
        # Java drops flag and reconsume times at the first check-back; here copies keep them.
        draft = copy_of(self.record, topic, HALF_QUEUE_ID)
        draft.properties = names.encode_properties(properties).encode()
        return draft

    def _copy_properties(self, check_count: int | None) -> dict[str, str]:
        properties = dict(self.properties)
        properties[names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET] = str(self.first_offset)
        if check_count is not None:
            properties[names.PROPERTY_TRANSACTION_CHECK_TIMES] = str(check_count)
        return properties

    def check_request(self, log_offset: int, queue_offset: int, broker_name: str) -> Command:
        """CHECK_TRANSACTION_STATE (39) about the new copy, which has these offsets.

        The body is the message with its real topic and queue. As in Java it has the store time of
        the previous copy, and WAIT=false.
        """
        record = self.record
        properties = self._copy_properties(self.check_count + 1)
        properties[names.PROPERTY_WAIT] = "false"
        body = encode_record(
            self.real_topic,
            record.body,
            self._fit(names.encode_properties(properties).encode()),
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

    def _fit(self, properties: bytes) -> bytes:
        """Properties that fit into a record: without optional ones, or else the stored ones."""
        properties = without_optional(HALF_TOPIC, properties, _fits)
        stored = names.without_property(self.record.raw_properties, _CRC32)
        return properties if _fits(properties) else stored


def _fits(properties: bytes) -> bool:
    return len(properties) <= PROPERTIES_SIZE_MAX


def read_half(record: MessageRecord, topic: str = HALF_TOPIC) -> Half | None:
    """A record as a half message; None if it is not one, or names no real topic and queue."""
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
    """An integer in Java's format; None for any other text."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or len(digits) > _NUMBER_SIZE_MAX:
        return None
    return int(text)


# ---- reading records -----------------------------------------------------------------------------


def read_queue(
    store: MessageStore, topic: str, queue_id: int, offset: int, count_max: int
) -> tuple[list[MessageRecord], int]:
    """Some messages of a queue from ``offset`` on, and the next offset to read.

    At the end of the queue there are none, and the offset stays the same. Skips messages that
    retention has deleted.
    """
    result = store.reader.get(
        topic, queue_id, offset, count_max, bytes_max=_READ_SIZE_MAX, bulk=True
    )
    return take_records(result), result.next_offset


def take_records(result: Views) -> list[MessageRecord]:
    """The records of a result; releases it."""
    try:
        return [record for view in result.views for record in iter_records(view)]
    finally:
        result.release()


def topic_of_half(store: MessageStore, log_offset: int) -> str | None:
    """The real topic of a half message; None if no half message is there."""
    with contextlib.suppress(RecordError):
        record = read_record(store, log_offset)
        if record is not None and record.topic == HALF_TOPIC:
            return record.properties.get(names.PROPERTY_REAL_TOPIC)
    return None


def read_record(store: MessageStore, log_offset: int) -> MessageRecord | None:
    """The record at a log offset; None if no record begins there."""
    lease = store.reader.record(log_offset)
    if lease is None:
        return None
    with lease:
        return decode_record(lease.view)
