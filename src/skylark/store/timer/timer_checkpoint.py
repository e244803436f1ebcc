"""How far the timer has come, on disk: ``config/timercheck``.

Four numbers of meaning, and a version for slaves::

    last_read_time_ms          all slots before this time are done, and what they held is on disk
    last_timer_log_flush_pos   all units before this position are on disk
    last_timer_queue_offset    all messages of the timer topic before this offset are placed, in
                               units before that position, or delivered
    master_timer_queue_offset  the same on the master; equal there

The 56 bytes lie in one sector and are overwritten in place: a crash leaves the old or the new ones.
A missing or unreadable file is zeros: everything in the timer topic is placed again. Then what is
past is delivered once more; that is the price for losing nothing.

Answers to Java's ``TimerCheckpoint``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from skylark.core.errors import RemoteProtocolError
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.store.timer.timer_layout import CHECKPOINT_FILE_SIZE, CHECKPOINT_NAME
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint

logger = logging.getLogger(__name__)

TIME_MS_MAX: Final = 1 << 43  # in the year 2248


class TimerCheckpointFile:
    """Reads and writes the file; ``saved`` is what stands in it."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self.path = directory / CHECKPOINT_NAME
        self.saved = TimerCheckpoint()
        self._file_system = files

    def load(self) -> TimerCheckpoint:
        """Read the file; whatever is wrong with it is logged, and the values are zeros."""
        self.saved = TimerCheckpoint()
        try:
            checkpoint = TimerCheckpoint.decode(self._file_system.read_file(self.path))
        except StoreFileMissingError:
            return self.saved
        except (StoreFileError, RemoteProtocolError) as error:
            logger.warning("timed messages are placed anew, for want of a checkpoint: %s", error)
            return self.saved
        numbers = (
            checkpoint.last_read_time_ms,
            checkpoint.last_timer_log_flush_pos,
            checkpoint.last_timer_queue_offset,
            checkpoint.master_timer_queue_offset,
        )
        if min(numbers) < 0 or checkpoint.last_read_time_ms > TIME_MS_MAX:
            logger.warning("%s holds no times and positions, and is taken as zeros", self.path)
            return self.saved
        self.saved = checkpoint
        return checkpoint

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Put values on disk; in any thread, one at a time."""
        try:
            handle = self._file_system.open_file(self.path)
        except StoreFileMissingError:
            self._replace(checkpoint)
            return
        try:
            if handle.size == CHECKPOINT_FILE_SIZE:
                handle.write(0, checkpoint.encode())
                handle.sync()
        finally:
            handle.close()
        if handle.size != CHECKPOINT_FILE_SIZE:
            self._replace(checkpoint)

    def _replace(self, checkpoint: TimerCheckpoint) -> None:
        self._file_system.make_directories(self.path.parent, durable=True)
        content = checkpoint.encode().ljust(CHECKPOINT_FILE_SIZE, b"\0")
        self._file_system.write_file(self.path, content)
        self._file_system.sync_directory(self.path.parent)
