"""``skylark job transform|mirror|redrive|report``: what is refused before Spark starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from skylark import ClientOptions, Message
from skylark.aio import Admin, Producer
from skylark.cli.main import cli
from skylark.spark.cluster_client import close_clusters
from tests.unit.admin.sites import bury, eventually
from tests.unit.cli.ups import run, up

NOWHERE = ("-n", "127.0.0.1:1")
SQL = ("--sql", "SELECT body FROM input")


@pytest.fixture(autouse=True)
def _shared_connections() -> Iterator[None]:
    """Close what jobs share within a process: other tests count what is left."""
    yield
    close_clusters()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("transform", "S", "T", "--checkpoint", "/ck"), 2, "Give either --sql or --sql-file"),
        (
            ("transform", "S", "T", *SQL, "--sql-file", __file__),
            2,
            "Give either --sql or --sql-file",
        ),
        (("transform", "S", "T", *SQL), 2, "Give --checkpoint"),
        (("transform", "S", "S", *SQL, "--checkpoint", "/ck"), 2, "would read its own output"),
        (("transform", "S", "T", *SQL, "--checkpoint", "/ck"), 3, "no name server responds"),
        (("mirror", "S", "--checkpoint", "/ck"), 2, "Missing option '--to-namesrv'"),
        (("mirror", "S", "--to-namesrv", "h:1"), 2, "Give --checkpoint"),
        (("report", "S"), 3, "no name server responds"),
        (("report", "S", "--html", "/nosuch/folder/x.html"), 2, "there is no folder"),
        (("archive", "S", "--to", "/lake"), 3, "no name server responds"),
        (("compact", "S", "--to-lake", "/lake"), 3, "no name server responds"),
        (
            ("mirror", "S", "--to-namesrv", "127.0.0.1:1", "--checkpoint", "/ck"),
            3,
            "no name server responds",
        ),
        (("verify", "S", "--lake", "/lake"), 3, "no name server responds"),
        (("redrive", "G"), 3, "no name server responds"),
        (("redrive", "G", "--older-than", "soon"), 2, "it must be a duration such as 500ms"),
        (("redrive", "G", "--older-than", "2h", "--younger-than", "1h"), 2, "no letter is older"),
    ],
)
def test_mistakes_are_told_without_spark(
    arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    result = CliRunner().invoke(cli, ["job", *arguments, *NOWHERE])
    assert (result.exit_code, result.stdout) == (code, "")
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


async def let_die(namesrv: str) -> None:
    """Three messages that the group G could not consume."""
    options = ClientOptions(namesrv=namesrv)
    async with Producer("p", options, batching=False) as producer, Admin(options) as admin:
        for n in range(3):
            await producer.send(Message("orders", b"x", "AB"[n % 2]))
        await admin.topics.create("%RETRY%G", queue_count=1)
        for message in [message async for message in admin.messages.between("orders")]:
            await bury(admin, "G", message)

        async def are_there() -> bool:
            return [letters.count for letters in await admin.dlq.all()] == [3]

        await eventually(are_there)


def test_dead_letters_of_a_group_are_counted_and_sent(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral", "--topic", "orders:1") as running:
        asyncio.run(let_die(running.namesrv))
        job = ("--output", "json", "job", "redrive", "G", "-n", running.namesrv)
        plan = run(tmp_path, *job, "--dry-run", "--tag", "A")
        assert (plan.returncode, plan.stderr) == (0, "")
        assert json.loads(plan.stdout) == {
            "group": "G",
            "to": "%RETRY%G",
            "dry_run": True,
            "letters": 3,
            "sent": 2,
            "already_sent": 0,
            "filtered": 1,
            "failed": 0,
            "stopped": None,
            "first_problem": None,
        }
        done = run(tmp_path, *job)
        assert json.loads(done.stdout)["sent"] == 3
        again = run(tmp_path, "job", "redrive", "G", "-n", running.namesrv)
        assert ["sent", "0"] in [line.split() for line in again.stdout.splitlines()]
        missing = run(tmp_path, "job", "redrive", "nobody", "-n", running.namesrv)
        assert (missing.returncode, missing.stdout) == (4, "")
        assert missing.stderr == "Error: group nobody has no dead letters\n"
