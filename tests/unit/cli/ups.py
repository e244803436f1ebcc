"""``skylark up`` as a process, for the tests of its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Ends a test that hangs; a busy machine stays below it.
TIMEOUT_S = 120
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")


def environment(home: Path) -> dict[str, str]:
    hidden = {"SKYLARK_NAMESRV", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_ADDR", "XDG_DATA_HOME"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return {**kept, "HOME": str(home), "TMPDIR": str(home)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "skylark", *arguments]


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class Up:
    """A cluster that runs."""

    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self.process = process
        self.ready = ready
        pairs = (pair.partition("=") for pair in ready.split()[1:])
        self.addresses = {name: address for name, _, address in pairs}

    @property
    def namesrv(self) -> str:
        return self.addresses["namesrv"]

    def end(self) -> tuple[int, str, str]:
        """Exit code, further output, log."""
        output, log = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, output, log


@contextmanager
def up(home: Path, *arguments: str) -> Iterator[Up]:
    with started(home, "--log-level", "warning", "up", *FREE_PORTS, *arguments) as running:
        yield running


@contextmanager
def started(home: Path, *arguments: str) -> Iterator[Up]:
    process = subprocess.Popen(
        command(*arguments),
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Up(process, process.stdout.readline())
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=TIMEOUT_S)
