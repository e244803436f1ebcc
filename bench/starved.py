"""Whether a broker refuses messages because its machine is busy: Skylark beside Apache RocketMQ.

``make bench PART=starved``; it needs what ``make bench PART=compare`` needs, and takes up to an
hour on a machine that does nothing else. It ends with an error if a goal is missed. ``ROWS=burst``
picks rows; ``ARGS`` may be:

``--messages 2000 --refusals 0 --limit 30 --bursts 1 --busy 4``  to make it small
``--json FILE``  to append each result to a file

While each row is measured, ``--busy`` processes (24) that never sleep share the processors.

``producer``   the official ``Producer`` with 16 threads and messages of 1 KB, until a million are
               stored and, at Apache, 30 were refused, but for 20 minutes at most. Goal: ours
               refuses at most half as many per message. If Apache refuses fewer than 30, ours
               must refuse fewer than 15 in all
``burst``      ten small Java programs at the same time, each with a producer that sends 20
               messages, 20 times. Goal: ours refuses none

A refusal is a response with code 2 (``MQBrokerException: CODE: 2``) in the log of a Java client,
which writes down each of them, also if it then tries again with success. ``failed`` are the sends
that were given up.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from bench.compare import all_facts
from bench.compare_load.lines import failed_count
from bench.compare_load.rows import KIB
from bench.compare_load.session import ADMIN_TIMEOUT_S, CLIENT_HEAP_MB, Session, Timing
from bench.compare_load.summary import APACHE, SKYLARK
from bench.compare_load.systems import SYSTEMS
from bench.harness import BenchError, Ledger, compile_package, current_commit, run_program
from skylark.client.core.client_options import ClientOptions
from skylark.sync import Admin
from tests.interop.java import JavaProcess
from tests.interop.process import ProcessError
from tests.interop.toolchain import ToolchainError, check_tools, classpath, compiled

BENCH = "starved"
ROWS: Final = ("producer", "burst")
THREADS: Final = 16
QUEUES: Final = 16
#: Apache's refusals that make a comparison, and the limit of ours if there are fewer.
REFUSALS: Final = 30
ALONE_MAX: Final = 15
RATIO_MAX: Final = 0.5
PROGRAMS: Final = 10
SENDS: Final = 20
SEND_PROGRAM: Final = "FairnessLoad"
LOOK_S: Final = 1.0
BURST_TIMEOUT_S: Final = 300.0
_REFUSED: Final = re.compile(r"^\S*MQBrokerException: CODE: 2\b", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """What one system did in one row."""

    row: str
    system: str
    messages: int
    refused: int
    failed: int
    seconds: float

    def text(self) -> str:
        sent = f"{self.messages:>10,} messages in {self.seconds:,.0f} s"
        counts = f"{self.refused} refused, {self.failed} failed"
        return f"{self.row:<9} {self.system:<8} {sent}, {counts}"


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that never sleep."""
    with ExitStack() as stack:
        for _ in range(count):
            child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(child.wait)
            stack.callback(child.kill)
        yield


def refusal_count(log: str) -> int:
    """Responses with code 2 that a Java client wrote into its log."""
    return len(_REFUSED.findall(log))


def refusals_of(client: JavaProcess) -> int:
    return sum(refusal_count(file.read_text("utf-8", "replace")) for file in logs_of(client))


def logs_of(client: JavaProcess) -> list[Path]:
    return [file for file in client.log_files() if file.exists()]


def produce(session: Session, options: argparse.Namespace) -> Result:
    """The official producer, until there is enough of everything."""
    topic = session.topic(QUEUES)
    wanted = options.refusals if session.system.name == APACHE else 0
    began = time.monotonic()
    with session.java("Producer", topic, w=THREADS, s=KIB) as client:
        while True:
            client.work(LOOK_S)
            stored, seconds = session.stored(topic), time.monotonic() - began
            refused = refusals_of(client)
            if (stored >= options.messages and refused >= wanted) or seconds > options.limit:
                break
        failed = failed_count(client.lines())
    return Result("producer", session.system.name, stored, refused, failed, seconds)


class SmallProgram(JavaProcess):
    """A producer that sends a few messages, and ends."""

    def __init__(self, session: Session, topic: str, number: int) -> None:
        folder = session.system.folder / f"small-{topic}-{number}"
        super().__init__("small", main_class=SEND_PROGRAM, folder=folder, heap_mb=CLIENT_HEAP_MB)
        self._options = {
            "kind": "quiet",
            "namesrv": session.system.namesrv,
            "topic": topic,
            "group": "small",
            "size": 100,
            "interval_ms": 1,
        }
        self.sends: list[bool] = []  # whether each message was stored

    def arguments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._options.items()]

    def wait_ready(self) -> None:
        """It works from its start; many at once would take too long."""

    def read(self) -> None:
        self.sends += [json.loads(line)["stored"] for line in self.waiting_lines()]

    def close(self) -> None:
        self.kill()  # it knows no orderly end
        super().close()


def burst(session: Session, options: argparse.Namespace) -> Result:
    """Small programs at the same time, some times."""
    messages = refused = failed = 0
    began = time.monotonic()
    for _ in range(options.bursts):
        topic = session.topic(QUEUES)
        with ExitStack() as stack:
            programs = [
                stack.enter_context(SmallProgram(session, topic, number))
                for number in range(options.programs)
            ]
            _read_all(programs)
            for program in programs:
                messages += sum(program.sends)
                failed += len(program.sends) - sum(program.sends)
                refused += refusals_of(program)
    seconds = time.monotonic() - began
    return Result("burst", session.system.name, messages, refused, failed, seconds)


def _read_all(programs: Sequence[SmallProgram]) -> None:
    deadline = time.monotonic() + BURST_TIMEOUT_S
    while any(len(program.sends) < SENDS for program in programs):
        if time.monotonic() > deadline:
            raise BenchError(f"small programs do not end within {BURST_TIMEOUT_S:g} s")
        for program in programs:
            if not program.running:
                raise program.failure("ended early")
            program.read()
        time.sleep(0.1)


MEASURES: Final[Mapping[str, Callable[[Session, argparse.Namespace], Result]]] = {
    "producer": produce,
    "burst": burst,
}


def verdict(results: Sequence[Result]) -> list[str]:
    """The goals that were missed, in words."""
    found = {(result.row, result.system): result for result in results}
    missed = []
    ours, theirs = found.get(("producer", SKYLARK)), found.get(("producer", APACHE))
    if ours is not None and theirs is not None:
        if theirs.refused < REFUSALS:
            if ours.refused >= ALONE_MAX:
                missed.append(f"producer: {ours.refused} refused, {ALONE_MAX - 1} may be")
        else:
            ratio = (ours.refused / ours.messages) / (theirs.refused / theirs.messages)
            if ratio > RATIO_MAX:
                missed.append(f"producer: {ratio:.2f}x refused per message, {RATIO_MAX}x may be")
    ours = found.get(("burst", SKYLARK))
    if ours is not None and ours.refused:
        missed.append(f"burst: {ours.refused} refused, none may be")
    return missed


def measure(system: str, row: str, options: argparse.Namespace) -> Result:
    with (
        tempfile.TemporaryDirectory(
            dir=Path.cwd(), prefix=".bench-starved-", ignore_cleanup_errors=True
        ) as folder,
        SYSTEMS[system](Path(folder), {"flushDiskType": "ASYNC_FLUSH"}) as running,
        Admin(ClientOptions(namesrv=running.namesrv), timeout=ADMIN_TIMEOUT_S) as admin,
    ):
        session = Session(running, admin, Timing(warm_up_messages=options.warm_up))
        session.warm()
        with busy_processes(options.busy):
            return MEASURES[row](session, options)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated names of rows")
    parser.add_argument("--json", type=Path, help="append results to this file")
    parser.add_argument("--busy", type=int, default=24, help="processes that never sleep")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of the producer")
    parser.add_argument("--refusals", type=int, default=REFUSALS, help="to wait for at Apache")
    parser.add_argument("--limit", type=float, default=1_200.0, help="seconds for a producer")
    parser.add_argument(
        "--warm-up", type=int, default=Timing.warm_up_messages, help="messages before, not busy"
    )
    parser.add_argument("--bursts", type=int, default=20)
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="in each burst")
    parser.add_argument("--systems", default=f"{SKYLARK},{APACHE}", help="comma-separated")
    options = parser.parse_args(arguments)
    options.rows = options.rows.split(",") if options.rows else list(ROWS)
    options.systems = options.systems.split(",")
    if unknown := {*options.rows} - {*ROWS} or {*options.systems} - {*SYSTEMS}:
        raise BenchError(f"unknown: {', '.join(sorted(unknown))}; the rows are {', '.join(ROWS)}")
    numbers = (options.messages, options.limit, options.bursts, options.programs)
    if min(numbers) <= 0 or min(options.busy, options.refusals, options.warm_up) < 0:
        raise BenchError("--messages, --limit, --bursts and --programs must be positive")
    return options


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether no goal is missed."""
    options = parse_arguments(arguments)
    check_tools()
    stdout.write("the jars and our programs, once, into build/interop\n")
    classpath()
    for program in ("Leashed", SEND_PROGRAM):
        compiled(program)
    compile_package()
    facts, commit = all_facts(), current_commit(Path(__file__).parent)
    ledger = Ledger(options.json) if options.json else None
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    results = []
    for row in options.rows:
        for system in options.systems:
            result = measure(system, row, options)
            results.append(result)
            stdout.write(f"{result.text()}\n")
            stdout.flush()
            if ledger is not None:
                stamp = {"bench": BENCH, "commit": commit, "machine": facts, "busy": options.busy}
                ledger.append(stamp | asdict(result))
    missed = verdict(results)
    stdout.write("".join(f"MISSED {each}\n" for each in missed) or "all goals are met\n")
    return not missed


if __name__ == "__main__":
    run_program(BENCH, run, ProcessError, ToolchainError)
