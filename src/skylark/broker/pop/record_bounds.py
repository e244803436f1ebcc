"""Where the record of a message begins and ends, for queues whose records hold several messages.

A queue of a BatchCQ topic counts messages, but its entries are records: a producer's batch is one
record with many offsets (:mod:`skylark.store.batch_queue`). POP hands out, acknowledges and
delivers again whole records. So a check-point has one offset per record, that of its first message,
as in Java; a pop begins at a record, and an offset is committed only at the end of one. In all
other queues each message is a record, and these functions return what they are given.
"""

from __future__ import annotations

from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import EntryQueue


def record_start(queue: EntryQueue | None, offset: int) -> int:
    """The first offset of the record that holds the message at ``offset``."""
    if not isinstance(queue, BatchQueue):
        return offset
    entry = queue.read_entry(offset)
    return offset if entry is None else min(offset, entry.queue_offset)


def record_end(queue: EntryQueue | None, next_offset: int) -> int:
    """The end of the record that holds the message before ``next_offset``."""
    if not isinstance(queue, BatchQueue):
        return next_offset
    entry = queue.read_entry(next_offset - 1)
    if entry is None or entry.queue_offset >= next_offset:  # the message is gone
        return next_offset
    return max(next_offset, entry.queue_offset + entry.message_count)
