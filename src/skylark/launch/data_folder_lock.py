"""Who runs on a data folder: one ``skylark up`` at a time, and how another process finds it.

``DATA/up.lock`` is locked (POSIX record lock) for as long as the supervisor lives, and says in JSON
who that is::

    {"pid": 4711, "detached": true}

The lock is the truth, the text a note: a file that nobody has locked means nothing, whatever it
says, so a crash leaves nothing behind that has to be cleaned up. Nobody removes the file, for a
lock on a removed file would exclude no one.

**Who may be signalled.** A process number alone proves nothing, since numbers are used again. On
Linux the kernel says which process holds the lock; only if the note names the same one is it our
supervisor, and it is signalled through a descriptor of the process that was opened before the lock
was looked at for the last time: no other process can be hit.

**Whose folder it is.** A folder that is not empty and has nothing of ours in it is left alone:
somebody gave the wrong path.
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
_UNNAMED: Final = -1  # holder of a lock, where the system does not say which process
_NOT_OURS: Final = 0  # holder that is none of our supervisors
#: Linux: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK: Final = struct.Struct("@hhqqi")
_OURS: Final = re.compile(r"namesrv|broker-[a-z](-\d+)?|up\.lock|up\.log(\.1)?")
#: What is in a folder that is otherwise empty: hidden files, and that of a file system's own.
_IGNORED: Final = re.compile(r"\..*|lost\+found")
#: What a store has at its top, ours or Java's.
_STORE: Final = frozenset({"commitlog", "consumequeue", "checkpoint"})


class DataFolderError(SkylarkError):
    """The folder cannot be made or written to."""


class DataInUseError(SkylarkError):
    """Another ``skylark up`` runs on the folder."""


class StrangeHolderError(SkylarkError):
    """The lock is held by a process that is not known to be a supervisor of ours."""


class Note(msgspec.Struct, frozen=True):
    """What the file says."""

    pid: int
    detached: bool = False


def check_folder(data: Path) -> None:
    """Raise ConfigError for a folder that holds something else than our data."""
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
            hint="run it by skylark broker with storePathRootDir, or choose another folder",
        )
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise ConfigError(
        f"{data} belongs to something else: it holds {shown}",
        hint="choose a new or an empty folder",
    )


def made(data: Path) -> None:
    """Make the folder if there is none; raises ConfigError, DataFolderError."""
    try:
        check_folder(data)
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(data, error) from error


@contextmanager
def claimed(data: Path, *, detached: bool = False) -> Iterator[None]:
    """Make the folder if needed and hold it; raises like :func:`made`, and DataInUseError."""
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
            f"skylark up runs on {data} already{who}",
            hint=f"end it by skylark down --data {data}, or choose another folder",
        ) from error


def _unusable(data: Path, error: OSError) -> DataFolderError:
    return DataFolderError(f"data cannot be kept in {data}: {os.strerror(error.errno or 0)}")


class Supervisor:
    """A ``skylark up`` that runs; may be asked to end."""

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
        """The one that runs on a folder; raises StrangeHolderError, OSError."""
        note = _holder(data)
        if note is None:
            return None
        found = cls(data, note)
        if _holder(data) != note:  # it ended meanwhile, and its number may be somebody else's
            found.close()
            return None
        return found

    def terminate(self) -> None:
        """Ask it to end in order; raises PermissionError for another user's."""
        with suppress(ProcessLookupError):
            if sys.platform == "linux":
                if self._process is not None:
                    signal.pidfd_send_signal(self._process, signal.SIGTERM)
            else:
                os.kill(self.pid, signal.SIGTERM)

    @property
    def running(self) -> bool:
        """Whether it is still there."""
        if self._process is not None:
            return not select.select([self._process], [], [], 0)[0]
        return _holder(self.data) is not None

    def close(self) -> None:
        if self._process is not None:
            os.close(self._process)
            self._process = None


def _holder(data: Path) -> Note | None:
    """What the holder of the lock says of itself; None if nobody holds it."""
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
            f"{path} is locked, but by no skylark up that can be ended from here",
            hint="end it where it was started",
        )
    return note


def _locked_by(fd: int) -> int | None:
    """The process that holds the lock, _UNNAMED where the system does not say; None: nobody."""
    if sys.platform != "linux":
        return _locked_by_someone(fd)
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
    if kind == fcntl.F_UNLCK:
        return None
    # Linux says -1 for a lock that belongs to an open file: ours belong to processes.
    return int(pid) if pid > 0 else _NOT_OURS


def _locked_by_someone(fd: int) -> int | None:
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
