"""Checks queues against the log: every message has its entry, and every entry its message.

:class:`QueueChecks` groups the records of a slice by queue, and one check per queue compares them
with the entries at their queue offsets: the right record, its size, its tags code. A check keeps
only a few numbers, so memory does not depend on the number of messages. At the end of the log, two
parts of the queue are left:

* entries before the first message that the log has: their records have expired, so they point
  before the log, or are pre-blank;
* entries after the last message: there should be none.

The directory of a queue determines its kind; without one, its records do. Light queues (``%LMQ%``)
have entries that point to records of other topics; they are skipped.

**Topics that were deleted.** The log keeps the records of a deleted topic until they expire, and a
topic that is created again numbers its messages from 0. So a record whose entry is missing, or
points to a later record, is not a finding yet: if the numbering restarts later, the broker's table
does not have the topic, or its directory exists without a queue in it, the report has only a note.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from skylark.store.consume_queue import PRE_BLANK_SIZE
from skylark.store.file_system import FileSystem
from skylark.store.inspection.check_findings import (
    Findings,
    Severity,
    Trouble,
    entries_text,
    plural,
    pointing_entries,
)
from skylark.store.inspection.queue_reader import CHUNK_ENTRIES, QueueReader
from skylark.store.inspection.store_directory import QueueDirectory, Survey
from skylark.store.log_replay import RecordTexts, runs
from skylark.store.queue_registry import BATCH_QUEUE_DIRECTORY, QUEUE_DIRECTORY
from skylark.store.reput import TagsCodes, inner_batch
from skylark.wire.layout import FLAG_INNER_BATCH

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

LMQ_PREFIX: Final = "%LMQ%"
_RANGES_MAX: Final = 16  # ranges of one queue reported one by one
_EVERYWHERE: Final = 1 << 62  # after every record
_FIELDS: Final = ("log offset", "size", "tags code")
_BATCH_FIELDS: Final = (*_FIELDS, "store time", "queue offset", "number of messages")

_SOUND, _ABSENT, _NEWER, _WRONG = range(4)  # kinds of entries of a record
_EXPIRED, _BEHIND, _NOWHERE = range(3)  # where entries without a record point to


class QueueCheck(ABC):
    """What both kinds of queues have in common."""

    def __init__(
        self, queue: QueueDirectory, reader: QueueReader, findings: Findings, log_min: int
    ) -> None:
        self._queue = queue
        self._reader = reader
        self._findings = findings
        self._log_min = log_min
        #: Number of entries checked.
        self.entry_count = 0

    @abstractmethod
    def add(self, texts: RecordTexts, rows: Int64s, tags_codes: Int64s) -> None:
        """Compare records of this queue, in the order of the log."""

    @abstractmethod
    def finish(self, log_end: int, *, deleted: bool = False) -> None:
        """Check the rest; ``deleted``: the broker no longer has the topic."""

    def _report(self, severity: Severity | Trouble, kind: str, index: int, text: str) -> None:
        """Add a finding at an entry."""
        queue = self._queue
        path, position = queue.path, index * queue.entry_size
        start = position - position % queue.file_size
        if start in queue.starts:
            path, position = path / f"{start:020d}", position - start
        self._findings.add(severity, kind, path, position, text)

    def _report_order(self, index: int, log_offset: int, queue_offset: int, wanted: int) -> None:
        text = (
            f"the record at {log_offset} has the queue offset {queue_offset}, and {wanted} "
            "comes next"
        )
        self._report(Trouble.WRONG, "queue.order", index, text)

    def _report_wrong(
        self,
        index: int,
        count: int,
        names: Iterable[str],
        entry: Iterable[int],
        wanted: Iterable[int],
    ) -> None:
        """Report how an entry differs from the expected one, if it does."""
        differ = [
            f"{name} {actual} instead of {right}"
            for name, actual, right in zip(names, entry, wanted, strict=False)
            if actual != right
        ]
        if differ:
            verb = "has" if count == 1 else "are wrong, the first has"
            text = f"{entries_text(index, count)} {verb} {', '.join(differ)}"
            self._report(Trouble.WRONG, "queue.wrong", index, text)

    def _report_unexpected(self, first: int, end: int | None, log_end: int) -> None:
        """Report entries that belong to no record of the log; expired ones are correct."""
        import numpy as np

        for index, entries in self._reader.used(self._queue, first, end):
            self.entry_count += len(entries)
            offsets = entries["log_offset"].astype(np.int64)
            blank = (offsets == 0) & (entries["total_size"] == PRE_BLANK_SIZE)
            expired = blank | ((offsets >= 0) & (offsets < self._log_min))
            kinds = np.where(offsets >= log_end, _BEHIND, _NOWHERE)
            kinds[expired] = _EXPIRED
            for start, stop in runs(kinds):
                kind, count = int(kinds[start]), stop - start
                if kind != _EXPIRED:
                    self._report_extra(kind, index + start, count, int(offsets[start]), log_end)

    def _report_extra(
        self, kind: int, index: int, count: int, log_offset: int, log_end: int
    ) -> None:
        trouble, where = Trouble.WRONG, "where no valid record of this queue begins"
        if kind == _BEHIND:
            trouble, where = Trouble.AHEAD_OR_BEHIND, f"beyond the end of the log at {log_end}"
        text = f"{pointing_entries(index, count)} to {log_offset}, {where}"
        self._report(trouble, "queue.extra", index, text)


class _Range(NamedTuple):
    """Consecutive records whose entries are missing, or belong to later records."""

    kind: int
    queue_offset: int
    length: int
    log_offset: int


class PlainCheck(QueueCheck):
    """A consume queue: the entry of a message is the one at its queue offset."""

    def __init__(
        self, queue: QueueDirectory, reader: QueueReader, findings: Findings, log_min: int
    ) -> None:
        super().__init__(queue, reader, findings, log_min)
        self._first_offset: int | None = None  # of the first message that the log has
        self._next_offset = 0  # that the next message should have
        self._pending: list[_Range] = []
        self._pending_more = 0  # records beyond those
        self._abandoned = 0  # records from before the restart of the queue
        self._restarted_at = 0  # log offset of the first record after the restart

    def add(self, texts: RecordTexts, rows: Int64s, tags_codes: Int64s) -> None:
        import numpy as np

        columns = texts.columns
        offsets = columns.queue_offset[rows]
        bounds = (np.flatnonzero(np.diff(offsets) != 1) + 1).tolist()
        for first, last in zip([0, *bounds], [*bounds, len(rows)], strict=True):
            run = rows[first:last]
            start, log_offset = int(offsets[first]), int(columns.log_offset[run[0]])
            if self._has_place(start, log_offset):
                codes = tags_codes[first:last]
                self._compare(start, columns.log_offset[run], columns.total_size[run], codes)
                self._next_offset = start + len(run)

    def _has_place(self, queue_offset: int, log_offset: int) -> bool:
        """Whether a message has a place in the queue; reports it if it is not the next one."""
        if queue_offset < 0:
            self._report_order(0, log_offset, queue_offset, self._next_offset)
            return False
        if self._first_offset is None:
            self._first_offset = queue_offset
        elif queue_offset == 0:
            self._restart(log_offset)
        elif queue_offset != self._next_offset:
            self._report_order(self._next_offset, log_offset, queue_offset, self._next_offset)
            if queue_offset < self._next_offset:
                return False
            end = min(queue_offset, self._next_offset + CHUNK_ENTRIES)
            self._report_unexpected(self._next_offset, end, _EVERYWHERE)
        return True

    def _restart(self, log_offset: int) -> None:
        self._abandoned += self._pending_count
        self._pending.clear()
        self._pending_more = 0
        self._first_offset = 0
        self._restarted_at = log_offset

    @property
    def _pending_count(self) -> int:
        return sum(pending.length for pending in self._pending) + self._pending_more

    def _compare(self, first: int, offsets: Int64s, sizes: Int64s, codes: Int64s) -> None:
        import numpy as np

        entries = self._reader.read(self._queue, first, len(offsets))
        count = len(entries)
        self.entry_count += count
        same = (
            (entries["log_offset"] == offsets[:count])
            & (entries["total_size"] == sizes[:count])
            & (entries["tags_code"] == codes[:count])
        )
        if count == len(offsets) and same.all():
            return
        kinds = np.full(len(offsets), _ABSENT)
        kinds[:count] = np.where(entries["log_offset"] > offsets[:count], _NEWER, _WRONG)
        kinds[:count][entries["total_size"] <= 0] = _ABSENT
        kinds[:count][same] = _SOUND
        for start, stop in runs(kinds):
            kind = int(kinds[start])
            if kind == _WRONG:
                wanted = (int(offsets[start]), int(sizes[start]), int(codes[start]))
                entry = entries[start].tolist()
                self._report_wrong(first + start, stop - start, _FIELDS, entry, wanted)
            elif kind != _SOUND:
                self._wait(_Range(kind, first + start, stop - start, int(offsets[start])))

    def _wait(self, pending: _Range) -> None:
        """Remember that records lack their entries: it may turn out to be right."""
        last = self._pending[-1] if self._pending else None
        if last and (last.kind, last.queue_offset + last.length) == pending[:2]:
            self._pending[-1] = last._replace(length=last.length + pending.length)
        elif len(self._pending) < _RANGES_MAX:
            self._pending.append(pending)
        else:
            self._pending_more += pending.length

    def finish(self, log_end: int, *, deleted: bool = False) -> None:
        if deleted:
            text = f"the topic was deleted, and the log has {_records(self._pending_count)} of it"
            self._report(Severity.NOTE, "queue.deleted", 0, text)
            return
        if self._abandoned:
            text = (
                f"the queue restarted with the record at {self._restarted_at}, as when a topic is "
                f"deleted and made again: {_records(self._abandoned)} before it without entries"
            )
            self._report(Severity.NOTE, "queue.deleted", 0, text)
        self._report_unexpected(self._queue.first_index, self._first_offset, log_end)
        if self._first_offset is not None:
            self._report_unexpected(self._next_offset, None, log_end)
        self._report_pending()

    def _report_pending(self) -> None:
        for kind, queue_offset, count, log_offset in self._pending:
            if kind == _ABSENT:
                is_last = queue_offset + count == self._next_offset
                trouble = Trouble.AHEAD_OR_BEHIND if is_last else Trouble.WRONG
                text = f"{entries_text(queue_offset, count)} missing, "
                text += f"beginning with that of the record at {log_offset}"
                self._report(trouble, "queue.missing", queue_offset, text)
            else:
                text = f"{pointing_entries(queue_offset, count)} to later records, "
                text += f"and not to {log_offset} and after it"
                self._report(Trouble.WRONG, "queue.wrong", queue_offset, text)
        if self._pending_more:
            text = f"further {_records(self._pending_more)} without entries of their own"
            self._report(Trouble.WRONG, "queue.missing", self._next_offset, text)


class BatchCheck(QueueCheck):
    """A queue of inner batches: entries follow each other as their records do in the log."""

    def __init__(
        self, queue: QueueDirectory, reader: QueueReader, findings: Findings, log_min: int
    ) -> None:
        super().__init__(queue, reader, findings, log_min)
        self._index = queue.first_index  # of the next entry
        self._next_offset: int | None = None  # that the next message should have
        self._missing_count = 0
        self._missing_at = 0  # log offset of the first record without entry

    def add(self, texts: RecordTexts, rows: Int64s, tags_codes: Int64s) -> None:
        """As for a plain queue; a record that is not an inner batch has no entry."""
        columns = texts.columns
        for row, tags_code in zip(rows.tolist(), tags_codes.tolist(), strict=True):
            inner = inner_batch(texts.properties(row))
            if inner is None:
                continue
            log_offset, next_offset = int(columns.log_offset[row]), self._next_offset
            if next_offset is not None and next_offset != inner.queue_offset:
                self._report_order(self._index, log_offset, inner.queue_offset, next_offset)
            self._next_offset = inner.queue_offset + inner.message_count
            self._compare(
                (
                    log_offset,
                    int(columns.total_size[row]),
                    tags_code,
                    int(columns.store_timestamp[row]),
                    *inner,
                )
            )

    def _compare(self, wanted: tuple[int, ...]) -> None:
        log_offset = wanted[0]
        entry = self._entry()
        while entry is not None and entry[0] < log_offset:
            self._report_unexpected(self._index, self._index + 1, _EVERYWHERE)
            self._index += 1
            entry = self._entry()
        if entry is None or entry[0] > log_offset:
            if not self._missing_count:
                self._missing_at = log_offset
            self._missing_count += 1
            return
        self._report_wrong(self._index, 1, _BATCH_FIELDS, entry, wanted)
        self._index += 1
        self.entry_count += 1

    def _entry(self) -> list[int] | None:
        """The next entry, if there is one."""
        for entry in self._reader.read(self._queue, self._index, 1).tolist():
            return list(entry) if entry[1] > 0 else None
        return None

    def finish(self, log_end: int, *, deleted: bool = False) -> None:
        if deleted:
            text = f"the topic was deleted, and the log has {_records(self._missing_count)} of it"
            self._report(Severity.NOTE, "queue.deleted", 0, text)
            return
        if self._missing_count:
            text = f"{_records(self._missing_count)} without entry, the first at {self._missing_at}"
            self._report(Trouble.AHEAD_OR_BEHIND, "queue.missing", self._index, text)
        self._report_unexpected(self._index, None, log_end)


def _records(count: int) -> str:
    return plural(count, "record")


# ---- all queues ----------------------------------------------------------------------------------


class _Key(NamedTuple):
    """Identifies a queue."""

    is_batch: bool
    topic: str
    queue_id: int


class QueueChecks:
    """Compares all queues of a store with the records of its log."""

    def __init__(
        self,
        files: FileSystem,
        survey: Survey,
        findings: Findings,
        log_min: int,
        tags_codes: TagsCodes,
    ) -> None:
        self._reader = QueueReader(files)
        self._survey = survey
        self._findings = findings
        self._log_min = log_min
        self._tags_codes = tags_codes
        self._directories = {
            _Key(queue.is_batch, queue.topic, queue.queue_id): queue
            for queue in survey.queues
            if not queue.topic.startswith(LMQ_PREFIX)
        }
        self._checks: dict[_Key, QueueCheck] = {}

    @property
    def entry_count(self) -> int:
        """Number of entries checked."""
        return sum(check.entry_count for check in self._checks.values())

    def add(self, texts: RecordTexts) -> None:
        """Compare the records of a slice; slices come in the order of the log."""
        rows, queue_runs = texts.by_queue()
        tags_codes = texts.tags_codes(self._tags_codes)[rows]
        for first, last in queue_runs:
            check = self._check_of(texts, int(rows[first]))
            if check is not None:
                check.add(texts, rows[first:last], tags_codes[first:last])

    def _check_of(self, texts: RecordTexts, row: int) -> QueueCheck | None:
        topic = texts.topic(row)
        if topic.startswith(LMQ_PREFIX):
            return None
        queue_id = int(texts.columns.queue_id[row])
        is_batch = _Key(True, topic, queue_id) in self._directories or (
            _Key(False, topic, queue_id) not in self._directories
            and bool(texts.columns.sys_flag[row] & FLAG_INNER_BATCH)
        )
        return self._check(_Key(is_batch, topic, queue_id))

    def _check(self, key: _Key) -> QueueCheck:
        check = self._checks.get(key)
        if check is None:
            queue = self._directories.get(key)
            if queue is None:
                name = BATCH_QUEUE_DIRECTORY if key.is_batch else QUEUE_DIRECTORY
                path = self._survey.root / name / key.topic / str(key.queue_id)
                queue = QueueDirectory(key.topic, key.queue_id, path, key.is_batch, 1, [])
            kind = BatchCheck if key.is_batch else PlainCheck
            check = kind(queue, self._reader, self._findings, self._log_min)
            self._checks[key] = check
        return check

    def finish(self, log_end: int) -> None:
        """Check the entries without records, after the whole log was read."""
        for key in {**dict.fromkeys(self._directories), **dict.fromkeys(self._checks)}:
            self._check(key).finish(log_end, deleted=self._was_deleted(key))
        self._reader.close()

    def _was_deleted(self, key: _Key) -> bool:
        """Whether a queue is missing because its topic was deleted, and perhaps created again."""
        if key in self._directories:
            return False
        topics = self._survey.topics
        is_forgotten = topics is not None and key.topic not in topics
        return is_forgotten or key.topic in self._survey.emptied_topics
