"""The timer wheel: for each second of two weeks, where the chain of its messages begins and ends.

One file of 38 MB, mapped, with all its blocks from creation. It is created with the first timed
message: a broker without timed messages has no wheel. Only the pages of slots in use become
resident, and none of them is anonymous memory. Scans of the whole file read through a small buffer.

Crash: a slot is within one sector and is old or new, never torn. A slot newer than the checkpoint
points beyond the checkpoint's timer log position (:mod:`skylark.store.timer.timer_recovery`).

Counterpart of Java's ``TimerWheel`` and ``Slot``. Java keeps a copy in memory and compares 38 MB at
each flush.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileHandle, FileSystem
from skylark.store.timer.timer_layout import NO_POSITION, SLOT, SLOT_COUNT, SLOT_SIZE, slot_dtype

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

SCAN_SLOTS: Final = 32_768  # 1 MiB


class Slot(NamedTuple):
    """The messages of one precision unit."""

    time_ms: int
    first_position: int
    last_position: int
    message_count: int
    magic: int = 0


class TimerWheel:
    """Reads and writes slots; times are in milliseconds."""

    def __init__(
        self, path: Path, files: FileSystem, precision_ms: int, slot_count: int = SLOT_COUNT
    ) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self.slot_count = slot_count
        self.size = slot_count * SLOT_SIZE
        self._file_system = files
        self.handle: FileHandle | None = None
        self._dirty: tuple[int, int] | None = None  # bytes written since the last sync began

    def open(self) -> None:
        """Open the file, if there is one; raises StoreFileError if it has another size."""
        try:
            handle = self._file_system.open_file(self.path)
        except StoreFileMissingError:
            return
        if handle.size == self.size:
            self._take(handle)
            return
        handle.close()
        if handle.size:
            raise StoreFileError(
                f"the file has {handle.size} bytes instead of {self.size}",
                path=self.path,
                hint="move it away: the next start rebuilds it from the timer log",
            )
        logger.warning("%s is empty, left by an interrupted creation: removed", self.path)
        self._file_system.remove(self.path)

    def prepare(self) -> None:
        """Create the file if there is none, with all its blocks; raises StoreFullError and others.

        Crash, line by line: no file, or one of length 0 or of all zeros, which is an empty wheel.
        """
        if self.handle is not None:
            return
        handle = self._file_system.create_file(self.path, self.size)
        try:
            self._take(handle)
            handle.sync()
            self._file_system.sync_directory(self.path.parent)
        except StoreFileError:
            self.handle = None
            with contextlib.suppress(StoreFileError):
                handle.close()
                self._file_system.remove(self.path)
            raise

    def _take(self, handle: FileHandle) -> None:
        handle.allocate(0, self.size)  # a file from elsewhere may be sparse
        self.handle = handle

    def index(self, time_ms: int) -> int:
        """The number of the slot of a time."""
        return time_ms // self.precision_ms % self.slot_count

    def slot(self, time_ms: int) -> Slot | None:
        """The slot of a time; None if nothing was placed there."""
        slot = self.occupant(time_ms)
        if slot is None or slot.time_ms != time_ms // self.precision_ms * self.precision_ms:
            return None
        return slot

    def occupant(self, time_ms: int) -> Slot | None:
        """The slot at the place of a time, of any round of the wheel; None if it is empty."""
        if self.handle is None:
            return None
        position = self.index(time_ms) * SLOT_SIZE
        time, first, last, count, magic = SLOT.unpack_from(self.handle.buffer, position)
        return Slot(time * self.precision_ms, first, last, count, magic) if time else None

    def put(self, slot: Slot) -> None:
        """Write a slot; call :meth:`prepare` first."""
        assert self.handle is not None
        position = self.index(slot.time_ms) * SLOT_SIZE
        SLOT.pack_into(
            self.handle.buffer, position, slot.time_ms // self.precision_ms, slot.first_position,
            slot.last_position, slot.message_count, slot.magic,
        )  # fmt: skip
        self._wrote(position)

    def clear(self, time_ms: int) -> None:
        """Empty a slot."""
        assert self.handle is not None
        position = self.index(time_ms) * SLOT_SIZE
        SLOT.pack_into(self.handle.buffer, position, 0, NO_POSITION, NO_POSITION, 0, 0)
        self._wrote(position)

    def _wrote(self, position: int) -> None:
        start, end = self._dirty or (position, position)
        self._dirty = min(start, position), max(end, position + SLOT_SIZE)

    def scan(self) -> Iterator[np.ndarray[Any, Any]]:
        """The slots that are in use, in arrays of their fields; nothing is mapped."""
        import numpy as np

        if self.handle is None:
            return
        buffer = bytearray(SCAN_SLOTS * SLOT_SIZE)
        for start in range(0, self.slot_count, SCAN_SLOTS):
            count = min(SCAN_SLOTS, self.slot_count - start)
            with memoryview(buffer)[: count * SLOT_SIZE] as view:
                self.handle.read_into(start * SLOT_SIZE, view)
            slots = np.frombuffer(buffer, slot_dtype(), count)
            numbers = np.arange(start, start + count)
            used = (slots["time"] > 0) & (slots["time"] % self.slot_count == numbers)
            if used.any():
                yield slots[used]

    # ---- to disk ---------------------------------------------------------------------------------

    def begin_sync(self) -> tuple[int, int] | None:
        """Mark the wheel as clean; return the range that the sync must write, None if none."""
        dirty, self._dirty = self._dirty, None
        return dirty

    def sync_failed(self, dirty: tuple[int, int]) -> None:
        """Make the next sync write these bytes again, which the kernel now counts as clean."""
        assert self.handle is not None
        self.handle.mark_dirty(dirty[0], dirty[1] - dirty[0])
        self._wrote(dirty[0])
        self._wrote(dirty[1] - SLOT_SIZE)

    def close(self) -> None:
        """Close the file, without syncing."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None
