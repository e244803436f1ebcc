"""Faults of requests and messages: in a running server, and in a whole broker by seed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylark import Message, MessageExt
from skylark.core.errors import ConfigError, ConnectionClosedError, RequestTimeoutError
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.server import RemotingServer
from skylark.testing import MessageFaults, broker
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


# ---- MessageFaults -----------------------------------------------------------------------------

SEND = "310"


async def stored_after(plan: MessageFaults, sends: int) -> int:
    """How many messages the broker holds after so many sends."""
    async with broker(faults=plan) as b:
        topic = await b.topic(queue_count=1)
        async with b.producer() as producer:
            for number in range(sends):
                await producer.send(Message(topic, b"%d" % number))
        (queue,) = (await b.admin.offsets.bounds(topic)).queues
        return queue.max_offset


async def test_duplicates_are_stored_twice() -> None:
    plan = MessageFaults(duplicate=0.3, seed=7)
    stored = await stored_after(plan, 30)
    doubled = plan.hits[f"request.{SEND}/duplicate"]
    assert 0 < doubled < 30
    assert stored == 30 + doubled


async def test_a_lost_acknowledgement_makes_the_producer_send_again() -> None:
    plan = MessageFaults(drop_ack=0.3, seed=3)
    stored = await stored_after(plan, 20)
    lost = plan.hits[f"response.{SEND}/cut"]
    assert lost > 0
    assert stored == 20 + lost


async def test_answers_are_late() -> None:
    plan = MessageFaults(delay_ms=(1000, 2000), seed=7)
    async with broker(clock="virtual") as b:
        topic = await b.topic()
        async with b.producer() as producer:
            await producer.send(Message(topic, b"at once"))
            b.faults = plan
            sending = asyncio.ensure_future(producer.send(Message(topic, b"late")))
            await b.clock.advance(ms=999)
            assert not sending.done()
            await b.clock.advance(ms=1001)
            assert sending.done()
            b.faults = None
    assert plan.hits[f"response.{SEND}/delay"] == 1


async def test_lost_progress_brings_messages_again() -> None:
    async with broker(clock="virtual") as b:
        topic, group = await b.topic(queue_count=1), await b.group()
        got: list[bytes] = []

        async def take(message: MessageExt) -> None:
            got.append(message.body)

        async with b.producer() as producer:
            await producer.send(Message(topic, b"x"))
        for plan in (MessageFaults(drop_ack=1.0), None):
            b.faults = plan
            consumer = b.consumer(group)
            consumer.subscribe(topic)(take)
            async with consumer:
                await b.clock.advance(seconds=1)
        assert got == [b"x", b"x"]


async def test_the_same_seed_does_the_same() -> None:
    def decisions(seed: int) -> list[tuple[FaultAction, int]]:
        plan = MessageFaults(duplicate=0.5, drop_ack=0.2, delay_ms=(0, 50), seed=seed)
        points = [f"request.{SEND}", f"response.{SEND}"] * 50
        return [(fault.action, fault.delay_ms) for fault in map(plan.draw, points)]

    assert decisions(7) == decisions(7)
    assert decisions(7) != decisions(8)
    assert {action for action, _ in decisions(7)} == {
        FaultAction.NONE,
        FaultAction.DUPLICATE,
        FaultAction.CUT,
        FaultAction.DELAY,
    }


def test_the_text_is_the_marker_that_gives_it_again() -> None:
    plan = MessageFaults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7)
    assert str(plan) == (
        "faults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 50), seed=7); what took effect: nothing"
    )
    plan.hit("request.310", FaultAction.DUPLICATE)
    assert str(plan).endswith("what took effect: 1 x request.310/duplicate")


def test_a_seed_is_drawn_if_none_is_given() -> None:
    assert len({MessageFaults(duplicate=0.5).seed for _ in range(5)}) > 1


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no fault is asked for"),
        ({"duplicate": 1.1}, "duplicate must be a probability from 0 to 1, not 1.1"),
        ({"drop_ack": True}, "drop_ack must be a probability"),
        ({"duplicate": "0.1"}, "duplicate must be a probability"),
        ({"delay_ms": (50, 0)}, r"delay_ms must be milliseconds.*not \(50, 0\)"),
        ({"delay_ms": 0.5}, "delay_ms must be milliseconds"),
        ({"delay_ms": -1}, "delay_ms must be milliseconds"),
        ({"delay_ms": 10**9}, "delay_ms must be milliseconds"),
        ({"duplicate": 0.1, "seed": "x"}, "seed must be an integer"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        MessageFaults(**given)
