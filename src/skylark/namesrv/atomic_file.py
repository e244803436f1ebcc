"""Small files that are rewritten whole: the KV table and the settings.

:func:`replace_file` writes a new file beside the old one, syncs it and renames it over the old
one, so that a crash leaves the old content or the new, never a part. The content before the change
is kept as ``.bak``, as Java does. The name server keeps nothing else on disk, hence no file layer
of its own; tests inject another writer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

#: Puts the content in the place of the file's old one, all or nothing; may raise OSError.
ReplaceFile = Callable[[Path, bytes], None]


def read_file(path: Path, size_max: int) -> bytes | None:
    """The content, None without such a file; one byte more than ``size_max`` shows a larger one."""
    try:
        with path.open("rb") as file:
            return file.read(size_max + 1)
    except FileNotFoundError:
        return None


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file, making its folders where they are missing."""
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
    """A file that follows a table in memory. Without a path the table is in memory only.

    Writes run in a thread, one at a time. Each encodes the table when its turn comes, so the last
    one to run has written the newest state.
    """

    def __init__(self, path: Path | None, replace: ReplaceFile = replace_file) -> None:
        self._path = path
        self._replace = replace
        self._turn = asyncio.Lock()

    async def save(self, encode: Callable[[], bytes]) -> None:
        """Write what ``encode`` gives; raises OSError."""
        if self._path is None:
            return
        async with self._turn:
            await asyncio.to_thread(self._replace, self._path, encode())
