"""``skylark up`` as a process: ready line, signals, data, and how mistakes are told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.interop.process import draw_port, poll_until
from tests.unit.cli.ups import FREE_PORTS, TIMEOUT_S, run, started, up


def test_one_command_and_clients_can_work(tmp_path: Path) -> None:
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
        running.process.terminate()
        assert running.end() == (0, "", "")
    assert list(tmp_path.glob("skylark-*")) == []  # the temporary folder is gone


def test_data_stay_in_the_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    small = ("--set", "mappedFileSizeCommitLog=16777216", "--set", "maxIndexNum=2000")
    with up(tmp_path, "--data", str(data), *small, "--topic", "T:3"):
        pass
    with up(tmp_path, "--store", str(data), *small, "--topic", "T:5", "--topic", "U:1") as running:
        assert running.process.stderr is not None
        assert running.process.stderr.readline() == (
            "topic T exists on broker-a with 3 queues, and is not changed\n"
        )
        listed = run(tmp_path, "--output", "json", "topic", "list", "-n", running.namesrv)
        assert '"queue_count": 3' in listed.stdout
        locked = run(tmp_path, "up", *FREE_PORTS, "--data", str(data), *small)
        assert locked.returncode == 1
        assert locked.stderr == (
            f"Error: skylark up already runs on {data} (process {running.process.pid}):"
            f" stop it with skylark down --data {data}, or choose another folder\n"
        )
        assert locked.stdout == ""


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
        assert re.search(r"broker-[ab] was killed by SIGKILL, .*; starting it again in 1 s$", died)
        assert re.search(r"started broker-[ab] again, on 127\.0\.0\.1:\d+$", back)
        listed = run(tmp_path, "topic", "list", "-n", running.namesrv)
        assert listed.stdout.splitlines()[1].split() == ["T", "broker-a,", "broker-b", "2", "rw"]
        assert Path(f"/proc/{second}").exists()
        running.process.terminate()
        code, output, _ = running.end()
        assert (code, output) == (0, "")
        assert not Path(f"/proc/{second}").exists()
    assert list(tmp_path.glob("skylark-*")) == []


def test_nobody_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up(tmp_path, "--data", str(data), "--brokers", "2") as running:
        pid = running.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 2
        running.process.kill()
        poll_until(
            lambda: not any(Path(f"/proc/{child}").exists() for child in children),
            timeout_s=TIMEOUT_S,
            what="the brokers have ended",
        )
    assert not (data / "broker-a" / "abort").exists()  # in order
    assert not (data / "broker-b" / "abort").exists()


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "up", "--ephemeral", "--namesrv-port", port, "--broker-port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        f"Error: cannot listen on 127.0.0.1:{port}: Address already in use:"
        f" stop what listens on port {port}, or choose another --namesrv-port"
    )
    assert "Traceback" not in done.stderr


def test_so_it_is_for_a_broker_in_a_process_of_its_own(tmp_path: Path) -> None:
    port = draw_port((0, -2, 1, 18, 20, 21))
    with socket.create_server(("127.0.0.1", port + 20)):
        given = ("--namesrv-port", "0", "--broker-port", str(port), "--brokers", "2")
        done = run(tmp_path, "--log-level", "error", "up", "--ephemeral", *given)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: broker-b failed, cannot listen on 127.0.0.1:{port + 20}: Address already in use:"
        f" stop what listens on port {port + 20}, or choose another --broker-port\n"
    )
    assert list(tmp_path.glob("skylark-*")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "maxMesageSize=1"], "did you mean maxMessageSize?"),
        (["--set", "listenPort=1"], "--set listenPort: --broker-port determines this setting"),
        (["--set", "maxMessageSize"], "'maxMessageSize' is not KEY=VALUE"),
        (["--set", "maxMessageSize=big"], "maxMessageSize"),
        (["--topic", "orders:0"], "'orders:0' is not NAME[:QUEUES]"),
        (["--data", "x"], "--ephemeral uses a temporary folder: leave out --data"),
        (["--brokers", "27"], "27 is not in the range 1<=x<=26"),
        (["--replicas", "5"], "5 is not in the range 0<=x<=4"),
        (["--sync"], "--sync needs a replica"),
        (["--metrics-port", "65535", "--brokers", "2"], "the brokers need ports up to 65536"),
        (["--config", "nosuch.conf"], "File 'nosuch.conf' does not exist"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(tmp_path, "up", "--ephemeral", *FREE_PORTS, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topic_that_cannot_be_ends_it(tmp_path: Path) -> None:
    done = run(tmp_path, "up", "--ephemeral", *FREE_PORTS, "--topic", "a b")
    assert (done.returncode, done.stdout) == (2, "")
    assert "The specified topic: a b, contains illegal characters" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "report.txt",
            "is not a data folder of skylark: it contains report.txt: choose a new or an empty",
        ),
        ("commitlog", "is the store of a single broker: use it with skylark broker"),
    ],
)
def test_a_foreign_folder_is_left_alone(tmp_path: Path, name: str, message: str) -> None:
    data = tmp_path / "data"
    (data / name).mkdir(parents=True)
    done = run(tmp_path, "up", *FREE_PORTS, "--data", str(data))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Error: {data} {message}" in done.stderr
    assert [path.name for path in data.iterdir()] == [name]


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        ("/dev/null/data", 2, "/dev/null/data is not a folder"),
        ("/proc/data", 1, "cannot use the data folder /proc/data: No such file or directory"),
    ],
)
def test_a_folder_that_cannot_be_is_one_sentence(
    tmp_path: Path, data: str, code: int, message: str
) -> None:
    done = run(tmp_path, "up", *FREE_PORTS, "--data", data)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"Error: {message}\n"


def test_metrics_are_served_where_the_ready_line_says(tmp_path: Path) -> None:
    port = draw_port((0, 1))
    with up(tmp_path, "--ephemeral", "--brokers", "2", "--metrics-port", str(port)) as running:
        assert running.addresses["broker-a-metrics"] == f"127.0.0.1:{port}"
        where = running.addresses["broker-b-metrics"]
        assert where == f"127.0.0.1:{port + 1}"
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=TIMEOUT_S) as answer:
            assert b"rocketmq_broker_permission" in answer.read()


def test_settings_come_from_a_file_and_from_options(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerName = elsewhere\nlistenPort: 1\nfileReservedTim=5\n"
        "fileReservedTime=48\ndeleteWhen=05\ntraceTopicEnable=false\n"
    )
    given = ("--config", str(config), "--set", "deleteWhen=06", "--replicas", "1")
    done = run(tmp_path, "--output", "json", "up", "--print-config", *given)
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert list(printed) == ["namesrv", "broker-a", "broker-a-1"]
    assert printed["namesrv"]["listenPort"] == "9876"
    wanted = {
        "brokerName": "broker-a",
        "listenPort": "10911",
        "fileReservedTime": "48",
        "deleteWhen": "06",
        "traceTopicEnable": "false",
        "enablePropertyFilter": "true",
    }
    assert {key: printed["broker-a"][key] for key in wanted} == wanted
    assert printed["broker-a-1"]["listenPort"] == "10915"
    first, second = done.stderr.splitlines()
    assert first.endswith(
        "ignoring settings that options determine:"
        " brokerName (--brokers), listenPort (--broker-port)"
    )
    assert second.endswith(
        "ignoring unknown setting fileReservedTim; did you mean fileReservedTime?"
    )
    plain = run(tmp_path, "up", "--print-config").stdout
    assert plain.startswith("# namesrv\nbindAddress=127.0.0.1\n")
    assert "\n\n# broker-a\n" in plain
    assert not (tmp_path / ".local").exists()


def test_the_interrupt_key_ends_it_and_the_log_tells_what_a_person_wants_to_know(
    tmp_path: Path,
) -> None:
    given = ("up", "--ephemeral", *FREE_PORTS, "--set", "traceTopicEnable=false")
    with started(tmp_path, *given) as running:
        running.process.send_signal(signal.SIGINT)
        code, output, log = running.end()
    assert (code, output) == (0, "")
    assert (
        "settings other than Java's: enablePopBufferMerge=true, enablePropertyFilter=true,"
        " recallMessageEnable=true\n" in log
    )
    assert "does not exist" not in log  # that a new store is empty is no news
    assert log.endswith(" INFO    skylark.cli.foreground_server  stopped\n")
    assert list(tmp_path.glob("skylark-*")) == []


def test_the_end_of_the_terminal_is_an_orderly_end(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral", "--brokers", "2") as running:
        running.process.send_signal(signal.SIGHUP)
        assert running.end() == (0, "", "")
    assert list(tmp_path.glob("skylark-*")) == []
