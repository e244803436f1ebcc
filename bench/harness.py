"""How benchmarks measure: alternating rounds, medians, ratios to a floor, results that add up.

A benchmark file lists :class:`Case` objects and ends with ``main("wire", cases)``::

    cases = [
        Case("bare msgspec decode", decode_bare, units=1000, unit="frame"),
        Case("SEND_V2 JSON", decode_frame, units=1000, unit="frame",
             floor="bare msgspec decode", time_at_most=3.0),
    ]

Method. Timings on a shared machine drift, so cases are not measured one after the other but in
rounds: all of them forward, then all of them backward (A B C, C B A, ...), which cancels a linear
drift. Cases that share a floor form a group and are measured together, group after group. A sample
repeats its case until it lasts ``sample_s``; the repetitions are found while warming up. The
garbage collector is off during a sample and runs between two. A case's figure is the median of its
samples with the distance of the quartiles as spread. A ratio to a floor is the median of the ratios
within each round: both sides saw the same weather. Ratios carry over to other machines, digits do
not.

Results. ``--json FILE`` appends one JSON object per line and case, group by group: figures,
samples, machine facts and the commit. A run that finds its case there, measured at the same clean
commit on the same kind of machine, does not measure it again: an interrupted run goes on where it
stopped, and the union of the lines at one commit is the result. ``--rows a*,b`` restricts the run
to some cases; the floors they need come along.

Another commit. ``--base COMMIT`` measures the same part at that commit too, in a checkout under
``build/base`` and in processes of its own, and prints the ratio to it for each row that both have.
All times are then processor times, which other programs disturb least.

The file holds no host names, users or paths.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

import skylark

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 10
SAMPLE_S = 0.1
PACKAGES = ("lz4", "msgspec", "numpy", "pyarrow", "pyspark", "skylark-mq", "uvloop", "zstandard")


class BenchError(Exception):
    """The benchmark is declared or called wrongly; the text says how."""


class Measured(Protocol):
    """What a benchmark does with its arguments; whether all goals are met."""

    def __call__(self, arguments: Sequence[str], *, stdout: TextIO) -> bool: ...


def run_program(name: str, run: Measured, *errors: type[Exception]) -> NoReturn:
    """``python -m bench.NAME``: measure and end; ``errors`` are told in one sentence.

    Asked to end, the program leaves by way of all its blocks, which end what they started.
    """
    told: tuple[type[Exception], ...] = (BenchError, *errors)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        all_met = run(sys.argv[1:], stdout=sys.stdout)
    except told as error:
        sys.exit(f"bench.{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0 if all_met else 1)


@dataclass(frozen=True)
class Case:
    """One row of a benchmark: ``run()`` does ``units`` units of work.

    ``floor`` names the case that this one is compared with. Goals are on the ratio to it:
    ``time_at_most=3.0`` allows three times its time per unit, ``speed_at_least=10.0`` demands ten
    times its units per second.
    """

    name: str
    run: Callable[[], object]
    units: int
    unit: str
    floor: str | None = None
    time_at_most: float | None = None
    speed_at_least: float | None = None


@dataclass(frozen=True)
class Result:
    """What was measured for one case. Times are nanoseconds per unit."""

    case: str
    unit: str
    samples_ns: tuple[float, ...]
    median_ns: float
    spread: float  # distance of the quartiles, as a share of the median
    floor: str | None
    ratio: float | None  # time per unit over that of the floor
    goal: str | None
    goal_met: bool | None

    @property
    def units_per_s(self) -> float:
        return 1e9 / self.median_ns


def check_cases(cases: Sequence[Case]) -> None:
    """Refuse declarations that would measure nothing or compare with nothing."""
    names = [case.name for case in cases]
    for case in cases:
        if names.count(case.name) > 1:
            raise BenchError(f"two cases are called {case.name!r}")
        if case.units < 1:
            raise BenchError(f"{case.name!r} does no work: units is {case.units}")
        if case.floor is not None and case.floor not in names:
            raise BenchError(f"{case.name!r} has no floor {case.floor!r} to stand on")
        if case.floor is None and (case.time_at_most or case.speed_at_least):
            raise BenchError(f"{case.name!r} has a goal but no floor")
    with_floors(cases, cases)


def select(cases: Sequence[Case], rows: str) -> list[Case]:
    """The cases that match one of the comma-separated patterns; all without a pattern."""
    patterns = [pattern.strip() for pattern in rows.split(",") if pattern.strip()]
    if not patterns:
        return list(cases)
    unmatched = [p for p in patterns if not any(fnmatchcase(case.name, p) for case in cases)]
    if unmatched:
        names = ", ".join(case.name for case in cases)
        raise BenchError(f"no row matches {', '.join(unmatched)}; there are: {names}")
    return [case for case in cases if any(fnmatchcase(case.name, p) for p in patterns)]


def _chain(case: Case, by_name: Mapping[str, Case]) -> list[Case]:
    """The case, its floor, the floor of that, and so on."""
    chain = [case]
    while (floor := chain[-1].floor) is not None:
        if by_name[floor] in chain:
            raise BenchError(f"{case.name!r} stands on itself")
        chain.append(by_name[floor])
    return chain


def with_floors(wanted: Iterable[Case], cases: Sequence[Case]) -> list[Case]:
    """The wanted cases and all floors below them, in the order of declaration."""
    by_name = {case.name: case for case in cases}
    needed = {below.name for case in wanted for below in _chain(case, by_name)}
    return [case for case in cases if case.name in needed]


def groups(wanted: Sequence[Case], cases: Sequence[Case]) -> list[list[Case]]:
    """What has to be measured together: cases that share a floor, with that floor."""
    by_name = {case.name: case for case in cases}
    by_root: dict[str, list[Case]] = {}
    for case in wanted:
        by_root.setdefault(_chain(case, by_name)[-1].name, []).append(case)
    return [with_floors(group, cases) for group in by_root.values()]


# ---- measuring -------------------------------------------------------------------------------

Timer = Callable[[], int]  # nanoseconds


def _sample(case: Case, repeat: int, timer: Timer) -> int:
    """Time ``repeat`` runs without the garbage collector interfering."""
    run = case.run
    gc.collect()
    gc.disable()
    try:
        start = timer()
        for _ in range(repeat):
            run()
        return timer() - start
    finally:
        gc.enable()


def _calibrate(case: Case, sample_ns: int, timer: Timer) -> int:
    """Warm up and find how often to run the case for one sample."""
    repeat = 1
    while True:
        took = _sample(case, repeat, timer)
        if took >= sample_ns:
            return repeat
        # Aim a little above the target, but never trust one short timing by more than a factor 10.
        repeat = max(repeat + 1, min(10 * repeat, 1 + int(repeat * 1.2 * sample_ns / max(took, 1))))


def measure(
    cases: Sequence[Case],
    *,
    rounds: int = ROUNDS,
    sample_s: float = SAMPLE_S,
    timer: Timer = time.perf_counter_ns,
) -> list[Result]:
    """Measure all cases in alternating rounds."""
    check_cases(cases)
    if rounds < 2:
        raise BenchError("a spread needs at least two rounds")
    samples: dict[str, list[float]] = {case.name: [] for case in cases}
    gc.collect()
    gc.freeze()  # what exists by now is not walked again by the collections between samples
    try:
        repeats = {case.name: _calibrate(case, int(sample_s * 1e9), timer) for case in cases}
        for number in range(rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                repeat = repeats[case.name]
                took = _sample(case, repeat, timer)
                samples[case.name].append(took / (repeat * case.units))
    finally:
        gc.unfreeze()
    return [_result(case, samples) for case in cases]


def _result(case: Case, samples: dict[str, list[float]]) -> Result:
    own = samples[case.name]
    median = statistics.median(own)
    first, _, third = statistics.quantiles(own, n=4, method="inclusive")
    ratio = None
    if case.floor is not None:
        pairs = zip(own, samples[case.floor], strict=True)
        ratio = statistics.median(mine / floor for mine, floor in pairs)
    goal, goal_met = _goal(case, ratio)
    return Result(
        case=case.name,
        unit=case.unit,
        samples_ns=tuple(own),
        median_ns=median,
        spread=(third - first) / median,
        floor=case.floor,
        ratio=ratio,
        goal=goal,
        goal_met=goal_met,
    )


def _goal(case: Case, ratio: float | None) -> tuple[str | None, bool | None]:
    if ratio is None:
        return None, None
    if case.time_at_most is not None:
        return f"time at most {case.time_at_most:g}x", ratio <= case.time_at_most
    if case.speed_at_least is not None:
        return f"speed at least {case.speed_at_least:g}x", 1 / ratio >= case.speed_at_least
    return None, None


# ---- facts -----------------------------------------------------------------------------------


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def machine_facts() -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine or its user."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": versions,
    }


def compile_package() -> None:
    """Write Skylark's bytecode, as pip does: what starts then compiles nothing."""
    compile_sources(Path(skylark.__file__).parent)


def compile_sources(folder: Path) -> None:
    """Write the bytecode of everything below a folder.

    A checkout may lack it, and go on lacking it under ``PYTHONDONTWRITEBYTECODE``.
    """
    compileall.compile_dir(folder, quiet=1)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def current_commit(folder: Path) -> str | None:
    """The commit of the checkout; ``None`` outside of one and when more than results differ."""
    try:
        kept = ("bench/history", "tests/ledger.toml", "docs/compatibility.md")
        others = (":(top)", *(f":(top,exclude){path}" for path in kept))
        changes = git(folder, "status", "--porcelain", "--", *others)
        return None if changes else git(folder, "rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None


# ---- results on disk -------------------------------------------------------------------------


class Ledger:
    """A file of results, one JSON object per line, appended to and never rewritten.

    A line that a killed run left unfinished is ignored and closed before the next is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def entries(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        found = []
        for line in self._path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found

    def append(self, entry: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                torn = file.read(1) != b"\n"
                file.write(b"\n" if torn else b"")
            file.write(json.dumps(entry).encode() + b"\n")


def to_entry(
    bench: str, result: Result, facts: dict[str, Any], commit: str | None
) -> dict[str, Any]:
    return {
        "bench": bench,
        "case": result.case,
        "commit": commit,
        "unit": result.unit,
        "median_ns": result.median_ns,
        "spread": result.spread,
        "units_per_s": result.units_per_s,
        "floor": result.floor,
        "ratio": result.ratio,
        "goal": result.goal,
        "goal_met": result.goal_met,
        "samples_ns": list(result.samples_ns),
        "machine": facts,
    }


def from_entry(entry: dict[str, Any]) -> Result:
    return Result(
        case=entry["case"],
        unit=entry["unit"],
        samples_ns=tuple(entry["samples_ns"]),
        median_ns=entry["median_ns"],
        spread=entry["spread"],
        floor=entry["floor"],
        ratio=entry["ratio"],
        goal=entry["goal"],
        goal_met=entry["goal_met"],
    )


def finished(
    ledger: Ledger, bench: str, facts: dict[str, Any], commit: str | None
) -> dict[str, Result]:
    """Results that need no second measurement; none while the commit is unknown."""
    if commit is None:
        return {}
    return {
        entry["case"]: from_entry(entry)
        for entry in ledger.entries()
        if entry.get("bench") == bench
        and entry.get("commit") == commit
        and entry.get("machine") == facts
    }


# ---- another commit ---------------------------------------------------------------------------


def add_base_option(parser: argparse.ArgumentParser) -> None:
    """``--base COMMIT``; ``make bench BASE=COMMIT`` passes it."""
    parser.add_argument("--base", default="", metavar="COMMIT", help="compare with this commit")


@dataclass(frozen=True)
class Base:
    """A commit that was checked out for comparison."""

    commit: str
    folder: Path


def checkout_base(name: str, root: Path = ROOT) -> Base:
    """Check a commit out under ``build/base``, once, as a worktree of the repository."""
    try:
        commit = git(root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        folder = root / "build" / "base" / commit[:12]
        if not folder.exists():
            git(root, "worktree", "prune")  # of folders that `make clean` removed
            git(root, "worktree", "add", "--quiet", "--detach", str(folder), commit)
    except subprocess.CalledProcessError as error:
        raise BenchError(f"cannot check out {name}: {error.stderr.strip()}") from error
    interop = folder / "build" / "interop"
    if not interop.is_symlink():  # jars and wheels need not be fetched again
        interop.parent.mkdir(exist_ok=True)
        interop.symlink_to(root / "build" / "interop")
    compile_sources(folder / "src")
    return Base(commit, folder)


# Runs a part whose harness, of any commit, then takes processor time for its clock.
PART_ON_PROCESSOR_TIME = """
import runpy, sys, time
time.perf_counter_ns = time.process_time_ns
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class BaseRuns:
    """Runs of the same part at another commit, by the code which that commit has for it.

    Half of the rounds come before ours and half after, which cancels a steady drift. Different
    processes still differ by a few percent: for decisions there is :mod:`bench.path`.
    """

    def __init__(self, bench: str, base: Base, rounds: int, arguments: Sequence[str]) -> None:
        self._bench = bench
        self._base = base
        self._arguments = arguments
        self._halves = [rounds - rounds // 2, rounds // 2]
        self._found: dict[str, list[dict[str, Any]]] = {}

    def run_half(self) -> None:
        """Measure half of the rounds, the other half at the second call."""
        rounds = max(2, self._halves.pop(0))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results"
            command = [sys.executable, "-c", PART_ON_PROCESSOR_TIME, f"bench.{self._bench}"]
            done = subprocess.run(
                [*command, *self._arguments, "--rounds", str(rounds), "--json", str(file)],
                cwd=self._base.folder,
                env={**os.environ, "PYTHONPATH": str(self._base.folder / "src")},
                check=False,
                capture_output=True,
                text=True,
            )
            entries = Ledger(file).entries()
        if not entries:  # a goal that the base missed is no reason to stop
            raise BenchError(f"no results of {self._base.commit[:10]}: {done.stderr[-1000:]}")
        for entry in entries:
            self._found.setdefault(entry["case"], []).append(entry)

    def finish(self, key: str) -> dict[str, float]:
        """Measure the second half; by row, the mean of a figure of both halves."""
        self.run_half()
        return {
            case: statistics.fmean(entry[key] for entry in entries)
            for case, entries in self._found.items()
        }


def base_runs(bench: str, name: str, rounds: int, arguments: Sequence[str]) -> BaseRuns | None:
    """The runs of a base, if one was named, with the first half measured."""
    runs = BaseRuns(bench, checkout_base(name), rounds, arguments) if name else None
    if runs is not None:
        runs.run_half()
    return runs


# ---- the table and the command ---------------------------------------------------------------


def format_table(results: Iterable[Result], base_ns: Mapping[str, float] | None = None) -> str:
    """Aligned text for people; ``base_ns`` has the times of another commit by row."""
    lines = [("case", "time", "spread", "rate", "to its floor", "goal", "to the base")]
    for result in results:
        goal = (
            ""
            if result.goal is None
            else f"{result.goal}: {'met' if result.goal_met else 'MISSED'}"
        )
        lines.append(
            (
                result.case,
                f"{result.median_ns:,.0f} ns/{result.unit}",
                f"{result.spread:.0%}",
                f"{result.units_per_s:,.0f} {result.unit}s/s",
                "" if result.ratio is None else f"{result.ratio:.2f}x ({result.floor})",
                goal,
                format_ratio(result.median_ns, (base_ns or {}).get(result.case)),
            )
        )
    if base_ns is None:
        lines = [(*line[:-1], "") for line in lines]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    left = {0, 4, 5, 6}
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def format_ratio(ours: float, base: float | None) -> str:
    """``1.02x`` of the base; a row that it does not have is new."""
    return f"{ours / base:.2f}x" if base else "new"


def run(
    bench: str,
    cases: Sequence[Case],
    arguments: Sequence[str],
    *,
    stdout: TextIO,
    timer: Timer = time.perf_counter_ns,
    base_timer: Timer = time.process_time_ns,
    base_arguments: Sequence[str] = (),
) -> None:
    """Parse the arguments, measure what is missing, append it, print everything asked for.

    ``base_arguments`` are for the same part at the base, beside those for rows and rounds.
    """
    parser = argparse.ArgumentParser(prog=f"bench.{bench}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of case names")
    parser.add_argument("--json", type=Path, help="append results to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sample-s", type=float, default=SAMPLE_S, help="seconds per sample")
    add_base_option(parser)
    options = parser.parse_args(arguments)

    check_cases(cases)
    wanted = select(cases, options.rows)
    more = [*base_arguments, "--rows", options.rows, "--sample-s", str(options.sample_s)]
    base = base_runs(bench, options.base, options.rounds, more)
    if base is not None:
        bench, timer = f"{bench} beside {options.base}", base_timer
    facts = machine_facts()
    commit = current_commit(Path(__file__).parent)
    ledger = Ledger(options.json) if options.json else None
    results = finished(ledger, bench, facts, commit) if ledger else {}
    missing = [case for case in wanted if case.name not in results]
    for group in groups(missing, cases):
        measured = measure(group, rounds=options.rounds, sample_s=options.sample_s, timer=timer)
        for result in measured:
            # A floor measured again only for comparison is no news.
            if ledger and result.case not in results:
                ledger.append(to_entry(bench, result, facts, commit))
            results.setdefault(result.case, result)
    base_ns = base.finish("median_ns") if base else None
    shown = [results[case.name] for case in with_floors(wanted, cases) if case.name in results]
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    stdout.write(f"{format_table(shown, base_ns)}\n")


def main(bench: str, cases: Sequence[Case], base_arguments: Sequence[str] = ()) -> None:
    """The whole program of a benchmark file."""
    try:
        run(bench, cases, sys.argv[1:], stdout=sys.stdout, base_arguments=base_arguments)
    except BenchError as error:
        sys.exit(f"bench.{bench}: {error}")
