"""Replay: reads the records of the log again in slices, and makes the derived entries from them.

Three parts, used by :mod:`skylark.store.recovery` and by the running store:

* :class:`LogScan` reads the log from a record on and returns the columns of all records in a slice
  (:mod:`skylark.wire.record_scan`). It follows the files, and finds where the log ends and why. It
  reads and never maps: a file of unknown origin may be sparse or on a failing disk.
* :class:`Replay` makes queue entries and index entries from columns, the same that
  :class:`skylark.store.reput.Reput` made when the records were appended. Records are grouped by
  queue, and a queue takes a run of entries at once; where a run does not simply continue its queue,
  each record is handled separately.
* :class:`IndexCatchUp` brings an index that is behind up to the end of the log, slice by slice,
  while the store runs.

**How files end.** A blank record ends a file. As in Java, the magic code alone identifies it: a
damaged size in a blank must not cost the files after it. Where no further file exists, the log
ends after a blank that is whole, and before one that is not.

**Torn records.** The checksum of a record covers its body, and sizes show missing parts of its
head; but a kill -9 while topic and properties are copied, or a power loss that takes a sector of
them, leaves zeros that no checksum covers. So from ``unsynced_from`` on the log also ends at a
record with zeros where no writer puts any. (``enabledAppendPropCRC`` with ``forceVerifyPropCRC``
covers everything by a checksum.)

**Only checked values are used.** A size is followed only within its file; a record longer than a
slice is read whole only if its own log offset is right, so that garbage does not make the scan load
a file of garbage into memory.

Counterpart of Java's ``CommitLog.checkMessageAndReturnSize`` and ``ReputMessageService.doReput``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylark.core.errors import CorruptLogError, StoreError
from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.consume_queue import ConsumeQueue, Dispatched, EntryQueue
from skylark.store.errors import StoreFileError
from skylark.store.file_sequence import MappedFiles
from skylark.store.index import IndexService
from skylark.store.mapped_file import MappedFile
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.reput import HIDDEN_KINDS, TagsCodes, add_queue_entry
from skylark.wire.layout import (
    BLANK_RECORD,
    BLANK_SIZE_MIN,
    FLAG_INNER_BATCH,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_ROLLBACK,
    MAGIC_BLANK,
    RECORD_HEAD_SIZE,
    RECORD_HEADS,
    RECORD_SIZE_MIN,
    cq_dtype,
)
from skylark.wire.message import RecordFault, Verify
from skylark.wire.property_scan import PropertyItems, scan_properties
from skylark.wire.record_scan import RecordColumns, scan_records

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)

SLICE_SIZE: Final = 4 << 20
_HEAD_SLICE: Final = 4 << 10  # bytes read to check a single record
SECTOR_SIZE: Final = 512  # a disk writes it whole or not at all
LOG_OFFSET_FIELD: Final = 6  # PHYSICALOFFSET in a head of any kind

#: Whether a topic has queues of inner batches, as far as its settings are known.
IsBatchTopic = Callable[[str], bool]


# ---- reading the log -----------------------------------------------------------------------------


def read_log(
    file: MappedFile, position: int, length: int, buffer: bytearray | None = None
) -> bytes:
    """Read bytes of a log file, whether or not they are known to be records.

    ``buffer``: memory to reuse, for callers that read much.
    """
    if buffer is None:
        buffer = bytearray()
    if len(buffer) < length:
        buffer.extend(bytes(length - len(buffer)))
    with memoryview(buffer) as view, view[:length] as content:
        return _read_into(file, position, content)


def _read_into(file: MappedFile, position: int, content: memoryview) -> bytes:
    length = len(content)
    try:
        count = file.read_into(position, content)
    except StoreFileError as error:
        raise CorruptLogError(
            f"the log cannot be read: {error}",
            file=str(file.path),
            offset=file.start_offset + position,
            hint="make the file readable or restore it from a copy; nothing was deleted",
        ) from error
    if count < length:
        raise CorruptLogError(
            f"the file ends {length - count} bytes too early",
            file=str(file.path),
            offset=file.start_offset + position,
            hint="another program truncated it: restore it from a copy; nothing was deleted",
        )
    return bytes(content)


class LogScan:
    """Reads a log from ``position``, which is the start of a record or of a file.

    ``position``: end of what was returned, and finally the end of the log. ``fault``: why there is
    no record there; None at the end of the last file, and at a limit.
    """

    def __init__(
        self,
        log: MappedFiles,
        position: int,
        *,
        verify: Verify | None = None,
        slice_size: int = SLICE_SIZE,
        unsynced_from: int | None = None,
    ) -> None:
        """``unsynced_from``: a crash may have lost any part of records from this log offset on."""
        self.position = position
        self.fault: RecordFault | None = None
        self._log = log
        self._verify = verify
        self._slice_size = max(slice_size, RECORD_SIZE_MIN)
        self._unsynced_from = unsynced_from
        self._needed = 0  # size of the next record, if a slice was too short for it
        self._buffer = bytearray()

    def next(self, limit: int | None = None) -> RecordColumns | None:
        """The records of the next slice, at least one; None at the end.

        ``limit``: a log offset at which a record or a file ends; the scan stops there for now.
        """
        while self.fault is None and (limit is None or self.position < limit):
            file = self._log.find(self.position)
            if file is None:
                break
            start = self.position - file.start_offset
            end = file.size if limit is None else min(file.size, limit - file.start_offset)
            available = end - start
            size = min(available, max(self._slice_size, self._needed))
            content = read_log(file, start, size, self._buffer)
            columns = self._scan(content, len(content))
            if columns.blank_count:
                columns = self._scan(content, first_blank(columns))
            lost = self._first_lost(columns, start)
            if lost is not None:
                columns = self._scan(content, lost)
                self.position += lost
                self.fault = RecordFault.UNWRITTEN
            else:
                self._advance(file, content, columns, available)
            if len(columns):
                return columns
        return None

    def _scan(self, content: bytes, end: int) -> RecordColumns:
        return scan_records(
            content, 0, end, verify=self._verify, log_start=self.position, strict=False
        )

    def _advance(
        self, file: MappedFile, content: bytes, columns: RecordColumns, available: int
    ) -> None:
        """Move past the records of a slice, and determine what comes next."""
        stop = columns.end_position
        self.position += stop
        self._needed = 0
        if stop == len(content):
            return  # the next slice, or the next file
        rest = available - stop
        if len(content) - stop < BLANK_SIZE_MIN:
            self._read_more(BLANK_SIZE_MIN, rest)
            return
        total_size, magic = BLANK_RECORD.unpack_from(content, stop)
        if magic == MAGIC_BLANK:
            self._leave(file, whole=self.position + total_size == file.end_offset)
        elif columns.fault is not RecordFault.TORN:
            self.fault = columns.fault
        elif self._slice_size < total_size <= rest and not self._is_in_place(content, stop):
            self.fault = RecordFault.BAD_LOG_OFFSET
        else:
            self._read_more(total_size, rest)

    def _first_lost(self, columns: RecordColumns, start: int) -> int | None:
        """Position of the first incomplete record whose sizes and checksum are right."""
        if (
            self._unsynced_from is None
            or self.position + columns.end_position < self._unsynced_from
        ):
            return None
        for position in _incomplete(columns, start):
            if self.position + position >= self._unsynced_from:
                return position
        return None

    def _read_more(self, size: int, rest: int) -> None:
        """Read so many bytes next time, if the file has them."""
        if size > rest:
            self.fault = RecordFault.TORN
        self._needed = size

    def _is_in_place(self, content: bytes, stop: int) -> bool:
        if len(content) - stop < RECORD_HEAD_SIZE:
            return True  # too short to decide: the next slice begins here
        return bool(RECORD_HEADS[0].unpack_from(content, stop)[LOG_OFFSET_FIELD] == self.position)

    def _leave(self, file: MappedFile, *, whole: bool) -> None:
        if not whole:
            logger.warning("%s: the blank at %s has the wrong size", file.path, self.position)
            if self._log.find(file.end_offset) is None:
                self.fault = RecordFault.BAD_SIZE
                return
        self.position = file.end_offset


class RecordHead(NamedTuple):
    """Size and store time of one record."""

    size: int
    store_timestamp: int


def record_at(log: MappedFiles, log_offset: int, verify: Verify | None = None) -> RecordHead | None:
    """The record at a log offset; None if there is no valid one."""
    columns = LogScan(log, log_offset, verify=verify, slice_size=_HEAD_SLICE).next()
    if columns is None or columns.log_offset[0] != log_offset:
        return None
    return RecordHead(int(columns.total_size[0]), int(columns.store_timestamp[0]))


def first_blank(columns: RecordColumns) -> int:
    """Position of the first of the blanks that a scan has passed."""
    import numpy as np

    ends = np.concatenate((np.zeros(1, np.int64), columns.position + columns.total_size))
    gaps = np.flatnonzero(ends[:-1] != columns.position)
    return int(ends[gaps[0]] if len(gaps) else ends[-1])


def _incomplete(columns: RecordColumns, start: int) -> list[int]:
    """Positions of records that lack bytes after the body; ``start``: of the buffer in its file.

    No topic ends with a zero, and a property string ends with 0x02 or with a value. Nor does it
    have zeros from one sector boundary to the next, or to its end.
    """
    import numpy as np

    content = np.frombuffer(columns.buffer, np.uint8)
    topics_end = columns.topic_start + columns.topic_size
    ends = columns.position + columns.total_size
    cut = (content[topics_end - 1] == 0) & (columns.topic_size > 0)
    cut |= (content[ends - 1] == 0) & (columns.properties_size > 0)
    sectors = columns.properties_start + -(columns.properties_start + start) % SECTOR_SIZE
    rows = np.flatnonzero(sectors < ends)
    while len(rows):
        first = sectors[rows]
        last = np.minimum(first + SECTOR_SIZE, ends[rows])
        for row in np.flatnonzero((content[first] == 0) & (content[last - 1] == 0)).tolist():
            cut[rows[row]] |= not content[first[row] : last[row]].any()
        sectors[rows] += SECTOR_SIZE
        rows = rows[sectors[rows] < ends[rows]]
    positions: list[int] = columns.position[cut].tolist()
    return positions


# ---- derived entries -----------------------------------------------------------------------------


class Replay:
    """Makes the derived entries of records, unless they exist.

    The counts are those of the visible records.
    """

    def __init__(
        self,
        queues: ConsumeQueues,
        index: IndexService | None,
        tags_codes: TagsCodes,
        *,
        is_batch_topic: IsBatchTopic | None = None,
    ) -> None:
        self._queues = queues
        self._index = index
        self._tags_codes = tags_codes
        self._is_batch_topic = is_batch_topic
        self._refused: set[tuple[str, int]] = set()
        self.appended = 0
        self.repeated = 0  # were there already
        self.misplaced = 0  # have a queue offset that leaves a gap or makes no sense
        self.unqueued = 0  # belong to no queue
        self.grown: set[EntryQueue] = set()

    def add(self, columns: RecordColumns, log_from: int = 0) -> None:
        """Add the records of a slice to the index, and those from an offset on to the queues."""
        records = RecordTexts(columns)
        self._enter(records, log_from)
        if self._index is not None and self._index.behind_from is None:
            index_records(records, self._index.put_record)

    def _enter(self, records: RecordTexts, log_from: int) -> None:
        """Append the visible records of each queue as one run."""
        import numpy as np

        columns = records.columns
        rows, queue_runs = records.by_queue(log_from)
        if not queue_runs:
            return
        entries = np.empty(len(rows), cq_dtype())
        entries["log_offset"] = columns.log_offset[rows]
        entries["total_size"] = columns.total_size[rows]
        entries["tags_code"] = records.tags_codes(self._tags_codes)[rows]
        for first, last in queue_runs:
            self._enter_run(records, rows[first:last], entries[first:last])

    def _enter_run(
        self, records: RecordTexts, rows: npt.NDArray[np.int64], entries: npt.NDArray[Any]
    ) -> None:
        """Append the records of one queue."""
        import numpy as np

        columns = records.columns
        queue = self._queue_of(records, int(rows[0]))
        if queue is None:
            self.unqueued += len(rows)
            return
        if type(queue) is ConsumeQueue:
            ends = columns.log_offset[rows] + columns.total_size[rows]
            known = int(np.searchsorted(ends, queue.max_log_offset, side="right"))
            self.repeated += known
            rows, entries = rows[known:], entries[known:]
            if not len(rows):
                return
            offsets = columns.queue_offset[rows]
            run = bool((np.diff(offsets) == 1).all())
            if run and queue.dispatch_run(entries.tobytes(), int(offsets[0])):
                self.appended += len(rows)
                self.grown.add(queue)
                return
        for row, tags_code in zip(rows.tolist(), entries["tags_code"].tolist(), strict=True):
            self._enter_one(records, row, queue, tags_code)

    def _enter_one(self, records: RecordTexts, row: int, queue: EntryQueue, tags_code: int) -> None:
        columns = records.columns
        entered = add_queue_entry(
            queue,
            int(columns.log_offset[row]),
            int(columns.total_size[row]),
            tags_code,
            int(columns.queue_offset[row]),
            int(columns.store_timestamp[row]),
            records.properties(row),
        )
        if entered is None:
            self.unqueued += 1
        elif entered is Dispatched.REPEATED:
            self.repeated += 1
        elif entered is Dispatched.MISPLACED:
            self.misplaced += 1
        else:
            self.appended += 1
            self.grown.add(queue)

    def _queue_of(self, records: RecordTexts, row: int) -> EntryQueue | None:
        """The queue of a record; a new one is of the kind that its topic or the record requires."""
        topic, queue_id = records.topic(row), int(records.columns.queue_id[row])
        queue = self._queues.get(topic, queue_id)
        if queue is not None:
            return queue
        is_batch = bool(records.columns.sys_flag[row] & FLAG_INNER_BATCH)
        if self._is_batch_topic is not None and self._is_batch_topic(topic):
            is_batch = True
        try:
            if is_batch:
                return self._queues.get_or_create_batch(topic, queue_id)
            return self._queues.get_or_create(topic, queue_id)
        except StoreError as error:
            if (topic, queue_id) not in self._refused:
                self._refused.add((topic, queue_id))
                logger.error("the store cannot make queue entries: %s", error)  # noqa: TRY400
            return None


def runs(values: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Start and end of each run of equal neighbours."""
    import numpy as np

    if not len(values):
        return []
    bounds = (np.flatnonzero(np.diff(values)) + 1).tolist()
    return list(zip([0, *bounds], [*bounds, len(values)], strict=True))


def visible_records(columns: RecordColumns, log_from: int = 0) -> npt.NDArray[np.bool_]:
    """Which records, from an offset on, are visible to consumers."""
    import numpy as np

    hidden = np.isin(columns.sys_flag & FLAG_TRANSACTION_MASK, HIDDEN_KINDS)
    return ~hidden & (columns.log_offset >= log_from)


class _TopicNumbers(dict[bytes, int]):
    """Numbers topics in order of appearance; names that decode to the same text are one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: dict[str, int] = {}

    def __missing__(self, raw: bytes) -> int:
        name = raw.decode("utf-8", "replace")
        number = self[raw] = self.by_name.setdefault(name, len(self.by_name))
        return number


class RecordTexts:
    """Topics, tags and keys of the records of a slice, one element for each record."""

    def __init__(self, columns: RecordColumns) -> None:
        import numpy as np

        assert isinstance(columns.buffer, bytes), "a slice of it can be the key of a dict"
        self.columns = columns
        self._buffer = columns.buffer
        self._items: PropertyItems = scan_properties(columns)
        numbers = _TopicNumbers()
        self.topic_numbers = np.array(
            [
                numbers[self._buffer[start:end]]
                for start, end in zip(
                    columns.topic_start.tolist(),
                    (columns.topic_start + columns.topic_size).tolist(),
                    strict=True,
                )
            ],
            np.int64,
        )
        self.names = list(numbers.by_name)
        self._delayed = numbers.by_name.get(SCHEDULE_TOPIC)
        self.tags = self.values("TAGS")

    def topic(self, row: int) -> str:
        return self.names[int(self.topic_numbers[row])]

    def topics(self) -> list[str]:
        names = self.names
        return [names[number] for number in self.topic_numbers.tolist()]

    def values(self, name: str) -> list[bytes | None]:
        """A property of each record; None where it is missing."""
        start, size = self._items.column(name)
        buffer = self._buffer
        spans = zip(start.tolist(), (start + size).tolist(), strict=True)
        return [buffer[first:last] or None for first, last in spans]

    def properties(self, row: int) -> bytes:
        """The property string of one record."""
        start = int(self.columns.properties_start[row])
        return self._buffer[start : start + int(self.columns.properties_size[row])]

    def by_queue(self, log_from: int = 0) -> tuple[npt.NDArray[np.int64], list[tuple[int, int]]]:
        """The visible records from an offset on, sorted by queue, and the part of each queue."""
        import numpy as np

        columns = self.columns
        shown = np.flatnonzero(visible_records(columns, log_from))
        queue_ids = columns.queue_id[shown].astype(np.int64) & 0xFFFF_FFFF
        keys = self.topic_numbers[shown] << 32 | queue_ids
        order = np.argsort(keys, kind="stable")
        return shown[order], runs(keys[order])

    def tags_codes(self, tags_codes: TagsCodes) -> npt.NDArray[np.int64]:
        """The tags code of the queue entry of each record."""
        import numpy as np

        codes = tags_codes.of_tags(self.tags)
        if self._delayed is not None:
            for row in (self.topic_numbers == self._delayed).nonzero()[0].tolist():
                stored = int(self.columns.store_timestamp[row])
                codes[row] = tags_codes.of(
                    SCHEDULE_TOPIC, self.tags[row], self.properties(row), stored
                )
        return np.array(codes, np.int64)


PutRecord = Callable[[str, int, int, bytes | None, bytes | None, bytes | None], None]


def index_records(records: RecordTexts, put: PutRecord) -> None:
    """Call ``put`` for all records but rollbacks, in the order of the log."""
    columns = records.columns
    kinds = (columns.sys_flag & FLAG_TRANSACTION_MASK).tolist()
    rows = zip(
        kinds,
        records.topics(),
        columns.log_offset.tolist(),
        columns.store_timestamp.tolist(),
        records.values("UNIQ_KEY"),
        records.values("KEYS"),
        records.tags,
        strict=True,
    )
    for kind, topic, log_offset, store_timestamp, unique_id, keys, tag in rows:
        if kind != FLAG_TRANSACTION_ROLLBACK:
            put(topic, log_offset, store_timestamp, unique_id, keys, tag)


# ---- catching up ---------------------------------------------------------------------------------


class IndexCatchUp:
    """Replays the log into an index that is behind, while the store runs.

    ``offered_until`` returns the end of the records that the index was given. New records are not
    indexed meanwhile and are replayed as well; when none is left, the index continues normally.
    """

    def __init__(
        self, log: MappedFiles, index: IndexService, offered_until: Callable[[], int]
    ) -> None:
        self._log = log
        self._index = index
        self._offered_until = offered_until
        self._begin()

    def _begin(self) -> None:
        log, behind_from = self._log, self._index.behind_from or 0
        # A record certainly begins only at the start of a file.
        self._position = max(log.min_offset, behind_from - behind_from % log.file_size)
        self._generation = log.generation

    def step(self, byte_budget: int) -> bool:
        """Index about ``byte_budget`` bytes of the log; return whether the index is complete.

        A file that cannot be read is skipped. If the index cannot be written (full disk), its
        ``error`` is set, nothing is lost, and the next step tries again.
        """
        index = self._index
        if index.behind_from is None:
            return True
        if self._log.generation != self._generation:  # log and perhaps index were truncated
            self._begin()
        until = self._offered_until()
        self._position = max(self._position, self._log.min_offset)  # files may have expired
        scan = LogScan(self._log, self._position, slice_size=byte_budget)
        try:
            columns = scan.next(until)
            if columns is not None:
                index_records(RecordTexts(columns), index.replay_record)
                index.error = None
            self._position = scan.position
            if scan.fault is not None:
                self._skip_file(scan.fault.value)
        except CorruptLogError as error:
            self._skip_file(str(error))
        except StoreFileError as error:
            if index.error is None:
                logger.warning(
                    "the index cannot be written and stays behind until the retry: %s", error
                )
            index.error = error
            return False
        if self._position < until:
            return False
        index.caught_up()
        return True

    def _skip_file(self, reason: str) -> None:
        logger.error(
            "the rest of the log file from %s on cannot be read and is not indexed: %s",
            self._position,
            reason,
        )
        self._position += self._log.file_size - self._position % self._log.file_size
