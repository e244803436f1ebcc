"""One file of a log: its bytes, its write, commit and flush positions, and its leases.

::

    0            flushed        committed        wrote          prepared   allocated      size
    |== on disk ====|== in the file ==|== in the pool ==|............|----------|  (hole)  |

* ``wrote``: end of what was appended. ``committed``: end of what is in the file itself; it differs
  from ``wrote`` only with the transient pool and is maintained only then. ``flushed``: end of what
  a completed sync covers. Readers see up to :attr:`MappedFile.readable`.
* ``buffer``: where appends go, the mapping or the pooled memory. An append of ``size`` bytes is::

      end = file.wrote + size
      if end > file.prepared:
          file.prepare(end)            # StoreFullError: nothing happened
      pack_into(file.buffer, file.wrote, ...)
      file.wrote = end

  ``prepared`` is somewhat before ``allocated``, the end of the allocated blocks: reaching it starts
  the allocation of the next piece while there is still room.

A :class:`Lease` is a memory view of readable bytes. While one is out, the file is neither unmapped
nor closed; a file that leaves the log (:mod:`skylark.store.file_sequence` decides) gives no new
ones.

Files are opened at the first use and may be closed again when they are not read: a log of hundreds
of files must not need hundreds of descriptors.

Everything here runs in the owner's thread. Counterpart of Java's ``MappedFile``,
``DefaultMappedFile`` and ``ReferenceResource``; a lease is a ``SelectMappedBufferResult``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol, Self

import msgspec

from skylark.store.errors import StoreFileBusyError, StoreFileError
from skylark.store.file_system import PAGE_SIZE, FileHandle

NO_BYTES: Final = memoryview(b"")


class RangeNotReadableError(StoreFileError):
    """The range is not, or no longer, readable: never written, not committed, or deleted."""


class Space(Protocol):
    """Allocates blocks for bytes that are about to be written."""

    def prepare(self, file: MappedFile, end: int) -> None:
        """Make ``[file.wrote, end)`` writable, or raise StoreFullError and change nothing."""


class FileOwner(Protocol):
    """The log that a file belongs to, as the file uses it."""

    def open_file(self, file: MappedFile) -> FileHandle:
        """Open the file behind ``file``."""

    def file_is_idle(self) -> None:
        """Called when the last lease of a leaving file is returned."""


class Lease(msgspec.Struct, eq=False):
    """A memory view of readable bytes that keeps their file mapped until released."""

    _file: MappedFile | None
    view: memoryview

    def release(self) -> None:
        """Release the view, which must not be used afterwards. Releasing again does nothing."""
        file = self._file
        if file is None:
            return
        self._file = None
        try:
            self.view.release()
        except BufferError:
            # An array uses it directly. Closing the file then raises StoreFileBusyError, and the
            # owner closes it later.
            self.view = NO_BYTES
        file.return_lease()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MappedFile(msgspec.Struct, eq=False):
    """A file of fixed size at a fixed offset of a log.

    Made with a handle it was just created and is empty; without, it is on disk and assumed full.
    """

    path: Path
    start_offset: int
    size: int
    owner: FileOwner
    space: Space
    _handle: FileHandle | None = None
    wrote: int = 0
    committed: int = 0
    flushed: int = 0
    allocated: int = 0
    prepared: int = 0
    populated: int = 0  # end of the pages that the worker was asked to touch
    pooled: memoryview | None = None  # memory of the transient pool
    buffer: memoryview = NO_BYTES
    last_store_timestamp: int = 0  # of the newest record, where known: the age of the file
    leaving: bool = False  # retired, or its store is closing: no new leases
    leases: int = 0  # that are out
    _map: memoryview | None = None

    def __post_init__(self) -> None:
        handle = self._handle
        if handle is None:
            self.wrote = self.committed = self.flushed = self.allocated = self.size
        else:
            self.allocated = handle.allocated_until
            self.buffer = handle.buffer
        self.prepared = self.allocated

    def __repr__(self) -> str:
        return f"<MappedFile {self.path} wrote={self.wrote} of {self.size}>"

    @property
    def end_offset(self) -> int:
        """Offset in the log of the first byte after this file."""
        return self.start_offset + self.size

    @property
    def readable(self) -> int:
        """End of the bytes that readers may see."""
        return self.wrote if self.pooled is None else self.committed

    @property
    def is_open(self) -> bool:
        """Whether the file has open descriptors."""
        return self._handle is not None

    @property
    def handle(self) -> FileHandle:
        """The open file; opens it if necessary."""
        if self._handle is None:
            self._handle = self.owner.open_file(self)
        return self._handle

    # Writing

    def prepare(self, end: int) -> None:
        """Allocate blocks up to ``end``, when an append reaches :attr:`prepared`."""
        self.space.prepare(self, end)

    def use_pool(self, memory: memoryview) -> None:
        """Direct the appends of a new file to ``memory``."""
        assert self.wrote == 0
        self.pooled = self.buffer = memory

    def leave_pool(self) -> memoryview | None:
        """Direct appends to the mapping again; returns the memory, if there was any.

        Bytes that were not committed are lost.
        """
        memory, self.pooled = self.pooled, None
        if memory is not None:
            self.wrote = self.committed
            self.buffer = self.handle.buffer
        return memory

    def set_end(self, position: int) -> None:
        """Set all positions to ``position``, the end found by recovery or a truncation."""
        self.wrote = self.committed = self.flushed = position
        self.prepared = self.allocated = position  # blocks beyond are unknown
        self.buffer = self.handle.buffer

    def is_due(self, done: int, end: int, least_pages: int) -> bool:
        """Java's rule for flush and commit from ``done`` to ``end``: enough pages, or a full file.

        With ``least_pages`` 0 any byte is enough.
        """
        if end <= done:
            return False
        if least_pages == 0 or end == self.size:
            return True
        return end // PAGE_SIZE - done // PAGE_SIZE >= least_pages

    # Reading

    def lease(self, position: int, size: int) -> Lease:
        """A view of ``size`` bytes; raises RangeNotReadableError if they are not all readable."""
        end = self.wrote if self.pooled is None else self.committed
        if position < 0 or size < 0 or position + size > end or self.leaving:
            raise RangeNotReadableError(
                f"{size} bytes at {position} are not readable", path=self.path
            )
        view = self._map
        if view is None:
            view = self._map = self.handle.buffer
        self.leases += 1
        return Lease(self, view[position : position + size])

    def return_lease(self) -> None:
        """Count a lease as returned; called by the lease."""
        self.leases -= 1
        if self.leases == 0 and self.leaving:
            self.owner.file_is_idle()

    def read_into(self, position: int, buffer: memoryview | bytearray) -> int:
        """Fill ``buffer`` from anywhere in the file without mapping it, for scans."""
        return self.handle.read_into(position, buffer)

    # Closing

    def close(self) -> None:
        """Close mapping and descriptors; raises StoreFileBusyError while the file is being read.

        The object stays usable: the file is opened again when needed.
        """
        if self.leases:
            raise StoreFileBusyError(f"{self.leases} leases are out", path=self.path)
        handle = self._handle
        if handle is None:
            return
        self._map = None
        if self.pooled is None:
            self.buffer = NO_BYTES
        try:
            handle.close()
        except StoreFileBusyError:
            if self.pooled is None:
                self.buffer = handle.buffer  # a refused close has made a new view
            raise
        self._handle = None
