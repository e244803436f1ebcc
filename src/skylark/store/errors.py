"""Errors of the store that name a file: one class per thing a caller can do about it.

``OSError`` never leaves :mod:`skylark.store.files`: it becomes one of these, with the path, the
``errno`` and, where a person can help, a sentence that says how.

=========================  =====================================================================
StoreFullError             no space: sends fail, reads go on, the same call works once space is back
StoreSyncError             unsynced bytes may be lost *although a later sync succeeds*: see ``sync``
StoreFileMissingError      no such file or directory
StoreFileExistsError       the file to be created is there already
StoreFileBusyError         views over the mapping are still held: try again when they are released
StoreFileClosedError       the handle was closed, or its file system has gone
StoreLockedError           another store owns the directory
StoreFileError             anything else (permissions, device errors, too many open files)
=========================  =====================================================================
"""

from __future__ import annotations

import errno as errno_codes
from pathlib import Path
from typing import ClassVar

from skylark.core.errors import StoreError


class StoreFileError(StoreError):
    """The operating system refused an operation on a file of the store."""

    def __init__(
        self, message: str, *, path: Path, errno: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path
        self.errno = errno


class StoreFullError(StoreFileError):
    """The disk or the quota has no room for blocks that must exist before they are written."""

    retriable: ClassVar[bool] = True


class StoreSyncError(StoreFileError):
    """A sync failed: what was written since the last good one may never reach the disk."""


class StoreFileMissingError(StoreFileError):
    """The file or directory does not exist."""


class StoreFileExistsError(StoreFileError):
    """A file of this name exists already."""


class StoreFileBusyError(StoreFileError):
    """Somebody still holds a view over the mapped bytes."""

    retriable: ClassVar[bool] = True


class StoreFileClosedError(StoreFileError):
    """The handle is closed."""


class StoreLockedError(StoreFileError):
    """The store directory belongs to another store, in this process or another one."""


_CLASS_BY_ERRNO: dict[int, type[StoreFileError]] = {
    errno_codes.ENOSPC: StoreFullError,
    errno_codes.EDQUOT: StoreFullError,
    errno_codes.EFBIG: StoreFullError,
    errno_codes.ENOENT: StoreFileMissingError,
    errno_codes.EEXIST: StoreFileExistsError,
}

_HINT_BY_ERRNO = {
    errno_codes.ENOSPC: "free space on this file system or lower fileReservedTime",
    errno_codes.EDQUOT: "raise the disk quota of this user",
    errno_codes.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno_codes.EMFILE: "raise the limit of open files (ulimit -n)",
    errno_codes.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno_codes.ENOMEM: "raise vm.max_map_count or free memory",
    errno_codes.EACCES: "give this user read and write permission",
    errno_codes.EPERM: "give this user read and write permission",
    errno_codes.EROFS: "mount the file system writable",
}


def store_file_error(
    action: str, path: Path, error: OSError, *, kind: type[StoreFileError] | None = None
) -> StoreFileError:
    """Translate ``error``; ``action`` is what was tried, as in "allocate 64 bytes"."""
    number = error.errno
    if number is None:
        return (kind or StoreFileError)(f"cannot {action}: {error}", path=path)
    cause = f"{error.strerror} ({errno_codes.errorcode.get(number, str(number))})"
    return (kind or _CLASS_BY_ERRNO.get(number, StoreFileError))(
        f"cannot {action}: {cause}", path=path, errno=number, hint=_HINT_BY_ERRNO.get(number)
    )
