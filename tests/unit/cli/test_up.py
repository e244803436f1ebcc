"""``skylark up`` as a process: ready line, signals, data, and how mistakes are told."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TIMEOUT_S = 30
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
    process = subprocess.Popen(
        command("--log-level", "warning", "up", *FREE_PORTS, *arguments),
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_command_and_clients_can_work(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path, "--ephemeral", "--topic", "orders:4", "--topic", "plain") as running:
        assert re.fullmatch(
            r"ready namesrv=127\.0\.0\.1:\d+ broker-a=127\.0\.0\.1:\d+\n", running.ready
        )
        listed = run(tmp_path, "topic", "list", "-n", running.namesrv)
        assert listed.stdout.splitlines() == [
            "TOPIC   BROKERS   QUEUE COUNT  PERM",
            "orders  broker-a            4  rw",
            "plain   broker-a            8  rw",
        ]
        running.process.send_signal(number)
        assert running.end() == (0, "", "")
    assert list(tmp_path.glob("skylark-*")) == []  # the temporary folder is gone


def test_data_stay_in_the_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    small = ("--set", "mappedFileSizeCommitLog=16777216", "--set", "maxIndexNum=2000")
    with up(tmp_path, "--data", str(data), *small, "--topic", "T:3"):
        pass
    with up(tmp_path, "--store", str(data), *small, "--topic", "T:5") as running:
        listed = run(tmp_path, "--output", "json", "topic", "list", "-n", running.namesrv)
        assert '"queue_count": 3' in listed.stdout
        locked = run(tmp_path, "up", *FREE_PORTS, "--data", str(data), *small)
        assert locked.returncode == 1
        assert str(data / "broker-a") in locked.stderr.splitlines()[-1]
        assert (locked.stdout, "Traceback" in locked.stderr) == ("", False)


def test_several_brokers_and_the_death_of_one(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral", "--brokers", "2", "--topic", "T:1") as running:
        assert list(running.addresses) == ["namesrv", "broker-a", "broker-b"]
        listed = run(tmp_path, "topic", "list", "-n", running.namesrv)
        assert listed.stdout.splitlines()[1].split() == ["T", "broker-a,", "broker-b", "2", "rw"]
        pid = running.process.pid
        first, second = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        assert running.process.stderr is not None
        died, back = (running.process.stderr.readline() for _ in range(2))
        assert re.search(
            r"broker-[ab] was killed by SIGKILL, .*; it is started again in 1 s$", died
        )
        assert re.search(r"broker-[ab] runs again, on 127\.0\.0\.1:\d+$", back)
        listed = run(tmp_path, "topic", "list", "-n", running.namesrv)
        assert listed.stdout.splitlines()[1].split() == ["T", "broker-a,", "broker-b", "2", "rw"]
        assert Path(f"/proc/{second}").exists()
        running.process.terminate()
        code, output, _ = running.end()
        assert (code, output) == (0, "")
        assert not Path(f"/proc/{second}").exists()
    assert list(tmp_path.glob("skylark-*")) == []


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "up", "--ephemeral", "--namesrv-port", port, "--broker-port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert port in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "maxMesageSize=1"], "did you mean maxMessageSize?"),
        (["--set", "listenPort=1"], "--set listenPort: this follows from --broker-port"),
        (["--set", "maxMessageSize"], "'maxMessageSize' is not KEY=VALUE"),
        (["--set", "maxMessageSize=big"], "maxMessageSize"),
        (["--topic", "orders:0"], "'orders:0' is not NAME[:QUEUES]"),
        (["--data", "x"], "--ephemeral has no folder to keep: leave out --data"),
        (["--brokers", "27"], "27 is not in the range 1<=x<=26"),
        (["--replicas", "5"], "5 is not in the range 0<=x<=4"),
        (["--sync"], "--sync: there is no replica to wait for"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(tmp_path, "up", "--ephemeral", *FREE_PORTS, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_that_cannot_be_ends_it(tmp_path: Path) -> None:
    done = run(tmp_path, "up", "--ephemeral", *FREE_PORTS, "--topic", "a b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Error: The specified topic: a b, contains illegal characters" in done.stderr
