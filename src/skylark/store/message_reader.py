"""Reads records by queue offset, log offset, time or key.

Nothing is decoded, and only small results are copied. A result holds memory views of the mapped
log, or of a copy, and the leases that keep files mapped; the caller writes the views to a socket
and then calls ``release()``.

**get** reads a queue. An offset outside of the queue gives a status and the offset to continue
with; a slave leaves the offset unchanged, because the master may have what it has not
(``offsetCheckInSlave``). Within the queue, one read checks 16000 bytes of entries
(``maxFilterMessageSize``), or as many entries as messages are requested if that is more, of one
queue file. It returns at most 32 messages or 256 KiB from memory, 8 or 64 KiB from disk;
:mod:`skylark.store.queue_scan` has the rules. "In memory" is an estimate: the newest bytes of the
log, up to 40 % of the RAM. ``bulk`` lifts these limits (a private extension of pulls).

**query** returns what the index has for the hash of a key, including other keys with that hash.
Java queries the index up to three times, for older and older messages, while all records found are
deleted. The log deletes its oldest records first, so a second query cannot find more.

Counterpart of Java's ``DefaultMessageStore.getMessage``, ``queryMessage``,
``selectOneMessageByOffset`` and ``getOffsetInQueueByTime``, and of ``GetMessageResult`` and
``QueryMessageResult``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from typing import Final, NamedTuple

import msgspec

from skylark.core.errors import StoreError
from skylark.store.batch_queue import BatchQueue
from skylark.store.commit_log import CommitLog
from skylark.store.config import BrokerRole, StoreConfig
from skylark.store.consume_queue import Boundary, EntryQueue
from skylark.store.errors import StoreFileMissingError
from skylark.store.index import NEVER, IndexService
from skylark.store.mapped_file import Lease, MappedFile
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.queue_scan import (
    EntryRow,
    LogSlices,
    PropertyMatcher,
    QueueScan,
    ReadLimits,
    TagMatcher,
    release_views,
    take_all,
)
from skylark.store.running_flags import RunningFlags
from skylark.store.store_results import GetStatus
from skylark.wire.layout import (
    BATCH_CQ_ENTRY,
    CQ_ENTRY,
    CQ_ENTRY_SIZE,
    FLAG_HOSTS_V6_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEADS,
    RECORD_SIZE_MIN,
    TOTAL_SIZE,
)

SIZE_MAX: Final = 128 << 20  # upper limit of bytes of one read (Java: MAX_PULL_MSG_SIZE)
COUNT_MAX: Final = 1 << 16  # messages of one read, and entries it checks
COLUMNS_MIN: Final = 64  # from so many entries on, QueueScan.columns is faster

_HEAD_V4 = RECORD_HEADS[0]
_iter_entries = CQ_ENTRY.iter_unpack
_iter_batch_entries = BATCH_CQ_ENTRY.iter_unpack


class StoreNotReadableError(StoreError):
    """The store is shut down, or an operator has disabled reads."""


class Views(msgspec.Struct, kw_only=True):
    """Records as memory views of the log or a copy; ``size`` is the sum of their bytes."""

    views: Sequence[memoryview] = ()
    size: int = 0
    leases: Sequence[Lease] = ()

    def release(self) -> None:
        """Release views and leases; the views must not be used afterwards. Idempotent."""
        views, leases = self.views, self.leases
        self.views = self.leases = ()
        release_views(views, leases)


class GetResult(Views, kw_only=True):
    """Result of reading a queue; ``min_offset`` and ``max_offset`` are the queue's."""

    status: GetStatus
    next_offset: int  # queue offset to continue with
    min_offset: int
    max_offset: int
    message_count: int = 0
    last_log_offset: int = -1  # of the last message checked; -1 if there was none
    suggest_slave: bool = False  # the reader is far behind: a slave should serve it


class QueryResult(Views, kw_only=True):
    """Records of a key, oldest first, one view each, and how far the index is complete."""

    index_last_timestamp: int
    index_last_log_offset: int


class _Record(NamedTuple):
    """Position of a record."""

    file: MappedFile
    position: int
    size: int
    store_timestamp: int


class Reader:
    """Reads one store; runs in the owner's thread."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        flags: RunningFlags,
        *,
        ram_size: int,
        dispatched_until: Callable[[], int],
    ) -> None:
        """``ram_size``: bytes of physical memory, to estimate which part of the log is cached.

        ``dispatched_until`` returns the end of the log for readers; the index may be ahead of it.
        """
        self._log = log
        self._queues = queues
        self._index = index
        self._flags = flags
        self._ram_size = ram_size
        self._dispatched_until = dispatched_until
        self.shut_down = False
        self.apply_settings(config)

    def apply_settings(self, config: StoreConfig) -> None:
        """Use these settings from now on."""
        self._corrects = config.broker_role is not BrokerRole.SLAVE or config.offset_check_in_slave
        self._window_size = config.max_filter_message_size
        self._file_entries = config.consume_queue_file_size // CQ_ENTRY_SIZE
        self._file_count_max = config.travel_cq_file_num_when_get_message
        self._query_count_max = config.max_msgs_num_batch
        self._memory_size = self._ram_size * config.access_message_in_memory_max_ratio // 100
        self._in_memory = ReadLimits(
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
        )
        self._on_disk = ReadLimits(
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
        )

    # ---- a queue ---------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        tags: TagMatcher | None = None,
        properties: PropertyMatcher | None = None,
        *,
        bytes_max: int = SIZE_MAX,
        bulk: bool = False,
    ) -> GetResult:
        """Read messages of a queue from ``offset`` on; see the module docstring.

        ``bulk``: only ``count_max`` and ``bytes_max`` limit what is returned. Raises
        StoreNotReadableError, and other StoreErrors if the disk fails.
        """
        if self.shut_down or not self._flags.readable:
            raise StoreNotReadableError("the store is not readable")
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return self._empty_result(GetStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0)
        if not queue.min_offset <= offset < queue.max_offset:
            return self._out_of_range(queue, offset)
        if tags is not None and tags.codes is None:
            tags = None
        is_plain = tags is None and properties is None
        if is_plain and not bulk and min(count_max, self._in_memory[0]) < COLUMNS_MIN:
            found = self._take_all(queue, offset, count_max, bytes_max)
            if found is not None:
                return found
        count_max = min(count_max, COUNT_MAX)
        limits = self._limits(count_max, bytes_max, bulk)
        slices, stop_offset = (
            LogSlices(self._log.files),
            self._stop_offset(queue, offset, count_max),
        )
        scan = QueueScan(
            slices, tags, properties, offset, stop_offset, count_max, *limits, self._memory_size
        )
        entry_count = scan.stop_offset - offset
        if is_plain:
            entry_count = min(count_max, _returned_at_most(*limits))
        try:
            readable = self._scan_queue(queue, scan, max(1, entry_count))
        except BaseException:
            slices.release()
            raise
        if not readable:
            slices.release()
            next_file = (scan.next_offset // self._file_entries + 1) * self._file_entries
            return self._empty_result(GetStatus.OFFSET_FOUND_NULL, offset, next_file, queue)
        if not slices.views:
            slices.release()
        return GetResult(
            status=scan.status,
            next_offset=scan.next_offset,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            message_count=scan.message_count,
            last_log_offset=scan.last_log_offset,
            suggest_slave=self._log.max_offset - scan.last_log_offset > self._memory_size,
            views=slices.views,
            size=sum(map(len, slices.views)),
            leases=slices.leases,
        )

    def _take_all(
        self, queue: EntryQueue, offset: int, count_max: int, bytes_max: int
    ) -> GetResult | None:
        """Fast path: the messages of all entries from ``offset`` on; None if it does not apply."""
        limits = self._in_memory
        count = min(count_max, limits.message_count, queue.max_offset - offset)
        if count <= 0 or queue.entry_size != CQ_ENTRY_SIZE:
            return None
        try:
            entries = queue.entries(offset, count)
        except StoreFileMissingError:
            return None
        size_max = min(limits.size, bytes_max, SIZE_MAX)
        taken = take_all(self._log.files, entries, self._memory_size, size_max) if entries else None
        if taken is None:
            return None
        count = len(entries) // CQ_ENTRY_SIZE
        return GetResult(
            status=GetStatus.FOUND,
            next_offset=offset + count,
            min_offset=queue.min_offset,
            max_offset=queue.max_offset,
            message_count=count,
            last_log_offset=taken.last_log_offset,
            views=taken.views,
            size=taken.size,
            leases=taken.leases,
        )

    def _empty_result(
        self, status: GetStatus, offset: int, corrected: int, queue: EntryQueue | None = None
    ) -> GetResult:
        return GetResult(
            status=status,
            next_offset=corrected if self._corrects else offset,
            min_offset=0 if queue is None else queue.min_offset,
            max_offset=0 if queue is None else queue.max_offset,
        )

    def _out_of_range(self, queue: EntryQueue, offset: int) -> GetResult:
        if queue.max_offset == 0:
            return self._empty_result(GetStatus.NO_MESSAGE_IN_QUEUE, offset, 0, queue)
        if offset < queue.min_offset:
            return self._empty_result(GetStatus.OFFSET_TOO_SMALL, offset, queue.min_offset, queue)
        if offset == queue.max_offset:
            return self._empty_result(GetStatus.OFFSET_OVERFLOW_ONE, offset, offset, queue)
        return self._empty_result(GetStatus.OFFSET_OVERFLOW_BADLY, offset, queue.max_offset, queue)

    def _limits(self, count_max: int, bytes_max: int, bulk: bool) -> tuple[ReadLimits, ReadLimits]:
        """The limits for records in memory, and for those on disk."""
        bytes_max = min(bytes_max, SIZE_MAX)
        if bulk:
            limits = ReadLimits(count_max, bytes_max)
            return limits, limits
        in_memory, on_disk = self._in_memory, self._on_disk
        if bytes_max < max(in_memory.size, on_disk.size):
            in_memory = ReadLimits(in_memory.message_count, min(in_memory.size, bytes_max))
            on_disk = ReadLimits(on_disk.message_count, min(on_disk.size, bytes_max))
        return in_memory, on_disk

    def _stop_offset(self, queue: EntryQueue, offset: int, count_max: int) -> int:
        """The queue offset at which the scan of entries stops."""
        window_size = max(self._window_size, count_max * queue.entry_size)
        stop_offset = offset - -window_size // queue.entry_size
        if isinstance(queue, BatchQueue):  # its entries() stops at the end of a file
            return stop_offset
        file_number = offset // self._file_entries
        return min(stop_offset, (file_number + self._file_count_max) * self._file_entries)

    def _scan_queue(self, queue: EntryQueue, scan: QueueScan, entry_count: int) -> bool:
        """Scan entries until something is found; False if they cannot be read."""
        stop_offset = min(scan.stop_offset, queue.max_offset)
        while scan.next_offset < stop_offset:
            offset = scan.next_offset
            if isinstance(queue, BatchQueue):
                scan.rows(_batch_rows(queue.entries(offset, entry_count)))
                break
            try:
                entries = queue.entries(offset, min(entry_count, stop_offset - offset))
            except StoreFileMissingError:
                entries = b""
            if not entries:
                return False
            is_long = len(entries) >= COLUMNS_MIN * CQ_ENTRY_SIZE
            if not (is_long and scan.columns(entries)):
                scan.rows(_rows(entries, offset))
            if scan.stopped or scan.message_count:
                break
        return True

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the first message; 0 without a queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset after the last readable message; 0 without a queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The first message stored at a time or later, or the last one until then.

        A time before all messages gives the first one; a time after them the offset after the last
        one (LOWER), or the last one (UPPER). 0 without a queue.
        """
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp, boundary, self.store_time_of)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time of a message; None if the queue does not have it."""
        queue = self._queues.get(topic, queue_id)
        entry = None if queue is None else queue.read_entry(offset)
        return None if entry is None else self.store_time_of(entry.log_offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int | None:
        """Store time of the first message of a queue; None if there is none."""
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    # ---- the log ---------------------------------------------------------------------------------

    def is_in_memory(self, log_offset: int) -> bool:
        """Whether a record counts as in memory."""
        return self._log.max_offset - log_offset <= self._memory_size

    def record(self, log_offset: int) -> Lease | None:
        """The record at a log offset; None if no record begins there."""
        found = self._find(log_offset)
        return None if found is None else found.file.lease(found.position, found.size)

    def neighbours(self, log_offsets: Sequence[int]) -> bytes:
        """The records at the first log offsets that follow one another; empty if there is none."""
        found = self._find(log_offsets[0])
        if found is None:
            return b""
        room = found.file.readable - found.position
        with found.file.lease(found.position, room) as lease:
            view, end = lease.view, 0
            for log_offset in log_offsets:
                if log_offset - log_offsets[0] != end or room - end < RECORD_SIZE_MIN:
                    break
                (size,) = TOTAL_SIZE.unpack_from(view, end)
                if not RECORD_SIZE_MIN <= size <= room - end:
                    break
                end += size
            return bytes(view[:end])

    def store_time_of(self, log_offset: int) -> int | None:
        """Store time of the record at a log offset; None if no record begins there."""
        found = self._find(log_offset)
        return None if found is None else found.store_timestamp

    def _find(self, log_offset: int) -> _Record | None:
        file = self._log.files.find(log_offset)
        if file is None:
            return None
        position = log_offset - file.start_offset
        room = file.readable - position
        if room < RECORD_SIZE_MIN:
            return None
        with file.lease(position, room) as lease:
            fields = _HEAD_V4.unpack_from(lease.view)
            total_size, magic, own_offset, hosts_v6 = (
                fields[0], fields[1], fields[6], fields[7] & FLAG_HOSTS_V6_MASK,
            )  # fmt: skip
            if magic not in (MAGIC_V1, MAGIC_V2) or own_offset != log_offset:
                return None
            head = RECORD_HEADS[hosts_v6 >> 4]
            if not head.size < total_size <= room:
                return None
            if hosts_v6:
                fields = head.unpack_from(lease.view)
        return _Record(file, position, total_size, fields[10])

    # ---- keys ------------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        count_max: int,
        begin_timestamp: int = 0,
        end_timestamp: int = NEVER,
        *,
        index_type: str | None = None,
    ) -> QueryResult:
        """The newest messages with a key, stored between two times; see the module docstring.

        ``index_type``: "T" if ``key`` is a tag; keys and unique ids need none.
        """
        if self._index is None:
            return QueryResult(index_last_timestamp=0, index_last_log_offset=0)
        count_max = min(count_max, self._query_count_max)
        hits = self._index.query(
            topic,
            key,
            count_max,
            begin_timestamp,
            end_timestamp,
            index_type,
            self._dispatched_until(),
        )
        slices = LogSlices(self._log.files)
        try:
            for log_offset in hits.log_offsets:
                found = self._find(log_offset)
                if found is not None:
                    slices.select_file(log_offset)
                    slices.add(log_offset, log_offset + found.size)
        except BaseException:
            slices.release()
            raise
        return QueryResult(
            views=slices.views,
            size=sum(map(len, slices.views)),
            leases=slices.leases,
            index_last_timestamp=hits.last_timestamp,
            index_last_log_offset=hits.last_log_offset,
        )


def _returned_at_most(in_memory: ReadLimits, on_disk: ReadLimits) -> int:
    """Number of messages that these limits allow, in memory or on disk."""
    size_max = max(in_memory.size, on_disk.size)
    return min(max(in_memory[0], on_disk[0]), size_max // RECORD_SIZE_MIN)


def _rows(entries: bytes | bytearray, offset: int) -> Iterable[EntryRow]:
    """Entries of a consume queue, in the form that :meth:`QueueScan.rows` takes."""
    return zip(count(offset), _iter_entries(entries), repeat(1), strict=False)


def _batch_rows(entries: bytes | bytearray) -> Iterable[EntryRow]:
    """The same for a batch queue."""
    return ((row[4], row[:3], row[5]) for row in _iter_batch_entries(entries))
