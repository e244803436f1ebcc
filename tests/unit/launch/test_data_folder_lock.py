"""A data folder has one user at a time, and foreign folders are left alone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylark.core.errors import ConfigError
from skylark.launch.data_folder_lock import (
    LOCK_NAME,
    DataFolderError,
    DataInUseError,
    Supervisor,
    check_folder,
    claimed,
)

HOLDER = """
import sys
from pathlib import Path
from skylark.launch.data_folder_lock import claimed
with claimed(Path(sys.argv[1]), detached=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(data: Path) -> Iterator[int]:
    """Another process that holds the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process.pid
        process.communicate(timeout=30)


def test_a_folder_is_made_and_held(tmp_path: Path) -> None:
    data = tmp_path / "a" / "b"
    with holder(data) as pid:
        assert json.loads((data / LOCK_NAME).read_text()) == {"pid": pid, "detached": True}
        with (
            pytest.raises(DataInUseError, match=rf"already runs on \S+ \(process {pid}\)"),
            claimed(data),
        ):
            pass
        found = Supervisor.find(data)
        assert found is not None
        assert (found.pid, found.detached, found.running) == (pid, True, True)
    assert not found.running
    found.terminate()  # harmless: it is gone, and its number is nobody's concern
    found.close()
    assert Supervisor.find(data) is None
    with claimed(data):
        assert json.loads((data / LOCK_NAME).read_text()) == {"pid": os.getpid(), "detached": False}


def test_a_request_to_end_reaches_the_holder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        found = Supervisor.find(tmp_path)
        assert found is not None
        found.terminate()
        assert process.wait(timeout=30) == -15
        assert not found.running
        found.close()


def test_where_nothing_is_nobody_runs(tmp_path: Path) -> None:
    assert Supervisor.find(tmp_path) is None
    assert Supervisor.find(tmp_path / "nosuch") is None
    (tmp_path / LOCK_NAME).write_text("what is this")
    assert Supervisor.find(tmp_path) is None


@pytest.mark.parametrize(
    "names",
    [
        [],
        [".hidden", "lost+found"],
        ["broker-a", "report.txt"],
        ["namesrv"],
        ["up.lock", "up.log", "up.log.1"],
    ],
)
def test_folders_that_are_ours_or_nobodys(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    check_folder(tmp_path)
    check_folder(tmp_path / "nosuch")


def test_folders_of_others(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    with pytest.raises(
        ConfigError, match=r"is not a data folder of skylark: it contains a, b, c: "
    ):
        check_folder(tmp_path)
    (tmp_path / "d").mkdir()
    with pytest.raises(ConfigError, match=r"it contains a, b, c, \.\.\.: "), claimed(tmp_path):
        pass
    assert not (tmp_path / LOCK_NAME).exists()
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(ConfigError, match="is the store of a single broker"):
        check_folder(tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DataFolderError) as caught, claimed(tmp_path):
        pass
    assert str(caught.value) == f"cannot use the data folder {tmp_path}: No space left on device"
