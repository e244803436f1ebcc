"""The rows of the comparison: what is done, in which session, and what is asked of the result.

A session is one start of a system on an empty folder. Rows of one session share it, in the order
of declaration:

``load``    what most rows need; a load that is not measured warms it before the first of them
``sync``    the same with ``flushDiskType=SYNC_FLUSH``
``idle``    a thousand topics, and then nothing to do

and for growth, each with a folder of its own:

``queues``, ``connections``, ``sizes``, ``log``

The first two rows of ``load`` look at it before it is warmed, the last one after all the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from bench.harness import BenchError

KIB = 1024
LOG_GB = 10
#: Java clients whose property strings end without a separator.
OLDER_CLIENTS = ("4.9.8", "5.1.4")
RATE = "rate"
PROCESSOR = "CPU"
FILES = "open files"


@dataclass(frozen=True)
class Goal:
    """At least or at most so much: of the ratio Skylark/Apache, or of our own figure."""

    limit: float
    at_least: bool = True
    of_ratio: bool = True
    unit: str = "x"

    @property
    def text(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.limit:.3g}{self.unit}"

    def is_met(self, ratio: float | None, own: float) -> bool | None:
        """``None`` while there is nothing to judge."""
        value = ratio if self.of_ratio else own
        if value is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit


def at_most(limit: float) -> Goal:
    return Goal(limit, at_least=False)


@dataclass(frozen=True)
class Figure:
    """One number that a row yields."""

    name: str
    unit: str
    goal: Goal | None = None


@dataclass(frozen=True)
class Row:
    """One row; ``kind`` names the function that measures it, ``options`` are for that function."""

    name: str
    session: str
    kind: str
    figures: tuple[Figure, ...]
    options: Mapping[str, str | int] = field(default_factory=dict)

    def title(self, figure: Figure) -> str:
        """What a line of the table is called."""
        return self.name if figure is self.figures[0] else f"{self.name}: {figure.name}"


def rated(goal: float | None = None) -> tuple[Figure, ...]:
    """Messages per second, and what the broker worked for them."""
    return (
        Figure(RATE, "msg/s", None if goal is None else Goal(goal)),
        Figure(PROCESSOR, "s/million"),
    )


def _sent(name: str, threads: int, size: int, goal: float) -> Row:
    return Row(name, "load", "producer", rated(goal), {"threads": threads, "size": size})


def rows() -> list[Row]:
    return [
        Row("start-up", "load", "start_up", (Figure("time", "s", at_most(1 / 10)),)),
        Row(
            *("memory idle", "load", "memory"),
            (Figure("own", "MiB", at_most(1 / 6)), Figure("mapped files", "MiB")),
        ),
        _sent("1 thread 100 B", 1, 100, 1.5),
        _sent("1 thread 1 KB", 1, KIB, 1.5),
        _sent("16 threads 100 B", 16, 100, 1.2),
        *(
            Row(
                *(f"16 threads 100 B by Java {client}", "load", "older_producer", rated(1.2)),
                {"threads": 16, "client": client},
            )
            for client in OLDER_CLIENTS
        ),
        _sent("64 threads 1 KB", 64, KIB, 1.3),
        Row(
            *("batch 32 x 100 B", "load", "batch_producer", rated(1.0)),
            {"threads": 2, "size": 100, "batch": 32},
        ),
        Row("catch-up", "load", "catch_up", rated(1.0), {"size": 100}),
        Row(
            *("produce and consume", "load", "at_once", rated(1.2)),
            {"threads": 16, "size": 100},
        ),
        *_client_rows(),
        Row(
            *("latency at 1000 msg/s", "load", "latency"),
            (
                Figure("p50", "ms"),
                Figure("p99", "ms", at_most(1.0)),
                Figure("p99.9", "ms"),
            ),
            {"size": 100},
        ),
        # Late, because Apache's broker was seen spinning after transactions.
        Row("transactions", "load", "transactions", rated(1.2), {"threads": 32, "size": KIB}),
        Row(
            *("memory after load", "load", "memory"),
            (Figure("own", "MiB", at_most(1 / 10)), Figure("mapped files", "MiB")),
        ),
        # Our syncs are done by the kernel's own threads, which no process is charged for.
        Row(
            *("SYNC_FLUSH 64 threads 1 KB", "sync", "producer", rated(1.0)[:1]),
            {"threads": 64, "size": KIB},
        ),
        Row(
            *("idle with 1000 topics", "idle", "idle"),
            (
                Figure(
                    PROCESSOR, "% of a core", Goal(1.0, at_least=False, of_ratio=False, unit="%")
                ),
            ),
            {"topics": 1_000, "threads": 32, "size": KIB},
        ),
    ]


def _client_rows() -> list[Row]:
    """Our client against both; ``per_s`` messages are sent for each second of a measurement."""

    def send(name: str, how: str, per_s: int) -> Row:
        return Row(
            *(f"our client {name}", "load", "client_send", rated()),
            {"how": how, "per_s": per_s, "size": 100},
        )

    return [
        send("one by one", "one by one", 1_000),
        send("64 in flight", "in flight", 5_000),
        send("accumulator", "submitted", 20_000),
        Row(
            *("our client push", "load", "client_read", rated()),
            {"job": "consume", "how": "per message", "size": 100},
        ),
        Row(
            *("our client read_arrow", "load", "client_read", rated()),
            {"job": "arrow", "how": "two columns", "size": 100},
        ),
    ]


def growth_rows() -> list[Row]:
    sizes = {"100 B": 100, "1 KB": KIB, "10 KB": 10 * KIB, "100 KB": 100 * KIB, "1 MB": KIB * KIB}
    return [
        *(
            Row(
                *(
                    f"queues {count}",
                    "queues",
                    "producer",
                    (*rated(), Figure(FILES, "descriptors")),
                ),
                {"threads": 16, "size": 100, "queues": count},
            )
            for count in (1, 100, 10_000)
        ),
        *(
            Row(
                *(f"connections {count}", "connections", "connections", rated()),
                {"connections": count, "size": 100},
            )
            for count in (1, 100, 1_000)
        ),
        *(
            Row(
                *(f"size {label}", "sizes", "producer", rated()),
                {"threads": 16, "size": size},
            )
            for label, size in sizes.items()
        ),
        Row("log empty", "log", "producer", rated(), {"threads": 16, "size": 100}),
        Row(
            *(f"log of {LOG_GB} GB", "log", "long_log", rated()),
            {"threads": 16, "size": 100, "gigabytes": LOG_GB},
        ),
    ]


def select(found: Sequence[Row], patterns_text: str) -> list[Row]:
    """The rows that match one of the comma-separated patterns; all without a pattern."""
    patterns = [pattern.strip() for pattern in patterns_text.split(",") if pattern.strip()]
    if not patterns:
        return list(found)
    names = [row.name for row in found]
    unmatched = [p for p in patterns if not any(fnmatchcase(name, p) for name in names)]
    if unmatched:
        listed = ", ".join(names)
        raise BenchError(f"no row matches {', '.join(unmatched)}; there are: {listed}")
    return [row for row in found if any(fnmatchcase(row.name, p) for p in patterns)]


def sessions(chosen: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each session, in the order of declaration."""
    found: dict[str, list[Row]] = {}
    for row in chosen:
        found.setdefault(row.session, []).append(row)
    return found
