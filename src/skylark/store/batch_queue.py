"""Consume queue of a BatchCQ topic: one entry per record, each record with several messages.

A producer's batch is stored unsplit as one record (an inner batch), so an entry names the messages
that it holds::

    0 log offset (8) | 8 record size (4) | 12 tags code (8) | 20 store timestamp (8)
    28 queue offset of the first message (8) | 36 number of messages (2)
    38 compacted offset, -1 (4) | 42 reserved, 0 (4)

``min_offset`` and ``max_offset`` count messages, not entries; bisection finds the entry of a
message. Everything else (tail, files, what a crash leaves and how it is repaired) is as in
:mod:`skylark.store.consume_queue`. There are no pre-blank entries: the first entry contains the
queue offset at which the queue begins, and so a gap does no harm either.

Counterpart of Java's ``BatchConsumeQueue``.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

from skylark.store.consume_queue import Dispatched, EntryQueue, QueueEntry, StoreTimeOf
from skylark.wire.layout import BATCH_CQ_ENTRY, BATCH_CQ_ENTRY_SIZE, batch_cq_dtype

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)

NOT_COMPACTED: Final = -1
MESSAGE_COUNT_MAX: Final = 0x7FFF

_pack = BATCH_CQ_ENTRY.pack
_unpack_from = BATCH_CQ_ENTRY.unpack_from


class BatchQueue(EntryQueue):
    """Entries of 46 bytes, one for each inner batch."""

    __slots__ = ()

    entry_size = BATCH_CQ_ENTRY_SIZE
    content = "inner batches"

    def entry_dtype(self) -> np.dtype[Any]:
        return batch_cq_dtype()

    def append(
        self, log_offset: int, size: int, tags_code: int, store_timestamp: int, message_count: int
    ) -> None:
        """Add ``message_count`` messages, the first with queue offset ``max_offset``."""
        assert 0 < message_count <= MESSAGE_COUNT_MAX, "no batch has so many messages"
        if not self._dirty:
            self._mark_dirty()
        tail = self._tail
        tail += _pack(
            log_offset,
            size,
            tags_code,
            store_timestamp,
            self.max_offset,
            message_count,
            NOT_COMPACTED,
            0,
        )
        self.max_offset += message_count
        self.max_log_offset = log_offset + size
        if len(tail) >= self._flush_at:
            self._overflow()

    def dispatch(
        self,
        log_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,
        queue_offset: int,
        message_count: int,
    ) -> Dispatched:
        """Append an inner batch of the log unless the queue has it; as in a consume queue."""
        if log_offset + size <= self.max_log_offset:
            return Dispatched.REPEATED
        if queue_offset < 0 or not 0 < message_count <= MESSAGE_COUNT_MAX:
            logger.error(
                "%r: the record at %s has the queue offset %s and %s messages",
                self,
                log_offset,
                queue_offset,
                message_count,
            )
            return Dispatched.MISPLACED
        result = Dispatched.APPENDED
        if queue_offset != self.max_offset:
            if queue_offset == 0 or self.max_log_offset < 0:
                self.destroy()
                self.min_offset = queue_offset
            elif queue_offset < self.max_offset:
                return Dispatched.REPEATED
            else:
                logger.warning(
                    "%r: the record at %s has the unexpected queue offset %s",
                    self,
                    log_offset,
                    queue_offset,
                )
                result = Dispatched.MISPLACED
            self.max_offset = queue_offset
        self.append(log_offset, size, tags_code, store_timestamp, message_count)
        self.next_offset = self.max_offset
        return result

    def entries(self, start: int, count: int) -> bytes | bytearray:
        if not self.min_offset <= start < self.max_offset:
            return b""
        return self._read(self._index_of(start) * self.entry_size, count * self.entry_size)

    def read_entry(self, queue_offset: int) -> QueueEntry | None:
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        log_offset, size, tags_code, _, first, count, _, _ = self._entry(
            self._index_of(queue_offset)
        )
        return QueueEntry(first, log_offset, size, tags_code, count)

    def _store_time_at(self, index: int, store_time_of: StoreTimeOf) -> int:
        del store_time_of  # entries contain the time
        return self._entry(index)[3]

    def _entry(self, index: int) -> tuple[int, ...]:
        return _unpack_from(self._read_entry(index))

    def _index_of(self, queue_offset: int) -> int:
        """Index of the entry that holds a message, or of the next one if it is in a gap."""
        indexes = range(self._min_index, self._end_index)
        index = self._min_index + bisect_right(indexes, queue_offset, key=self._offset_at) - 1
        entry = self._entry(index)
        return index if queue_offset < entry[4] + entry[5] else index + 1

    def _offset_at(self, index: int) -> int:
        if index < self._end_index:
            return self._entry(index)[4]
        if index == self._first_index:
            return 0
        last = self._entry(index - 1)
        return last[4] + last[5]

    def _valid(
        self, chunk: npt.NDArray[Any], record_end: int, log_end: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        valid, ends = super()._valid(chunk, record_end, log_end)
        return valid & (chunk["queue_offset"] >= 0) & (chunk["count"] > 0), ends
