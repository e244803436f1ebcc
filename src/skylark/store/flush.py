"""Flush of the commit log: syncs it to disk and answers the puts that wait for that.

**SYNC_FLUSH** is group commit (:mod:`skylark.store.group_commit`). A put that waits registers its
end offset; the flush starts after the owner's turn in which the put came, and covers everything
appended by then. While a sync runs, newcomers wait for the next one. So one ``fdatasync`` answers
all waiting puts, in order of offset, and a slower disk answers more puts per sync. A put that does
not wait (``WAIT=false``) only wakes the flush. Where the kernel can sync in the background
(:mod:`skylark.store.kernel_sync`) it does, otherwise a worker does; a worker also syncs when the
log has just rolled and two files need it.

**ASYNC_FLUSH** checks every ``flushIntervalCommitLog`` and syncs if at least
``flushCommitLogLeastPages`` pages are dirty or a file is full; every
``flushCommitLogThoroughInterval`` it syncs any dirty byte. With ``flushCommitLogTimed`` false it
also checks when woken.

Invariants:

* ``flushed_where`` advances only by completed syncs, in order of offset; ``on_flushed`` follows it
  (with SYNC_FLUSH it makes messages visible), and then the waiters are answered.
* A waiter whose time is up (``syncFlushTimeout``) gets FLUSH_DISK_TIMEOUT: the message is stored,
  and may be on disk a moment later. No waiter gets PUT_OK before a sync has returned.
* After a failed sync the kernel counts the pages as clean, and the next sync would succeed without
  writing them. So they are marked dirty again first (:meth:`MappedFiles.mark_unsynced`).

What a power loss leaves: everything before ``flushed_where``, and any part of the rest.

Counterpart of Java's ``GroupCommitService``, ``FlushRealTimeService`` and ``FlushDiskWatcher``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import TypeAlias

from skylark.core.clock import TimerHandle
from skylark.store.config import FlushDiskType, StoreConfig
from skylark.store.errors import (
    StoreFileClosedError,
    StoreFileError,
    StoreSyncError,
    store_file_error,
)
from skylark.store.file_sequence import MappedFiles, SyncRange
from skylark.store.file_system import FileHandle
from skylark.store.group_commit import GroupCommit, Outcome
from skylark.store.kernel_sync import KernelSyncs
from skylark.store.owner_thread import Post, Scheduler
from skylark.store.store_results import PutStatus, PutWaiter

logger = logging.getLogger(__name__)


#: End offset, deadline (monotonic) and callback. Not a class: one is made for every message.
_Waiting: TypeAlias = tuple[int, float, PutWaiter]


class FlushService(GroupCommit[SyncRange]):
    """Syncs a log by the rules of its flush type."""

    def __init__(
        self,
        files: MappedFiles,
        config: StoreConfig,
        *,
        scheduler: Scheduler,
        executor: Executor,
        post: Post,
        on_flushed: Callable[[int], None],
        meanwhile: Callable[[int], None] | None = None,
        kernel_syncs: KernelSyncs | None = None,
    ) -> None:
        """``meanwhile``: called while a sync runs, with the log offset that it will reach.

        The owner calls ``kernel_syncs.reap`` until :meth:`halt`.
        """
        self._wakes = True
        super().__init__(files, config, scheduler=scheduler, executor=executor, post=post)
        self._monotonic = scheduler.monotonic
        self._on_flushed = on_flushed
        #: Syncs that failed; each of them was or will be repeated.
        self.error_count = 0
        #: The last of these failures.
        self.last_error: StoreFileError | None = None
        self._on_wait = meanwhile
        self._kernel_syncs = kernel_syncs
        self._notified_until = files.flushed_where
        self._waiting: deque[_Waiting] = deque()  # in order of offset and so of deadline
        self._deadline: TimerHandle | None = None

    def apply_settings(self, config: StoreConfig) -> None:
        """Use these settings from the next round on; a running timer is not set again.

        A put that already waits keeps its deadline, and waiters are answered in order: a shorter
        ``syncFlushTimeout`` takes effect after them.
        """
        self._timeout_s = config.sync_flush_timeout / 1000
        self._thorough_s = config.flush_commit_log_thorough_interval / 1000
        if config.flush_disk_type is FlushDiskType.ASYNC_FLUSH:  # SYNC_FLUSH uses no intervals
            self._interval_s = config.flush_interval_commit_log / 1000
            self._least_pages = config.flush_commit_log_least_pages
            self._wakes = not config.flush_commit_log_timed

    @property
    def waiting_count(self) -> int:
        """Puts that wait for the disk."""
        return len(self._waiting)

    def wait(self, end_offset: int, answer: PutWaiter) -> None:
        """Call ``answer`` with PUT_OK when everything before ``end_offset`` is on disk.

        With FLUSH_DISK_TIMEOUT if that takes too long; immediately if it is already on disk.
        """
        if self._stopped or end_offset <= self._files.flushed_where:
            on_disk = end_offset <= self._files.flushed_where
            answer(PutStatus.PUT_OK if on_disk else PutStatus.FLUSH_DISK_TIMEOUT)
            return
        deadline = self._monotonic() + self._timeout_s
        self._waiting.append((end_offset, deadline, answer))
        if self._deadline is None:
            self._deadline = self._scheduler.call_at(deadline, self._expire, deadline)
        if not self._woken:
            super().wake()

    def wake(self) -> None:
        """Start a sync soon; a timed ASYNC_FLUSH without waiters ignores it."""
        if self._wakes or self._waiting:
            super().wake()

    def halt(self) -> None:
        super().halt()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def answer_all(self) -> None:
        """Answer all waiters now, whether or not their bytes are on disk."""
        while self._waiting:
            self._answer()

    def stop(self) -> None:
        """Sync everything and answer all waiters; raises StoreFileError if that fails."""
        try:
            super().stop()
        finally:
            self.answer_all()

    def _find(self, least_pages: int) -> list[SyncRange]:
        ranges = self._files.unflushed()
        if not ranges or self._waiting:
            return ranges
        file, _, end = ranges[0]  # if there are more, this file is full and due
        return ranges if file.is_due(file.flushed, end, least_pages) else []

    def _submit(self, items: Sequence[SyncRange]) -> Future[Outcome]:
        if self._kernel_syncs is not None and len(items) == 1:
            future = self._submit_to_kernel(items[0].handle, self._kernel_syncs)
            if future is not None:
                return future
        return super()._submit(items)

    def _submit_to_kernel(self, handle: FileHandle, syncs: KernelSyncs) -> Future[Outcome] | None:
        """None if the kernel refuses; then the worker reports what is wrong with the file."""
        future: Future[Outcome] = Future()

        def done(error: OSError | None) -> None:
            if error is None:
                future.set_result(Outcome(1, None))
            else:
                path = handle.path
                failure = store_file_error("sync", path, error, kind=StoreSyncError)
                future.set_result(Outcome(0, failure))

        try:
            descriptor = handle.descriptor()
            if descriptor is None:
                return None
            with descriptor as fd:
                syncs.submit(fd, done)
        except StoreFileError:
            return None
        except OSError as error:
            logger.info("the kernel cannot sync %s in the background: %s", handle.path, error)
            self._kernel_syncs = None
            return None
        future.add_done_callback(self._finish)
        return future

    def _await(self, future: Future[Outcome]) -> None:
        syncs = self._kernel_syncs
        while syncs is not None and syncs.is_busy and not future.done():
            syncs.reap(wait=True)
        super()._await(future)

    def _job(self, item: SyncRange) -> Callable[[], None]:
        return item.handle.sync

    def _apply(self, item: SyncRange) -> None:
        self._files.mark_flushed(item)

    def _failed(self, item: SyncRange, error: StoreFileError) -> bool:
        if item.file.leaving and isinstance(error, StoreFileClosedError):
            self._files.mark_flushed(item)  # deleted meanwhile: nothing can be lost
            return False
        logger.error("the sync of the log failed beyond %s: %s", self._files.flushed_where, error)
        try:
            self._files.mark_unsynced(item)
        except StoreFileError as second:
            logger.warning("unsynced pages could not be marked dirty: %s", second)
        self.error_count += 1
        self.last_error = error
        return True

    def _notify(self) -> None:
        flushed_where = self._files.flushed_where
        if flushed_where != self._notified_until:  # less after a truncation
            self._notified_until = flushed_where
            self._on_flushed(flushed_where)
        waiting, status = self._waiting, PutStatus.PUT_OK
        while waiting and waiting[0][0] <= flushed_where:
            _call(waiting.popleft()[2], status)
        if waiting and self._round is None:
            super().wake()

    def _run_meanwhile(self) -> None:
        if self._on_wait is not None and self._round is not None:
            file, _, end = self._round.items[-1]
            self._on_wait(file.start_offset + end)

    def _expire(self, due: float) -> None:
        now = max(due, self._scheduler.monotonic())  # a timer may fire a little early
        while self._waiting and self._waiting[0][1] <= now:
            self._answer()
        self._deadline = None
        if self._waiting:
            deadline = self._waiting[0][1]
            self._deadline = self._scheduler.call_at(deadline, self._expire, deadline)

    def _answer(self) -> None:
        """Answer the first waiter: its bytes are on disk, or its time is up."""
        end_offset, _, answer = self._waiting.popleft()
        on_disk = end_offset <= self._files.flushed_where
        _call(answer, PutStatus.PUT_OK if on_disk else PutStatus.FLUSH_DISK_TIMEOUT)


def _call(answer: PutWaiter, status: PutStatus) -> None:
    try:
        answer(status)
    except Exception:
        logger.exception("the callback of a put failed with status %s", status.name)
