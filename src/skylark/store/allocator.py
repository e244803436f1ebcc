"""Allocates disk space ahead of time: the next file of a log, and blocks before the write position.

A log whose file is full must continue at once. A full disk must be an error of the append that
needs the space, never a SIGBUS at a store to a mapped page. So a worker thread

* creates the file after the current one, the *spare*: with its blocks, synced, and with a durable
  name (:meth:`Allocator.request`, :meth:`Allocator.take`). A running store therefore has one empty
  file more than it needs, as Java's has;
* allocates the next piece of the current file when the write position comes near the end of the
  allocated range (:meth:`Allocator.prepare`)::

      |==== wrote ====|......................|..............|        ahead = 64 MiB
                                          prepared      allocated
                                          (half of ahead before the end)

* touches the next pages of the current file, 4 MiB at a time, while messages arrive fast: the
  kernel needs as long for the first touch of a page as some puts take. No byte changes, but the
  pages count as dirty and the next sync writes them. So pages are not touched when messages arrive
  slowly, or when each message is synced.

When the worker is late, the owner thread does the same work and waits for the disk. It waits up to
5 s (as Java does) for a creation that is already running, and takes over one that has not begun.

The worker only logs a full disk. The append that needs the space raises StoreFullError, and so does
every later append until there is space again.

What a crash leaves: a spare that is complete, of length 0, or absent. Recovery removes it, and so
does a clean stop (:meth:`Allocator.discard`).

Counterpart of Java's ``AllocateMappedFileService``.
"""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from skylark.store.errors import (
    StoreFileError,
    StoreFileExistsError,
    StoreFileMissingError,
    StoreFullError,
)
from skylark.store.file_system import PAGE_SIZE, Advice, FileHandle, FileSystem
from skylark.store.mapped_file import MappedFile
from skylark.store.owner_thread import Post, post_when_done

logger = logging.getLogger(__name__)

ALLOCATE_AHEAD: Final = 64 << 20
CREATE_WAIT_S: Final = 5.0
POPULATE_AHEAD: Final = 4 << 20
POPULATE_WITHIN_MS: Final = 500  # for POPULATE_AHEAD bytes; at a lower rate no page is touched
_WARM_CHUNK: Final = bytes(1 << 20)


class FileNotReadyError(StoreFileError):
    """The next file was not created in time (Java: CREATE_MAPPED_FILE_FAILED)."""

    retriable: ClassVar[bool] = True


class _Spare(NamedTuple):
    path: Path
    creation: Future[FileHandle]


class Allocator:
    """Allocates files and blocks for one log; without an executor, in the calling thread."""

    def __init__(
        self,
        files: FileSystem,
        *,
        ahead: int = ALLOCATE_AHEAD,
        executor: Executor | None = None,
        post: Post | None = None,
        warm_up_pages: int | None = None,
        create_wait_s: float = CREATE_WAIT_S,
        populate_ahead: int = 0,
    ) -> None:
        """``ahead``: bytes allocated in advance; ``populate_ahead``: bytes touched, 0 for none.

        ``warm_up_pages``: write every page of a new file, and sync after so many (0: at the end).
        """
        if (executor is None) != (post is None):
            raise ValueError("executor and post must be given together")
        self._file_system = files
        self._ahead = ahead
        self._executor = executor
        self._post = post
        self._warm_up_pages = warm_up_pages
        self._create_wait_s = create_wait_s
        self._spare: _Spare | None = None
        #: Files that could be neither finished nor removed. Used by one thread at a time: the
        #: owner creates a file only when no worker does.
        self._unremoved: set[Path] = set()
        self._extension: Future[None] | None = None
        self._populate_ahead = 0 if executor is None else populate_ahead
        self._population: Future[bool] | None = None
        self._populated_at_ms = 0  # store time of the last request

    # Files

    def request(self, path: Path, size: int) -> None:
        """Have the worker create the file that will be needed next."""
        if self._executor is not None and self._spare is None:
            creation = self._executor.submit(self._create, path, size, self._warm_up_pages)
            self._spare = _Spare(path, creation)

    def take(self, path: Path, size: int) -> FileHandle:
        """Return the handle of this file: the spare if it is the one, else a file created now."""
        spare = self._spare
        if spare is not None and spare.path == path:
            handle = self._collect(spare)
            if handle is not None:
                return handle
        else:
            self.discard()
        return self._create(path, size, None)

    def discard(self) -> None:
        """Remove the spare, if there is one: the store stops, or its log was truncated.

        Afterwards the worker keeps no file mapped.
        """
        if self._population is not None and not self._population.cancel():
            wait([self._population])
        spare = self._spare
        if spare is None:
            return
        self._spare = None
        if spare.creation.cancel():
            return
        try:
            handle = spare.creation.result()
        except StoreFileError as error:
            logger.debug("the spare file could not be created: %s", error)
            return
        handle.close()
        self._remove_unused(spare.path)

    def _collect(self, spare: _Spare) -> FileHandle | None:
        """The handle of the finished spare; None if the caller has to create the file."""
        if spare.creation.cancel():
            self._spare = None
            return None
        try:
            handle = spare.creation.result(self._create_wait_s)
        except TimeoutError as error:  # the creation continues: the next attempt waits for it again
            raise FileNotReadyError(
                f"the file was not created within {self._create_wait_s} s", path=spare.path
            ) from error
        except StoreFileError as error:
            self._spare = None
            logger.warning("the worker could not create the next file: %s", error)
            return None
        self._spare = None
        return handle

    def _create(self, path: Path, size: int, warm_up_pages: int | None) -> FileHandle:
        """Create a file, in any thread; remove it again if it cannot be finished.

        Crash, line by line: no file, or one of length 0 or ``size``; the same; all zeros; durable
        in length, perhaps without a name; durable.
        """
        if path in self._unremoved:
            self._remove_unused(path)
        try:
            handle = self._file_system.create_file(path, size)
        except StoreFileExistsError:
            raise  # another program's file
        except StoreFileError:
            self._unremoved.add(path)  # it may exist without its full length
            raise
        try:
            handle.allocate(0, size if warm_up_pages is not None else min(size, self._ahead))
            if warm_up_pages is not None:
                _warm(handle, warm_up_pages)
            handle.sync()
            self._file_system.sync_directory(path.parent)
        except StoreFileError:
            with contextlib.suppress(StoreFileError):
                handle.close()
            with contextlib.suppress(StoreFileError):
                self._remove_unused(path)
            raise
        return handle

    def _remove_unused(self, path: Path) -> None:
        """Remove a file that holds nothing.

        If that fails, the next creation of this name tries again.
        """
        self._unremoved.add(path)
        with contextlib.suppress(StoreFileMissingError):
            self._file_system.remove(path)
        self._unremoved.discard(path)
        self._file_system.sync_directory(path.parent)

    def unlock(self, file: MappedFile) -> None:
        """Release the memory lock of a warmed file that is full: newer files need the memory."""
        if self._warm_up_pages is not None:
            file.handle.unlock_memory(0, file.size)

    # Blocks

    def prepare(self, file: MappedFile, end: int) -> None:
        """Allocate blocks for ``[file.wrote, end)``, when an append reaches ``file.prepared``."""
        if end > file.allocated:
            self._extend_now(file, end)
        stop = self._soft_end(file)
        if end > stop:
            self._extend_soon(file)
            stop = file.allocated
        if self._populate_ahead and end > self._populate_from(file):
            self._populate_soon(file, end)
        file.prepared = max(end, min(stop, self._populate_from(file)))

    def _soft_end(self, file: MappedFile) -> int:
        """Position at which the worker is asked for the next piece."""
        if file.allocated == file.size or self._executor is None:
            return file.allocated
        return file.allocated - self._ahead // 2

    def _populate_from(self, file: MappedFile) -> int:
        """Position at which the worker is asked to touch the next pages."""
        if not self._populate_ahead or file.populated >= file.allocated:
            return file.allocated
        return file.populated - self._populate_ahead // 2

    def _populate_soon(self, file: MappedFile, end: int) -> None:
        start = max(file.populated, end)
        file.populated = min(start + self._populate_ahead, file.allocated)
        # The time of the last record; a new file has none yet, and its beginning is always touched.
        now_ms = file.last_store_timestamp or self._populated_at_ms
        took_ms, self._populated_at_ms = now_ms - self._populated_at_ms, now_ms
        is_busy = self._population is not None and not self._population.done()
        if took_ms > POPULATE_WITHIN_MS or is_busy or file.pooled is not None:
            return
        if self._executor is not None:
            size = file.populated - start
            self._population = self._executor.submit(
                file.handle.advise, Advice.POPULATE_WRITE, start, size
            )

    def _extend_now(self, file: MappedFile, end: int) -> None:
        start = file.allocated
        generous = min(file.size, end + self._ahead)
        try:
            file.handle.allocate(start, generous - start)
        except StoreFullError:
            # the last bytes of the disk may still hold this record
            generous = min(file.size, -(-end // PAGE_SIZE) * PAGE_SIZE)
            file.handle.allocate(start, generous - start)
        file.allocated = generous

    def _extend_soon(self, file: MappedFile) -> None:
        if self._executor is None or self._post is None or self._extension is not None:
            return
        start = file.allocated
        end = min(file.size, start + self._ahead)
        if start == end:
            return
        extension = self._executor.submit(file.handle.allocate, start, end - start)
        self._extension = extension
        post_when_done(extension, self._post, lambda done: self._extended(file, start, end, done))

    def _extended(self, file: MappedFile, start: int, end: int, done: Future[None]) -> None:
        self._extension = None
        if done.cancelled() or file.leaving:
            return
        error = done.exception()
        if error is not None:
            if not isinstance(error, StoreFileError):
                raise error
            logger.warning(
                "the worker could not allocate space before the write position: %s", error
            )
        elif start <= file.allocated < end:  # else truncated, or allocated by the owner
            file.allocated = end
            stop = min(self._soft_end(file), self._populate_from(file))
            file.prepared = max(file.wrote, stop)


def _warm(handle: FileHandle, sync_pages: int) -> None:
    """Load every page of a new file into memory, and ask the kernel to keep it there.

    Uses positional writes, which let other threads run; Java touches the mapping.
    """
    chunk = _WARM_CHUNK
    if sync_pages:
        chunk = chunk[: sync_pages * PAGE_SIZE]
    unsynced = 0
    for position in range(0, handle.size, len(chunk)):
        data = chunk[: handle.size - position]
        handle.write(position, data)
        unsynced += len(data)
        if sync_pages and unsynced >= sync_pages * PAGE_SIZE:
            handle.sync()
            unsynced = 0
    handle.advise(Advice.WILL_NEED)
    handle.lock_memory(0, handle.size)
