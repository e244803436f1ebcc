"""The files of one queue directory, read and written at positions and never mapped.

A queue is a sequence of bytes in files of equal length. A file is named by the position of its
first byte in the queue, in 20 digits, and has its full length from creation, as a hole::

    consumequeue/TOPIC/0/00000000000000000000    300,000 entries of 20 bytes
                         00000000000006000000

Thousands of queues would need thousands of descriptors if each kept its files open, and twice as
many if it mapped them. So all queues of a store share one :class:`QueueHandles`, which keeps the
most recently used files open and closes the others. A full disk is an error of the write.

A reader that continues after its last read will probably want more (:meth:`QueueFiles.read_on`):
then more is read and kept, so that consumers that catch up, 32 messages at a time, need a system
call only for every eighth pull. Readers of large pieces gain nothing, and nothing is kept for them.
The bytes kept are dropped when the queue is truncated, and when readers have reached its end.

Loading follows Java's rules: the last file is deleted if its length is 0; any other length than the
configured one stops the start, because the position of every entry depends on it. Names that are
not positions are ignored.

What a crash leaves (:mod:`skylark.store.dirty_ranges` makes bytes and names durable later):

* after creating a file: an empty one, which recovery takes for the end of the queue. A power loss
  may leave it with length 0, or without its name while a later file kept its own. After an unclean
  exit, :meth:`load` therefore accepts a gap and drops empty files; the queue, which can read the
  entries, decides on which side of the gap the entries count (``ConsumeQueue.recover``).
* within a write: any part of it. Entries may be torn, and recovery does not trust them.
* within :meth:`cut`: files are removed newest first, so that the rest has no gap; the bytes after
  the cut are cleared last. They point to records beyond the log's end, and recovery cuts again.

Counterpart of Java's ``MappedFileQueue`` as far as consume queues use it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Final

from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError
from skylark.store.file_system import DirectoryEntry, FileHandle, FileSystem
from skylark.wire.layout import CQ_ENTRY_SIZE

logger = logging.getLogger(__name__)

READ_AHEAD: Final = 256 * CQ_ENTRY_SIZE
FILE_NAME: Final = re.compile(r"[0-9]{20}")
# All of them: a single missing queue is not rebuilt, as the others show the log as dispatched.
_REBUILD: Final = (
    "delete the directories consumequeue and batchconsumequeue: the next start rebuilds all queues "
    "from the log"
)


class QueueHandles:
    """Open handles of queue files, shared by all queues; the least recently used is closed."""

    __slots__ = ("_handles", "_open_files_max", "dirty_ranges", "files")

    def __init__(
        self, files: FileSystem, dirty_ranges: DirtyRanges, *, open_files_max: int = 256
    ) -> None:
        self.files = files
        self.dirty_ranges = dirty_ranges
        self._open_files_max = open_files_max
        self._handles: dict[tuple[QueueFiles, int], FileHandle] = {}  # least recently used first

    def __len__(self) -> int:
        """Number of open files."""
        return len(self._handles)

    def get(self, owner: QueueFiles, start: int) -> FileHandle:
        """The file of ``owner`` that begins at ``start``, opened if necessary."""
        key = owner, start
        handle = self._handles.pop(key, None)
        if handle is None:
            self._make_room()
            handle = self.files.open_file(owner.path_of(start))
        self._handles[key] = handle
        return handle

    def create(self, owner: QueueFiles, start: int) -> None:
        """Create the file of ``owner`` that begins at ``start``, all hole."""
        self._make_room()
        path = owner.path_of(start)
        self._handles[owner, start] = self.files.create_file(path, owner.file_size)
        self.dirty_ranges.wrote(path, 0, 0)  # its length
        self.dirty_ranges.directory_changed(owner.directory)

    def remove(self, owner: QueueFiles, start: int) -> None:
        """Delete the file of ``owner`` that begins at ``start``."""
        handle = self._handles.pop((owner, start), None)
        if handle is not None:
            handle.close()
        path = owner.path_of(start)
        self.files.remove(path)
        self.dirty_ranges.removed(path)

    def close(self) -> None:
        """Close everything, without syncing."""
        while self._handles:
            self._handles.popitem()[1].close()

    def _make_room(self) -> None:
        while len(self._handles) >= self._open_files_max:
            self._handles.pop(next(iter(self._handles))).close()


class QueueFiles:
    """The files of one queue. Positions are bytes from the beginning of the queue."""

    __slots__ = (
        "_ahead_start",
        "_handles",
        "_read_from",
        "_read_until",
        "ahead",
        "directory",
        "file_size",
        "starts",
    )

    def __init__(self, handles: QueueHandles, directory: Path, file_size: int) -> None:
        self._handles = handles
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []  # where each file begins, ascending
        self.ahead = b""  #: bytes read ahead
        self._ahead_start = 0
        self._read_from = self._read_until = 0

    def __repr__(self) -> str:
        return f"<QueueFiles {self.directory} files={len(self.starts)} of {self.file_size}>"

    def path_of(self, start: int) -> Path:
        """Path of the file that begins at ``start``."""
        return self.directory / f"{start:020d}"

    @property
    def size_total(self) -> int:
        """Bytes of all files by their length; they may be sparse."""
        return len(self.starts) * self.file_size

    def load(self, *, clean: bool) -> None:
        """Find the files. After an unclean exit there may be gaps: see the module docstring."""
        if not clean:  # names that a killed process did not sync are still not durable
            self._handles.dirty_ranges.directory_changed(self.directory)
        found = [
            entry
            for entry in self._handles.files.list_directory(self.directory)
            if not entry.is_directory and self._is_named(entry)
        ]
        for index, entry in enumerate(found):
            start = int(entry.name)
            path = self.directory / entry.name
            if entry.size == 0 and (index == len(found) - 1 or not clean):
                logger.warning("%s has length 0 and is deleted", path)
                self._handles.files.remove(path)
                self._handles.dirty_ranges.removed(path)
                continue
            if entry.size != self.file_size or start % self.file_size:
                raise StoreFileError(
                    f"a queue file of {entry.size} bytes where files have {self.file_size}",
                    path=path,
                    hint=f"set the file size with which the store was created, or {_REBUILD}",
                )
            if clean and self.starts and start != self.starts[-1] + self.file_size:
                raise StoreFileError(
                    f"the file {self.starts[-1] + self.file_size:020d} before this one is missing",
                    path=path,
                    hint=f"restore it, or {_REBUILD}",
                )
            self.starts.append(start)

    def _is_named(self, entry: DirectoryEntry) -> bool:
        if FILE_NAME.fullmatch(entry.name):
            return True
        logger.warning("%s is not a queue file: ignored", self.directory / entry.name)
        return False

    def read(self, position: int, length: int) -> bytes:
        """Bytes from ``position``, ``length`` or to the end of its file; none without a file."""
        within = position % self.file_size
        start = position - within
        if not self.starts or not self.starts[0] <= start <= self.starts[-1]:
            return b""
        length = min(length, self.file_size - within)
        content = self._handles.get(self, start).read(within, length)
        if len(content) < length:
            raise StoreFileError(
                "the file was truncated while the store was open", path=self.path_of(start)
            )
        return content

    def read_on(self, position: int, length: int, end: int) -> bytes:
        """Like :meth:`read`, for a sequential reader; bytes at or after ``end`` are not kept."""
        goes_on = self._read_from < position <= self._read_until
        self._read_from, self._read_until = position, position + length
        at = position - self._ahead_start
        if at < 0 or at + length > len(self.ahead):
            if not goes_on or length >= READ_AHEAD:
                return self.read(position, length)
            self.ahead = self.read(position, max(length, min(READ_AHEAD, end - position)))
            self._ahead_start, at = position, 0
        return self.ahead[at : at + length]

    def forget_ahead(self) -> None:
        """Drop the bytes that were read ahead."""
        self.ahead = b""

    def write(self, position: int, data: memoryview) -> int:
        """Write the part of ``data`` that fits into the file at ``position``; return its size.

        Creates the file, and the directory, for its first byte. On an error any part may have been
        written; writing the same bytes again is harmless.
        """
        within = position % self.file_size
        start = position - within
        if not self.starts or start > self.starts[-1]:
            self._create(start)
        size = min(len(data), self.file_size - within)
        with data[:size] as part:
            self._handles.get(self, start).write(within, part)
        self._handles.dirty_ranges.wrote(self.path_of(start), within, within + size)
        return size

    def cut(self, position: int, *, clear: bool = True) -> None:
        """Drop everything from ``position`` on; ``clear``: the bytes after it are not all zero.

        A queue whose files begin later than 0 keeps its first one even if nothing is left in it:
        the name holds the number at which the queue continues.
        """
        self.forget_ahead()
        while self.starts and self.starts[-1] >= position:
            if len(self.starts) == 1 and position > 0 and self.starts[0] == position:
                break
            self.remove(self.starts[-1])
        if not self.starts:
            return
        start = self.starts[-1]
        if clear and position < start + self.file_size:
            within = position - start
            self._handles.get(self, start).zero(within, self.file_size - within)
            self._handles.dirty_ranges.wrote(self.path_of(start), within, self.file_size)

    def remove(self, start: int) -> None:
        """Delete one file."""
        self.forget_ahead()
        self._handles.remove(self, start)
        self.starts.remove(start)

    def destroy(self) -> None:
        """Delete all files, newest first; the directory stays."""
        while self.starts:
            self.remove(self.starts[-1])

    def _create(self, start: int) -> None:
        if not self.starts:
            self._handles.dirty_ranges.make_directory(self.directory)
        self._handles.create(self, start)
        self.starts.append(start)
