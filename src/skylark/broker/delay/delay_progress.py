"""How far the delivery of delayed messages has got, level by level, and what of that may be saved.

Every delay level has a queue of SCHEDULE_TOPIC_XXXX: level 1 has queue 0. Its messages are
delivered in the order of the queue; the tags code of an entry is the time at which it is due. The
progress of a level is the queue offset of the next entry, kept in ``config/delayOffset.json``::

    {"dataVersion": {...}, "offsetTable": {1: 10, 3: 7}}

**What may be saved.** An entry before the saved offset is never looked at again. So the file must
not be ahead of the disk: a delivered message that a power cut takes back has to be delivered again.
A :class:`DelayLevel` notes with its deliveries where the log ended, and
:meth:`DelayLevel.safe_offset` moves past them only when the log is on disk that far, whatever the
flush setting is. Java saves what was appended, and may lose such messages.

**After a crash** delivery goes on at the saved offset, which is behind by what was delivered since
the last save (``flushDelayOffsetInterval``) or was not on disk then. These messages are delivered
once more, as in Java: at least once, never lost. After an orderly stop the file is exact.

**Settings.** A level that ``messageDelayLevel`` no longer has keeps its queue, and what is left in
it is delivered when its entries say; Java leaves it there.

Counterpart of the tables of Java's ``ScheduleMessageService``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from skylark.store.config_tables import DelayOffsetTable
from skylark.wire.bodies.common_body import DataVersion

log = logging.getLogger(__name__)

#: Marks per level; more progress than that is added to the newest one.
MARKS_MAX: Final = 64


class Mark(NamedTuple):
    """Entries before ``next_offset`` are done for good once the disk has the log to ``log_end``."""

    log_end: int
    next_offset: int


class DelayLevel:
    """The progress of one level; knows neither clock nor store."""

    __slots__ = ("_log_end", "_marks", "_safe_offset", "delay_ms", "level", "listed", "next_offset")

    def __init__(self, level: int, delay_ms: int | None) -> None:
        """``delay_ms`` is None for a level that the settings do not have any more."""
        self.level = level
        self.delay_ms = delay_ms
        #: Queue offset of the entry to be delivered next.
        self.next_offset = 0
        #: Whether there ever was a message, so that the level stands in the file.
        self.listed = False
        self._log_end = 0
        self._safe_offset = 0
        self._marks: deque[Mark] = deque()

    @property
    def queue_id(self) -> int:
        return self.level - 1

    def begin_at(self, offset: int, min_offset: int, max_offset: int) -> None:
        """Go on where the last run ended, within what the queue holds."""
        within = min(max(offset, min_offset), max_offset)
        if within != offset:
            log.warning("delay level %d goes on at %d instead of %d", self.level, within, offset)
        self.next_offset = self._safe_offset = within

    def keep_within(self, min_offset: int, max_offset: int) -> int:
        """Pass over entries that retention has deleted; how many they were.

        A queue that ends before the next entry was deleted as a whole, and begun anew.
        """
        if self.next_offset > max_offset:
            self._marks.clear()
            self.begin_at(min_offset, min_offset, max_offset)
        expired_count = max(0, min_offset - self.next_offset)
        self.next_offset += expired_count
        return expired_count

    def due_ms(self, tags_code: int, now_ms: int) -> int:
        """When an entry is to be delivered.

        Later than the whole delay from now cannot be: the clock was set back, or the delay was
        made shorter. Such an entry is due now.
        """
        if self.delay_ms is not None and tags_code > now_ms + self.delay_ms:
            return now_ms
        return tags_code

    def delivered(self, log_end: int) -> None:
        """The next entry was delivered; the log ended there afterwards."""
        self._log_end = log_end
        self.next_offset += 1

    def mark(self, flushed_where: int) -> None:
        """Note the progress made, for :meth:`safe_offset`; due before others look."""
        offset = self.safe_offset(flushed_where)
        if self._marks:
            offset = self._marks[-1].next_offset
        if offset != self.next_offset:
            if len(self._marks) == MARKS_MAX:
                self._marks.pop()
            self._marks.append(Mark(self._log_end, self.next_offset))

    def safe_offset(self, flushed_where: int) -> int:
        """The progress that no power cut takes back, if the log is on disk that far."""
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
        """Take over the file; ``queue_ids`` are the queues that exist, ``bounds`` their ends."""
        if table.data_version != DataVersion():
            self.version = table.data_version
        for level in sorted(queue_id + 1 for queue_id in queue_ids):
            if level not in self.by_level:
                log.warning("messages of delay level %d wait, which is not configured", level)
                self.by_level[level] = DelayLevel(level, None)
        for level, progress in self.by_level.items():
            min_offset, max_offset = bounds(progress.queue_id)
            progress.begin_at(table.offset_table.get(level, min_offset), min_offset, max_offset)
            progress.listed = level in table.offset_table or max_offset > 0

    def note_progress(self, count: int, version_step: int, now_ms: int) -> None:
        """Messages were delivered; every so many make a new version, by which slaves notice."""
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
