"""What the official Java benchmark programs print, and what can be learnt from it.

With ``-ri 1000`` a program prints a line each second, of fields between bars, from its tenth second
on::

    Current Time: 2026-03-01 10:00:10,123 | Send TPS: 2950 | Max RT(ms): 41 | ... | Send Failed: 0

Each line is about the last nine seconds: the programs take a snapshot of their counters every
second, keep ten, and compare the first with the last.

They never say how many messages were acknowledged in all, but lines nine apart have no second in
common: their sum is a number that cannot be less than what the broker must have. It leaves out the
first seconds, though, so lines are also held against what the topic grew by in the same seconds
(:func:`claim_fault`).
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REPORT_INTERVAL_MS = 1_000
WINDOW_S = 9
#: Snapshots may be late by some milliseconds, and rates are cut to whole numbers.
CERTAIN_SHARE = 0.98

#: Lines may exceed the growth of the topic by so much: looks at it are half a second apart.
CLAIM_MAX = 1.05
CLAIM_SLACK = 200  #: messages, for what is under way

#: Fields with messages per second, the ones that count messages and not requests first.
_RATES = ("Send MPS", "Consume TPS", "Send TPS")
_FAILURES = ("Send Failed", "Response Failed", "Send Message Failed", "Consume Fail")


@dataclass(frozen=True)
class Line:
    """One line of statistics."""

    rate: float  #: messages per second
    failed: int  #: requests that failed, since the start or in the same time; no part of the rate
    at_s: float = 0.0  #: when it was printed, in seconds of the epoch


def parse_line(text: str) -> Line | None:
    """The line of statistics that this is; ``None`` for other output."""
    if not text.startswith("Current Time: "):
        return None
    fields = dict(part.strip().partition(": ")[::2] for part in text.split(" | "))
    rate = next((fields[name] for name in _RATES if name in fields), None)
    if rate is None:
        return None
    try:
        failed = sum(int(fields[name]) for name in _FAILURES if name in fields)
        return Line(float(rate), failed, _parse_time(fields["Current Time"]))
    except ValueError:
        return None


def _parse_time(text: str) -> float:
    """Java prints the time of the zone that it is in, as we are."""
    whole, _, milliseconds = text.partition(",")
    return time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1000


def parse_lines(texts: Iterable[str]) -> list[Line]:
    return [line for line in map(parse_line, texts) if line is not None]


def steady_rate(lines: Sequence[Line], since_s: float) -> float | None:
    """The median of the lines that are about nothing before a moment; ``None`` if there is none."""
    rates = [line.rate for line in lines if line.at_s - WINDOW_S >= since_s]
    return statistics.median(rates) if rates else None


def acknowledged_at_least(lines: Sequence[Line]) -> int:
    """How many messages were acknowledged for certain."""
    apart = lines[::-WINDOW_S]
    return sum(int(line.rate * WINDOW_S * CERTAIN_SHARE) for line in apart)


def failed_count(lines: Sequence[Line]) -> int:
    """How many requests failed at least."""
    return max((line.failed for line in lines), default=0)


# ---- lines against the topic ---------------------------------------------------------------------

Looks = Sequence[tuple[float, int]]  #: when, and how many there were


def count_at(looks: Looks, at_s: float) -> float | None:
    """How many there were at a moment between two looks; ``None`` outside of them."""
    for (before_s, before), (after_s, after) in itertools.pairwise(looks):
        if before_s <= at_s <= after_s:
            return before + (after - before) * (at_s - before_s) / (after_s - before_s)
    return None


def claim_fault(lines: Sequence[Line], looks: Looks) -> str | None:
    """Why lines cannot be right: the topic did not grow by what they claim, or nothing tells."""
    claimed = grown = 0.0
    is_compared = False
    for line in lines[::-WINDOW_S]:
        first, last = count_at(looks, line.at_s - WINDOW_S), count_at(looks, line.at_s)
        if first is not None and last is not None:
            is_compared = True
            claimed += line.rate * WINDOW_S
            grown += last - first
    if not is_compared:
        return f"no line of the program can be checked: measure for more than {WINDOW_S} s"
    if claimed <= grown * CLAIM_MAX + CLAIM_SLACK:
        return None
    return f"{claimed:,.0f} acknowledged in some seconds, but only {grown:,.0f} stored in them"
