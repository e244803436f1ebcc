"""What of the views is not on disk yet, and the batch that puts it there.

Consume queues and index are written from the owner's thread and synced from another one. The
checkpoint promises that everything dispatched up to a certain time has reached the disk; so it may
move only when a whole round is over::

    owner    note the store time T of the newest dispatched record
             queues.start_flush().run(...), index.flush()          bytes are in the files
             batch = views.begin()
    worker   batch.run()                                           every file, then every directory
    owner    views.finish(batch)                                   what failed is noted again
             no error: the checkpoint may say T

What is noted are paths and byte ranges. A worker opens the files by itself and shares no handle
with the owner; a file that was deleted meanwhile is no failure. Files come before directories,
because a name that is durable must never lead to bytes that are not.

After a failed sync the kernel takes the lost pages for clean, and another sync would succeed
without writing them. The next :meth:`ViewSync.begin` therefore marks the ranges dirty again. It
does so in the owner's thread: touching a mapped page from another one could undo a write.

Crash before ``finish``: some files synced, some not, and the checkpoint still says what it said.
Recovery cuts the views back to what the checkpoint vouches for and fills them from the log.

Java has no such object: ``FlushConsumeQueueService`` syncs queue after queue in its own thread.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem


class SyncBatch:
    """Files and directories to sync; what is left in it after :meth:`run` has failed."""

    __slots__ = ("_files", "directories", "ranges")

    def __init__(
        self,
        files: FileSystem,
        ranges: dict[Path, tuple[int, int]],
        directories: dict[Path, None],
    ) -> None:
        self._files = files
        self.ranges = ranges  # path -> first and last byte written, [start, end)
        self.directories = directories

    @property
    def pending(self) -> bool:
        """Whether there is anything to sync."""
        return bool(self.ranges or self.directories)

    def run(self) -> None:
        """Sync everything, in any thread. Goes on after a failure and raises the first one."""
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
        with contextlib.suppress(StoreFileMissingError):  # deleted since: nothing to keep
            handle = self._files.open_file(path)
            try:
                handle.sync()
            finally:
                handle.close()


class ViewSync:
    """Collects what has to reach the disk. One for all views of a store."""

    __slots__ = ("_directories", "_failed", "_files", "_ranges")

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._ranges: dict[Path, tuple[int, int]] = {}
        self._directories: dict[Path, None] = {}
        self._failed: dict[Path, tuple[int, int]] = {}  # clean for the kernel, not for us

    @property
    def pending(self) -> bool:
        """Whether anything waits for a batch."""
        return bool(self._ranges or self._directories or self._failed)

    def wrote(self, path: Path, start: int, end: int) -> None:
        """Bytes ``[start, end)`` of a file changed."""
        noted = self._ranges.get(path)
        if noted is not None:
            start, end = min(start, noted[0]), max(end, noted[1])
        self._ranges[path] = (start, end)

    def renamed(self, directory: Path) -> None:
        """A name appeared in the directory, or went."""
        self._directories[directory] = None

    def make_directory(self, directory: Path) -> None:
        """Make it, and those above it that do not exist: each is a name that appears."""
        missing = []
        while not self._files.exists(directory):
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            self._files.create_directory(each)
            self.renamed(each.parent)

    def removed(self, path: Path) -> None:
        """A file went: its bytes do not matter any more, the absence of its name does."""
        self._ranges.pop(path, None)
        self._failed.pop(path, None)
        self.renamed(path.parent)

    def begin(self) -> SyncBatch:
        """Everything noted so far, as a batch; from here on a new one collects."""
        for path, (start, end) in list(self._failed.items()):
            with contextlib.suppress(StoreFileMissingError):
                handle = self._files.open_file(path)
                try:
                    handle.mark_dirty(start, end - start)
                finally:
                    handle.close()
                self.wrote(path, start, end)
            del self._failed[path]
        batch = SyncBatch(self._files, self._ranges, self._directories)
        self._ranges, self._directories = {}, {}
        return batch

    def finish(self, batch: SyncBatch) -> None:
        """Note again what a batch that has run could not sync."""
        for path, (start, end) in batch.ranges.items():
            failed = self._failed.get(path, (start, end))
            self._failed[path] = (min(start, failed[0]), max(end, failed[1]))
        self._directories |= batch.directories
