"""Reading a queue from the files of its broker, where they can be reached.

A store is two kinds of files, both named by the position of their first byte, in twenty digits::

    <root>/consumequeue/<topic>/<queue id>/<file>   20 bytes for each message: its place in the log
    <root>/commitlog/<file>                         the messages of all topics, as they came

The entries of a range say which bytes of the log are wanted. These are read in large pieces, small
gaps with messages of other queues included, and the records are picked out of them.

**Trust.** The range is one that the broker has confirmed, so its entries and records have been
written. But they may be in the broker's memory only (``transientStorePoolEnable``), in files that
a network file system shows late, or deleted meanwhile; and a folder may belong to another broker.
So every record must have the size, magic, queue, offset and position that its entry says; at the
first that has not, or that is not there, reading stops, and the caller pulls from there on. Queues
of other kinds (RocksDB, batches) have no such files.

An open file can be read to its end even if it is deleted meanwhile.
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
#: Records are handed on when they are so many bytes.
PIECE_SIZE: Final = 1024 * 1024
#: Entries looked at together.
ENTRY_COUNT: Final = 65_536
#: Codes below stand for places in a file of extensions, not for tags.
TAGS_CODE_MIN: Final = -(1 << 31)


class UnusableFilesError(SkylarkError):
    """The files do not hold what they should, or cannot be read; pulling goes on."""


class Piece(msgspec.Struct, frozen=True):
    """Records one after the other, of offsets below ``next_offset``."""

    body: bytes
    next_offset: int


class _Files:
    """Files of equal size that continue each other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError as error:
            raise UnusableFilesError(f"{folder} cannot be read: {error.strerror}") from None
        self._starts = sorted(int(name) for name in names if len(name) == 20 and name.isdecimal())
        self._descriptors: dict[int, int] = {}

    def read(self, position: int, size: int) -> bytes:
        """As many of these bytes as there are; raises UnusableFilesError if there are none."""
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
    """Ranges of one queue, read from a store; use it as a context manager."""

    def __init__(self, root: Path, queue: MessageQueue, tags: Collection[str] = ()) -> None:
        """``tags``: only messages whose code is that of one of these are read.

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

    def read(self, start: int, end: int) -> Iterator[Piece]:
        """The records from offset ``start`` up to ``end``.

        Raises UnusableFilesError at the first that is not there.
        """
        import numpy as np

        for first in range(start, end, ENTRY_COUNT):
            count = min(ENTRY_COUNT, end - first)
            raw = self._entries.read(first * CQ_ENTRY_SIZE, count * CQ_ENTRY_SIZE)
            entries = np.frombuffer(raw[: len(raw) - len(raw) % CQ_ENTRY_SIZE], cq_dtype())
            blank = np.flatnonzero(entries["total_size"] < RECORD_SIZE_MIN)
            entries = entries[: blank[0]] if len(blank) else entries
            yield from self._of_entries(entries, first)
            if len(entries) < count:
                written = first + len(entries)
                raise UnusableFilesError(f"{self._queue} is written up to offset {written} only")

    def _of_entries(self, entries: npt.NDArray[np.void], first: int) -> Iterator[Piece]:
        import numpy as np

        positions = entries["log_offset"].astype(np.int64)
        sizes = entries["total_size"].astype(np.int64)
        offsets = np.arange(first, first + len(entries))
        if self._codes:
            codes = entries["tags_code"].astype(np.int64)
            wanted = np.isin(codes, self._codes) | (codes < TAGS_CODE_MIN)
            positions, sizes, offsets = positions[wanted], sizes[wanted], offsets[wanted]
        yield from self._pieces(positions, sizes, offsets)
        if self._codes:
            yield Piece(b"", first + len(entries))

    def _pieces(
        self,
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> Iterator[Piece]:
        """The records at these positions, in pieces that are worth decoding."""
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
            after = int(np.searchsorted(totals, totals[first] + PIECE_SIZE, "right"))
            raw, problem = self._read(positions[first:after], ends[first:after])
            count = _right_count(
                raw, positions[first:after], sizes[first:after], offsets[first:after], self._queue
            )
            if count:
                last = first + count - 1
                size = int(totals[last] - totals[first] + sizes[first])
                yield Piece(raw[:size], int(offsets[last]) + 1)
            if first + count < after:
                at = first + count
                raise problem or UnusableFilesError(
                    f"position {int(positions[at])} of the log does not hold the message at offset"
                    f" {int(offsets[at])} of {self._queue}"
                )

    def _read(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> tuple[bytes, UnusableFilesError | None]:
        """The records one after the other, up to where the log cannot be read, and why not."""
        import numpy as np

        # Neighbouring records are runs; runs that stand near each other are read together.
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
                # Copied, for a view would keep all that was read, gaps included.
                parts += [raw[first - start : last - start] for first, last in near]
            if len(raw) < end - start:
                return b"".join(parts), None
        return b"".join(parts), None


def _right_count(raw: bytes, positions: Any, sizes: Any, offsets: Any, queue: MessageQueue) -> int:
    """How many of the records, which stand one after the other, are those that entries mean."""
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
