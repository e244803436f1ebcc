"""At start: which half messages are decided, read back from the log.

Three sources, in this order:

1. **Op messages** from the committed offset of the op queue on name decided messages, but not which
   way they were decided. Cost: those since the oldest undecided message.
2. **Final messages** whose op message was lost, for decisions are collected for seconds before they
   are written. They are records of transaction type "commit"; the field of the half message's log
   offset names the copy they were made of. The log is read from the *later* of two places: the last
   op message (:mod:`skylark.broker.transaction.op_messages` says why nothing before it is missing)
   and the first undecided half message. Cost: about 3 s of appends at some 1 GB/s; at most what was
   appended between two rounds of checks plus 64 MiB, because a round that finds more than that
   behind the last op message writes one as a mark; nothing where no half message is undecided.
3. **The half queue** from the committed offset on: copies, to know which one stands for a message.
   Cost: some 5 microseconds for each half message since the oldest undecided one.

What a crash leaves, then: a commit whose final message is in the log counts, and is not repeated.
Its op message is written at once, for the next start relies on it.
A rollback whose op message is not, is forgotten: the message is undecided again, and its producer
is asked. A copy whose place in the queue was not committed makes the one before it a copy too many,
which step 3 finds. Stores that a killed Java broker has left may lack op messages further back,
for it writes what it has collected in several messages.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.transaction.decisions import Resolved
from skylark.broker.transaction.half_message import HALF_QUEUE_ID, first_offset_of
from skylark.broker.transaction.op_messages import REMOVE_TAG, OpProgress, parse_op
from skylark.broker.transaction.record_lookup import read_queue, read_record
from skylark.core.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from skylark.store.log_replay import LogScan
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from skylark.wire.message import decode_record
from skylark.wire.record_scan import RecordColumns

log = logging.getLogger(__name__)

_READ_COUNT: Final = 4_096


class Recovered(msgspec.Struct):
    """What is known about half messages at start."""

    resolved: Resolved
    progress: OpProgress
    #: Queue offset of the first half message that may be undecided.
    position: int
    #: Log offset of the last op message: no final message before it lacks its own.
    last_op_log_offset: int
    #: Half messages whose final message lacks it: to be named by the next one.
    unwritten: list[int]


def recover(store: MessageStore, offsets: OffsetTable) -> Recovered:
    """Read back what the last run has left; raises StoreError if the log cannot be read."""
    position = _committed(store, offsets, HALF_TOPIC)
    op_position = _committed(store, offsets, OP_HALF_TOPIC)
    found = Recovered(Resolved(position), OpProgress(op_position), position, 0, [])
    _read_ops(store, found, op_position)
    _read_finals(store, found)
    half_count = _read_copies(store, found)
    if half_count:
        log.info(
            "%d half messages from %d on, %d final messages without op message, %d copies",
            half_count,
            position,
            len(found.unwritten),
            len(found.resolved.copies),
        )
    return found


def _committed(store: MessageStore, offsets: OffsetTable, topic: str) -> int:
    """How far the last run has come in a queue, within what the queue still has."""
    low = store.reader.min_offset(topic, HALF_QUEUE_ID)
    high = store.reader.max_offset(topic, HALF_QUEUE_ID)
    return max(low, min(high, offsets.get(TRANSACTION_GROUP, topic, HALF_QUEUE_ID)))


def _read_ops(store: MessageStore, found: Recovered, offset: int) -> None:
    last = store.queues.get(OP_HALF_TOPIC, HALF_QUEUE_ID)
    entry = None if last is None else last.read_entry(last.max_offset - 1)
    if entry is not None:
        found.last_op_log_offset = entry.log_offset
    while True:
        records, next_offset = read_queue(store, OP_HALF_TOPIC, HALF_QUEUE_ID, offset, _READ_COUNT)
        for record in records:
            highest = -1
            if record.properties.get(names.PROPERTY_TAGS) == REMOVE_TAG:
                for half_offset in parse_op(record.body):
                    found.resolved.read_op(half_offset)
                    highest = max(highest, half_offset)
            found.progress.written(highest)
        if next_offset <= offset:
            return
        offset = next_offset


def _read_finals(store: MessageStore, found: Recovered) -> None:
    queue = store.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
    first = None if queue is None else queue.read_entry(found.position)
    if first is None:
        return  # no half message is undecided
    start = max(found.last_op_log_offset, first.log_offset, store.log.min_offset)
    scan = LogScan(store.log.files, start)
    while (columns := scan.next(store.log.max_offset)) is not None:
        kinds = columns.sys_flag & FLAG_TRANSACTION_MASK
        for row in (kinds == FLAG_TRANSACTION_COMMIT).nonzero()[0].tolist():
            half = _half_of_final(store, columns, row)
            if half is not None and found.resolved.read_final(*half):
                found.unwritten.extend(dict.fromkeys(half))


def _half_of_final(store: MessageStore, columns: RecordColumns, row: int) -> tuple[int, int] | None:
    """The copy of which a record of type "commit" was made, and the first one.

    A producer may set the type as well: then the record it names is no half message with its id.
    """
    half = read_record(store, int(columns.prepared_transaction_offset[row]))
    if half is None or half.topic != HALF_TOPIC:
        return None
    final = decode_record(columns.buffer, int(columns.position[row]))
    unique_id = final.properties.get(names.PROPERTY_UNIQ_KEY)
    if unique_id != half.properties.get(names.PROPERTY_UNIQ_KEY):
        return None
    return half.queue_offset, first_offset_of(half)


def _read_copies(store: MessageStore, found: Recovered) -> int:
    offset, count = found.position, 0
    while True:
        records, next_offset = read_queue(store, HALF_TOPIC, HALF_QUEUE_ID, offset, _READ_COUNT)
        for record in records:
            found.resolved.read_copy(record.queue_offset, first_offset_of(record))
        count += len(records)
        if next_offset <= offset:
            return count
        offset = next_offset
