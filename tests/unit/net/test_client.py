"""The calling side: permits, shared attempts, GO_AWAY, reuse of commands, closing."""

from __future__ import annotations

import asyncio
import gc

import pytest

from skylark.core.backoff import Backoff
from skylark.core.clock import LoopClock
from skylark.core.errors import (
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import SERIALIZE_BINARY, Command, response_to
from tests.support.loops import on_both_loops
from tests.unit.net.echo import ECHO, SILENT, SLOW, MemoryWorld

NOWHERE = "127.0.0.1:9876"


# --- permits ------------------------------------------------------------------------------------


async def test_a_call_waits_for_a_permit_within_its_timeout() -> None:
    async with MemoryWorld(limits=None, client_limits=NetLimits(calls_max=2)) as world:
        held = [asyncio.create_task(world.call(SLOW, 100)) for _ in range(2)]
        await world.clock.drain()
        patient = [asyncio.create_task(world.call(ECHO, 50)) for _ in range(5)]
        hurried = asyncio.create_task(world.call(ECHO, 1))
        await world.clock.advance(seconds=2)
        with pytest.raises(TooManyRequestsError, match="no room for another request"):
            await hurried
        assert not any(call.done() for call in patient)
        assert world.client.connected(world.address)  # a full client says nothing of the peer
        world.service.gate.set()
        assert [call.code for call in await asyncio.gather(*held, *patient)] == [0] * 7


async def test_cancelled_calls_give_their_permits_back() -> None:
    async with MemoryWorld(client_limits=NetLimits(calls_max=2)) as world:
        held = [asyncio.create_task(world.call(SLOW, 100)) for _ in range(2)]
        waiting = [asyncio.create_task(world.call(ECHO, 50)) for _ in range(2)]
        await world.clock.drain()
        waiting[0].cancel()
        for call in held:
            call.cancel()
        await asyncio.gather(*held, waiting[0], return_exceptions=True)
        assert (await waiting[1]).code == 0
        assert (await world.call()).code == 0
        world.service.gate.set()  # the late answers of the cancelled calls find nobody
        await world.clock.drain()
        assert (await world.call()).code == 0


async def test_callers_that_wait_for_a_permit_hear_of_the_end_of_the_connection() -> None:
    async with MemoryWorld(client_limits=NetLimits(calls_max=1)) as world:
        calls = [asyncio.create_task(world.call(SLOW, 100)) for _ in range(10)]
        await world.clock.drain()
        world.network.cut_all()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, ConnectionClosedError)


# --- the command of the caller ------------------------------------------------------------------


async def test_one_command_object_may_be_sent_again_and_again() -> None:
    async with MemoryWorld() as world:
        request = Command(code=ECHO, body=b"x")
        await world.client.oneway(world.address, request)
        assert (await world.client.call(world.address, request)).body == b"x"
        answers = await asyncio.gather(
            *(world.client.call(world.address, request) for _ in range(20))
        )
        assert [answer.body for answer in answers] == [b"x"] * 20
        assert len(set(world.service.seen)) == 22


async def test_what_a_client_writes_into_a_command_is_its_own() -> None:
    # Both clients are still connecting when the other one stamps the command they share.
    languages: list[tuple[object, int]] = []

    def note(_connection: Connection, request: Command) -> Command:
        languages.append((request.language, request.serialize_type))
        return response_to(request, 0)

    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, note)
    server = RemotingServer(dispatcher, network, clock)
    await server.start("127.0.0.1", 9876)
    plain = RemotingClient(network, clock)
    binary = RemotingClient(network, clock, serialize_type=SERIALIZE_BINARY, language="GO")
    request = Command(code=ECHO)
    await asyncio.gather(plain.call(NOWHERE, request), binary.call(NOWHERE, request))
    assert languages == [("PYTHON", 0), ("GO", SERIALIZE_BINARY)]
    await asyncio.gather(plain.close(), binary.close(), server.stop())


async def test_a_code_that_no_binary_header_can_hold_goes_as_json() -> None:
    types: list[int] = []

    def note(_connection: Connection, request: Command) -> Command:
        types.append(request.serialize_type)
        return response_to(request, 0)

    async with MemoryWorld(serialize_type=SERIALIZE_BINARY) as world:
        world.service.dispatcher.add_hot(200_050, note)
        world.service.dispatcher.add_hot(32_767, note)
        assert (await world.call(200_050)).code == 0
        assert (await world.call(32_767)).code == 0
    assert types == [0, SERIALIZE_BINARY]


# --- connecting ---------------------------------------------------------------------------------


async def test_a_hurried_or_cancelled_caller_does_not_spoil_the_attempt_of_the_others() -> None:
    clock = VirtualClock()
    plan = FaultPlan(seed=1)
    plan.at("memory.connect", delay_ms=2000)
    network = MemoryNetwork(plan, clock=clock)
    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, lambda _connection, request: response_to(request, 0))
    server = RemotingServer(dispatcher, network, clock)
    await server.start("127.0.0.1", 9876)
    remoting = RemotingClient(network, clock)
    cancelled, hurried, patient = (
        asyncio.ensure_future(remoting.call(NOWHERE, Command(code=ECHO), seconds))
        for seconds in (3, 0.1, 3)
    )
    await clock.advance(seconds=1)
    with pytest.raises(ConnectError, match="within the timeout of the call"):
        await hurried
    cancelled.cancel()
    await clock.advance(seconds=1.5)
    assert (await patient).code == 0
    assert cancelled.cancelled()
    assert plan.visits["memory.connect"] == 1
    await remoting.close()
    await server.stop()


async def test_back_off_grows_and_is_forgotten_after_a_success() -> None:
    clock = VirtualClock()
    plan = FaultPlan(seed=1)
    network = MemoryNetwork(plan, clock=clock)
    remoting = RemotingClient(network, clock, back_off=Backoff(first_s=1.0, most_s=2.0))

    async def call(timeout_s: float) -> Command:
        task = asyncio.ensure_future(remoting.call(NOWHERE, Command(code=ECHO), timeout_s))
        await clock.advance(seconds=timeout_s + 0.1)
        return await task

    for attempts in (1, 2, 2, 2, 3):  # a call every 0.6 s; attempts at 0, 1 and 3 s
        with pytest.raises(ConnectError):
            await call(0.5)
        assert plan.visits["memory.connect"] == attempts
    await clock.advance(seconds=10)
    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, lambda _connection, request: response_to(request, 0))
    server = RemotingServer(dispatcher, network, clock)
    await server.start("127.0.0.1", 9876)
    assert (await call(0.5)).code == 0
    await server.stop()
    await clock.drain()
    for attempts in (5, 6, 6):  # after a success the first pause is short again
        with pytest.raises(ConnectError):
            await call(0.5)
        assert plan.visits["memory.connect"] == attempts
    await remoting.close()
    assert clock.timer_count == 0


async def test_it_is_known_which_addresses_wait_for_the_next_attempt() -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    remoting = RemotingClient(network, clock, back_off=Backoff(first_s=1.0, most_s=3.0))
    assert not remoting.backs_off(NOWHERE)
    refused = asyncio.ensure_future(remoting.call(NOWHERE, Command(code=ECHO)))
    await clock.drain()
    with pytest.raises(ConnectError):
        await refused
    assert remoting.backs_off(NOWHERE)
    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, lambda _connection, request: response_to(request, 0))
    server = RemotingServer(dispatcher, network, clock)
    await server.start("127.0.0.1", 9876)
    patient = asyncio.ensure_future(remoting.call(NOWHERE, Command(code=ECHO)))
    await clock.advance(seconds=0.5)
    assert remoting.backs_off(NOWHERE)  # also while somebody waits for it
    await clock.advance(seconds=0.6)
    assert not remoting.backs_off(NOWHERE)
    assert (await patient).code == 0
    await remoting.close()
    await server.stop()


async def test_closing_the_client_is_an_error_to_those_who_connect_not_a_cancellation() -> None:
    clock = VirtualClock()
    plan = FaultPlan(seed=1)
    plan.at("memory.connect", delay_ms=2000)
    remoting = RemotingClient(MemoryNetwork(plan, clock=clock), clock)
    calls = [asyncio.create_task(remoting.call(NOWHERE, Command(code=ECHO))) for _ in range(3)]
    await clock.drain()
    calls[0].cancel()
    await remoting.close()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    for result in results[1:]:
        assert isinstance(result, ConnectError)
        assert "the client is closed" in str(result)
    with pytest.raises(ConnectError, match="the client is closed"):
        await remoting.call(NOWHERE, Command(code=ECHO))
    await remoting.close()
    assert clock.timer_count == 0


async def test_disconnecting_while_connecting_leaves_no_orphan() -> None:
    async with MemoryWorld() as world:
        call = asyncio.create_task(world.call())
        await asyncio.sleep(0)
        world.client.disconnect(world.address)
        assert (await call).code == 0
        assert world.client.connected(world.address)
        world.client.disconnect(world.address)
        assert not world.client.connected(world.address)
        assert (await world.call()).code == 0
        await world.client.close()
        await world.clock.drain()
        assert world.network.connection_count == 0


async def test_addresses_are_forgotten_with_their_connection() -> None:
    async with MemoryWorld() as world:
        await world.call()
        assert list(world.client._peers) == [world.address]
        world.network.cut_all()
        await world.clock.drain()
        assert world.client._peers == {}
        for address in ("nonsense", "host:99999", ""):
            with pytest.raises(ConfigError, match="is not an address"):
                await world.client.call(address, Command(code=ECHO))
        assert world.client._peers == {}


# --- going away, timeouts -----------------------------------------------------------------------


async def test_go_away_leaves_the_old_connection_to_its_pending_calls() -> None:
    async with MemoryWorld() as world:
        pending = asyncio.create_task(world.call(SLOW, 100))
        await world.clock.drain()
        (old,) = world.server.connections
        refusals = iter([1500])
        world.service.dispatcher.interceptors = (Refusing(refusals),)
        assert (await world.call()).code == 0
        await world.clock.drain()
        assert len(world.server.connections) == 2
        assert (await world.call()).code == 0
        world.service.gate.set()
        assert (await pending).code == 0
        await world.clock.drain()
        assert old.closed.done()
        assert len(world.server.connections) == 1
        assert world.client._retired == set()


class Refusing:
    """Answers with the codes it was given, one per request, and then lets all pass."""

    def __init__(self, codes: object) -> None:
        self.codes = codes

    def before(self, _connection: Connection, request: Command) -> Command | None:
        code = next(self.codes, None)  # type: ignore[call-overload]
        return None if code is None else response_to(request, code)

    def after(
        self, _connection: Connection, _request: Command, response: Command | None
    ) -> Command | None:
        return response


async def test_many_calls_that_are_sent_away_share_one_new_connection() -> None:
    async with MemoryWorld() as world:
        await world.call()
        world.service.dispatcher.interceptors = (Refusing(iter([1500] * 20)),)
        answers = await asyncio.gather(*(world.call() for _ in range(20)))
        assert [answer.code for answer in answers] == [0] * 20
        await world.clock.drain()
        assert len(world.server.connections) == 1


async def test_a_timeout_retires_the_connection_and_a_hurried_one_does_not() -> None:
    async with MemoryWorld() as world:
        first = await world.connect()
        for seconds, same in ((0.05, True), (0.5, False)):
            call = asyncio.create_task(world.call(SILENT, seconds))
            await world.clock.advance(seconds=seconds + 0.01)
            with pytest.raises(RequestTimeoutError):
                await call
            await world.call()
            await world.clock.drain()
            assert (world.server.connections == {first}) is same


def connections_alive() -> int:
    gc.collect()
    return sum(isinstance(each, Connection) for each in gc.get_objects())


@on_both_loops
async def test_a_thousand_connections_leave_nothing_behind() -> None:
    clock = VirtualClock()
    alive_before = connections_alive()
    closed: list[Connection | None] = []
    dispatcher = Dispatcher()
    dispatcher.add_hot(ECHO, lambda _connection, request: response_to(request, 0))
    server = RemotingServer(dispatcher, TcpNetwork(), clock)
    server.on_close(lambda _connection, _error: closed.append(None))
    host, port = await server.start("127.0.0.1", 0)
    address = f"{host}:{port}"
    for _ in range(20):
        clients = [RemotingClient(TcpNetwork(), clock) for _ in range(50)]
        await asyncio.gather(*(each.call(address, Command(code=ECHO)) for each in clients))
        await asyncio.gather(*(each.close() for each in clients))
    del clients
    async with LoopClock().timeout(60):  # ends a test that hangs, also on a busy machine
        while len(closed) < 1000:
            await LoopClock().sleep(0.001)
    assert server.connections == set()
    await server.stop()
    await clock.drain()
    assert clock.timer_count == 0
    assert connections_alive() == alive_before
