"""Errors of the store that name a file: one class for each way a caller can react.

``OSError`` never leaves :mod:`skylark.store.files`: it becomes one of these, with the path, the
``errno`` and, where an operator can help, a hint.

=========================  =====================================================================
StoreFullError             no space: sends fail, reads continue, a retry works once space is back
StoreSyncError             unsynced bytes may be lost *although a later sync succeeds*: see ``sync``
StoreFileMissingError      no such file or directory
StoreFileExistsError       the file to be created already exists
StoreFileBusyError         memory views of the mapping are still in use: retry after their release
StoreFileClosedError       the handle was closed, or its file system is gone
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
    """The disk or the quota has no room for blocks that must be allocated before a write."""

    retriable: ClassVar[bool] = True


class StoreSyncError(StoreFileError):
    """A sync failed: what was written since the last successful one may never reach the disk."""


class StoreFileMissingError(StoreFileError):
    """The file or directory does not exist."""


class StoreFileExistsError(StoreFileError):
    """A file with this name already exists."""


class StoreFileBusyError(StoreFileError):
    """A memory view of the mapped bytes is still in use."""

    retriable: ClassVar[bool] = True


class StoreFileClosedError(StoreFileError):
    """The handle is closed."""


class StoreLockedError(StoreFileError):
    """Another store, in this process or another one, owns the directory."""


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
    """Translate ``error``; ``action`` is the operation that failed, such as "allocate 64 bytes"."""
    number = error.errno
    if number is None:
        return (kind or StoreFileError)(f"cannot {action}: {error}", path=path)
    cause = f"{error.strerror} ({errno_codes.errorcode.get(number, str(number))})"
    return (kind or _CLASS_BY_ERRNO.get(number, StoreFileError))(
        f"cannot {action}: {cause}", path=path, errno=number, hint=_HINT_BY_ERRNO.get(number)
    )
