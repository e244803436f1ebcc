"""Reader of a queue in the store files of its broker, for tasks on the same machine or mount.

A store has two kinds of files, both named by the position of their first byte, in twenty digits::

    <root>/consumequeue/<topic>/<queue id>/<file>   20 bytes per message: its position in the log
    <root>/commitlog/<file>                         the messages of all topics in order of arrival

The entries of a range give the positions of its records in the log. Records are read in large
chunks, including small gaps with messages of other queues, and are then cut out of them.

**Trust.** The broker has confirmed the range, so its entries and records exist. But they may still
be in the memory of the broker (``transientStorePoolEnable``), in files that a network file system
shows late, or already deleted; and the folder may belong to another broker. So every record must
have the size, magic, queue, offset and position of its entry. At the first record that does not,
or that is missing, reading stops, and the caller pulls from that offset on. Other kinds of queues
(RocksDB, batches) have no such files.

An open file can be read to its end even after it was deleted.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skylark.core.errors import SkylarkError
from skylark.core.hashing import java_hash
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.layout import (
    CQ_ENTRY_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD_SIZE,
    RECORD_SIZE_MIN,
    cq_dtype,
    record_head_dtype,
)
from skylark.wire.record_scan import gather

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Bytes between two wanted records that are read rather than skipped.
GAP_MAX: Final = 64 * 1024
READ_SIZE_MAX: Final = 8 * 1024 * 1024
#: Size of the chunks that the caller gets.
CHUNK_SIZE: Final = 1024 * 1024
#: Entries that are read at once.
ENTRY_COUNT: Final = 65_536
#: Smaller codes are positions in the extension file, not hash codes of tags.
TAGS_CODE_MIN: Final = -(1 << 31)


class UnusableFilesError(SkylarkError):
    """The files cannot be read or have other content; the caller pulls instead."""


class RecordChunk(msgspec.Struct, frozen=True):
    """Consecutive records with offsets below ``next_offset``."""

    body: bytes
    next_offset: int


class _Files:
    """A sequence of files, read as one range of bytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError as error:
            raise UnusableFilesError(f"{folder} cannot be read: {error.strerror}") from None
        self._starts = sorted(int(name) for name in names if len(name) == 20 and name.isdecimal())
        self._descriptors: dict[int, int] = {}

    def read(self, position: int, size: int) -> bytes:
        """These bytes, or fewer at the end; raises UnusableFilesError if there are none."""
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self._read_part(position, size)
            except UnusableFilesError:
                if not parts:
                    raise
                break
            parts.append(part)
            position += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_part(self, position: int, size: int) -> bytes:
        index = bisect_right(self._starts, position) - 1
        start = self._starts[index] if index >= 0 else 0
        try:
            if index < 0:
                raise FileNotFoundError
            part = os.pread(self._open(start), size, position - start)
        except OSError as error:
            raise UnusableFilesError(
                f"position {position} of {self._folder} cannot be read: {error.strerror or 'gone'}"
            ) from None
        if not part:
            raise UnusableFilesError(f"{self._folder} ends before position {position}")
        return part

    def _open(self, start: int) -> int:
        descriptor = self._descriptors.get(start)
        if descriptor is None:
            descriptor = os.open(self._folder / f"{start:020}", os.O_RDONLY)
            self._descriptors[start] = descriptor
        return descriptor

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


class StoreReader:
    """Reads ranges of one queue from a store; a context manager."""

    def __init__(self, root: Path, queue: MessageQueue, tags: Collection[str] = ()) -> None:
        """``tags``: only messages with the hash code of one of these tags are read.

        Raises UnusableFilesError.
        """
        folder = root / "consumequeue" / queue.topic / str(queue.queue_id)
        self._queue = queue
        self._codes = [java_hash(tag) for tag in tags]
        self._entries = _Files(folder)
        self._log = _Files(root / "commitlog")

    def __enter__(self) -> StoreReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.close()
        self._log.close()

    def read(self, start: int, end: int) -> Iterator[RecordChunk]:
        """The records from offset ``start`` up to ``end``.

        Raises UnusableFilesError at the first one that is missing.
        """
        import numpy as np

        for first in range(start, end, ENTRY_COUNT):
            count = min(ENTRY_COUNT, end - first)
            raw = self._entries.read(first * CQ_ENTRY_SIZE, count * CQ_ENTRY_SIZE)
            entries = np.frombuffer(raw[: len(raw) - len(raw) % CQ_ENTRY_SIZE], cq_dtype())
            blank = np.flatnonzero(entries["total_size"] < RECORD_SIZE_MIN)
            entries = entries[: blank[0]] if len(blank) else entries
            yield from self._read_entries(entries, first)
            if len(entries) < count:
                written = first + len(entries)
                raise UnusableFilesError(f"{self._queue} is written up to offset {written} only")

    def _read_entries(self, entries: npt.NDArray[np.void], first: int) -> Iterator[RecordChunk]:
        import numpy as np

        positions = entries["log_offset"].astype(np.int64)
        sizes = entries["total_size"].astype(np.int64)
        offsets = np.arange(first, first + len(entries))
        if self._codes:
            codes = entries["tags_code"].astype(np.int64)
            wanted = np.isin(codes, self._codes) | (codes < TAGS_CODE_MIN)
            positions, sizes, offsets = positions[wanted], sizes[wanted], offsets[wanted]
        yield from self._chunks(positions, sizes, offsets)
        if self._codes:
            yield RecordChunk(b"", first + len(entries))

    def _chunks(
        self,
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> Iterator[RecordChunk]:
        """The records at these positions, in chunks of about CHUNK_SIZE."""
        import numpy as np

        ends = positions + sizes
        if (positions[1:] < ends[:-1]).any():
            raise UnusableFilesError(
                f"the entries of {self._queue} are not in the order of the log"
            )
        totals = sizes.cumsum()
        after = 0
        while after < len(positions):
            first = after
            after = int(np.searchsorted(totals, totals[first] + CHUNK_SIZE, "right"))
            raw, problem = self._read(positions[first:after], ends[first:after])
            count = _valid_count(
                raw, positions[first:after], sizes[first:after], offsets[first:after], self._queue
            )
            if count:
                last = first + count - 1
                size = int(totals[last] - totals[first] + sizes[first])
                yield RecordChunk(raw[:size], int(offsets[last]) + 1)
            if first + count < after:
                at = first + count
                raise problem or UnusableFilesError(
                    f"position {int(positions[at])} of the log does not hold the message at offset"
                    f" {int(offsets[at])} of {self._queue}"
                )

    def _read(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> tuple[bytes, UnusableFilesError | None]:
        """Consecutive records up to the first that cannot be read, and the error for that one."""
        import numpy as np

        # Adjacent records form runs; runs with small gaps between them are read at once.
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        runs = deque(
            zip(
                starts[np.concatenate(([0], breaks))].tolist(),
                ends[np.concatenate((breaks, [len(ends)])) - 1].tolist(),
                strict=True,
            )
        )
        parts: list[bytes] = []
        while runs:
            start, end = run = runs.popleft()
            near = [run]
            while runs and runs[0][0] - end <= GAP_MAX and runs[0][1] - start <= READ_SIZE_MAX:
                near.append(run := runs.popleft())
                end = run[1]
            try:
                raw = self._log.read(start, end - start)
            except UnusableFilesError as error:
                return b"".join(parts), error
            if len(near) == 1:
                parts.append(raw)
            else:
                # Copied: a view would keep the whole read, gaps included, in memory.
                parts += [raw[first - start : last - start] for first, last in near]
            if len(raw) < end - start:
                return b"".join(parts), None
        return b"".join(parts), None


def _valid_count(raw: bytes, positions: Any, sizes: Any, offsets: Any, queue: MessageQueue) -> int:
    """How many of the consecutive records match their entries, counted from the first."""
    places = sizes.cumsum() - sizes
    there = int((places + sizes <= len(raw)).sum())
    heads = gather(raw, places[:there], RECORD_HEAD_SIZE).view(record_head_dtype()).ravel()
    right = (
        (heads["total_size"] == sizes[:there])
        & ((heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2))
        & (heads["queue_id"] == queue.queue_id)
        & (heads["queue_offset"] == offsets[:there])
        & (heads["log_offset"] == positions[:there])
    )
    return there if right.all() else int(right.argmin())
