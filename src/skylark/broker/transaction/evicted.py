"""How a half message was decided that memory knows nothing about any more.

Somebody may repeat a decision after a restart, when the check rounds had passed the message long
before. It was committed if a final message was made of it, given up if a copy was kept of it, and
otherwise rolled back. Both would be in the index by the message's unique id. That may belong to
several messages, because producers repeat a send that timed out: the right one names this one.

A Java broker that had this store before made copies which do not say of what. Those with the same
unique id count as copies of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skylark.broker.transaction.decisions import Fate, Resolved
from skylark.broker.transaction.half_message import HALF_QUEUE_ID, Half, first_offset_of
from skylark.broker.transaction.record_lookup import take_records
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
    """Whether the index would show what became of a message."""
    return store.index is not None and store.index.behind_from is None and bool(half.unique_id)


def look_up(store: MessageStore, resolved: Resolved, half: Half) -> tuple[Fate, int]:
    """What became of a message of which memory has no copy, and the first copy it goes by.

    Raises BrokerError if nobody knows.
    """
    if not can_look_up(store, half):
        if store.index is not None and half.unique_id:
            raise SystemBusyError(
                "whether the half message was decided cannot be told yet",
                hint="the index is being brought up to date: repeat later",
            )
        raise BrokerError(
            "whether the half message was decided cannot be told any more",
            hint="with messageIndexEnable=true and a unique id it could",
        )
    if was_committed(store, half):
        return Fate.COMMITTED, half.first_offset
    first = str(half.first_offset)
    if any(
        record.properties.get(_FIRST_OFFSET, first) == first
        for record in _find(store, CHECK_MAX_TIME_TOPIC, half)
    ):
        return Fate.GIVEN_UP, half.first_offset
    for record in _find(store, HALF_TOPIC, half):
        if record.queue_offset >= resolved.floor and _CHECK_TIMES in record.properties:
            copied_from = first_offset_of(record)
            fate = resolved.fate(record.queue_offset, copied_from) or Fate.OPEN
            return fate, copied_from
    return Fate.ROLLED_BACK, half.first_offset


def was_committed(store: MessageStore, half: Half) -> bool:
    """Whether a final message was made of a message, or of a copy of it."""
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
    """Where the first copy stands; None if it is gone."""
    if half.record.topic == HALF_TOPIC and half.offset == half.first_offset:
        return half.record.log_offset
    queue = store.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
    entry = None if queue is None else queue.read_entry(half.first_offset)
    return None if entry is None else entry.log_offset
