"""Dirty ranges of the derived files: what is not on disk yet, and the batch that syncs it.

The owner's thread writes consume queues and index, another thread syncs them. The checkpoint
guarantees that everything dispatched up to a certain time is on disk; so it may advance only when a
whole round is over::

    owner    record the store time T of the newest dispatched record
             queues.start_flush().run(...), index.flush()          bytes are in the files
             batch = dirty_ranges.begin()
    worker   batch.run()                                           every file, then every directory
    owner    dirty_ranges.finish(batch)                            failed ranges are kept
             no error: the checkpoint may advance to T

Only paths and byte ranges are kept. A worker opens the files itself and shares no handle with the
owner; a file that was deleted meanwhile is not an error. Files come before directories, because a
durable name must never refer to bytes that are not durable.

After a failed sync the kernel counts the lost pages as clean, and another sync would succeed
without writing them. The next :meth:`DirtyRanges.begin` therefore marks the ranges dirty again. It
does so in the owner's thread: touching a mapped page from another thread could undo a write.

Crash before ``finish``: some files are synced, some not, and the checkpoint is unchanged. Recovery
truncates the derived files to what the checkpoint covers and fills them from the log.

Java has no such object: ``FlushConsumeQueueService`` syncs queue after queue in its own thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem


class SyncBatch(msgspec.Struct):
    """Files and directories to sync; those left in it after :meth:`run` have failed."""

    _files: FileSystem
    ranges: dict[Path, tuple[int, int]]  # path -> first and last byte written, [start, end)
    directories: dict[Path, None]

    @property
    def pending(self) -> bool:
        """Whether there is anything to sync."""
        return bool(self.ranges or self.directories)

    def run(self) -> None:
        """Sync everything, in any thread. Continues after a failure and raises the first one."""
        first_error: StoreFileError | None = None
        for path in list(self.ranges):
            try:
                self._sync_file(path)
                del self.ranges[path]
            except StoreFileError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        for directory in list(self.directories):
            try:
                self._files.sync_directory(directory)
                del self.directories[directory]
            except StoreFileError as error:
                if self._files.exists(directory):
                    first_error = first_error or error
                else:
                    del self.directories[directory]
        if first_error is not None:
            raise first_error

    def _sync_file(self, path: Path) -> None:
        with (
            contextlib.suppress(StoreFileMissingError),  # deleted since: nothing to keep
            contextlib.closing(self._files.open_file(path)) as handle,
        ):
            handle.sync()


class DirtyRanges:
    """Collects what must be synced. One object for all derived files of a store."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._ranges: dict[Path, tuple[int, int]] = {}
        self._directories: dict[Path, None] = {}
        # The kernel counts them as clean, but they are not on disk.
        self._failed: dict[Path, tuple[int, int]] = {}

    @property
    def pending(self) -> bool:
        """Whether there is anything to sync."""
        return bool(self._ranges or self._directories or self._failed)

    def wrote(self, path: Path, start: int, end: int) -> None:
        """Record that bytes ``[start, end)`` of a file changed."""
        known = self._ranges.get(path)
        if known is not None:
            start, end = min(start, known[0]), max(end, known[1])
        self._ranges[path] = (start, end)

    def directory_changed(self, directory: Path) -> None:
        """Record that a name was added to the directory, or removed."""
        self._directories[directory] = None

    def make_directory(self, directory: Path) -> None:
        """Create the directory and its missing parents, and record the new names."""
        missing = []
        while not self._files.exists(directory):
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            self._files.create_directory(each)
            self.directory_changed(each.parent)

    def removed(self, path: Path) -> None:
        """Record that a file was deleted: only the removal of its name must be synced."""
        self._ranges.pop(path, None)
        self._failed.pop(path, None)
        self.directory_changed(path.parent)

    def begin(self) -> SyncBatch:
        """Return everything recorded so far as a batch, and start to collect the next one."""
        for path, (start, end) in list(self._failed.items()):
            with contextlib.suppress(StoreFileMissingError):
                with contextlib.closing(self._files.open_file(path)) as handle:
                    handle.mark_dirty(start, end - start)
                self.wrote(path, start, end)
            del self._failed[path]
        batch = SyncBatch(self._files, self._ranges, self._directories)
        self._ranges, self._directories = {}, {}
        return batch

    def finish(self, batch: SyncBatch) -> None:
        """Keep what a batch that has run could not sync."""
        for path, (start, end) in batch.ranges.items():
            failed = self._failed.get(path, (start, end))
            self._failed[path] = (min(start, failed[0]), max(end, failed[1]))
        self._directories |= batch.directories
