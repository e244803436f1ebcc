"""Clients whose servers and connections fail: 100 runs of 20,000 messages each.

``make crash PART=client``; ``SEEDS=a-b`` chooses other seeds. What must hold is in
:mod:`tests.support.client_storm`, how a series goes on where it ended in
:mod:`tests.support.crash_series`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client_storm import StormResult, run_storm
from tests.support.crash_series import Series, listed, total

pytestmark = pytest.mark.crash

SERIES = Series("client", StormResult, range(1, 101))
MESSAGES = 20_000
TROUBLES = 8


@pytest.mark.timeout(3 * 3600)  # all runs together; each of them has deadlines of its own
def test_storms(seeds: range | None, tmp_path: Path) -> None:
    def run(seed: int, folder: Path) -> StormResult:
        return run_storm(seed, MESSAGES, TROUBLES, folder)

    print(summary(SERIES.run(run, seeds, tmp_path)))


def summary(runs: list[StormResult]) -> str:
    """All runs together."""
    hits = total(run.hits for run in runs)
    return (
        f"{len(runs)} runs, {sum(run.messages for run in runs)} messages in"
        f" {sum(run.seconds for run in runs):.0f} s; {hits.total()} hits: {listed(hits)};"
        f" {total(run.failed_sends for run in runs).total()} failed sends,"
        f" {sum(run.repeated for run in runs)} repeated deliveries,"
        f" {sum(run.repeated_at_joins for run in runs)} at graceful joins,"
        f" slowest recovery {max((run.recovered_s for run in runs), default=0.0):.2f} s"
    )
