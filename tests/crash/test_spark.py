"""Streaming queries whose driver, workers and servers are killed: 20 runs of five kills each.

``make crash PART=spark``; ``SEEDS=a-b`` chooses other seeds. Sixteen consecutive runs kill everyone
once at every step. What must hold is in :mod:`tests.support.spark_storm`, how a series goes on
where it ended in :mod:`tests.support.crash_series`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.crash_series import Series, listed, total
from tests.support.spark_storm import StormResult, run_storm, troubles_of

pytestmark = pytest.mark.crash

SERIES = Series("spark", StormResult, range(1, 21))
KILLS = 5


@pytest.mark.timeout(3 * 3600)  # all runs together; each of them has deadlines of its own
def test_storms(seeds: range | None, tmp_path: Path) -> None:
    def run(seed: int, folder: Path) -> StormResult:
        return run_storm(seed, troubles_of(seed, KILLS), folder)

    print(summary(SERIES.run(run, seeds, tmp_path)))


def summary(runs: Sequence[StormResult]) -> str:
    """All runs of the commit together."""
    hits = total(run.hits for run in runs)
    victims: Counter[str] = Counter()
    for name, count in hits.items():
        victims[name.partition(" ")[0]] += count
    return (
        f"{len(runs)} runs, {hits.total()} kills ({listed(victims)}) at {len(hits)} places,"
        f" {sum(run.rows for run in runs)} rows in {sum(run.seconds for run in runs):.0f} s;"
        f" {sum(run.restarts for run in runs)} queries started again,"
        f" {sum(run.repeated for run in runs)} rows repeated,"
        f" slowest recovery {max((run.recovered_s for run in runs), default=0.0):.1f} s"
    )
