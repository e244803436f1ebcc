"""Which name server is asked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from skylark.client.core.name_servers import NameServers
from skylark.core.errors import ClientError, ConnectError, NoNameServerError
from skylark.core.names import Address
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeProducer, world


class Callers:
    """Addresses that answer, and those that were asked."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.open: set[str] = set()
        self.asked: list[str] = []

    async def call_name_server(
        self, address: str, request: Command, timeout_s: float = 3.0
    ) -> Command:
        del timeout_s
        self.asked.append(address)
        if address not in self.alive:
            raise ConnectError(f"no connection to {address}")
        self.open.add(address)
        return response_to(request, 0)

    def connected(self, address: str) -> bool:
        return address in self.open & self.alive


ADDRESSES = [Address("a", 1), Address("b", 2), Address("c", 3)]


async def ask(servers: NameServers) -> None:
    await servers.call(Command(code=1))


async def test_one_is_kept_while_its_connection_lives() -> None:
    callers = Callers("a:1", "b:2", "c:3")
    servers = NameServers(callers, ADDRESSES, rng=random.Random(1))
    for _ in range(4):
        await ask(servers)
    assert len(set(callers.asked)) == 1
    assert servers.chosen == callers.asked[0]


async def test_all_of_them_are_tried_from_the_next_one_on() -> None:
    callers = Callers("a:1", "b:2", "c:3")
    servers = NameServers(callers, ADDRESSES, rng=random.Random(1))
    await ask(servers)
    order = servers.addresses
    start = order.index(callers.asked[0])
    callers.alive = {order[start]}
    callers.open.clear()  # connections are lost
    callers.asked.clear()
    await ask(servers)
    assert callers.asked == [order[(start + step) % 3] for step in (1, 2, 3)]


async def test_clients_spread_over_the_name_servers() -> None:
    first = set()
    for seed in range(50):
        callers = Callers("a:1", "b:2", "c:3")
        await ask(NameServers(callers, ADDRESSES, rng=random.Random(seed)))
        first.add(callers.asked[0])
    assert first == {"a:1", "b:2", "c:3"}


async def test_without_any_the_error_says_so() -> None:
    servers = NameServers(Callers(), [])
    with pytest.raises(NoNameServerError, match="no name server is known"):
        await ask(servers)


async def test_a_refusal_is_an_error_with_its_code(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, 16)
        async with w.client(namesrv=await server.start()) as instance:
            with pytest.raises(ClientError, match="scripted 16") as caught:
                await instance.refresh_route("T")
            assert caught.value.response_code == 16
            assert server.address in str(caught.value)
        await w.finish(server.stop())


@pytest.mark.spec("client.8.2")
async def test_when_the_chosen_one_is_killed_another_one_serves(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server(9876)
        await w.add_name_server(9877)
        await w.add_broker()
        await w.add_topic("T", queue_count=2)
        async with w.client() as instance:
            await instance.register_producer(FakeProducer("g", "T"))
            first = await instance.refresh_route("T")
            assert first is not None
            assert len(first.publish) == 2
            (killed,) = [
                server
                for server in w.name_servers
                if instance.control_link.connected(str(server.address))
            ]
            await w.stop(killed)
            await w.add_topic("T", queue_count=5)
            await w.clock.advance(seconds=31)
            refreshed = instance.routes.get("T")
            assert refreshed is not None
            assert len(refreshed.publish) == 5
