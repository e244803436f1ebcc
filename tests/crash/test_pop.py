"""POP under SIGKILL, and 20,000 simulated schedules of its revive.

``make crash PART=pop``; ``SEEDS=a-b`` chooses other seeds of the storms. Odd seeds run without
merging, even ones with it. What must hold is in :mod:`tests.support.pop_storm` and
:mod:`tests.support.pop_simulation`, how a series goes on where it ended in
:mod:`tests.support.crash_series`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.config import load_broker_config
from skylark.broker.live_settings import LiveSettings
from tests.support.crash_series import Series, listed, total
from tests.support.pop_simulation import START_MS, Simulation
from tests.support.pop_storm import PopStormResult, run_pop_storm
from tests.unit.broker.stored import texts

pytestmark = pytest.mark.crash

SERIES = Series("pop", PopStormResult, range(1, 11))
KILLS = 25
SCHEDULES = 20_000


@pytest.mark.timeout(2 * 3600)  # all runs together; each of them has deadlines of its own
def test_kills(seeds: range | None, tmp_path: Path) -> None:
    def run(seed: int, folder: Path) -> PopStormResult:
        return run_pop_storm(seed, KILLS, folder, merging=seed % 2 == 0)

    runs = SERIES.run(run, seeds, tmp_path)
    for merging in (False, True):
        print(summary([run for run in runs if run.merging is merging], merging))


def summary(runs: list[PopStormResult], merging: bool) -> str:
    """All runs with one setting together."""
    hits = total(run.hits for run in runs)
    return (
        f"merging {'on' if merging else 'off'}: {len(runs)} runs, {sum(r.kills for r in runs)}"
        f" kills, {sum(r.messages for r in runs)} messages, {sum(r.acked for r in runs)} acks,"
        f" {sum(r.redelivered for r in runs)} redelivered, {sum(r.repeats for r in runs)} repeated"
        f" after their ack, at most {max((r.repeat_age_ms for r in runs), default=0)} ms before"
        f" the kill; {listed(hits)}"
    )


@pytest.mark.timeout(2 * 3600)
def test_schedules(tmp_path: Path) -> None:
    live = LiveSettings(load_broker_config(texts(tmp_path)), now_ms=START_MS)
    copies = acked = restarts = 0
    for seed in range(SCHEDULES):
        simulation = Simulation(seed, live, merging=seed % 2 == 0)
        try:
            simulation.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}, merging {seed % 2 == 0}")
            raise
        copies += simulation.copy_count
        acked += simulation.acked_count
        restarts += simulation.restart_count
    print(
        f"\n{SCHEDULES} schedules: {copies} messages came back, {acked} were acknowledged in time,"
        f" {restarts} restarts of the revive"
    )
