"""Stores that are killed or lose power, hundreds and thousands of times.

``make crash PART=store``; ``SEEDS=a-b`` chooses other seeds: each one is five kills of a process on
one store, and one run of a store in memory that loses power several times. The figures are printed.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest

from tests.support.store_kills import MODES, Mode, cut_everywhere, kill_run, killed_note
from tests.support.store_power import power_run, summary

#: The limit of a single test would end a long series on a busy machine.
pytestmark = [pytest.mark.crash, pytest.mark.timeout(2 * 3600)]

KILL_SEEDS = range(1, 46)
KILLS_PER_SEED = 5
POWER_SEEDS = range(1, 2_501)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "skylark")


def test_kills(seeds: range | None, tmp_path: Path) -> None:
    chosen = seeds or KILL_SEEDS
    kills = messages = 0
    under_way: Counter[str] = Counter()
    for seed in chosen:
        result = kill_run(tmp_path, MODES[seed % len(MODES)], seed, KILLS_PER_SEED)
        kills += result.kills
        messages += result.messages
        under_way += result.under_way
    print(f"\n{kills} kills, {messages} messages found; under way: {killed_note(under_way)}")
    assert under_way["something"] >= kills // 5


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_last_record_cut_at_every_byte(mode: Mode, tmp_path: Path) -> None:
    cuts = sum(cut_everywhere(tmp_path, mode, seed) for seed in range(1, 6))
    print(f"\n{mode}: {cuts} cuts in 5 records")
    assert cuts > 5 * 150


def test_power_losses(seeds: range | None) -> None:
    chosen = seeds or POWER_SEEDS
    counts: Counter[str] = Counter()
    for seed in chosen:
        counts += power_run(seed)
    print(f"\n{len(chosen)} stores: {summary(counts)}")
    assert counts["power losses"] >= len(chosen)
    assert counts["crashes within an operation"] >= len(chosen) // 2
