"""Delay progress: how far each delay level is delivered, and how much of that may be saved.

Every delay level has a queue of SCHEDULE_TOPIC_XXXX: level 1 has queue 0. The tags code of an entry
is the time at which it is due. The progress of a level is the queue offset of the next entry, saved
in ``config/delayOffset.json``::

    {"dataVersion": {...}, "offsetTable": {1: 10, 3: 7}, "logOffset": 4711, "runs": {3: [[9, 12]]}}

**Runs.** All messages of a level wait for the same time, so their entries are due in the order of
the queue, unless the wall clock is set back or the delay is shortened in the settings: then new
entries are due before older ones and must not wait for them. So a level is a list of *runs*,
stretches of its queue that are due in order (:class:`DelayRun`), nearly always one. A run begins at
an entry that is due more than :data:`TOLERANCE_MS` before the last one. The file has the first run
in ``offsetTable``, as in Java, and the others in ``runs``, each with its first entry and the next
one to be delivered.

**What may be saved.** An entry before the saved offset is never read again. So the file must not be
ahead of the disk: a delivered message that a power failure loses has to be delivered again. A
:class:`DelayRun` records where the log ended after its deliveries, and
:meth:`DelayRun.safe_offset` moves past them only when the log is on disk that far, with any flush
setting. Java saves what was appended, and may lose such messages.

**After a crash** :mod:`skylark.broker.delay.delay_recovery` finds deliveries that the file does not
have in the log, from ``logOffset`` on: all copies of entries that the file counts as not delivered
are behind that offset. Java ignores ``logOffset`` and ``runs``, and drops them when it writes.

**Settings.** A level that ``messageDelayLevel`` no longer has keeps its queue, and its messages are
delivered when they are due; Java never delivers them.

Counterpart of the tables of Java's ``ScheduleMessageService``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from skylark.store.config_tables import DelayOffsetTable
from skylark.wire.bodies.common_body import DataVersion

logger = logging.getLogger(__name__)

#: Marks per run; further progress is added to the newest one.
MARKS_MAX: Final = 64
#: An entry may be due so much before the one in front of it, and wait for it.
TOLERANCE_MS: Final = 400
#: Runs per level; further entries join the last one.
RUNS_MAX: Final = 64
#: Growth of the log after which the file is written only because of ``logOffset``.
LOG_OFFSET_STEP: Final = 64 << 20


class Mark(NamedTuple):
    """Entries before ``next_offset`` are done for good once the disk has the log to ``log_end``."""

    log_end: int
    next_offset: int


class DelayRun(msgspec.Struct, eq=False):
    """The progress of entries that are due in the order of the queue; does no I/O."""

    #: Queue offset of the first entry, and of the entry to be delivered next.
    start: int
    next_offset: int
    #: Queue offset behind the last entry; None: the run goes on to the end of the queue.
    end: int | None = None
    #: When the last entry is due.
    last_due_ms: int = 0
    _log_end: int = 0
    _safe_offset: int = 0
    _safe_log_end: int = 0  # copies of entries from the safe offset on are behind this log offset
    _marks: deque[Mark] = msgspec.field(default_factory=deque)

    @classmethod
    def at(cls, start: int, offset: int, log_offset: int = 0) -> DelayRun:
        """A run that continues at ``offset``; later copies are behind ``log_offset``."""
        return cls(start, offset, _safe_offset=offset, _safe_log_end=log_offset)

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.next_offset >= self.end

    def delivered(self, log_end: int, count: int = 1) -> None:
        """Record that entries were delivered; ``log_end`` is the end of the log after them."""
        self._log_end = log_end
        self.next_offset += count

    def mark(self, flushed_where: int) -> None:
        """Record the progress for :meth:`safe_offset`; call it at the end of each turn."""
        offset = self.safe_offset(flushed_where)
        if self._marks:
            offset = self._marks[-1].next_offset
        if offset != self.next_offset:
            if len(self._marks) == MARKS_MAX:
                self._marks.pop()
            self._marks.append(Mark(self._log_end, self.next_offset))

    def safe_offset(self, flushed_where: int) -> int:
        """The progress that may be saved if the log is on disk up to ``flushed_where``."""
        marks = self._marks
        while marks and marks[0].log_end <= flushed_where:
            self._safe_log_end, self._safe_offset = marks.popleft()
        return self._safe_offset

    def unsafe_from(self, flushed_where: int, log_end: int) -> int:
        """A log offset behind which all copies are that the saved progress does not have."""
        is_safe = self.safe_offset(flushed_where) == self.next_offset
        return log_end if is_safe else self._safe_log_end


class DelayLevel:
    """The runs of one level."""

    def __init__(self, level: int, delay_ms: int | None) -> None:
        """``delay_ms`` is None for a level that the settings do not have any more."""
        self.level = level
        self.delay_ms = delay_ms
        #: Whether the level ever had a message; only then it is in the file.
        self.listed = False
        self.runs = [DelayRun.at(0, 0)]

    @property
    def queue_id(self) -> int:
        return self.level - 1

    @property
    def next_offset(self) -> int:
        """Queue offset of the first entry that is not delivered."""
        waiting = (run for run in self.runs if not run.is_done)
        return next(waiting, self.runs[-1]).next_offset

    def begin_at(self, offset: int, min_offset: int, max_offset: int, log_offset: int = 0) -> None:
        """Continue where the last run ended, within the offsets of the queue."""
        within = min(max(offset, min_offset), max_offset)
        if within != offset:
            logger.warning(
                "delay level %d continues at %d instead of %d", self.level, within, offset
            )
        self.runs = [DelayRun.at(within, within, log_offset)]

    def split(self, start: int, offset: int | None = None, log_offset: int = 0) -> DelayRun | None:
        """Begin another run at an entry; None if there are too many.

        ``offset`` is the entry to be delivered next; without it, the first of the run.
        """
        if len(self.runs) >= RUNS_MAX or not self.runs[-1].start < start:
            return None
        self.runs[-1].end = start
        self.runs.append(DelayRun.at(start, start if offset is None else offset, log_offset))
        return self.runs[-1]

    def arrived(self, offset: int, due_ms: int) -> DelayRun | None:
        """Record an entry at the end of the queue; returns a run if it begins a new one."""
        last = self.runs[-1]
        if due_ms >= last.last_due_ms - TOLERANCE_MS:
            last.last_due_ms = max(last.last_due_ms, due_ms)
            return None
        if last.next_offset >= offset:  # nothing is in front of it
            last.last_due_ms = due_ms
            return None
        run = self.split(offset)
        if run is not None:
            run.last_due_ms = due_ms
        return run

    def drop_done_runs(self, flushed_where: int) -> None:
        """Forget runs at the front that are done for good."""
        while len(self.runs) > 1 and self.runs[0].safe_offset(flushed_where) == self.runs[0].end:
            del self.runs[0]

    def keep_within(self, min_offset: int, max_offset: int) -> int:
        """Skip entries that retention has deleted; returns how many.

        If the queue ends before the next entry, it was deleted and created again.
        """
        if self.next_offset > max_offset:
            self.begin_at(min_offset, min_offset, max_offset)
        count = 0
        for run in self.runs:
            until = min_offset if run.end is None else min(min_offset, run.end)
            expired = max(0, until - run.next_offset)
            run.next_offset += expired
            count += expired
        return count


class DelayLevels:
    """All levels of a broker: the content of ``delayOffset.json``."""

    def __init__(self, delays_ms: Sequence[int], now_ms: int) -> None:
        """``delays_ms``: delay of level 1, 2, ..."""
        self.by_level = {
            level: DelayLevel(level, delay_ms) for level, delay_ms in enumerate(delays_ms, start=1)
        }
        self.version = DataVersion(timestamp=now_ms)
        self._progress_count = 0
        self._saved = DelayOffsetTable()

    def load(
        self,
        table: DelayOffsetTable,
        queue_ids: Iterable[int],
        bounds: Callable[[int], tuple[int, int]],
    ) -> None:
        """Load the file; ``bounds`` gives smallest and largest offset of an existing queue."""
        if table.data_version != DataVersion():
            self.version = table.data_version
        for level in sorted(queue_id + 1 for queue_id in queue_ids):
            if level not in self.by_level:
                logger.warning("delay level %d has messages, but is not configured", level)
                self.by_level[level] = DelayLevel(level, None)
        self._saved = table
        log_offset = table.log_offset or 0
        for level, progress in self.by_level.items():
            min_offset, max_offset = bounds(progress.queue_id)
            first = table.offset_table.get(level, min_offset)
            progress.begin_at(first, min_offset, max_offset, log_offset)
            progress.listed = level in table.offset_table or max_offset > 0
            for start, offset in (table.runs or {}).get(level, ()):
                if start <= offset <= max_offset:
                    progress.split(start, offset, log_offset)

    @property
    def log_offset(self) -> int | None:
        """A log offset behind which all copies are that the saved progress does not have."""
        return self._saved.log_offset

    def count_progress(self, count: int, version_step: int, now_ms: int) -> None:
        """Count delivered messages; each ``version_step`` of them raises the version."""
        before, self._progress_count = self._progress_count, self._progress_count + count
        if before // version_step != self._progress_count // version_step:
            self.version = self.version.next(now_ms)

    def _runs(self) -> Iterable[DelayRun]:
        return (run for progress in self.by_level.values() for run in progress.runs)

    def are_safe(self, flushed_where: int) -> bool:
        """Whether all progress may be saved."""
        return all(run.safe_offset(flushed_where) == run.next_offset for run in self._runs())

    def offsets(self, flushed_where: int) -> DelayOffsetTable:
        """What may be saved now, without what only Skylark's file has."""
        return DelayOffsetTable(
            data_version=self.version,
            offset_table={
                level: progress.runs[0].safe_offset(flushed_where)
                for level, progress in self.by_level.items()
                if progress.listed
            },
        )

    def snapshot(self, flushed_where: int, log_end: int) -> DelayOffsetTable:
        """What may be saved now; ``log_end`` is the end of the log."""
        for progress in self.by_level.values():
            progress.drop_done_runs(flushed_where)
        table = self.offsets(flushed_where)
        table.runs = {
            level: [(run.start, run.safe_offset(flushed_where)) for run in progress.runs[1:]]
            for level, progress in self.by_level.items()
            if len(progress.runs) > 1
        } or None
        saved = self._saved
        before = saved.log_offset or 0
        unsafe_from = (run.unsafe_from(flushed_where, log_end) for run in self._runs())
        table.log_offset = max(before, min(unsafe_from))
        is_as_saved = (table.offset_table, table.runs) == (saved.offset_table, saved.runs)
        is_near = saved.log_offset is not None and table.log_offset < before + LOG_OFFSET_STEP
        if is_as_saved and is_near:
            table.log_offset = before  # right as well, and the file need not be written
        self._saved = table
        return table
