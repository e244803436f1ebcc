"""The filter for the stderr of Spark's processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.spark.java_stderr import without_daemon_tracebacks, without_noise

OPENING = b"Traceback (most recent call last):\n"
MANAGER = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
CODE = b"    code = worker(sock, authenticated)\n"
MARKS = b"           ^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
WORKER = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
HANGUP = b"BrokenPipeError: [Errno 32] Broken pipe\n"
ELSEWHERE = b'  File "/x/pyspark.zip/pyspark/worker.py", line 9, in main\n'

NOISE = [OPENING, MANAGER, CODE, MARKS, WORKER, HANGUP]


@pytest.mark.parametrize(
    "lines",
    [
        NOISE,
        [b"PySpark daemon failed to flush the output to the worker process:\n", *NOISE],
        [*NOISE[:-1], b"ConnectionResetError: [Errno 104] Connection reset by peer\n"],
        [OPENING, OPENING, MANAGER, CODE, MANAGER, CODE, WORKER, HANGUP],  # two workers at once
        [OPENING, MANAGER, OPENING, MANAGER, WORKER, HANGUP, WORKER, HANGUP],
        [OPENING, OPENING, MANAGER, MANAGER, WORKER, WORKER, HANGUP, HANGUP],
    ],
)
def test_tracebacks_of_a_disconnected_daemon_are_dropped(lines: list[bytes]) -> None:
    assert list(without_daemon_tracebacks([b"a\n", *lines, b"b\n"])) == [b"a\n", b"b\n"]


@pytest.mark.parametrize("written", range(len(NOISE)))
def test_it_may_be_ended_in_the_middle(written: int) -> None:
    assert list(without_daemon_tracebacks([b"a\n", *NOISE[:written]])) == [b"a\n"]


@pytest.mark.parametrize(
    "lines",
    [
        [b"plain\n", b"\n", b"    indented\n"],
        [OPENING, MANAGER, CODE, ELSEWHERE, b"    work()\n", b"ValueError: bad\n"],
        [OPENING, MANAGER, CODE, b"OSError: [Errno 12] Cannot allocate memory\n"],
        [OPENING, ELSEWHERE, b"    work()\n", HANGUP],
        [HANGUP],
    ],
)
def test_every_other_traceback_is_passed_on(lines: list[bytes]) -> None:
    assert list(without_daemon_tracebacks(lines)) == lines


def test_processes_started_meanwhile_speak_through_it(tmp_path: Path) -> None:
    """The rest of this process, and what it starts later, keep the stderr they had."""
    program = tmp_path / "program.py"
    said = b"WARNING: Using incubator modules: jdk.incubator.vector\n" + b"".join(NOISE) + b"kept\n"
    speak = f"import os; os.write(2, {said!r})"
    program.write_text(
        "import subprocess, sys, threading\n"
        f"from {without_noise.__module__} import without_noise\n"
        "print('before', file=sys.stderr)\n"
        "with without_noise():\n"
        f"    child = subprocess.Popen([sys.executable, '-c', {speak!r}])\n"
        "child.wait()\n"
        "[t.join() for t in threading.enumerate() if t.name == 'stderr-of-java']\n"
        "print('after', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, timeout=60, check=True, env=os.environ
    )
    assert done.stderr == b"before\nkept\nafter\n"
