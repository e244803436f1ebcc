"""Looks up the outcomes of half messages that are no longer in memory, in the index and the log.

A producer may repeat a decision after a restart, long after the check rounds have passed the
message. It was committed if it has a final message, given up if it has a copy in
TRANS_CHECK_MAX_TIME_TOPIC, and otherwise rolled back. The index finds both by the unique id of the
message. Several messages may have one id, because producers repeat a send that timed out; the final
message or copy names the half message it was made from.

Copies of a Java broker do not name their original. Those with the same unique id count as copies of
the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skylark.broker.transaction.decisions import Decisions, HalfOutcome
from skylark.broker.transaction.half_message import (
    HALF_QUEUE_ID,
    Half,
    first_offset_of,
    take_records,
)
from skylark.core.errors import BrokerError, SystemBusyError
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from skylark.wire.message import MessageRecord

_COUNT_MAX: Final = 64
_CHECK_TIMES: Final = names.PROPERTY_TRANSACTION_CHECK_TIMES
_FIRST_OFFSET: Final = names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET


def can_look_up(store: MessageStore, half: Half) -> bool:
    """Whether the index can show the outcome of a message."""
    return store.index is not None and store.index.behind_from is None and bool(half.unique_id)


def look_up(store: MessageStore, decisions: Decisions, half: Half) -> tuple[HalfOutcome, int]:
    """The outcome of an evicted message, and the queue offset of its first copy.

    Raises BrokerError if the outcome cannot be found.
    """
    if not can_look_up(store, half):
        if store.index is not None and half.unique_id:
            raise SystemBusyError(
                "the broker does not know yet whether the half message was decided",
                hint="the index is being rebuilt: repeat later",
            )
        raise BrokerError(
            "the broker does not know any more whether the half message was decided",
            hint="this needs messageIndexEnable=true and a message with a unique id",
        )
    if was_committed(store, half):
        return HalfOutcome.COMMITTED, half.first_offset
    first = str(half.first_offset)
    if any(
        record.properties.get(_FIRST_OFFSET, first) == first
        for record in _find(store, CHECK_MAX_TIME_TOPIC, half)
    ):
        return HalfOutcome.GIVEN_UP, half.first_offset
    for record in _find(store, HALF_TOPIC, half):
        if record.queue_offset >= decisions.floor and _CHECK_TIMES in record.properties:
            copied_from = first_offset_of(record)
            outcome = decisions.outcome(record.queue_offset, copied_from) or HalfOutcome.OPEN
            return outcome, copied_from
    return HalfOutcome.ROLLED_BACK, half.first_offset


def was_committed(store: MessageStore, half: Half) -> bool:
    """Whether a message, or a copy of it, has a final message."""
    first, first_log_offset = str(half.first_offset), _first_log_offset(store, half)
    return any(
        record.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_COMMIT
        and (
            record.properties.get(_FIRST_OFFSET) == first
            or record.prepared_transaction_offset == first_log_offset
            or _is_copy_of_java(record.properties)
            or _is_copy_of_java(half.properties)
        )
        for topic in (half.real_topic, SCHEDULE_TOPIC, TIMER_TOPIC)
        for record in _find(store, topic, half)
    )


def _is_copy_of_java(properties: dict[str, str]) -> bool:
    return _CHECK_TIMES in properties and _FIRST_OFFSET not in properties


def _find(store: MessageStore, topic: str, half: Half) -> Iterator[MessageRecord]:
    for record in take_records(store.reader.query(topic, half.unique_id or "", _COUNT_MAX)):
        if (
            record.topic == topic
            and record.properties.get(names.PROPERTY_UNIQ_KEY) == half.unique_id
        ):
            yield record


def _first_log_offset(store: MessageStore, half: Half) -> int | None:
    """Log offset of the first copy; None if retention has deleted it."""
    if half.record.topic == HALF_TOPIC and half.offset == half.first_offset:
        return half.record.log_offset
    queue = store.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
    entry = None if queue is None else queue.read_entry(half.first_offset)
    return None if entry is None else entry.log_offset
