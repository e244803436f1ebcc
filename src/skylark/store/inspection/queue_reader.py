"""Reads entries of queue files without owning the store.

The store itself reads through :mod:`skylark.store.queue_files`, which may create and truncate. Here
files are only read, and a bounded number of them is kept open.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skylark.store.file_system import FileHandle, FileSystem
from skylark.store.inspection.store_directory import QueueDirectory
from skylark.wire.layout import batch_cq_dtype, cq_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

OPEN_FILES_MAX: Final = 64
CHUNK_ENTRIES: Final = 1 << 16


class QueueReader:
    """Reads entries of queue files, and keeps recently used files open."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._handles: dict[Path, FileHandle] = {}  # least recently used first

    def read(self, queue: QueueDirectory, index: int, count: int) -> npt.NDArray[Any]:
        """Up to ``count`` entries from ``index`` on, as many as the files have room for.

        A missing file between others reads as zeros.
        """
        import numpy as np

        size = queue.entry_size
        position, end = index * size, (index + count) * size
        pieces = []
        while position < end and queue.starts and position < queue.starts[-1] + queue.file_size:
            start = position - position % queue.file_size
            length = min(end, start + queue.file_size) - position
            if start in queue.starts:
                piece = self._open(queue.path / f"{start:020d}").read(position - start, length)
            else:
                piece = b""
            pieces.append(piece.ljust(length, b"\0"))
            position += length
        dtype = batch_cq_dtype() if queue.is_batch else cq_dtype()
        return np.frombuffer(b"".join(pieces), dtype)

    def used(
        self, queue: QueueDirectory, index: int, end: int | None = None
    ) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The entries from ``index`` on up to ``end`` or the first unused one, in pieces.

        Each piece comes with the index of its first entry.
        """
        while end is None or index < end:
            wanted = CHUNK_ENTRIES if end is None else min(CHUNK_ENTRIES, end - index)
            entries = self.read(queue, index, wanted)
            is_used = entries["total_size"] > 0
            count = len(entries) if is_used.all() else int(is_used.argmin())
            if count:
                yield index, entries[:count]
            index += count
            if count < wanted:
                return

    def _open(self, path: Path) -> FileHandle:
        handle = self._handles.pop(path, None)
        if handle is None:
            while len(self._handles) >= OPEN_FILES_MAX:
                self._handles.pop(next(iter(self._handles))).close()
            handle = self._files.open_file(path, writable=False)
        self._handles[path] = handle
        return handle

    def close(self) -> None:
        """Close all files."""
        while self._handles:
            self._handles.popitem()[1].close()
