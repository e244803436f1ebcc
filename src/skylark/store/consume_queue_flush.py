"""Flush of the derived files: queue entries and index to disk, then the checkpoint covering them.

Every ``flushIntervalConsumeQueue`` the new entries of all queues are written to their files, a few
queues per turn of the owner, so that other work is not delayed for long. From time to time a worker
syncs what was written, and only when all of it is on disk does the checkpoint advance::

    tick      record T, O: store time and end of the newest dispatched record
              write tails, some queues a turn ... write the index header
              (every SYNC_INTERVAL_MS, or on request)
    worker    sync files, then directories; write and sync the checkpoint with T, O
    owner     T and O count as saved

Crash at any line: the checkpoint has the old values, or the new ones whose entries are all on disk.
Recovery drops entries that the checkpoint does not cover and makes them again from the log. A Java
broker drops the newest index file and makes it again from its first record on: what it reads in the
checkpoint never passes the last index file that is closed (:mod:`skylark.store.checkpoint`).

While the index is behind the log (see :mod:`skylark.store.index`), or entries could not be written,
T does not advance: recovery then scans far enough back to make them again.

Counterpart of Java's ``FlushConsumeQueueService`` and of the checkpoint handling in ``CommitLog``.
"""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Executor, Future, wait
from copy import copy
from typing import Final, NamedTuple

from skylark.core.clock import TimerHandle
from skylark.store.checkpoint import Checkpoint
from skylark.store.config import StoreConfig
from skylark.store.dirty_ranges import DirtyRanges, SyncBatch
from skylark.store.errors import StoreFileError
from skylark.store.owner_thread import Post, post_when_done
from skylark.store.queue_registry import FlushRound
from skylark.store.recovery import StoreParts
from skylark.store.reput import Reput
from skylark.store.running_flags import RunningFlags, StoreFlag

logger = logging.getLogger(__name__)

QUEUES_PER_TURN: Final = 16  # a new queue creates two names in the file system, about 0.5 ms
SYNC_INTERVAL_MS: Final = 5_000


class _Dispatched(NamedTuple):
    """How far the log was dispatched when a round began."""

    timestamp: int
    log_offset: int


class _Syncing(NamedTuple):
    """A batch that a worker syncs, and the checkpoint that holds when it is on disk."""

    future: Future[None]
    batch: SyncBatch
    next_checkpoint: Checkpoint


class DerivedFileFlush:
    """Writes and syncs the derived files of one store, and advances its checkpoint."""

    def __init__(
        self,
        parts: StoreParts,
        dispatch: Reput,
        dirty_ranges: DirtyRanges,
        flags: RunningFlags,
        *,
        executor: Executor,
        post: Post,
    ) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatch = dispatch
        self._dirty_ranges = dirty_ranges
        self._checkpoint = parts.checkpoint
        self._flags = flags
        self._scheduler = parts.scheduler
        self._executor = executor
        self._post = post
        self.apply_settings(parts.config)
        self._sync_at = self._scheduler.monotonic()
        self._timer: TimerHandle | None = None
        self._round: FlushRound | None = None
        self._dispatched = _Dispatched(0, 0)
        self._syncing: _Syncing | None = None
        self._stopped = False
        # Ends of the log with their store times, to find the store time that a flush covers.
        self._marks: deque[tuple[int, int]] = deque(maxlen=10_000)

    def start(self) -> None:
        """Start the timer."""
        when = self._scheduler.monotonic() + self._interval_s
        self._timer = self._scheduler.call_at(when, self._tick)

    def apply_settings(self, config: StoreConfig) -> None:
        """Use these settings from the next tick on."""
        self._interval_s = config.flush_interval_consume_queue / 1000
        sync_ms = min(SYNC_INTERVAL_MS, config.flush_consume_queue_thorough_interval)
        self._sync_interval_s = sync_ms / 1000

    def flush_soon(self) -> None:
        """Write and sync without waiting for the intervals: a deletion must become durable."""
        self._sync_at = self._scheduler.monotonic()
        if self._round is None and self._syncing is None:
            self._begin_round()
            self._post(self._write_some)

    def halt(self) -> None:
        """Stop the timer; in the owner's thread."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """Write and sync everything in this thread; raises StoreFileError if that fails.

        After :meth:`halt` any thread may call this, if no other uses the derived files.
        """
        self.halt()
        if self._syncing is not None:
            wait([self._syncing.future])
            self._sync_done(self._syncing)
        self._round = None
        self._begin_round()
        self._queues.flush()
        if self._index is not None:
            self._index.flush()
        batch = self._dirty_ranges.begin()
        try:
            batch.run()
        finally:
            self._dirty_ranges.finish(batch)
        self._advance(self._checkpoint, self._dispatched)
        self._checkpoint.save()

    # ---- a round ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.start()
        end = self._log.max_offset
        if not self._marks or self._marks[-1][0] < end:
            self._marks.append((end, self._log.last.last_store_timestamp))
        if self._round is None and self._syncing is None:
            self._begin_round()
            self._write_some()

    def _begin_round(self) -> None:
        self._dispatched = _Dispatched(
            self._dispatch.dispatched_timestamp, self._dispatch.dispatched_until
        )
        self._round = self._queues.start_flush()

    def _write_some(self) -> None:
        """Write a few queues; post the rest for later turns."""
        if self._round is None or self._stopped:
            return
        try:
            done = self._round.run(QUEUES_PER_TURN)
        except StoreFileError as error:
            self._round = None
            if self._flags.set(StoreFlag.LOGICS_ERROR):
                logger.error("queue entries fail, messages are refused: %s", error)  # noqa: TRY400
            return
        if not done:
            self._post(self._write_some)
            return
        self._round = None
        self._flags.set(StoreFlag.LOGICS_ERROR, on=False)
        if self._index is not None:
            self._index.flush()
        now = self._scheduler.monotonic()
        if now >= self._sync_at:
            self._sync_at = now + self._sync_interval_s
            self._begin_sync()

    # ---- syncing ---------------------------------------------------------------------------------

    def _begin_sync(self) -> None:
        try:
            batch = self._dirty_ranges.begin()
        except StoreFileError as error:
            logger.warning("the sync of the derived files failed, the checkpoint stays: %s", error)
            return
        next_checkpoint = copy(self._checkpoint)
        self._advance(next_checkpoint, self._dispatched)
        packed = next_checkpoint.pack()
        if not batch.pending and packed == self._checkpoint.pack():
            return
        future = self._executor.submit(self._sync, batch, packed)
        syncing = self._syncing = _Syncing(future, batch, next_checkpoint)
        post_when_done(future, self._post, lambda _: self._sync_done(syncing))

    def _sync(self, batch: SyncBatch, packed: bytes) -> None:
        """In a worker: the entries first, then the checkpoint that covers them."""
        batch.run()
        self._checkpoint.write(packed)

    def _sync_done(self, syncing: _Syncing) -> None:
        if self._syncing is not syncing:
            return  # stop() has finished it before this callback came
        self._syncing = None
        self._dirty_ranges.finish(syncing.batch)
        try:
            syncing.future.result()
        except StoreFileError as error:
            logger.warning("the sync of the derived files failed, the checkpoint stays: %s", error)
            return
        self._checkpoint.adopt(syncing.next_checkpoint)

    def _advance(self, checkpoint: Checkpoint, dispatched: _Dispatched) -> None:
        """Set a checkpoint to what is on disk once the files of a round are synced."""
        flushed_where = self._log.flushed_where
        while self._marks and self._marks[0][0] <= flushed_where:
            checkpoint.physic_msg_timestamp = self._marks.popleft()[1]
        if self._log.max_offset <= flushed_where:
            checkpoint.physic_msg_timestamp = self._log.last.last_store_timestamp
        if self._index is not None:
            checkpoint.index_msg_timestamp, checkpoint.index_offset = self._index.last_closed()
            if self._index.behind_from is not None:
                return
        # Clocks may be set back, so recovery trusts no file that begins after this offset.
        log_offset = min(dispatched.log_offset, flushed_where)
        if log_offset:
            checkpoint.logics_msg_timestamp = dispatched.timestamp
            checkpoint.logics_physical_offset = log_offset
