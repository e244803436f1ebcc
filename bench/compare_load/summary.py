"""From samples to the table: order of systems, medians, ratios within rounds, noise, goals.

A *sample* is what one system did in one row of one round. Rounds alternate (A S, S A, A S, S A), so
that neither system always finds the disk as the other left it. A ratio is the median of the ratios
within each round, in which both saw the same weather. How much weather there was is shown by Apache
against itself: its lowest figure over its highest.

A sample whose acknowledged messages are not all there is void, and with it its row. A goal is met
if every round meets it, of two at least; if only the median does, that may be noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.compare_load.rows import Figure, Goal, Row

APACHE = "apache"
SKYLARK = "skylark"


def order(rounds: int) -> list[tuple[str, str]]:
    """Which system comes first and which second, in each round."""
    return [(APACHE, SKYLARK) if number % 2 == 0 else (SKYLARK, APACHE) for number in range(rounds)]


@dataclass(frozen=True)
class Sample:
    """What one system did in one row of one round."""

    row: str
    system: str
    round: int
    figures: dict[str, float]
    acknowledged: int | None = None  #: at least so many messages
    stored: int | None = None  #: so many were found
    void: str | None = None  #: why this must not be used
    notes: dict[str, Any] = field(default_factory=dict)


def judged(sample: Sample) -> Sample:
    """The sample, void if something acknowledged is missing."""
    missing = (sample.acknowledged or 0) - (sample.stored or 0)
    if sample.void or sample.acknowledged is None or missing <= 0:
        return sample
    why = f"{missing} of {sample.acknowledged} acknowledged messages are missing"
    return Sample(**{**asdict(sample), "void": why})


@dataclass(frozen=True)
class Side:
    """The figures of one system over the rounds."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        if len(self.values) < 2 or not self.median:
            return 0.0
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return (third - first) / self.median

    @property
    def self_ratio(self) -> float | None:
        """The lowest over the highest: 1.0 is perfect quiet."""
        if len(self.values) < 2 or not max(self.values):
            return None
        return min(self.values) / max(self.values)


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    title: str
    row: str
    figure: str
    unit: str
    apache: tuple[float, ...]
    skylark: tuple[float, ...]
    ratio: float | None
    goal: str | None
    goal_limit: float | None  #: of the ratio
    goal_met: bool | None
    void: tuple[str, ...] = ()

    @property
    def self_ratio(self) -> float | None:
        return Side(self.apache).self_ratio


def summarize(row: Row, samples: Iterable[Sample]) -> list[Result]:
    """The lines of one row; rounds in which a system is missing do not count for ratios."""
    own = sorted((s for s in samples if s.row == row.name), key=lambda s: s.round)
    void = tuple(f"{s.system}, round {s.round + 1}: {s.void}" for s in own if s.void)
    return [_result(row, figure, own, void) for figure in row.figures]


def _result(row: Row, figure: Figure, samples: Sequence[Sample], void: tuple[str, ...]) -> Result:
    found: dict[str, dict[int, float]] = {APACHE: {}, SKYLARK: {}}
    for sample in samples:
        if figure.name in sample.figures:
            found[sample.system][sample.round] = sample.figures[figure.name]
    apache, skylark = found[APACHE], found[SKYLARK]
    ratios = [skylark[number] / apache[number] for number in skylark if apache.get(number)]
    ratio = statistics.median(ratios) if ratios else None
    goal, met = figure.goal, None
    if goal is not None and skylark:
        rounds = ratios if goal.of_ratio else list(skylark.values())
        met = False if void else _is_met(goal, rounds)
    return Result(
        title=row.title(figure),
        row=row.name,
        figure=figure.name,
        unit=figure.unit,
        apache=tuple(apache.values()),
        skylark=tuple(skylark.values()),
        ratio=None if void else ratio,
        goal=goal.text if goal else None,
        goal_limit=goal.limit if goal and goal.of_ratio else None,
        goal_met=met,
        void=void,
    )


def _is_met(goal: Goal, rounds: Sequence[float]) -> bool | None:
    """Whether a goal is met outside the noise of the run; ``None``: not to be said."""
    if not rounds:
        return None
    middle = statistics.median(rounds)
    if not goal.is_met(middle, middle):
        return False
    is_certain = len(rounds) > 1 and all(goal.is_met(each, each) for each in rounds)
    return True if is_certain else None


# ---- the table -----------------------------------------------------------------------------------


def shown(value: float) -> str:
    """A number as people read it: three digits that mean something, or all of a large one."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cell(values: tuple[float, ...]) -> tuple[str, str]:
    if not values:
        return "", ""
    side = Side(values)
    return shown(side.median), f"{side.spread:.0%}"


def table_lines(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The cells of the table, its head first."""
    head = ("row", "unit", "Apache", "spread", "Skylark", "spread", "ratio", "noise", "goal")
    lines: list[tuple[str, ...]] = [head]
    for result in results:
        verdict = {None: "", True: ": met", False: ": MISSED"}[result.goal_met]
        is_judged = bool(result.skylark) if result.goal_limit is None else result.ratio is not None
        if result.goal_met is None and is_judged:
            verdict = ": within the noise"
        ratio = "VOID" if result.void else "" if result.ratio is None else f"{result.ratio:.2f}x"
        noise = "" if result.self_ratio is None else f"{result.self_ratio:.2f}"
        goal = f"{result.goal}{verdict}" if result.goal else ""
        sides = ("",) * 4 if result.void else (*_cell(result.apache), *_cell(result.skylark))
        lines.append((result.title, result.unit, *sides, ratio, noise, goal))
    return lines


def format_table(results: Sequence[Result]) -> str:
    """Aligned text; what is void says why below."""
    lines = table_lines(results)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, 1, 8}
    text = [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*text, *_void_reasons(results)])


def format_markdown(results: Sequence[Result]) -> str:
    """The same for a page."""
    head, *lines = (f"| {' | '.join(line)} |" for line in table_lines(results))
    table = "\n".join([head, "|---|---|--:|--:|--:|--:|--:|--:|---|", *lines])
    return "\n\n".join([table, *_void_reasons(results), f"{format_noise(results)}."])


def _void_reasons(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(f"VOID {r.row}: {why}" for r in results for why in r.void))


def format_noise(results: Sequence[Result]) -> str:
    """Apache against itself, over all rates of the run."""
    found = [r.self_ratio for r in results if r.unit == "msg/s" and r.self_ratio is not None]
    if not found:
        return "Apache against itself: not known, that takes two rounds"
    middle = statistics.median(found)
    return f"Apache against itself: {middle:.2f} (median of rows), {min(found):.2f} (worst row)"
