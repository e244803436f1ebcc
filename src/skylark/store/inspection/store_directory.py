"""Survey of a store directory from outside, for the check and the dump.

A survey only lists and reads; it takes no lock, creates nothing and repairs nothing, so it works on
a directory of Apache's broker, a read-only copy or the store of a running broker. It never refuses:
a file that does not fit is a :class:`Misfit`, and the rest is surveyed all the same.

**File sizes** are settings, and a directory from elsewhere comes without them. All files of a kind
have the same length, so the length is the setting, and the most frequent one is used. Only an index
file has two unknowns in its length, slots and entries. Its header contains the log offset of its
last entry, and the slot of that entry points to it: first the defaults and their ratio (four
entries for a slot) are tried, then every place in the file that contains that log offset.

**State.** ``abort`` exists while a store is open, ``lock`` is locked by its process::

    abort  locked
    no     no      CLOSED    in order
    yes    no      CRASHED   the next start recovers
    any    yes     IN_USE    files change during the check; derived files may be behind the log
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from skylark.core.errors import RemoteProtocolError, StoreError
from skylark.store.checkpoint import ABORT_NAME
from skylark.store.config_files import TOPICS
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_sequence import examine
from skylark.store.file_system import DirectoryEntry, FileHandle, FileSystem
from skylark.store.index_file import index_file_size
from skylark.store.queue_registry import BATCH_QUEUE_DIRECTORY, QUEUE_DIRECTORY
from skylark.wire.layout import (
    BATCH_CQ_ENTRY_SIZE,
    CQ_ENTRY_SIZE,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT,
    INDEX_SLOT_SIZE,
)

LOG_DIRECTORY: Final = "commitlog"
INDEX_DIRECTORY: Final = "index"
LOCK_NAME: Final = "lock"
#: Any of these makes a directory a store.
STORE_NAMES: Final = (LOG_DIRECTORY, QUEUE_DIRECTORY, INDEX_DIRECTORY, "checkpoint")

_DIGITS: Final = re.compile(r"[0-9]{20}")
_INDEX_NAME: Final = re.compile(r"[0-9]{1,18}")
_DEFAULT_SHAPE: Final = (5_000_000, 20_000_000)
_ENTRIES_PER_SLOT: Final = 4  # of the defaults, and of most other configurations
_SEARCH_CHUNK: Final = 1 << 20
_LOG_OFFSET: Final = 4  # position of the log offset in an index entry
_ABORT_SIZE_MAX: Final = 64


class NotAStoreError(StoreError):
    """The directory exists and holds no part of a store."""


class State(enum.Enum):
    """How the store was left."""

    CLOSED = "closed in order"
    CRASHED = "not closed in order"
    IN_USE = "in use"


class FileSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which the files were created; None: to be guessed."""

    log: int | None = None  #: mappedFileSizeCommitLog
    queue: int | None = None  #: mappedFileSizeConsumeQueue
    batch_queue: int | None = None  #: mapperFileSizeBatchConsumeQueue
    index_slots: int | None = None  #: maxHashSlotNum
    index_entries: int | None = None  #: maxIndexNum


class LogFile(NamedTuple):
    """A file of the log; ``size`` is its real length."""

    path: Path
    start_offset: int
    size: int

    @property
    def end_offset(self) -> int:
        """Log offset after its last byte."""
        return self.start_offset + self.size


class QueueDirectory(NamedTuple):
    """The files of one queue, without those that do not fit."""

    topic: str
    queue_id: int
    path: Path
    is_batch: bool
    file_size: int
    starts: list[int]  # positions in the queue, in bytes

    @property
    def entry_size(self) -> int:
        return BATCH_CQ_ENTRY_SIZE if self.is_batch else CQ_ENTRY_SIZE

    @property
    def first_index(self) -> int:
        """Index of the first entry that there is room for."""
        return self.starts[0] // self.entry_size if self.starts else 0


class IndexShape(NamedTuple):
    """Number of slots and entries of an index file."""

    slot_count: int
    entry_count_max: int


class Misfit(NamedTuple):
    """A file that does not fit into the directory it is in."""

    path: Path
    offset: int
    text: str
    is_harmless: bool = False  # the next start repairs it


class Survey(msgspec.Struct, kw_only=True):
    """The contents of a store directory, and the files that do not fit."""

    root: Path
    state: State
    abort_text: str | None  # content of the file abort
    log_size: int
    log_files: list[LogFile]
    queues: list[QueueDirectory]
    index_files: list[Path]
    index_shape: IndexShape | None  # None: no index, or unknown
    topics: frozenset[str] | None  # of topics.json; None: not known
    emptied_topics: frozenset[str]  # with an empty directory for queues
    misfits: list[Misfit]


def survey(
    files: FileSystem, root: Path, sizes: FileSizes, *, log_path: Path | None = None
) -> Survey:
    """Survey ``root``; ``log_path`` if the log is elsewhere.

    Raises StoreFileMissingError if there is no such directory, NotAStoreError if it holds something
    else, other StoreFileErrors if it cannot be read.
    """
    names = {entry.name for entry in files.list_directory(root)}
    if not names.intersection(STORE_NAMES) and log_path is None:
        raise NotAStoreError(
            f"{root} is not a store: it has none of {', '.join(STORE_NAMES)}",
            hint=_hint(root, names),
        )
    return _Surveyor(files, root, sizes).run(log_path or root / LOG_DIRECTORY)


def _hint(root: Path, names: Iterable[str]) -> str:
    if root.name in STORE_NAMES or any(map(_DIGITS.fullmatch, names)):
        return "name the directory above it (storePathRootDir)"
    return "name the directory that storePathRootDir names"


class _Surveyor:
    """One survey."""

    def __init__(self, files: FileSystem, root: Path, sizes: FileSizes) -> None:
        self._files = files
        self._root = root
        self._sizes = sizes
        self._misfits: list[Misfit] = []

    def run(self, log_path: Path) -> Survey:
        abort_text = self._abort_text()
        locked = self._files.is_locked(self._root / LOCK_NAME)
        state = State.CLOSED if abort_text is None else State.CRASHED
        log_size, log_files = self._log(log_path)
        queues = [
            *self._queues(QUEUE_DIRECTORY, CQ_ENTRY_SIZE, self._sizes.queue),
            *self._queues(BATCH_QUEUE_DIRECTORY, BATCH_CQ_ENTRY_SIZE, self._sizes.batch_queue),
        ]
        index_files, index_shape = self._index()
        return Survey(
            root=self._root,
            state=State.IN_USE if locked else state,
            abort_text=abort_text,
            log_size=log_size,
            log_files=log_files,
            queues=queues,
            index_files=index_files,
            index_shape=index_shape,
            topics=self._topics(),
            emptied_topics=self._emptied_topics(queues),
            misfits=self._misfits,
        )

    def _list(self, path: Path) -> list[DirectoryEntry]:
        try:
            return self._files.list_directory(path)
        except StoreFileMissingError:
            return []

    def _abort_text(self) -> str | None:
        try:
            content = self._files.read_file(self._root / ABORT_NAME, size_max=_ABORT_SIZE_MAX)
        except StoreFileMissingError:
            return None
        except StoreFileError:
            return ""
        return content.decode("utf-8", "replace")

    def _topics(self) -> frozenset[str] | None:
        """The topics in the broker's table: records of other topics belong to deleted ones."""
        for name in (TOPICS.name, f"{TOPICS.name}.bak"):
            try:
                content = self._files.read_file(self._root / "config" / name)
                return frozenset(TOPICS.decode(content).topic_config_table)
            except (StoreFileError, RemoteProtocolError):
                continue
        return None

    # ---- log -------------------------------------------------------------------------------------

    def _log(self, directory: Path) -> tuple[int, list[LogFile]]:
        entries, named = self._list(directory), self._files_named(_DIGITS, directory)
        size = self._sizes.log or _most_frequent(entry.size for entry in named)
        listing = examine(directory, entries, max(1, size), "mappedFileSizeCommitLog")
        self._misfits += [
            Misfit(problem.path, problem.offset, problem.message) for problem in listing.problems
        ]
        if listing.empty is not None:
            text = "the file is empty, left by an interrupted creation"
            self._misfits.append(Misfit(listing.empty, 0, text, is_harmless=True))
        found = [
            LogFile(directory / entry.name, int(entry.name), entry.size)
            for entry in named
            if entry.size
        ]
        return size, found

    # ---- queues ----------------------------------------------------------------------------------

    def _queues(
        self, name: str, entry_size: int, file_size: int | None
    ) -> Iterator[QueueDirectory]:
        directory = self._root / name
        listed: list[tuple[str, int, Path, list[DirectoryEntry]]] = []
        for topic in self._subdirectories(directory):
            for number in self._subdirectories(directory / topic):
                path = directory / topic / number
                if number.isascii() and number.isdecimal() and number == str(int(number)):
                    listed.append((topic, int(number), path, self._files_named(_DIGITS, path)))
        if file_size is None:
            file_size = _most_frequent(entry.size for row in listed for entry in row[3])
        file_size = -(-max(1, file_size) // entry_size) * entry_size  # whole entries, as Java
        for topic, queue_id, path, entries in sorted(listed, key=lambda row: row[:2]):
            starts = self._queue_starts(path, entries, file_size)
            yield QueueDirectory(
                topic, queue_id, path, entry_size == BATCH_CQ_ENTRY_SIZE, file_size, starts
            )

    def _emptied_topics(self, queues: Iterable[QueueDirectory]) -> frozenset[str]:
        names = (QUEUE_DIRECTORY, BATCH_QUEUE_DIRECTORY)
        topics = {topic for name in names for topic in self._subdirectories(self._root / name)}
        return frozenset(topics.difference(queue.topic for queue in queues))

    def _subdirectories(self, path: Path) -> list[str]:
        return [entry.name for entry in self._list(path) if entry.is_directory]

    def _files_named(self, pattern: re.Pattern[str], path: Path) -> list[DirectoryEntry]:
        return [
            entry
            for entry in self._list(path)
            if not entry.is_directory and pattern.fullmatch(entry.name)
        ]

    def _queue_starts(self, path: Path, entries: list[DirectoryEntry], file_size: int) -> list[int]:
        starts: list[int] = []
        for entry in entries:
            start = int(entry.name)
            if entry.size == 0 and entry is entries[-1]:
                text = "the file is empty, left by an interrupted creation"
                self._misfits.append(Misfit(path / entry.name, 0, text, is_harmless=True))
            elif entry.size != file_size or start % file_size:
                text = f"a queue file of {entry.size} bytes where files have {file_size}"
                self._misfits.append(Misfit(path / entry.name, start, text))
            else:
                if starts and start != starts[-1] + file_size:
                    text = f"the file {starts[-1] + file_size:020d} before this one is missing"
                    self._misfits.append(Misfit(path / entry.name, start, text))
                starts.append(start)
        return starts

    # ---- index -----------------------------------------------------------------------------------

    def _index(self) -> tuple[list[Path], IndexShape | None]:
        directory = self._root / INDEX_DIRECTORY
        named = self._files_named(_INDEX_NAME, directory)
        named.sort(key=lambda entry: int(entry.name))
        slots, entry_count = self._sizes.index_slots, self._sizes.index_entries
        size = _most_frequent(entry.size for entry in named)
        shape: IndexShape | None = None
        if slots is not None and entry_count is not None:
            shape = IndexShape(slots, entry_count)
            size = index_file_size(*shape)
        found = []
        for entry in named:
            path = directory / entry.name
            if entry.size == size and size:
                found.append(path)
            else:
                text = f"an index file of {entry.size} bytes where files have {size}"
                is_harmless = entry.size == 0
                self._misfits.append(Misfit(path, 0, text, is_harmless=is_harmless))
        for path in found:
            shape = shape or index_shape(self._files, path)
        return found, shape


def _most_frequent(lengths: Iterable[int]) -> int:
    """The most frequent length, the largest of several; 0 without files."""
    counts = Counter(length for length in lengths if length)
    return max(counts, key=lambda length: (counts[length], length), default=0)


# ---- the shape of an index file ------------------------------------------------------------------


def index_shape(files: FileSystem, path: Path) -> IndexShape | None:
    """Slots and entries of an index file, determined from its content; None if impossible."""
    with closing(files.open_file(path, writable=False)) as handle:
        header = handle.read(0, INDEX_HEADER_SIZE)
        if len(header) < INDEX_HEADER_SIZE:
            return None
        *_, end_offset, _, next_entry = INDEX_HEADER.unpack(header)
        if next_entry < 2:
            return None
        for slots in _slot_counts(handle, end_offset, next_entry - 1):
            if _points_to_last(handle, slots, next_entry - 1, end_offset):
                return IndexShape(slots, _entry_count(handle.size, slots))
    return None


def _entry_count(size: int, slots: int) -> int:
    return (size - INDEX_HEADER_SIZE - slots * INDEX_SLOT_SIZE) // INDEX_ENTRY_SIZE


def _slot_counts(handle: FileHandle, end_offset: int, last: int) -> Iterator[int]:
    """Possible numbers of slots, the likely ones first."""
    size = handle.size
    if size == index_file_size(*_DEFAULT_SHAPE):
        yield _DEFAULT_SHAPE[0]
    for_slot = INDEX_SLOT_SIZE + _ENTRIES_PER_SLOT * INDEX_ENTRY_SIZE
    yield (size - INDEX_HEADER_SIZE) // for_slot
    if end_offset <= 0:
        return  # zeros match everywhere
    wanted = end_offset.to_bytes(8, "big")
    before = INDEX_HEADER_SIZE + last * INDEX_ENTRY_SIZE + _LOG_OFFSET
    for start in range(before, size, _SEARCH_CHUNK):
        chunk = handle.read(start, _SEARCH_CHUNK + len(wanted) - 1)
        found = chunk.find(wanted)
        while found >= 0:
            if (start + found - before) % INDEX_SLOT_SIZE == 0:
                yield (start + found - before) // INDEX_SLOT_SIZE
            found = chunk.find(wanted, found + 1)


def _points_to_last(handle: FileHandle, slots: int, last: int, end_offset: int) -> bool:
    """Whether with so many slots the last entry is where its slot points."""
    entries_size = handle.size - INDEX_HEADER_SIZE - slots * INDEX_SLOT_SIZE
    if slots < 1 or entries_size % INDEX_ENTRY_SIZE or entries_size <= last * INDEX_ENTRY_SIZE:
        return False
    position = INDEX_HEADER_SIZE + slots * INDEX_SLOT_SIZE + last * INDEX_ENTRY_SIZE
    entry = handle.read(position, INDEX_ENTRY_SIZE)
    if len(entry) < INDEX_ENTRY_SIZE:
        return False
    key_hash, log_offset, _, previous = INDEX_ENTRY.unpack(entry)
    if key_hash < 0 or log_offset != end_offset or not 0 <= previous < last:
        return False
    slot = INDEX_HEADER_SIZE + key_hash % slots * INDEX_SLOT_SIZE
    return bool(INDEX_SLOT.unpack(handle.read(slot, INDEX_SLOT_SIZE))[0] == last)
