"""Server and clients over a network that cuts, splits and delays, with limits drawn by seed.

Whatever happens, every call ends by its own timeout with its own answer or a TransportError, and in
the end nothing is left: no connection, no task, no timer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from skylark.core.backoff import Backoff
from skylark.core.clock import Clock
from skylark.core.errors import TransportError
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import Command, response_to
from tests.support.loops import on_both_loops

HOT, COLD, SILENT, CALLS_BACK = 1, 2, 3, 4
ADDRESS = "127.0.0.1:9876"
CALL_COUNT = 200


def drawn_limits(rng: random.Random) -> NetLimits:
    return NetLimits(
        write_buffer_high=rng.choice([2_000, 65_536]),
        frames_per_turn_max=rng.choice([1, 3, 64]),
        tasks_per_connection_max=rng.choice([1, 5, 256]),
        task_bytes_per_connection_max=rng.choice([5_000, 1_000_000]),
        calls_max=rng.choice([2, 10, 1_000]),
        idle_timeout_s=rng.choice([1, 120]),
    )


def drawn_network(rng: random.Random, seed: int, clock: Clock) -> MemoryNetwork:
    plan = FaultPlan(seed=seed)
    if rng.random() < 0.7:
        plan.chance("memory.deliver", rng.choice([0.001, 0.01]), action=FaultAction.CUT)
    if rng.random() < 0.7:
        plan.chance("memory.deliver", 0.1, action=FaultAction.SPLIT)
    if rng.random() < 0.5:
        plan.chance("memory.deliver", 0.05, delay_ms=rng.choice([10, 500]))
    if rng.random() < 0.3:
        plan.chance("memory.connect", 0.2, error=111)
    window_size = rng.choice([1_000, 65_536])
    return MemoryNetwork(plan, clock=clock, window_size=window_size, chunk_size=window_size)


def handlers(rng: random.Random, clock: Clock) -> Dispatcher:
    async def cold(_connection: Connection, request: Command) -> Command:
        await clock.sleep(rng.random() / 2)
        return response_to(request, 0, body=request.body)

    async def calls_back(connection: Connection, request: Command) -> Command:
        answer = await connection.call(Command(code=HOT, body=request.body), 1.0)
        return response_to(request, answer.code, body=answer.body)

    dispatcher = Dispatcher()
    dispatcher.add_hot(HOT, lambda _connection, request: response_to(request, 0, body=request.body))
    dispatcher.add_hot(SILENT, lambda _connection, _request: None)
    dispatcher.add_cold(COLD, cold)
    dispatcher.add_cold(CALLS_BACK, calls_back)
    return dispatcher


async def one_call(remoting: RemotingClient, rng: random.Random, clock: Clock) -> str:
    await clock.sleep(rng.random() * 3)
    code = rng.choice([HOT, HOT, COLD, SILENT, CALLS_BACK])
    body = bytes([code]) * rng.choice([1, 3_000, 50_000])
    timeout_s = rng.choice([0.05, 1.0, 3.0])
    request = Command(code=code, body=body)
    ends_at = clock.monotonic() + timeout_s
    try:
        if rng.random() < 0.1:
            await remoting.oneway(ADDRESS, request, timeout_s)
            return "one-way"
        answer = await remoting.call(ADDRESS, request, timeout_s)
    except TransportError as error:
        assert clock.monotonic() <= ends_at + 0.001
        return type(error).__name__
    assert clock.monotonic() <= ends_at + 0.001
    if answer.code == 0:
        assert answer.body == body
    return f"code {answer.code}"


@on_both_loops
@pytest.mark.parametrize("seed", range(8))
async def test_every_call_ends_and_nothing_is_left(seed: int) -> None:
    rng = random.Random(seed)
    clock = VirtualClock()
    network = drawn_network(rng, seed, clock)
    limits = drawn_limits(rng)
    here, there = handlers(rng, clock), handlers(rng, clock)
    server = RemotingServer(there, network, clock, limits=limits)
    await server.start("127.0.0.1", 9876)
    back_off = Backoff(first_s=0.01, most_s=0.1)
    clients = [
        RemotingClient(network, clock, limits=limits, dispatcher=here, back_off=back_off)
        for _ in range(3)
    ]
    calls = [
        asyncio.create_task(one_call(rng.choice(clients), rng, clock)) for _ in range(CALL_COUNT)
    ]
    for _ in range(8):
        await clock.advance(seconds=rng.random())
        for call in rng.sample(calls, 3):
            call.cancel()
    await clock.advance(seconds=10)
    assert all(call.done() for call in calls)
    ends = Counter("cancelled" if call.cancelled() else call.result() for call in calls)
    assert ends.total() == CALL_COUNT
    assert ends["code 0"] > 0, ends

    ending = asyncio.gather(server.stop(), *(each.close() for each in clients))
    await clock.advance(seconds=20)
    await ending
    assert network.connection_count == 0
    assert here.tasks == there.tasks == set()
    network.plan = None  # chunks still under way to closed ends are delayed no more
    await clock.advance(seconds=1)
    assert clock.timer_count == 0
