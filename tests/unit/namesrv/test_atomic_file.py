"""Files that are rewritten whole: old content or new, never a part."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from skylark.core.clock import yield_once
from skylark.namesrv.atomic_file import SavedFile, read_file, replace_file


def test_replace_and_read(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    assert read_file(path, 10) is None
    replace_file(path, b"first")
    replace_file(path, b"second")
    assert read_file(path, 10) == b"second"
    assert sorted(each.name for each in path.parent.iterdir()) == ["file", "file.bak"]
    assert (path.parent / "file.bak").read_bytes() == b"first"


def test_a_larger_file_shows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    assert len(read_file(path, 10) or b"") == 11


def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


async def test_writes_take_turns_and_the_last_has_the_newest() -> None:
    gate = threading.Event()
    written: list[bytes] = []
    at_work = 0

    def slow(_path: Path, content: bytes) -> None:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        gate.wait(10)
        written.append(content)
        at_work -= 1

    file = SavedFile(Path("anywhere"), slow)
    state = [b"1"]
    first = asyncio.create_task(file.save(lambda: state[0]))
    await yield_once()
    state[0] = b"2"
    second = asyncio.create_task(file.save(lambda: state[0]))
    await yield_once()
    state[0] = b"3"
    gate.set()
    await asyncio.gather(first, second)
    assert written == [b"1", b"3"]


async def test_without_a_path_nothing_is_written() -> None:
    def never(_path: Path, _content: bytes) -> None:
        raise AssertionError

    await SavedFile(None, never).save(lambda: b"")
