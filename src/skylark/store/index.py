"""The index: finds the records of the log that have a given key, unique id or tag.

Every message that is not a rollback gets entries for these texts, in this order::

    topic#UNIQ_KEY      the client's unique id
    topic#KEY           each word of KEYS, separated by blanks
    topic#T#TAGS        the tag

Entries go to the newest of several files (:mod:`skylark.store.index_file`), named by their local
time of creation, ``yyyyMMddHHmmssSSS``. A query searches from the newest file back.

Hashes continue from that of ``topic#``, which is cached per topic; those of recent tags are cached
whole.

**Order.** Records are indexed in the order of the log, and a record that is not after the last
indexed one is skipped, so replaying the log is harmless. If an entry cannot be written (full disk),
or if recovery postpones the index, the index is *behind*: it stays a complete prefix, new records
are not indexed, and :meth:`IndexService.replay_record` continues from ``behind_from`` until
:meth:`IndexService.caught_up`. While it is behind, the checkpoint must not pass ``behind_from``. A
clean close writes that offset to the file ``index/behind``; the next close with a complete index
removes the file.

**Crash.** After an unclean exit :meth:`IndexService.recover` gets the log offset from which the log
will be replayed and keeps the entries before it. (Java deletes the newest file, and with it the
keys of messages that the replay does not reach.) No checkpoint covers what was replayed since
``index/behind`` was written: it is dropped, too, and replayed once more.

Counterpart of Java's ``IndexService``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from skylark.core.clock import TimeSource
from skylark.core.errors import StoreError
from skylark.core.hashing import (
    index_id_hash_continue,
    index_id_hashes_continue,
    index_key_hash,
    index_key_hash_continue,
    java_hash,
    java_hash_continue,
)
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.store.index_file import IndexFile, KeyedRecords
from skylark.store.index_keys import AlikeIds
from skylark.wire.layout import INDEX_HEADER_SIZE

logger = logging.getLogger(__name__)

BEHIND_NAME: Final = "behind"  # not a number, so that Java ignores it
BEHIND_SIZE_MAX: Final = 64
NEVER: Final = 1 << 62  # after every record, and later than any message
QUERY_COUNT_MAX: Final = 64  # Java's maxMsgsNumBatch
TAG_PREFIX: Final = "T#"
TAG_INDEX_TYPE: Final = "T"

_CACHED_TOPICS_MAX: Final = 10_000
_CACHED_TAGS_MAX: Final = 1_000  # for each topic
_BLANK: Final = 0x20  # separates keys; an int is found faster in bytes than bytes are
_FILE_NAME: Final = re.compile(r"[0-9]{1,18}")


class IndexHits(NamedTuple):
    """Result of a query, and how far the index is complete."""

    log_offsets: list[int]  # ascending
    last_timestamp: int
    last_log_offset: int


class Closed(NamedTuple):
    """The last message of an index file that does not change any more."""

    timestamp: int
    log_offset: int


class _TopicHashes:
    """Hashes that begin with one topic."""

    __slots__ = ("prefix", "tags")

    def __init__(self, topic: str) -> None:
        self.prefix = java_hash(topic + "#")
        self.tags: dict[bytes, int] = {}

    def add_tag(self, tag: bytes) -> int:
        """Compute and cache the hash of a tag; most messages have one of a few."""
        if len(self.tags) >= _CACHED_TAGS_MAX:
            self.tags.clear()
        key_hash = index_key_hash_continue(self.prefix, TAG_PREFIX.encode() + tag)
        self.tags[tag] = key_hash
        return key_hash


class IndexService:
    """All index files of a store."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        dirty_ranges: DirtyRanges,
        time: TimeSource,
        *,
        slot_count: int = 5_000_000,
        entry_count_max: int = 20_000_000,
        open_files_max: int = 8,
    ) -> None:
        self._files = files
        self._directory = directory
        self._dirty_ranges = dirty_ranges
        self._time = time
        self._slot_count = slot_count
        self._entry_count_max = entry_count_max
        self._open_files_max = open_files_max
        self._index_files: list[IndexFile] = []  # oldest first
        self._opened: dict[IndexFile, None] = {}  # older files, least recently used first
        self._topics: dict[str, _TopicHashes] = {}
        self._newest: IndexFile | None = None  # the last file, once it is open for writing
        self._next_offset = 0  # records before it are indexed; NEVER while the index is behind
        self._left_behind: int | None = None  # content of the file "behind"
        #: Log offset from which on records are missing; None if the index is complete.
        self.behind_from: int | None = None
        #: Why an entry could not be written, until the index has caught up.
        self.error: StoreFileError | None = None

    # ---- facts -----------------------------------------------------------------------------------

    @property
    def file_count(self) -> int:
        return len(self._index_files)

    @property
    def size_total(self) -> int:
        """Bytes of all files by their length."""
        return sum(file.size for file in self._index_files)

    @property
    def end_timestamp(self) -> int:
        """Store time of the last indexed record, 0 if there is none."""
        return self._index_files[-1].end_timestamp if self._index_files else 0

    @property
    def end_offset(self) -> int:
        """Log offset of the last indexed record, 0 if there is none."""
        return self._index_files[-1].end_offset if self._index_files else 0

    def last_closed(self, log_end: int = NEVER, timestamp_max: int = NEVER) -> Closed:
        """End of the last full file that later messages follow, all of them before ``log_end``.

        No entry will ever be added to that file, and none of its store time to another one. Files
        that end after ``timestamp_max`` do not count.
        """
        following = 0  # store time of the last message in the files behind
        for file in reversed(self._index_files):
            if file.next_entry == 1 or file.end_offset >= log_end:
                continue
            end = file.end_timestamp
            if file.is_full and end < following and end <= timestamp_max:
                return Closed(end, file.end_offset)
            following = max(following, end)
        return Closed(0, 0)

    # ---- start and stop --------------------------------------------------------------------------

    def load(self, *, clean: bool) -> None:
        """Find the files; if the last run was not ``clean``, :meth:`recover` has to follow."""
        try:
            found = self._files.list_directory(self._directory)
        except StoreFileMissingError:
            return
        if not clean:  # names that a killed process did not sync are still not durable
            self._dirty_ranges.directory_changed(self._directory)
            self._dirty_ranges.directory_changed(self._directory.parent)
        for entry in found:
            path = self._directory / entry.name
            if entry.is_directory or not _FILE_NAME.fullmatch(entry.name):
                continue
            file = IndexFile(path, self._slot_count, self._entry_count_max)
            if entry.size == 0:  # a power loss left only its name
                self._delete(file)
                continue
            if entry.size != file.size:
                raise StoreFileError(
                    f"an index file of {entry.size} bytes where files have {file.size}",
                    path=path,
                    hint="set maxHashSlotNum and maxIndexNum with which the store was created, or "
                    "delete the directory to rebuild the index from the log",
                )
            with closing(self._files.open_file(path, writable=False)) as handle:
                file.load_header(handle.read(0, INDEX_HEADER_SIZE))
            self._index_files.append(file)
        with suppress(StoreFileMissingError):
            self._left_behind = read_behind(self._files, self._directory)
        self._restart(self._left_behind)
        if clean and self._index_files and not self._index_files[-1].looks_whole(self._files):
            logger.warning(
                "header and entries of %s do not end together", self._index_files[-1].path
            )
            self.recover(NEVER, lambda _: None)

    def recover(self, log_end: int, store_time_of: Callable[[int], int | None]) -> None:
        """Keep the entries of records before ``log_end``, which were synced; drop all others.

        A running store also calls this when its log is truncated. ``store_time_of`` returns the
        store time of the record at a log offset, None if it was deleted.
        """
        behind_from = self.behind_from
        if self._left_behind is not None and self._left_behind < log_end:
            log_end = self._left_behind
            behind_from = log_end if behind_from is None else min(behind_from, log_end)
        while self._index_files:
            file = self._index_files[-1]
            self._close(file)
            if file.repair(self._files, log_end, store_time_of):
                self._dirty_ranges.wrote(file.path, 0, file.size)
                break
            self._delete(self._index_files.pop())
        self._restart(None if behind_from is None else min(behind_from, log_end))

    def end_at(self, log_end: int) -> None:
        """Index new records from ``log_end`` on, where the log was truncated."""
        if self.behind_from is not None:
            self.behind_from = min(self.behind_from, log_end)
        else:
            self._next_offset = min(self._next_offset, log_end)

    def _restart(self, behind_from: int | None) -> None:
        """Continue after the last entry, or be behind from ``behind_from`` on."""
        self._newest = self.behind_from = None
        has_entries = len(self._index_files) > 1 or any(f.next_entry > 1 for f in self._index_files)
        self._next_offset = self.end_offset + 1 if has_entries else 0
        if behind_from is not None:
            self.mark_behind(behind_from)

    def flush(self) -> None:
        """Write the headers into the files and record the dirty ranges."""
        for file in self._index_files:
            if file.dirty:
                file.write_header()
                self._dirty_ranges.wrote(file.path, 0, file.used_size)

    def close(self) -> None:
        """Unmap everything, after :meth:`flush` and a sync; update the file ``index/behind``."""
        path = self._directory / BEHIND_NAME
        if self.behind_from is not None:
            self._dirty_ranges.make_directory(self._directory)
            self._files.write_file(path, str(self.behind_from).encode())
            self._files.sync_directory(self._directory)
        elif self._left_behind is not None:
            self._files.remove(path)
            self._files.sync_directory(self._directory)
        self.unmap()

    def unmap(self) -> None:
        """Close all files without writing."""
        for file in self._index_files:
            self._close(file)
        self._newest = None

    # ---- putting ---------------------------------------------------------------------------------

    def put_record(
        self,
        topic: str,
        log_offset: int,
        store_timestamp: int,
        unique_id: bytes | None,
        keys: bytes | None,
        tag: bytes | None,
    ) -> None:
        """Index a message, given its properties UNIQ_KEY, KEYS and TAGS as they are stored.

        Not for rollbacks. Never fails: see ``error`` and ``behind_from``.
        """
        if log_offset < self._next_offset:
            return
        key_hashes = self.hashes(topic, unique_id, keys, tag)
        self.put_run([(log_offset, key_hashes)], store_timestamp)

    def put_run(self, records: KeyedRecords, store_timestamp: int) -> None:
        """:meth:`put_record` for records with one store time, given the hashes of their keys."""
        count = sum([len(key_hashes) for _, key_hashes in records])
        file = self._newest
        if (
            file is None
            or records[0][0] < self._next_offset
            or file.next_entry + count > file.entry_count_max
        ):
            for log_offset, key_hashes in records:
                self._put_hashes(log_offset, key_hashes, store_timestamp)
            return
        try:
            if count:
                file.put_run(records, count, store_timestamp)
        except StoreFileError as error:
            self._fall_behind(records[0][0], error)
        else:
            self._next_offset = records[-1][0] + 1

    def _put_hashes(self, log_offset: int, key_hashes: list[int], store_timestamp: int) -> None:
        if log_offset < self._next_offset:
            return
        try:
            self._write(key_hashes, log_offset, store_timestamp)
        except StoreFileError as error:
            self._fall_behind(log_offset, error)
        else:
            self._next_offset = log_offset + 1

    def hashes(
        self, topic: str, unique_id: bytes | None, keys: bytes | None, tag: bytes | None
    ) -> list[int]:
        """The key hashes of a record, given its properties UNIQ_KEY, KEYS and TAGS."""
        hashes = self._topics.get(topic) or self._add_topic(topic)
        prefix = hashes.prefix
        key_hashes = []
        if unique_id:
            key_hashes.append(index_id_hash_continue(prefix, unique_id))
        if keys:
            if _BLANK in keys:
                words = [word for word in keys.split(b" ") if word]
                key_hashes += [index_key_hash_continue(prefix, word) for word in words]
            else:
                key_hashes.append(index_key_hash_continue(prefix, keys))
        if tag:
            key_hashes.append(hashes.tags.get(tag) or hashes.add_tag(tag))
        return key_hashes

    def hashes_of_alike(
        self, topic: str, ids: AlikeIds, keys: bytes | None, tag: bytes | None
    ) -> list[list[int]]:
        """:meth:`hashes` for each of the ids, with KEYS and TAGS that the records share."""
        shared = self.hashes(topic, None, keys, tag)
        prefix = java_hash_continue(self._topics[topic].prefix, ids.common.decode("ascii"))
        return [[hashed, *shared] for hashed in index_id_hashes_continue(prefix, ids.endings)]

    def _write(self, key_hashes: list[int], log_offset: int, store_timestamp: int) -> None:
        if key_hashes:
            file = self._newest or self._open_newest()
            if file.next_entry + len(key_hashes) <= file.entry_count_max:
                file.put(key_hashes, log_offset, store_timestamp)
            else:
                self._put_and_roll(key_hashes, log_offset, store_timestamp)

    def _fall_behind(self, log_offset: int, error: StoreFileError) -> None:
        logger.error("the index is behind from %s: %s", log_offset, error)
        self.error = error
        self.mark_behind(log_offset)

    def _add_topic(self, topic: str) -> _TopicHashes:
        if len(self._topics) >= _CACHED_TOPICS_MAX:
            self._topics.clear()
        hashes = self._topics[topic] = _TopicHashes(topic)
        return hashes

    def _open_newest(self) -> IndexFile:
        if not self._index_files:
            self._add(self._create(0))
        newest = self._index_files[-1]
        newest.open(self._files)
        self._newest = newest
        return newest

    def _put_and_roll(self, key_hashes: list[int], log_offset: int, store_timestamp: int) -> None:
        """Write entries that need a new file, which is created before the first of them."""
        files = [self._index_files[-1]]
        try:
            room = files[0].reserve(len(key_hashes))
            while room < len(key_hashes):
                files.append(self._create(int(files[-1].path.name)))
                room += files[-1].reserve(len(key_hashes) - room)
        except StoreFileError:
            for file in files[1:]:
                self._delete(file)
            raise
        for file in files:
            if file is not self._index_files[-1]:
                self._add(file)
            count = file.reserve(len(key_hashes))
            if count:
                file.put(key_hashes[:count], log_offset, store_timestamp)
            key_hashes = key_hashes[count:]

    def _create(self, last_name: int) -> IndexFile:
        """Create a file. Names ascend even if the clock was set back."""
        self._dirty_ranges.make_directory(self._directory)
        name = max(last_name + 1, int(_time_name(self._time.now_ms())))
        file = IndexFile(self._directory / f"{name:017d}", self._slot_count, self._entry_count_max)
        file.create(self._files)
        return file

    def _add(self, file: IndexFile) -> None:
        """Append a new file to the list of files."""
        file.continue_from(self.end_timestamp, self.end_offset)
        self._dirty_ranges.wrote(file.path, 0, file.used_size)
        self._dirty_ranges.directory_changed(self._directory)
        self.flush()
        self._index_files.append(file)
        self._newest = file
        for full in self._index_files[-2:-1]:
            self._touch(full)

    # ---- being behind ----------------------------------------------------------------------------

    def mark_behind(self, log_offset: int) -> None:
        """Index nothing from this record on until a replay has caught up."""
        if self.behind_from is None:
            self.behind_from = max(log_offset, self._next_offset)
            self._next_offset = NEVER

    def replay_record(
        self,
        topic: str,
        log_offset: int,
        store_timestamp: int,
        unique_id: bytes | None,
        keys: bytes | None,
        tag: bytes | None,
    ) -> None:
        """Index an older record, in the order of the log, while the index is behind.

        Records before ``behind_from`` are skipped. Errors are raised.
        """
        if self.behind_from is None:
            raise StoreError("the index is not behind")
        if log_offset >= self.behind_from:
            key_hashes = self.hashes(topic, unique_id, keys, tag)
            self._write(key_hashes, log_offset, store_timestamp)
            self.behind_from = log_offset + 1

    def caught_up(self) -> None:
        """Index new records again: the replay has reached the end of the log."""
        if self.behind_from is not None:
            self._next_offset = self.behind_from
            self.behind_from = self.error = None

    # ---- reading ---------------------------------------------------------------------------------

    def query(
        self,
        topic: str,
        key: str,
        count_max: int = QUERY_COUNT_MAX,
        begin_timestamp: int = 0,
        end_timestamp: int = NEVER,
        index_type: str | None = None,
        log_end: int = NEVER,
    ) -> IndexHits:
        """Log offsets of the newest messages with a key (by its hash), stored between two times.

        Records at or after ``log_end`` are not readable and are skipped. ``index_type``: "T" if
        ``key`` is a tag; keys and unique ids need none. Times count in whole seconds from the
        beginning of a file, so a hit may be 999 ms before the range.
        """
        if index_type == TAG_INDEX_TYPE:
            key = TAG_PREFIX + key
        key_hash = index_key_hash(java_hash(f"{topic}#{key}"))
        count_max = min(count_max, QUERY_COUNT_MAX)
        found: list[int] = []
        for file in reversed(self._index_files):
            if file.overlaps(begin_timestamp, end_timestamp):
                self._touch(file)
                file.select(key_hash, begin_timestamp, end_timestamp, log_end, count_max, found)
            if file.begin_timestamp < begin_timestamp or len(found) >= count_max:
                break
        return IndexHits(sorted(found), self.end_timestamp, self.end_offset)

    def _touch(self, file: IndexFile) -> None:
        """Open a file; of the older files only the most recently used stay open."""
        file.open(self._files)
        if file is self._index_files[-1]:
            return
        self._opened.pop(file, None)
        self._opened[file] = None
        while len(self._opened) > self._open_files_max:
            self._close(next(iter(self._opened)))

    def _close(self, file: IndexFile) -> None:
        self._opened.pop(file, None)
        file.close()

    # ---- retention -------------------------------------------------------------------------------

    def delete_before(self, log_min: int) -> int:
        """Delete files, never the last, whose records the log has deleted; return how many."""
        deleted = 0
        while len(self._index_files) > 1 and self._index_files[0].end_offset < log_min:
            self._delete(self._index_files.pop(0))
            deleted += 1
        return deleted

    def destroy(self) -> None:
        """Delete all files; the index is like a new one."""
        while self._index_files:
            self._delete(self._index_files.pop())
        self._restart(None)

    def _delete(self, file: IndexFile) -> None:
        self._close(file)
        self._files.remove(file.path)
        self._dirty_ranges.removed(file.path)


def read_behind(files: FileSystem, directory: Path) -> int:
    """The log offset in ``index/behind``, 0 if it is unreadable; raises StoreFileMissingError."""
    text = files.read_file(directory / BEHIND_NAME, size_max=BEHIND_SIZE_MAX)
    return int(text) if text.isdigit() else 0


def _time_name(now_ms: int) -> str:
    local = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone()
    return f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
