"""One read of a queue: which entries it checks, which records it returns, where it ends.

Entries are checked one after the other, and *before each entry* the read ends if

1. the entry is at or after ``stop_offset``, the limit on entries to check;
2. something was found, and this entry would exceed a limit: the requested number of messages, or
   the number of messages or bytes allowed where the record is, in memory or on disk. So the first
   record that passes is returned with any size.

An entry that does not pass the tag filter counts with its size in 2., as in Java.

There are three implementations. :meth:`QueueScan.rows` goes entry by entry and defines the meaning.
:meth:`QueueScan.columns` processes all entries at once and is faster from about sixty on.
:func:`take_all` serves few entries that are all returned, the case of most pulls. Both decline, and
change nothing, where the result might differ. A property test compares them.

**Deleted records.** Retention deletes log files first and corrects the queues afterwards, so an
entry may point to a deleted record: it is skipped. An entry that points *beyond* the readable end
of the log belongs to a record that is not readable yet: the read ends before it. (Java would skip
it for good.)

The result is memory views of the mapped files, :class:`LogSlices`: neighbouring records are one
view, and there is one lease for each file. :func:`take_all` copies small results.

Counterpart of the loop in Java's ``DefaultMessageStore.getMessage`` and of ``isTheBatchFull``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from operator import add, le
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from skylark.store.file_sequence import MappedFiles
from skylark.store.mapped_file import NO_BYTES, Lease
from skylark.store.store_results import GetStatus
from skylark.wire.layout import (
    CQ_ENTRY_SIZE,
    FLAG_HOSTS_V6_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEADS,
    RECORD_SIZE_MIN,
    cq_dtype,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

#: Records up to this size in all are copied by :func:`take_all`.
COPIED_SIZE_MAX: Final = 64 << 10

_HEAD_V4 = RECORD_HEADS[0]


class TagMatcher(Protocol):
    """A filter on the tags code of entries, such as :class:`skylark.filter.tag.TagFilter`."""

    @property
    def codes(self) -> frozenset[int] | None:
        """Tags codes that pass; None if all do."""

    def matches(self, tags_code: int) -> bool:
        """Whether an entry passes."""

    def mask(self, tags_codes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """:meth:`matches` for many entries."""


class PropertyMatcher(Protocol):
    """A filter on the properties of records, such as :class:`skylark.filter.sql_eval.SqlFilter`."""

    def matches_raw(self, raw: bytes) -> bool:
        """Whether a record with this property string passes."""


#: An entry: its queue offset; log offset, size and tags code; number of messages.
EntryRow: TypeAlias = tuple[int, tuple[int, int, int], int]


class ReadLimits(NamedTuple):
    """How much one read may return."""

    message_count: int
    size: int


class LogSlices(msgspec.Struct):
    """Memory views of the log, and a lease for each file they are in."""

    files: MappedFiles
    _view: memoryview = NO_BYTES
    file_start: int = -1  # log offsets: the readable part of the current file
    file_end: int = -1
    leases: list[Lease] = msgspec.field(default_factory=list)
    views: list[memoryview] = msgspec.field(default_factory=list)

    def select_file(self, log_offset: int) -> bool:
        """Make the file that holds ``log_offset`` the current one; return whether there is one."""
        if self.file_start <= log_offset < self.file_end:
            return True
        file = self.files.find(log_offset)
        if file is None:
            return False
        readable = file.readable
        lease = file.lease(0, readable)
        self.leases.append(lease)
        self._view = lease.view
        self.file_start = file.start_offset
        self.file_end = file.start_offset + readable
        return log_offset < self.file_end

    def add(self, start: int, end: int) -> None:
        """Add the bytes between two log offsets of the current file."""
        file_start = self.file_start
        self.views.append(self._view[start - file_start : end - file_start])

    def properties(self, start: int, end: int) -> bytes | None:
        """The property string of the record between two log offsets; None if there is no record."""
        return _properties_of(self._view, start - self.file_start, end - self.file_start)

    def release(self) -> None:
        """Release all views and leases."""
        release_views(self.views, self.leases)


def release_views(views: Iterable[memoryview], leases: Iterable[Lease]) -> None:
    """Release views, and the leases of the files they are in."""
    for view in views:
        try:
            view.release()
        except BufferError:  # a transport still holds it: its file stays mapped a little longer
            logger.debug("a memory view was released while it is in use")
    for lease in leases:
        lease.release()


def _properties_of(view: memoryview, position: int, end: int) -> bytes | None:
    """The properties of the record at ``position``, without decoding the rest."""
    head = _HEAD_V4
    if end - position < RECORD_SIZE_MIN:
        return None
    fields = head.unpack_from(view, position)
    hosts_v6 = fields[7] & FLAG_HOSTS_V6_MASK
    if hosts_v6:
        head = RECORD_HEADS[hosts_v6 >> 4]
        if end - position < head.size:
            return None
        fields = head.unpack_from(view, position)
    magic, body_size = fields[1], fields[14]
    topic_start = position + head.size + body_size
    if body_size < 0 or topic_start + 3 > end:
        return None
    if magic == MAGIC_V1:
        topic_end = topic_start + 1 + view[topic_start]
    elif magic == MAGIC_V2:
        topic_end = topic_start + 2 + (view[topic_start] << 8 | view[topic_start + 1])
    else:
        return None
    return bytes(view[topic_end + 2 : end])


@cache
def _fields(count: int) -> Struct:
    """Struct of ``count`` entries of a consume queue."""
    return Struct(">" + "qiq" * count)


class Taken(NamedTuple):
    """The records of some entries, all in one file."""

    views: list[memoryview]
    leases: tuple[Lease, ...]
    size: int
    last_log_offset: int


def take_all(
    files: MappedFiles, entries: bytes | bytearray, memory_size: int, size_max: int
) -> Taken | None:
    """Take the records of all these entries; None if one of the conditions does not hold.

    They must be no more than ``size_max`` bytes, among the newest ``memory_size`` of the log, in
    one file and in order. Few bytes are copied: a view for each record that is not a neighbour of
    the one before costs more than its bytes, here and in the transport.
    """
    fields = _fields(len(entries) // CQ_ENTRY_SIZE).unpack(entries)
    starts, sizes = fields[::3], fields[1::3]
    ends, nexts = tuple(map(add, starts, sizes)), starts[1:]
    start = starts[0]
    are_neighbours = ends[:-1] == nexts
    size = length = ends[-1] - start
    if not are_neighbours:
        size = sum(sizes)
    file = files.find(start)
    if file is None or min(sizes) <= 0 or size > size_max or start < files.max_offset - memory_size:
        return None
    position = start - file.start_offset
    if position + length > file.readable or not (are_neighbours or all(map(le, ends, nexts))):
        return None
    lease = file.lease(position, length)
    view = lease.view
    if size <= COPIED_SIZE_MAX:
        if are_neighbours:
            records = bytes(view)
        else:
            ranges = zip(starts, ends, strict=True)
            records = b"".join([view[at - start : end - start] for at, end in ranges])
        lease.release()
        return Taken([memoryview(records)], (), size, starts[-1])
    views, first = [], start
    for end, following in zip(ends, nexts, strict=False):
        if end != following:
            views.append(view[first - start : end - start])
            first = following
    views.append(view[first - start :])
    return Taken(views, (lease,), size, starts[-1])


class QueueScan(msgspec.Struct):
    """Conditions of a read, and its result so far."""

    slices: LogSlices
    _tags: TagMatcher | None
    _properties: PropertyMatcher | None
    _offset: int
    stop_offset: int
    _count_max: int
    _in_memory: ReadLimits
    _on_disk: ReadLimits
    _memory_size: int
    _any_filtered: bool = False  # an entry did not pass
    message_count: int = 0
    stopped: bool = False  # by a limit, or before a record that is not readable yet
    _log_max: int = 0
    _memory_from: int = 0
    next_offset: int = 0
    last_log_offset: int = 0  # of the last entry checked

    def __post_init__(self) -> None:
        self._log_max = self.last_log_offset = self.slices.files.max_offset
        self._memory_from = self._log_max - self._memory_size
        self.next_offset = self._offset

    @property
    def status(self) -> GetStatus:
        """How the read ended."""
        if self.message_count:
            return GetStatus.FOUND
        if self.next_offset == self._offset:
            return GetStatus.OFFSET_OVERFLOW_ONE  # the record of the entry is not readable yet
        if self._any_filtered:
            return GetStatus.NO_MATCHED_MESSAGE
        return GetStatus.MESSAGE_WAS_REMOVING

    # ---- one by one ------------------------------------------------------------------------------

    def rows(self, rows: Iterable[EntryRow]) -> None:
        """Check entries one after the other, from ``next_offset`` on."""
        tags, properties, slices = self._tags, self._properties, self.slices
        stop_offset, log_max, memory_from = self.stop_offset, self._log_max, self._memory_from
        count_max, in_memory, on_disk = self._count_max, self._in_memory, self._on_disk
        next_offset, last_log_offset = self.next_offset, self.last_log_offset
        found = size_total = 0
        # Log offsets: a run of neighbouring records, and the readable part of their file.
        run_start = run_end = file_start = file_end = -1
        for queue_offset, (log_offset, size, tags_code), message_count in rows:
            if queue_offset >= stop_offset or log_offset >= log_max:
                self.stopped = True
                break
            if found:
                limit_count, limit_size = in_memory if log_offset >= memory_from else on_disk
                if (
                    found >= limit_count
                    or found + message_count > count_max
                    or size_total + size > limit_size
                ):
                    self.stopped = True
                    break
            next_offset = queue_offset + message_count
            last_log_offset = log_offset
            if tags is not None and not tags.matches(tags_code):
                self._any_filtered = True
                continue
            end = log_offset + size
            if log_offset != run_end or end > file_end:
                if run_end >= 0:
                    slices.add(run_start, run_end)
                run_start, run_end = log_offset, -1
                if log_offset < file_start or end > file_end or size <= 0:
                    located = self._locate(log_offset, end)
                    file_start, file_end = slices.file_start, slices.file_end
                    if not located:
                        continue
            if properties is not None and not self._passes(log_offset, end, properties):
                continue
            run_end = end
            found += message_count
            size_total += size
        if run_end >= 0:
            slices.add(run_start, run_end)
        self.message_count = found
        self.next_offset, self.last_log_offset = next_offset, last_log_offset

    def _locate(self, log_offset: int, end: int) -> bool:
        """Select the file of a record; False if the record was deleted, or cannot exist."""
        slices = self.slices
        if log_offset < self.slices.files.min_offset and log_offset >= 0:
            return False
        if slices.select_file(log_offset) and log_offset < end <= slices.file_end:
            return True
        logger.error("a queue entry points to %s..%s, where no record can be", log_offset, end)
        return False

    def _passes(self, log_offset: int, end: int, properties: PropertyMatcher) -> bool:
        raw = self.slices.properties(log_offset, end)
        if raw is not None and properties.matches_raw(raw):
            return True
        self._any_filtered = True
        return False

    # ---- all at once -----------------------------------------------------------------------------

    def columns(self, entries: bytes | bytearray) -> bool:
        """Check entries of a consume queue from ``next_offset`` on; False: use :meth:`rows`.

        Not for a property filter.
        """
        if self._properties is not None:
            return False
        import numpy as np

        rows = np.frombuffer(entries, cq_dtype())
        starts = rows["log_offset"].astype(np.int64)
        sizes = rows["total_size"].astype(np.int64)
        if starts[-1] >= self._log_max or not (starts[1:] > starts[:-1]).all():
            return False
        limits = self._in_memory if starts[-1] >= self._memory_from else self._on_disk
        if starts[0] < self._memory_from and limits != self._on_disk:
            return False  # some in memory, some on disk
        count_max = max(1, min(limits.message_count, self._count_max))
        chosen: slice | NDArray[np.intp]
        if self._tags is None:
            totals = sizes[:count_max].cumsum()
            scanned = max(1, int(totals.searchsorted(limits.size, "right")))
            chosen = slice(scanned)
        else:
            chosen = hits = np.flatnonzero(self._tags.mask(rows["tags_code"]))[:count_max]
            scanned = int(hits[-1]) + 1 if len(hits) == count_max else len(rows)
            if sizes[hits].sum() + sizes.max() > limits.size:
                return False  # an entry that does not pass might end the read
        last_log_offset = int(starts[scanned - 1])
        starts, sizes = starts[chosen], sizes[chosen]
        if len(starts) and not self._add_columns(starts, sizes):
            return False
        self.message_count = len(starts)
        self.next_offset += scanned
        self.last_log_offset = last_log_offset
        self._any_filtered = self._any_filtered or scanned > len(starts)
        return True

    def _add_columns(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
        """Add records in ascending order; False if one of them was deleted or is not a record."""
        import numpy as np

        ends, file_size = starts + sizes, self.slices.files.file_size
        if (
            starts[0] < self.slices.files.min_offset
            or ends[-1] > self._log_max
            or (sizes <= 0).any()
            or (starts % file_size + sizes > file_size).any()
        ):
            return False
        slices = self.slices
        breaks = np.flatnonzero(starts[1:] != ends[:-1])
        run_starts = [int(starts[0]), *starts[breaks + 1].tolist()]
        run_ends = [*ends[breaks].tolist(), int(ends[-1])]
        for start, end in zip(run_starts, run_ends, strict=True):
            slices.select_file(start)
            slices.add(start, end)
        return True
