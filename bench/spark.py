"""Spark: how quick source and sink are, what an archive costs, and what an idle stream does.

``make bench PART=spark``; ``ROWS='100 B*'`` or ``ROWS='idle'`` picks rows (what they are compared
with comes along), ``ARGS="--rounds 7 --json FILE"`` measures more often and appends results to a
file, where a second run at the same commit finds them (:mod:`bench.harness`). A whole run takes
about eight minutes. Spark runs as ``local[2]``; the broker is a process of its own with its data on
the disk of the checkout; topics have four queues. Rows of a group are measured in alternating
rounds, forward and backward, after runs that do not count; a figure is the median, a ratio the
median of the ratios within each round. Time runs from the start of Spark's job to its end.

``ceiling``          a Python source that yields ready-made Arrow batches of the same columns and
                     sizes (:mod:`bench.spark_load.ready`) to Spark's noop sink
``pull``, ``file``   our source to noop, from the broker and from its files in the page cache; two
                     columns are ``body`` and ``queueOffset``, all are the default ones
``push``             our push consumer, one call per message, in a process of its own
``two clients``      our client's accumulator (``submit``), in as many processes as Spark has tasks
``at-least-once``,   ready-made batches with a body to our sink, two tasks; the second is compared
``exactly-once``     with the first
``archive N``        ``skylark job archive`` of so many 100 B messages to Parquet. Sizes by
                     ``ARGS="--archive 1000000,10000000"``: the larger are compared with the first.
                     Memory is that of the JVM and of all Python processes; it is judged by the
                     second half of runs that last long enough
``idle``             a stream without new messages, default trigger: requests that the broker
                     answers, and processor time of JVM and Python, per second
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from bench.harness import BenchError, Ledger, current_commit, machine_facts, run_program
from bench.spark_load.site import Site, opened_site
from bench.spark_load.taking import (
    Sample,
    archived,
    ceiling,
    clients,
    idle,
    push,
    read,
    sink,
    warm_archive,
)

BENCH = "spark"
ROUNDS = 5
BODY_SIZES = {"100 B": 100, "1 KB": 1024}
ARCHIVE_COUNT = 1_000_000
TWO_COLUMNS = "body,queueOffset"
#: spec 9.39: rows of 1 KB with the default columns from files, per second.
FILE_RATE_MIN = 200_000.0
COST_SHARE_MIN = 0.8  # of the rate of the smallest archive


@dataclass(frozen=True)
class Row:
    """One row: how a sample is taken, and what it is compared with.

    ``floors`` are other rows of the group, with the share of their rate that is asked for.
    """

    name: str
    group: str
    take: Callable[[Site], Sample]
    floors: tuple[tuple[str, float | None], ...] = ()
    rate_min: float | None = None
    warm_ups: int = 2
    once: bool = False  #: a matter of counts, not of weather: one round


# ---- rows ---------------------------------------------------------------------------------------


def source_rows(label: str, size: int) -> Iterator[Row]:
    group = f"source {label}"
    pushed = f"{label} push"
    # The push consumer is a floor of one row only, but is worth seeing for both sizes.
    yield Row(pushed, group, partial(push, body_size=size), warm_ups=0)
    for what, columns, shares in (
        ("two columns", TWO_COLUMNS, {"pull": 0.3, "file": 0.4}),
        ("all columns", "", {"pull": 0.2, "file": 0.2}),
    ):
        top = f"{label} ceiling {what}"
        yield Row(top, group, partial(ceiling, columns=columns, body_size=size))
        for mode, share in shares.items():
            floors: tuple[tuple[str, float | None], ...] = ((top, share),)
            if what == "two columns" and mode == "pull":
                floors += ((pushed, 8.0 if size == BODY_SIZES["100 B"] else None),)
            is_item = what == "all columns" and mode == "file" and size == BODY_SIZES["1 KB"]
            yield Row(
                f"{label} {mode} {what}",
                group,
                partial(read, columns=columns, mode=mode, body_size=size),
                floors,
                rate_min=FILE_RATE_MIN if is_item else None,
            )


def sink_rows(label: str, size: int) -> Iterator[Row]:
    group = f"sink {label}"
    floor, least = f"{label} two clients", f"{label} at-least-once"
    yield Row(floor, group, partial(clients, body_size=size), warm_ups=0)
    yield Row(
        least, group, partial(sink, delivery="at-least-once", body_size=size), ((floor, 0.5),)
    )
    yield Row(
        f"{label} exactly-once",
        group,
        partial(sink, delivery="exactly-once", body_size=size),
        ((least, 0.1), (least, 0.3)),
    )


def archive_rows(counts: Sequence[int]) -> Iterator[Row]:
    first = f"archive {min(counts):,}"
    for number, count in enumerate(sorted(counts)):
        take = partial(archived if number else warm_archive, count=count)
        floors = ((first, COST_SHARE_MIN),) if number else ()
        yield Row(f"archive {count:,}", "archive", take, floors, warm_ups=0, once=True)


def rows(archive_counts: Sequence[int] = (ARCHIVE_COUNT,)) -> list[Row]:
    found: list[Row] = []
    for label, size in BODY_SIZES.items():
        found += source_rows(label, size)
    for label, size in BODY_SIZES.items():
        found += sink_rows(label, size)
    found += archive_rows(archive_counts)
    found.append(Row("idle", "idle", idle, warm_ups=0, once=True))
    return found


def select(found: Sequence[Row], patterns_text: str) -> list[Row]:
    """The rows that match, and what they are compared with, in the order of declaration."""
    patterns = [pattern.strip() for pattern in patterns_text.split(",") if pattern.strip()] or ["*"]
    by_name = {row.name: row for row in found}
    wanted: set[str] = set()
    left = [row for row in found if any(fnmatchcase(row.name, each) for each in patterns)]
    if not left:
        raise BenchError(f"no row matches {patterns_text}; there are: {', '.join(by_name)}")
    while left:
        row = left.pop()
        wanted.add(row.name)
        left += [by_name[floor] for floor, _ in row.floors]
    return [row for row in found if row.name in wanted]


# ---- results ------------------------------------------------------------------------------------


@dataclass
class Result:
    """What was measured for one row; ``goals`` are texts and whether they were met."""

    case: str
    rates: list[float]  #: rows per second, of each round
    ratios: dict[str, float]  #: to the rates of other rows
    notes: list[str]
    goals: list[tuple[str, bool]]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def make_result(row: Row, samples: dict[str, list[Sample]]) -> Result:
    own = samples[row.name]
    result = Result(row.name, [sample.rate for sample in own], {}, own[-1].notes, [])
    for floor, share in row.floors:
        pairs = zip(own, samples[floor], strict=True)
        ratio = statistics.median(mine.rate / other.rate for mine, other in pairs)
        result.ratios[floor] = ratio
        if share is not None:
            result.goals.append((f"{share:g}x", ratio >= share))
    if row.rate_min is not None:
        result.goals.append((f"{row.rate_min:,.0f}/s", result.rate >= row.rate_min))
    result.goals += [goal for sample in own for goal in sample.goals]
    return result


def measure(site: Site, group: Sequence[Row], rounds: int) -> list[Result]:
    samples: dict[str, list[Sample]] = {row.name: [] for row in group}
    for number in range(max(row.warm_ups for row in group)):
        for row in group:
            if number < row.warm_ups:
                row.take(site)
    for number in range(1 if group[0].once else rounds):
        for row in group if number % 2 == 0 else reversed(group):
            samples[row.name].append(row.take(site))
    return [make_result(row, samples) for row in group]


def format_table(results: Sequence[Result]) -> str:
    lines = [("case", "rate", "from", "to", "compared", "goals", "")]
    for result in results:
        goals = [f"{text}: {'met' if met else 'MISSED'}" for text, met in result.goals]
        compared = [f"{ratio:.2f}x {floor}" for floor, ratio in result.ratios.items()]
        lines.append(
            (
                result.case,
                f"{result.rate:,.0f}/s",
                f"{min(result.rates):,.0f}",
                f"{max(result.rates):,.0f}",
                ", ".join(compared),
                ", ".join(goals),
                ", ".join(result.notes),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = {1, 2, 3}
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
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


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append results to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--archive", default=str(ARCHIVE_COUNT), help="messages of the archives, by comma"
    )
    options = parser.parse_args(arguments)
    try:
        options.archive = sorted({int(text) for text in options.archive.split(",")})
    except ValueError as error:
        raise BenchError(f"--archive takes numbers: {error}") from error
    if min(options.rounds, *options.archive) < 1:
        raise BenchError("--rounds and --archive must be positive")
    return options


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether all goals are met."""
    options = read_arguments(arguments)
    chosen = select(rows(options.archive), options.rows)
    facts = machine_facts()
    commit = current_commit(Path(__file__).parent)
    ledger = Ledger(options.json) if options.json else None
    results = finished(ledger, facts, commit) if ledger else {}
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    with ExitStack() as stack:
        site: Site | None = None
        for _, members in itertools.groupby(chosen, key=lambda row: row.group):
            group = list(members)
            if any(row.name not in results for row in group):
                site = site or stack.enter_context(opened_site())
                for result in measure(site, group, options.rounds):
                    results[result.case] = result
                    if ledger:
                        entry = {"bench": BENCH, "commit": commit, "machine": facts}
                        ledger.append(entry | asdict(result))
            stdout.write(f"\n{format_table([results[row.name] for row in group])}\n")
            stdout.flush()
    return all(met for row in chosen for _, met in results[row.name].goals)


if __name__ == "__main__":
    run_program(BENCH, run)
