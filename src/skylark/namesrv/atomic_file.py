"""Atomic files: the KV table and the settings of the name server, replaced as a whole.

:func:`replace_file` writes a new file beside the old one, syncs it and renames it over the old
one, so a crash leaves either the old or the new content. The old content is kept as ``.bak``, as in
Java. The name server has no other files; tests inject another writer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from skylark.core.config import TEXT_SIZE_MAX, edit_properties

#: Replaces the content of a file atomically; may raise OSError.
ReplaceFile = Callable[[Path, bytes], None]


def read_file(path: Path, size_max: int) -> bytes | None:
    """The content, None without such a file; returns ``size_max`` + 1 bytes of a larger file."""
    try:
        with path.open("rb") as file:
            return file.read(size_max + 1)
    except FileNotFoundError:
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file; creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".tmp")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        shutil.copy2(path, path.with_name(path.name + ".bak"))
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


class SavedFile:
    """The file of a table in memory. Without a path nothing is saved.

    Writes run in a thread, one at a time. Each encodes the table when it starts, so the last write
    has the newest state.
    """

    def __init__(self, path: Path | None, replace: ReplaceFile = replace_file) -> None:
        self._path = path
        self._replace = replace
        self._turn = asyncio.Lock()

    async def save(self, encode: Callable[[], bytes]) -> None:
        """Write the result of ``encode``; raises OSError."""
        if self._path is None:
            return
        async with self._turn:
            await asyncio.to_thread(self._replace, self._path, encode())

    async def edit(self, changes: Mapping[str, str]) -> None:
        """Change settings in the file and leave the rest as it is; raises OSError, ConfigError."""
        if self._path is not None:
            async with self._turn:
                await asyncio.to_thread(self._edit, self._path, changes)

    def _edit(self, path: Path, changes: Mapping[str, str]) -> None:
        content = (read_file(path, TEXT_SIZE_MAX) or b"").decode("iso-8859-1")
        self._replace(path, edit_properties(content, changes).encode("iso-8859-1"))
