"""Progress of the timer on disk: ``config/timercheck``.

Four numbers, and a version for slaves::

    last_read_time_ms          all slots before this time are done, and what they held is on disk
    last_timer_log_flush_pos   all units before this position are on disk
    last_timer_queue_offset    all messages of the timer topic before this offset are placed, in
                               units before that position, or delivered
    master_timer_queue_offset  the same on the master; equal there

The 56 bytes are in one sector and are overwritten in place: a crash leaves the old or the new ones.
A missing or unreadable file counts as zeros: everything in the timer topic is placed again. None of
its messages is lost; those of the past are delivered once more if their copies are far back in the
log (:mod:`skylark.broker.delay.timer_copies`).

Counterpart of Java's ``TimerCheckpoint``.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from skylark.core.errors import RemoteProtocolError
from skylark.store.checkpoint import overwrite
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.store.timer.timer_layout import CHECKPOINT_FILE_SIZE, CHECKPOINT_NAME
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint

logger = logging.getLogger(__name__)

TIME_MS_MAX: Final = 1 << 43  # in the year 2248


class TimerCheckpointFile:
    """Reads and writes the file; ``saved`` is its content."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self.path = directory / CHECKPOINT_NAME
        self.saved = TimerCheckpoint()
        self._file_system = files

    def load(self) -> TimerCheckpoint:
        """Read the file; if it is missing or unusable, log that and return zeros."""
        self.saved = TimerCheckpoint()
        try:
            checkpoint = TimerCheckpoint.decode(self._file_system.read_file(self.path))
        except StoreFileMissingError:
            return self.saved
        except (StoreFileError, RemoteProtocolError) as error:
            logger.warning(
                "placing all timed messages again, the checkpoint is unreadable: %s", error
            )
            return self.saved
        numbers = (
            checkpoint.last_read_time_ms,
            checkpoint.last_timer_log_flush_pos,
            checkpoint.last_timer_queue_offset,
            checkpoint.master_timer_queue_offset,
        )
        if min(numbers) < 0 or checkpoint.last_read_time_ms > TIME_MS_MAX:
            logger.warning("%s holds implausible values and counts as zeros", self.path)
            return self.saved
        self.saved = checkpoint
        return checkpoint

    def write(self, checkpoint: TimerCheckpoint) -> None:
        """Write values to disk; in any thread, one at a time."""
        if not self._file_system.exists(self.path):
            self._file_system.make_directories(self.path.parent, durable=True)
        overwrite(self._file_system, self.path, checkpoint.encode(), CHECKPOINT_FILE_SIZE)
