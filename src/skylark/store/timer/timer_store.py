"""State of the timer, in files: which message is due when. Has no thread and no clock.

Its owner (:mod:`skylark.broker.delay.timer_service`) reads the timer topic message by message, and
either places a message (:meth:`TimerStore.place`) or delivers it, if it is late. Slots become due
in order of time::

    place       timer topic -> unit in the timer log -> slot of the wheel -> heap of slots
    next_slot   heap -> SlotWalk -> messages in the commit log -> their real topics
    finish      the slot leaves the heap: read_time_ms moves past it

A slot of time ``t`` holds what is due within the precision unit *before* ``t + precision``, and is
due at ``t + precision`` (:meth:`TimerStore.due_ms`): late by less than a unit, never early.

**Rolling.** A message more than ``timerRollWindowSlot`` slots ahead is placed earlier, and put on
the timer topic once more when that slot is due. So the record stays younger than the commit log's
oldest file, and the wheel need not be longer than two weeks.

**A clock that is set back.** Time is the wall clock's, in both directions: a slot is due when the
clock has passed it, and a message is late if the clock has passed its slot. So after the clock was
set back, slots come up again that are done. They are listed (:meth:`TimerStore.advance`), so that
new messages there begin a new chain, and are marked in the wheel before the next checkpoint, so
that a restart does not deliver the old ones again.

**To disk.** :meth:`TimerStore.snapshot` records the current progress; :meth:`Snapshot.write`, in
any thread, syncs timer log and wheel, then writes the counts, then the checkpoint. The owner writes
it only when the commit log is on disk up to ``Snapshot.log_end``: a checkpoint that counts a
message as delivered must not survive without the message. What a crash leaves is described in
:mod:`skylark.store.timer.timer_recovery`.

Memory: one integer per waiting slot, at most ``roll_window_slots`` and a few.

Counterpart of the parts of Java's ``TimerMessageStore`` that are not threads, and of its
``TimerMetrics``.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Final

import msgspec

from skylark.store.config_files import TIMER_METRICS, ConfigFiles
from skylark.store.config_tables import TimerMetricsTable
from skylark.store.errors import StoreFileError
from skylark.store.file_sequence import SyncRange
from skylark.store.file_system import FileHandle, FileSystem
from skylark.store.timer.timer_checkpoint import TimerCheckpointFile
from skylark.store.timer.timer_layout import (
    LOG_DIRECTORY,
    MAGIC_DEFAULT,
    MAGIC_DELETE,
    MAGIC_ROLL,
    NO_POSITION,
    SLOT_COUNT,
    SLOT_DONE,
    WHEEL_NAME,
)
from skylark.store.timer.timer_log import SlotWalk, TimerLog
from skylark.store.timer.timer_wheel import Slot, TimerWheel
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint, TimerMetric

BLANK_SLOTS: Final = 60  # between the longest roll and a round of the wheel
ROLL_WINDOW_SLOTS_MIN: Final = 2


class TimerCounts:
    """Counts the waiting messages of each topic: ``config/timermetrics``.

    A message counts from when it is placed until it is delivered or recalled. The file is written
    with each checkpoint, just before it, so that after a crash the counts match the messages placed
    again.
    """

    def __init__(self) -> None:
        self._counts: dict[str, TimerMetric] = {}
        self.version = DataVersion()

    def load(self, table: TimerMetricsTable) -> None:
        """Continue from the table in a file."""
        self._counts = _copies(table.timing_count)
        self.version = table.data_version

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Record that messages of a topic were placed or, with ``change`` below 0, have left."""
        metric = self._counts.get(topic)
        if metric is None:
            metric = self._counts[topic] = TimerMetric()
        metric.count += change
        metric.time_stamp = now_ms
        self.version = self.version.next(now_ms)

    def count(self, topic: str) -> int:
        """Number of waiting messages of a topic."""
        metric = self._counts.get(topic)
        return 0 if metric is None else metric.count

    def by_topic(self) -> dict[str, int]:
        """Numbers of waiting messages, by topic."""
        return {topic: metric.count for topic, metric in self._counts.items()}

    def remove(self, topic: str, now_ms: int) -> None:
        """Remove a topic that was deleted."""
        if self._counts.pop(topic, None) is not None:
            self.version = self.version.next(now_ms)

    def table(self) -> TimerMetricsTable:
        """The content of the file; later changes do not affect it."""
        return TimerMetricsTable(timing_count=_copies(self._counts), data_version=self.version)


def _copies(counts: dict[str, TimerMetric]) -> dict[str, TimerMetric]:
    return {topic: copy(metric) for topic, metric in counts.items()}


class TimerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the timer's files."""

    precision_ms: int = 1_000
    roll_window_slots: int = 2 * 86_400
    log_file_size: int = 100 << 20
    slot_count: int = SLOT_COUNT

    @property
    def window_slots(self) -> int:
        """The roll window; by Java's rule a value out of range means the longest possible."""
        longest = self.slot_count // 2 - BLANK_SLOTS
        if ROLL_WINDOW_SLOTS_MIN <= self.roll_window_slots <= longest:
            return self.roll_window_slots
        return longest


class Snapshot(msgspec.Struct):
    """Progress of the timer at one moment, to be written by any thread."""

    checkpoint: TimerCheckpoint
    log_end: int  # of the commit log
    counts: TimerMetricsTable | None
    ranges: Sequence[SyncRange] = ()  # of the timer log; for the owner
    wheel: FileHandle | None = None
    wheel_range: tuple[int, int] | None = None

    def write(self, config_files: ConfigFiles, checkpoint_file: TimerCheckpointFile) -> None:
        """Write everything to disk. Crash, line by line: the old checkpoint until the last line."""
        for synced in self.ranges:
            synced.handle.sync()
        if self.wheel is not None and self.wheel_range is not None:
            self.wheel.sync()
        if self.counts is not None:
            config_files.save(TIMER_METRICS, self.counts)
        checkpoint_file.write(self.checkpoint)


class TimerStore:
    """Wheel, timer log, checkpoint and counts of one broker."""

    def __init__(
        self,
        files: FileSystem,
        root: Path,
        config_files: ConfigFiles,
        config_directory: Path,
        options: TimerOptions,
    ) -> None:
        self.options = options
        self.precision_ms = options.precision_ms
        self.wheel = TimerWheel(root / WHEEL_NAME, files, options.precision_ms, options.slot_count)
        self.log = TimerLog(root / LOG_DIRECTORY, options.log_file_size, files)
        self.checkpoint = TimerCheckpointFile(files, config_directory)
        self.counts = TimerCounts()
        self._config_files = config_files
        #: Next message of the timer topic.
        self.queue_offset = 0
        #: Messages before this offset of the timer topic were already placed; see timer_recovery.
        self.placed_until = 0
        #: All slots before this time are done.
        self.read_time_ms = 0
        #: Messages due before this time are late and not placed.
        self.write_time_ms = 0
        #: Messages in waiting slots, by the counts of the slots.
        self.waiting_count = 0
        self._slots: list[int] = []  # heap of the times of waiting slots
        #: Slots from the current time on that are done: the clock was set back. By time.
        self.done: dict[int, Slot] = {}
        self._window_slots = options.window_slots
        self._counts_saved = self.counts.version
        self.is_dirty = False

    # ---- times -----------------------------------------------------------------------------------

    def floor(self, time_ms: int) -> int:
        """The slot time of a time."""
        return time_ms // self.precision_ms * self.precision_ms

    def advance(self, now_ms: int) -> int:
        """Set the write time to the clock, which may have been set back; earlier messages are late.

        All slots before the read time, and those in ``done``, are done. If the clock is before the
        read time, the slots in between join ``done``, except those that wait.
        """
        self.write_time_ms = now = self.floor(now_ms)
        if now < self.read_time_ms:
            waiting = set(self._slots)
            round_ms = self.options.slot_count * self.precision_ms
            first = max(now, self.read_time_ms - round_ms)
            for time in range(first, self.read_time_ms, self.precision_ms):
                slot = self.wheel.slot(time)
                if slot is not None and time not in waiting:
                    self.done[time] = slot
            self.read_time_ms = now
            self.is_dirty = True
        else:
            self.read_time_ms = max(self.read_time_ms, self.oldest_ms)
            if self.done:
                read_time = self.read_time_ms
                self.done = {time: slot for time, slot in self.done.items() if time >= read_time}
        return now

    def due_ms(self) -> int | None:
        """When the next slot is due; None if none waits."""
        return self._slots[0] + self.precision_ms if self._slots else None

    @property
    def oldest_ms(self) -> int:
        """The oldest time that is not done: of the first waiting slot, or now."""
        return min(self._slots[0], self.write_time_ms) if self._slots else self.write_time_ms

    # ---- placing ---------------------------------------------------------------------------------

    def slot_count_at(self, time_ms: int) -> int:
        """Number of messages in the slot of a time."""
        slot = self.wheel.slot(time_ms)
        return 0 if slot is None or slot.time_ms in self.done else slot.message_count

    def place(
        self, time_ms: int, log_offset: int, size: int, topic_hash: int, *, is_delete: bool
    ) -> bool:
        """Place a message in the slot of ``time_ms``, which is not before the write time.

        False: the slot still holds messages of the previous round, which must be delivered first.
        Raises StoreError, and then nothing has changed.
        """
        magic = MAGIC_DEFAULT
        write_time_ms, window_slots = self.write_time_ms, self._window_slots
        beyond_ms = time_ms - write_time_ms - window_slots * self.precision_ms
        if beyond_ms >= 0:
            magic |= MAGIC_ROLL
            # A little beyond: roll half way, so that the last part is not too short either.
            is_little = beyond_ms < window_slots // 3 * self.precision_ms
            rolled_slots = window_slots // 2 if is_little else window_slots
            time_ms = write_time_ms + rolled_slots * self.precision_ms
        if is_delete:
            magic |= MAGIC_DELETE
        time_ms = self.floor(time_ms)
        self.wheel.prepare()
        slot = self.wheel.occupant(time_ms) if time_ms not in self.done else None
        is_new = slot is None or slot.time_ms != time_ms
        if slot is not None and is_new and self._slots and slot.time_ms >= self._slots[0]:
            return False
        if slot is None or is_new:
            slot = Slot(time_ms, NO_POSITION, NO_POSITION, 0)
        position = self.log.append(
            slot.last_position,
            magic,
            write_time_ms,
            time_ms - write_time_ms,
            log_offset,
            size,
            topic_hash,
        )
        first = position if slot.first_position == NO_POSITION else slot.first_position
        change = -1 if is_delete else 1
        self.wheel.put(Slot(time_ms, first, position, slot.message_count + change, slot.magic))
        if is_new:
            heapq.heappush(self._slots, time_ms)
            self.done.pop(time_ms, None)
        self.waiting_count += change
        self.is_dirty = True
        return True

    def placed(self, queue_offset: int) -> None:
        """Record that messages before this offset of the topic are placed, delivered or dropped."""
        self.queue_offset = queue_offset
        self.is_dirty = True

    # ---- slots that are due ----------------------------------------------------------------------

    def next_slot(self) -> SlotWalk | None:
        """The first slot before the write time; None if none is due."""
        while self._slots and self._slots[0] < self.write_time_ms:
            slot = self.wheel.slot(self._slots[0])
            if slot is not None:
                return SlotWalk(self.log, slot)
            self._leave(self._slots[0])
        return None

    def finish(self, walk: SlotWalk) -> None:
        """Remove a slot whose messages are all delivered, dropped or rolled."""
        self.waiting_count -= walk.message_count
        self._leave(walk.time_ms)

    def _leave(self, time_ms: int) -> None:
        if self._slots[0] != time_ms and time_ms in self._slots:
            self._slots.remove(time_ms)  # the clock was set back meanwhile
            heapq.heapify(self._slots)
        else:
            time_ms = heapq.heappop(self._slots)
        self.read_time_ms = max(self.read_time_ms, time_ms + self.precision_ms)
        self.is_dirty = True

    def due_count(self) -> int:
        """Number of messages in slots that are due."""
        return sum(self.slot_count_at(time) for time in self._slots if time < self.write_time_ms)

    def restore(self, slots: list[int], waiting_count: int, queue_offset: int) -> None:
        """Continue from what recovery found; ``slots`` are the sorted times of waiting slots."""
        self._slots = slots
        self.waiting_count = waiting_count
        self.queue_offset = queue_offset

    # ---- to disk ---------------------------------------------------------------------------------

    @property
    def is_rebuilding(self) -> bool:
        """Whether messages are placed again that the checkpoint counts as placed."""
        return self.queue_offset < self.placed_until

    def snapshot(self, now_ms: int, log_end: int) -> Snapshot:
        """The current progress; ``log_end`` is the end of the commit log."""
        self.advance(now_ms)
        self.is_dirty = False
        saved = self.checkpoint.saved
        checkpoint = TimerCheckpoint(
            last_read_time_ms=self.oldest_ms,
            last_timer_log_flush_pos=self.log.end,
            last_timer_queue_offset=self.queue_offset,
            master_timer_queue_offset=self.queue_offset,
            data_version=saved.data_version.next(now_ms),
        )
        counts = None if self.counts.version == self._counts_saved else self.counts.table()
        return Snapshot(checkpoint, log_end, counts)

    def begin_write(self, snapshot: Snapshot) -> None:
        """Record what must be synced for a snapshot that is about to be written."""
        for time_ms, slot in self.done.items():
            # Here, not earlier: now the commit log has their messages on disk.
            if self.wheel.slot(time_ms) == slot:
                self.done[time_ms] = slot._replace(magic=SLOT_DONE)
                self.wheel.put(self.done[time_ms])
        snapshot.ranges = self.log.files.unflushed()
        snapshot.wheel = self.wheel.handle
        snapshot.wheel_range = self.wheel.begin_sync()

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot to disk, in any thread; between ``begin_write`` and ``end_write``."""
        snapshot.write(self._config_files, self.checkpoint)

    def end_write(self, snapshot: Snapshot, error: StoreFileError | None = None) -> None:
        """Record that a snapshot was written, or that it failed."""
        if error is None:
            for synced in snapshot.ranges:
                self.log.files.mark_flushed(synced)
            self.checkpoint.saved = snapshot.checkpoint
            if snapshot.counts is not None:
                self._counts_saved = snapshot.counts.data_version
            return
        self.is_dirty = True
        for synced in snapshot.ranges:
            self.log.files.mark_unsynced(synced)
        if snapshot.wheel_range is not None:
            self.wheel.sync_failed(snapshot.wheel_range)

    def load_counts(self) -> None:
        """Load the number of waiting messages by topic."""
        self.counts.load(self._config_files.load(TIMER_METRICS))
        self._counts_saved = self.counts.version

    def close(self) -> None:
        """Close the files without writing."""
        self.wheel.close()
        self.log.files.close()
