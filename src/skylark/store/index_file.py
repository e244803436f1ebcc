"""One index file: a hash table from keys to records, filled in the order of the log.

::

    0    header, 40 bytes    begin and end timestamp, begin and end log offset,
                             slots in use, number of the next entry
    40   slots, 4 bytes      number of the newest entry of the chain, 0 = none
         entries, 20 bytes   key hash, log offset, seconds since begin, number of the one before it

Entry 0 is never used. A key belongs to the slot ``hash % slots``; the slot points to the newest
entry, and each entry to the next older one of any key with that slot. Only hashes are kept, so a
query may return records of another key; the reader of the record compares the key.

The file is mapped. Slots have their blocks from creation, entries get theirs in advance piece by
piece, so that a full disk is an error before anything was written. Header fields are attributes of
this object, and :meth:`IndexFile.write_header` writes them to the file; readers in the same process
use the attributes.

What a crash leaves: an entry is complete before its slot points to it, and the header is written
last. After a kill there may be entries and slots that the header does not count, after a power loss
slots of any age. Entries never change once written and contain everything; so
:meth:`IndexFile.repair` trusts those that were synced, drops the others, and makes slots and header
from them.

Counterpart of Java's ``IndexFile`` and ``IndexHeader``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from skylark.store.file_system import FileHandle, FileSystem
from skylark.wire.layout import (
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    INDEX_SLOT_SIZE,
    index_entry_dtype,
    index_slot_dtype,
)

if TYPE_CHECKING:
    import numpy.typing as npt

SECONDS_MAX: Final = 0x7FFF_FFFF
ALLOCATE_MIN: Final = 64 << 10  # of entries; doubled with each piece
ALLOCATE_MAX: Final = 1 << 20
NO_BYTES: Final = memoryview(b"")

# A longer chain is entered in the middle if its newest part does not match.
_HOPS_MAX: Final = 1_000
_CHUNK_ENTRIES: Final = 1 << 18
_SECONDS_POSITION: Final = 12  # in an entry, a signed word like a slot

_HEADER_FIELDS: Final = (
    "begin_timestamp",
    "end_timestamp",
    "begin_offset",
    "end_offset",
    "used_slots",
    "next_entry",
)
_header = attrgetter(*_HEADER_FIELDS)
_pack_entry_into = INDEX_ENTRY.pack_into
_unpack_entry_from = INDEX_ENTRY.unpack_from
_pack_slot_into = INDEX_SLOT.pack_into
_unpack_slot_from = INDEX_SLOT.unpack_from


#: Log offsets in ascending order, each with the hashes of its keys.
KeyedRecords: TypeAlias = list[tuple[int, list[int]]]


def index_file_size(slot_count: int, entry_count_max: int) -> int:
    """Length of an index file."""
    return INDEX_HEADER_SIZE + slot_count * INDEX_SLOT_SIZE + entry_count_max * INDEX_ENTRY_SIZE


class IndexFile(msgspec.Struct, eq=False):
    """A file of ``slot_count`` slots and entries up to number ``entry_count_max - 1``."""

    path: Path
    slot_count: int
    entry_count_max: int
    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    next_entry: int = 1
    dirty: bool = False  # whether the header in the file is out of date
    entries_start: int = 0  # position of the entries
    _handle: FileHandle | None = None
    _buffer: memoryview = NO_BYTES
    _prepared: int = 0  # end of the range that may be written
    _allocate_size: int = ALLOCATE_MIN

    def __post_init__(self) -> None:
        self.entries_start = INDEX_HEADER_SIZE + self.slot_count * INDEX_SLOT_SIZE

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} entries={self.next_entry - 1}>"

    @property
    def size(self) -> int:
        return index_file_size(self.slot_count, self.entry_count_max)

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.entry_count_max

    @property
    def used_size(self) -> int:
        """Bytes up to the end of the last entry."""
        return self.entries_start + self.next_entry * INDEX_ENTRY_SIZE

    # ---- opening and closing ---------------------------------------------------------------------

    def create(self, files: FileSystem) -> None:
        """Create the file. On StoreFullError nothing is left.

        Crash: a file of length 0, or one whose header says that it has no entries.
        """
        handle = files.create_file(self.path, self.size)
        try:
            handle.allocate(0, self.entries_start)
            buffer = handle.buffer
        except BaseException:
            handle.close()
            files.remove(self.path)
            raise
        self._handle, self._buffer = handle, buffer
        self._prepared = self.entries_start
        self.write_header()

    def continue_from(self, timestamp: int, log_offset: int) -> None:
        """Begin at the time and log offset at which the previous file ended."""
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = log_offset
        self.write_header()

    def open(self, files: FileSystem) -> None:
        """Open and map the file, so that its entries can be read."""
        if self._handle is None:
            handle = files.open_file(self.path)
            try:
                self._buffer = handle.buffer
            except BaseException:
                handle.close()
                raise
            self._handle = handle

    def close(self) -> None:
        """Unmap; writes the header first, syncs nothing."""
        if self._handle is not None:
            if self.dirty:
                self.write_header()
            handle, self._handle, self._buffer = self._handle, None, NO_BYTES
            self._prepared = 0
            handle.close()

    def load_header(self, header: bytes) -> None:
        """Set the header fields from the first bytes of the file."""
        for name, value in zip(_HEADER_FIELDS, INDEX_HEADER.unpack_from(header), strict=True):
            setattr(self, name, value)
        self.next_entry = min(max(1, self.next_entry), self.entry_count_max)

    def write_header(self) -> None:
        """Write the header fields into the mapped file."""
        INDEX_HEADER.pack_into(self._buffer, 0, *_header(self))
        self.dirty = False

    # ---- writing ---------------------------------------------------------------------------------

    def reserve(self, count: int) -> int:
        """Allocate disk space for up to ``count`` entries; return how many have room."""
        count = min(count, self.entry_count_max - self.next_entry)
        start = self.used_size
        if start + count * INDEX_ENTRY_SIZE > self._prepared:
            self._prepare(start, start + count * INDEX_ENTRY_SIZE)
        return count

    def put(self, key_hashes: list[int], log_offset: int, store_timestamp: int) -> None:
        """Add entries for the keys of one record; see :meth:`put_run`."""
        self.put_run([(log_offset, key_hashes)], len(key_hashes), store_timestamp)

    def put_run(self, records: KeyedRecords, count: int, store_timestamp: int) -> None:
        """Add entries for the keys of records, ``count`` in all; the file has room for them.

        Raises StoreFullError if the disk has no space; then nothing was added.
        """
        number = self.next_entry
        after = number + count
        assert after <= self.entry_count_max, "the index file is full"
        position = self.entries_start + number * INDEX_ENTRY_SIZE
        end = self.entries_start + after * INDEX_ENTRY_SIZE
        if end > self._prepared:
            self._prepare(position, end)
        buffer, slot_count = self._buffer, self.slot_count
        begin = self.begin_timestamp
        seconds = (store_timestamp - begin) // 1000 if begin > 0 else 0
        if not 0 <= seconds <= SECONDS_MAX:
            seconds = 0 if seconds < 0 else SECONDS_MAX
        first_seconds = None
        if number == 1:  # its time is relative to the end of the previous file
            first_seconds, seconds = seconds, 0
            self.begin_timestamp = store_timestamp
            self.begin_offset = next(offset for offset, hashes in records if hashes)
        first_position = position
        for log_offset, key_hashes in records:
            for key_hash in key_hashes:
                slot_position = INDEX_HEADER_SIZE + key_hash % slot_count * INDEX_SLOT_SIZE
                (previous,) = _unpack_slot_from(buffer, slot_position)
                if not 0 < previous < number:
                    previous = 0
                    self.used_slots += 1
                _pack_entry_into(buffer, position, key_hash, log_offset, seconds, previous)
                _pack_slot_into(buffer, slot_position, number)
                number += 1
                position += INDEX_ENTRY_SIZE
            if key_hashes:
                self.end_offset = log_offset
        if first_seconds:
            _pack_slot_into(buffer, first_position + _SECONDS_POSITION, first_seconds)
        self.next_entry = after
        self.end_timestamp = store_timestamp
        self.dirty = True

    def _prepare(self, start: int, end: int) -> None:
        """Allocate blocks for the next entries, and some more."""
        assert self._handle is not None, "an index file is open while it is written"
        if not self._prepared:  # a file that came from disk may be sparse anywhere
            self._handle.allocate(0, start)
        wanted = min(self.size, max(end, start + self._allocate_size))
        self._handle.allocate(start, wanted - start)
        self._prepared = wanted
        self._allocate_size = min(ALLOCATE_MAX, 2 * self._allocate_size)

    # ---- reading ---------------------------------------------------------------------------------

    def overlaps(self, begin: int, end: int) -> bool:
        """Whether the file may hold messages stored between two times."""
        return (
            (begin < self.begin_timestamp and end > self.end_timestamp)
            or self.begin_timestamp <= begin <= self.end_timestamp
            or self.begin_timestamp <= end <= self.end_timestamp
        )

    def select(
        self, key_hash: int, begin: int, end: int, log_end: int, count_max: int, found: list[int]
    ) -> None:
        """Add log offsets of the key to ``found``, newest first, until there are ``count_max``.

        Those at or after ``log_end`` are skipped.
        """
        next_entry = self.next_entry
        number = self._enter_chain(key_hash, end)
        while number and len(found) < count_max:
            read_hash, log_offset, seconds, previous = self._entry(number)
            if seconds < 0:
                break
            timestamp = self.begin_timestamp + seconds * 1000
            if read_hash == key_hash and begin <= timestamp <= end and log_offset < log_end:
                found.append(log_offset)
            if not 0 < previous < next_entry or previous >= number or timestamp < begin:
                break
            number = previous

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        return _unpack_entry_from(self._buffer, self.entries_start + number * INDEX_ENTRY_SIZE)

    def _enter_chain(self, key_hash: int, end: int) -> int:
        """Number of the newest entry of the chain that may match, 0 if there is none.

        In a short chain it is enough to follow the links. The chain of a tag that every message has
        is as long as the file: then bisection finds the last entry not newer than ``end``, because
        times ascend, and the search continues in the chain from there.
        """
        slot = key_hash % self.slot_count
        (number,) = _unpack_slot_from(self._buffer, INDEX_HEADER_SIZE + slot * INDEX_SLOT_SIZE)
        if not 0 < number < self.next_entry:
            return 0
        seconds_max = (end - self.begin_timestamp) // 1000
        for _ in range(_HOPS_MAX):
            _, _, seconds, previous = self._entry(number)
            if seconds <= seconds_max or not 0 < previous < number:
                return int(number)
            number = previous
        entries = range(2, number)  # the first may be relative to the previous file
        older = bisect_right(entries, seconds_max, key=lambda entry: self._entry(entry)[2])
        return self._newest_of_slot(slot, 1 + older)

    def _newest_of_slot(self, slot: int, number: int) -> int:
        """The newest entry of a slot up to ``number``, by a linear search."""
        import numpy as np

        while number > 0:
            first = max(1, number + 1 - _CHUNK_ENTRIES)
            position = self.entries_start + first * INDEX_ENTRY_SIZE
            entries = np.frombuffer(
                self._buffer, index_entry_dtype(), number + 1 - first, offset=position
            )
            hits = np.flatnonzero(entries["key_hash"] % self.slot_count == slot)
            if len(hits):
                return first + int(hits[-1])
            number = first - 1
        return 0

    # ---- recovery --------------------------------------------------------------------------------

    def looks_whole(self, files: FileSystem) -> bool:
        """Whether header and entries end together: a cheap check of a file just loaded."""
        last, after = self.next_entry - 1, self.next_entry
        with closing(files.open_file(self.path, writable=False)) as handle:
            position = self.entries_start + last * INDEX_ENTRY_SIZE
            both = handle.read(position, 2 * INDEX_ENTRY_SIZE)
        if after < self.entry_count_max and any(both[INDEX_ENTRY_SIZE:]):
            return False
        return last == 0 or bool(_unpack_entry_from(both)[1] == self.end_offset)

    def repair(
        self,
        files: FileSystem,
        log_end: int,
        store_time_of: Callable[[int], int | None],
    ) -> bool:
        """Keep the entries of records before ``log_end`` and make slots and header from them.

        ``log_end``: entries before it are known to be complete on disk. Returns whether any entry
        is left; if not, the file is useless. The file must be closed. A crash during the repair:
        repaired again.
        """
        assert self._handle is None, "an index file is repaired while it is closed"
        import numpy as np

        with closing(files.open_file(self.path)) as handle:
            slots = np.zeros(self.slot_count, index_slot_dtype())
            first, last_seconds, last_offset = 1, 0, 0
            while first < self.entry_count_max:
                entries = self._read_entries(handle, first)
                count = self._count_valid(entries, first, last_offset, log_end)
                kept = entries[:count]
                # Of several entries in a slot the last assignment stays: the newest.
                slots[kept["key_hash"] % self.slot_count] = np.arange(first, first + count)
                first += count
                if count:
                    last_offset = int(kept["log_offset"][-1])
                    last_seconds = int(kept["seconds"][-1])
                if count < len(entries):
                    break
            if first == 1 or self.begin_timestamp <= 0:
                return False
            self.next_entry = first
            self.used_slots = int(np.count_nonzero(slots))
            self.end_offset = last_offset
            stored = store_time_of(last_offset)
            # Within the second of the entry; a later time only makes queries search this file.
            approximate = self.begin_timestamp + last_seconds * 1000 + 999
            self.end_timestamp = approximate if stored is None else stored
            handle.zero(self.used_size, self.size - self.used_size)
            handle.write(INDEX_HEADER_SIZE, slots.tobytes())
            handle.write(0, INDEX_HEADER.pack(*_header(self)))
            self.dirty = False
        return True

    def _read_entries(self, handle: FileHandle, first: int) -> npt.NDArray[Any]:
        import numpy as np

        count = min(_CHUNK_ENTRIES, self.entry_count_max - first)
        position = self.entries_start + first * INDEX_ENTRY_SIZE
        return np.frombuffer(handle.read(position, count * INDEX_ENTRY_SIZE), index_entry_dtype())

    def _count_valid(
        self, entries: npt.NDArray[Any], first: int, offset_min: int, log_end: int
    ) -> int:
        """Number of valid entries from the first on."""
        import numpy as np

        offsets = entries["log_offset"].astype(np.int64)
        numbers = np.arange(first, first + len(entries))
        before = np.concatenate((np.array([offset_min]), offsets[:-1]))
        unwritten = (
            (offsets == 0)
            & (entries["key_hash"] == 0)
            & (entries["seconds"] == 0)
            & (entries["previous"] == 0)
            & (numbers >= self.next_entry)  # the header may count a key with hash 0 at offset 0
        )
        valid = (
            (offsets >= before)
            & (offsets < log_end)
            & (entries["key_hash"] >= 0)
            & (entries["seconds"] >= 0)
            & (entries["previous"] < numbers)
            & ~unwritten
        )
        return len(entries) if valid.all() else int(valid.argmin())
