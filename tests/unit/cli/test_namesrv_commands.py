"""``skylark namesrv`` as a process: ready line, answers, signals, flags, errors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylark.wire.command import SERIALIZE_BINARY, Command
from skylark.wire.frame import FrameBuffer, encode_frame

TIMEOUT_S = 30


def environment(home: Path) -> dict[str, str]:
    hidden = {"ROCKETMQ_HOME", "ROCKETMQ_SERIALIZE_TYPE"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return {**kept, "HOME": str(home)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "skylark", "namesrv", *arguments]


def run(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@contextlib.contextmanager
def started(home: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A name server that said it is ready, and the address it said."""
    process = subprocess.Popen(
        command(*arguments),
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready namesrv="), line + str(process.poll())
        yield process, line.removeprefix("ready namesrv=").strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=TIMEOUT_S)


def ask(address: str, request: Command) -> Command:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(encode_frame(request))
        buffer = FrameBuffer()
        while True:
            frames = buffer.feed(connection.recv(65_536))
            if frames:
                return frames[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_answer_stop(tmp_path: Path, number: signal.Signals) -> None:
    config = tmp_path / "ns.conf"
    config.write_text("# for Java or for us\nlistenPort=0\nenableTopicList = false\n")
    with started(tmp_path, "-c", str(config)) as (process, address):
        assert address.startswith("127.0.0.1:")
        answer = ask(address, Command(code=224, ext={"cluster": "c"}))
        assert (answer.code, answer.remark) == (1, "disable")
        changed = ask(address, Command(code=318, body=b"enableTopicList=true"))
        assert changed.code == 0
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    assert stdout == ""
    assert f"name server listens on {address}, this machine only" in stderr
    # the file that it was given has become the store of its settings
    assert "enableTopicList=true\n" in config.read_text()


def test_kv_file_stands_in_the_home_of_the_user(tmp_path: Path) -> None:
    config = tmp_path / "ns.conf"
    config.write_text("listenPort=0\nrocketmq.serialize.type=ROCKETMQ\n")
    with started(tmp_path, "-n", "ignored:1", "-c", str(config)) as (_, address):
        entry = {"namespace": "n", "key": "k", "value": "v"}
        answer = ask(address, Command(code=100, ext=entry))
        assert (answer.code, answer.serialize_type) == (0, SERIALIZE_BINARY)
    saved = tmp_path / "namesrv" / "kvConfig.json"
    assert saved.read_text() == '{"configTable":{"n":{"k":"v"}}}'


def test_a_busy_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "ns.conf"
        config.write_text(f"listenPort={port}\n")
        result = run(tmp_path, "-c", str(config))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.splitlines() == [
        f"Error: cannot listen on 127.0.0.1:{port}: Address already in use: stop what listens on"
        f" port {port}, or set another listenPort"
    ]


def test_print_settings(tmp_path: Path) -> None:
    config = tmp_path / "ns.conf"
    config.write_text("listenPort=1234\n")
    result = run(tmp_path, "-p", "-c", str(config), ROCKETMQ_HOME="somewhere")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines == sorted(lines)
    for line in (
        "bindAddress=127.0.0.1",
        "listenPort=1234",
        f"configStorePath={config}",
        f"kvConfigPath={tmp_path}/namesrv/kvConfig.json",
        "rocketmqHome=somewhere",
        "rocketmq.serialize.type=JSON",
        "scanNotActiveBrokerInterval=5000",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("text", "shown"), [("", "ROCKETMQ"), ("rocketmq.serialize.type=JSON\n", "JSON")]
)
def test_the_file_wins_over_the_environment(tmp_path: Path, text: str, shown: str) -> None:
    config = tmp_path / "ns.conf"
    config.write_text(text)
    result = run(tmp_path, "-p", "-c", str(config), ROCKETMQ_SERIALIZE_TYPE="ROCKETMQ")
    assert f"rocketmq.serialize.type={shown}" in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("listenPort=many", "1 setting is wrong: listenPort: 'many' is not an integer"),
        (None, "does not exist"),
    ],
)
def test_wrong_settings_are_wrong_usage(tmp_path: Path, text: str | None, sentence: str) -> None:
    config = tmp_path / "ns.conf"
    if text is not None:
        config.write_text(text)
    result = run(tmp_path, "-c", str(config))
    assert (result.returncode, result.stdout) == (2, "")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(tmp_path: Path, flag: str) -> None:
    result = run(tmp_path, flag)
    assert result.returncode == 0
    assert "Run a name server." in result.stdout
    assert "--configFile" in result.stdout
