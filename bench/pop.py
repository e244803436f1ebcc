"""Pop consumption: our PopConsumer, and a Java consumer that pops and pulls, beside Apache 5.5.0.

``make bench PART=pop``; it needs what ``make bench PART=compare`` needs, and takes an hour. It ends
with an error if a goal is missed. ``ROWS='PopConsumer*'`` picks rows; ``ARGS`` may be:

``--rounds 1 --seconds 10 --warm-up 5 --messages 200000``  to make it small
``--json FILE``  to append each sample to a file, from which a second run at the same commit goes on

A topic of 8 queues is filled with messages of 100 B, and then consumed:

``PopConsumer``  our client: 4 receives at a time, batches of 32, each acknowledged before the next
``Java pop``     a push consumer with ``setClientRebalance(false)``, 20 threads, batches of 32; the
                 mode of its group is set before (401)
``Java pull``    the same program with queues of its own: the ceiling of what it can handle

with ``enablePopBufferMerge`` on in both brokers, and again with it off, which is the default of
Apache's. Rates of Java's program are those between the end of the warm-up and the end of the
messages, or of ``--seconds``. ``CPU`` is the processor time of broker and name server for a
message. ``of pull`` is the part of the rate of ``Java pull`` in the same session. Rounds alternate
as those of :mod:`bench.compare` do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from bench.compare import Run, all_facts, measure_all, missed
from bench.compare_load.rows import Figure, Goal, Row, at_most, select
from bench.compare_load.session import CLIENT_HEAP_MB, Session, Timing, settle_disk
from bench.compare_load.summary import Sample, format_noise, format_table, summarize
from bench.harness import BenchError, Ledger, compile_package, current_commit, run_program
from tests.interop.java import JavaProcess
from tests.interop.process import ProcessError
from tests.interop.toolchain import ToolchainError, check_tools, classpath, compiled

BENCH: Final = "pop"
ROUNDS: Final = 4
PROGRAM: Final = "PopLoad"
BODY_SIZE: Final = 100
BATCH: Final = 32
THREADS: Final = 20
RECEIVES: Final = "4"
START_TIMEOUT_S: Final = 120.0
#: Portions in which the topic is filled.
FILL_PORTION: Final = 200_000
#: The end of the messages is not measured: the last ones come when the loops wait for each other.
TAIL: Final = 0.02
#: The part of the messages that the warm-up may take: pulls would be through in seconds.
WARM_UP_MAX: Final = 0.4
#: What must be left to measure after the warm-up.
WINDOW_MIN_S: Final = 2.0
MERGING: Final = "merging"
PLAIN: Final = "plain"

Found = dict[str, Any]


def settings_of(kind: str) -> Mapping[str, object]:
    """Settings of the brokers in a session of this kind."""
    return {
        "flushDiskType": "ASYNC_FLUSH",
        "enablePopBufferMerge": "true" if kind == MERGING else "false",
    }


def rows() -> list[Row]:
    found: list[Row] = []
    for session, suffix in ((MERGING, "merging"), (PLAIN, "not merging")):
        is_merging = session == MERGING
        ours = Goal(50_000, of_ratio=False, unit=" msg/s") if is_merging else None
        cpu = Goal(30, at_least=False, of_ratio=False, unit=" us") if is_merging else at_most(0.7)
        found += [
            Row(
                *(f"PopConsumer, {suffix}", session, "pop_consumer"),
                (
                    Figure("rate", "msg/s", ours),
                    Figure("CPU", "us/message"),
                    Figure("client CPU", "us/message"),
                ),
            ),
            Row(f"Java pull, {suffix}", session, "java_pull", _java_figures(None, None)),
            Row(
                *(f"Java pop, {suffix}", session, "java_pop"),
                (
                    *_java_figures(Goal(1.5 if is_merging else 1.2), cpu),
                    Figure("of pull", "x"),
                    Figure("repeated", "messages"),
                ),
            ),
        ]
    return found


def _java_figures(rate: Goal | None, cpu: Goal | None) -> tuple[Figure, ...]:
    return (Figure("rate", "msg/s", rate), Figure("CPU", "us/message", cpu))


# ---- our consumer --------------------------------------------------------------------------------


def fill(session: Session) -> tuple[str, int]:
    """A new topic with messages, and how many."""
    topic, stored = session.topic(), 0
    for first in range(0, session.timing.messages, FILL_PORTION):
        count = min(FILL_PORTION, session.timing.messages - first)
        stored += session.client("send", "submitted", topic, count, BODY_SIZE)["stored"]
    settle_disk(session.timing.pause_s)
    return topic, stored


def pop_consumer(session: Session, row: Row) -> Found:
    del row
    topic, stored = fill(session)
    begin = session.mark()
    # A few of the last messages may wait in a request of another task: not all are counted.
    found = session.client("pop", RECEIVES, topic, stored, BODY_SIZE)
    end = session.mark()
    count = found["count"]
    return {
        "figures": {
            "rate": count / found["wall_s"],
            "CPU": (end.processor_s - begin.processor_s) / stored * 1e6,
            "client CPU": found["processor_s"] / count * 1e6,
        },
        "acknowledged": stored,
        "stored": session.stored(topic),
    }


# ---- Java's consumer -----------------------------------------------------------------------------


class Consumer(JavaProcess):
    """The Java program; it consumes from its start until the end of its block."""

    def __init__(self, options: Mapping[str, object], folder: Path) -> None:
        super().__init__("pop-load", main_class=PROGRAM, folder=folder, heap_mb=CLIENT_HEAP_MB)
        self._options = options
        self.last: dict[str, Any] = {"at_ms": 0, "count": 0, "repeated": 0}

    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._options.items()]

    def wait_ready(self) -> None:
        self.last = json.loads(self.wait_for_line('"event"', START_TIMEOUT_S))

    def count(self) -> int:
        """Messages so far; raises if the program has ended."""
        if not self.running:
            raise self.failure("ended early")
        for line in self.waiting_lines():
            self.last = json.loads(line)
        return int(self.last["count"])

    def close(self) -> None:
        self.kill()  # it knows no orderly end
        super().close()


def java(session: Session, mode: str) -> Found:
    topic, stored = fill(session)
    group = session.group_at_start(topic)
    if mode == "pop":
        session.admin.groups.set_mode(topic, group, "pop")
    options = {
        "namesrv": session.system.namesrv,
        "topic": topic,
        "group": group,
        "mode": mode,
        "threads": THREADS,
        "batch": BATCH,
    }
    timing, enough = session.timing, int(stored * (1 - TAIL))
    with Consumer(options, session.system.folder / f"load-{topic}") as consumer:
        session.wait_until(lambda: consumer.count() > 0, "the first message", START_TIMEOUT_S)
        _work(consumer, int(enough * WARM_UP_MAX), timing.warm_up_s)
        begin, first = session.mark(), consumer.count()
        first_ms = consumer.last["at_ms"]
        _work(consumer, enough, timing.seconds)
        end, last = session.mark(), consumer.count()
        took_s = (consumer.last["at_ms"] - first_ms) / 1_000
        repeated = consumer.last["repeated"]
    if took_s < WINDOW_MIN_S or last == first:
        raise BenchError("the messages ended in the warm-up: --messages must be more")
    count = last - first
    return {
        "figures": {
            "rate": count / took_s,
            "CPU": (end.processor_s - begin.processor_s) / count * 1e6,
            "repeated": float(repeated),
        },
        "notes": {"measured": count, "seconds": round(took_s, 1)},
    }


def _work(consumer: Consumer, enough: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and consumer.count() < enough:
        time.sleep(0.05)


def java_pull(session: Session, row: Row) -> Found:
    del row
    found = java(session, "pull")
    del found["figures"]["repeated"]
    CEILINGS[session.system.folder] = found["figures"]["rate"]
    return found


def java_pop(session: Session, row: Row) -> Found:
    del row
    found = java(session, "pop")
    ceiling = CEILINGS.get(session.system.folder)
    if ceiling is None:  # ROWS left it out
        ceiling = java(session, "pull")["figures"]["rate"]
    found["figures"]["of pull"] = found["figures"]["rate"] / ceiling
    return found


#: Rates of pulls, by the folder of their session.
CEILINGS: Final[dict[Path, float]] = {}

MEASURES: Final[Mapping[str, Callable[[Session, Row], Found]]] = {
    "pop_consumer": pop_consumer,
    "java_pull": java_pull,
    "java_pop": java_pop,
}


def measure(session: Session, row: Row, number: int) -> Sample:
    found = MEASURES[row.kind](session, row)
    return Sample(row=row.name, system=session.system.name, round=number, **found)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append samples to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=30.0, help="of Java's program, at most")
    parser.add_argument("--warm-up", type=float, default=30.0, help="seconds before it")
    parser.add_argument("--messages", type=int, default=2_000_000, help="of each measurement")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0 or options.messages < 1 or options.warm_up < 0:
        raise BenchError("--rounds, --seconds and --messages must be positive")
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
        Timing(options.seconds, options.warm_up, options.messages),
        facts,
        current_commit(Path(__file__).parent),
        Ledger(options.json) if options.json else None,
        bench=BENCH,
        measure=measure,
        settings=settings_of,
    )
    measure_all(ran, chosen, options.rounds, stdout)
    counted = [sample for sample in ran.samples if sample.round < options.rounds]
    results = [result for row in chosen for result in summarize(row, counted)]
    stdout.write(f"\n{format_table(results)}\n\n{format_noise(results)}\n")
    return not missed(results)


if __name__ == "__main__":
    run_program(BENCH, run, ProcessError, ToolchainError)
