"""When samples are taken, on the virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.stats.stats_sampler import StatsSampler
from skylark.broker.stats.store_stats import DayTotals, StoreStats, next_morning_ms
from skylark.testing.virtual_clock import VirtualClock


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.stats = BrokerStats("c", idle_max_ms=lambda: 20 * 60_000)
        self.store_stats = StoreStats(self.clock.now_ms())
        self.totals = DayTotals()
        self.sampler = StatsSampler(self.stats, self.store_stats, self.totals, self.clock)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.sampler.start()
    yield world
    await world.sampler.stop()
    assert world.clock.timer_count == 0


async def test_windows_fill_at_their_intervals(world: World) -> None:
    world.stats.put("T", 6, 60)
    await world.clock.advance(9.5)
    meter = world.stats.topic_puts["T"]
    assert [len(meter.minute), len(meter.hour), len(meter.day)] == [0, 0, 0]
    await world.clock.advance(1)
    assert [len(meter.minute), len(meter.hour), len(meter.day)] == [2, 0, 0]
    assert world.stats.put_tps("T") == pytest.approx(0.6)
    await world.clock.advance(600)
    assert [len(meter.minute), len(meter.hour), len(meter.day)] == [7, 2, 0]
    minutes = [sample[0] for sample in meter.minute]
    assert {b - a for a, b in pairwise(minutes)} == {10_000}


async def test_totals_of_the_store_are_sampled_every_second(world: World) -> None:
    for _ in range(12):
        world.store_stats.put_count += 7
        await world.clock.advance(1)
    assert world.store_stats.tps("put", 10) == pytest.approx(7.0)


async def test_idle_meters_are_dropped(world: World) -> None:
    world.stats.put("T", 1, 10)
    await world.clock.advance(minutes=21)
    assert "T" in world.stats.topic_puts
    await world.clock.advance(minutes=10)
    assert "T" not in world.stats.topic_puts


async def test_many_meters_are_sampled_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.stats.stats_sampler.METERS_PER_TURN", 10)
    for n in range(100):
        world.stats.put(f"T{n}", 1, 10)
    sizes: list[int] = []
    sample = world.stats.sample

    def noting(window: object, now_ms: object, meters: list[object]) -> None:
        sizes.append(len(meters))
        sample(window, now_ms, meters)  # type: ignore[arg-type]

    monkeypatch.setattr(world.stats, "sample", noting)
    await world.clock.advance(10)
    assert sizes == [10] * 10 + [6]  # with the six of the whole broker
    assert all(len(meter.minute) == 2 for meter in world.stats.topic_puts.values())


async def test_mornings_are_noted(world: World) -> None:
    to_midnight_s = (next_morning_ms(world.clock.now_ms()) - world.clock.now_ms()) / 1000
    world.stats.put("T", 5, 50)
    world.stats.got("T", "g", 3, 30)
    await world.clock.advance(to_midnight_s - 2)
    assert world.totals.today_morning == (0, 0)
    await world.clock.advance(3)
    assert world.totals.today_morning == (5, 3)
    assert world.totals.yesterday_morning == (0, 0)
    await world.clock.advance(60)
    assert world.totals.yesterday_morning == (0, 0), "once a day"


async def test_a_clock_set_back_does_not_lose_a_morning(world: World) -> None:
    world.sampler._morning_ms += 5 * 86_400_000  # as if the clock had been set back five days
    await world.clock.advance(1)
    assert world.sampler._morning_ms == next_morning_ms(world.clock.now_ms())
    assert world.totals.today_morning == (0, 0)


async def test_after_a_long_sleep_of_the_machine_one_sample_is_enough(world: World) -> None:
    world.stats.put("T", 1, 10)
    world.clock._now_ns += 3_600 * 1_000_000_000  # no timer ran meanwhile
    await world.clock.advance(3)
    assert len(world.stats.topic_puts["T"].minute) == 2
