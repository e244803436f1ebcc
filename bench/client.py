"""Our client against the C++ client that Python users have today: rates, processor time, latency.

``make bench PART=client``; ``ROWS='100 B*'`` or ``ROWS='*push*'`` picks rows (what they are
compared with comes along), ``ARGS="--rounds 5 --json FILE"`` measures more often and appends
results to a file, where a second run at the same commit finds them (:mod:`bench.harness`).
``BASE=<commit>`` compares the processor time of each row with that at another commit. A whole run
takes about eight minutes, twice that with a base.

The peer is the PyPI wheel ``rocketmq`` 0.4.4, fetched once into ``build/interop``. Both sides talk
to the same broker, ``skylark up`` in a process of its own with its data on the disk of the
checkout. Each sample is a process too (:mod:`bench.client_load.job`): its processor time, of all
its threads, is the client's alone. Rows of a group are measured in alternating rounds, forward and
backward; a figure is the median, a ratio the median of the ratios within each round, the spread the
distance of the quartiles.

What the rows do:

``one by one``        each send is awaited before the next
``pipelined``         the wheel's ``send_async``, 64 in flight, all results looked at
``64 in flight``      so many tasks that send one after the other; a request for each message
``submit``            through the accumulator: begun without waiting, all results awaited
``gather of 1000``   through the accumulator: ``asyncio.gather`` of so many sends, again and
                      again, each time waiting for the last one
``push ...``          a new group reads a full topic; time runs from the first message to the last
``read_arrow ...``    the same topic, against our push consumer
``end to end``        1,000 messages a second, from when each is due to when its handler runs
``memory``            what the process has for itself (RssAnon), while messages are sent and
                      received; its slope is that of the second half

That a message was acknowledged is checked by reading it back: all bodies of a row are different.
Goals of rate, processor time and latency stand beside the figures; those of processor time are for
100 B, because with 1 KB the bytes themselves count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TextIO

from bench.broker_load import broker_process, percentile, slope
from bench.client_load.job import Job
from bench.harness import (
    BenchError,
    Ledger,
    add_base_option,
    base_runs,
    current_commit,
    format_ratio,
    machine_facts,
    run_program,
)
from tests.interop.cpp import wheel_folder

BENCH = "client"
ROUNDS = 5
SAMPLE_TIMEOUT_S = 600.0
BODY_SIZES = {"100 B": 100, "1 KB": 1024}
FILL_COUNT = 100_000
MEMORY_COUNT = 1_000_000
GROWTH_MIB_MAX = 8.0  # per million messages: 8 bytes of each
P50_MS_MAX = 1.0


@dataclass(frozen=True)
class Row:
    """One row: what is done by whom, what it is compared with, and the goals.

    ``times`` are multiples of the floor's rate that are asked for, the last one the goal.
    """

    name: str
    side: str
    kind: str
    how: str
    count: int
    body_size: int
    floor: str | None = None
    times: tuple[float, ...] = ()
    processor_s_max: float | None = None  #: for 100,000 messages


def rows(memory_count: int = MEMORY_COUNT) -> list[Row]:
    found = []
    for label, size in BODY_SIZES.items():
        wheel, ours = f"{label} wheel", label
        sync, piped = f"{wheel} one by one", f"{wheel} pipelined"
        pushed, push = f"{wheel} push", f"{ours} push async per message"
        late = f"{wheel} end to end"
        found += [
            Row(sync, "wheel", "send", "one by one", 4_000, size),
            Row(f"{ours} one by one", "ours", "send", "one by one", 8_000, size, sync, (2, 3), 12),
            Row(piped, "wheel", "send", "pipelined", 8_000, size),
            Row(f"{ours} 64 in flight", "ours", "send", "in flight", 30_000, size, piped, (6,), 4),
            Row(f"{ours} submit", "ours", "send", "submitted", 100_000, size, piped, (15, 25), 1),
            Row(
                *(f"{ours} gather of 1000", "ours", "send", "gathered", 100_000, size),
                *(piped, (), 1),
            ),
            Row(pushed, "wheel", "consume", "", FILL_COUNT, size),
            Row(push, "ours", "consume", "per message", FILL_COUNT, size, pushed, (8,), 1),
            Row(
                *(f"{ours} push async per batch", "ours", "consume", "per batch", FILL_COUNT),
                *(size, pushed, (12,), 0.7),
            ),
            Row(
                *(f"{ours} push plain function", "ours", "consume", "threads", FILL_COUNT),
                *(size, pushed, (4,), 2),
            ),
            Row(
                *(f"{ours} read_arrow two columns", "ours", "arrow", "two columns", FILL_COUNT),
                *(size, push, (8,), 0.1),
            ),
            Row(
                *(f"{ours} read_arrow all columns", "ours", "arrow", "all columns", FILL_COUNT),
                *(size, push, (3,), 0.3),
            ),
            Row(late, "wheel", "latency", "", 4_000, size),
            Row(f"{ours} end to end", "ours", "latency", "", 4_000, size, late),
        ]
    found.append(Row("memory", "ours", "memory", "", memory_count, 100))
    return found


def _chain(row: Row, by_name: dict[str, Row]) -> list[Row]:
    chain = [row]
    while (floor := chain[-1].floor) is not None:
        chain.append(by_name[floor])
    return chain


def select(found: Sequence[Row], patterns_text: str) -> list[Row]:
    """The rows that match, and what they are compared with, in the order of declaration."""
    patterns = [pattern.strip() for pattern in patterns_text.split(",") if pattern.strip()] or ["*"]
    by_name = {row.name: row for row in found}
    wanted = {
        below.name
        for row in found
        if any(fnmatchcase(row.name, pattern) for pattern in patterns)
        for below in _chain(row, by_name)
    }
    if not wanted:
        names = ", ".join(by_name)
        raise BenchError(f"no row matches {patterns_text}; there are: {names}")
    return [row for row in found if row.name in wanted]


def groups(chosen: Sequence[Row]) -> list[list[Row]]:
    """What has to be measured together: rows that stand on the same floor."""
    by_name = {row.name: row for row in chosen}
    by_root: dict[str, list[Row]] = {}
    for row in chosen:
        by_root.setdefault(_chain(row, by_name)[-1].name, []).append(row)
    return list(by_root.values())


# ---- samples ------------------------------------------------------------------------------------


class Bench:
    """Runs jobs against one broker."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self._namesrv = namesrv
        self._folder = folder
        self._filled: dict[int, str] = {}
        self._jobs = 0

    def sample(self, row: Row) -> dict[str, Any]:
        """One sample of a row, with what went missing."""
        self._jobs += 1
        topic = f"bench-{self._jobs}"
        if row.kind in ("consume", "arrow"):
            topic = self._full_topic(row.body_size)
        result = self._run(row.side, row.kind, row.how, topic, row.count, row.body_size)
        result["missing"] = 0
        if row.kind == "send":
            found = self._run("ours", "stored", "body", topic, 0, row.body_size)
            result["missing"] = result["stored"] - found["different"]
        return result

    def _full_topic(self, body_size: int) -> str:
        topic = self._filled.get(body_size)
        if topic is None:
            topic = self._filled[body_size] = f"bench-full-{body_size}"
            self._run("ours", "send", "gathered", topic, FILL_COUNT, body_size)
        return topic

    def _run(
        self, side: str, kind: str, how: str, topic: str, count: int, body_size: int
    ) -> dict[str, Any]:
        group = f"group-{self._jobs}"
        job = Job(kind, how, self._namesrv, topic, count, body_size, group)
        environ = dict(os.environ)
        if side == "wheel":
            # The library writes its log into the home folder.
            environ |= {"PYTHONPATH": str(wheel_folder()), "HOME": str(self._folder)}
        arguments = [sys.executable, "-m", f"bench.client_load.{side}", job.to_json()]
        try:
            done = subprocess.run(
                arguments,
                env=environ,
                capture_output=True,
                text=True,
                timeout=SAMPLE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{job} takes longer than {SAMPLE_TIMEOUT_S:g} s") from error
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            raise BenchError(f"{job} failed: {done.stderr[-1000:]}")
        found: dict[str, Any] = json.loads(lines[-1])
        return found


# ---- results ------------------------------------------------------------------------------------


@dataclass
class Result:
    """What was measured for one row; ``goals`` are texts and whether they were met."""

    case: str
    rates: list[float]  #: messages per second, of each round
    processor_s: float  #: for 100,000 messages
    floor: str | None = None
    ratio: float | None = None  #: rate over that of the floor
    p50_ms: float | None = None
    p99_ms: float | None = None
    growth_mib: float | None = None  #: per million messages
    size_mib: float | None = None
    goals: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        if len(self.rates) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.rates, n=4, method="inclusive")
        return (third - first) / self.rate


def median_of(samples: Sequence[dict[str, Any]], share: float) -> float:
    """The median over rounds of one percentile."""
    return statistics.median(percentile(sorted(s["latencies_ms"]), share) for s in samples)


def make_result(
    row: Row, samples: Sequence[dict[str, Any]], floors: Sequence[dict[str, Any]]
) -> Result:
    rates = [sample["count"] / sample["wall_s"] for sample in samples]
    costs = [sample["processor_s"] / sample["count"] * 1e5 for sample in samples]
    result = Result(row.name, rates, statistics.median(costs), row.floor)
    goals = result.goals
    if row.kind == "latency":
        _judge_latency(result, samples, floors)
    elif row.kind == "memory":
        sizes = samples[-1]["sizes"]
        result.size_mib = sizes[-1][1]
        result.growth_mib = slope(sizes[len(sizes) // 2 :]) * 1e6
        flat = result.growth_mib <= GROWTH_MIB_MAX
        goals.append((f"at most {GROWTH_MIB_MAX:g} MiB per million", flat))
    elif floors:
        floor_rates = [floor["count"] / floor["wall_s"] for floor in floors]
        pairs = zip(rates, floor_rates, strict=True)
        ratio = result.ratio = statistics.median(mine / floor for mine, floor in pairs)
        goals += [(f"{times:g}x", ratio >= times) for times in row.times]
    if row.processor_s_max is not None and row.body_size == BODY_SIZES["100 B"]:
        goals.append((f"{row.processor_s_max:g} s", result.processor_s <= row.processor_s_max))
    if missing := sum(sample["missing"] for sample in samples):
        goals.append((f"{missing} acknowledged and not there", False))
    return result


def _judge_latency(
    result: Result, samples: Sequence[dict[str, Any]], floors: Sequence[dict[str, Any]]
) -> None:
    result.p50_ms, result.p99_ms = median_of(samples, 0.5), median_of(samples, 0.99)
    if floors:
        worst = median_of(floors, 0.99)
        result.goals.append((f"p50 {P50_MS_MAX:g} ms", result.p50_ms <= P50_MS_MAX))
        result.goals.append((f"p99 {worst:.1f} ms", result.p99_ms <= worst))


def measure(bench: Bench, group: Sequence[Row], rounds: int) -> list[Result]:
    samples: dict[str, list[dict[str, Any]]] = {row.name: [] for row in group}
    # Memory is a matter of counts, not of weather.
    for number in range(1 if group[0].kind == "memory" else rounds):
        for row in group if number % 2 == 0 else reversed(group):
            samples[row.name].append(bench.sample(row))
    return [
        make_result(row, samples[row.name], samples[row.floor] if row.floor else ())
        for row in group
    ]


def format_table(results: Sequence[Result]) -> str:
    lines = [("case", "rate", "spread", "to its floor", "CPU / 100k", "", "goals")]
    for result in results:
        more = ""
        if result.p50_ms is not None and result.p99_ms is not None:
            more = f"p50 {result.p50_ms:.2f} p99 {result.p99_ms:.2f} ms"
        if result.growth_mib is not None:
            more = f"{result.size_mib:.0f} MiB, {result.growth_mib:+.1f} per million"
        goals = [f"{text}: {'met' if met else 'MISSED'}" for text, met in result.goals]
        lines.append(
            (
                result.case,
                f"{result.rate:,.0f}/s",
                f"{result.spread:.0%}",
                "" if result.ratio is None else f"{result.ratio:.1f}x",
                f"{result.processor_s:.2f} s",
                more,
                ", ".join(goals),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, 5, 6}
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---- the command --------------------------------------------------------------------------------


def finished(ledger: Ledger, facts: dict[str, Any], commit: str | None) -> dict[str, Result]:
    """Results that need no second measurement; none while the commit is unknown."""
    found: dict[str, Result] = {}
    for entry in ledger.entries() if commit is not None else ():
        same = {"bench": BENCH, "commit": commit, "machine": facts}
        if all(entry.get(key) == value for key, value in same.items()):
            values = {key: entry[key] for key in Result.__dataclass_fields__}
            values["goals"] = [(text, met) for text, met in values["goals"]]
            found[entry["case"]] = Result(**values)
    return found


@contextlib.contextmanager
def open_bench() -> Iterator[Bench]:
    with broker_process(()) as broker, tempfile.TemporaryDirectory() as folder:
        yield Bench(broker.namesrv, Path(folder))


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether all goals are met."""
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append results to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=MEMORY_COUNT, help="of the memory row")
    add_base_option(parser)
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.messages < 1:
        raise BenchError("--rounds and --messages must be positive")
    chosen = select(rows(options.messages), options.rows)
    more = ["--rows", options.rows, "--messages", str(options.messages)]
    base = base_runs(BENCH, options.base, options.rounds, more)
    facts = machine_facts()
    commit = current_commit(Path(__file__).parent)
    ledger = Ledger(options.json) if options.json else None
    results = finished(ledger, facts, commit) if ledger else {}
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    with contextlib.ExitStack() as stack:
        bench: Bench | None = None
        for group in groups(chosen):
            if any(row.name not in results for row in group):
                bench = bench or stack.enter_context(open_bench())
                for result in measure(bench, group, options.rounds):
                    results[result.case] = result
                    if ledger:
                        entry = {"bench": BENCH, "commit": commit, "machine": facts}
                        ledger.append(entry | asdict(result))
            stdout.write(f"\n{format_table([results[row.name] for row in group])}\n")
            stdout.flush()
    if base is not None:
        processor_s = base.finish("processor_s")
        for row in chosen:
            ratio = format_ratio(results[row.name].processor_s, processor_s.get(row.name))
            stdout.write(f"{row.name:<30} {ratio:>6} the processor time of the base\n")
    return all(met for row in chosen for _, met in results[row.name].goals)


if __name__ == "__main__":
    run_program(BENCH, run)
