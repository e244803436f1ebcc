"""What a process that belongs to a store sets up for its worker threads."""

from __future__ import annotations

import sys

import pytest

from skylark.store.owner_thread import SWITCH_INTERVAL_S, share_interpreter


def test_a_busy_owner_lets_workers_in_between() -> None:
    before = sys.getswitchinterval()
    try:
        share_interpreter()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)
    finally:
        sys.setswitchinterval(before)
