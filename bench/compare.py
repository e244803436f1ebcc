"""Skylark beside Apache RocketMQ 5.5.0: the same clients, the same disk, in alternating rounds.

``make bench`` or ``make bench PART=compare``; it needs Linux, a JDK and Maven (jars come once, into
``build/interop``), about ten gigabytes of disk, and the machine for itself for an hour and a half.
It ends with an error if a goal is missed. ``ROWS='16*,catch-up'`` picks rows; ``ARGS`` may be:

``--rounds 1 --seconds 12 --warm-up 1 --messages 20000 --warm-up-messages 1000``  to make it small
``--json FILE``  to append each sample to a file, from which a second run at the same commit goes on
``--growth``     to measure rates against the numbers of queues and connections, the size of
                 messages and the length of the log instead; that takes 40 gigabytes of disk
``--publish``    to measure nothing, but put the results of ``bench/history`` that
                 ``docs/performance.md`` names into its tables and its chart

What is measured (:mod:`bench.compare_load.rows`):

- producers of 16 threads with the Java clients 4.9.8 and 5.1.4 (a program of ours);
- the official Java benchmark programs: producers with 1, 16 and 64 threads, batches, a consumer
  that catches up (the middle one of three), both at once, transactions, and 64 threads with
  ``SYNC_FLUSH``;
- our own client, against both: one by one, 64 in flight, accumulator, push consumer, ``read_arrow``
  and the time from when a message is due to when its handler runs;
- the systems: the time to the first acknowledged message, memory of their own (``RssAnon``) and
  pages of mapped files apart from it, processor time for a million messages, and at idle.

Method. A session starts one system on an empty folder on the disk of the checkout, warms it with at
least 300,000 messages (the number is printed), and measures one row after the other; before each,
the disk is settled (``sync`` and a pause). A round is a session of each system, and rounds
alternate: A S, S A, A S, S A. Figures are medians over rounds with the distance of the quartiles as
spread; a ratio is the median of the ratios within each round; ``noise`` is Apache against itself,
its lowest figure over its highest (:mod:`bench.compare_load.summary`). Apache has a heap of 2 GB,
Skylark its released defaults; both keep theirs otherwise (:mod:`bench.compare_load.systems`).
Processor time and memory are those of broker and name server together.

After each row all messages of its topic are read back, and those that differ counted: by their ids,
where our client sent by their bodies. If fewer are there than were acknowledged, the row is void.
Rows that Apache wins stay in the table.

A run of all rows in four rounds leaves a file in ``bench/history``; ``--history`` makes one of any.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from bench.compare_load import history
from bench.compare_load.measures import COLD, measure
from bench.compare_load.rows import Row, growth_rows, rows, select, sessions
from bench.compare_load.session import ADMIN_TIMEOUT_S, Session, Timing, settle_disk
from bench.compare_load.summary import (
    Result,
    Sample,
    format_noise,
    format_table,
    order,
    summarize,
)
from bench.compare_load.systems import SYSTEMS
from bench.harness import (
    BenchError,
    Ledger,
    compile_package,
    current_commit,
    machine_facts,
    run_program,
)
from skylark import ClientOptions
from skylark.core.errors import SkylarkError
from skylark.sync import Admin
from tests.interop.process import ProcessError
from tests.interop.toolchain import (
    CURRENT,
    ToolchainError,
    check_tools,
    classpath,
    compiled,
    java_version,
)

BENCH = "compare"
ROUNDS = 4
SYNC_SESSION = "sync"
#: Of one row or session; the others go on.
FAILURES = (BenchError, ProcessError, SkylarkError, OSError)


def settings_of(kind: str) -> Mapping[str, object]:
    """Settings of the brokers in a session of this kind."""
    return {"flushDiskType": "SYNC_FLUSH" if kind == SYNC_SESSION else "ASYNC_FLUSH"}


class Run:
    """All samples of a run: those that a file had, and those that are measured."""

    def __init__(
        self,
        timing: Timing,
        facts: dict[str, Any],
        commit: str | None,
        ledger: Ledger | None,
        *,
        bench: str = BENCH,
        measure: Callable[[Session, Row, int], Sample] = measure,
        settings: Callable[[str], Mapping[str, object]] = settings_of,
    ) -> None:
        """``settings`` are those of the brokers, by the kind of the session."""
        self._timing = timing
        self._commit = commit
        self._ledger = ledger
        self._measure_row = measure
        self._settings = settings
        #: Called with the name of a system and the number of messages that warmed it.
        self.on_warm: Callable[[str, int], None] = lambda _system, _count: None
        self._stamp = {
            "bench": bench,
            "commit": commit,
            "machine": facts,
            "timing": asdict(timing),
        }
        self.samples = self._finished()

    def _finished(self) -> list[Sample]:
        """Samples that need no second measurement; none while the commit is unknown."""
        if self._ledger is None or self._commit is None:
            return []
        names = [field.name for field in fields(Sample)]
        return [
            Sample(**{name: entry[name] for name in names})
            for entry in self._ledger.entries()
            if all(entry.get(key) == value for key, value in self._stamp.items())
        ]

    def missing(self, chosen: Sequence[Row], system: str, number: int) -> list[Row]:
        done = {(sample.row, sample.system, sample.round) for sample in self.samples}
        return [row for row in chosen if (row.name, system, number) not in done]

    def session(
        self,
        kind: str,
        chosen: Sequence[Row],
        system: str,
        number: int,
        report: Callable[[Sample], None],
    ) -> None:
        """Measure what is missing of one system in one round; each sample is reported."""
        wanted = self.missing(chosen, system, number)
        if not wanted:
            return
        try:
            self._measure(kind, wanted, system, number, report)
        except FAILURES as error:
            for row in self.missing(wanted, system, number):
                report(self._failed(row, system, number, error))

    def _measure(
        self,
        kind: str,
        wanted: Sequence[Row],
        system: str,
        number: int,
        report: Callable[[Sample], None],
    ) -> None:
        settle_disk(self._timing.pause_s)
        settings = self._settings(kind)
        with (
            tempfile.TemporaryDirectory(
                dir=Path.cwd(), prefix=".bench-compare-", ignore_cleanup_errors=True
            ) as folder,
            SYSTEMS[system](Path(folder), settings) as running,
            Admin(ClientOptions(namesrv=running.namesrv), timeout=ADMIN_TIMEOUT_S) as admin,
        ):
            session = Session(running, admin, self._timing)
            for row in wanted:
                if kind != "idle" and row.name not in COLD:
                    self._warm(session)
                settle_disk(self._timing.pause_s)
                report(self._sample(session, row, number))

    def _warm(self, session: Session) -> None:
        if count := session.warm():
            self.on_warm(session.system.name, count)

    def _sample(self, session: Session, row: Row, number: int) -> Sample:
        try:
            sample = self._measure_row(session, row, number)
        except FAILURES as error:
            return self._failed(row, session.system.name, number, error)
        if self._ledger is not None:
            self._ledger.append(self._stamp | asdict(sample))
        self.samples.append(sample)
        return sample

    def _failed(self, row: Row, system: str, number: int, error: Exception) -> Sample:
        """A row that fails is void, and not kept: the others go on, and another run may try."""
        why = f"failed: {error}".partition("\n")[0]
        sample = Sample(row.name, system, number, {}, void=why)
        self.samples.append(sample)
        return sample


def all_facts() -> dict[str, Any]:
    """Facts of the machine, with what the other side runs on."""
    return machine_facts() | {"java": java_version(), "rocketmq": CURRENT}


def measure_all(run: Run, chosen: Sequence[Row], rounds: int, stdout: TextIO) -> None:
    def report(sample: Sample) -> None:
        figures = ", ".join(f"{name} {value:,.2f}" for name, value in sample.figures.items())
        void = f" VOID: {sample.void}" if sample.void else ""
        where = f"round {sample.round + 1} {sample.system:<8}"
        stdout.write(f"{where} {sample.row}: {figures}{void}\n")
        stdout.flush()

    def report_warm_up(system: str, count: int) -> None:
        stdout.write(f"{system} is warm after {count:,} messages\n")

    run.on_warm = report_warm_up
    for kind, members in sessions(chosen).items():
        for number, systems in enumerate(order(rounds)):
            for system in systems:
                run.session(kind, members, system, number, report)


def add_warm_up_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--warm-up-messages",
        type=int,
        default=Timing.warm_up_messages,
        help="to each system before its first row",
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append samples to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds before it")
    parser.add_argument("--messages", type=int, default=1_000_000, help="to catch up with")
    add_warm_up_option(parser)
    parser.add_argument("--growth", action="store_true", help="measure growth instead")
    parser.add_argument("--history", action="store_true", help="keep the result in bench/history")
    parser.add_argument("--publish", action="store_true", help=f"only renew {history.PAGE}")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0 or options.messages < 1 or options.warm_up < 0:
        raise BenchError("--rounds, --seconds and --messages must be positive")
    return options


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether no goal is missed."""
    options = parse_arguments(arguments)
    if options.publish:
        for path in history.publish(history.PAGE, history.FOLDER):
            stdout.write(f"{path}\n")
        return True
    chosen = select(growth_rows() if options.growth else rows(), options.rows)
    check_tools()
    stdout.write("the jars and our launcher, once, into build/interop\n")
    classpath()
    compiled("Leashed")
    compile_package()
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    facts = all_facts()
    commit = current_commit(Path(__file__).parent)
    timing = Timing(
        options.seconds,
        options.warm_up,
        options.messages,
        warm_up_messages=options.warm_up_messages,
    )
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    ran = Run(timing, facts, commit, Ledger(options.json) if options.json else None)
    measure_all(ran, chosen, options.rounds, stdout)
    counted = [sample for sample in ran.samples if sample.round < options.rounds]
    results = [result for row in chosen for result in summarize(row, counted)]
    stdout.write(f"\n{format_table(results)}\n\n{format_noise(results)}\n")
    if options.history or not (options.rows or options.growth or options.rounds < ROUNDS):
        settings = asdict(timing) | {"rounds": options.rounds}
        day = datetime.now(UTC).date()
        kinds = ("growth" if options.growth else "", "part" if options.rows else "")
        kind = "-".join(filter(None, kinds))
        path = history.save(history.FOLDER, day, commit, settings, facts, results, kind)
        stdout.write(f"{path}\n")
    return not missed(results)


def missed(results: Sequence[Result]) -> list[str]:
    return [result.title for result in results if result.goal_met is False or result.void]


if __name__ == "__main__":
    run_program(BENCH, run, ProcessError, ToolchainError)
