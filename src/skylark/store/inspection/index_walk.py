"""Reads the entries of all index files as one sequence, oldest first, and checks each file.

Entries are in the order of the log, and the keys of one message may begin in one file and end in
the next. So the comparison with the log reads them as one sequence (:class:`IndexWalk`), a chunk at
a time.

What a file says about itself is checked on the way, without the log:

* chains: an entry points to the next older one of its slot, and the slot to the newest. The
  expected slots are built up from the entries, 4 bytes each, and compared at the end;
* header: the offsets of its first and last entry, the number of slots in use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skylark.store.file_system import FileHandle, FileSystem
from skylark.store.index_file import IndexFile
from skylark.store.inspection.check_findings import Findings, Trouble, plural
from skylark.store.inspection.store_directory import IndexShape
from skylark.wire.layout import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    index_entry_dtype,
    index_slot_dtype,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CHUNK_ENTRIES: Final = 1 << 16
_SLOT_CHUNK: Final = 1 << 18

#: Fields of an entry during a check.
WALK_FIELDS: Final = (
    ("key_hash", "i8"),
    ("log_offset", "i8"),
    ("seconds", "i8"),
    ("previous", "i8"),
    ("number", "i8"),  # in its file
    ("file", "i8"),  # index of its file in IndexWalk.pages
)


class IndexPage:
    """One index file, read entry by entry; see the module docstring."""

    def __init__(
        self, files: FileSystem, path: Path, shape: IndexShape, findings: Findings | None = None
    ) -> None:
        import numpy as np

        self.file = IndexFile(path, *shape)
        self._findings = findings
        self._handle: FileHandle | None = files.open_file(path, writable=False)
        self.file.load_header(self._handle.read(0, INDEX_HEADER_SIZE))
        self.entry_count = self.file.next_entry - 1
        self._next = 1
        self._slots = np.zeros(shape.slot_count if findings else 0, np.int32)
        self._broken_chains = 0
        self._first_offset = self._last_offset = 0

    def read(self) -> npt.NDArray[Any]:
        """The next entries; none at the end, where the file is closed."""
        import numpy as np

        count = min(CHUNK_ENTRIES, self.entry_count + 1 - self._next)
        if count <= 0 or self._handle is None:
            self._end()
            return np.empty(0, index_entry_dtype())
        position = self.file.entries_start + self._next * INDEX_ENTRY_SIZE
        content = self._handle.read(position, count * INDEX_ENTRY_SIZE)
        entries = np.frombuffer(content, index_entry_dtype())
        if self._findings is not None and count:
            self._follow_chains(entries)
        self._next += count
        return entries

    def close(self) -> None:
        """Close the file before its end."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    # ---- chains and header -----------------------------------------------------------------------

    def _follow_chains(self, entries: npt.NDArray[Any]) -> None:
        """Compare the links of entries with the expected ones."""
        import numpy as np

        numbers = np.arange(self._next, self._next + len(entries))
        slots = entries["key_hash"].astype(np.int64) % self.file.slot_count
        order = np.argsort(slots, kind="stable")
        slots, ordered = slots[order], numbers[order]
        is_next = np.concatenate((np.zeros(1, np.bool_), slots[1:] == slots[:-1]))
        wanted = np.where(is_next, np.concatenate((ordered[:1], ordered[:-1])), self._slots[slots])
        differ = np.sort(ordered[entries["previous"][order] != wanted])
        if len(differ) and not self._broken_chains:
            number = int(differ[0])
            row = number - self._next
            right = int(wanted[np.flatnonzero(ordered == number)[0]])
            text = f"entry {number} points to entry {entries['previous'][row]} instead of {right}"
            self._report(Trouble.WRONG, "index.chain", self.position(number), text)
        self._broken_chains += len(differ)
        is_last = np.concatenate((slots[1:] != slots[:-1], np.ones(1, np.bool_)))
        self._slots[slots[is_last]] = ordered[is_last]
        if self._next == 1:
            self._first_offset = int(entries["log_offset"][0])
        self._last_offset = int(entries["log_offset"][-1])

    def _end(self) -> None:
        if self._handle is None:
            return
        if self._findings is not None:
            if self._broken_chains > 1:
                text = f"{self._broken_chains} entries in all point to a wrong one"
                self._report(Trouble.WRONG, "index.chain", self.file.entries_start, text)
            self._compare_slots(self._handle)
            self._compare_header()
        self.close()

    def _compare_slots(self, handle: FileHandle) -> None:
        import numpy as np

        wrong = ahead = first = 0
        for start in range(0, self.file.slot_count, _SLOT_CHUNK):
            wanted = self._slots[start : start + _SLOT_CHUNK]
            position = INDEX_HEADER_SIZE + start * INDEX_SLOT_SIZE
            content = handle.read(position, len(wanted) * INDEX_SLOT_SIZE)
            slots = np.frombuffer(content, index_slot_dtype())
            differ = np.flatnonzero(slots != wanted[: len(slots)])
            if len(differ):
                first = first or position + int(differ[0]) * INDEX_SLOT_SIZE
                newer = int(np.count_nonzero(slots[differ] > self.entry_count))
                ahead += newer
                wrong += len(differ) - newer
        if ahead:
            text = f"{plural(ahead, 'slot')} with entries that the header does not count"
            self._report(Trouble.AHEAD_OR_BEHIND, "index.header", first, text)
        if wrong:
            text = f"{plural(wrong, 'slot')} that do not point to the newest entry"
            self._report(Trouble.WRONG, "index.chain", first, text)

    def _compare_header(self) -> None:
        import numpy as np

        if not self.entry_count:
            return
        rows = (
            (16, "first log offset", self.file.begin_offset, self._first_offset),
            (24, "last log offset", self.file.end_offset, self._last_offset),
            (
                32,
                "number of slots in use",
                self.file.used_slots,
                int(np.count_nonzero(self._slots)),
            ),
        )
        for position, name, actual, wanted in rows:
            if actual != wanted:
                text = f"the header has the {name} {actual} instead of {wanted}"
                self._report(Trouble.WRONG, "index.header", position, text)

    def position(self, number: int) -> int:
        return self.file.entries_start + number * INDEX_ENTRY_SIZE

    def _report(self, trouble: Trouble, kind: str, position: int, text: str) -> None:
        assert self._findings is not None
        self._findings.add(trouble, kind, self.file.path, position, text)


class IndexWalk:
    """The entries of all files, one after the other."""

    def __init__(
        self, files: FileSystem, paths: list[Path], shape: IndexShape, findings: Findings
    ) -> None:
        import numpy as np

        self._files = files
        self._shape = shape
        self._findings = findings
        self._paths = list(paths)
        self._buffer = np.empty(0, np.dtype(list(WALK_FIELDS)))
        self._number = 1  # of the next entry to be read from the last of the pages
        #: The files opened so far.
        self.pages: list[IndexPage] = []
        #: Number of entries passed.
        self.passed_count = 0

    def peek(self, count: int) -> npt.NDArray[Any]:
        """The next ``count`` entries, fewer at the end of the last file."""
        while len(self._buffer) < count and self._fill():
            pass
        return self._buffer[:count]

    def advance(self, count: int) -> None:
        """Pass entries that were peeked."""
        self._buffer = self._buffer[count:]
        self.passed_count += count

    def _fill(self) -> bool:
        """Read more entries; return whether there are more."""
        import numpy as np

        if not self.pages and not self._open_next():
            return False
        page = self.pages[-1]
        entries = page.read()
        if not len(entries):
            return self._open_next()
        more = np.empty(len(entries), np.dtype(list(WALK_FIELDS)))
        for name in ("key_hash", "log_offset", "seconds", "previous"):
            more[name] = entries[name]
        more["number"] = np.arange(self._number, self._number + len(entries))
        more["file"] = len(self.pages) - 1
        self._number += len(entries)
        self._buffer = np.concatenate((self._buffer, more))
        return True

    def _open_next(self) -> bool:
        if not self._paths:
            return False
        path = self._paths.pop(0)
        self.pages.append(IndexPage(self._files, path, self._shape, self._findings))
        self._number = 1
        return True

    def place(self, entry: np.void) -> tuple[Path, int]:
        """The file of an entry, and its position in it."""
        page = self.pages[int(entry["file"])]
        return page.file.path, page.position(int(entry["number"]))

    def close(self) -> None:
        """Close the file that is being read."""
        for page in self.pages:
            page.close()
