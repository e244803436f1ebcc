"""Recovery at start: reads back from the log which half messages are decided.

Three sources, in this order:

1. **Op messages** from the committed offset of the op queue on. They name decided messages, but do
   not say whether these were committed or rolled back. Cost: those since the oldest undecided
   message.
2. **Final messages** whose op message was lost, since decisions are collected for seconds before
   they are written. They are records of transaction type "commit" with the log offset of their half
   message. The log is read from the *later* of two places: the last op message
   (:mod:`skylark.broker.transaction.op_messages` explains why none before it is missing) and the
   first undecided half message. Cost: about 3 s of appends at some 1 GB/s; at most the appends
   between two rounds of check-backs plus 64 MiB, because a round writes an op message as a mark
   when more than that was appended since the last one; nothing if no half message is undecided.
3. **The half queue** from the committed offset on, to find the newest copy of each message. Cost:
   some 5 microseconds for each half message since the oldest undecided one.

After a crash, a commit whose final message is in the log counts, and is not repeated. Its op
message is written at once, because the next start relies on it. A rollback without op message is
lost: the message is undecided again, and the broker checks back. A copy whose position was not
committed makes its original obsolete, which step 3 finds. Stores of a killed Java broker may lack
op messages further back, because Java writes its collected decisions in several messages.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.transaction.decisions import Decisions
from skylark.broker.transaction.half_message import (
    HALF_QUEUE_ID,
    first_offset_of,
    read_queue,
    read_record,
)
from skylark.broker.transaction.op_messages import REMOVE_TAG, OpProgress, parse_op
from skylark.core.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from skylark.store.log_replay import LogScan
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from skylark.wire.message import decode_record
from skylark.wire.record_scan import RecordColumns

logger = logging.getLogger(__name__)

_READ_COUNT: Final = 4_096


class Recovered(msgspec.Struct):
    """State of the half messages: read at start, then kept up to date."""

    decisions: Decisions
    progress: OpProgress
    #: Queue offset of the first half message that may be undecided.
    position: int
    #: Log offset of the last op message: every final message before it has its op message.
    last_op_log_offset: int
    #: Half messages with a final message but no op message: the next op message names them.
    unwritten: list[int]


def recover(store: MessageStore, offsets: OffsetTable) -> Recovered:
    """Read the state that the last run has left; raises StoreError if the log is unreadable."""
    position = _committed(store, offsets, HALF_TOPIC)
    op_position = _committed(store, offsets, OP_HALF_TOPIC)
    found = Recovered(Decisions(position), OpProgress(op_position), position, 0, [])
    _read_ops(store, found, op_position)
    _read_finals(store, found)
    half_count = _read_copies(store, found)
    if half_count:
        logger.info(
            "the broker recovered %d half messages from offset %d on;"
            " %d final messages have no op message, %d half messages have copies",
            half_count,
            position,
            len(found.unwritten),
            len(found.decisions.copies),
        )
    return found


def _committed(store: MessageStore, offsets: OffsetTable, topic: str) -> int:
    """The committed offset of a queue, within the range that the queue still has."""
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
                    found.decisions.read_op(half_offset)
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
            if half is not None and found.decisions.read_final(*half):
                found.unwritten.extend(dict.fromkeys(half))


def _half_of_final(store: MessageStore, columns: RecordColumns, row: int) -> tuple[int, int] | None:
    """Queue offsets of the copy that a record of type "commit" names, and of the first copy.

    None if the record is no final message: a producer may have set the type, and then the record it
    names is not a half message with the same id.
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
            found.decisions.read_copy(record.queue_offset, first_offset_of(record))
        count += len(records)
        if next_offset <= offset:
            return count
        offset = next_offset
