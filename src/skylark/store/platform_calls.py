"""System calls for files that differ between operating systems, chosen once.

:class:`Platform` selects, on the system at hand, the calls that come closest to the guarantees of
:mod:`skylark.store.file_system`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

from skylark.store.file_system import PAGE_SIZE

ZERO_CHUNK = bytes(1 << 20)
MADV_POPULATE_WRITE = 23  # Linux 5.14; the mmap module has no name for it


@dataclass(frozen=True, slots=True)
class Platform:
    """The calls that differ between systems; addresses and lengths in bytes."""

    allocate: Callable[[int, int, int], None]  # descriptor, offset, length
    sync: Callable[[int], None]  # descriptor
    lock_memory: Callable[[int, int], None]  # address, length
    unlock_memory: Callable[[int, int], None]
    populate: Callable[[int, int], None] | None = None

    @classmethod
    def detect(
        cls,
        os_module: ModuleType | SimpleNamespace = os,
        fcntl_module: ModuleType | SimpleNamespace = fcntl,
    ) -> Platform:
        """Select the calls that exist; tests pass modules that lack some.

        macOS has neither posix_fallocate nor fdatasync, and its fsync leaves data in the drive's
        cache; F_FULLFSYNC does not. Allocation there writes zeros; APFS copies on write, so a full
        disk can still fail a later write of an allocated block.
        """
        fallocate = getattr(os_module, "posix_fallocate", None)
        full_sync = getattr(fcntl_module, "F_FULLFSYNC", None)
        if full_sync is not None:
            sync = _full_sync(fcntl_module.fcntl, full_sync, os_module.fsync)
        else:
            sync = getattr(os_module, "fdatasync", os_module.fsync)
        return cls(
            allocate=_allocate_by_zeros if fallocate is None else _allocate_by(fallocate),
            sync=sync,
            lock_memory=lambda address, length: _call_libc("mlock", address, length),
            unlock_memory=lambda address, length: _call_libc("munlock", address, length),
            populate=_populate if sys.platform == "linux" else None,
        )


def _allocate_by(fallocate: Callable[[int, int, int], None]) -> Callable[[int, int, int], None]:
    def allocate(fd: int, offset: int, length: int) -> None:
        try:
            fallocate(fd, offset, length)
        except OSError as error:
            # musl does not emulate it where the file system cannot do it
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            _allocate_by_zeros(fd, offset, length)

    return allocate


def _allocate_by_zeros(fd: int, offset: int, length: int) -> None:
    """Write zeros over zeros: a page that holds a byte has its block, and keeps its bytes."""
    end = offset + length
    while offset < end:
        count = min(len(ZERO_CHUNK), end - offset)
        found = os.pread(fd, count, offset).ljust(count, b"\0")
        if found == ZERO_CHUNK[:count]:
            write_fully(fd, ZERO_CHUNK[:count], offset)
        else:
            for start in range(0, count, PAGE_SIZE):
                page = found[start : start + PAGE_SIZE]
                if not page.strip(b"\0"):
                    write_fully(fd, page, offset + start)
        offset += count


def _full_sync(
    control: Callable[[int, int], object], command: int, fsync: Callable[[int], None]
) -> Callable[[int], None]:
    def sync(fd: int) -> None:
        try:
            control(fd, command)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            fsync(fd)  # network file systems have no drive cache of ours to flush

    return sync


def _populate(address: int, length: int) -> None:
    # mmap.madvise would hold the GIL for as long as the pages take; older kernels refuse.
    _call_libc("madvise", address, length, MADV_POPULATE_WRITE)


def _call_libc(name: str, address: int, length: int, *more: int) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(ctypes.c_void_p(address), ctypes.c_size_t(length), *more) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def write_fully(fd: int, content: bytes | bytearray | memoryview, offset: int) -> None:
    """Write all bytes at a position."""
    written = 0
    with memoryview(content) as view:
        while written < len(view):
            with view[written:] as rest:
                written += os.pwrite(fd, rest, offset + written)
