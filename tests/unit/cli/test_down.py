"""``skylark up --detach`` and ``skylark down``, as processes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.launch.detached_process import LOG_SIZE_MAX
from tests.interop.process import poll_until
from tests.unit.cli.ups import FREE_PORTS, TIMEOUT_S, command, environment, run, up

SMALL = ("--set", "mappedFileSizeCommitLog=16777216", "--set", "maxIndexNum=2000")
#: Takes the lock of a folder without being a supervisor, and says when it has it.
OTHER_HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(fd, sys.argv[2].encode(), 0)
fcntl.lockf(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where nothing runs any more when the test is over."""
    yield tmp_path
    for folder, _, files in os.walk(tmp_path):  # passes over what vanishes meanwhile
        if "up.lock" in files:
            run(tmp_path, "down", "--data", folder)


def supervisor_pid(data: Path) -> int:
    return int(json.loads((data / "up.lock").read_text())["pid"])


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_goes_on_in_the_background_until_it_is_ended(home: Path) -> None:
    data = home / "data"
    given = ("--data", str(data), *SMALL, "--topic", "T:3", "--topic", "T:2")
    started = run(home, "up", "--detach", *FREE_PORTS, *given)
    assert started.returncode == 0
    ready = re.fullmatch(r"ready namesrv=(\S+) broker-a=127\.0\.0\.1:\d+\n", started.stdout)
    assert ready is not None
    assert started.stderr == (
        "topic T exists on broker-a with 3 queues, and is not changed\n"
        f"running in the background, log file {data / 'up.log'};"
        f" stop it with: skylark down --data {data}\n"
    )
    pid = supervisor_pid(data)
    assert os.getsid(pid) == pid
    assert [str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in range(3)] == [
        "/dev/null", str(data / "up.log"), str(data / "up.log"),
    ]  # fmt: skip

    os.kill(pid, signal.SIGHUP)  # as when a terminal is closed
    listed = run(home, "topic", "list", "-n", ready[1])
    assert listed.stdout.splitlines()[1].split() == ["T", "broker-a", "3", "rw"]

    for again in (("--detach",), ()):
        second = run(home, "up", *again, *FREE_PORTS, "--data", str(data))
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr == (
            f"Error: skylark up already runs on {data} (process {pid}):"
            f" stop it with skylark down --data {data}, or choose another folder\n"
        )

    ended = run(home, "down", "--data", str(data))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.fullmatch(
        rf"skylark up on {data} \(process {pid}\) stopped after \d+\.\d+ s\n", ended.stdout
    )
    assert not (data / "broker-a" / "abort").exists()  # in order
    assert "Traceback" not in (data / "up.log").read_text()

    nothing = run(home, "down", "--data", str(data))
    assert (nothing.returncode, nothing.stdout) == (4, "")
    assert nothing.stderr == f"Error: no skylark up runs on {data}\n"


def test_brokers_that_die_are_started_again_there_too(home: Path) -> None:
    started = run(home, "up", "--detach", *FREE_PORTS, *SMALL, "--brokers", "2")
    assert started.returncode == 0
    data = home / ".local" / "share" / "skylark"  # the default
    assert started.stderr.endswith("; stop it with: skylark down\n")
    pid = supervisor_pid(data)
    before = children(pid)
    os.kill(before[0], signal.SIGKILL)
    log = poll_until(
        lambda: text if "again, on" in (text := (data / "up.log").read_text()) else None,
        timeout_s=TIMEOUT_S,
        what="the broker runs again",
    )
    assert re.search(r"broker-[ab] was killed by SIGKILL, .* starting it again in 1 s\n", log)
    now = children(pid)
    assert len(now) == 2
    ended = run(home, "--output", "json", "down")
    (row,) = json.loads(ended.stdout)
    assert (row["data"], row["pid"], row["stopped"]) == (str(data), pid, True)
    assert not any(Path(f"/proc/{child}").exists() for child in now)


def test_ephemeral_ones_are_found_without_their_folder(home: Path) -> None:
    for _ in range(2):
        assert run(home, "up", "--ephemeral", "--detach", *FREE_PORTS).returncode == 0
    first, second = sorted(home.glob("skylark-*"))
    several = run(home, "down")
    assert (several.returncode, several.stdout) == (2, "")
    assert f"several clusters run: choose one (--data {first}, --data {second})" in several.stderr
    assert run(home, "down", "--data", str(first)).returncode == 0
    assert not first.exists()
    with up(home, "--ephemeral") as running:  # has a terminal to be ended from
        ended = run(home, "down")
        assert (ended.returncode, str(second) in ended.stdout) == (0, True)
        assert running.process.poll() is None
        nothing = run(home, "down")
        assert nothing.returncode == 4
        assert "and none detached on a temporary folder" in nothing.stderr
    assert list(home.glob("skylark-*")) == []


def test_all_of_them_can_be_ended_at_once(home: Path) -> None:
    assert run(home, "up", "--ephemeral", "--detach", *FREE_PORTS).returncode == 0
    assert run(home, "up", "--detach", *FREE_PORTS, *SMALL).returncode == 0
    ended = run(home, "--output", "json", "down", "--all")
    assert [row["stopped"] for row in json.loads(ended.stdout)] == [True, True]
    wrong = run(home, "down", "--all", "--data", str(home))
    assert wrong.returncode == 2


def test_what_runs_in_the_foreground_can_be_ended_as_well(home: Path) -> None:
    data = home / "data"
    with up(home, "--data", str(data), *SMALL) as running:
        assert run(home, "down", "--data", str(data)).returncode == 0
        assert running.end() == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--namesrv-port", "{taken}"], 1, "Error: cannot listen on 127.0.0.1:{taken}: Address"),
        (["--namesrv-port", "0", "--data", "{home}/foreign"], 2, "is not a data folder of skylark"),
        (["--namesrv-port", "0", "--set", "fileReservedTime=x"], 2, "'x' is not an integer"),
        (["--namesrv-port", "0", "--topic", "a b"], 2, "The specified topic: a b, contains"),
    ],
)
def test_why_it_could_not_start_is_told_at_once(
    home: Path, arguments: list[str], code: int, message: str
) -> None:
    (home / "foreign" / "thing").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {"taken": taken.getsockname()[1], "home": home}
        given = [text.format(**words) for text in arguments]
        place = [] if "--data" in given else ["--data", str(home / "data")]
        done = run(home, "up", "--detach", "--broker-port", "0", *SMALL, *place, *given)
    assert (done.returncode, done.stdout) == (code, "")
    # Wrong usage is explained by three lines more.
    assert len(done.stderr.splitlines()) == (4 if done.stderr.startswith("Usage:") else 1)
    assert message.format(**words) in done.stderr
    assert run(home, "down", "--data", str(home / "data")).returncode == 4


def test_an_ephemeral_one_that_cannot_start_leaves_nothing(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(home, "up", "--detach", "--ephemeral", "--namesrv-port", port)
    assert done.returncode == 1
    assert list(home.glob("skylark-*")) == []


def test_the_interrupt_key_ends_a_start(home: Path) -> None:
    data = home / "data"
    # The folder is locked first, and processes of their own take brokers much longer than that.
    started = subprocess.Popen(
        command("up", "--detach", *FREE_PORTS, *SMALL, "--data", str(data), "--brokers", "3"),
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    poll_until((data / "up.lock").exists, timeout_s=TIMEOUT_S, what="the child has begun")
    started.send_signal(signal.SIGINT)
    output, _ = started.communicate(timeout=TIMEOUT_S)
    assert (started.returncode, output) == (130, "")
    assert run(home, "down", "--data", str(data)).returncode == 4


def test_a_process_that_is_not_ours_is_never_signalled(home: Path) -> None:
    """Neither one that a stale note names, nor one that holds the lock for reasons of its own."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bystander:
        note = json.dumps({"pid": bystander.pid, "detached": True})
        (home / "up.lock").write_text(note)
        stale = run(home, "down", "--data", str(home))
        assert (stale.returncode, stale.stderr) == (4, f"Error: no skylark up runs on {home}\n")
        with subprocess.Popen(
            [sys.executable, "-c", OTHER_HOLDER, str(home / "up.lock"), note],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"locked\n"
            strange = run(home, "down", "--data", str(home))
            assert strange.returncode == 1
            assert strange.stderr == (
                f"Error: {home / 'up.lock'} is locked by a process that skylark down cannot stop:"
                " stop it where it was started\n"
            )
            assert holder.poll() is None
            holder.communicate(timeout=TIMEOUT_S)
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="locks of open files are Linux's")
def test_a_lock_that_belongs_to_no_process_proves_nothing(home: Path) -> None:
    """Another user may hold such a lock, and write whatever number into the file."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as bystander:
        fd = os.open(home / "up.lock", os.O_RDWR | os.O_CREAT)
        try:
            question = struct.pack("@hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, question)
            os.write(fd, json.dumps({"pid": bystander.pid, "detached": True}).encode())
            strange = run(home, "down", "--data", str(home))
        finally:
            os.close(fd)
        assert strange.returncode == 1
        assert "by a process that skylark down cannot stop" in strange.stderr
        assert bystander.poll() is None
        bystander.kill()


def test_temporary_folders_that_lead_elsewhere_are_passed_over(home: Path) -> None:
    """Neither a link to the folder of a cluster, nor one to its lock, ends that cluster."""
    data = home / "data"
    assert run(home, "up", "--detach", *FREE_PORTS, *SMALL, "--data", str(data)).returncode == 0
    (home / "skylark-folder").symlink_to(data)
    trap = home / "skylark-lock"
    trap.mkdir()
    (trap / "up.lock").symlink_to(data / "up.lock")
    done = run(home, "down")
    assert done.returncode == 4, done.stderr
    assert run(home, "down", "--data", str(data)).returncode == 0


def test_a_second_one_leaves_the_log_of_the_first_alone(home: Path) -> None:
    data = home / "data"
    start = ("up", "--detach", *FREE_PORTS, *SMALL, "--data", str(data))
    assert run(home, *start).returncode == 0
    try:
        log = data / "up.log"
        os.truncate(log, LOG_SIZE_MAX + 1)
        file = log.stat().st_ino
        second = run(home, *start)
        assert second.returncode != 0
        assert "runs on" in second.stderr
        assert log.stat().st_ino == file, "it was not renamed"
    finally:
        assert run(home, "down", "--data", str(data)).returncode == 0


def test_the_log_is_limited_while_it_runs(home: Path) -> None:
    data = home / "data"
    start = ("--log-level", "info", "up", "--detach", *FREE_PORTS, *SMALL, "--data", str(data))
    assert run(home, *start).returncode == 0
    log, aside = data / "up.log", data / "up.log.1"
    with log.open("ab") as other:
        other.write(b"x" * LOG_SIZE_MAX)
    poll_until(
        lambda: aside.exists() and log.stat().st_size < LOG_SIZE_MAX,
        timeout_s=TIMEOUT_S,
        what="the log is put aside",
    )
    assert aside.stat().st_size > LOG_SIZE_MAX
    assert run(home, "down", "--data", str(data)).returncode == 0
    assert log.read_text().endswith("stopped\n"), "its writers go on"


def test_it_is_not_killed_when_time_is_up(home: Path) -> None:
    data = home / "data"
    assert run(home, "up", "--detach", *FREE_PORTS, *SMALL, "--data", str(data)).returncode == 0
    pid = supervisor_pid(data)
    os.kill(pid, signal.SIGSTOP)
    try:
        late = run(home, "down", "--data", str(data), "--timeout", "0.2s")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (late.returncode, late.stdout) == (1, "")
    assert re.fullmatch(
        rf"Error: skylark up on {data} \(process {pid}\) still runs after \d\.\d+ s;"
        r" it was not killed\n",
        late.stderr,
    )
    poll_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=TIMEOUT_S, what="the late end")


def test_a_second_up_names_the_cluster_that_may_have_the_port(tmp_path: Path) -> None:
    first = run(tmp_path, "up", "--detach", *FREE_PORTS)
    assert first.returncode == 0, first.stderr
    try:
        port = first.stdout.split("namesrv=")[1].split()[0].rpartition(":")[2]
        second = run(tmp_path, "up", "--ephemeral", "--namesrv-port", port, "--broker-port", "0")
    finally:
        run(tmp_path, "down")
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].endswith(
        "choose another --namesrv-port: a skylark up of yours runs on"
        f" {tmp_path / '.local/share/skylark'}: skylark down stops it"
    )
