"""load/run_statistics.py: figures and rates on virtual time; the histogram of latencies."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.load.run_statistics import (
    BUCKET_COUNT,
    VALUE_MAX,
    LatencyHistogram,
    Tally,
    _upper_end,
)
from skylark.testing.virtual_clock import VirtualClock


async def test_figures() -> None:
    clock = VirtualClock()
    tally = Tally("send", clock)
    assert tally.figures().per_second == 0.0
    tally.begin()
    await clock.advance(seconds=2)
    tally.begin()  # once is enough
    tally.done(3, 3 * 1024 * 1024, 0.004)
    tally.failed(1, ValueError("first"))
    tally.failed(1, ValueError("second"))
    tally.finish()
    await clock.advance(seconds=10)
    figures = tally.figures()
    assert (figures.messages, figures.errors, figures.seconds) == (3, 2, 2.0)
    assert (figures.per_second, figures.mib_per_second) == (1.5, 1.5)
    assert (figures.p50_ms, figures.max_ms) == (4.0, 4.0)
    assert str(tally.first_error) == "first"


async def test_the_current_rate_covers_the_last_interval() -> None:
    clock = VirtualClock()
    tally = Tally("send", clock)
    assert tally.rate_now() is None
    tally.begin()
    await clock.advance(seconds=0.1)
    assert tally.rate_now() is None  # too early to say
    tally.done(100, 100, 0.001)
    await clock.advance(seconds=0.4)
    assert tally.rate_now() == 200.0  # of the time so far
    tally.done(100, 100, 0.001)
    await clock.advance(seconds=0.5)
    assert tally.rate_now() == 200.0
    tally.done(50, 50, 0.001)
    await clock.advance(seconds=0.5)
    assert tally.rate_now() == 200.0  # the last one that is good
    await clock.advance(seconds=1.5)
    assert tally.rate_now() == 25.0


# ---- the histogram: bounded memory, percentiles that are off by a 64th at most
# --------------------


def filled(microseconds: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for value in microseconds:
        histogram.add((value + 0.5) / 1e6)
    return histogram


def test_an_empty_histogram_has_no_percentiles() -> None:
    empty = LatencyHistogram()
    assert (empty.count, empty.percentile_ms(50), empty.max_ms) == (0, None, None)


def test_small_values_are_exact() -> None:
    histogram = filled(list(range(100)))
    assert histogram.percentile_ms(50) == 0.049
    assert histogram.percentile_ms(99) == 0.098
    assert histogram.percentile_ms(100) == histogram.max_ms == 0.099


def test_counts_are_weights() -> None:
    histogram = LatencyHistogram()
    histogram.add(10e-6, 99)
    histogram.add(1.0)
    assert histogram.count == 100
    assert histogram.percentile_ms(99) == 0.01
    assert histogram.percentile_ms(99.9) == 1000.0


@pytest.mark.parametrize(("seconds", "shown_ms"), [(-1.0, 0.0), (1e9, VALUE_MAX / 1000)])
def test_what_is_out_of_range_counts_at_its_end(seconds: float, shown_ms: float) -> None:
    histogram = LatencyHistogram()
    histogram.add(seconds)
    assert histogram.percentile_ms(50) == shown_ms


def test_buckets_follow_each_other_without_gap() -> None:
    ends = [_upper_end(index) for index in range(BUCKET_COUNT)]
    assert ends == sorted(set(ends))
    assert ends[-1] == VALUE_MAX
    for lower, upper in itertools.pairwise(ends):
        for value in {lower + 1, upper}:
            assert filled([value]).percentile_ms(100) == value / 1000


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, VALUE_MAX - 1), min_size=1, max_size=50),
    st.sampled_from([1, 50, 90, 99, 99.9, 100]),
)
def test_a_percentile_is_close(values: list[int], percent: float) -> None:
    found = filled(values).percentile_ms(percent)
    assert found is not None
    exact = sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]
    assert exact <= found * 1000 * (1 + 1e-9)
    assert found * 1000 <= exact * (1 + 1 / 64) + 1
