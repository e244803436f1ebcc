"""The checkpoint (how far the files are on disk) and the abort file (whether the store was closed).

**checkpoint**: 4096 bytes, six longs at the start (layout in :mod:`skylark.wire.layout`), three
values of Skylark, the rest zero. Recovery after a crash scans the log from the last file whose
first record is older than :attr:`Checkpoint.recovery_timestamp`. So a time advances only when
everything older is on disk. A missing or unreadable checkpoint counts as zeros: recovery then scans
the whole log, which is slow and correct.

A Java broker that takes over a store after a crash deletes every index file that ends later than
``index_msg_timestamp``, and makes index entries again only from where it reads the log: from the
file that holds ``logics_physical_offset`` (4.x: from ``logics_msg_timestamp``). An index file that
it keeps must be closed: the header of a file that still gets entries is older than its hash slots.
So Java must not read of more than the last closed index file holds. Skylark repairs the newest
index file instead, and needs to know how far the queues are on disk::

    16      index_msg_timestamp, of the last closed index file
     8, 40  logics_msg_timestamp, logics_physical_offset, not behind that file
    48, 56  the same two, how far the queues really are on disk
    64      CRC-32 of the 64 bytes before

Java keeps bytes 48 to 68 and does not update the checksum: then the first 48 bytes count alone.

The 68 bytes are in one sector and are overwritten in place: a crash or a power loss leaves the old
or the new values. A file of another length is replaced whole; a crash may leave any part of it, and
implausible values are read as zeros.

**abort**: a file that exists while the store is open, with the process id as text. If a start finds
it, the last run was not closed in order. Its name is durable before the first append and is removed
after the last flush; a power loss that restores it costs only a scan. Java may leave an
``abort.bak``, which has no meaning.

Counterpart of Java's ``StoreCheckpoint`` and ``DefaultMessageStore.createTempFile``.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from zlib import crc32

from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.wire.layout import CHECKPOINT, CHECKPOINT_FILE_SIZE

logger = logging.getLogger(__name__)

FILE_NAME: Final = "checkpoint"
ABORT_NAME: Final = "abort"
STORE_TIMESTAMP_MAX: Final = 1 << 43  # year 2248: later values are not store times
_FIELDS: Final = (  # in the order of the file; the last is not in it
    "physic_msg_timestamp",
    "logics_msg_timestamp",
    "index_msg_timestamp",
    "master_flushed_offset",
    "confirm_offset",
    "logics_physical_offset",
    "index_offset",
)
_QUEUES: Final = struct.Struct(">qq")  # how far the queues are on disk: store time, log offset
_CHECKSUM: Final = struct.Struct(">I")
_SUMMED_SIZE: Final = CHECKPOINT.size + _QUEUES.size
TIMESTAMP_MARGIN_MS: Final = 3_000  # as in Java: clocks of records and flushes differ a little


def overwrite(files: FileSystem, path: Path, content: bytes, file_size: int) -> None:
    """Write the beginning of a file of fixed size in place, and sync it.

    A file that is missing or has another length is replaced, the rest of it zero.
    """
    with (
        contextlib.suppress(StoreFileMissingError),
        contextlib.closing(files.open_file(path)) as handle,
    ):
        if handle.size == file_size:
            handle.write(0, content)
            handle.sync()
            return
    files.write_file(path, content.ljust(file_size, b"\0"))
    files.sync_directory(path.parent)


class Checkpoint:
    """The values, changed in memory and written by :meth:`save`; zeros until loaded."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self.path = root / FILE_NAME
        self._file_system = files
        self.physic_msg_timestamp = 0  # store time of the last message on disk
        self.logics_msg_timestamp = 0  # store time of the last message whose queue entry is on disk
        self.index_msg_timestamp = 0  # store time of the last message in a closed index file
        self.master_flushed_offset = 0
        self.confirm_offset = 0
        self.logics_physical_offset = 0  # log offset of the last dispatched message
        #: Log offset of the last message in a closed index file; None: there is no index.
        self.index_offset: int | None = None

    def load(self, *, is_new: bool = False) -> None:
        """Read the file; if it is missing or unusable, log that and keep zeros.

        ``is_new``: the store has no log yet, so a missing file is not logged.
        """
        try:
            content = self._file_system.read_file(self.path)
            values = CHECKPOINT.unpack_from(content)
        except StoreFileMissingError:
            if not is_new:
                logger.info("%s does not exist: a recovery would scan the whole log", self.path)
            return
        except StoreFileError as error:
            logger.warning(
                "the checkpoint is unreadable, a recovery would scan the whole log: %s", error
            )
            return
        except struct.error:
            logger.warning("%s is too short and counts as zeros", self.path)
            return
        if min(values) < 0 or max(values[:3]) > STORE_TIMESTAMP_MAX:
            logger.warning("%s holds implausible values and counts as zeros", self.path)
            return
        self._set((*values, None))
        summed = content[:_SUMMED_SIZE]
        if content[_SUMMED_SIZE:].startswith(_CHECKSUM.pack(crc32(summed))):
            self.index_offset = self.logics_physical_offset
            self.logics_msg_timestamp, self.logics_physical_offset = _QUEUES.unpack_from(
                summed, CHECKPOINT.size
            )

    def _set(self, values: Iterable[int | None]) -> None:
        for name, value in zip(_FIELDS, values, strict=True):
            setattr(self, name, value)

    @property
    def recovery_timestamp(self) -> int:
        """Messages stored before this are on disk, and so are their queue entries."""
        both = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(0, both - TIMESTAMP_MARGIN_MS)

    @property
    def index_recovery_timestamp(self) -> int:
        """Like :attr:`recovery_timestamp`, for index entries as well (``messageIndexSafe``)."""
        return min(self.recovery_timestamp, self.index_msg_timestamp)

    def adopt(self, other: Checkpoint) -> None:
        """Take over the values of another checkpoint."""
        self._set(getattr(other, name) for name in _FIELDS)

    def pack(self) -> bytes:
        """The values as bytes, for :meth:`write` in another thread."""
        *values, queues_offset, index_offset = [getattr(self, name) for name in _FIELDS]
        if index_offset is None:
            return CHECKPOINT.pack(*values, queues_offset) + bytes(_QUEUES.size + _CHECKSUM.size)
        queues_timestamp, index_timestamp = values[1:3]
        values[1] = min(queues_timestamp, index_timestamp)
        summed = CHECKPOINT.pack(*values, min(queues_offset, index_offset))
        summed += _QUEUES.pack(queues_timestamp, queues_offset)
        return summed + _CHECKSUM.pack(crc32(summed))

    def write(self, packed: bytes) -> None:
        """Write packed values to disk; in any thread, one at a time."""
        overwrite(self._file_system, self.path, packed, CHECKPOINT_FILE_SIZE)

    def save(self) -> None:
        """Write the current values to disk in this thread."""
        self.write(self.pack())


class AbortFile:
    """The file that marks a store as open."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self.path = root / ABORT_NAME
        self._file_system = files

    def exists(self) -> bool:
        """Whether the store was not closed in order."""
        return self._file_system.exists(self.path)

    def create(self, process_id: int) -> None:
        """Mark the store as open, durably; before the first write."""
        self._file_system.write_file(self.path, str(process_id).encode())
        self._file_system.sync_directory(self.path.parent)

    def remove(self) -> None:
        """Mark the store as closed; after everything is on disk."""
        try:
            self._file_system.remove(self.path)
        except StoreFileMissingError:
            # An Apache broker that finds the store locked removes the file before it stops.
            logger.warning("another process removed %s", self.path)
        self._file_system.sync_directory(self.path.parent)
