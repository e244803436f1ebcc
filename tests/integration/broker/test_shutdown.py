"""Connections that end, brokers that stop and brokers that take long to start, on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.core.clock import LoopClock
from skylark.core.lifecycle import LifecycleError
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.store.errors import StoreFileError
from skylark.testing.fault_plan import FaultAction, FaultPlan, Gate
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.message import iter_records
from tests.support.loops import on_both_loops
from tests.support.raw_client import DEADLINE_S, RawClient, pull_messages, send_message
from tests.unit.broker.stored import stored, texts

OLD_VERSION = 399
SLOW = 9997


def broker_of(root: Path, files: FaultyFileSystem | None = None, **given: str) -> Broker:
    settings = {"brokerIP1": "127.0.0.1", "listenPort": "0", **given}
    return Broker(load_broker_config(texts(root, **settings)), files=files)


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def heartbeat(client_id: str) -> Command:
    data = ConsumerData(
        group_name="g",
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    body = encode_body(HeartbeatData(client_id=client_id, consumer_data_set=[data]))
    return Command(code=RequestCode.HEART_BEAT, ext={}, body=body, version=513)


# --- connections ---


@pytest.mark.spec("remoting.10.29")
async def test_an_idle_connection_is_closed_after_two_minutes(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send()).code == 0
        (connection,) = world.features.endpoint.server.connections
        await world.clock.advance(seconds=119, clients_alive=False)
        assert not connection.is_closing
        await world.clock.advance(seconds=2, clients_alive=False)
        assert connection.closed.done()
        assert world.features.endpoint.server.connections == set()


@on_both_loops
@pytest.mark.spec("remoting.10.29")
@pytest.mark.serves(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
async def test_a_consumer_that_goes_is_told_to_the_others(tmp_path: Path) -> None:
    async with running(broker_of(tmp_path)) as broker:
        first, second = (RawClient(broker.address) for _ in range(2))
        for client, client_id in ((first, "c1"), (second, "c2")):
            client.send(heartbeat(client_id))
            codes = {(await client.answer()).code for _ in range(2)}  # itself is told as well
            assert codes == {0, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
        assert (await first.answer()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        second.close()
        notice = await first.answer()
        assert (notice.code, notice.is_oneway) == (40, True)
        assert (notice.ext or {})["consumerGroup"] == "g"
        first.close()


# --- stopping ---


class Slow:
    """A request that keeps a broker from stopping until it is let go."""

    def __init__(self, broker: Broker) -> None:
        self.gate = asyncio.Event()
        broker.features.endpoint.server.dispatcher.add_cold(SLOW, self.handle)

    async def handle(self, _connection: object, request: Command) -> Command:
        await self.gate.wait()
        return response_to(request, 0)


@on_both_loops
@pytest.mark.spec("remoting.10.30")
async def test_a_broker_that_stops_sends_new_clients_away_and_serves_old_ones(
    tmp_path: Path,
) -> None:
    broker = broker_of(tmp_path)
    await broker.start()
    slow = Slow(broker)
    client, waiting = RawClient(broker.address), RawClient(broker.address)
    assert (await client.call(send_message())).code == 0
    waiting.send(Command(code=SLOW))
    held = RawClient(broker.address)
    held.send(pull_messages(1, sys_flag=6))
    await until(lambda: len(broker.features.pull.service.held) == 1)
    stopping = asyncio.create_task(broker.stop())
    assert (await held.answer()).code == 19, "what is held is answered"
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT):
        away = await client.call(Command(code=code, version=513))
        assert away.code == 1500
    stored_late = await client.call(send_message(version=OLD_VERSION))
    assert (stored_late.code, (stored_late.ext or {})["queueOffset"]) == (0, "1")
    slow.gate.set()
    assert (await waiting.answer()).code == 0, "what is in hand is finished"
    await stopping
    for raw in (client, waiting, held):
        await raw.closed()
        raw.close()


@on_both_loops
@pytest.mark.spec("remoting.10.30")
async def test_a_client_that_is_sent_away_repeats_once_and_its_caller_sees_one_success(
    tmp_path: Path,
) -> None:
    old = broker_of(tmp_path / "old")
    await old.start()
    slow = Slow(old)
    address, port = str(old.address), old.address.port
    client = RemotingClient(TcpNetwork(), LoopClock())
    assert (await client.call(address, send_message(b"before"))).code == 0
    blocking = RawClient(old.address)
    blocking.send(Command(code=SLOW))
    await until(lambda: len(old.features.endpoint.server.dispatcher.tasks) == 1)
    stopping = asyncio.create_task(old.stop())
    await until(lambda: old.features.endpoint.server.dispatcher.shutting_down)
    new = await started_on(tmp_path / "new", port)
    answer = await client.call(address, send_message(b"once"))
    assert (answer.code, (answer.ext or {})["queueOffset"]) == (0, "0")
    slow.gate.set()
    await stopping
    assert new.features.stats.broker_stats.topic_puts["T"].count == 1
    assert old.features.stats.broker_stats.topic_puts["T"].count == 1, "the message before"
    blocking.close()
    await client.close()
    await new.stop()


class StuckDisk(FaultyFileSystem):
    """Once there is a gate, syncs of the log wait at it."""

    gate: Gate | None = None

    def visit(
        self, point: str, action: str, path: Path, kind: type[StoreFileError] | None = None
    ) -> FaultAction:
        if self.gate is not None and point == "files.sync" and path.parent.name == "commitlog":
            self.gate.pass_through()
        return super().visit(point, action, path, kind)


@asynccontextmanager
async def stopping_on_a_stuck_disk(
    files: StuckDisk, **given: str
) -> AsyncIterator[asyncio.Task[None]]:
    """A broker that has stored a message, and waits for the disk to close its store."""
    # Nothing is synced before the stop, however long the lines up to the gate take.
    seldom = {"flushIntervalCommitLog": "600000", "flushCommitLogThoroughInterval": "600000"}
    broker = broker_of(Path("/b"), files, **seldom, **given)
    await broker.start()
    client = RawClient(broker.address)
    assert (await client.call(send_message(b"kept"))).code == 0
    client.close()
    gate = files.gate = Gate()
    try:
        stopping = asyncio.create_task(broker.stop())
        await until(lambda: broker.features.store.reader.shut_down)
        assert await asyncio.to_thread(gate.wait_reached, DEADLINE_S)
        yield stopping
    finally:
        gate.open()


async def still_there(files: StuckDisk) -> None:
    async with running(broker_of(Path("/b"), files)) as broker:  # nobody else has the store
        client = RawClient(broker.address)
        answer = await client.call(pull_messages())
        assert [record.body for record in iter_records(answer.body or b"")] == [b"kept"]
        client.close()


@on_both_loops
async def test_a_name_server_of_the_same_loop_answers_while_the_store_is_synced() -> None:
    files = StuckDisk()
    namesrv = NameServer(NamesrvConfig(listen_port=0))
    await namesrv.start()
    remoting = RemotingClient(TcpNetwork(), LoopClock())
    route = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
    async with stopping_on_a_stuck_disk(files, namesrvAddr=str(namesrv.address)) as stopping:
        for _ in range(10):
            assert (await remoting.call(str(namesrv.address), route, DEADLINE_S)).code == 17
        assert not stopping.done()
        assert files.exists(Path("/b/store/abort")), "not everything is on disk"
    await stopping
    assert not files.exists(Path("/b/store/abort"))
    await remoting.close()
    await namesrv.stop()
    await still_there(files)


@on_both_loops
async def test_a_stop_that_is_given_up_waits_for_the_disk() -> None:
    files = StuckDisk()
    async with stopping_on_a_stuck_disk(files) as stopping:
        stopping.cancel()
        await asyncio.sleep(0)
        assert not stopping.done()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not files.exists(Path("/b/store/abort"))
    await still_there(files)


async def started_on(root: Path, port: int) -> Broker:
    """A broker on a port that is about to become free."""
    async with LoopClock().timeout(10):
        while True:
            broker = broker_of(root, listenPort=str(port))
            try:
                await broker.start()
            except OSError:
                await asyncio.sleep(0)
            else:
                return broker


async def until(condition: Any) -> None:
    clock = LoopClock()
    async with clock.timeout(DEADLINE_S):
        while not condition():
            await clock.sleep(0.001)


# --- starting ---


@on_both_loops
async def test_a_name_server_of_the_same_loop_answers_during_a_long_recovery(
    tmp_path: Path,
) -> None:
    plan, gate = FaultPlan(1), Gate()
    files = FaultyFileSystem(plan)
    async with running(broker_of(Path("/b"), files)) as first:
        client = RawClient(first.address)
        assert (await client.call(send_message(b"kept"))).code == 0
        client.close()
    namesrv = NameServer(NamesrvConfig(listen_port=0))
    await namesrv.start()
    plan.at("files.lock", action=FaultAction.HANG, gate=gate)
    broker = broker_of(Path("/b"), files, namesrvAddr=str(namesrv.address))
    starting = asyncio.create_task(broker.start())
    remoting = RemotingClient(TcpNetwork(), LoopClock())
    route = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "T"})
    await until(lambda: plan.hits)
    for _ in range(10):
        assert (await remoting.call(str(namesrv.address), route, DEADLINE_S)).code == 17
    assert not starting.done()
    threading.Timer(0.01, gate.open).start()
    await starting
    await broker.features.registration.announced()
    assert (await remoting.call(str(namesrv.address), route)).code == 0
    assert (await remoting.call(str(broker.address), pull_messages())).code == 0
    await remoting.close()
    await broker.stop()
    await namesrv.stop()


@on_both_loops
async def test_a_start_that_is_given_up_waits_for_the_recovery(tmp_path: Path) -> None:
    plan, gate = FaultPlan(1), Gate()
    files = FaultyFileSystem(plan)
    plan.at("files.lock", action=FaultAction.HANG, gate=gate)
    broker = broker_of(Path("/b"), files)
    starting = asyncio.create_task(broker.start())
    await until(lambda: plan.hits)
    starting.cancel()
    await asyncio.sleep(0)
    assert not starting.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with running(broker_of(Path("/b"), files)) as again:  # nobody has the store
        client = RawClient(again.address)
        assert (await client.call(send_message())).code == 0
        client.close()


@on_both_loops
async def test_a_broker_that_is_stopped_while_it_starts(tmp_path: Path) -> None:
    plan, gate = FaultPlan(1), Gate()
    files = FaultyFileSystem(plan)
    plan.at("files.lock", action=FaultAction.HANG, gate=gate)
    broker = broker_of(Path("/b"), files)
    starting = asyncio.create_task(broker.start())
    await until(lambda: plan.hits)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    gate.open()
    await stopping
    with pytest.raises(LifecycleError, match="was stopped while it started"):
        await starting
    async with running(broker_of(Path("/b"), files)):  # nobody has the store
        pass
