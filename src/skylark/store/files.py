"""File access through the operating system: the only module that opens, maps, syncs or locks files.

:class:`OsFileSystem` implements the protocols of :mod:`skylark.store.file_system`.

* A mapping is shared and covers the whole file; it is made at the first use of ``buffer``. It costs
  a second descriptor on CPython before 3.13, which keeps one in every mapping.
* ``sync`` is fdatasync on the descriptor. On Linux it covers the mapped writes of the file, and it
  releases the GIL for the whole call; ``mmap.flush`` does neither well. It may run in a thread
  beside a writer; bytes written meanwhile may or may not be covered.
* Calls that some systems lack are chosen once (:mod:`skylark.store.platform_calls`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from skylark.store.errors import (
    StoreFileBusyError,
    StoreFileClosedError,
    StoreFileError,
    StoreLockedError,
    StoreSyncError,
    store_file_error,
)
from skylark.store.file_system import (
    MEMORY_SIZE_UNKNOWN,
    PAGE_SIZE,
    READ_FILE_SIZE_MAX,
    Advice,
    DirectoryEntry,
    DiskUsage,
    FileHandle,
    FileLock,
    FileSystem,
)
from skylark.store.platform_calls import ZERO_CHUNK, Platform, write_fully

logger = logging.getLogger(__name__)

LOCK_TEXT = b"lock"


@contextlib.contextmanager
def _translated(
    action: str, path: Path, kind: type[StoreFileError] | None = None
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise store_file_error(action, path, error, kind=kind) from error


class OsFile:
    """A :class:`FileHandle` over a descriptor and a shared mapping."""

    def __init__(
        self,
        path: Path,
        fd: int,
        size: int,
        *,
        writable: bool,
        platform: Platform,
        mappings: _Mappings,
    ) -> None:
        self.path = path
        self._fd = fd
        self.size = size
        self._writable = writable
        self._platform = platform
        self._mappings = mappings
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._allocated: tuple[int, int] | None = None
        self._allocate_lock = threading.Lock()  # taken before _lock, never after it
        self._lock = threading.Lock()  # guards _closed, _users, _map and _view
        self._users = 0  # calls in other threads that need the descriptor to stay open
        self._closed = False

    def __repr__(self) -> str:
        return f"<OsFile {self.path} size={self.size}{' closed' if self._closed else ''}>"

    @property
    def buffer(self) -> memoryview:
        view = self._view
        return self._map_now() if view is None else view

    @property
    def allocated_until(self) -> int:
        return 0 if self._allocated is None else self._allocated[1]

    def allocate(self, offset: int, length: int) -> None:
        self._check_range(offset, length)
        with self._allocate_lock:
            start, end = self._allocated or (offset, offset)
            wanted_start, wanted_end = min(start, offset), max(end, offset + length)
            with self._descriptor() as fd, _translated(f"allocate {length} bytes", self.path):
                if wanted_start < start:
                    self._platform.allocate(fd, wanted_start, start - wanted_start)
                if wanted_end > end:
                    self._platform.allocate(fd, end, wanted_end - end)
            self._allocated = (wanted_start, wanted_end)

    def sync(self) -> None:
        with self._descriptor() as fd, _translated("sync", self.path, StoreSyncError):
            self._platform.sync(fd)

    def descriptor(self) -> contextlib.AbstractContextManager[int] | None:
        return self._descriptor() if self._platform.sync is getattr(os, "fdatasync", 0) else None

    def mark_dirty(self, offset: int, length: int) -> None:
        self._check_range(offset, length)
        view = self.buffer
        for page in range(offset - offset % PAGE_SIZE, offset + length, PAGE_SIZE):
            position = max(page, offset)
            view[position] = view[position]

    def zero(self, offset: int, length: int) -> None:
        self._check_range(offset, length)
        with self._descriptor() as fd, _translated(f"clear {length} bytes", self.path):
            for start, end in _data_ranges(fd, offset, offset + length):
                for position in range(start, end, len(ZERO_CHUNK)):
                    count = min(len(ZERO_CHUNK), end - position)
                    write_fully(fd, ZERO_CHUNK[:count], position)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._check_range(offset, len(data))
        with self._descriptor() as fd, _translated(f"write {len(data)} bytes", self.path):
            write_fully(fd, data, offset)

    def read_into(self, offset: int, buffer: memoryview | bytearray) -> int:
        filled = 0
        with self._descriptor() as fd, _translated("read", self.path), memoryview(buffer) as view:
            while filled < len(view):
                with view[filled:] as rest:
                    count = os.preadv(fd, [rest], offset + filled)
                if count == 0:
                    break
                filled += count
        return filled

    def read(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.size - offset))
        with self._descriptor() as fd, _translated("read", self.path):
            content = os.pread(fd, length, offset)
            while 0 < len(content) < length:  # interrupted by a signal, or the file was truncated
                more = os.pread(fd, length - len(content), offset + len(content))
                if not more:
                    break
                content += more
        return content

    def advise(self, advice: Advice, offset: int = 0, length: int | None = None) -> bool:
        start = offset - offset % mmap.PAGESIZE
        end = self.size if length is None else offset + length
        self._check_range(offset, end - offset)
        if advice is Advice.POPULATE_WRITE:
            populate = self._platform.populate
            return populate is not None and self._pin("populate", populate, start, end - start)
        with self._mapping() as mapping:
            try:
                mapping.madvise(getattr(mmap, advice.value), start, end - start)
            except (AttributeError, OSError) as error:
                logger.debug("%s: the kernel refused %s: %s", self.path, advice.value, error)
                return False
        return True

    def lock_memory(self, offset: int, length: int) -> bool:
        return self._pin("mlock", self._platform.lock_memory, offset, length)

    def unlock_memory(self, offset: int, length: int) -> bool:
        return self._pin("munlock", self._platform.unlock_memory, offset, length)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._map is not None:
                self._unmap(self._map)
            self._closed = True
            if self._users == 0:
                os.close(self._fd)

    def _pin(self, name: str, call: Callable[[int, int], None], offset: int, length: int) -> bool:
        self._check_range(offset, length)
        if not self._writable:
            return False  # ctypes takes addresses of writable buffers only
        with self._mapping() as mapping:
            start = offset - offset % mmap.PAGESIZE
            anchor = ctypes.c_char.from_buffer(mapping)
            try:
                call(ctypes.addressof(anchor) + start, offset + length - start)
            except OSError as error:
                logger.debug(
                    "%s: the kernel refused %s of %s bytes: %s", self.path, name, length, error
                )
                return False
            finally:
                del anchor  # it counts as a view
        return True

    def _check_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError(
                f"{self.path}: range {offset}+{length} is not within {self.size} bytes"
            )

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        """The descriptor, kept open for the block even if another thread closes the handle."""
        with self._lock:
            self._check_open()
            self._users += 1
        try:
            yield self._fd
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    os.close(self._fd)

    @contextlib.contextmanager
    def _mapping(self) -> Iterator[mmap.mmap]:
        """The mapping, pinned for the block: ``close`` in another thread finds the file busy."""
        view = self.buffer[:0]
        try:
            mapping = view.obj
            assert isinstance(mapping, mmap.mmap)
            yield mapping
        finally:
            view.release()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFileClosedError("the file was closed", path=self.path)

    def _map_now(self) -> memoryview:
        with self._lock:
            self._check_open()
            if self._view is not None:
                return self._view
            if self.size == 0:
                raise StoreFileError("a file of length 0 cannot be mapped", path=self.path)
            access = mmap.ACCESS_WRITE if self._writable else mmap.ACCESS_READ
            with _translated("map", self.path):
                if sys.version_info >= (3, 13):
                    self._map = mmap.mmap(self._fd, self.size, access=access, trackfd=False)
                else:
                    self._map = mmap.mmap(self._fd, self.size, access=access)
                self._mappings.add(self._fd)
            self._view = memoryview(self._map)
            return self._view

    def _unmap(self, mapping: mmap.mmap) -> None:
        try:
            if self._view is not None:
                self._view.release()
            mapping.close()
        except BufferError as error:
            # slices of the released view are in use, so the mapping stays and needs a new view
            self._view = memoryview(mapping)
            reason = "memory views of the file are still in use"
            raise StoreFileBusyError(reason, path=self.path) from error
        self._mappings.discard(self._fd)
        self._map = self._view = None


class _Mappings:
    """Which files are mapped, by device and inode: truncating one could cause a SIGBUS."""

    def __init__(self) -> None:
        self._count: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()

    def add(self, fd: int) -> None:
        with self._lock:
            self._count[_identity(os.fstat(fd))] += 1

    def discard(self, fd: int) -> None:
        with self._lock:
            identity = _identity(os.fstat(fd))
            self._count[identity] -= 1
            if self._count[identity] == 0:
                del self._count[identity]

    def refuse(self, path: Path, status: os.stat_result) -> None:
        """Raise if the file is mapped by a handle that shares this table."""
        if _identity(status) in self._count:
            raise StoreFileBusyError("the file is mapped", path=path)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of ``[start, end)`` that are not holes; all of it without SEEK_DATA."""
    if not hasattr(os, "SEEK_DATA"):
        yield start, end
        return
    while start < end:
        try:
            data = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole up to the end of file
                return
            raise
        if data >= end:
            return
        start = min(end, os.lseek(fd, data, os.SEEK_HOLE))
        yield data, start


class OsFileLock:
    """A POSIX record lock, and a table of the locks that this process holds."""

    # POSIX allows a process to lock twice, so held locks are recorded: by the directory's
    # device and inode and the file's name, which symbolic links or a deleted file do not change.
    _held: ClassVar[set[tuple[int, int, str]]] = set()
    _guard = threading.Lock()

    def __init__(self, path: Path) -> None:
        refusal = "use another storePathRootDir or stop the other broker"
        with self._guard, _translated("lock", path):
            self._key = (*_identity(path.parent.stat()), path.name)
            if self._key in self._held:
                raise StoreLockedError("this process has the store open", path=path, hint=refusal)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.ftruncate(fd, len(LOCK_TEXT))
                write_fully(fd, LOCK_TEXT, 0)
                os.fsync(fd)
            except OSError as error:
                os.close(fd)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise StoreLockedError(
                    "another process has the store open", path=path, errno=error.errno, hint=refusal
                ) from error
            self._held.add(self._key)
        self._fd: int | None = fd

    @classmethod
    def is_held(cls, path: Path) -> bool:
        """Whether this process or another one has the lock.

        The test itself takes a shared lock for a moment.
        """
        with cls._guard, _translated("test the lock", path):
            try:
                if (*_identity(path.parent.stat()), path.name) in cls._held:
                    return True  # closing another descriptor of the file would release that lock
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
            try:
                fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                return True
            finally:
                os.close(fd)
        return False

    def release(self) -> None:
        with self._guard:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
                self._held.discard(self._key)


class OsFileSystem(FileSystem):
    """The operating system's files."""

    def __init__(self, platform: Platform | None = None) -> None:
        self._platform = platform or Platform.detect()
        self._mappings = _Mappings()

    def create_file(self, path: Path, size: int) -> FileHandle:
        with _translated(f"create a file of {size} bytes", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                os.ftruncate(fd, size)
            except OSError:
                os.close(fd)
                path.unlink()
                raise
        return self._handle(path, fd, size, writable=True)

    def open_file(self, path: Path, *, writable: bool = True) -> FileHandle:
        with _translated("open", path):
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            size = os.fstat(fd).st_size
        return self._handle(path, fd, size, writable=writable)

    def read_file(self, path: Path, *, size_max: int = READ_FILE_SIZE_MAX) -> bytes:
        with _translated("read", path), path.open("rb") as file:
            content = file.read(size_max + 1)
        if len(content) > size_max:
            raise StoreFileError(f"longer than the limit of {size_max} bytes", path=path)
        return content

    def write_file(self, path: Path, content: bytes) -> None:
        with _translated(f"write {len(content)} bytes", path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._mappings.refuse(path, os.fstat(fd))
                os.ftruncate(fd, 0)
                write_fully(fd, content, 0)
                with _translated("sync", path, StoreSyncError):
                    self._platform.sync(fd)
            finally:
                os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        if source.parent != target.parent:
            raise ValueError(f"{source} and {target} are not in one directory")
        with _translated(f"rename to {target.name}", source):
            source.replace(target)

    def remove(self, path: Path) -> None:
        with _translated("remove", path):
            path.unlink()

    def truncate(self, path: Path, size: int) -> None:
        with _translated(f"truncate to {size} bytes", path):
            self._mappings.refuse(path, path.stat())
            os.truncate(path, size)

    def exists(self, path: Path) -> bool:
        with _translated("look up", path):
            return path.exists()

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        with _translated("list", path), os.scandir(path) as entries:
            found = []
            for entry in entries:
                status = entry.stat()
                is_directory = stat.S_ISDIR(status.st_mode)
                size = 0 if is_directory else status.st_size
                found.append(DirectoryEntry(entry.name, is_directory, size))
        return sorted(found)

    def create_directory(self, path: Path) -> None:
        with _translated("create the directory", path):
            path.mkdir()

    def remove_directory(self, path: Path) -> None:
        with _translated("remove the directory", path):
            path.rmdir()

    def sync_directory(self, path: Path) -> None:
        with _translated("sync the directory", path, StoreSyncError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def disk_usage(self, path: Path) -> DiskUsage:
        with _translated("ask for free space", path):
            status = os.statvfs(path)
        unit = status.f_frsize
        return DiskUsage(status.f_blocks * unit, status.f_bfree * unit, status.f_bavail * unit)

    def memory_size(self) -> int:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):
            return MEMORY_SIZE_UNKNOWN

    def lock(self, path: Path) -> FileLock:
        return OsFileLock(path)

    def is_locked(self, path: Path) -> bool:
        return OsFileLock.is_held(path)

    def _handle(self, path: Path, fd: int, size: int, *, writable: bool) -> OsFile:
        return OsFile(
            path, fd, size, writable=writable, platform=self._platform, mappings=self._mappings
        )
