"""Random schedules of pops, acks, changes, restarts and failing puts.

``make crash PART=pop`` runs more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.config import load_broker_config
from skylark.broker.live_settings import LiveSettings
from tests.support.pop_simulation import START_MS, Simulation
from tests.unit.broker.stored import texts

SCHEDULES = 400


@pytest.mark.parametrize("merging", [False, True], ids=["written", "merged"])
def test_schedules(tmp_path: Path, merging: bool) -> None:
    live = LiveSettings(load_broker_config(texts(tmp_path)), now_ms=START_MS)
    copies = acked = restarts = refused = 0
    for seed in range(SCHEDULES):
        simulation = Simulation(seed, live, merging=merging)
        try:
            simulation.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}, merging {merging}")
            raise
        copies += simulation.copy_count
        acked += simulation.acked_count
        restarts += simulation.restart_count
        refused += simulation.log.refused_count
    assert (
        min(copies, acked, restarts, refused) > SCHEDULES
    )  # the schedules do what they are made for
