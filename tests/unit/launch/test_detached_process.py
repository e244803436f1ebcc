"""Work in the background, started by a program of its own: a test run does not fork."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.core.clock import LoopClock
from skylark.launch import detached_process as background
from skylark.testing import VirtualClock

PROGRAM = """
import os, signal, sys
from pathlib import Path
from skylark.launch.detached_process import BackgroundError, in_background

def good(ready):
    print("hello")
    ready(f"{os.getpid()} {os.getsid(0)}")
    ready("only the first counts")
    sys.stdin.read()  # nothing is there
    raise ValueError("too late to be told")

def bad(ready):
    raise ValueError("no luck")

def dead(ready):
    os.kill(os.getpid(), signal.SIGKILL)

def quiet(ready):
    pass

def interrupted(ready):
    ready("nobody reads this")
    signal.pause()

if sys.argv[1] == "interrupted":  # in the middle of the fork, whose callbacks lose exceptions
    parent = os.getpid()
    os.register_at_fork(before=lambda: os.kill(parent, signal.SIGINT))
try:
    text = in_background(globals()[sys.argv[1]], Path(sys.argv[2]), lambda error: (str(error), 7))
except BackgroundError as error:
    print(f"{error.exit_code}: {error}")
except KeyboardInterrupt:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("interrupted, and no child is left")
else:
    pid, session = text.split()
    print(pid == session != str(os.getpid()))
    os.waitpid(int(pid), 0)
"""


def run(work: str, log: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, work, str(log)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_it_is_told_when_the_work_is_ready(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run("good", log) == "True"
    assert sorted(log.read_text().splitlines()) == ["Error: too late to be told", "hello"]


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("bad", "7: no luck"),
        ("dead", "1: the background process ended with -9 before it was ready; see {log}"),
        ("quiet", "1: the background process ended with 0 before it was ready; see {log}"),
    ],
)
def test_it_is_told_why_it_never_was(tmp_path: Path, work: str, told: str) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    assert run(work, log) == told.format(log=log)
    assert log.read_text().startswith("before\n")


def test_an_interrupt_during_the_fork_is_not_lost(tmp_path: Path) -> None:
    assert run("interrupted", tmp_path / "log") == "interrupted, and no child is left"


def test_a_large_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LOG_SIZE_MAX", 3)
    log = tmp_path / "up.log"
    for text in ("one\n", "two\n"):
        os.close(background._open_log(log))
        log.write_text(text)
    os.close(background._open_log(log))
    assert (log.read_text(), (tmp_path / "up.log.1").read_text()) == ("", "two\n")


async def test_a_log_that_grows_is_put_aside_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "LOG_SIZE_MAX", 100)
    clock, log = VirtualClock(), tmp_path / "up.log"
    aside = tmp_path / "up.log.1"
    writers = [background._open_log(log) for _ in range(2)]  # processes of one cluster
    limiting = asyncio.create_task(background.limit_log(log, clock))
    seen = b""
    for number in range(40):
        os.write(writers[number % 2], b"line %03d\n" % number)
        if number % 8 == 7:
            await clock.advance(background.LOG_INTERVAL_S)
            async with LoopClock().timeout(10):  # a thread moves it
                while log.stat().st_size > 100:
                    await LoopClock().sleep(0.001)
        if aside.exists():
            seen += aside.read_bytes()
            aside.unlink()
        assert log.stat().st_size <= 100 + 8 * 9
    assert seen + log.read_bytes() == b"".join(b"line %03d\n" % number for number in range(40))
    assert seen
    limiting.cancel()
    for writer in writers:
        os.close(writer)
