"""Delay progress: how far each delay level is delivered, and how much of that may be saved.

Every delay level has a queue of SCHEDULE_TOPIC_XXXX: level 1 has queue 0. Its messages are
delivered in the order of the queue; the tags code of an entry is the time at which it is due. The
progress of a level is the queue offset of the next entry, saved in ``config/delayOffset.json``::

    {"dataVersion": {...}, "offsetTable": {1: 10, 3: 7}}

**What may be saved.** An entry before the saved offset is never read again. So the file must not be
ahead of the disk: a delivered message that a power failure loses has to be delivered again. A
:class:`DelayLevel` records where the log ended after its deliveries, and
:meth:`DelayLevel.safe_offset` moves past them only when the log is on disk that far, with any flush
setting. Java saves what was appended, and may lose such messages.

**After a crash** delivery continues at the saved offset. Messages that were delivered since the
last save (``flushDelayOffsetInterval``), or were not on disk then, are delivered again, as in Java:
at least once, never lost. After an orderly stop the file is exact.

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

#: Marks per level; further progress is added to the newest one.
MARKS_MAX: Final = 64


class Mark(NamedTuple):
    """Entries before ``next_offset`` are done for good once the disk has the log to ``log_end``."""

    log_end: int
    next_offset: int


class DelayLevel(msgspec.Struct, eq=False):
    """The progress of one level; does no I/O."""

    level: int
    #: None for a level that the settings do not have any more.
    delay_ms: int | None
    #: Queue offset of the entry to be delivered next.
    next_offset: int = 0
    #: Whether the level ever had a message; only then it is in the file.
    listed: bool = False
    _log_end: int = 0
    _safe_offset: int = 0
    _marks: deque[Mark] = msgspec.field(default_factory=deque)

    @property
    def queue_id(self) -> int:
        return self.level - 1

    def begin_at(self, offset: int, min_offset: int, max_offset: int) -> None:
        """Continue where the last run ended, within the offsets of the queue."""
        within = min(max(offset, min_offset), max_offset)
        if within != offset:
            logger.warning(
                "delay level %d continues at %d instead of %d", self.level, within, offset
            )
        self.next_offset = self._safe_offset = within

    def keep_within(self, min_offset: int, max_offset: int) -> int:
        """Skip entries that retention has deleted; returns how many.

        If the queue ends before the next entry, it was deleted and created again.
        """
        if self.next_offset > max_offset:
            self._marks.clear()
            self.begin_at(min_offset, min_offset, max_offset)
        expired_count = max(0, min_offset - self.next_offset)
        self.next_offset += expired_count
        return expired_count

    def due_ms(self, tags_code: int, now_ms: int) -> int:
        """When an entry is due.

        If that is later than the whole delay from now, the clock was set back, or the delay was
        shortened. Such an entry is due now.
        """
        if self.delay_ms is not None and tags_code > now_ms + self.delay_ms:
            return now_ms
        return tags_code

    def delivered(self, log_end: int) -> None:
        """Record that the next entry was delivered; ``log_end`` is the end of the log after it."""
        self._log_end = log_end
        self.next_offset += 1

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
            self._safe_offset = marks.popleft().next_offset
        return self._safe_offset


class DelayLevels:
    """All levels of a broker: the content of ``delayOffset.json``."""

    def __init__(self, delays_ms: Sequence[int], now_ms: int) -> None:
        """``delays_ms``: delay of level 1, 2, ..."""
        self.by_level = {
            level: DelayLevel(level, delay_ms) for level, delay_ms in enumerate(delays_ms, start=1)
        }
        self.version = DataVersion(timestamp=now_ms)
        self._progress_count = 0

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
        for level, progress in self.by_level.items():
            min_offset, max_offset = bounds(progress.queue_id)
            progress.begin_at(table.offset_table.get(level, min_offset), min_offset, max_offset)
            progress.listed = level in table.offset_table or max_offset > 0

    def count_progress(self, count: int, version_step: int, now_ms: int) -> None:
        """Count delivered messages; each ``version_step`` of them raises the version."""
        before, self._progress_count = self._progress_count, self._progress_count + count
        if before // version_step != self._progress_count // version_step:
            self.version = self.version.next(now_ms)

    def are_safe(self, flushed_where: int) -> bool:
        """Whether all progress may be saved."""
        return all(
            progress.safe_offset(flushed_where) == progress.next_offset
            for progress in self.by_level.values()
        )

    def snapshot(self, flushed_where: int) -> DelayOffsetTable:
        """What may be saved now."""
        return DelayOffsetTable(
            data_version=self.version,
            offset_table={
                level: progress.safe_offset(flushed_where)
                for level, progress in self.by_level.items()
                if progress.listed
            },
        )
