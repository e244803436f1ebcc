"""Further ways to send and to read, in this process: files, batches, rates, forms, broadcasting."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skylark.cli.consume import _newest
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


def test_what_consume_prints_is_what_produce_reads(shell: Shell, tmp_path: Path) -> None:
    shell.create("printed", "read-again")
    given = ("--tag", "t", "--key", "k1", "--key", "k2", "--property", "colour=red")
    shell.produce("printed", "text", *given)
    shell.produce("printed", os.fsdecode(b"\xff\xfe"))
    shell.produce("printed", "late", "--delay", "1ms", "--shard", "s")
    read = ("consume", "printed", "--format", "json", "--count", "3")
    path = tmp_path / "printed.jsonl"
    path.write_text(shell.run(*read).stdout)
    assert len(shell.produce("read-again", "--jsonl", "--file", str(path))) == 3
    originals, copies = (
        [json.loads(line) for line in shell.lines("consume", topic, *read[2:])]
        for topic in ("printed", "read-again")
    )
    names = ("tag", "keys", "body", "body_base64")
    by_body = [
        sorted(([each.get(name) for name in names] for each in found), key=str)
        for found in (originals, copies)
    ]
    assert by_body[0] == by_body[1]
    assert [each["properties"].get("colour") for each in copies].count("red") == 1
    assert not {each["msg_id"] for each in originals} & {each["msg_id"] for each in copies}


def test_messages_by_a_condition(shell: Shell) -> None:
    shell.create("by-condition")
    for price in ("5", "15", "25"):
        shell.produce("by-condition", f"costs {price}", "--property", f"price={price}")
    condition = ("--sql", "price > 10 AND price < 20")
    assert bodies(shell, "by-condition", *condition) == ["costs 15"]
    assert shell.consume("by-condition", "buyers", *condition) == ["costs 15"]
    read = ("consume", "by-condition", "--no-follow", "--sql")
    for group in ((), ("--group", "buyers-2")):
        assert "a value is needed" in shell.run(*read, "price > ", *group, code=2).stderr


def test_messages_of_one_millisecond_are_in_the_order_of_the_log() -> None:
    def message(log_offset: int, time_ms: int = 7) -> Any:
        return SimpleNamespace(
            record=SimpleNamespace(store_timestamp=time_ms, log_offset=log_offset)
        )

    first, second, third = message(9, 6), message(1), message(2)
    assert _newest([[third], [first, second]], 2) == [second, third]


def test_the_last_messages(shell: Shell) -> None:
    shell.create("newest", queue_count=3)
    for number in range(9):
        tag = "even" if number % 2 == 0 else "odd"
        shell.produce("newest", str(number), "--tag", tag, "--queue", str(number % 2))
    assert bodies(shell, "newest", "--last", "4") == ["5", "6", "7", "8"]
    assert bodies(shell, "newest", "--last", "2", "--tags", "odd") == ["5", "7"]
    assert bodies(shell, "newest", "--last", "99") == [str(number) for number in range(9)]
    assert bodies(shell, "newest", "--last", "1", "--queue", "1") == ["7"]


def test_a_queue_to_send_to(shell: Shell) -> None:
    shell.create("to-a-queue", queue_count=4)
    for queue, size in (("2", ()), ("broker-a:2", ()), ("2", ("--batch", "2"))):
        results = shell.produce("to-a-queue", "a", "b", "--queue", queue, *size)
        assert [result["queue"] for result in results] == [2, 2]
    assert [row["offset"] for row in shell.json("message", "query", "to-a-queue")] == [*range(6)]
    missing = shell.run("produce", "to-a-queue", "x", "--queue", "4", code=2).stderr
    assert "to-a-queue has no such queue: broker-a:0 to broker-a:3" in missing


def test_empty_lines_are_reported(shell: Shell, tmp_path: Path) -> None:
    shell.create("with-gaps")
    plain = tmp_path / "lines"
    plain.write_bytes(b"one\n\n\ntwo\n")
    for form in ("table", "json"):
        done = shell.run("--output", form, "produce", "with-gaps", "--file", str(plain))
        assert done.stderr == "skipped 2 empty lines, the first is line 2: a message needs a body\n"
    plain.write_bytes(b"one\n\ntwo\n")
    done = shell.run("produce", "with-gaps", "--file", str(plain))
    assert done.stderr == "skipped 1 empty line, line 2: a message needs a body\n"


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
        (("produce", "no topic", "x"), "topic: no topic, contains illegal characters"),
        (("produce", "T", "x", "--property", "TAGS=x"), "The Property<TAGS> is used by system"),
        (("produce", "T", "x", "--property", "a="), "value of property can not be blank"),
        (("produce", "T", "x", "--queue", "0", "--shard", "s"), "leave out --queue or --shard"),
        (("consume", "no topic"), "topic: no topic, contains illegal characters"),
        (("consume", "T", "--tags", "||"), "write tags as in TagA || TagB"),
        (("consume", "T", "--sql", ""), "an empty SQL condition"),
        (("consume", "T", "--sql", "a = 1", "--tags", "b"), "by tags and by SQL, which exclude"),
        (("consume", "T", "--group", "no group"), "group: no group, contains illegal characters"),
        (("consume", "T", "--last", "0"), "0 is not in the range"),
        (("consume", "T", "--last", "1", "--from", "5m"), "leave out --from and --group"),
        (("consume", "T", "--last", "1", "--group", "G"), "leave out --from and --group"),
        (("group", "describe", "no group"), "group: no group, contains illegal characters"),
        (("topic", "describe", "no topic"), "topic: no topic, contains illegal characters"),
        (("up", "--topic", "no topic", "--print-config"), "contains illegal characters"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    assert message in Shell(NOWHERE).run(*arguments, code=2).stderr
