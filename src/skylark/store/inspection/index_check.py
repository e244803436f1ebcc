"""Checks the index against the log: every key has its entry, every entry a record with that key.

Both are in the order of the log. For each slice of the log :func:`expected_entries` computes the
entries from the records. They are compared with the next ones of the index, all at once; only where
they differ, one by one.

Missing entries are warnings even in a store that was closed in order: a query misses messages, but
none is lost, and Apache's broker causes such gaps itself when it deletes the newest index file
after a crash and replays less than that file held. Repeated entries are notes: Java makes them when
its replay reaches the last record of the index once more, with all of its keys after some or all of
them.

If the index of a Skylark store was behind when the store was closed, ``index/behind`` exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skylark.core.hashing import index_key_hash, java_hash, java_hash_continue
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.index import BEHIND_NAME, NEVER, read_behind
from skylark.store.index_file import SECONDS_MAX
from skylark.store.inspection.check_findings import (
    Findings,
    Severity,
    Trouble,
    plural,
    pointing_entries,
)
from skylark.store.inspection.index_walk import CHUNK_ENTRIES, IndexWalk
from skylark.store.inspection.store_directory import INDEX_DIRECTORY, State, Survey
from skylark.store.log_replay import RecordTexts, runs
from skylark.wire.layout import FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

_REPEATED, _BEHIND, _NOWHERE = range(3)  # kinds of entries that belong to no record


class _Times(msgspec.Struct):
    """Store times of the records of a file, as far as its entries were right."""

    first: int = 0
    last: int = 0
    last_number: int = 0  # of the entry


class IndexChecks:
    """Compares the index of a store with the records of its log."""

    def __init__(self, files: FileSystem, survey: Survey, findings: Findings, log_min: int) -> None:
        self._survey = survey
        self._findings = findings
        self._log_min = log_min
        self._directory = survey.root / INDEX_DIRECTORY
        self._behind_from = _behind_from(files, self._directory)
        self._walk: IndexWalk | None = None
        if survey.index_files and survey.index_shape is None:
            text = "the number of slots of these files is unknown; give maxHashSlotNum"
            findings.add(Severity.NOTE, "index.shape", survey.index_files[0], 0, text)
        elif survey.index_shape is not None:
            self._walk = IndexWalk(files, survey.index_files, survey.index_shape, findings)
        self._last_offset = -1  # log offset of the last record that had its entries
        self._repeated = 0
        self._missing: tuple[int, int, int] | None = None  # first and last record, how many
        self._times: dict[int, _Times] = {}  # by file

    @property
    def entry_count(self) -> int:
        """Number of entries checked."""
        return 0 if self._walk is None else self._walk.passed_count

    def add(self, texts: RecordTexts) -> None:
        """Compare the keys of a slice; slices come in the order of the log."""
        walk = self._walk
        if walk is None:
            return
        self._pass_expired(walk)
        rows, hashes = expected_entries(texts)
        offsets = texts.columns.log_offset[rows]
        times = texts.columns.store_timestamp[rows]
        known = offsets < self._behind_from
        if not known.all():
            offsets, times, hashes = offsets[known], times[known], hashes[known]
        if not len(offsets):
            return
        entries = walk.peek(len(offsets))
        if (
            len(entries) == len(offsets)
            and (entries["log_offset"] == offsets).all()
            and (entries["key_hash"] == hashes).all()
        ):
            self._accept(walk, entries, times)
        else:
            self._compare_one_by_one(walk, offsets, hashes, times)

    def _pass_expired(self, walk: IndexWalk) -> None:
        import numpy as np

        while len(entries := walk.peek(CHUNK_ENTRIES)) and entries["log_offset"][0] < self._log_min:
            expired = int(np.searchsorted(entries["log_offset"], self._log_min))
            walk.advance(max(1, expired))

    def _accept(self, walk: IndexWalk, entries: npt.NDArray[Any], times: Int64s) -> None:
        """Pass entries with the right keys, and check their times."""
        import numpy as np

        files = entries["file"]
        for file in np.unique(files).tolist():
            rows = np.flatnonzero(files == file)
            begin = walk.pages[file].file.begin_timestamp
            seconds = np.clip((times[rows] - begin) // 1000, 0, SECONDS_MAX) if begin > 0 else 0
            # The first entry of a file may be relative to the end of the previous file.
            wrong = (entries["seconds"][rows] != seconds) & (entries["number"][rows] > 1)
            if wrong.any():
                entry = entries[rows[wrong.argmax()]]
                count = int(np.count_nonzero(wrong))
                text = f"entry {entry['number']} has the wrong time, one of {count} here"
                self._findings.add(Trouble.WRONG, "index.time", *walk.place(entry), text)
            seen = self._times.setdefault(file, _Times())
            if entries["number"][rows[0]] == 1:
                seen.first = int(times[rows[0]])
            seen.last, seen.last_number = int(times[rows[-1]]), int(entries["number"][rows[-1]])
        self._last_offset = int(entries["log_offset"][-1])
        walk.advance(len(entries))

    # ---- where index and log differ --------------------------------------------------------------

    def _compare_one_by_one(
        self, walk: IndexWalk, offsets: Int64s, hashes: Int64s, times: Int64s
    ) -> None:
        import numpy as np

        for first, last in runs(offsets):
            log_offset, wanted = int(offsets[first]), hashes[first:last]
            self._pass_extra(walk, log_offset)
            entries = self._entries_of(walk, log_offset, last - first)
            if not len(entries):
                self._miss(log_offset)
                continue
            self._report_missing(Severity.WARNING)
            repeated = len(entries) - len(wanted)
            ends_well = np.array_equal(entries["key_hash"][max(0, repeated) :], wanted)
            if ends_well and np.isin(entries["key_hash"], wanted).all():
                self._repeated += repeated
                walk.advance(repeated)
                self._accept(walk, entries[repeated:], times[first:last])
            else:
                text = f"the entries of the record at {log_offset} are not those of its keys"
                place = walk.place(entries[0])
                self._findings.add(Trouble.WRONG, "index.wrong", *place, text)
                self._last_offset = log_offset
                walk.advance(len(entries))

    def _entries_of(self, walk: IndexWalk, log_offset: int, count: int) -> npt.NDArray[Any]:
        """The next entries that point to this record: about ``count``."""
        while True:
            entries = walk.peek(count)
            same = entries["log_offset"] == log_offset
            if not same.all():
                return entries[: int(same.argmin())]
            if len(entries) < count:
                return entries
            count *= 2

    def _pass_extra(self, walk: IndexWalk, log_offset: int) -> None:
        """Pass entries before a record: they repeat the last one, or point to no record."""
        import numpy as np

        while len(entries := walk.peek(CHUNK_ENTRIES)):
            before = entries["log_offset"] < log_offset
            count = len(entries) if before.all() else int(before.argmin())
            self._report_extra(walk, entries[:count], np.full(count, _NOWHERE))
            walk.advance(count)
            if count < len(entries):
                return

    def _report_extra(
        self, walk: IndexWalk, entries: npt.NDArray[Any], kinds: npt.NDArray[Any], log_end: int = 0
    ) -> None:
        """Report entries that belong to no record, in runs."""
        kinds[entries["log_offset"] == self._last_offset] = _REPEATED
        for start, stop in runs(kinds + 10 * entries["file"]):
            if kinds[start] == _REPEATED:
                self._repeated += stop - start
                continue
            trouble, where = Trouble.WRONG, "where no valid record with a key begins"
            if kinds[start] == _BEHIND:
                trouble, where = Trouble.AHEAD_OR_BEHIND, f"beyond the end of the log at {log_end}"
            text = pointing_entries(entries["number"][start], stop - start)
            text += f" to {entries['log_offset'][start]}, {where}"
            self._findings.add(trouble, "index.extra", *walk.place(entries[start]), text)

    def _miss(self, log_offset: int) -> None:
        first, _, count = self._missing or (log_offset, 0, 0)
        self._missing = (first, log_offset, count + 1)

    def _report_missing(self, severity: Severity) -> None:
        """Report consecutive records without entries, at the end of their run."""
        if self._missing is None:
            return
        first, last, count = self._missing
        self._missing = None
        text = f"the keys of {plural(count, 'record')} from {first} to {last} are missing"
        self._findings.add(severity, "index.missing", self._directory, first, text)

    # ---- end -------------------------------------------------------------------------------------

    def finish(self, log_end: int) -> None:
        """Check the remaining entries, after the whole log was read."""
        import numpy as np

        walk = self._walk
        if walk is None:
            return
        self._pass_expired(walk)
        in_use = self._survey.state is State.IN_USE
        self._report_missing(Severity.NOTE if in_use else Severity.WARNING)
        while len(entries := walk.peek(CHUNK_ENTRIES)):
            kinds = np.where(entries["log_offset"] >= log_end, _BEHIND, _NOWHERE)
            self._report_extra(walk, entries, kinds, log_end)
            walk.advance(len(entries))
        if self._repeated:
            text = f"index entries that repeat others: {self._repeated}"
            self._findings.add(Severity.NOTE, "index.repeated", self._directory, 0, text)
        if self._behind_from != NEVER:
            text = f"the index is behind from {self._behind_from} on: the next start completes it"
            path = self._directory / BEHIND_NAME
            self._findings.add(Severity.NOTE, "index.behind", path, 0, text)
        self._compare_times(walk)
        walk.close()

    def _compare_times(self, walk: IndexWalk) -> None:
        """Compare the times in the header with those of the first and the last entry."""
        for file, seen in self._times.items():
            page = walk.pages[file]
            if seen.first and page.file.begin_timestamp != seen.first:
                text = (
                    f"the header begins at {page.file.begin_timestamp} ms instead of {seen.first}"
                )
                self._findings.add(Trouble.WRONG, "index.header", page.file.path, 0, text)
            if seen.last_number == page.entry_count and page.file.end_timestamp != seen.last:
                text = f"the header ends at {page.file.end_timestamp} ms instead of {seen.last}"
                self._findings.add(Trouble.WRONG, "index.header", page.file.path, 8, text)


def _behind_from(files: FileSystem, directory: Path) -> int:
    """Log offset from which on the index is known to be incomplete."""
    try:
        return read_behind(files, directory)
    except StoreFileError:
        return NEVER


def expected_entries(texts: RecordTexts) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All index entries in their order: the row of the record, and the hash of the key.

    Computed from the property texts in the simplest way, and not with the fast code of the store: a
    mistake there must not hide itself.
    """
    import numpy as np

    kinds = (texts.columns.sys_flag & FLAG_TRANSACTION_MASK).tolist()
    prefixes = [java_hash(f"{name}#") for name in texts.names]
    properties = zip(
        kinds,
        texts.topic_numbers.tolist(),
        texts.values("UNIQ_KEY"),
        texts.values("KEYS"),
        texts.tags,
        strict=True,
    )
    rows: list[int] = []
    hashes: list[int] = []
    tag_hashes: dict[tuple[int, bytes], int] = {}  # few tags, many records
    for row, (kind, topic_number, unique_id, keys, tag) in enumerate(properties):
        if kind == FLAG_TRANSACTION_ROLLBACK:
            continue
        words = [] if unique_id is None else [unique_id.decode("utf-8", "replace")]
        if keys is not None:
            words += [word for word in keys.decode("utf-8", "replace").split(" ") if word]
        prefix = prefixes[topic_number]
        hashes += [index_key_hash(java_hash_continue(prefix, word)) for word in words]
        if tag is not None:
            tag_hash = tag_hashes.get((topic_number, tag))
            if tag_hash is None:
                text = "T#" + tag.decode("utf-8", "replace")
                tag_hash = index_key_hash(java_hash_continue(prefix, text))
                tag_hashes[topic_number, tag] = tag_hash
            hashes.append(tag_hash)
        rows += [row] * (len(words) + (tag is not None))
    return np.array(rows, np.int64), np.array(hashes, np.int64)
