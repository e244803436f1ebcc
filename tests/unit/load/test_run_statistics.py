"""load/run_statistics.py: figures and the rate of now, on virtual time."""

from __future__ import annotations

from skylark.load.run_statistics import Tally
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


async def test_the_rate_of_now_is_that_of_late() -> None:
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
