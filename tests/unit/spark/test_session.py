"""Settings of a session, the Python of its workers, the import of the plug-in, and stderr."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from skylark.core.errors import ConfigError
from skylark.spark import session
from skylark.spark.session import (
    check_worker_python,
    session_settings,
    without_daemon_tracebacks,
    without_late_workers,
    without_noise,
)


def test_settings_of_a_local_session() -> None:
    settings = session_settings("local[3]")
    assert settings["spark.sql.shuffle.partitions"] == "3"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.speculation"] == "false"
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert session_settings("local")["spark.sql.shuffle.partitions"] == "1"
    assert session_settings("local[2,3]")["spark.sql.shuffle.partitions"] == "2"
    assert session_settings("local[*]")["spark.sql.shuffle.partitions"] == str(os.cpu_count())


class Builder:
    """Records the settings that it gets."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def master(self, url: str) -> Builder:
        return self

    def appName(self, name: str) -> Builder:
        return self

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Builder:
        """What the JVM and its workers print."""
        said = "echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2; echo bad >&2"
        subprocess.run(["sh", "-c", said], check=True, timeout=60)
        return self


def test_a_quiet_session_is_quiet_and_errors_of_others_pass(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=Builder()))
    own = {"spark.driver.extraJavaOptions": "-Xss4m", "spark.ui.enabled": "true"}
    made = cast("Builder", session.make_session("spark://h:1", conf=own, quiet=True))
    for thread in threading.enumerate():
        if thread.name == "stderr-of-java":
            thread.join(10)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "bad\nafter\n"
    first, _, rest = made.settings["spark.driver.extraJavaOptions"].partition(" ")
    assert (made.settings["spark.ui.enabled"], rest) == ("true", "-Xss4m")
    name, _, file = first.partition("=")
    assert name == "-Dlog4j2.configurationFile"
    assert "rootLogger.level = off" in Path(file.removeprefix("file://")).read_text()


def test_other_sessions_log_as_usual(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=Builder()))
    made = cast("Builder", session.make_session("spark://h:1"))
    assert capfd.readouterr().err.startswith("WARNING: Using incubator modules")
    assert "spark.driver.extraJavaOptions" not in made.settings
    assert made.settings["spark.ui.enabled"] == "false"


@pytest.mark.parametrize(("given", "used"), [(None, "127.0.0.1"), ("127.0.0.2", "127.0.0.2")])
def test_a_local_session_uses_loopback_unless_an_address_is_set(
    monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, given or "")
        monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv("SPARK_LOCAL_IP", given)
    monkeypatch.setattr(session, "java_home", lambda *_: Path("/java"))
    session.prepare_environment()
    assert os.environ["SPARK_LOCAL_IP"] == used
    assert (os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"]) == ("/java", sys.executable)


def test_a_connect_server_is_no_master() -> None:
    with pytest.raises(ConfigError, match=r"sc://h:1 is a Spark Connect server.*pipeline file"):
        session.make_session("sc://h:1")


def test_a_missing_pyarrow_is_reported_before_workers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"no module pyarrow: pip install 'skylark-mq\[spark\]'"):
        session.make_session("local[2]")


def test_the_memory_of_workers_is_not_limited() -> None:
    """Spark's limit ends them in the middle of a task; each prints "Current mem limits"."""
    for master in ("local[2]", "spark://h:7077"):
        assert not [name for name in session_settings(master) if name.endswith("memory")]


def test_workers_may_start_slowly() -> None:
    for master in ("local[2]", "spark://h:7077"):
        assert session_settings(master)["spark.python.authenticate.socketTimeout"] == "120s"


def test_settings_on_a_cluster() -> None:
    settings = session_settings("spark://h:7077")
    # They become limits of the process, and ended reads of 50,000 rows with MemoryError.
    assert not [name for name in settings if "memory" in name.lower()]
    assert settings["spark.sql.execution.arrow.maxBytesPerBatch"] == str(8 << 20)
    assert "spark.driver.host" not in settings
    assert "spark.sql.shuffle.partitions" not in settings


def fake_python(folder: Path, answer: str) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho {answer}\n")
    program.chmod(0o755)
    return str(program)


def test_the_python_of_the_workers(tmp_path: Path) -> None:
    check_worker_python(sys.executable)
    ours = f"{sys.version_info[0]} {sys.version_info[1]}"
    check_worker_python(fake_python(tmp_path, ours))
    with pytest.raises(ConfigError, match=r"is Python 3\.1, and this is.*set it to .*python"):
        check_worker_python(fake_python(tmp_path, "3 1"))
    with pytest.raises(ConfigError, match="has no skylark"):
        check_worker_python(fake_python(tmp_path, f"{ours} skylark"))
    with pytest.raises(ConfigError, match="is no working Python"):
        check_worker_python(str(tmp_path / "nosuch"))


PROGRAM = """
import socket, sys, time
import pyspark.sql.datasource
before = set(sys.modules)
def refuse(*_, **__):
    raise AssertionError("a socket was opened")
socket.socket.connect = refuse
began = time.process_time()
import pyspark_rocketmq
took = time.process_time() - began
assert issubclass(pyspark_rocketmq.DefaultSource, pyspark.sql.datasource.DataSource)
assert pyspark_rocketmq.DefaultSource.name() == "rocketmq"
heavy = {"numpy", "pyarrow", "pandas", "asyncio"} & (set(sys.modules) - before)
print(took, *heavy)
"""


@pytest.mark.spec("spark.9.2")
def test_the_plug_in_is_imported_quickly() -> None:
    """After pyspark itself, which has been loaded wherever Spark looks for sources."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    took, *heavy = found.stdout.split()
    assert float(took) < 0.3
    assert heavy == []


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
def test_the_stream_may_end_inside_a_traceback(written: int) -> None:
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


def test_stderr_of_processes_started_meanwhile_is_filtered(tmp_path: Path) -> None:
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


LATE = b"""Traceback (most recent call last):
  File "/x/pyspark.zip/pyspark/util.py", line 822, in local_connect_and_auth
FileNotFoundError: [Errno 2] No such file or directory

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/x/pyspark.zip/pyspark/util.py", line 828, in local_connect_and_auth
pyspark.errors.PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket: x.sock
""".splitlines(keepends=True)
OTHER = [b"Traceback (most recent call last):\n", b'  File "x.py", line 1, in y\n', b"E: z\n"]


def test_the_tracebacks_of_late_workers_are_dropped() -> None:
    lines = [b"a\n", *LATE, b"b\n", *OTHER, *LATE, *OTHER]
    assert list(without_late_workers(lines)) == [b"a\n", b"b\n", *OTHER, *OTHER]


def test_a_late_worker_does_not_hide_what_follows_for_long() -> None:
    follows = [b"%d\n" % number for number in range(200)]
    assert list(without_late_workers([*LATE[:3], *follows]))[-100:] == follows[-100:]


def test_an_opening_alone_is_passed_on() -> None:
    assert list(without_late_workers([*OTHER[:1], *OTHER])) == [*OTHER[:1], *OTHER]
    assert list(without_late_workers(OTHER[:1])) == OTHER[:1]
