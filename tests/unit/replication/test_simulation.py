"""Ten thousand lives of a master and a slave, each with its own faults."""

from __future__ import annotations

from collections import Counter

import pytest

from skylark.replication.slave import SlavePhase
from tests.unit.replication.worlds import World

SEEDS = 10_000
PARTS = 10


def check(seed: int) -> Counter[str]:
    """One life, and what must be true at its end."""
    world = World(seed)
    world.live()
    master, slave = world.master_end, world.slave_end
    ours, theirs = slave.log.content, master.log.content
    assert master.up
    assert slave.up
    if slave.machine.phase is SlavePhase.DIVERGED:
        # No false alarm: the slave has bytes that the master lost, and has kept them.
        assert not theirs.startswith(ours)
        assert world.counts["master lost bytes"]
        assert not world.config.ha_truncate_ahead
        assert not world.synchronous
        world.counts["diverged"] += 1
    else:
        assert slave.machine.phase is SlavePhase.FOLLOWING
        assert ours == theirs
        assert slave.machine.log_end == len(theirs)
        world.counts["equal"] += 1
    if world.synchronous:
        for record in world.acknowledged:
            assert record in ours
            assert record in theirs
    return world.counts


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_makes_logs_diverge_in_silence(part: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        try:
            totals += check(seed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    # The faults did hit, and both ends of a disagreement were reached.
    for what in ("acknowledged", "cut", "master lost bytes", "slave lost bytes", "diverged",
                 "cut log"):  # fmt: skip
        assert totals[what] > 5, (what, totals)
