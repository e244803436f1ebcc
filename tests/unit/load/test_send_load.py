"""The schedule of the senders of a benchmark, on virtual time."""

from __future__ import annotations

import asyncio

from skylark.load.send_load import CATCH_UP_S, Ending, Pacer
from skylark.testing.virtual_clock import VirtualClock


async def take_turns(pacer: Pacer, times: list[float | None], count: int = 1) -> None:
    while (due := await pacer.turn(count)) is not None:
        times.append(due)


async def test_a_rate_is_shared_by_all_senders() -> None:
    clock = VirtualClock()
    ending = Ending(clock)
    pacer = Pacer(clock, 50.0, ending)
    times: list[float | None] = []
    began = clock.monotonic()
    senders = [asyncio.create_task(take_turns(pacer, times)) for _ in range(7)]
    await clock.advance(seconds=2.005)
    assert [round((due or 0) - began, 6) for due in times] == [k / 50 for k in range(101)]
    ending.set()
    await asyncio.gather(*senders)  # senders that wait for their turn end too
    assert len(times) == 101


async def test_messages_of_a_batch_count_each() -> None:
    clock = VirtualClock()
    ending = Ending(clock)
    times: list[float | None] = []
    sender = asyncio.create_task(take_turns(Pacer(clock, 100.0, ending), times, count=25))
    await clock.advance(seconds=1.01)
    assert len(times) == 5  # at 0, 0.25, 0.5, 0.75, 1.0
    ending.set()
    await sender


async def test_a_late_sender_catches_up_a_little() -> None:
    clock = VirtualClock()
    pacer = Pacer(clock, 100.0, Ending(clock))
    first = await pacer.turn()
    await clock.advance(seconds=60)
    now = clock.monotonic()
    late = [await pacer.turn() for _ in range(10)]  # none of them waits
    assert clock.monotonic() == now
    assert first == now - 60
    assert [round(now - (due or 0), 6) for due in late] == [
        round(CATCH_UP_S - k / 100, 6) for k in range(10)
    ]


async def test_without_a_rate_no_sender_waits() -> None:
    clock = VirtualClock()
    ending = Ending(clock)
    pacer = Pacer(clock, None, ending)
    assert [await pacer.turn() for _ in range(3)] == [clock.monotonic()] * 3
    ending.set()
    assert await pacer.turn() is None
