"""What it costs that pops wait, counted in calls and requests per turn, and who wakes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import pytest

from skylark.broker.api import Pending
from skylark.broker.pop.waiting_pop_runner import (
    ARRIVALS_MAX,
    ARRIVALS_PER_TURN,
    WaitingPopRunner,
)
from skylark.broker.pull.due_times import TAKEN_MAX
from skylark.broker.pull.held_request_runner import (
    SECONDS_PER_TURN,
    WAKES_PER_TURN,
    HeldRequest,
)
from skylark.filter.tag import parse_tags
from skylark.store.reput import Arrival
from tests.support.turn_watch import CountingWatch, WorkingClock, turn_growth
from tests.unit.broker.fake_endpoint import FakePeer

WAIT_MS = 15_000


class Request(NamedTuple):
    """A pop, as far as the runner is concerned."""

    topic: str
    consumer_group: str
    queue_id: int
    tags: str


class World:
    """A runner whose requests take all messages of a group, or none."""

    #: How long a pop runs, and how long it takes to look at a message.
    pop_s = arrival_s = 0.0

    def __init__(self) -> None:
        self.clock = WorkingClock()
        self.watch = CountingWatch()
        self.ran: list[Request] = []
        self.taken: set[str] = set()
        self.finds_messages = True
        self.runner = WaitingPopRunner(
            self._run,
            self.clock,
            awaited={},
            is_taken=lambda _topic, group, _queue, _offset: group in self.taken,
            watch=self.watch,
        )
        self.runner.held.count_max = self.runner.held.per_key_max = 100_000
        self.seen = 0  # messages that were looked at
        held: Any = self.runner.held
        self._consumers = held.consumers
        held.consumers = self._look

    def _look(self, topic: str) -> Any:
        self.seen += 1
        self.clock.worked_s += self.arrival_s
        return self._consumers(topic)

    def _run(self, held: HeldRequest) -> object:
        request: Request = held.request
        self.clock.worked_s += self.pop_s
        self.ran.append(request)
        if not self.finds_messages:
            self._hold(held, WAIT_MS)
            return held.pending
        self.taken.add(request.consumer_group)
        return request

    def hold(
        self, group: str = "g", queue_id: int = -1, *, tags: str = "*", peer: FakePeer | None = None
    ) -> HeldRequest:
        held = self.runner.new(peer or FakePeer(), Request("T", group, queue_id, tags))
        self._hold(held, WAIT_MS)
        return held

    def _hold(self, held: HeldRequest, wait_ms: int) -> None:
        topic, group, queue_id, tags = held.request
        wanted = None if tags == "*" else parse_tags(tags)
        assert self.runner.hold(topic, group, queue_id, held, wait_ms=wait_ms, tags=wanted)

    def arrive(self, topic: str = "T", queue_id: int = 0, tags: str = "") -> None:
        (code,) = parse_tags(tags).codes or (0,)
        self.runner.arrived(Arrival(topic, queue_id, 8, code, 0, b""))


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, in Python and in C."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


async def wake_cost(waiting_count: int, *, finds_messages: bool, kind: str) -> int:
    """The calls for one message that arrives while so many pops of one topic wait."""
    world = World()
    world.finds_messages = finds_messages
    peer = FakePeer()
    for number in range(waiting_count):
        if kind == "one queue":
            world.hold(queue_id=3, peer=peer)
        elif kind == "tags":
            world.hold(tags=f"tag{number}", peer=peer)
        else:
            world.hold(peer=peer)

    def deliver() -> None:
        world.arrive(queue_id=3, tags="tag0")
        world.runner._wake()

    calls = calls_of(deliver)
    assert len(world.ran) == 1
    await world.clock.drain()
    return calls


@pytest.mark.parametrize("kind", ["any queue", "one queue", "tags"])
@pytest.mark.parametrize("finds_messages", [True, False])
async def test_a_thousand_waiting_pops_cost_an_arriving_message_little(
    kind: str, finds_messages: bool
) -> None:
    one = await wake_cost(1, finds_messages=finds_messages, kind=kind)
    thousand = await wake_cost(1_000, finds_messages=finds_messages, kind=kind)
    assert thousand <= 2 * one


async def test_messages_of_many_groups_wake_so_many_requests_per_turn() -> None:
    world = World()
    groups = [f"g{number}" for number in range(3 * WAKES_PER_TURN + 1)]
    for group in groups:
        world.hold(group)
    world.arrive()
    sizes = []
    while len(world.ran) < len(groups):
        before = len(world.ran)
        await asyncio.sleep(0)
        sizes.append(len(world.ran) - before)
        assert len(sizes) < 20
    assert max(sizes) == WAKES_PER_TURN
    assert {request.consumer_group for request in world.ran} == set(groups)


async def test_requests_that_are_due_together_end_so_many_per_turn() -> None:
    world = World()
    count = 50 * WAKES_PER_TURN
    for _ in range(count):
        world.hold()
    taken: list[int] = []
    take_due = world.runner.held.take_due

    def counted(now_ms: int) -> list[HeldRequest]:
        found = take_due(now_ms)
        taken.append(len(found))
        return found

    world.runner.held.take_due = counted  # type: ignore[method-assign]
    await world.clock.advance(WAIT_MS / 1000 + 1)
    assert len(world.ran) == count
    assert max(taken) <= TAKEN_MAX < count


async def test_a_message_of_the_retries_wakes_whatever_the_filter() -> None:
    world = World()
    world.hold(tags="A")
    world.hold("h", tags="A")
    world.arrive(tags="B")
    await world.clock.drain()
    assert world.ran == []
    world.arrive("%RETRY%g_T", tags="B")
    await world.clock.drain()
    assert [request.consumer_group for request in world.ran] == ["g"]


@pytest.mark.parametrize("state", ["slow", "closing", "cancelled"])
async def test_a_request_that_cannot_run_leaves_the_message_to_the_next(state: str) -> None:
    world = World()
    peer = FakePeer()
    first = world.hold(peer=peer)
    second = world.hold()
    world.hold("h")
    if state == "slow":
        peer.is_reading = False
    elif state == "closing":
        peer.is_closing = True
    else:
        first.pending.is_cancelled = True
    results: list[object] = []
    second.pending.then(results.append)
    world.arrive()
    await world.clock.drain()
    assert results == [second.request]
    assert len(world.ran) == 2  # with that of the other group


async def test_what_a_cancelled_request_has_found_is_released() -> None:
    """A pop may find messages and wait for the disk, when nobody wants the answer any more."""
    world = World()
    found: Pending[object] = Pending()
    released: list[bool] = []
    found.on_cancel = lambda: released.append(True)
    world.runner._run = lambda _held: found
    held = world.hold()
    world.arrive()
    await world.clock.drain()
    assert held.pending.cancel()
    assert released == [True]
    found.set("messages")  # nobody gets them


async def test_requests_that_wake_each_other_do_not_crowd_a_turn() -> None:
    """Each leaves messages for the next one."""
    world = World()
    count = 10 * WAKES_PER_TURN

    def run(held: HeldRequest) -> object:
        world.ran.append(held.request)
        world.runner.wake_one("T", "g", -1)
        return held.request

    world.runner._run = run
    for _ in range(count):
        world.hold()
    world.arrive()
    sizes = []
    while len(world.ran) < count:
        before = len(world.ran)
        await asyncio.sleep(0)
        sizes.append(len(world.ran) - before)
    assert max(sizes) <= 2


FOUR_PER_TURN_S = SECONDS_PER_TURN / 3.5


@pytest.mark.parametrize(
    ("arrival_s", "per_turn"), [(0.0, ARRIVALS_PER_TURN), (FOUR_PER_TURN_S, 4)]
)
async def test_a_flood_of_arrivals_gives_way_after_its_share(
    arrival_s: float, per_turn: int
) -> None:
    world = World()
    world.arrival_s = arrival_s
    world.hold(tags="other")
    for _ in range(3 * per_turn):
        world.arrive(tags="a")
    world.arrive(tags="other")
    assert await turn_growth(lambda: world.seen) == [per_turn] * 3 + [1]
    assert len(world.ran) == 1


async def test_pops_that_take_long_give_way_after_their_share() -> None:
    world = World()
    world.pop_s = FOUR_PER_TURN_S
    for number in range(10):
        world.hold(f"g{number}")
    world.arrive()
    sizes = await turn_growth(lambda: len(world.ran))
    assert max(sizes) == 4
    assert sum(sizes) == 10


async def test_of_too_many_arrivals_the_last_of_each_queue_is_kept() -> None:
    world = World()
    for group in ("g", "h"):
        world.hold(group, tags="other")
    for _ in range(ARRIVALS_MAX):
        world.arrive(queue_id=0, tags="a")
    await turn_growth(lambda: world.seen)
    assert world.ran == []
    for _ in range(ARRIVALS_MAX):
        world.arrive(queue_id=0, tags="a")
    for _ in range(100):
        world.arrive(queue_id=1, tags="a")
    world.seen = 0
    await turn_growth(lambda: world.seen)
    # Whether one of the last hundred passes is unknown, so a request of each group finds out.
    assert [request.consumer_group for request in world.ran] == ["g", "h"]
    assert world.seen == ARRIVALS_MAX + 1
