"""Transient store pool: appends go to memory, and a commit writes them to the file a little later.

With ``transientStorePoolEnable`` an append never touches a page of the file, so it cannot wait for
the kernel's write-back. The price: **bytes that are not committed are only in this process**. A
kill -9 loses them, up to ``commitIntervalCommitLog`` of messages, where a store without the pool
loses nothing; and readers see a message only once it is committed.

::

    append --> pooled memory --- commit (positional write) --> file --- sync --> disk
               wrote             committed                              flushed

:class:`TransientPool` holds ``transientStorePoolSize`` buffers of one log file each. A file borrows
one when it becomes the last, and returns it when all of it is committed. When the pool is empty,
the next file is written directly (or, with ``fastFailIfNoBufferInStorePool``, not created), and the
broker refuses sends earlier (:attr:`TransientPool.is_empty`).

:class:`CommitService` commits every ``commitIntervalCommitLog``, or when a put wakes it, if enough
pages wait or the thorough interval has passed. A worker writes; the bytes before ``wrote`` never
change, so appends may continue meanwhile.

Java locks the buffers into RAM; here they are ordinary memory, which a machine without swap keeps
in RAM as well. Counterpart of Java's ``TransientStorePool`` and ``CommitRealTimeService``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from skylark.core.errors import StoreError
from skylark.store.config import StoreConfig
from skylark.store.errors import StoreFileError
from skylark.store.group_commit import GroupCommit
from skylark.store.mapped_file import MappedFile
from skylark.store.owner_thread import Post, Scheduler

if TYPE_CHECKING:
    from skylark.store.file_sequence import MappedFiles

logger = logging.getLogger(__name__)


class PoolEmptyError(StoreError):
    """No buffer is free, and the settings require one (CREATE_MAPPED_FILE_FAILED)."""

    retriable: ClassVar[bool] = True


class TransientPool:
    """Buffers of one log file each."""

    def __init__(self, count: int, file_size: int, *, fast_fail: bool = False) -> None:
        self._count = count
        self._file_size = file_size
        #: Whether an empty pool fails a put, instead of writing to the file directly.
        self.fast_fail = fast_fail
        self._free: list[memoryview] = []
        self._made = 0

    @property
    def available(self) -> int:
        """Buffers that are free or not allocated yet."""
        return len(self._free) + self._count - self._made

    @property
    def is_empty(self) -> bool:
        """Whether the broker should refuse sends for now."""
        return self.available == 0

    def take(self) -> memoryview | None:
        """A buffer; None if there is none and the file is to be written directly."""
        if self._free:
            return self._free.pop()
        if self._made < self._count:
            self._made += 1
            return _new_memory(self._file_size)
        if self.fast_fail:
            raise PoolEmptyError(f"all {self._count} buffers of the transient pool are in use")
        logger.warning("all %s buffers of the transient pool are in use", self._count)
        return None

    def give_back(self, memory: memoryview) -> None:
        """Return a buffer; its content stays, and is overwritten before it is committed."""
        assert len(memory) == self._file_size
        self._free.append(memory)


def _new_memory(size: int) -> memoryview:
    import numpy as np

    # the kernel provides zero pages at their first use; a bytearray would touch them all
    return np.zeros(size, np.uint8).data


class CommitRange(NamedTuple):
    """Bytes of a pooled buffer to be written to its file."""

    file: MappedFile
    start: int  # position in the file
    data: memoryview


class CommitService(GroupCommit[CommitRange]):
    """Writes pooled bytes to their files; calls ``on_committed`` with the new readable end.

    Every put calls :meth:`wake` if ``wakeCommitWhenPutMessage`` is set.
    """

    def __init__(
        self,
        files: MappedFiles,
        config: StoreConfig,
        *,
        scheduler: Scheduler,
        executor: Executor,
        post: Post,
        on_committed: Callable[[int], None],
    ) -> None:
        super().__init__(files, config, scheduler=scheduler, executor=executor, post=post)
        self._on_committed = on_committed
        self._notified_until = files.committed_where

    def apply_settings(self, config: StoreConfig) -> None:
        self._interval_s = config.commit_interval_commit_log / 1000
        self._thorough_s = config.commit_commit_log_thorough_interval / 1000
        self._least_pages = config.commit_commit_log_least_pages

    def _find(self, least_pages: int) -> list[CommitRange]:
        ranges: list[CommitRange] = []
        for file in self._files.following(self._files.committed_where):
            memory, start, end = file.pooled, file.committed, file.wrote
            if memory is None:
                continue  # written directly
            if not file.is_due(start, end, least_pages):
                break
            ranges.append(CommitRange(file, start, memory[start:end]))
        if not ranges:
            self._files.mark_committed()  # advance over files written directly
            self._notify()
        return ranges

    def _job(self, item: CommitRange) -> Callable[[], None]:
        return partial(item.file.handle.write, item.start, item.data)

    def _apply(self, item: CommitRange) -> None:
        self._files.mark_committed(item.file, item.start + len(item.data))

    def _failed(self, item: CommitRange, error: StoreFileError) -> bool:
        if not item.file.leaving:
            logger.error("the commit failed, messages stay in memory until the retry: %s", error)
        return not item.file.leaving

    def _notify(self) -> None:
        committed_where = self._files.committed_where
        if committed_where != self._notified_until:  # less after a truncation
            self._notified_until = committed_where
            self._on_committed(committed_where)
