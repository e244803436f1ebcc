"""Master and slave that fail, and the link between them: 200 runs.

``make crash PART=ha``; ``SEEDS=a-b`` chooses other seeds. What must hold is in
:mod:`tests.support.ha_storm`, how a series goes on where it ended in
:mod:`tests.support.crash_series`. Machines that lose their power, and what their disks had not yet,
are in ``tests/fault/test_replication.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.crash_series import Series, listed, total
from tests.support.ha_storm import StormResult, run_storm

pytestmark = pytest.mark.crash

SERIES = Series("ha", StormResult, range(1, 201))
TROUBLES = 3


@pytest.mark.timeout(2 * 3600)  # all runs together; each of them has deadlines of its own
def test_storms(seeds: range | None, tmp_path: Path) -> None:
    def run(seed: int, folder: Path) -> StormResult:
        return run_storm(seed, TROUBLES, folder)

    print(summary(SERIES.run(run, seeds, tmp_path)))


def summary(runs: list[StormResult]) -> str:
    """All runs together."""
    hits = total(run.hits for run in runs)
    return (
        f"{len(runs)} runs, {sum(run.acknowledged for run in runs)} messages acknowledged,"
        f" {sum(run.log_size for run in runs) >> 20} MiB compared, in"
        f" {sum(run.seconds for run in runs):.0f} s; {hits.total()} hits: {listed(hits)};"
        f" failed sends: {listed(total(run.failed_sends for run in runs))};"
        f" slowest recovery {max((run.recovered_s for run in runs), default=0.0):.2f} s"
    )
