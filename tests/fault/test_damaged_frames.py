"""Hostile bytes by socket, short form; ``make crash PART=wire`` runs the long one."""

from __future__ import annotations

from pathlib import Path

from tests.support.loops import on_both_loops
from tests.support.storm import storm


@on_both_loops
async def test_500_damaged_frames_by_socket(tmp_path: Path) -> None:
    result = await storm(seed=7, frame_count=500, folder=tmp_path)
    assert result.frames_sent == 500
    assert result.bytes_answered > 1000
    assert result.witness_answers >= 4
    assert result.connections_left == 0
