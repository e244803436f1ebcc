"""Brokers that fall silent, leave or lose their connection; on virtual time, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylark.core.names import parse_address
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.net.server import RemotingServer
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.support.namesrv_peers import BROKER_ADDR, ask_route, register_request, request

NAMESRV = "127.0.0.1:9876"
FOREVER = NetLimits(idle_timeout_s=1e6)


class World:
    """A name server, brokers and clients, all on one virtual clock and one memory network."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(clock=self.clock)
        never_idle = {"server_channel_max_idle_time_seconds": 1_000_000}
        config = NamesrvConfig(**{**never_idle, **settings})
        self.server = NameServer(config, network=self.network, clock=self.clock)
        self.peers: list[RemotingClient] = []
        self.brokers: list[RemotingServer] = []
        self.client = self.peer()

    def peer(self) -> RemotingClient:
        """One more process with a connection of its own."""
        self.peers.append(RemotingClient(self.network, self.clock, limits=FOREVER))
        return self.peers[-1]

    async def broker(self, address: str) -> list[Command]:
        """Listen as a broker does; returns the list that its notices will be in."""
        seen: list[Command] = []

        def take(_connection: Connection, notice: Command) -> None:
            seen.append(notice)

        dispatcher = Dispatcher()
        dispatcher.add_hot(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, take)
        broker = RemotingServer(dispatcher, self.network, self.clock, limits=FOREVER)
        await broker.start(*parse_address(address))
        self.brokers.append(broker)
        return seen

    async def has_route(self, topic: str = "T") -> bool:
        return await ask_route(self.client, NAMESRV, topic) is not None


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[World]:
    world = World(**settings)
    await world.server.start()
    try:
        yield world
    finally:
        for peer in world.peers:
            await peer.close()
        await world.server.stop()
        for broker in world.brokers:
            await broker.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as made:
        yield made


@pytest.mark.spec("broker.13.1")
async def test_a_silent_broker_is_gone_after_120_s_and_one_scan(world: World) -> None:
    broker = world.peer()
    assert (await broker.call(NAMESRV, register_request("T", "U"))).code == 0
    await world.clock.advance(120)
    assert await world.has_route()
    assert broker.connected(NAMESRV)
    await world.clock.advance(5)
    assert not await world.has_route()
    answer = await world.client.call(NAMESRV, request(206))
    assert answer.body == b'{"topicList":[]}'
    answer = await world.client.call(NAMESRV, request(106))
    assert answer.body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    assert not broker.connected(NAMESRV)


async def test_the_scan_comes_first_after_5_s_and_then_at_its_interval() -> None:
    async with running(scan_not_active_broker_interval=60_000) as world:
        quick = register_request("T", "U", heartbeat_timeout_millis=1_000)
        await world.peer().call(NAMESRV, quick)
        await world.clock.advance(4.9)
        assert await world.has_route()
        await world.clock.advance(0.1)
        assert not await world.has_route()
        await world.peer().call(NAMESRV, quick)
        await world.clock.advance(59)
        assert await world.has_route()
        await world.clock.advance(1)
        assert not await world.has_route()


async def test_heartbeats_keep_a_broker(world: World) -> None:
    broker = world.peer()
    await broker.call(NAMESRV, register_request("T", "U", heartbeat_timeout_millis=10_000))
    ext = {"clusterName": "c", "brokerAddr": BROKER_ADDR, "brokerName": "b"}
    for code in (904, 322) * 3:
        await world.clock.advance(9)
        await broker.oneway(NAMESRV, request(code, {**ext, "brokerId": "0"}))
    await world.clock.advance(10)
    assert await world.has_route()
    await world.clock.advance(5)
    assert not await world.has_route()


@pytest.mark.spec("broker.13.1")
async def test_a_closed_connection_removes_its_broker_at_once_and_no_other(world: World) -> None:
    broker, other = world.peer(), world.peer()
    await broker.call(NAMESRV, register_request("T", "U"))
    assert (await other.call(NAMESRV, request(106))).code == 0
    other.disconnect(NAMESRV)
    await world.clock.drain()
    assert await world.has_route()
    broker.disconnect(NAMESRV)
    await world.clock.drain()
    assert not await world.has_route()


async def test_a_broker_that_says_goodbye_is_removed(world: World) -> None:
    broker = world.peer()
    await broker.call(NAMESRV, register_request("T", "U"))
    ext = {"clusterName": "c", "brokerAddr": BROKER_ADDR, "brokerName": "b", "brokerId": "0"}
    assert (await broker.call(NAMESRV, request(104, ext))).code == 0
    assert not await world.has_route()
    assert broker.connected(NAMESRV)


async def test_more_goodbyes_than_the_queue_holds_are_refused() -> None:
    async with running(un_register_broker_queue_capacity=1) as world:
        tables = world.server.tables
        assert tables.remove("c", "b1", "b1:1", 0)
        ext = {"clusterName": "c", "brokerAddr": BROKER_ADDR, "brokerName": "b", "brokerId": "0"}
        assert (await world.client.call(NAMESRV, request(104, ext))).code == 1
        assert (await world.client.call(NAMESRV, request(104, ext))).code == 0


async def test_members_are_told_of_a_new_smallest_id() -> None:
    async with running(notify_min_broker_id_changed=True) as world:
        master_addr, slave_addr = "127.0.0.1:10911", "127.0.0.1:20911"
        to_master, to_slave = await world.broker(master_addr), await world.broker(slave_addr)
        master, slave = world.peer(), world.peer()
        acting: dict[str, Any] = {"enable_acting_master": True}
        await slave.call(
            NAMESRV, register_request("T", "U", broker_id=1, broker_addr=slave_addr, **acting)
        )
        register_master = register_request(
            "T", "U", broker_addr=master_addr, ha_server_addr="127.0.0.1:10912", **acting
        )
        await master.call(NAMESRV, register_master)
        await world.clock.drain()
        (notice,) = to_slave
        assert notice.is_oneway
        assert notice.ext == {
            "minBrokerId": "0",
            "minBrokerAddr": master_addr,
            "haBrokerAddr": "127.0.0.1:10912",
        }
        master.disconnect(NAMESRV)
        await world.clock.drain()
        assert to_slave[1].ext == {
            "minBrokerId": "1",
            "minBrokerAddr": slave_addr,
            "offlineBrokerAddr": master_addr,
        }
        assert to_master == []


async def test_a_broker_that_cannot_be_notified_does_no_harm(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(notify_min_broker_id_changed=True) as world:
        master, slave = world.peer(), world.peer()
        slave_request = register_request(
            "T", "U", broker_id=1, broker_addr="127.0.0.1:20911", enable_acting_master=True
        )
        await slave.call(NAMESRV, slave_request)
        await master.call(NAMESRV, register_request("T", "U", enable_acting_master=True))
        await world.clock.advance(1)
        assert "cannot notify 127.0.0.1:20911 of the new smallest broker id" in caplog.text
        assert await world.has_route()


async def test_a_name_server_that_stops_does_not_call_its_brokers_dead() -> None:
    async with running(notify_min_broker_id_changed=True) as world:
        to_slave = await world.broker("127.0.0.1:20911")
        master, slave = world.peer(), world.peer()
        await master.call(NAMESRV, register_request("T", "U", enable_acting_master=True))
        await slave.call(
            NAMESRV,
            register_request(
                "T", "U", broker_id=1, broker_addr="127.0.0.1:20911", enable_acting_master=True
            ),
        )
        await world.server.stop()
        await world.clock.advance(1)
        assert to_slave == []


async def test_virtual_time_kills_nobody_unless_told() -> None:
    async with running(server_channel_max_idle_time_seconds=120) as world:
        world.clock.on_advance(world.server.clock_advanced)
        broker = world.peer()
        await broker.call(NAMESRV, register_request("T", "U"))
        await world.clock.advance(hours=2)
        assert broker.connected(NAMESRV)
        assert await world.has_route()
        await world.clock.advance(minutes=3, clients_alive=False)
        assert not broker.connected(NAMESRV)
        assert not await world.has_route()
