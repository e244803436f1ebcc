"""Pauses that grow, and the end of an outage."""

from __future__ import annotations

import random

import pytest

from skylark.core.backoff import Backoff, Outage
from skylark.testing.virtual_clock import VirtualClock


def test_pauses_grow_up_to_the_maximum() -> None:
    backoff = Backoff(first_s=0.1, most_s=1.0)
    pauses = [backoff.pause_s(failures) for failures in range(7)]
    assert pauses == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert backoff.pause_s(100_000) == 1.0
    assert Backoff(first_s=1.0, most_s=50.0, factor=3.0).pause_s(3) == 9.0


def test_jitter_takes_off_up_to_its_share() -> None:
    backoff = Backoff(first_s=1.0, most_s=1.0, jitter=0.25)
    drawn = [backoff.pause_s(1, random.Random(seed)) for seed in range(200)]
    assert all(0.75 <= pause_s <= 1.0 for pause_s in drawn)
    assert min(drawn) < 0.78
    assert max(drawn) > 0.97
    assert backoff.pause_s(1) == 1.0  # without a source of chance


async def test_an_outage_ends_before_a_pause_that_would_pass_its_deadline() -> None:
    clock = VirtualClock()
    outage = Outage(Backoff(first_s=1.0, most_s=8.0), clock, 6.5)
    paused: list[float] = []
    while (pause_s := outage.next_pause_s()) is not None:
        paused.append(pause_s)
        await clock.advance(seconds=pause_s)
    assert (paused, outage.failures) == ([1.0, 2.0], 3)  # 4 more seconds would end at 7


async def test_pause_waits_and_says_when_it_is_over() -> None:
    clock = VirtualClock()
    outage = Outage(Backoff(first_s=1.0, most_s=8.0), clock, 1.5)
    began = clock.monotonic()
    assert await clock.finish(outage.pause())
    assert clock.monotonic() - began == pytest.approx(1.0)
    assert not await outage.pause()
