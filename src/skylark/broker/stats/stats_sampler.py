"""Stats sampler: takes the samples of all statistics, and the totals at midnight.

It has one timer, once a second; the statistics themselves have no clock. Many meters are sampled in
parts, one per turn of the loop, so that requests are answered in between.

Windows use :meth:`Clock.steady_ms <skylark.core.clock.Clock.steady_ms>`, midnight the wall clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Final

from skylark.broker.stats.broker_stats import WINDOWS, BrokerStats, Meter, Window
from skylark.broker.stats.store_stats import DayTotals, StoreStats, next_morning_ms
from skylark.core.clock import Clock, TimerHandle

SECOND_MS: Final = 1_000
METERS_PER_TURN: Final = 2_000
#: The longest day of a zone that changes to winter time.
_DAY_MS_MAX: Final = 25 * 3_600_000


class StatsSampler:
    """Runs from ``start`` to ``stop``."""

    def __init__(
        self, stats: BrokerStats, store_stats: StoreStats, totals: DayTotals, clock: Clock
    ) -> None:
        self._stats = stats
        self._store_stats = store_stats
        self._totals = totals
        self._clock = clock
        self._timer: TimerHandle | None = None
        self._due_s = 0.0
        self._window_due_ms: dict[Window, int] = {}
        self._morning_ms = 0

    async def start(self) -> None:
        self._due_s = self._clock.monotonic()
        self._window_due_ms = dict.fromkeys(WINDOWS, self._clock.steady_ms())
        self._morning_ms = next_morning_ms(self._clock.now_ms())
        self._tick()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def rows(self, now_ms: int) -> tuple[dict[str, str], dict[str, str]]:
        """The rows of request 28 about the store, and about messages of users per day.

        ``now_ms`` is wall time.
        """
        stats = self._stats
        totals = self._totals.rows(stats.user_put_count, stats.user_get_count)
        return self._store_stats.rows(now_ms), totals

    def _tick(self) -> None:
        now_ms = self._clock.steady_ms()
        self._store_stats.sample(now_ms)
        for window, (interval_ms, _) in WINDOWS.items():
            late_ms = now_ms + SECOND_MS // 2 - self._window_due_ms[window]
            if late_ms >= 0:
                self._window_due_ms[window] += (late_ms // interval_ms + 1) * interval_ms
                self._sample(window, iter(list(self._stats.meters())))
        self._check_midnight()
        # Samples that were missed while the machine slept are not taken later.
        self._due_s = max(self._due_s + SECOND_MS / 1000, self._clock.monotonic())
        self._timer = self._clock.call_at(self._due_s, self._tick)

    def _sample(self, window: Window, meters: Iterator[Meter]) -> None:
        part = list(islice(meters, METERS_PER_TURN))
        self._stats.sample(window, self._clock.steady_ms(), part)
        if len(part) == METERS_PER_TURN:
            asyncio.get_running_loop().call_soon(self._sample, window, meters)
        elif window == "hour":
            self._stats.expire()

    def _check_midnight(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms >= self._morning_ms:
            self._totals.morning(self._stats.user_put_count, self._stats.user_get_count)
        elif self._morning_ms - now_ms <= _DAY_MS_MAX:
            return
        self._morning_ms = next_morning_ms(now_ms)  # also when the clock was set back
