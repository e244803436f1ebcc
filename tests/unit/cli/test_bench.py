"""``skylark bench`` at a real cluster: counts agree with what the broker has, output, errors."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

import click
import pytest
from rich.console import Console

from skylark.cli.bench import command, live_table
from skylark.core.clock import SystemClock
from skylark.core.errors import SystemBusyError
from skylark.load.run_statistics import Tally
from tests.unit.cli.shell import NOWHERE, Shell


def queue_sizes(shell: Shell, topic: str) -> list[int]:
    bounds = shell.ask(lambda admin: admin.offsets.bounds(topic))
    return [queue.count for queue in bounds.queues]


def stored(shell: Shell, topic: str) -> int:
    return sum(queue_sizes(shell, topic))


def test_what_was_sent_is_stored_and_consumed(shell: Shell) -> None:
    given = ("--create", "--queues", "3", "--count", "500", "--size", "100")
    sent = shell.json("bench", "send", "b-all", *given)
    (row,) = sent.pop("results")
    assert sent == {
        "topic": "b-all",
        "count": 500,
        "duration": None,
        "size": 100,
        "in_flight": 64,
        "batch": 1,
        "batching": True,
        "rate": None,
    }
    assert (row["what"], row["messages"], row["errors"]) == ("send", 500, 0)
    assert row["mib_per_second"] == pytest.approx(row["per_second"] * 100 / 2**20, abs=0.01)
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    assert (len(queue_sizes(shell, "b-all")), stored(shell, "b-all")) == (3, 500)
    read = shell.json("bench", "consume", "b-all", "--count", "500")["results"]
    assert [(row["what"], row["messages"], row["errors"]) for row in read] == [("consume", 500, 0)]
    groups = [group["group"] for group in shell.json("group", "list")]
    assert not [name for name in groups if name.startswith("skylark-bench-")]


def test_batches_and_single_requests(shell: Shell) -> None:
    shell.create("b-batches")
    given = ("--count", "103", "--in-flight", "3")
    (row,) = shell.json("bench", "send", "b-batches", *given, "--batch", "10")["results"]
    assert (row["messages"], stored(shell, "b-batches")) == (103, 103)
    (row,) = shell.json("bench", "send", "b-batches", *given, "--no-batching")["results"]
    assert (row["messages"], stored(shell, "b-batches")) == (103, 206)


def test_from_end_to_end_at_a_rate(shell: Shell) -> None:
    given = ("--create", "--cleanup", "--count", "60", "--rate", "100")
    found = shell.json("bench", "e2e", "b-e2e", *given)["results"]
    assert [(row["what"], row["messages"]) for row in found] == [("send", 60), ("e2e", 60)]
    assert found[0]["seconds"] >= 0.59  # the last is due 59 hundredths after the first
    assert found[0]["p50_ms"] <= found[1]["p50_ms"]
    assert shell.error("topic", "describe", "b-e2e", code=4).startswith(
        "topic b-e2e does not exist"
    )


def test_messages_of_others_do_not_count_from_end_to_end(shell: Shell) -> None:
    shell.create("b-mixed")
    shell.produce("b-mixed", "short", "a long one that begins with no stamp of ours")
    found = shell.json("bench", "e2e", "b-mixed", "--count", "20")["results"]
    assert [row["messages"] for row in found] == [20, 20]
    assert stored(shell, "b-mixed") == 22


def test_a_group_goes_on_where_it_is(shell: Shell) -> None:
    shell.create("b-group")
    shell.json("bench", "send", "b-group", "--count", "40", "--batch", "40")
    as_member = ("bench", "consume", "b-group", "--group", "b-members", "--duration", "300ms")
    (row,) = shell.json(*as_member, "--from", "earliest")["results"]
    assert row["messages"] == 40
    (row,) = shell.json(*as_member)["results"]
    assert row["messages"] == 0
    (row,) = shell.json(*as_member, "--from", "latest")["results"]
    assert row["messages"] == 0
    assert "b-members" in [group["group"] for group in shell.json("group", "list")]


def test_the_table_fits_a_small_terminal(shell: Shell) -> None:
    heading, row = shell.lines("bench", "send", "b-table", "--create", "--duration", "200ms")
    words = "WHAT MESSAGES ERRORS SECONDS MSG/S MIB/S P50 MS P99 MS MAX MS"
    assert " ".join(heading.split()) == words
    assert (row.split()[0], row.split()[2], row.split()[3]) == ("send", "0", "0.2")
    assert int(row.split()[1]) == stored(shell, "b-table")
    assert max(len(heading), len(row)) <= 80


def test_the_interrupt_key_ends_with_the_table(shell: Shell) -> None:
    shell.create("b-ctrl-c")
    process = subprocess.Popen(
        [sys.executable, "-m", "skylark", "bench", "send", "b-ctrl-c", "--duration", "10m"],
        env={**os.environ, "SKYLARK_NAMESRV": shell.namesrv},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    shell.until(lambda: stored(shell, "b-ctrl-c") > 0, "nothing is sent")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert int(output.splitlines()[1].split()[1]) == stored(shell, "b-ctrl-c")


def test_mistakes_are_one_sentence(shell: Shell) -> None:
    assert shell.error("bench", "send", "b-none", code=4).startswith(
        "topic b-none does not exist: "
    )
    assert shell.error("bench", "consume", "b-none", code=4).startswith(
        "topic b-none does not exist"
    )
    told = shell.error("bench", "e2e", "T", "-n", NOWHERE, code=3)
    assert told.startswith("no name server responds")
    assert "add --create" in shell.run("bench", "send", "T", "--cleanup", code=2).stderr
    assert "16<=x" in shell.run("bench", "send", "T", "--size", "15", code=2).stderr
    assert "not a time" in shell.run("bench", "send", "T", "--duration", "soon", code=2).stderr


def test_failed_sends_are_counted_and_end_with_1(shell: Shell) -> None:
    shell.create("b-failing")
    too_large = ("--batch", "9", "--size", "1000000", "--count", "19", "--in-flight", "1")
    run = shell.run("--output", "json", "bench", "send", "b-failing", *too_large, code=1)
    (row,) = json.loads(run.stdout)["results"]
    assert (row["messages"], row["errors"]) == (1, 18)  # the last one is alone
    assert run.stderr.startswith("Error: 18 of 19 messages failed: ")
    assert len(run.stderr.splitlines()) == 1
    assert stored(shell, "b-failing") == 1


def test_the_live_view() -> None:
    tally = Tally("send", SystemClock())
    shown = io.StringIO()
    console = Console(width=100, file=shown)
    console.print(live_table([tally]))
    tally.begin()
    tally.done(1_500, 1_500, 0.002)
    tally.failed(2, SystemBusyError("busy"))
    console.print(live_table([tally]))
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines[1] == ["send", "0", "-", "-", "-", "0", "0"]
    assert lines[3] == ["send", "1,500", "-", "2.00", "2.00", "2", "0"]


def test_every_command_says_how_it_is_used() -> None:
    for name, each in command.commands.items():
        assert f"skylark bench {name}" in (each.epilog or "")
        options = [option for option in each.params if isinstance(option, click.Option)]
        assert all(option.help for option in options)
        assert any("--namesrv" in option.opts for option in options)
