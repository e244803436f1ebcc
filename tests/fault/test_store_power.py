"""Power losses of a whole store, short form; ``make crash PART=store`` runs the long one."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.support.store_power import power_run, summary


def test_300_stores_that_lose_power(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "skylark")
    counts: Counter[str] = Counter()
    for seed in range(1, 301):
        counts += power_run(seed)
    print(f"\n300 stores: {summary(counts)}")
    assert counts["power losses"] >= 1_000
    assert counts["crashes within an operation"] >= 200
    assert counts["crashes within a recovery"] >= 200
    assert counts["crashes with unsynced bytes"] >= 300
    assert counts["crashes with a deleted file in use"] >= 30
    assert counts["acknowledged"] >= 3_000


def test_a_run_depends_on_its_seed_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "skylark")
    assert power_run(7) == power_run(7) != power_run(8)
