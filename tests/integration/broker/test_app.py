"""The broker as a whole, on real sockets: send, pull back, stop, start again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.core.clock import LoopClock
from skylark.core.config import InvalidConfigError
from skylark.core.errors import StoreError, TransportError
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.message import iter_records
from tests.unit.broker.stored import texts

MESSAGE_COUNT = 200


def broker_of(root: Path, **given: str) -> Broker:
    settings = {"brokerIP1": "127.0.0.1", "listenPort": "0", **given}
    return Broker(load_broker_config(texts(root, **settings)))


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[RemotingClient]:
    await broker.start()
    client = RemotingClient(TcpNetwork(), LoopClock())
    try:
        yield client
    finally:
        await client.close()
        await broker.stop()


def send_request(body: bytes, topic: str = "T") -> Command:
    ext = {
        "a": "pg", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": "TAGS\x01A\x02",
    }  # fmt: skip
    return Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=body)


def pull_request(offset: int = 0, sys_flag: int = 4) -> Command:
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(sys_flag), "commitOffset": "7",
        "suspendTimeoutMillis": "20000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return Command(code=RequestCode.PULL_MESSAGE, ext=ext)


async def pull_all(client: RemotingClient, address: str) -> list[bytes]:
    bodies: list[bytes] = []
    while (answer := await client.call(address, pull_request(len(bodies)))).code == 0:
        bodies += [record.body for record in iter_records(answer.body or b"")]
    assert answer.code == 19
    return bodies


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_nothing_is_lost_by_a_restart(tmp_path: Path, flush: str) -> None:
    sent = [b"message %d" % number for number in range(MESSAGE_COUNT)]
    async with running(first := broker_of(tmp_path, flushDiskType=flush)) as client:
        address = str(first.address)
        assert (await client.call(address, send_request(sent[0]))).code == 0
        answers = await asyncio.gather(
            *(client.call(address, send_request(body)) for body in sent[1:])
        )
        assert [int((answer.ext or {})["queueOffset"]) for answer in answers] == list(
            range(1, MESSAGE_COUNT)
        )
        assert await pull_all(client, address) == sent
        committed = await client.call(address, pull_request(MESSAGE_COUNT, sys_flag=5))
        assert committed.code == 19
    async with running(second := broker_of(tmp_path, flushDiskType=flush)) as client:
        address = str(second.address)
        assert await pull_all(client, address) == sent
        assert second.features.topics.table.get("T") is not None
        assert second.features.groups.offsets.get("g", "T", 0) == 7
        answer = await client.call(address, send_request(b"more"))
        assert (answer.ext or {})["queueOffset"] == str(MESSAGE_COUNT)


@pytest.mark.spec("broker.13.24")
@pytest.mark.spec("remoting.10.28")
@pytest.mark.serves(RequestCode.HEART_BEAT, RequestCode.GET_ALL_TOPIC_CONFIG)
async def test_the_fast_port_takes_no_pulls(tmp_path: Path) -> None:
    async with running(broker := broker_of(tmp_path)) as client:
        fast = broker.fast_address
        assert (fast.host, fast.port) == (broker.address.host, broker.address.port - 2)
        assert (await client.call(str(fast), send_request(b"x"))).code == 0
        heartbeat = Command(code=RequestCode.HEART_BEAT, ext={}, body=b'{"clientID":"c"}')
        assert (await client.call(str(fast), heartbeat)).code == 0
        tables = await client.call(str(fast), Command(code=RequestCode.GET_ALL_TOPIC_CONFIG))
        assert (tables.code, b'"T":' in (tables.body or b"")) == (0, True)
        pull = await client.call(str(fast), pull_request())
        assert (pull.code, pull.remark) == (3, " request type 11 not supported")
        lite = Command(code=RequestCode.LITE_PULL_MESSAGE, ext=pull_request().ext)
        assert (await client.call(str(fast), lite)).code == 3
        assert (await client.call(str(broker.address), pull_request())).code == 0


async def test_a_stop_answers_held_pulls(tmp_path: Path) -> None:
    broker = broker_of(tmp_path)
    await broker.start()
    client = RemotingClient(TcpNetwork(), LoopClock())
    address = str(broker.address)
    await client.call(address, send_request(b"x"))
    held = asyncio.create_task(client.call(address, pull_request(1, sys_flag=6), 20.0))
    # Requests of a connection are handled in order: when this is answered, the pull is held.
    await asyncio.sleep(0)
    await client.call(address, Command(code=RequestCode.GET_MAX_OFFSET, ext=pull_request(1).ext))
    assert len(broker.features.pull.service.held) == 1
    await broker.stop()
    assert (await held).code == 19
    await client.close()
    await broker.stop()  # again does nothing


async def test_it_is_registered_while_it_runs(tmp_path: Path) -> None:
    namesrv = NameServer(NamesrvConfig(listen_port=0))
    await namesrv.start()
    route = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
    try:
        broker = broker_of(tmp_path, namesrvAddr=str(namesrv.address))
        async with running(broker) as client:
            await client.call(str(broker.address), send_request(b"x"))
            await broker.features.registration.announced()
            found = await client.call(str(namesrv.address), route)
            assert found.code == 0
            assert str(broker.address).encode() in (found.body or b"")
        gone = RemotingClient(TcpNetwork(), LoopClock())
        assert (await gone.call(str(namesrv.address), route)).code == 17
        await gone.close()
    finally:
        await namesrv.stop()


async def test_whoever_waits_until_it_is_ready_finds_it(tmp_path: Path) -> None:
    name_server = NameServer(NamesrvConfig(listen_port=0))
    await name_server.start()
    try:
        broker = broker_of(tmp_path, namesrvAddr=str(name_server.address))
        async with running(broker):
            await broker.ready()
            assert set(broker.features.registration.states.values()) == {True}
    finally:
        await name_server.stop()


async def test_a_name_server_that_says_nothing_is_waited_for_so_long_only(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and never answers
        broker = broker_of(tmp_path, namesrvAddr=f"127.0.0.1:{silent.getsockname()[1]}")
        async with running(broker):
            is_ready = [broker.is_ready]
            await broker.ready()
            assert [*is_ready, broker.is_ready] == [False, True]
            assert set(broker.features.registration.states.values()) == {None}


async def test_two_brokers_cannot_have_one_store(tmp_path: Path) -> None:
    async with running(broker := broker_of(tmp_path)) as client:
        second = broker_of(tmp_path)
        with pytest.raises(StoreError):
            await second.start()
        assert (await client.call(str(broker.address), send_request(b"x"))).code == 0
        third = broker_of(tmp_path / "other", listenPort=str(broker.address.port))
        with pytest.raises(TransportError):
            await third.start()


async def test_what_must_be_an_address(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="brokerIP1: here is not an address"):
        await broker_of(tmp_path, brokerIP1="here").start()


async def test_it_starts_once(tmp_path: Path) -> None:
    broker = broker_of(tmp_path)
    await broker.stop()  # nothing to stop
    with pytest.raises(RuntimeError, match="has not been started"):
        _ = broker.address
    async with running(broker):
        with pytest.raises(RuntimeError, match="has been started before"):
            await broker.start()
