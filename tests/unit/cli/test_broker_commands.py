"""``skylark broker`` as a process: ready line, answers, signals, flags, errors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from skylark.wire.command import Command
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.unit.broker.stored import texts

TIMEOUT_S = 30


def environment(home: Path) -> dict[str, str]:
    hidden = {"ROCKETMQ_HOME", "ROCKETMQ_SERIALIZE_TYPE", "NAMESRV_ADDR"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return {**kept, "HOME": str(home)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "skylark", "broker", *arguments]


def settings_file(root: Path, **given: str) -> Path:
    settings = texts(root, **{"brokerIP1": "127.0.0.1", "listenPort": "0", **given})
    path = root / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def test_it_says_when_it_is_ready_answers_and_stops_in_order(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("-c", str(settings_file(tmp_path))),
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready broker-a=127.0.0.1:")
        host, _, port = line.removeprefix("ready broker-a=").strip().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as peer:
            request = Command(code=30, ext={"topic": "T", "queueId": "0"}, opaque=5, version=513)
            peer.sendall(encode_frame(request))
            frames: list[Command] = []
            buffer = FrameBuffer()
            while not frames:
                frames += buffer.feed(peer.recv(65_536))
        assert (frames[0].code, frames[0].opaque, frames[0].ext) == (0, 5, {"offset": "0"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
    assert not (tmp_path / "store" / "abort").exists()


def test_a_signal_is_heard_while_a_name_server_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            command("-c", str(settings_file(tmp_path, namesrvAddr=address))),
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        silent.settimeout(TIMEOUT_S)
        asking, _ = silent.accept()
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=TIMEOUT_S)
        asking.close()
    assert (process.returncode, stdout) == (0, b"")  # never ready


def test_it_prints_its_settings(tmp_path: Path) -> None:
    path = settings_file(tmp_path, listenPort="12345", namesrvAddr="127.0.0.1:1")
    done = run(tmp_path, "-c", str(path), "-n", "127.0.0.1:9876;127.0.0.1:9877", "-p")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "listenPort=12345" in lines
    assert "namesrvAddr=127.0.0.1:9876;127.0.0.1:9877" in lines
    assert f"brokerConfigPath={path}" in lines


def test_a_bad_setting_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", str(settings_file(tmp_path, listenPort="many")))
    assert done.returncode != 0
    assert "listenPort" in done.stderr
    assert done.stdout == ""
