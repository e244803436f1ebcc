"""The timer log: one unit per message in the wheel, chained slot by slot.

Files of ``mappedFileSizeTimerLog`` bytes, mapped, created with the first unit. A unit never
changes; it is read again when its slot is due, and its file is deleted when the commit log has lost
the message of its last unit.

Crash: units behind the position in the checkpoint are not trusted. Recovery truncates there, and
the messages are placed again from the timer topic (:mod:`skylark.store.timer.timer_recovery`).

Counterpart of Java's ``TimerLog``. A position that cannot hold a unit any more (the blank at the
end of a file) is left there; Java's reader and ours both skip to the next file.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylark.store.allocator import Allocator
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import FileSystem
from skylark.store.mapped_file import MappedFile, RangeNotReadableError
from skylark.store.timer.timer_layout import (
    BLANK,
    BLANK_MAGIC,
    BLANK_SIZE,
    MAGIC_DELETE,
    MAGIC_MASK,
    MAGIC_ROLL,
    UNIT,
    UNIT_SIZE,
    last_unit_position,
    unit_dtype,
)
from skylark.store.timer.timer_wheel import Slot

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

ALLOCATE_AHEAD: Final = 1 << 20
OPEN_FILES_MAX: Final = 16
SCAN_UNITS: Final = 20_000  # about 1 MiB


class Unit(NamedTuple):
    """One message of a slot."""

    previous_position: int
    magic: int
    write_time_ms: int
    slot_time_ms: int
    log_offset: int
    size: int
    topic_hash: int

    @property
    def is_rolled(self) -> bool:
        """Whether it is to be placed again when its slot is due, because it is not due itself."""
        return self.magic & MAGIC_ROLL != 0

    @property
    def is_delete(self) -> bool:
        """Whether it marks another message of its slot as deleted."""
        return self.magic & MAGIC_DELETE != 0


class TimerLog:
    """Appends and reads units."""

    def __init__(self, directory: Path, file_size: int, files: FileSystem) -> None:
        allocator = Allocator(files, ahead=min(ALLOCATE_AHEAD, file_size))
        self.files = MappedFiles(
            directory,
            file_size,
            files=files,
            allocator=allocator,
            open_files_max=OPEN_FILES_MAX,
            size_key="mappedFileSizeTimerLog",
        )

    @property
    def min_position(self) -> int:
        """Position of the first unit."""
        return self.files.min_offset

    @property
    def end(self) -> int:
        """Position after the last unit."""
        return self.files.wrote_end

    @property
    def has_old_files(self) -> bool:
        """Whether there is a file that may be deleted later; the last one never is."""
        return len(self.files.files) > 1 or self.files.retired_count > 0

    def append(
        self,
        previous_position: int,
        magic: int,
        write_time_ms: int,
        delay_ms: int,
        log_offset: int,
        size: int,
        topic_hash: int,
    ) -> int:
        """Write a unit and return its position; raises StoreError, then nothing has changed."""
        file = self.files.last
        if file.wrote + UNIT_SIZE + BLANK_SIZE > file.size:
            file = self._roll()
        end = file.wrote + UNIT_SIZE
        if end > file.prepared:
            file.prepare(end)
        UNIT.pack_into(
            file.buffer, file.wrote, UNIT_SIZE, previous_position, magic, write_time_ms, delay_ms,
            log_offset, size, topic_hash, 0,
        )  # fmt: skip
        position = file.start_offset + file.wrote
        file.wrote = end
        return position

    def _roll(self) -> MappedFile:
        """Begin the next file, creating it before the old one is ended: the disk may be full."""
        full = self.files.last
        if full.size and full.wrote + BLANK_SIZE > full.prepared:
            full.prepare(full.wrote + BLANK_SIZE)
        file = self.files.roll()
        if full.size:
            BLANK.pack_into(full.buffer, full.wrote, full.size - full.wrote, 0, BLANK_MAGIC)
            full.wrote = full.size
        return file

    def read(self, position: int) -> Unit | None:
        """The unit at a position; None if there is none."""
        file = self.files.find(position)
        if file is None:
            return None
        try:
            lease = file.lease(position - file.start_offset, UNIT_SIZE)
        except RangeNotReadableError:
            return None
        with lease:
            (unit_size, previous, magic, write_time_ms, delay_ms, log_offset, size, topic_hash,
             _reserved) = UNIT.unpack_from(lease.view)  # fmt: skip
        if unit_size != UNIT_SIZE or magic & ~MAGIC_MASK:
            return None
        slot_time_ms = write_time_ms + delay_ms
        return Unit(previous, magic, write_time_ms, slot_time_ms, log_offset, size, topic_hash)

    def following(self, end: int) -> int:
        """Position of the unit after one that ends at ``end``: there, or in the next file."""
        file = self.files.find(end)
        if file is None or end - file.start_offset <= last_unit_position(file.size):
            return end
        return file.end_offset

    def unit_at(self, position: int) -> int:
        """Start of the unit that contains a position."""
        in_file = position % self.files.file_size
        return position - in_file % UNIT_SIZE

    def scan(self, start: int, end: int) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Units of ``[start, end)`` in order, as arrays with the position of the first.

        Nothing is mapped. ``start`` is the position of a unit, or the start of a file.
        """
        import numpy as np

        buffer = bytearray(SCAN_UNITS * UNIT_SIZE)
        for file in self.files.following(start):
            position = max(start - file.start_offset, 0)
            stop = min(end - file.start_offset, last_unit_position(file.size) + UNIT_SIZE)
            while position < stop:
                size = min(len(buffer), (stop - position) // UNIT_SIZE * UNIT_SIZE)
                if not size:
                    break
                with memoryview(buffer)[:size] as view:
                    file.read_into(position, view)
                units = np.frombuffer(buffer, unit_dtype(), size // UNIT_SIZE)
                yield file.start_offset + position, units
                position += size

    def truncate(self, position: int) -> None:
        """Truncate the log at a position, on disk as well."""
        self.files.truncate(min(max(position, self.min_position), self.end))

    def delete_before(self, log_min_offset: int, now: float) -> int:
        """Delete the files whose messages the commit log has deleted; ``now`` is monotonic."""
        self.files.sweep(now)
        count = 0
        while len(self.files.files) > 1:
            file = self.files.files[0]
            unit = self.read(file.start_offset + last_unit_position(file.size))
            if unit is None or unit.log_offset >= log_min_offset:
                break
            self.files.retire_oldest(now)
            logger.info("deleting %s: its messages have expired", file.path)
            count += 1
        return count


class SlotWalk:
    """Reads the units of a slot that is due, along its chain; call :meth:`step` until complete.

    A slot may hold very many messages, and the chain runs against their order of arrival. So the
    walk collects positions, eight bytes each, and returns them in reverse. Delete marks are
    separate, because they must be known before the first message is delivered.

    Every step goes to a smaller position within the timer log, and the unit there must belong to
    the slot; otherwise the walk ends. So a damaged chain cannot cause an endless loop.
    """

    def __init__(self, log: TimerLog, slot: Slot) -> None:
        self._log = log
        self._position = slot.last_position
        self.time_ms = slot.time_ms
        self.message_count = slot.message_count  # by the slot: delete marks count -1
        self._positions = array("q")  # newest first
        self._deletes = array("q")

    @property
    def is_complete(self) -> bool:
        """Whether all units of the slot were found."""
        return self._position < 0

    def step(self, count: int) -> None:
        """Go back by at most ``count`` units."""
        for _ in range(count):
            position = self._position
            if position < 0:
                return
            unit = self._log.read(position)
            if unit is None or unit.slot_time_ms != self.time_ms:
                if position >= self._log.min_position:  # else its file has expired
                    logger.warning(
                        "the chain of slot %s breaks at %s of the timer log", self.time_ms, position
                    )
                self._position = -1
                return
            if unit.is_delete and not unit.is_rolled:
                self._deletes.append(position)
            else:
                self._positions.append(position)
            self._position = unit.previous_position if unit.previous_position < position else -1

    def next_delete(self) -> Unit | None:
        """Remove and return a delete mark; None when there are no more."""
        unit = self._last(self._deletes)
        if unit is not None:
            self._deletes.pop()
        return unit

    def next(self) -> Unit | None:
        """The next message in the order of arrival, until :meth:`done`; None at the end."""
        return self._last(self._positions)

    def done(self) -> None:
        """Drop the message that :meth:`next` returned: it is delivered."""
        self._positions.pop()

    def _last(self, positions: array[int]) -> Unit | None:
        """The unit at the last of the positions; positions that have expired are dropped."""
        while positions:
            unit = self._log.read(positions[-1])
            if unit is not None:
                return unit
            positions.pop()
        return None
