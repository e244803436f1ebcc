"""What the store knows about itself across restarts: the checkpoint, and whether it ended well.

**checkpoint**: 4096 bytes, six longs at the start (layout in :mod:`skylark.wire.layout`), the rest
zero. Recovery after a crash scans the log from the last file whose first record is older than
:attr:`Checkpoint.recovery_timestamp`; so a time moves only when everything older is on disk, and a
missing or unreadable checkpoint means zeros: a scan of everything, which is slow and right.

The 48 bytes lie in one sector and are overwritten in place: a crash or a power loss leaves the old
or the new ones. A file of another length is replaced whole; a crash may leave any part of that one,
and what makes no sense is read as zeros.

**abort**: a file that exists while the store is open, with the process id as text. Found at start,
it says that the last run did not end in order. Its name is durable before the first append and
goes after the last flush; a power loss that brings it back costs a scan. Java may leave an
``abort.bak``, which means nothing.

Answers to Java's ``StoreCheckpoint`` and ``DefaultMessageStore.createTempFile``.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Final

from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.wire.layout import CHECKPOINT, CHECKPOINT_FILE_SIZE

logger = logging.getLogger(__name__)

FILE_NAME: Final = "checkpoint"
ABORT_NAME: Final = "abort"
STORE_TIMESTAMP_MAX: Final = 1 << 43  # in the year 2248: what is beyond is no store time
TIMESTAMP_MARGIN_MS: Final = 3_000  # as Java: clocks of records and of flushes differ a little


class Checkpoint:
    """The six values, changed in memory and written by :meth:`save`; zeros until loaded."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self.path = root / FILE_NAME
        self._file_system = files
        self.physic_msg_timestamp = 0  # store time of the last message on disk
        self.logics_msg_timestamp = 0  # store time of the last message whose queue entry is on disk
        self.index_msg_timestamp = 0  # store time of the last message in a full index file
        self.master_flushed_offset = 0
        self.confirm_offset = 0
        self.logics_physical_offset = 0  # log offset of the last dispatched message

    def load(self, *, is_new: bool = False) -> None:
        """Read the file; whatever is wrong with it is logged, and the values are zeros.

        ``is_new``: there is no log yet, and so nobody misses it.
        """
        try:
            content = self._file_system.read_file(self.path)
            values = CHECKPOINT.unpack_from(content)
        except StoreFileMissingError:
            if not is_new:
                logger.info("%s does not exist: a recovery would scan the whole log", self.path)
            return
        except StoreFileError as error:
            logger.warning("no checkpoint, a recovery would scan the whole log: %s", error)
            return
        except struct.error:
            logger.warning("%s is too short, and is taken as zeros", self.path)
            return
        times = values[:3]
        if min(values) < 0 or max(times) > STORE_TIMESTAMP_MAX:
            logger.warning("%s holds no times and offsets, and is taken as zeros", self.path)
            return
        (
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
            self.logics_physical_offset,
        ) = values

    @property
    def recovery_timestamp(self) -> int:
        """Messages stored before this are on disk, and so are their queue entries."""
        both = min(self.physic_msg_timestamp, self.logics_msg_timestamp)
        return max(0, both - TIMESTAMP_MARGIN_MS)

    @property
    def index_recovery_timestamp(self) -> int:
        """The same for the index, too (``messageIndexSafe``)."""
        return min(self.recovery_timestamp, self.index_msg_timestamp)

    def adopt(self, other: Checkpoint) -> None:
        """Take over the values of another one, which is on disk."""
        self.physic_msg_timestamp = other.physic_msg_timestamp
        self.logics_msg_timestamp = other.logics_msg_timestamp
        self.index_msg_timestamp = other.index_msg_timestamp
        self.master_flushed_offset = other.master_flushed_offset
        self.confirm_offset = other.confirm_offset
        self.logics_physical_offset = other.logics_physical_offset

    def pack(self) -> bytes:
        """The values as bytes, for :meth:`write` in another thread."""
        return CHECKPOINT.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
            self.logics_physical_offset,
        )

    def write(self, packed: bytes) -> None:
        """Put packed values on disk; in any thread, one at a time."""
        try:
            handle = self._file_system.open_file(self.path)
        except StoreFileMissingError:
            self._replace(packed)
            return
        try:
            if handle.size == CHECKPOINT_FILE_SIZE:
                handle.write(0, packed)
                handle.sync()
        finally:
            handle.close()
        if handle.size != CHECKPOINT_FILE_SIZE:
            self._replace(packed)

    def save(self) -> None:
        """Put the current values on disk, here and now."""
        self.write(self.pack())

    def _replace(self, packed: bytes) -> None:
        self._file_system.write_file(self.path, packed.ljust(CHECKPOINT_FILE_SIZE, b"\0"))
        self._file_system.sync_directory(self.path.parent)


class AbortFile:
    """The mark of an open store."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self.path = root / ABORT_NAME
        self._file_system = files

    def exists(self) -> bool:
        """Whether the store was not closed in order."""
        return self._file_system.exists(self.path)

    def create(self, process_id: int) -> None:
        """Mark the store as open, durably; before anything is written to it."""
        self._file_system.write_file(self.path, str(process_id).encode())
        self._file_system.sync_directory(self.path.parent)

    def remove(self) -> None:
        """Mark the store as closed; after everything is on disk."""
        try:
            self._file_system.remove(self.path)
        except StoreFileMissingError:
            # An Apache broker that finds the store locked removes the mark before it gives up.
            logger.warning("%s was removed by somebody else", self.path)
        self._file_system.sync_directory(self.path.parent)
