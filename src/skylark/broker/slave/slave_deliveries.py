"""How far the master of a slave has delivered delayed and timed messages, as the slave knows it.

A slave delivers nothing. But when it is started again as a master, it must go on where the old one
was: ``delayOffset.json``, ``timercheck`` and ``timermetrics`` are copies of the master's.

**Never ahead of the log.** What the copies call delivered is not delivered again. So the slave may
use them only when it has the delivered messages on its own disk. A copy is held until the log of
the slave is on disk up to where the master's log ended when it gave the copy. One copy is held at a
time; copies that come meanwhile are dropped, because the next one comes soon. Java uses copies at
once, and loses delayed messages when the master dies.

**The timer log** (wheel and list of waiting messages) is not copied. A checkpoint that says more
than there is makes the timer rebuild both from the timer topic, without what was delivered
(:mod:`skylark.store.timer.timer_recovery`). Units that the store has from an earlier time as a
master must not count as the new master's: the checkpoint then gets a position after them.

A crash leaves each file as it was or as it is; they do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.broker.table_saver import CONFIG_DIRECTORY
from skylark.store.config_files import TIMER_METRICS, ConfigFiles
from skylark.store.config_tables import DelayOffsetTable, TimerMetricsTable
from skylark.store.file_system import FileSystem
from skylark.store.timer.timer_checkpoint import TimerCheckpointFile
from skylark.store.timer.timer_layout import LOG_DIRECTORY, UNIT_SIZE
from skylark.store.timer.timer_log import TimerLog
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint

T = TypeVar("T")


class HeldCopy(Generic[T]):
    """A copy that waits until the log of the slave is on disk far enough."""

    def __init__(self, flushed_where: Callable[[], int]) -> None:
        self._flushed_where = flushed_where
        self._held: tuple[int, T] | None = None

    def put(self, master_end: int, copy: T) -> None:
        """Hold a copy until the log is on disk up to ``master_end``, unless one is held."""
        if self._held is None:
            self._held = (master_end, copy)

    def take(self) -> T | None:
        """The held copy, if the log is on disk far enough; the caller uses it now."""
        if self._held is None or self._held[0] > self._flushed_where():
            return None
        copy = self._held[1]
        self._held = None
        return copy


class DeliveryCopies:
    """The three files of a slave. Methods that write the timer's files block."""

    def __init__(
        self,
        files: FileSystem,
        config: BrokerConfig,
        config_files: ConfigFiles,
        flushed_where: Callable[[], int],
    ) -> None:
        """``flushed_where``: up to where the log of the slave is on disk."""
        root = config.store.store_path_root_dir
        self._config_files = config_files
        self._checkpoint = TimerCheckpointFile(files, root / CONFIG_DIRECTORY)
        self._timer_log = TimerLog(root / LOG_DIRECTORY, config.mapped_file_size_timer_log, files)
        self._own_units_end = 0
        self._counts_version = DataVersion()
        self.held_delays = HeldCopy[DelayOffsetTable](flushed_where)
        self.held_checkpoint = HeldCopy[TimerCheckpoint](flushed_where)
        #: The content of ``delayOffset.json``; it is saved with the other tables.
        self.delays = DelayOffsetTable()

    def load(self, delays: DelayOffsetTable) -> None:
        """Restore what the last run has saved; raises StoreError."""
        self.delays = delays
        self._checkpoint.load()
        self._counts_version = self._config_files.load(TIMER_METRICS).data_version
        self._timer_log.files.load()
        self._own_units_end = self._timer_log.end
        self._timer_log.files.close()

    def use_held_delays(self) -> None:
        """Use the held progress of the delay levels, if the log is far enough."""
        table = self.held_delays.take()
        if table is not None:
            self.delays = table

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """The progress of the master's timer that is in use."""
        return self._checkpoint.saved

    def take_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """Write the progress of the timer; raises StoreFileError."""
        if self._own_units_end:
            position = max(checkpoint.last_timer_log_flush_pos, self._own_units_end + UNIT_SIZE)
            checkpoint = msgspec.structs.replace(checkpoint, last_timer_log_flush_pos=position)
        if checkpoint != self._checkpoint.saved:
            self._checkpoint.write(checkpoint)
            self._checkpoint.saved = checkpoint

    def take_counts(self, table: TimerMetricsTable) -> None:
        """Write how many timed messages wait; raises StoreFileError."""
        if table.data_version != self._counts_version:
            self._config_files.save(TIMER_METRICS, table)
            self._counts_version = table.data_version
