"""A store whose process is killed, short form; ``make crash PART=store`` runs the long one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.store_kills import MODES, Mode, cut_everywhere, kill_run, killed_note


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_5_kills_at_full_speed(
    mode: Mode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "skylark")
    for attempt in range(8):  # a kill may find the store at rest, and so may all five
        root = tmp_path / str(attempt)
        root.mkdir()
        seed = 1 + MODES.index(mode) + 100 * attempt
        result = kill_run(root, mode, seed=seed, kill_count=5)
        note = killed_note(result.under_way)
        print(f"\n{mode}: 5 kills, {result.messages} messages; under way: {note}")
        if result.under_way["something"]:
            break
    assert result.under_way["something"] >= 1
    assert result.messages > 1_000


@pytest.mark.spec("store.12.22")
def test_the_last_record_cut_at_every_byte(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "skylark")
    assert cut_everywhere(tmp_path, MODES[0], seed=99) > 150
