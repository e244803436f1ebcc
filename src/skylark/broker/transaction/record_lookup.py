"""Reading whole records, for parts of the broker that look into what they have stored."""

from __future__ import annotations

import contextlib

from skylark.core.names import HALF_TOPIC
from skylark.store.message_reader import Views
from skylark.store.message_store import MessageStore
from skylark.wire.message import MessageRecord, RecordError, decode_record, iter_records
from skylark.wire.properties import PROPERTY_REAL_TOPIC

READ_SIZE_MAX = 1 << 20


def read_queue(
    store: MessageStore, topic: str, queue_id: int, offset: int, count_max: int
) -> tuple[list[MessageRecord], int]:
    """Some messages of a queue from ``offset`` on, and the offset to go on with.

    The end of the queue is where there are none and the offset stays the same. Messages that
    retention has deleted are passed over.
    """
    result = store.reader.get(
        topic, queue_id, offset, count_max, bytes_max=READ_SIZE_MAX, bulk=True
    )
    return take_records(result), result.next_offset


def take_records(result: Views) -> list[MessageRecord]:
    """The records of a result, which is released."""
    try:
        return [record for view in result.views for record in iter_records(view)]
    finally:
        result.release()


def topic_of_half(store: MessageStore, log_offset: int) -> str | None:
    """The topic that a half message belongs to; None if there is no half message."""
    with contextlib.suppress(RecordError):
        record = read_record(store, log_offset)
        if record is not None and record.topic == HALF_TOPIC:
            return record.properties.get(PROPERTY_REAL_TOPIC)
    return None


def read_record(store: MessageStore, log_offset: int) -> MessageRecord | None:
    """The record at a log offset; None if none begins there."""
    lease = store.reader.record(log_offset)
    if lease is None:
        return None
    with lease:
        return decode_record(lease.view)
