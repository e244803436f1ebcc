"""Consume queue: for each message of one queue of a topic, where its record is in the commit log.

Entry ``i`` belongs to the message with queue offset ``i``::

    0 log offset (8) | 8 record size (4) | 12 tags code (8)

A queue whose first message has an offset above 0 begins with pre-blank entries (log offset 0, size
0x7FFFFFFF) up to it. They are not messages: ``min_offset`` is after them.

New entries go to a tail in memory. ``flush_tail`` writes them to the files and keeps the newest
ones in memory as well, because that is where consumers read; older ones are read from the files::

    0        min_offset                 tail_start     written        max_offset
    |.........|== in files only =============|== in both ===|== in memory ==|

``append`` serves the put of a message: it assumes that the message has the next queue offset.
``dispatch`` serves replay, where the record contains its queue offset: repeats are ignored, a queue
begins at the offset of its first message, and a message with offset 0 that is newer than all
entries restarts the queue, because its topic was deleted and created again (Java appends it, and
then takes the following messages for repeats). Any later message restarts an empty queue.

What a crash leaves: the entries that were written, and possibly torn ones among those that were not
synced. The queue may be behind or ahead of the log. Recovery knows from the checkpoint up to which
log offset entries were synced, and :meth:`recover` drops all others, even if they look valid: a
torn entry can have the right place and size and a wrong tags code. Replaying the log then adds them
again, and :meth:`truncate` drops entries beyond the end of the log. So nothing in a queue depends
on the order in which the system wrote its pages.

Counterpart of Java's ``ConsumeQueue``; ``EntryQueue`` is what it shares with ``BatchConsumeQueue``.
"""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from skylark.store.errors import StoreFileError
from skylark.store.queue_files import QueueFiles
from skylark.wire.layout import CQ_ENTRY, CQ_ENTRY_SIZE, CQ_PRE_BLANK, cq_dtype

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)

LOG_OFFSET_MAX: Final = 1 << 62  # sums of an offset and a size stay within 64 bits
QUEUE_OFFSET_MAX: Final = LOG_OFFSET_MAX // CQ_ENTRY_SIZE
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF

# Shared empty tail: an idle queue must cost almost no memory.
_NO_TAIL: Final = bytearray()

_pack = CQ_ENTRY.pack
_unpack_from = CQ_ENTRY.unpack_from

# Number of files at the end with which recovery begins, as in Java.
_RECOVER_FILES: Final = 3
_SCAN_ENTRIES: Final = (512, 1 << 16)  # first chunk of a scan, and all others


#: The store time of the record at a log offset; None if it was deleted.
StoreTimeOf: TypeAlias = Callable[[int], int | None]


class QueueEntry(NamedTuple):
    """One entry: a message, or in a batch queue ``message_count`` messages in one record."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    message_count: int = 1


class Dispatched(enum.Enum):
    """Result of replaying a message."""

    APPENDED = "appended"
    REPEATED = "was there already, or an older one with its queue offset is"
    MISPLACED = "has a queue offset that leaves a gap"


class Boundary(enum.Enum):
    """Which message around a given time is returned."""

    LOWER = "lower"  #: the first that is not older
    UPPER = "upper"  #: the last that is not newer


class Tails(msgspec.Struct, kw_only=True):
    """State that the queues of a store share: which of them have entries to write, and how many."""

    size_max: int = 64 << 10  # bytes of waiting entries of a queue that trigger a write
    recent_size: int = 16_000  # bytes of entries that stay in memory after the write
    dirty: dict[EntryQueue, None] = msgspec.field(default_factory=dict)
    #: Why entries could not be written; None once all were.
    error: StoreFileError | None = None


class EntryQueue(ABC):
    """Entries of one size, in a tail and in files; subclasses map entries to messages.

    ``next_offset``: queue offset of the next message to be put; the append to the log advances it.
    ``min_offset``, ``max_offset``: messages from min up to max - 1 are readable.
    ``max_log_offset``: end of the last record in the queue, -1 if there is none. ``is_deleted``:
    the store no longer has this queue, but perhaps a new one with its name.
    """

    __slots__ = (
        "_dirty",
        "_files",
        "_flush_at",
        "_min_index",
        "_tail",
        "_tail_start",
        "_tails",
        "_written",
        "is_deleted",
        "max_log_offset",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
    )

    entry_size: ClassVar[int]
    content: ClassVar[str]  # in words

    def __init__(self, topic: str, queue_id: int, files: QueueFiles, tails: Tails) -> None:
        if files.file_size % self.entry_size:
            raise ValueError(
                f"{files.file_size} bytes are not a multiple of the entry size {self.entry_size}"
            )
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = self.min_offset = self.max_offset = 0
        self.max_log_offset = -1
        self.is_deleted = False
        self._files = files
        self._tails = tails
        self._tail = _NO_TAIL
        self._tail_start = 0  # position of the tail's first byte
        self._written = 0  # position up to which the files hold the entries
        self._flush_at = 0  # length at which the tail is written without waiting for a flush
        self._min_index = 0  # index of the first entry whose record the log has
        self._dirty = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}-{self.queue_id} max={self.max_offset}>"

    # ---- kinds -----------------------------------------------------------------------------------

    @abstractmethod
    def entry_dtype(self) -> np.dtype[Any]:
        """Numpy type of the entries that :meth:`entries` returns."""

    @abstractmethod
    def entries(self, start: int, count: int) -> bytes | bytearray:
        """Up to ``count`` whole entries from message ``start`` on, of one file only; a copy.

        Nothing if the message is not in the queue.
        """

    @abstractmethod
    def read_entry(self, queue_offset: int) -> QueueEntry | None:
        """The entry of one message; None if it is not in the queue."""

    @abstractmethod
    def _offset_at(self, index: int) -> int:
        """Queue offset of the first message of an entry; at the end, of the next message."""

    @abstractmethod
    def _store_time_at(self, index: int, store_time_of: StoreTimeOf) -> int:
        """Store time of an entry; -1 if its record was deleted."""

    # ---- reading ---------------------------------------------------------------------------------

    def offset_by_time(self, timestamp: int, boundary: Boundary, store_time_of: StoreTimeOf) -> int:
        """The first message not older than ``timestamp``, or the last that is not newer.

        ``store_time_of`` returns the store time of the record at a log offset, None if it was
        deleted; such a message counts as too old. A time before all messages gives ``min_offset``
        for both boundaries; one after them gives ``max_offset``, or the message before it.
        """
        bisect = bisect_left if boundary is Boundary.LOWER else bisect_right
        indexes = range(self._min_index, self._end_index)
        found = bisect(indexes, timestamp, key=lambda i: self._store_time_at(i, store_time_of))
        offset = self._offset_at(self._min_index + found)
        return offset if boundary is Boundary.LOWER else max(self.min_offset, offset - 1)

    @property
    def size_total(self) -> int:
        """Bytes of all files by their length."""
        return self._files.size_total

    @property
    def _end(self) -> int:
        """Position after the last entry."""
        return self._tail_start + len(self._tail)

    @property
    def _first_index(self) -> int:
        starts = self._files.starts
        return (starts[0] if starts else self._tail_start) // self.entry_size

    def _read(self, position: int, length: int) -> bytes | bytearray:
        """Up to ``length`` bytes of entries, within one file and before the end."""
        file_size = self._files.file_size
        end = min(position + length, position - position % file_size + file_size, self._end)
        tail_start = self._tail_start
        if position >= tail_start:
            if self._files.ahead:
                self._files.forget_ahead()
            return self._tail[position - tail_start : end - tail_start]
        older = self._files.read_on(position, min(end, tail_start) - position, tail_start)
        if end < tail_start:
            return older
        self._files.forget_ahead()
        return older + self._tail[: end - tail_start]

    def _read_entry(self, index: int) -> bytes | bytearray:
        """One entry, without reading ahead."""
        position, size = index * self.entry_size, self.entry_size
        if position >= self._tail_start:
            at = position - self._tail_start
            return self._tail[at : at + size]
        return self._files.read(position, size)

    @property
    def _end_index(self) -> int:
        return self._end // self.entry_size

    def _log_offset_at(self, index: int) -> int:
        """Log offset of the record of an entry; -1 for a pre-blank one."""
        log_offset, size, _ = _unpack_from(self._read_entry(index))
        return -1 if size == PRE_BLANK_SIZE and log_offset == 0 else int(log_offset)

    def _find_log_offset(self, log_offset: int, first_index: int) -> int:
        """Index of the first entry whose record is at or after ``log_offset``."""
        indexes = range(first_index, self._end_index)
        if not indexes or self._log_offset_at(first_index) >= log_offset:
            return first_index
        return first_index + bisect_left(indexes, log_offset, key=self._log_offset_at)

    # ---- writing ---------------------------------------------------------------------------------

    def _mark_dirty(self) -> None:
        """Register the queue for the next flush; called for the first new entry."""
        if self._tail is _NO_TAIL:
            self._tail = bytearray()
        self._flush_at = self._tails.recent_size + self._tails.size_max
        self._dirty = True
        self._tails.dirty[self] = None

    def _overflow(self) -> None:
        """Write a long tail now. The sender must not see a failure: its message is stored."""
        try:
            self.flush_tail()
        except StoreFileError as error:
            if self._tails.error is None:
                logger.error("queue entries cannot be written and stay in memory: %s", error)  # noqa: TRY400
            self._tails.error = error
            self._flush_at = len(self._tail) + self._tails.size_max

    def flush_tail(self) -> None:
        """Write the entries that the files lack, and keep only the newest ones in memory."""
        tail, tail_start = self._tail, self._tail_start
        while self._written < self._end:
            with memoryview(tail) as view, view[self._written - tail_start :] as rest:
                self._written += self._files.write(self._written, rest)
        surplus = len(tail) - self._tails.recent_size
        if surplus > 0:
            surplus += -surplus % self.entry_size
            del tail[:surplus]
            self._tail_start += surplus
        self._flush_at = self._tails.recent_size + self._tails.size_max
        self._mark_clean()

    def _mark_clean(self) -> None:
        self._dirty = False
        self._tails.dirty.pop(self, None)

    # ---- recovery --------------------------------------------------------------------------------

    def load(self, *, clean: bool) -> None:
        """Find the files of an existing queue; :meth:`recover` has to follow."""
        self._files.load(clean=clean)

    def recover(self, synced_until: int | None = None) -> None:
        """Find the last trusted entry and drop everything after it.

        After a clean exit that is the last valid one. After any other exit, entries of records
        before the log offset ``synced_until`` had been synced; all others are dropped.
        """
        log_end = LOG_OFFSET_MAX if synced_until is None else synced_until
        self._close_gaps(log_end)
        starts = self._files.starts
        index = max(0, len(starts) - _RECOVER_FILES)
        while index > 0 and not self._begins_before(starts[index], log_end):
            index -= 1
        position = starts[index] if starts else 0
        record_end = 0
        for start in starts[index:]:
            position, record_end = self._scan(start, record_end, log_end)
            if position < start + self._files.file_size:
                break
        if starts:
            clear = synced_until is not None or any(self._files.read(position, self.entry_size))
            self._files.cut(position, clear=clear)
        self._tail = _NO_TAIL
        self._tail_start = self._written = position
        self._mark_clean()
        self._refresh()
        self.next_offset = self.max_offset

    def _close_gaps(self, log_end: int) -> None:
        """Handle a missing file between others, as a power loss may leave.

        If the file after the gap begins with a trusted entry, the missing one had expired, and
        only its removal survived. Otherwise it was new, as was everything after it.
        """
        starts = self._files.starts
        for index in range(len(starts) - 1, 0, -1):
            if starts[index] - starts[index - 1] == self._files.file_size:
                continue
            logger.warning(
                "%s: the file before %020d is missing", self._files.directory, starts[index]
            )
            if self._begins_before(starts[index], log_end):
                for start in starts[:index]:
                    self._files.remove(start)
                return
            for start in reversed(starts[index:]):
                self._files.remove(start)

    def _begins_before(self, start: int, log_end: int) -> bool:
        """Whether the first entry of a file is valid and its record before ``log_end``."""
        log_offset, size, _ = _unpack_from(self._files.read(start, self.entry_size))
        return bool(0 <= log_offset < log_end and size > 0)

    def _scan(self, start: int, record_end: int, log_end: int) -> tuple[int, int]:
        """Scan one file: where its valid entries end, and the end of the last record."""
        import numpy as np

        position = start
        chunk_size = _SCAN_ENTRIES[0] * self.entry_size
        while position < start + self._files.file_size:
            chunk = np.frombuffer(self._files.read(position, chunk_size), self.entry_dtype())
            valid, ends = self._valid(chunk, record_end, log_end)
            count = len(chunk) if valid.all() else int(valid.argmin())
            if count:
                record_end = int(ends[count - 1])
                position += count * self.entry_size
            if count < len(chunk):
                break
            chunk_size = _SCAN_ENTRIES[1] * self.entry_size
        return position, record_end

    def _valid(
        self, chunk: npt.NDArray[Any], record_end: int, log_end: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Which entries are valid, also compared with the one before; and where records end."""
        import numpy as np

        offsets = chunk["log_offset"].astype(np.int64)
        sizes = chunk["total_size"].astype(np.int64)
        blank = (offsets == 0) & (sizes == PRE_BLANK_SIZE)
        ends = np.where(blank, 0, offsets + sizes)
        before = np.concatenate((np.array([record_end]), ends[:-1]))
        return (offsets >= before) & (sizes > 0) & (offsets < log_end), ends

    def truncate(self, log_offset: int) -> None:
        """Drop the entries of records at or after ``log_offset``."""
        if self.max_log_offset > log_offset:
            self._cut(self._find_log_offset(log_offset, self._first_index) * self.entry_size)

    def _cut(self, position: int) -> None:
        if position < self._written:
            self._files.cut(position)
            self._written = position
        if position > self._tail_start:
            del self._tail[position - self._tail_start :]
        else:
            self._tail = _NO_TAIL
            self._tail_start = position
        if self._written == self._end:
            self._mark_clean()
        self._refresh()
        self.next_offset = self.max_offset

    def _refresh(self) -> None:
        """Compute the offsets from the entries."""
        self.max_log_offset = -1
        end_index = self._end_index
        if end_index > self._first_index:
            entry = self._read_entry(end_index - 1)
            log_offset, size, _ = _unpack_from(entry)
            if size != PRE_BLANK_SIZE or log_offset != 0:
                self.max_log_offset = log_offset + size
        self._min_index = min(max(self._min_index, self._first_index), end_index)
        self.max_offset = self._offset_at(end_index)
        self.correct_min(0)  # skip pre-blank entries

    # ---- retention -------------------------------------------------------------------------------

    def correct_min(self, log_min: int) -> None:
        """Let the queue begin at the first message that the log still has.

        If it has none, the queue is empty and its numbering continues.
        """
        first_index = max(self._min_index, self._first_index)
        self._min_index = self._find_log_offset(log_min, first_index)
        self.min_offset = self._offset_at(self._min_index)

    def delete_before(self, log_min: int) -> int:
        """Delete files, never the last, whose records the log has all deleted; return how many."""
        starts, file_size = self._files.starts, self._files.file_size
        deleted = 0
        while len(starts) > 1:
            last_entry = (starts[0] + file_size) // self.entry_size - 1
            if self._log_offset_at(last_entry) >= log_min:
                break
            self._files.remove(starts[0])
            deleted += 1
        self.correct_min(log_min)
        return deleted

    def destroy(self) -> None:
        """Delete all files; the queue is like a new one."""
        self._files.destroy()
        self._tail = _NO_TAIL
        self._tail_start = self._written = 0
        self._mark_clean()
        self.next_offset = self.min_offset = self.max_offset = self._min_index = 0
        self.max_log_offset = -1


class ConsumeQueue(EntryQueue):
    """Entries of 20 bytes, one for each message: the entry's index is the queue offset."""

    __slots__ = ()

    entry_size = CQ_ENTRY_SIZE
    content = "single messages"

    def entry_dtype(self) -> np.dtype[Any]:
        return cq_dtype()

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        """Append the message with queue offset ``max_offset``. Never fails."""
        if not self._dirty:
            self._mark_dirty()
        tail = self._tail
        tail += _pack(log_offset, size, tags_code)
        self.max_offset += 1
        self.max_log_offset = log_offset + size
        if len(tail) >= self._flush_at:
            self._overflow()

    def append_run(self, entries: bytes, log_end: int) -> None:
        """Like :meth:`append` for packed entries, whose last record ends at ``log_end``."""
        if not self._dirty:
            self._mark_dirty()
        self._tail += entries
        self.max_offset += len(entries) // CQ_ENTRY_SIZE
        self.max_log_offset = log_end
        if len(self._tail) >= self._flush_at:
            self._overflow()

    def dispatch(self, log_offset: int, size: int, tags_code: int, queue_offset: int) -> Dispatched:
        """Append a message of the log unless the queue has it; see the module docstring.

        A gap is logged and the message appended nevertheless, as Java does: a single record with a
        damaged offset must not shift the following ones.
        """
        if log_offset + size <= self.max_log_offset:
            return Dispatched.REPEATED
        result = Dispatched.APPENDED
        if queue_offset != self.max_offset:
            if not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
                self._log_misplaced(log_offset, queue_offset)
                return Dispatched.MISPLACED
            if queue_offset == 0 or self._may_restart_at(queue_offset):
                self._restart_at(queue_offset)
            elif queue_offset < self.max_offset:
                return Dispatched.REPEATED
            else:
                self._log_misplaced(log_offset, queue_offset)
                result = Dispatched.MISPLACED
        self.append(log_offset, size, tags_code)
        self.next_offset = self.max_offset
        return result

    def dispatch_run(self, entries: bytes, queue_offset: int) -> bool:
        """Append consecutive messages at once, given their entries, as :meth:`dispatch` would.

        Only if they simply continue the queue, or begin an empty one. Otherwise nothing changes,
        and False is returned.
        """
        log_offset, _, _ = _unpack_from(entries)
        last_offset, last_size, _ = _unpack_from(entries, len(entries) - CQ_ENTRY_SIZE)
        if 0 < queue_offset <= QUEUE_OFFSET_MAX and self._may_restart_at(queue_offset):
            self._restart_at(queue_offset)
        if queue_offset != self.max_offset or log_offset < self.max_log_offset:
            return False
        self.append_run(entries, last_offset + last_size)
        self.next_offset = self.max_offset
        return True

    def _log_misplaced(self, log_offset: int, queue_offset: int) -> None:
        text = "%r: the record at %s has the unexpected queue offset %s"
        logger.error(text, self, log_offset, queue_offset)

    def _may_restart_at(self, queue_offset: int) -> bool:
        """Whether the queue has no message before this one that a gap could separate it from.

        All older messages may be deleted, and with them the last of their entries.
        """
        is_empty = self.min_offset == self.max_offset
        return self.max_log_offset < 0 or (is_empty and queue_offset > self.max_offset)

    def _restart_at(self, queue_offset: int) -> None:
        """Restart the queue, with pre-blank entries from the start of the file to the offset."""
        if self.max_offset:
            logger.warning("%r restarts at offset %s", self, queue_offset)
        self.destroy()
        position = queue_offset * CQ_ENTRY_SIZE
        blank_size = position % self._files.file_size
        self._tail_start = self._written = position - blank_size
        self._mark_dirty()
        self._tail += CQ_PRE_BLANK * (blank_size // CQ_ENTRY_SIZE)
        self.next_offset = self.min_offset = self.max_offset = self._min_index = queue_offset

    def entries(self, start: int, count: int) -> bytes | bytearray:
        if not self.min_offset <= start < self.max_offset:
            return b""
        return self._read(start * CQ_ENTRY_SIZE, count * CQ_ENTRY_SIZE)

    def read_entry(self, queue_offset: int) -> QueueEntry | None:
        if not self.min_offset <= queue_offset < self.max_offset:
            return None
        entry = self._read_entry(queue_offset)
        return QueueEntry(queue_offset, *_unpack_from(entry))

    def _store_time_at(self, index: int, store_time_of: StoreTimeOf) -> int:
        store_time = store_time_of(self._log_offset_at(index))
        return -1 if store_time is None else store_time

    def _offset_at(self, index: int) -> int:
        return index
