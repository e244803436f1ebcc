"""A cluster in a process of its own, for tests and documents: ``skylark up --ephemeral``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT_S = 30
#: Files of a size that a test can afford.
SMALL_FILES = (
    "--set", f"mappedFileSizeCommitLog={16 << 20}",
    "--set", "mappedFileSizeConsumeQueue=60000",
    "--set", "maxHashSlotNum=500",
    "--set", "maxIndexNum=2000",
)  # fmt: skip


@contextmanager
def cluster(home: Path, *arguments: str) -> Iterator[str]:
    """The address of its name server; ``arguments`` are further ones of the command."""
    environ = {**os.environ, "HOME": str(home), "TMPDIR": str(home)}
    with (home / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "skylark", "--log-level", "warning", "up", "--ephemeral"),
                *("--namesrv-port", "0", "--broker-port", "0", *SMALL_FILES, *arguments),
            ],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready.startswith("ready namesrv="):
            raise RuntimeError(f"skylark up did not start: {(home / 'up.log').read_text()}")
        yield ready.split()[1].removeprefix("namesrv=")
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
