"""Clients whose servers and connections fail, short form; ``make crash PART=client`` runs the long
one. What must hold is in :mod:`tests.support.client_storm`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client_storm import run_storm


@pytest.mark.parametrize("seed", [1, 9, 17])
def test_2000_messages_in_a_storm(seed: int, tmp_path: Path) -> None:
    result = run_storm(seed, count=2_000, trouble_count=5, folder=tmp_path)
    print(f"\n{result}")
    assert result.hit_count > 0, "no trouble met traffic: the run does not count"
