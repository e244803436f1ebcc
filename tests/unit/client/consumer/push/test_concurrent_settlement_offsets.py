"""When the offset of consumed messages is noted: soon, once for many, and never too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from skylark.client.consumer.offset_table import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.push.concurrent_runner import SETTLE_MS, ConcurrentRunner
from skylark.client.consumer.push.consume_runner import (
    AssignedQueue,
    ConsumerServices,
    PushSetup,
)
from skylark.client.consumer.push.consumer_stats import ConsumerStats, TopicCounters
from skylark.client.consumer.push.message_handlers import bind
from skylark.client.consumer.push.push_settings import PushSettings
from skylark.client.core.client_message import MessageExt
from skylark.core.lifecycle import Tasks
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.client.consumer.samples import message, messages, queue


class CountedTable(OffsetTable):
    """Tells what it was asked to note."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        self.noted.append(offset)
        super().update(queue, offset, increase_only=increase_only)


class HandClock(VirtualClock):
    """Its steady time moves only while a handler blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def steady_ms(self) -> int:
        return round(self.now_s * 1000)


class Desk:
    """A runner and one queue of it."""

    def __init__(self, handler: Callable[[MessageExt], Any]) -> None:
        self.clock = HandClock()
        self.table = CountedTable()
        setup = PushSetup(
            group="g",
            settings=PushSettings(),
            hooks=(),
            bindings={"T": bind("T", handler, 1)},
            stats=ConsumerStats(0),
            is_orderly=False,
            start_timestamp="",
            subscriptions=dict,
            is_running=lambda: True,
            is_suspended=lambda: False,
        )
        nothing = cast("Any", None)  # nothing fails here
        services = ConsumerServices(
            setup=setup,
            instance=nothing,
            link=nothing,
            offsets=self.table,
            sends_back=nothing,
            clock=self.clock,
            tasks=Tasks("t"),
            ran_dry=lambda queue: None,
        )
        self.runner = ConcurrentRunner(services)
        self.assigned = AssignedQueue(queue(), ProcessQueue(0), TopicCounters())

    @property
    def committed(self) -> int | None:
        return self.table.read(queue())


async def accept(_: MessageExt) -> None: ...


async def test_one_note_for_what_handlers_do_in_a_row() -> None:
    desk = Desk(accept)
    desk.runner.submit(desk.assigned, messages(*range(50)))
    await desk.clock.drain()
    assert desk.committed == 50
    assert desk.table.noted == [50]
    desk.runner.submit(desk.assigned, [message(50)])
    await desk.clock.drain()
    assert desk.table.noted == [50, 51]
    assert await desk.runner.close(1.0)


async def test_who_stops_at_once_has_noted_everything() -> None:
    seen: list[int | None] = []

    async def stop(consumed: MessageExt) -> None:
        seen.append(desk.committed)
        if consumed.queue_offset == 9:
            desk.runner.services.tasks.spawn(close(), name="close")

    async def close() -> None:
        assert await desk.runner.close(1.0)
        seen.append(desk.committed)

    desk = Desk(stop)
    desk.runner.submit(desk.assigned, messages(*range(10)))
    await desk.clock.drain()
    assert seen == [None] * 10 + [10]


async def test_a_queue_that_was_taken_away_is_not_noted_any_more() -> None:
    async def lose_it(consumed: MessageExt) -> None:
        if consumed.queue_offset == 3:
            desk.assigned.process_queue.dropped = True

    desk = Desk(lose_it)
    desk.runner.submit(desk.assigned, messages(*range(5)))
    await desk.clock.drain()
    assert desk.table.noted == []
    assert await desk.runner.close(1.0)


async def test_handlers_that_block_their_loop_are_noted_as_they_go_on() -> None:
    async def block(_: MessageExt) -> None:
        desk.clock.now_s += 0.6 * SETTLE_MS / 1_000

    desk = Desk(block)
    desk.runner.submit(desk.assigned, messages(*range(6)))
    await desk.clock.drain()
    assert desk.table.noted == [3, 6]
    assert desk.committed == 6
    assert await desk.runner.close(1.0)
