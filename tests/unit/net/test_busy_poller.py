"""The busy poller: how long a process polls for the next request before it sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import pytest

import skylark.testing
from skylark import Message
from skylark.core.clock import SystemClock
from skylark.net.busy_poller import CREDIT_MAX, SAMPLE, BusyPoller

WINDOW_S = 0.2


class Loop:
    """Turns by hand; each takes 10 ms."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self._ready: list[Callable[[], None]] = []
        self.poller = BusyPoller(WINDOW_S, monotonic=lambda: self.now, call_soon=self._ready.append)

    def is_awake(self) -> bool:
        return bool(self._ready)

    def turn(self) -> None:
        ready = self._ready[:]
        self._ready.clear()
        for callback in ready:
            callback()
        self.turns += bool(ready)
        self.now += 0.01

    def run_until(self, when: float) -> None:
        while self.now < when:
            self.turn()


def test_it_polls_for_the_window_and_sleeps() -> None:
    loop = Loop()
    assert not loop.is_awake()
    loop.poller.handled(1)
    loop.run_until(0.1)
    assert loop.is_awake()
    loop.run_until(1)
    assert not loop.is_awake()
    assert 19 <= loop.turns <= 22


def test_requests_that_follow_closely_keep_it_awake() -> None:
    loop = Loop()
    for number in range(1, 200):
        loop.poller.handled(1)
        loop.run_until(number * 0.1)
        assert loop.is_awake()
    loop.run_until(loop.now + 0.3)
    assert not loop.is_awake()


def test_requests_that_are_further_apart_let_it_sleep() -> None:
    loop = Loop()
    awake = []
    for _ in range(10 * SAMPLE):
        loop.poller.handled(1)
        awake.append(loop.is_awake())
        loop.run_until(loop.now + 0.3)
        assert not loop.is_awake()
    in_vain = CREDIT_MAX // 2
    assert awake[:in_vain] == [True] * in_vain
    assert sum(awake[in_vain:]) == 9  # a sample, because the load may have changed


def test_it_notices_that_the_load_has_changed() -> None:
    loop = Loop()
    for _ in range(CREDIT_MAX):  # uses the credit up
        loop.poller.handled(1)
        loop.run_until(loop.now + 0.3)
    for _ in range(2 * SAMPLE):
        loop.poller.handled(1)
        loop.run_until(loop.now + 0.1)
    assert loop.is_awake()


@pytest.mark.parametrize("found", [1, 3])
def test_it_pays_off_where_two_of_three_windows_end_with_a_request(found: int) -> None:
    """Groups of requests, each followed by silence."""
    loop = Loop()
    awake = 0
    for _ in range(500):
        for _ in range(1 + found):
            loop.poller.handled(1)
            loop.run_until(loop.now + 0.1)
        awake += loop.is_awake()
        loop.run_until(loop.now + 0.3)
    assert awake == 500 if found == 3 else awake < 100


def test_requests_that_come_together_let_it_sleep() -> None:
    loop = Loop()
    loop.poller.handled(1)
    assert loop.is_awake()
    for _ in range(10 * SAMPLE):
        loop.poller.handled(2)
        loop.turn()
        assert not loop.is_awake()
        loop.poller.handled(1)
        loop.turn()
    assert loop.turns < 100
    for _ in range(SAMPLE):  # and then one client alone
        loop.poller.handled(1)
        loop.run_until(loop.now + 0.1)
    assert loop.is_awake()


async def test_a_request_does_not_look_for_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    poller = BusyPoller(0.0)
    with monkeypatch.context() as patched:
        patched.delattr(asyncio, "get_running_loop")
        poller.handled(1)


async def test_on_a_real_loop_it_polls_and_ends() -> None:
    loop = asyncio.get_running_loop()
    polls = 0

    def monotonic() -> float:
        nonlocal polls
        polls += 1
        return SystemClock.monotonic()

    async def wait() -> None:
        done = loop.create_future()
        loop.call_later(0.02, done.set_result, None)
        await done

    BusyPoller(0.002, monotonic=monotonic).handled(1)
    await wait()
    assert polls >= 2
    polls_before = polls
    await wait()
    assert polls == polls_before  # it sleeps


@pytest.mark.parametrize(
    ("transport", "micros", "is_there"),
    [
        ("loopback", 200, True),
        ("loopback", 0, False),
        ("memory", 200, False),  # there is no socket to poll
    ],
)
async def test_brokers_poll_only_real_sockets(
    transport: Literal["loopback", "memory"], micros: int, is_there: bool
) -> None:
    async with skylark.testing.broker(transport=transport, busyPollMicros=micros) as b:
        servers = b.broker.features.endpoint.servers
        polls = [server.dispatcher.after_runs is not None for server in servers]
        assert polls == [is_there] * 2
        topic = await b.topic()
        async with b.producer() as producer:
            for _ in range(3):
                await producer.send(Message(topic, b"one after the other"))
