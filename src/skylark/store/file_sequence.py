"""File sequence: the files of one log, each named by the offset of its first byte.

::

    commitlog/00000000000000000000   00000000001073741824   00000000002147483648
              |---- file_size -----| |---- file_size -----| |-- wrote --|.......|
              min_offset                                                max_offset

Every file has its full length from creation, so offset ``o`` is in file ``o // file_size``.

**Load** (store 1.1): names of 20 digits in order, each of exactly ``file_size`` bytes, without a
gap. A last file of length 0 is left by an interrupted creation and is removed. Anything else stops
the start with an error that names the file, and nothing is removed. All loaded files count as full
until recovery has found the end (:meth:`MappedFiles.truncate`).

**What a crash leaves.** The files on disk have no gap at any moment, because names change one at a
time and each change is durable before the next:

* a new file is synced, then its directory, before it is used; so only the last file can be empty;
* old files are removed oldest first, even if a younger one became idle earlier; truncated files are
  removed youngest first;
* the rest of the file after a truncation is cleared and synced. Java leaves it, and an old record
  that happens to be aligned then looks valid after the next crash. A crash before the sync leaves
  any part of the rest; recovery finds the same end and clears again.

**Deletion** (store 6.6): a retired file leaves the log at once. It leaves the directory when its
last lease is returned, or by force after a time. Forced means that the name is removed; the mapping
stays until the lease ends. While the file has its name, the next start finds it and includes it in
the log again, so the derived entries of its records must stay as well
(:attr:`MappedFiles.removed_until`).

Counterpart of Java's ``MappedFileQueue``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skylark.core.errors import CorruptLogError
from skylark.store.allocator import Allocator
from skylark.store.errors import StoreFileBusyError, StoreFileError, StoreFileMissingError
from skylark.store.file_system import Advice, DirectoryEntry, FileHandle, FileSystem
from skylark.store.mapped_file import MappedFile
from skylark.store.transient_store_pool import TransientPool

logger = logging.getLogger(__name__)

NAME_DIGITS: Final = 20
FORCE_AFTER_MS: Final = 120_000
OPEN_FILES_MAX: Final = 128


class LogProblem(NamedTuple):
    """Why a directory cannot be loaded as a log."""

    path: Path
    offset: int  # in the log
    message: str
    hint: str


class LogListing(NamedTuple):
    """The files of a directory, interpreted as a log."""

    starts: list[int]  # of the files, in order
    empty: Path | None  # a last file of length 0
    problems: list[LogProblem]


def file_name(start_offset: int) -> str:
    """The name of the file that starts at this offset."""
    return f"{start_offset:0{NAME_DIGITS}d}"


def examine(
    directory: Path, entries: list[DirectoryEntry], file_size: int, size_key: str
) -> LogListing:
    """Apply the load rules to a directory; ``size_key`` is the setting behind ``file_size``."""
    named = []
    for entry in entries:
        if entry.is_directory:
            continue
        if len(entry.name) == NAME_DIGITS and entry.name.isascii() and entry.name.isdecimal():
            named.append(entry)
        else:
            logger.warning("%s is not a file of this log and is ignored", directory / entry.name)
    listing = LogListing(
        [], directory / named[-1].name if named and not named[-1].size else None, []
    )
    for entry in named[: len(named) - (listing.empty is not None)]:
        path, start = directory / entry.name, int(entry.name)
        if entry.size != file_size:
            text = f"the file has {entry.size} bytes, and {size_key} is {file_size}"
            hint = (
                f"set {size_key} to the size with which the store was created, or restore the file"
            )
            listing.problems.append(LogProblem(path, start, text, hint))
        elif start % file_size:
            text = f"the file starts at {start}, which is not a multiple of {size_key}={file_size}"
            hint = f"set {size_key} to the size with which the store was created"
            listing.problems.append(LogProblem(path, start, text, hint))
        elif listing.starts and start != listing.starts[-1] + file_size:
            missing = listing.starts[-1] + file_size
            text = f"the files from {missing} to {start} are missing"
            hint = "restore them from a copy, or move away what lies on one side of the gap"
            problem = LogProblem(directory / file_name(missing), missing, text, hint)
            listing.problems.append(problem)
        listing.starts.append(start)
    return listing


class SyncRange(NamedTuple):
    """A file to sync, and the position up to which a sync that starts now covers it."""

    file: MappedFile
    handle: FileHandle
    end: int  # position in the file


class MappedFiles:
    """The files of one log. Appends go to ``last``.

    An empty log has a ``last`` of size 0: nothing fits into it, so the first append rolls like any
    other.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        files: FileSystem,
        allocator: Allocator,
        pool: TransientPool | None = None,
        random_access: bool = False,
        open_files_max: int = OPEN_FILES_MAX,
        size_key: str = "mappedFileSizeCommitLog",
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.flushed_where = 0  # everything before is on disk
        self.committed_where = 0  # everything before is in the files; maintained with a pool
        self.generation = 0  # incremented by each truncation, which changes what offsets mean
        self.pool = pool
        self._file_system = files
        self._allocator = allocator
        self._random_access = random_access
        #: How long readers may keep a retired file, in milliseconds.
        self.force_after_ms = FORCE_AFTER_MS
        self._open_files_max = open_files_max
        self._size_key = size_key
        self._opened: deque[MappedFile] = deque()  # those that may be closed, oldest first
        self._retired: deque[tuple[MappedFile, float]] = deque()  # with the time of forced removal
        self._busy: list[MappedFile] = []  # removed from the directory, but still mapped
        self._nothing = MappedFile(directory, 0, 0, self, allocator)
        self.last = self._nothing

    def __repr__(self) -> str:
        return f"<MappedFiles {self.directory} {self.min_offset}..{self.max_offset}>"

    # Offsets

    @property
    def min_offset(self) -> int:
        """Offset of the first byte; 0 for an empty log."""
        return self.files[0].start_offset if self.files else 0

    @property
    def wrote_end(self) -> int:
        """Offset after the last appended byte."""
        return self.last.start_offset + self.last.wrote

    @property
    def max_offset(self) -> int:
        """Offset after the last byte that may be read."""
        return self.wrote_end if self.pool is None else self.committed_where

    def find(self, offset: int) -> MappedFile | None:
        """The file that holds ``offset``, or None; the byte itself may not be readable yet."""
        if not self.files or offset < self.files[0].start_offset:
            return None
        index = (offset - self.files[0].start_offset) // self.file_size
        return self.files[index] if index < len(self.files) else None

    def following(self, offset: int) -> Iterator[MappedFile]:
        """The file that holds ``offset`` and all after it; all files if it lies before them."""
        first = max(0, (offset - self.min_offset) // self.file_size)
        return iter(self.files[first:])

    # Loading

    def load(self) -> None:
        """Find the files; raises CorruptLogError if they cannot be a log, and changes nothing."""
        listing = self.examine()
        if listing.problems:
            problem = listing.problems[0]
            raise CorruptLogError(
                problem.message, file=str(problem.path), offset=problem.offset, hint=problem.hint
            )
        if listing.empty is not None:
            logger.warning("%s is empty, left by an interrupted creation: removed", listing.empty)
            self._remove(listing.empty)
        self.files = [self._file(start) for start in listing.starts]
        self.last = self.files[-1] if self.files else self._nothing
        self.flushed_where = self.committed_where = self.wrote_end

    def examine(self) -> LogListing:
        """List the directory without changing or opening anything, for checks."""
        try:
            entries = self._file_system.list_directory(self.directory)
        except StoreFileMissingError:
            entries = []
        return examine(self.directory, entries, self.file_size, self._size_key)

    # Growing and shrinking

    def roll(self, offset: int = 0) -> MappedFile:
        """Append to the next file from now on, and request the one after it.

        ``offset`` matters in an empty log: the first file is the one that holds it. Raises
        StoreFullError or another StoreError and changes nothing; the caller may retry. The caller
        ends the file it leaves (blank record, ``wrote = size``) before it appends again.
        """
        if self.files:
            start = self.last.end_offset
        else:
            start = offset - offset % self.file_size
            self._file_system.make_directories(self.directory, durable=True)
        memory = None if self.pool is None else self.pool.take()
        try:
            handle = self._allocator.take(self.directory / file_name(start), self.file_size)
        except StoreFileError:
            if memory is not None and self.pool is not None:
                self.pool.give_back(memory)
            raise
        file = self._file(start, handle)
        file.prepare(0)  # sets the position at which the worker is asked for more
        if memory is not None:
            file.use_pool(memory)
        if self._random_access:
            handle.advise(Advice.RANDOM)
        if self.files:
            self._allocator.unlock(self.last)
            self._keep_open(self.last)
        else:
            self.flushed_where = self.committed_where = start
        self.files.append(file)
        self.last = file
        self._allocator.request(self.directory / file_name(file.end_offset), self.file_size)
        return file

    def truncate(self, offset: int, *, unsynced_from: int | None = None) -> None:
        """End the log at ``offset``: remove later files and clear the rest of its file.

        A file that starts exactly there stays, empty. All positions are ``offset`` afterwards,
        including the flushed one. So the directory and the last file are synced, and all files from
        ``unsynced_from`` on: after a kill their bytes may be in the page cache only.
        """
        if offset > self.wrote_end:
            raise ValueError(f"{self.directory}: {offset} is beyond the end, {self.wrote_end}")
        self.generation += 1
        self._allocator.discard()
        while self.files and self.files[-1].start_offset > offset:
            file = self.files.pop()
            self.last = self.files[-1] if self.files else self._nothing
            file.leaving = True
            self._leave_pool(file)
            self._remove(file.path)
            self._close_or_wait(file)
        if self.files:
            position = offset - self.last.start_offset
            self._leave_pool(self.last)
            self.last.set_end(position)
            self.last.handle.zero(position, self.file_size - position)
            first = self.last.start_offset
            if unsynced_from is not None:
                first = min(first, unsynced_from)
            for file in self.following(first):
                file.handle.sync()
                file.flushed = max(file.flushed, file.readable)
            self._file_system.sync_directory(self.directory)
        self.flushed_where = self.committed_where = self.wrote_end

    def retire_oldest(self, now: float) -> MappedFile | None:
        """Take the first file out of the log, unless it is the last; ``now`` is monotonic."""
        if len(self.files) < 2:
            return None
        file = self.files.pop(0)
        file.leaving = True
        self._leave_pool(file)
        self._retired.append((file, now + self.force_after_ms / 1000))
        self.sweep(now)
        return file

    def sweep(self, now: float | None = None) -> None:
        """Remove retired files that are not being read, oldest first.

        With the monotonic time ``now`` also those whose time has come, by force.
        """
        while self._retired:
            file, forced_at = self._retired[0]
            if file.leases and (now is None or now < forced_at):
                break
            try:
                self._remove(file.path)
            except StoreFileError as error:
                logger.warning("a retired file could not be removed yet: %s", error)
                break
            if file.leases:
                logger.warning("%s was deleted although it is being read", file.path)
            self._retired.popleft()
            self._close_or_wait(file)
        for file in [file for file in self._busy if not file.leases]:
            self._busy.remove(file)
            self._close_or_wait(file)

    @property
    def removed_until(self) -> int:
        """Offset before which no file can come back: where the oldest retired file starts."""
        return self._retired[0][0].start_offset if self._retired else self.min_offset

    @property
    def retired_count(self) -> int:
        """Files that left the log and are still in the directory."""
        return len(self._retired)

    def close(self) -> None:
        """Remove the spare file and close all; files being read are closed when their leases end.

        Does not sync.
        """
        try:
            self._allocator.discard()
        except StoreFileError as error:  # the next start removes it
            logger.warning("the spare file could not be removed: %s", error)
        self.sweep()
        for file in (*self.files, *(file for file, _ in self._retired)):
            file.leaving = True
            self._close_or_wait(file)
        self._retired.clear()

    # Committing and flushing

    def mark_committed(self, file: MappedFile | None = None, end: int = 0) -> None:
        """Record what a commit wrote to ``file``; advance ``committed_where`` if possible."""
        if file is not None and file.pooled is not None:
            file.committed = end
            if end == self.file_size:
                self._leave_pool(file)
        for following in self.following(self.committed_where):
            self.committed_where = following.start_offset + following.readable
            if following.readable < self.file_size:
                break

    def unflushed(self) -> list[SyncRange]:
        """The ranges that a sync started now would cover, in order of offset."""
        ranges: list[SyncRange] = []
        for file in self.following(self.flushed_where):
            readable = file.readable
            if readable > file.flushed:
                ranges.append(SyncRange(file, file.handle, readable))
            if readable < self.file_size:
                break  # with a pool, a later file may be ahead of this one
        return ranges

    def mark_flushed(self, synced: SyncRange) -> None:
        """Record a completed sync; earlier files must have been recorded before."""
        file = synced.file
        file.flushed = max(file.flushed, synced.end)
        self.flushed_where = max(self.flushed_where, file.start_offset + file.flushed)

    def mark_unsynced(self, failed: SyncRange) -> None:
        """After a failed sync: make the next one write everything again that is not on disk."""
        file = failed.file
        end = min(file.readable, file.allocated)  # nothing was written after a blank record
        if not file.leaving and end > file.flushed:
            failed.handle.mark_dirty(file.flushed, end - file.flushed)

    def sync(self) -> None:
        """Sync everything in this thread, for recovery and shutdown."""
        for synced in self.unflushed():
            try:
                synced.handle.sync()
            except StoreFileError:
                self.mark_unsynced(synced)
                raise
            self.mark_flushed(synced)

    # Opening and closing files

    def open_file(self, file: MappedFile) -> FileHandle:
        """Open the file of a :class:`MappedFile`, and close another one if too many are open."""
        handle = self._file_system.open_file(file.path)
        if handle.size != self.file_size:
            handle.close()
            raise CorruptLogError(
                f"the file has {handle.size} bytes instead of {self.file_size}",
                file=str(file.path),
                offset=file.start_offset,
                hint="another program changed it while the store was open: restore it from a copy",
            )
        if self._random_access:
            handle.advise(Advice.RANDOM)
        self._keep_open(file)
        return handle

    def set_random_access(self, is_random: bool) -> None:
        """Whether the system reads ahead in the files, those that are open included."""
        self._random_access = is_random
        for file in self.files:
            if file.is_open:
                file.handle.advise(Advice.RANDOM if is_random else Advice.NORMAL)

    def file_is_idle(self) -> None:
        """Called when the last lease of a leaving file is returned."""
        self.sweep()

    def _keep_open(self, file: MappedFile) -> None:
        if file in self._opened:
            return
        if len(self._opened) >= self._open_files_max:
            self._close_one()
        self._opened.append(file)

    def _close_one(self) -> None:
        """Close the file that has been open longest, is not read and is fully flushed."""
        for file in self._opened:
            if file is not self.last and not file.leases and file.flushed == file.size:
                try:
                    file.close()
                except StoreFileBusyError:
                    continue
                self._opened.remove(file)
                return

    def _close_or_wait(self, file: MappedFile) -> None:
        """Close a file that left the log, now or when it is no longer read."""
        if file in self._opened:
            self._opened.remove(file)
        try:
            file.close()
        except StoreFileBusyError:
            self._busy.append(file)

    def _leave_pool(self, file: MappedFile) -> None:
        memory = file.leave_pool()
        if memory is not None and self.pool is not None:
            self.pool.give_back(memory)

    def _file(self, start_offset: int, handle: FileHandle | None = None) -> MappedFile:
        return MappedFile(
            self.directory / file_name(start_offset),
            start_offset,
            self.file_size,
            self,
            self._allocator,
            handle,
        )

    def _remove(self, path: Path) -> None:
        """Remove a name durably: it must not come back after the next one was removed."""
        try:
            self._file_system.remove(path)
        except StoreFileMissingError:
            logger.warning("%s was already removed", path)
        self._file_system.sync_directory(self.directory)
