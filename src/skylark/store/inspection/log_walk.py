"""Reads a log file from its first byte to its last, across damage, and finds the end of a log.

Recovery (:class:`skylark.store.log_replay.LogScan`) reads the log up to the first invalid record,
because the log ends there. A check or a dump also needs what comes after, and must decide whether
it was the end at all. So :func:`walk` yields everything it finds::

    RecordColumns   the records of a slice
    Hole            bytes that are not a record, up to the next valid record or the end of the file
    Blank           the record that closes the file

Behind a hole it searches for the magic codes; the bytes there count as a record only if they
contain their own log offset, have parts that add up, and a body that matches its checksum.

**End of the log** (:class:`LogEnd`). A hole may be the end of the log, damage, or old bytes behind
the end: Java does not clear what it truncates, and old records there look valid. It is damage if a
later file begins with a record, or if records follow and the queues have an entry for a record that
is not before the hole. Otherwise the log ends there, as it would for a start.

Memory: one slice, or one record if that is longer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple, TypeAlias

from skylark.store.consume_queue import PRE_BLANK_SIZE
from skylark.store.file_system import FileHandle, FileSystem
from skylark.store.inspection.queue_reader import QueueReader
from skylark.store.inspection.store_directory import LogFile, QueueDirectory, Survey
from skylark.store.log_replay import LOG_OFFSET_FIELD, first_blank
from skylark.wire.layout import (
    BLANK_RECORD,
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD_SIZE,
    RECORD_HEADS,
    RECORD_SIZE_MIN,
)
from skylark.wire.message import RecordError, RecordFault, Verify, decode_record
from skylark.wire.record_scan import RecordColumns, scan_records

SLICE_SIZE: Final = 4 << 20

_MAGIC: Final = re.compile(
    b"|".join(
        re.escape(magic.to_bytes(4, "big", signed=True))
        for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)
    )
)
_MAGIC_POSITION: Final = 4


class Hole(NamedTuple):
    """Bytes that are not a record."""

    log_offset: int
    fault: RecordFault | None  # None: the file is used up to its last byte and has no blank
    resume: int | None  # log offset of the next valid record or blank of the file
    dirty_end: int  # log offset after the last byte, up to there, that is not zero


class Blank(NamedTuple):
    """The end of a file; ``is_whole``: its size is that of the rest of the file."""

    log_offset: int
    is_whole: bool


Step: TypeAlias = RecordColumns | Hole | Blank


def walk(
    files: FileSystem,
    file: LogFile,
    *,
    verify: Verify | None = Verify.BODY,
    slice_size: int = SLICE_SIZE,
) -> Iterator[Step]:
    """Yield everything in a log file, in order; raises StoreFileError if it cannot be read."""
    with closing(files.open_file(file.path, writable=False)) as handle:
        yield from _Walk(handle, file, verify, max(slice_size, RECORD_SIZE_MIN)).steps()


def begins_with_record(files: FileSystem, file: LogFile) -> bool:
    """Whether the first bytes of a file are a valid record or a blank."""
    with closing(files.open_file(file.path, writable=False)) as handle:
        return _Walk(handle, file, Verify.BODY, SLICE_SIZE).is_sound(0)


class _Walk:
    """Positions are bytes from the beginning of the file."""

    def __init__(
        self, handle: FileHandle, file: LogFile, verify: Verify | None, slice_size: int
    ) -> None:
        self._handle = handle
        self._start = file.start_offset
        self._size = handle.size
        self._verify = verify
        self._slice_size = slice_size

    def steps(self) -> Iterator[Step]:
        position = needed = 0
        while position < self._size:
            content = self._handle.read(position, max(self._slice_size, needed))
            columns = self._scan(position, content, len(content))
            if columns.blank_count:
                columns = self._scan(position, content, first_blank(columns))
            if len(columns):
                yield columns
            stop, position = columns.end_position, position + columns.end_position
            needed = 0
            if stop == len(content) > 0:
                continue
            needed = self._needed(position, content[stop : stop + RECORD_HEAD_SIZE])
            if len(content) - stop < needed <= self._size - position:
                continue  # read again from here
            blank = self._blank(position)
            if blank is not None:
                yield blank
                return
            hole = self._hole(position)
            yield hole
            if hole.resume is None:
                return
            position, needed = hole.resume - self._start, 0
        end = self._start + self._size
        yield Hole(end, None, None, end)

    def _scan(self, position: int, content: bytes, end: int) -> RecordColumns:
        log_start = self._start + position
        return scan_records(content, 0, end, verify=self._verify, log_start=log_start, strict=False)

    def _needed(self, position: int, head: bytes) -> int:
        """Number of bytes to read to decide what is at this position."""
        if len(head) < RECORD_HEAD_SIZE:
            return min(RECORD_HEAD_SIZE, self._size - position)
        fields = RECORD_HEADS[0].unpack_from(head)
        in_place = fields[LOG_OFFSET_FIELD] == self._start + position
        is_record = fields[1] in (MAGIC_V1, MAGIC_V2) and in_place
        return int(fields[0]) if is_record else 0  # do not follow the size in garbage

    def _blank(self, position: int) -> Blank | None:
        content = self._handle.read(position, BLANK_SIZE_MIN)
        if len(content) < BLANK_SIZE_MIN:
            return None
        total_size, magic = BLANK_RECORD.unpack(content)
        if magic != MAGIC_BLANK:
            return None
        return Blank(self._start + position, position + total_size == self._size)

    # ---- holes -----------------------------------------------------------------------------------

    def _hole(self, position: int) -> Hole:
        """What is wrong at a position, and where records continue."""
        fault, size = self._fault(position)
        dirty_end, found = position, None
        if fault in (RecordFault.BAD_BODY_CRC, RecordFault.BAD_PROPERTY_CRC):
            dirty_end = position + size
            if self.is_sound(dirty_end):
                found = dirty_end
        start = position
        while found is None and start < self._size:
            content = self._handle.read(start, self._slice_size + RECORD_HEAD_SIZE)
            if content != bytes(len(content)):  # usually nothing was written there
                found = self._find(start, content, max(position + 1, start))
                used = content if found is None else content[: found - start]
                dirty = len(used.rstrip(b"\0"))
                if dirty:
                    dirty_end = max(dirty_end, start + dirty)
            start += self._slice_size
        return Hole(
            self._start + position,
            fault,
            None if found is None else self._start + found,
            self._start + dirty_end,
        )

    def _fault(self, position: int) -> tuple[RecordFault, int]:
        """The fault, and the size of the record if its structure is valid."""
        content = self._handle.read(position, RECORD_SIZE_MIN)
        size = RECORD_SIZE_MIN
        if len(content) == RECORD_SIZE_MIN:
            total_size, magic = BLANK_RECORD.unpack_from(content)
            room = min(
                self._size - position, max(self._slice_size, self._needed(position, content))
            )
            if magic in (MAGIC_V1, MAGIC_V2) and size < total_size <= room:
                size = total_size
                content = self._handle.read(position, size)
        log_start = self._start + position
        try:
            decode_record(content, verify=self._verify, log_start=log_start)
        except RecordError as error:
            return error.fault, size
        return RecordFault.TORN, size  # it was written during the check

    def _find(self, start: int, content: bytes, first: int) -> int | None:
        """The first valid record or blank that begins in these bytes, from ``first`` on."""
        for match in _MAGIC.finditer(content, first - start + _MAGIC_POSITION):
            position = start + match.start() - _MAGIC_POSITION
            if self.is_sound(position):
                return position
        return None

    def is_sound(self, position: int) -> bool:
        """Whether a valid record or blank begins here."""
        blank = self._blank(position)
        if blank is not None:
            return blank.is_whole
        head = self._handle.read(position, RECORD_HEAD_SIZE)
        if len(head) < RECORD_HEAD_SIZE:
            return False
        size = self._needed(position, head)
        if not RECORD_SIZE_MIN <= size <= self._size - position:
            return False
        content = self._handle.read(position, size)
        try:
            decode_record(content, verify=self._verify, log_start=self._start + position)
        except RecordError:
            return False
        return True


# ---- end of the log ------------------------------------------------------------------------------


class LogEnd:
    """Distinguishes the end of a log from damage in it."""

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
    """End of the record that the last entry of a queue points to."""

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
