"""Whether one busy connection starves the others: Skylark beside Apache RocketMQ 5.5.0.

``make bench PART=fairness``; it needs what ``make bench PART=compare`` needs, and takes half an
hour. It ends with an error if a goal is missed. ``ROWS=flood`` picks rows; ``ARGS`` may be:

``--rounds 1 --seconds 5 --warm-up 5``  to make it small
``--json FILE``  to append each sample to a file, from which a second run at the same commit goes on

Two rows, of messages of 1 KB in 16 queues:

``flood``           three Java programs, each with a connection of its own: a producer of
                    asynchronous batches (512 x 32 messages in flight), its push consumer, and a
                    quiet producer that sends one message every 10 ms and waits for the answer
``batches``         the official ``BatchProducer`` (4 threads, 32 messages) with the official
                    ``Consumer``

``produced`` and ``consumed`` are messages per second, counted by the programs between two moments
after the warm-up; ``together`` is their sum; ``caught up`` is the part of what was produced that
was consumed. The quiet producer's times are of its sends in the same seconds; ``refused`` counts
those that failed. Rounds alternate as those of :mod:`bench.compare` do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from bench.broker_load import percentile
from bench.compare import Run, all_facts, measure_all, missed
from bench.compare_load.lines import steady_rate
from bench.compare_load.rows import KIB, Figure, Goal, Row, at_most, select
from bench.compare_load.session import CLIENT_HEAP_MB, Session, Timing
from bench.compare_load.summary import Sample, format_noise, format_table, summarize
from bench.harness import BenchError, Ledger, compile_package, current_commit, run_program
from tests.interop.java import JavaProcess
from tests.interop.process import ProcessError
from tests.interop.toolchain import ToolchainError, check_tools, classpath, compiled

BENCH = "fairness"
ROUNDS = 4
QUEUES: Final = 16
IN_FLIGHT: Final = 512
BATCH: Final = 32
THREADS: Final = 4
INTERVAL_MS: Final = 10
PROGRAM: Final = "FairnessLoad"
START_TIMEOUT_S: Final = 120.0

Found = dict[str, Any]


def rows() -> list[Row]:
    return [
        Row(
            *("flood", "load", "flood"),
            (
                Figure("consumed", "msg/s", Goal(0.9)),
                Figure("produced", "msg/s"),
                Figure("together", "msg/s", Goal(1.0)),
                Figure("caught up", "%"),
                Figure("quiet p50", "ms"),
                Figure("quiet p99", "ms", at_most(0.5)),
                Figure("refused", "sends", Goal(0, at_least=False, of_ratio=False, unit="")),
            ),
        ),
        Row(
            *("batches", "load", "batches"),
            (Figure("produced", "msg/s", Goal(1.0)), Figure("consumed", "msg/s", Goal(1.0))),
        ),
    ]


# ---- three programs, three connections -----------------------------------------------------------


class LoadProgram(JavaProcess):
    """One of the clients; it works from its start until the end of its block."""

    def __init__(self, kind: str, options: Mapping[str, object], folder: Path) -> None:
        super().__init__(kind, main_class=PROGRAM, folder=folder, heap_mb=CLIENT_HEAP_MB)
        self._options = {"kind": kind, **options}
        self.records: list[dict[str, Any]] = []

    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._options.items()]

    def wait_ready(self) -> None:
        """It tells something when its client has started; three at once would take too long."""
        self.records.append(json.loads(self.wait_for_line('"event"', START_TIMEOUT_S)))

    def read(self) -> None:
        """Take what it has told since the last time; raises if it has ended."""
        if not self.running:
            raise self.failure("ended early")
        self.records += [json.loads(line) for line in self.waiting_lines()]

    def close(self) -> None:
        self.kill()  # it knows no orderly end
        super().close()


def rate_between(records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float) -> float:
    """Messages per second by the counts that were told in this time."""
    counts = [
        (each["at_ms"], each["count"])
        for each in records
        if each["event"] == "count" and begin_ms <= each["at_ms"] <= end_ms
    ]
    if len(counts) < 2:
        raise BenchError("a program told too little: measure for longer")
    (first_ms, first), (last_ms, last) = counts[0], counts[-1]
    return float((last - first) / (last_ms - first_ms) * 1_000)


def quiet_figures(
    records: Sequence[Mapping[str, Any]], begin_ms: float, end_ms: float
) -> dict[str, float]:
    """How long single sends took in this time, and how many of them failed."""
    sends = [each for each in records if begin_ms <= each["at_ms"] <= end_ms]
    took = sorted(float(each["ms"]) for each in sends if each["stored"])
    if not took:
        raise BenchError("the quiet producer sent nothing: measure for longer")
    return {
        "quiet p50": percentile(took, 0.5),
        "quiet p99": percentile(took, 0.99),
        "refused": float(len(sends) - len(took)),
    }


def flood(session: Session, row: Row) -> Found:
    del row
    topic, quiet_topic = session.topic(QUEUES), session.topic(QUEUES)
    group = session.group_at_start(topic)
    common = {"namesrv": session.system.namesrv, "size": KIB}
    folder = session.system.folder / f"fairness-{topic}"

    def program(kind: str, **options: object) -> LoadProgram:
        return LoadProgram(kind, common | options, folder / kind)

    with (
        program("consume", topic=topic, group=group) as consumer,
        program("flood", topic=topic, group="flood", batch=BATCH, in_flight=IN_FLIGHT) as producer,
        program("quiet", topic=quiet_topic, group="quiet", interval_ms=INTERVAL_MS) as quiet,
    ):
        programs = (consumer, producer, quiet)
        _work(programs, session.timing.warm_up_s)
        begin_ms = time.time() * 1_000
        _work(programs, session.timing.seconds)
        end_ms = time.time() * 1_000
        produced = rate_between(producer.records, begin_ms, end_ms)
        consumed = rate_between(consumer.records, begin_ms, end_ms)
        figures = quiet_figures(quiet.records, begin_ms, end_ms)
        failed = producer.records[-1]["failed"]
    return {
        "figures": {
            "consumed": consumed,
            "produced": produced,
            "together": produced + consumed,
            "caught up": 100 * consumed / produced if produced else 0.0,
            **figures,
        },
        "notes": {"failed_batches": failed},
    }


def _work(programs: Sequence[LoadProgram], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for program in programs:
            program.read()
        time.sleep(min(left, 0.2))


# ---- the official programs -----------------------------------------------------------------------


def batches(session: Session, row: Row) -> Found:
    del row
    topic = session.topic(QUEUES)
    group = session.group_at_start(topic)
    timing = session.timing
    with session.java("Consumer", topic, g=group, p="false") as receiver:
        receiver.wait_for_line("Consumer Started")
        with session.java("BatchProducer", topic, w=THREADS, s=KIB, b=BATCH) as sender:
            sender.work(timing.warm_up_s)
            begin = session.mark()
            sender.work(timing.seconds)
            produced = steady_rate(sender.lines(), begin.clock_s)
            consumed = steady_rate(receiver.lines(), begin.clock_s)
    if produced is None or consumed is None:
        raise BenchError("the programs tell about nine seconds at a time: measure for longer")
    return {"figures": {"produced": produced, "consumed": consumed}}


MEASURES: Final[Mapping[str, Callable[[Session, Row], Found]]] = {
    "flood": flood,
    "batches": batches,
}


def measure(session: Session, row: Row, number: int) -> Sample:
    found = MEASURES[row.kind](session, row)
    return Sample(row=row.name, system=session.system.name, round=number, **found)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append samples to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=20.0, help="seconds before it")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0 or options.warm_up < 0:
        raise BenchError("--rounds and --seconds must be positive")
    return options


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether no goal is missed."""
    options = parse_arguments(arguments)
    chosen = select(rows(), options.rows)
    check_tools()
    stdout.write("the jars and our programs, once, into build/interop\n")
    classpath()
    for program in ("Leashed", PROGRAM):
        compiled(program)
    compile_package()
    facts = all_facts()
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    ran = Run(
        Timing(options.seconds, options.warm_up),
        facts,
        current_commit(Path(__file__).parent),
        Ledger(options.json) if options.json else None,
        bench=BENCH,
        measure=measure,
    )
    measure_all(ran, chosen, options.rounds, stdout)
    counted = [sample for sample in ran.samples if sample.round < options.rounds]
    results = [result for row in chosen for result in summarize(row, counted)]
    stdout.write(f"\n{format_table(results)}\n\n{format_noise(results)}\n")
    return not missed(results)


if __name__ == "__main__":
    run_program(BENCH, run, ProcessError, ToolchainError)
