"""The protocols between the store and the operating system's files.

The store is written against :class:`FileSystem` and :class:`FileHandle`. ``OsFileSystem`` in
:mod:`skylark.store.files` is the real implementation;
``skylark.testing.faulty_file_system.FaultyFileSystem`` is the one for tests, which fills up, fails,
hangs and loses power by seed.

Rules of a handle (Java: MappedFile's FileChannel and MappedByteBuffer)

* A file has its full length from creation, as in RocketMQ, but has blocks only where
  :meth:`FileHandle.allocate` made them. A store to a mapped page without a block is where a full
  disk would kill the process with SIGBUS; so nothing is written outside the allocated range, and a
  full disk is a :class:`StoreFullError` from ``allocate``. A file from elsewhere may be sparse:
  allocate before writing to it, too.
* Reading a hole through the mapping is harmless on disks, but takes a page on tmpfs. Scans over
  files of unknown origin use :meth:`FileHandle.read_into`, which maps nothing and cannot SIGBUS.
* ``sync`` covers the bytes and the length of one file. A new, renamed or removed *name* is durable
  only after ``sync_directory``.

Each operation documents what a crash leaves; "power loss" means that everything not synced may be
there, absent, or there in part (pages, and 512-byte sectors within a page).
"""

from __future__ import annotations

import contextlib
import enum
import errno
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from skylark.store.errors import StoreFileError, StoreFileExistsError

PAGE_SIZE = 4096  # RocketMQ's OS_PAGE_SIZE: the unit of flush rules and warm-up, on any machine
MEMORY_SIZE_UNKNOWN = 8 << 30  # where the system does not report it
READ_FILE_SIZE_MAX = 256 << 20  # config JSON of a very large cluster stays far below
# Why a directory of another user cannot be synced: no rights, or no support.
_NOT_OURS_TO_SYNC = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENOTSUP))


class Advice(enum.Enum):
    """How a range of the mapping will be used; the value is the name of the madvise constant."""

    NORMAL = "MADV_NORMAL"
    RANDOM = "MADV_RANDOM"
    WILL_NEED = "MADV_WILLNEED"
    POPULATE_WRITE = "MADV_POPULATE_WRITE"  # touch the pages now; no byte changes


class DirectoryEntry(NamedTuple):
    """One name in a directory; ``size`` is 0 for a directory."""

    name: str
    is_directory: bool
    size: int


class DiskUsage(NamedTuple):
    """Bytes of a file system; ``available`` is the part of ``free`` that this user may use."""

    total: int
    free: int
    available: int

    @property
    def used_ratio(self) -> float:
        """Used share as `df` and RocketMQ's watermarks count it: without reserved blocks."""
        used = self.total - self.free
        return used / (used + self.available) if used + self.available else 1.0


class FileHandle(Protocol):
    """An open file of fixed length, mapped at the first use of ``buffer``."""

    @property
    def path(self) -> Path:
        """The path at opening; a later rename does not change it."""

    @property
    def size(self) -> int:
        """Length in bytes, fixed."""

    @property
    def buffer(self) -> memoryview:
        """The whole file as bytes, writable if the handle is. Write only allocated ranges."""

    @property
    def allocated_until(self) -> int:
        """End of the range that this handle has allocated; 0 before the first ``allocate``."""

    def allocate(self, offset: int, length: int) -> None:
        """Allocate blocks for ``[offset, offset + length)``; existing bytes stay.

        The allocated range is one interval: it grows to cover this one and any gap between. The
        first call may begin anywhere, for example at the write position of a file just recovered.
        On StoreFullError the interval is unchanged. Crash: a file with more or fewer blocks and the
        same bytes.
        """

    def sync(self) -> None:
        """Make all bytes written before the call, and the length, durable. Safe in any thread.

        After a :class:`StoreSyncError` the kernel counts the pages as clean: syncing again
        succeeds without writing them. Call :meth:`mark_dirty` over the unsynced range first.
        """

    def descriptor(self) -> AbstractContextManager[int] | None:
        """A descriptor, open for the block, with which the kernel can do the same as ``sync``.

        None if only :meth:`sync` can. Raises StoreFileClosedError when it is entered.
        """

    def mark_dirty(self, offset: int, length: int) -> None:
        """Make the next sync write these pages again; no other thread may write to the range."""

    def zero(self, offset: int, length: int) -> None:
        """Clear a range; holes stay holes. Crash: any part cleared, until synced."""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write at a position, not through a mapping; the range must be within the file.

        Allocates the blocks it needs, and raises StoreFullError if the disk is full. After any
        error, and after a crash before the next sync, a part of the range may be on disk. Mapped
        views of the file show the new bytes. Safe in any thread.
        """

    def read_into(self, offset: int, buffer: memoryview | bytearray) -> int:
        """Fill ``buffer`` without mapping; returns the count, less only at the end of the file."""

    def read(self, offset: int, length: int) -> bytes:
        """Like :meth:`read_into`, as new bytes."""

    def advise(self, advice: Advice, offset: int = 0, length: int | None = None) -> bool:
        """Advise the kernel about future use; False (and a debug line) if it refused."""

    def lock_memory(self, offset: int, length: int) -> bool:
        """Keep a range in memory; False (and a debug line) if the system refuses."""

    def unlock_memory(self, offset: int, length: int) -> bool:
        """Undo :meth:`lock_memory`."""

    def close(self) -> None:
        """Unmap and close, without syncing. Closing again does nothing.

        While a memory view of ``buffer`` is in use this raises StoreFileBusyError and changes
        nothing; a running ``sync`` in another thread finishes on the still open descriptor.
        """


class FileLock(Protocol):
    """Ownership of a store directory."""

    def release(self) -> None:
        """Release the lock; releasing again does nothing. The file stays, as with Java."""


class FileSystem(Protocol):
    """Everything the store needs from an operating system."""

    def create_file(self, path: Path, size: int) -> FileHandle:
        """Create a file of ``size`` bytes, all hole; it must not exist.

        Crash: no file, or one of length 0 or ``size``. Sync the file, then its directory, before
        another file depends on it: a short file that is not the last one stops the next start.
        """

    def open_file(self, path: Path, *, writable: bool = True) -> FileHandle:
        """Open an existing file of any length."""

    def read_file(self, path: Path, *, size_max: int = READ_FILE_SIZE_MAX) -> bytes:
        """The whole content of a small file; more than ``size_max`` is a StoreFileError."""

    def write_file(self, path: Path, content: bytes) -> None:
        """Create or overwrite a small file and sync it. Crash: old, new, or a mixture."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename within one directory, replacing ``target``. Crash: before or after, not between.

        Power loss may undo it until the directory is synced.
        """

    def remove(self, path: Path) -> None:
        """Remove a file. Open handles stay usable. Power loss may undo it until synced."""

    def truncate(self, path: Path, size: int) -> None:
        """Cut or extend (by a hole) an unmapped file. Crash: old or new length, until synced."""

    def exists(self, path: Path) -> bool:
        """Whether the name exists."""

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Entries sorted by name."""

    def create_directory(self, path: Path) -> None:
        """Create one directory in an existing one; it must not exist."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in this directory durable (not the content of the files)."""

    def disk_usage(self, path: Path) -> DiskUsage:
        """Space of the file system that holds ``path``."""

    def memory_size(self) -> int:
        """Bytes of physical memory, to estimate which part of the log is cached."""
        return MEMORY_SIZE_UNKNOWN

    def lock(self, path: Path) -> FileLock:
        """Lock the store directory by its file ``lock``, or raise StoreLockedError.

        Takes the exclusive POSIX lock on byte range [0, 1), as a Java broker does, and then writes
        ``lock`` into the file. POSIX locks belong to the process and end when it closes *any*
        descriptor of the file: nothing else in the process may open it meanwhile.
        """

    def is_locked(self, path: Path) -> bool:
        """Whether a process owns the store directory of this ``lock``; changes nothing."""
        return False

    def make_directories(self, path: Path, *, durable: bool = False) -> None:
        """Create ``path`` and its missing parents; ``durable`` syncs each parent touched.

        Several threads may create the same directories at once.

        Crash: some of the directories, the last of them perhaps not durable. So the parent of the
        last one that exists is synced as well; an error there that shows that another user owns it
        is ignored.
        """
        wanted = [path, *path.parents]
        existing = next(i for i, name in enumerate(wanted) if self.exists(name))
        if durable:
            try:
                self.sync_directory(wanted[existing].parent)
            except StoreFileError as error:
                if error.errno not in _NOT_OURS_TO_SYNC:
                    raise
        for directory in reversed(wanted[:existing]):
            with contextlib.suppress(StoreFileExistsError):  # another thread was faster
                self.create_directory(directory)
            if durable:
                self.sync_directory(directory.parent)

    def write_atomic(self, path: Path, content: bytes, *, backup: bool = True) -> None:
        """Replace a small file so that a complete version exists at every moment.

        Line by line, what a crash after it leaves (Java: MixAll.string2File, ConfigManager):

        1. new content in ``.tmp``, synced: the old file; the stray ``.tmp`` is overwritten later.
        2. old file renamed to ``.bak``: no file, but the old content in ``.bak``; so a reader that
           finds the file missing or unreadable takes ``.bak``.
        3. ``.tmp`` renamed to the file: the new file, and the old one in ``.bak``.
        4. directory synced: durable. Before that a power loss may undo 2 and 3 independently: the
           file is old, new, or missing with the old content in ``.bak``; never a mixture.
        """
        temporary = path.with_name(path.name + ".tmp")
        self.write_file(temporary, content)
        if backup and self.exists(path):
            self.rename(path, path.with_name(path.name + ".bak"))
        self.rename(temporary, path)
        self.sync_directory(path.parent)
