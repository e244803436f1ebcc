"""The lock of a data folder: allows one ``skylark up`` at a time, and lets others find it.

The supervisor holds a POSIX record lock on ``DATA/up.lock`` as long as it lives. The file contains
JSON::

    {"pid": 4711, "detached": true}

Only the lock counts: the content of a file that is not locked is ignored, so a crash leaves nothing
to clean up. The file is never deleted, because a lock on a deleted file would not exclude others.

**Signals.** Process ids are reused, so the id alone does not identify the supervisor. On Linux the
kernel reports which process holds the lock; it is our supervisor only if the file has the same id.
The signal goes through a pidfd that was opened before the last check of the lock, so it cannot
reach another process.

**Foreign folders.** A folder that is not empty and contains nothing of ours is refused: the path is
probably wrong.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from skylark.core.errors import ConfigError, SkylarkError

LOCK_NAME: Final = "up.lock"
LOG_NAME: Final = "up.log"
_NOTE_SIZE_MAX: Final = 1_000
_UNNAMED: Final = -1  # a lock whose holder the system does not report
_NOT_OURS: Final = 0  # a lock whose holder is not a supervisor
#: Linux: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK: Final = struct.Struct("@hhqqi")
_OURS: Final = re.compile(r"namesrv|broker-[a-z](-\d+)?|up\.lock|up\.log(\.1)?")
#: Entries that an empty folder may have besides hidden files: made by the file system.
_IGNORED: Final = re.compile(r"\..*|lost\+found")
#: Entries of a store directory, ours or Java's.
_STORE: Final = frozenset({"commitlog", "consumequeue", "checkpoint"})


class DataFolderError(SkylarkError):
    """The folder cannot be created or written to."""


class DataInUseError(SkylarkError):
    """Another ``skylark up`` runs on the folder."""


class StrangeHolderError(SkylarkError):
    """A process that is not known to be a supervisor holds the lock."""


class Note(msgspec.Struct, frozen=True):
    """The content of the lock file."""

    pid: int
    detached: bool = False


def check_folder(data: Path) -> None:
    """Raise ConfigError for a folder with files that are not Skylark's."""
    try:
        names = sorted(path.name for path in data.iterdir())
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ConfigError(f"{data} is not a folder") from error
    names = [name for name in names if not _IGNORED.fullmatch(name)]
    if not names or any(_OURS.fullmatch(name) for name in names):
        return
    if _STORE & set(names):
        raise ConfigError(
            f"{data} is the store of a single broker",
            hint="use it with skylark broker and storePathRootDir, or choose another folder",
        )
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise ConfigError(
        f"{data} is not a data folder of skylark: it contains {shown}",
        hint="choose a new or an empty folder",
    )


def made(data: Path) -> None:
    """Create the folder if it does not exist; raises ConfigError, DataFolderError."""
    try:
        check_folder(data)
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(data, error) from error


@contextmanager
def claimed(data: Path, *, detached: bool = False) -> Iterator[None]:
    """Create the folder if needed and lock it; raises like :func:`made`, and DataInUseError."""
    made(data)
    fd = -1
    try:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(data / LOCK_NAME, flags, 0o644)
            _lock(fd, data)
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(Note(os.getpid(), detached)), 0)
        except OSError as error:
            raise _unusable(data, error) from error
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, data: Path) -> None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        note = _read_note(fd)
        who = f" (process {note.pid})" if note else ""
        raise DataInUseError(
            f"skylark up already runs on {data}{who}",
            hint=f"stop it with skylark down --data {data}, or choose another folder",
        ) from error


def _unusable(data: Path, error: OSError) -> DataFolderError:
    return DataFolderError(f"cannot use the data folder {data}: {os.strerror(error.errno or 0)}")


class Supervisor:
    """A running ``skylark up``, which can be stopped."""

    def __init__(self, data: Path, note: Note) -> None:
        self.data = data
        self.pid = note.pid
        self.detached = note.detached
        self._process: int | None = None
        if sys.platform == "linux":
            with suppress(ProcessLookupError):
                self._process = os.pidfd_open(note.pid)

    @classmethod
    def find(cls, data: Path) -> Self | None:
        """The supervisor of a folder; raises StrangeHolderError, OSError."""
        note = _holder(data)
        if note is None:
            return None
        found = cls(data, note)
        if _holder(data) != note:  # it has ended, and its id may be reused
            found.close()
            return None
        return found

    def terminate(self) -> None:
        """Send SIGTERM; raises PermissionError if it belongs to another user."""
        with suppress(ProcessLookupError):
            if sys.platform == "linux":
                if self._process is not None:
                    signal.pidfd_send_signal(self._process, signal.SIGTERM)
            else:
                os.kill(self.pid, signal.SIGTERM)

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        if self._process is not None:
            return not select.select([self._process], [], [], 0)[0]
        return _holder(self.data) is not None

    def close(self) -> None:
        if self._process is not None:
            os.close(self._process)
            self._process = None


def _holder(data: Path) -> Note | None:
    """The file content of the supervisor that holds the lock; None if it is not locked."""
    path = data / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        pid = _locked_by(fd)
        if pid is None:
            return None
        note = _read_note(fd)
    finally:
        os.close(fd)
    if note is None or pid not in (note.pid, _UNNAMED):
        raise StrangeHolderError(
            f"{path} is locked by a process that skylark down cannot stop",
            hint="stop it where it was started",
        )
    return note


def _locked_by(fd: int) -> int | None:
    """The process that holds the lock, _UNNAMED if the system does not report it; None: none."""
    if sys.platform != "linux":
        return _is_locked(fd)
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
    if kind == fcntl.F_UNLCK:
        return None
    # Linux reports -1 for a lock of an open file description; ours belong to processes.
    return int(pid) if pid > 0 else _NOT_OURS


def _is_locked(fd: int) -> int | None:
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return _UNNAMED
    return None


def _read_note(fd: int) -> Note | None:
    try:
        return msgspec.json.decode(os.pread(fd, _NOTE_SIZE_MAX, 0), type=Note)
    except msgspec.DecodeError:
        return None
