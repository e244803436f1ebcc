"""``skylark topic`` against a real cluster: tables, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.test_up import run, up


def test_topics_are_created_and_listed(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral") as running:
        at = ("-n", running.namesrv)
        created = run(tmp_path, "topic", "create", "orders", "--queues", "4", *at)
        broker = running.addresses["broker-a"]
        assert created.stdout.splitlines() == [
            f"TOPIC   BROKER    ADDRESS{' ' * (len(broker) - 7)}  CREATED  QUEUE COUNT",
            f"orders  broker-a  {broker}  yes                4",
        ]
        assert (created.returncode, created.stderr) == (0, "")
        again = run(
            tmp_path, "--output", "json", "topic", "create", "orders",
            "--attribute", "message.type=FIFO", *at,
        )  # fmt: skip
        assert json.loads(again.stdout) == [
            {
                "topic": "orders",
                "broker": "broker-a",
                "address": broker,
                "created": False,
                "queue_count": 4,
            }
        ]
        listed = run(tmp_path, "--output", "json", "topic", "list", *at)
        assert json.loads(listed.stdout) == [
            {"topic": "orders", "brokers": ["broker-a"], "queue_count": 4, "perm": "rw"}
        ]
        everything = run(tmp_path, "--output", "json", "topic", "list", "--all", *at)
        assert "TBW102" in {row["topic"] for row in json.loads(everything.stdout)}
        bad = run(tmp_path, "topic", "create", "a b", *at)
        assert (bad.returncode, bad.stdout) == (1, "")
        other = run(tmp_path, "topic", "create", "x", "--cluster", "Other", *at)
        assert other.returncode == 3
        assert "no broker of cluster Other" in other.stderr


def test_nobody_answers(tmp_path: Path) -> None:
    done = run(tmp_path, "topic", "list", "-n", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("Error: no name server answered: ")
    assert "say where it is with -n HOST:PORT" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_wrong_usage(tmp_path: Path) -> None:
    for arguments, message in (
        (("list", "-n", "nowhere:x"), "name server from argument"),
        (("create", "T", "--queues", "0"), "0 is not in the range"),
        (("create", "T", "--attribute", "x"), "'x' is not KEY=VALUE"),
    ):
        done = run(tmp_path, "topic", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
