"""A million damaged frames in memory and twenty thousand by socket: no crash, hang or growth.

``make crash PART=wire``; ``SEEDS=a-b`` chooses other seeds, each one 10,000 frames in memory and
2,000 by socket. The figures are printed.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.support.loops import on_both_loops
from tests.support.mutations import mutated_frames, swallow
from tests.support.storm import resident_size, storm

#: The limit of a single test would end a long series on a busy machine.
pytestmark = [pytest.mark.crash, pytest.mark.timeout(2 * 3600)]

MEMORY_SEEDS = range(1, 101)
MEMORY_FRAMES = 10_000
SOCKET_SEEDS = range(1, 11)
SOCKET_FRAMES = 2_000
GROWTH_MAX = 16 << 20


def test_damaged_frames_in_memory(seeds: range | None) -> None:
    chosen = seeds or MEMORY_SEEDS
    frames = decoded = errors = 0
    before = 0
    for number, seed in enumerate(chosen):
        for frame in mutated_frames(seed, MEMORY_FRAMES):
            frames += 1
            frame_decoded, frame_errors = swallow(frame)
            decoded += frame_decoded
            errors += frame_errors
        if number == 0:
            gc.collect()
            before = resident_size()
    gc.collect()
    grown = resident_size() - before
    print(
        f"\n{frames} damaged frames in memory: {decoded} commands, {errors} typed errors, "
        f"memory {grown / 1e6:+.1f} MB"
    )
    assert decoded > frames // 10
    assert errors > frames // 10
    assert grown < GROWTH_MAX


@on_both_loops
async def test_damaged_frames_by_socket(seeds: range | None, tmp_path: Path) -> None:
    sent = witnessed = 0
    for seed in seeds or SOCKET_SEEDS:
        result = await storm(seed, SOCKET_FRAMES, tmp_path)
        sent += result.frames_sent
        witnessed += result.witness_answers
        assert result.connections_left == 0, f"seed {seed}"
        assert result.memory_grown < GROWTH_MAX, f"seed {seed}"
    print(f"\n{sent} damaged frames by socket, {witnessed} answers to the witness meanwhile")
    assert witnessed >= sent // 200
