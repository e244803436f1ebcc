"""What it costs to hold pulls and to wake one of them, counted in calls and in timers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from skylark.broker.api import Peer, PullRequest, PullResult
from skylark.broker.pull.held_pull_runner import ARRIVALS_MAX, ARRIVALS_PER_TURN, HeldPullRunner
from skylark.broker.pull.held_request_runner import SECONDS_PER_TURN, WAKES_PER_TURN
from skylark.broker.pull.pull_checks import PullFilter
from skylark.filter.tag import TagFilter
from skylark.store.reput import Arrival
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader
from tests.support.turn_watch import CountingWatch, WorkingClock, turn_growth
from tests.unit.broker.fake_endpoint import FakePeer

WAIT_MS = 15_000


class BatchingPeer(FakePeer):
    """Records what happens between the beginning and the end of results."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def begin_results(self) -> None:
        self.events.append("begin")

    def end_results(self) -> None:
        self.events.append("end")


class World:
    """A runner whose pulls find nothing, for any number of queues."""

    #: How long a pull runs, and how long it takes to look at a message.
    pull_s = arrival_s = 0.0

    def __init__(self) -> None:
        self.clock = WorkingClock()
        self.watch = CountingWatch()
        self.peer = BatchingPeer()
        self.runner = HeldPullRunner(self._run, self.clock, watch=self.watch, wakes_late=False)
        self.seen = 0  # messages that were looked at
        held: Any = self.runner.held
        self._find = held.arrived
        held.arrived = self._look

    def _look(self, *message: Any) -> Any:
        self.seen += 1
        self.clock.worked_s += self.arrival_s
        return self._find(*message)

    def _run(self, peer: Peer, request: PullRequest) -> PullResult:
        assert peer is self.peer
        self.clock.worked_s += self.pull_s
        self.peer.events.append(f"queue {request.header.queue_id}")
        return PullResult(
            ResponseCode.SUCCESS, "", 0, 0, 0, 0, TopicConfig(), SubscriptionGroupConfig()
        )

    def hold(self, queue_id: int, wanted: PullFilter = PullFilter()) -> None:  # noqa: B008
        header = PullMessageRequestHeader(
            consumer_group="g", topic="T", queue_id=queue_id, queue_offset=0, max_msg_nums=32,
            sys_flag=2, commit_offset=0, suspend_timeout_millis=WAIT_MS, sub_version=0,
        )  # fmt: skip
        self.runner.hold(self.peer, PullRequest(header), wanted, 0, WAIT_MS)

    async def arrive(self, *queue_ids: int) -> None:
        for queue_id in queue_ids:
            self.runner.arrived(Arrival("T", queue_id, 1, 0, 0, b""))
        await self.clock.drain()


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


async def test_a_message_costs_the_same_beside_16_and_beside_10_000_idle_pulls() -> None:
    costs = {}
    for pulls in (16, 1_000, 10_000):
        world = World()
        for queue_id in range(pulls):
            world.hold(queue_id)
        rounds = []
        for _ in range(5):
            world.runner.arrived(Arrival("T", 3, 1, 0, 0, b""))
            woken = calls_of(world.runner._wake)
            rounds.append(woken + calls_of(lambda: world.hold(3)))  # noqa: B023 - called at once
        # The least: the garbage collector may call finalizers in between.
        costs[pulls] = min(rounds)
        await world.clock.drain()
    assert costs[16] == costs[1_000]
    # The heap of due times is deeper: its comparisons are in C and are not counted.
    assert costs[16] == costs[10_000]


async def test_idle_pulls_need_one_timer_and_no_work_until_the_first_is_due() -> None:
    world = World()
    for queue_id in range(10_000):
        world.hold(queue_id)
    assert world.clock.timer_count == 1
    await world.clock.advance(seconds=(WAIT_MS - 1) / 1000)
    assert world.watch.turns == 0
    await world.clock.advance(seconds=0.001)
    assert world.watch.turns == -(-10_000 // WAKES_PER_TURN)


async def test_a_timer_stays_when_its_pull_wakes_and_comes_again() -> None:
    world = World()
    world.hold(0)
    timer = world.runner._timer
    for _ in range(3):
        await world.clock.advance(1)
        await world.arrive(0)
        assert not len(world.runner.held)
        world.hold(0)
        assert world.runner._timer is timer
    await world.clock.advance(WAIT_MS / 1000 - 3)  # when the first pull was due
    assert len(world.runner.held) == 1
    assert world.peer.events.count("queue 0") == 3
    await world.clock.advance(3)
    assert world.peer.events.count("queue 0") == 4
    assert world.clock.timer_count == 0


async def test_the_results_of_one_wake_up_are_sent_together() -> None:
    world = World()
    for queue_id in range(4):
        world.hold(queue_id)
    await world.arrive(2, 0, 3)
    assert world.peer.events == ["begin", "queue 2", "queue 0", "queue 3", "end"]
    assert world.watch.going_on == [False]


@pytest.mark.parametrize("count", [WAKES_PER_TURN, WAKES_PER_TURN + 1])
async def test_many_results_are_sent_in_the_turns_that_make_them(count: int) -> None:
    world = World()
    for queue_id in range(count):
        world.hold(queue_id)
    await world.arrive(*range(count))
    turns = -(-count // WAKES_PER_TURN)
    assert world.peer.events.count("begin") == world.peer.events.count("end") == turns
    assert world.peer.events[-1] == "end"
    assert len(world.peer.events) == count + 2 * turns


#: The fourth work of this length in a turn uses up its time.
FOUR_PER_TURN_S = SECONDS_PER_TURN / 3.5
#: A filter that no message passes whose tag is known.
OTHER_TAG = PullFilter(tags=TagFilter([7]))


@pytest.mark.parametrize(
    ("arrival_s", "per_turn"), [(0.0, ARRIVALS_PER_TURN), (FOUR_PER_TURN_S, 4)]
)
async def test_a_flood_of_arrivals_gives_way_after_its_share(
    arrival_s: float, per_turn: int
) -> None:
    world = World()
    world.arrival_s = arrival_s
    world.hold(0, OTHER_TAG)
    for offset in range(1, 3 * per_turn + 1):
        world.runner.arrived(Arrival("T", 0, offset, 5, 0, b""))
    world.runner.arrived(Arrival("T", 0, 3 * per_turn + 1, 7, 0, b""))
    assert await turn_growth(lambda: world.seen) == [per_turn] * 3 + [1]
    assert world.peer.events == ["begin", "queue 0", "end"]


async def test_pulls_that_take_long_give_way_after_their_share() -> None:
    world = World()
    world.pull_s = FOUR_PER_TURN_S
    for queue_id in range(10):
        world.hold(queue_id)
    for queue_id in range(10):
        world.runner.arrived(Arrival("T", queue_id, 1, 0, 0, b""))
    pulls = [f"queue {queue_id}" for queue_id in range(10)]

    def done() -> int:
        return sum(event in pulls for event in world.peer.events)

    assert await turn_growth(done) == [4, 4, 2]
    assert [event for event in world.peer.events if event in pulls] == pulls
    assert world.peer.events[-1] == "end"


async def test_of_too_many_arrivals_only_the_queues_are_kept() -> None:
    world = World()
    for queue_id in range(3):
        world.hold(queue_id, OTHER_TAG)
    for offset in range(1, ARRIVALS_MAX + 1):
        world.runner.arrived(Arrival("T", 0, offset, 5, 0, b""))
    for offset in range(1, 100):
        world.runner.arrived(Arrival("T", 1, offset, 5, 0, b""))
    await turn_growth(lambda: world.seen)
    # Whether one of the last messages passes is unknown, so this pull wakes and finds out.
    assert world.peer.events == ["begin", "queue 1", "end"]
    assert world.seen == ARRIVALS_MAX + 1
    assert len(world.runner.held) == 2


async def test_an_arrival_does_not_look_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.hold(0)
    with monkeypatch.context() as patched:
        patched.delattr(asyncio, "get_running_loop")
        world.runner.arrived(Arrival("T", 0, 1, 0, 0, b""))
    await world.clock.drain()
    assert world.peer.events == ["begin", "queue 0", "end"]
