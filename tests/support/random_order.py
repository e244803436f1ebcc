"""Runs the tests in a random order, to find those that lean on what another one left behind.

``make test-order`` draws a seed and prints it; ``make test-order ORDER=<seed>`` repeats that order.
Files are shuffled, and the tests within each file. Tests of a file stay together, because they may
share servers.

This is a plugin of our own and not pytest-randomly: that one also reseeds every random generator
before each test, which hides other tests than those that this is for, and needs a lock file entry
for twenty lines.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, TypeVar

import pytest

T = TypeVar("T")

#: The value of ``ORDER`` that draws a seed.
ANY: Final = "random"
_SEED_MAX: Final = 1_000_000


def parse_order(text: str) -> int:
    """The seed of ``ORDER=<seed>``, or a new one."""
    if text == ANY:
        return random.SystemRandom().randrange(_SEED_MAX)
    if not text.isdecimal():
        raise pytest.UsageError(f"ORDER={text}: expected a seed, or {ANY}")
    return int(text)


def shuffled(groups: Sequence[Sequence[T]], seed: int) -> list[T]:
    """All members, in an order that depends only on the seed; each group stays together."""
    stream = random.Random(seed)
    order = [stream.sample(group, len(group)) for group in groups]
    stream.shuffle(order)
    return [member for group in order for member in group]


class RandomOrder:
    """The pytest plugin."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def pytest_report_header(self) -> str:
        return f"random order: ORDER={self._seed} repeats it"

    @pytest.hookimpl(trylast=True)  # pytest itself groups tests by their fixtures first
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        items[:] = shuffled(list(files.values()), self._seed)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(self.pytest_report_header())
