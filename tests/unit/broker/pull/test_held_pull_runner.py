"""What it costs to hold pulls and to wake one of them, counted in calls and in timers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from skylark.broker.api import Peer, PullRequest, PullResult
from skylark.broker.pull.held_pull_runner import HeldPullRunner
from skylark.broker.pull.held_request_runner import WAKES_PER_TURN
from skylark.broker.pull.pull_checks import PullFilter
from skylark.store.reput import Arrival
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader
from tests.support.turn_watch import CountingWatch
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

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.watch = CountingWatch()
        self.peer = BatchingPeer()
        self.runner = HeldPullRunner(self._run, self.clock, watch=self.watch, wakes_late=False)

    def _run(self, peer: Peer, request: PullRequest) -> PullResult:
        assert peer is self.peer
        self.peer.events.append(f"queue {request.header.queue_id}")
        return PullResult(
            ResponseCode.SUCCESS, "", 0, 0, 0, 0, TopicConfig(), SubscriptionGroupConfig()
        )

    def hold(self, queue_id: int) -> None:
        header = PullMessageRequestHeader(
            consumer_group="g", topic="T", queue_id=queue_id, queue_offset=0, max_msg_nums=32,
            sys_flag=2, commit_offset=0, suspend_timeout_millis=WAIT_MS, sub_version=0,
        )  # fmt: skip
        self.runner.hold(self.peer, PullRequest(header), PullFilter(), 0, WAIT_MS)

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
