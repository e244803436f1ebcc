"""The benchmark of expiring pops: it sees long turns, and every message comes back."""

from __future__ import annotations

import asyncio
import io
import time

import pytest

from bench import revive


async def test_the_longest_turn_is_found() -> None:
    turns = revive.Turns()
    with turns.watched():
        await asyncio.sleep(0)
        began = time.thread_time()
        while time.thread_time() - began < 0.02:
            pass
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert turns.count >= 2
    assert turns.longest_ms >= 20
    assert turns.longest_wall_ms >= 20


@pytest.mark.parametrize(("longest_ms", "met"), [(20.0, True), (20.1, False)])
def test_a_turn_above_the_limit_fails(
    monkeypatch: pytest.MonkeyPatch, longest_ms: float, met: bool
) -> None:
    async def measure(*, merging: bool, messages: int) -> revive.Turns:
        return revive.Turns(count=1, longest_ms=longest_ms if merging else 0.0)

    monkeypatch.setattr(revive, "measure", measure)
    out = io.StringIO()
    assert revive.run([], stdout=out) is met
    assert ("FAILED" in out.getvalue()) is not met


async def test_all_messages_expire_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive, "INVISIBLE_S", 1.0)
    turns = await revive.measure(merging=False, messages=40)
    assert turns.count > 0
