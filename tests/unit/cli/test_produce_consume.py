"""Further ways to send and to read, in this process: files, batches, rates, forms, broadcasting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skylark.core.clock import SystemClock
from tests.unit.cli.shell import NOWHERE, Shell


def bodies(shell: Shell, topic: str, *arguments: str) -> list[str]:
    return shell.lines("consume", topic, "--no-follow", "--format", "body", *arguments)


def test_a_file_of_lines_in_batches(shell: Shell, tmp_path: Path) -> None:
    shell.create("from-a-file", queue_count=4)
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"body": "{number}", "tag": "f"}}\n' for number in range(7)))
    given = ("--file", str(path), "--jsonl", "--batch", "3")
    results = shell.produce("from-a-file", *given)
    stored = shell.json("message", "query", "from-a-file")
    assert [(row["tag"], len(row["body"])) for row in stored] == [("f", 1)] * 7
    for batch in (results[:3], results[3:6]):  # a batch is stored whole, in one queue
        assert len({result["queue"] for result in batch}) == 1
        offsets = [result["offset"] for result in batch]
        assert offsets == list(range(offsets[0], offsets[0] + 3))
    plain = tmp_path / "lines"
    plain.write_bytes(b"one\n\ntwo")
    assert len(shell.produce("from-a-file", "-", "--file", str(plain), "--tag", "p")) == 2
    assert sorted(bodies(shell, "from-a-file", "--tags", "p")) == ["one", "two"]


def test_a_rate_is_kept(shell: Shell) -> None:
    shell.create("slowly")
    clock = SystemClock()
    begun = clock.monotonic()
    assert len(shell.produce("slowly", "x", "--count", "16", "--rate", "20")) == 16
    assert clock.monotonic() - begun >= 14 / 20  # eight pieces of two: the first goes at once


def test_forms_and_places(shell: Shell) -> None:
    shell.create("forms")
    shell.produce("forms", "one", "two", "--shard", "s")
    assert bodies(shell, "forms") == ["one", "two"]
    read = ("consume", "forms", "--no-follow")
    lines = shell.lines(*read, "--format", "json")
    assert [json.loads(line)["body"] for line in lines] == ["one", "two"]
    shown = shell.run("--output", "json", *read, "--format", "line").stdout
    assert shown.startswith("STORED")
    for place, found in (("beginning", 2), ("1h", 2), ("end", 0), ("1", 1)):
        assert len(bodies(shell, "forms", "--from", place)) == found


def test_broadcasting_members_each_read_all(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shell.create("broadcast")
    shell.produce("broadcast", "a", "b", "--shard", "s")
    group = ("broadcast", "broadcast-group")
    assert shell.consume(*group, "--broadcast") == ["a", "b"]
    assert shell.consume(*group) == ["a", "b"]  # nothing was committed at the broker
    shell.produce("broadcast", "c", "--shard", "s")
    assert shell.consume(*group, "--broadcast") == ["c"]  # the file of this machine goes on
    (kept,) = tmp_path.rglob("offsets.json")
    assert kept.parent.name == "broadcast-group"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("produce", "T", "x", "--file", "/dev/null"), "--file has the messages: leave out BODY"),
        (("produce", "T", "--file", "nosuch"), "'nosuch' does not exist"),
        (
            ("produce", "T", "x", "--batch", "2", "--delay", "1s"),
            "--batch cannot be combined with --delay or --shard",
        ),
        (("produce", "T", "x", "--rate", "0"), "0.0 is not in the range x>0"),
        (("consume", "T", "--broadcast"), "--broadcast needs --group"),
        (("consume", "T", "--format", "xml"), "'xml' is not one of"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    assert message in Shell(NOWHERE).run(*arguments, code=2).stderr
