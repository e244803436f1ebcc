"""Faults in a running server, over the memory network and on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from skylark.core.errors import ConnectionClosedError, RequestTimeoutError
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.server import RemotingServer
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.request_faults import RequestFaults
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.command import Command, response_to

ECHO = 1001


class Service:
    """A server that counts, its client, and the plan between them."""

    def __init__(self) -> None:
        self.handled = 0
        self.clock = VirtualClock()
        self.plan = FaultPlan(seed=7)
        self.dispatcher = Dispatcher()
        self.dispatcher.add_hot(ECHO, self.echo)
        self.dispatcher.interceptors = (RequestFaults(self.plan, self.dispatcher, self.clock),)
        network = MemoryNetwork()
        self.server = RemotingServer(self.dispatcher, network, self.clock)
        self.client = RemotingClient(network, self.clock)
        self.address = ""

    def echo(self, connection: Connection, request: Command) -> Command:
        self.handled += 1
        return response_to(request, 0)

    async def __aenter__(self) -> Service:
        host, port = await self.server.start("127.0.0.1", 0)
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.stop()

    async def call(self) -> Command:
        """One call, with as much virtual time as it needs."""
        task = asyncio.ensure_future(self.client.call(self.address, Command(code=ECHO), 3.0))
        await self.clock.advance(seconds=4, clients_alive=True)
        return await task


async def test_a_lost_request_is_not_handled_and_a_lost_answer_is() -> None:
    async with Service() as service:
        service.plan.at(f"request.{ECHO}", action=FaultAction.DROP)
        with pytest.raises(RequestTimeoutError):
            await service.call()
        assert service.handled == 0
        service.plan.at(f"response.{ECHO}", action=FaultAction.DROP)
        with pytest.raises(RequestTimeoutError):
            await service.call()
        assert service.handled == 1
        assert (await service.call()).code == 0
        assert service.plan.hits == {f"request.{ECHO}/drop": 1, f"response.{ECHO}/drop": 1}


async def test_delayed_requests_and_answers_arrive_when_they_are_due() -> None:
    async with Service() as service:
        for point in ("request", "response"):
            service.plan.at(f"{point}.{ECHO}", delay_ms=1500)
            task = asyncio.ensure_future(
                service.client.call(service.address, Command(code=ECHO), 3.0)
            )
            await service.clock.advance(ms=1400)
            assert not task.done()
            await service.clock.advance(ms=200)
            assert (await task).code == 0
        assert service.handled == 2


async def test_doubled_requests_are_handled_twice_and_answered_once_to_the_caller() -> None:
    async with Service() as service:
        service.plan.at(f"request.{ECHO}", action=FaultAction.DUPLICATE)
        assert (await service.call()).code == 0
        assert service.handled == 2
        service.plan.at(f"response.{ECHO}", action=FaultAction.DUPLICATE)
        assert (await service.call()).code == 0
        assert service.handled == 3


@pytest.mark.parametrize("point", ["request", "response"])
async def test_refusals_and_cut_connections(point: str) -> None:
    async with Service() as service:
        service.plan.at(f"{point}.{ECHO}", error=14)
        assert (await service.call()).code == 14
        for action in (FaultAction.CLOSE, FaultAction.CUT):
            service.plan.at(f"{point}.{ECHO}", action=action)
            with pytest.raises(ConnectionClosedError):
                await service.call()
            assert (await service.call()).code == 0


class Closing:
    """Access control that changes its mind: a request seen before is refused."""

    def __init__(self) -> None:
        self.seen: list[Command] = []

    def before(self, _connection: Connection, request: Command) -> Command | None:
        if any(request is each for each in self.seen):
            self.seen.clear()
            return response_to(request, 16, "not any more")
        self.seen.append(request)
        return None

    def after(
        self, _connection: Connection, _request: Command, response: Command | None
    ) -> Command | None:
        return response


@pytest.mark.parametrize("cold", [False, True])
async def test_a_request_that_never_comes_back_spares_no_other(cold: bool) -> None:
    async with Service() as service:
        code = ECHO
        if cold:
            code = ECHO + 1

            async def echo(connection: Connection, request: Command) -> Command:
                return service.echo(connection, request)

            service.dispatcher.add_cold(code, echo)
        (faults,) = service.dispatcher.interceptors
        service.dispatcher.interceptors = (Closing(), faults)

        async def call() -> Command:
            task = asyncio.ensure_future(
                service.client.call(service.address, Command(code=code), 3.0)
            )
            await service.clock.advance(seconds=4)
            return await task

        for _ in range(20):
            service.plan.at(f"request.{code}", delay_ms=100)
            assert (await call()).code == 16
        for _ in range(20):
            service.plan.at(f"request.{code}", error=14)
            assert (await call()).code == 14
        assert service.handled == 0
