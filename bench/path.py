"""What a request costs the broker, beside another commit: processor time, frames of Java clients.

``make bench PART=path BASE=<commit>`` answers whether a change made the way of a message through
the broker more expensive. ``ROWS='send 100 B*'`` picks rows, ``ARGS="--pairs 40"`` measures longer,
``ARGS="--json FILE"`` appends results to a file, where a second run finds those of the same two
commits (:mod:`bench.harness`). Without ``BASE`` it prints the figures of this commit. A whole run
took twelve minutes on that busy machine (see below), most of it waiting for a core.

Method. The broker is a process of its own (:mod:`bench.path_load.child`), once with the ``src`` of
this checkout and once with that of the base. This process replays requests that official Java
clients sent (:mod:`bench.path_load.frames`) over loopback sockets, and asks the broker before and
after for its processor time. So a figure has nothing of the client in it, and time that other
programs take does not count.

A pair is a fresh broker of each commit. Two processes of the same commit differ by a percent or
two for their whole life, because their memory is laid out differently; only new processes average
that out. Within a pair the two take turns of about 12 ms, in the order A B B A B A A B and so on,
which cancels a drift of the machine; the next pair has the order reversed. The ratio of a pair is
that of the sums of its turns. The ratio of a row is the median of its pairs, and its interval the
one that holds the true median with 95 % certainty for any distribution (order statistics).

Both brokers and this process run on one core, another one from pair to pair. They never work at the
same time, and to wake a process on its own core costs the same every time; across cores it depends
on how deep the other one sleeps.

A row fails, and with it the command, when its whole interval is above 1.03. A commit beside itself
gave ratios from 0.989 to 1.017 on two cores with ten other programs waiting for them, and intervals
of up to 0.05 to either side: there a loss of less than 8 % may pass. Repeat it on a quiet machine.

What the rows do:

``send ..., one at a time``   each message waits for the reply to the one before
``send ..., 16 in a read``    16 requests in one write, then their replies
``batch of 32``               one request with 32 messages of 100 B
``pull of 32``                a pull of a push consumer, answered by 32 messages
``pop 32 + acks``             a pop, answered by 32 messages, and 32 acks in one write; merging on.
                              Not beside a base that has no pop
``..., not merging``          the same with merging off: pops and acks are stored
``send, wake and hold ...``   a message for a held pull: two replies, and the next pull is held
``half and commit ...``       a half message; its commit comes with the next half message
``..., 5.1.4``                the same by a client of that release; those without are of 5.5.0
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from bench.harness import (
    ROOT,
    BenchError,
    Ledger,
    add_base_option,
    checkout_base,
    compile_sources,
    current_commit,
    machine_facts,
    run_program,
)
from bench.path_load.connection import Connection, find_broker
from bench.path_load.rows import Row, Work, make_work, select

BENCH: Final = "path"
PAIRS: Final = 24
RATIO_MAX: Final = 1.03
CONFIDENCE: Final = 0.95
#: Which side has which turn of a pair: a Thue-Morse sequence, in which drifts cancel.
TURNS: Final = tuple(number.bit_count() % 2 for number in range(32))
#: Fewer pairs have no interval of 95 %.
PAIRS_MIN: Final = 6
STOP_TIMEOUT_S: Final = 30.0
#: A topic that every broker has from its start.
FIRST_TOPIC: Final = "TBW102"
#: Commits with this folder serve pops.
POP_FOLDER: Final = "src/skylark/broker/pop"


# ---- statistics ---------------------------------------------------------------------------------


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Where the true median is, with this confidence: no assumption about the distribution.

    Each value is below the true median with probability 1/2, so the number of those below is
    binomial. Of the sorted values, as many are cut off at each end as that allows.
    """
    ordered = sorted(values)
    count = len(ordered)
    cut, tail = 0, 1.0
    while tail / 2**count <= (1 - confidence) / 2:
        cut += 1
        tail += math.comb(count, cut)
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[count - 1 - cut]


@dataclass(frozen=True)
class Result:
    """What was measured for one row: processor time of the broker per unit, in nanoseconds."""

    case: str
    unit: str
    median_ns: float
    spread: float  #: distance of the quartiles, as a share of the median
    base_ns: float | None = None
    ratio: float | None = None
    low: float | None = None  #: the interval of the ratio
    high: float | None = None
    ratios: tuple[float, ...] = ()  #: of the pairs

    @property
    def passed(self) -> bool:
        return self.low is None or self.low <= RATIO_MAX


def make_result(row: Row, ours_ns: Sequence[float], base_ns: Sequence[float]) -> Result:
    """``ours_ns`` and ``base_ns``: per unit, pair by pair; no base, no ratio."""
    median = statistics.median(ours_ns)
    spread = 0.0
    if len(ours_ns) > 1:
        first, _, third = statistics.quantiles(ours_ns, n=4, method="inclusive")
        spread = (third - first) / median
    if not base_ns:
        return Result(row.name, row.unit, median, spread)
    ratios = tuple(ours / base for ours, base in zip(ours_ns, base_ns, strict=True))
    low, high = median_interval(ratios)
    base_median = statistics.median(base_ns)
    ratio = statistics.median(ratios)
    return Result(row.name, row.unit, median, spread, base_median, ratio, low, high, ratios)


def format_table(results: Sequence[Result]) -> str:
    lines = [("case", "CPU time", "spread", "of the base", "ratio", "95 % interval", "")]
    for result in results:
        compared = ("", "", "", "")
        if result.ratio is not None:
            compared = (
                f"{result.base_ns:,.0f} ns",
                f"{result.ratio:.3f}",
                f"{result.low:.3f} to {result.high:.3f}",
                "" if result.passed else f"FAILED: above {RATIO_MAX:g}",
            )
        time = f"{result.median_ns:,.0f} ns/{result.unit}"
        lines.append((result.case, time, f"{result.spread:.0%}", *compared))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, 6}
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---- brokers ------------------------------------------------------------------------------------


class MeasuredBroker:
    """A child process with a broker, and our connection to it."""

    def __init__(self, source: Path) -> None:
        """Start it with the ``skylark`` below ``source``; :meth:`connect` waits for it."""
        self._source = source
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.path_load.child"],
            cwd=ROOT,
            # Sets and dicts of strings are then laid out alike in all processes.
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.connection: Connection

    def connect(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the broker of {self._source} did not start; see above")
        ready = json.loads(line)
        if Path(ready["source"]) != self._source:
            raise BenchError(f"the broker is that of {ready['source']}, not of {self._source}")
        with Connection(ready["namesrv"]) as namesrv:
            self.address = find_broker(namesrv, FIRST_TOPIC)
        self.connection = Connection(self.address)

    def command(self, word: str) -> int:
        """What the child answers to a word; see :mod:`bench.path_load.child`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchError("the broker ended early; see above")
        return int(line)

    def turn(self, work: Work) -> int:
        """Processor time that the broker spent on one run of the work."""
        before = self.command("cpu")
        work.run(self.connection)
        return self.command("cpu") - before

    def stop(self) -> None:
        """Let it end by itself, which removes its files; end it if it does not."""
        if hasattr(self, "connection"):
            self.connection.__exit__()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextlib.contextmanager
def one_core(number: int) -> Iterator[None]:
    """Keep this process, and those that it starts, on one core; where the system can do that."""
    if sys.platform != "linux":
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def brokers(sources: Sequence[Path]) -> Iterator[list[MeasuredBroker]]:
    """A fresh broker for each source; they start at the same time."""
    with contextlib.ExitStack() as stack:
        started = []
        for source in sources:
            started.append(MeasuredBroker(source))
            stack.callback(started[-1].stop)
        for broker in started:
            broker.connect()
        yield started


# ---- measuring ----------------------------------------------------------------------------------


def take_turns(sides: Sequence[MeasuredBroker], work: Work) -> list[float]:
    """Nanoseconds per unit of each side, from the turns of one pair."""
    spent = [0] * len(sides)
    for side in sides:
        work.prepare(side.connection)
        side.command("settle")
    turns = [turn for turn in TURNS if turn < len(sides)]
    for turn in turns:
        spent[turn] += sides[turn].turn(work)
    runs = len(turns) // len(sides)
    for side in sides:
        work.check(side.connection, runs)
    return [time / (runs * work.row.units) for time in spent]


def measure(
    rows: Sequence[Row], source: Path, base: Path | None, pairs: int, *, progress: TextIO
) -> list[Result]:
    """All rows, pair by pair; each pair with fresh brokers, in reversed order."""
    works = [make_work(row, f"path-{number:02d}") for number, row in enumerate(rows)]
    ours: Mapping[str, list[float]] = {row.name: [] for row in rows}
    theirs: Mapping[str, list[float]] = {row.name: [] for row in rows}
    for number in range(pairs):
        sources = [source] if base is None else [source, base]
        if number % 2:
            sources.reverse()
        with one_core(number // 2), brokers(sources) as sides:
            for work in works:
                times = take_turns(sides, work)
                if number % 2:
                    times.reverse()
                ours[work.row.name].append(times[0])
                if base is not None:
                    theirs[work.row.name].append(times[1])
        progress.write(f"\rpair {number + 1} of {pairs}")
        progress.flush()
    progress.write("\r" + " " * 20 + "\r")
    return [make_result(row, ours[row.name], theirs[row.name]) for row in rows]


# ---- the command --------------------------------------------------------------------------------


def finished(ledger: Ledger, same: Mapping[str, Any]) -> dict[str, Result]:
    """Results that need no second measurement; none while the commit is unknown."""
    found: dict[str, Result] = {}
    for entry in ledger.entries() if same["commit"] is not None else ():
        if all(entry.get(key) == value for key, value in same.items()):
            values = {key: entry[key] for key in Result.__dataclass_fields__}
            values["ratios"] = tuple(values["ratios"])
            found[entry["case"]] = Result(**values)
    return found


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether no row is slower than the base."""
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append results to this file and resume from it")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of brokers")
    add_base_option(parser)
    options = parser.parse_args(arguments)
    if options.pairs < (PAIRS_MIN if options.base else 1):
        raise BenchError(f"--pairs is at least {PAIRS_MIN} with a base, and 1 without")
    chosen = select(options.rows)
    base = checkout_base(options.base) if options.base else None
    if base is not None and not (base.folder / POP_FOLDER).exists():
        chosen = [row for row in chosen if not row.kind.startswith("pop")]
    source = ROOT / "src"
    compile_sources(source)
    facts = machine_facts()
    same = {
        "bench": BENCH,
        "commit": current_commit(ROOT),
        "base": base.commit if base else None,
        "machine": facts,
    }
    ledger = Ledger(options.json) if options.json else None
    results = finished(ledger, same) if ledger else {}
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    if base is not None:
        stdout.write(f"beside {base.commit[:10]}, {options.pairs} pairs\n")
    missing = [row for row in chosen if row.name not in results]
    if missing:
        folder = base.folder / "src" if base else None
        measured = measure(missing, source, folder, options.pairs, progress=sys.stderr)
        for result in measured:
            results[result.case] = result
            if ledger:
                ledger.append(same | asdict(result))
    shown = [results[row.name] for row in chosen]
    stdout.write(f"{format_table(shown)}\n")
    return all(result.passed for result in shown)


if __name__ == "__main__":
    run_program(BENCH, run)
