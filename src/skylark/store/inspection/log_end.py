"""Where a log ends that nobody recovers: at a hole that is not damage in the middle of it.

Something that is no record may be the end of the log, damage, or old bytes behind the end: Java
does not clear what it cuts off, and old records stay there that look sound. It is damage if a later
file begins with a record, or if records follow and the queues know one that is not before the hole.
Otherwise the log ends there, which is what a start would make of it.
"""

from __future__ import annotations

from bisect import bisect_left

from skylark.store.consume_queue import PRE_BLANK_SIZE
from skylark.store.file_system import FileSystem
from skylark.store.inspection.log_walk import Hole, begins_with_record
from skylark.store.inspection.queue_reader import QueueReader
from skylark.store.inspection.store_directory import QueueDirectory, Survey


class LogEnd:
    """Tells the end of a log from damage in it."""

    def __init__(self, files: FileSystem, survey: Survey) -> None:
        self._files = files
        self._log_files = survey.log_files
        reader = QueueReader(files)
        ends = [_last_record_end(reader, queue) for queue in survey.queues]
        reader.close()
        #: End of the last record that any queue has an entry of; 0 if there is none.
        self.dispatched = max(ends, default=0)

    def is_at(self, hole: Hole, file_number: int) -> bool:
        """Whether the log ends at a hole in its file of this number."""
        later = self._log_files[file_number + 1 :]
        if any(begins_with_record(self._files, file) for file in later):
            return False
        return hole.resume is None or hole.log_offset >= self.dispatched


def _last_record_end(reader: QueueReader, queue: QueueDirectory) -> int:
    """End of the record that the last entry of a queue leads to."""

    def entry(index: int) -> tuple[int, int]:
        for log_offset, size, *_ in reader.read(queue, index, 1).tolist():
            return log_offset, size
        return 0, 0

    for start in reversed(queue.starts):
        first = start // queue.entry_size
        indexes = range(first, first + queue.file_size // queue.entry_size)
        used = bisect_left(indexes, True, key=lambda index: entry(index)[1] <= 0)
        if used:
            log_offset, size = entry(first + used - 1)
            return 0 if (log_offset, size) == (0, PRE_BLANK_SIZE) else log_offset + size
    return 0
