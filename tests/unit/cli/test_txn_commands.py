"""``skylark txn`` against a real cluster: tables, JSON, exit codes, the resolver as a process."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from skylark import ClientOptions
from skylark.admin.errors import NotFoundError
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.core.clock import LoopClock
from skylark.spark.exactly_once.commit_coordinator import CommitCoordinator
from skylark.spark.exactly_once.commit_protocol import PredecessorMissingError, Prepared
from skylark.spark.exactly_once.half_message_completion import (
    CompletionCounts,
    HalfLocation,
    HalfMessageCompleter,
)
from skylark.spark.exactly_once.txn_admin import repair
from skylark.spark.option_table import Connection
from skylark.spark.sink.row_encoder import RowPlan
from skylark.spark.sink.sink_client import close_clients, sink_client
from skylark.spark.sink.sink_options import SinkOptions
from skylark.spark.sink.task_writer import TaskId, write_exactly_once
from skylark.sync import Admin, read_arrow
from tests.unit.cli.ups import TIMEOUT_S, command, environment, run, up

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _shared_clients() -> Iterator[None]:
    """Close what a sink shares within a process: other tests count what is left."""
    yield
    close_clients()


class Sink:
    """A sink with batches of ten rows in a topic T."""

    def __init__(self, namesrv: str, name: str) -> None:
        self._name = name
        self._options = SinkOptions(
            connection=Connection(name_server=namesrv),
            topic="T",
            delivery="exactly-once",
            immunity_sec=1,
        )
        self.client = sink_client(self._options)

    def write(self, batch: int) -> Prepared:
        rows = pa.RecordBatch.from_pydict({"body": pa.array([b"%d" % n for n in range(10)])})
        task = TaskId(sink=self._name, batch=batch, partition=0)
        plan = RowPlan(columns=("body",))
        return write_exactly_once([rows], self._options, plan, task)[1]

    def commit(self, prepared: Prepared) -> CompletionCounts:
        coordinator = CommitCoordinator(self.client, self._options)
        shared_portal().call(coordinator.commit(self._name, prepared.batch, [prepared]))
        return coordinator.ended


def until(is_so: Callable[[], bool], what: str) -> None:
    clock = LoopClock()
    deadline = clock.monotonic() + WAIT_S
    while not is_so():
        assert clock.monotonic() < deadline, what
        shared_portal().call(clock.sleep(0.05))


def test_batches_are_listed_and_abandoned(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral", "--topic", "T:2") as running:
        at = ("-n", running.namesrv)
        nothing = run(tmp_path, "--output", "json", "txn", "list", *at)
        assert (nothing.returncode, json.loads(nothing.stdout)) == (0, [])
        sink = Sink(running.namesrv, "sink-a")
        sink.commit(sink.write(0))
        sink.write(1)
        listed = json.loads(run(tmp_path, "--output", "json", "txn", "list", *at).stdout)
        assert [(row["sink"], row["batch"], row["state"], row["rows"]) for row in listed] == [
            ("sink-a", 1, "undecided", 10)
        ]
        everything = run(tmp_path, "txn", "list", "--all", *at).stdout.splitlines()
        assert everything[0].split() == ["SINK", "BATCH", "STATE", "ATTEMPTS", "ROWS", "SINCE"]
        assert [line.split()[:5] for line in everything[1:]] == [
            ["sink-a", "0", "done", "1", "10"],
            ["sink-a", "1", "undecided", "1", "10"],
        ]
        unknown = run(tmp_path, "txn", "abandon", "sink-b", "--yes", *at)
        assert (unknown.returncode, unknown.stdout) == (4, "")
        assert "no exactly-once sink sink-b" in unknown.stderr
        done = run(tmp_path, "--output", "json", "txn", "abandon", "sink-a", "--yes", *at)
        assert json.loads(done.stdout) == {"sink": "sink-a", "batch": 1, "state": "abandoned"}
        states = json.loads(run(tmp_path, "--output", "json", "txn", "list", "--all", *at).stdout)
        assert [row["state"] for row in states] == ["done", "abandoned"]


def test_a_sink_is_settled_and_forgotten(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral", "--topic", "T:2") as running:
        at = ("--yes", "-n", running.namesrv)
        sink = Sink(running.namesrv, "sink.c")
        with pytest.raises(PredecessorMissingError):
            sink.write(7)
        settle = ("--output", "json", "txn", "settle", "sink.c", "--written-through")
        done = run(tmp_path, *settle, "6", *at)
        assert json.loads(done.stdout) == {"sink": "sink.c", "batch": 6, "state": "done"}
        sink.commit(sink.write(7))
        refused = run(tmp_path, *settle, "6", *at)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "batch 7 of sink sink.c was decided" in refused.stderr
        forgotten = run(tmp_path, "--output", "json", "txn", "forget", "sink.c", *at)
        assert json.loads(forgotten.stdout) == {"sink": "sink.c", "state": "forgotten"}
        unknown = run(tmp_path, "txn", "forget", "sink.c", *at)
        assert (unknown.returncode, unknown.stdout) == (4, "")
        groups = run(tmp_path, "--output", "json", "group", "list", "-n", running.namesrv)
        assert "SPARK_TXN" not in groups.stdout


def test_rows_that_brokers_gave_up_are_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is decided when nobody asks about it any more, by one who ends there."""

    async def leave(
        _completer: HalfMessageCompleter, places: Sequence[HalfLocation], *, ordered: bool
    ) -> CompletionCounts:
        del ordered
        return CompletionCounts(handed_over=len(places))

    monkeypatch.setattr(HalfMessageCompleter, "commit", leave)
    settings = ("transactionCheckInterval=200", "transactionTimeOut=1000", "transactionCheckMax=2")
    impatient = [part for setting in settings for part in ("--set", setting)]
    with up(tmp_path, "--ephemeral", "--topic", "T:2", *impatient) as running:
        options = ClientOptions(namesrv=running.namesrv)
        sink = Sink(running.namesrv, "late")

        def report(*arguments: str) -> dict[str, int]:
            done = run(
                tmp_path, "--output", "json", "txn", "repair", *arguments, "-n", running.namesrv
            )
            assert done.returncode == 0, done.stderr
            found: dict[str, int] = json.loads(done.stdout)
            return {name: count for name, count in found.items() if count}

        def rows() -> int:
            return sum(part.num_rows for part in read_arrow("T", options))

        prepared = sink.write(0)
        given_up = partial(repair, sink.client, dry_run=True)
        until(lambda: shared_portal().call(given_up()).undecided == 10, "nothing was given up")
        assert report() == {"undecided": 10}
        # What is brought back below is not given up again, however long its answer takes.
        patient = ("cluster", "config", "set", "transactionCheckMax=1000", "--yes")
        assert run(tmp_path, *patient, "-n", running.namesrv).returncode == 0
        assert sink.commit(prepared).handed_over == 10
        assert report("--dry-run") == {"resumed": 10}
        assert rows() == 0
        assert report() == {"resumed": 10}
        until(lambda: rows() >= 10, "rows are missing")
        assert report() == {"committed_before": 10}
        assert rows() == 10


def test_the_resolver_is_a_process_that_ends_in_order(tmp_path: Path) -> None:
    with up(tmp_path, "--ephemeral") as running:
        process = subprocess.Popen(
            command("txn", "resolver", "-n", running.namesrv),
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready resolver=SPARK_TXN\n"
            # No tool counts it, or that of `skylark up`, among the producers: there is no work.
            with (
                Admin(ClientOptions(namesrv=running.namesrv)) as admin,
                pytest.raises(NotFoundError, match="no producer of group SPARK_TXN"),
            ):
                admin.groups.producers("SPARK_TXN")
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, errors


def test_nobody_answers(tmp_path: Path) -> None:
    for arguments in (("list",), ("abandon", "x", "--yes"), ("repair",)):
        done = run(tmp_path, "txn", *arguments, "-n", "127.0.0.1:1")
        assert (done.returncode, done.stdout) == (3, "")
        assert len(done.stderr.splitlines()) == 1
