"""Registration with real name servers over loopback, on virtual time."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.config import load_broker_config
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.registration import MasterAddress, Registration
from skylark.broker.topics.topic_table import TopicTable
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.kv import ORDER_TOPIC_CONFIG
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import DataVersion, KVTable
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.register import (
    RegisterBrokerBody,
    decode_register_body,
    register_body_crc,
)
from skylark.wire.bodies.route_body import TopicRouteData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import decode_ext
from skylark.wire.frame import decode_frame
from skylark.wire.headers.route import RegisterBrokerRequestHeader

FRAMES = Path(__file__).parents[3] / "golden" / "data" / "frames"
DEAD = "127.0.0.1:1"


class World:
    """A broker's registration and what it stands on."""

    def __init__(self, clock: VirtualClock, namesrv_addr: str, **settings: str) -> None:
        texts = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.2",
            "brokerIP2": "127.0.0.2",
            "listenPort": "20911",
            "namesrvAddr": namesrv_addr,
            "storePathRootDir": "unused",
        }
        self.clock = clock
        self.live = LiveSettings(load_broker_config(texts | settings), now_ms=clock.now_ms())
        self.topics = TopicTable(self.live, clock)
        self.client = RemotingClient(TcpNetwork(), clock)
        self.masters: list[MasterAddress | None] = []
        self.registration = Registration(self.live, self.topics, self.client, clock)
        self.registration.master_changes.subscribe(self.masters.append)

    def create(self, name: str) -> None:
        self.topics.update(TopicConfig(topic_name=name, read_queue_nums=2, write_queue_nums=2))

    def configure(self, **changes: str) -> None:
        text = "".join(f"{key}={value}\n" for key, value in changes.items())
        self.live.update(text, self.clock.now_ms())


@asynccontextmanager
async def registered(clock: VirtualClock, addresses: str, **settings: str) -> AsyncIterator[World]:
    world = World(clock, addresses, **settings)
    await world.registration.start()
    await world.registration.announced()
    try:
        yield world
    finally:
        await world.registration.stop()
        await world.client.close()


@asynccontextmanager
async def name_server(clock: VirtualClock, port: int = 0) -> AsyncIterator[NameServer]:
    server = NameServer(NamesrvConfig(listen_port=port), clock=clock)
    forget = clock.on_advance(server.clock_advanced)
    await server.start()
    try:
        yield server
    finally:
        forget()
        await server.stop()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def route(server: NameServer, topic: str) -> TopicRouteData | None:
    return server.tables.route(topic)


class Listener:
    """A name server that notes requests and answers what it is told to."""

    def __init__(self, clock: VirtualClock) -> None:
        self.requests: list[Command] = []
        self.answers: dict[int, Command] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        dispatcher = Dispatcher()
        for code in (
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
            RequestCode.QUERY_DATA_VERSION,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        ):
            dispatcher.add_cold(code, self.answer)
        self.server = RemotingServer(dispatcher, TcpNetwork(), clock)

    async def answer(self, _connection: Connection, request: Command) -> Command:
        self.requests.append(request)
        await self.gate.wait()
        told = self.answers.get(request.code) or Command(code=0, ext={})
        return response_to(request, told.code, told.remark, ext=told.ext, body=told.body)

    @property
    def address(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"

    @property
    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def topics(self, index: int) -> list[str]:
        return list(self.body(index).topic_config_serialize_wrapper.topic_config_table)

    def body(self, index: int) -> RegisterBrokerBody:
        request = self.requests[index]
        return decode_register_body(request.body, version=request.version)


@asynccontextmanager
async def listener(clock: VirtualClock) -> AsyncIterator[Listener]:
    listening = Listener(clock)
    await listening.server.start("127.0.0.1", 0)
    try:
        yield listening
    finally:
        listening.gate.set()
        await listening.server.stop()


# --- with our own name server ---


async def test_topics_have_routes_from_the_start_and_new_ones_at_once(clock: VirtualClock) -> None:
    async with name_server(clock) as server, registered(clock, str(server.address)) as world:
        assert world.registration.states == {str(server.address): True}
        assert server.tables.topic_count == len(world.topics)
        world.create("Fresh")
        await clock.drain()
        found = route(server, "Fresh")
        assert found is not None
        assert [(q.broker_name, q.read_queue_nums, q.perm) for q in found.queue_datas] == [
            ("broker-a", 2, 6)
        ]
        assert found.broker_datas[0].broker_addrs == {0: "127.0.0.2:20911"}
        known = server.tables.query_version(
            "DefaultCluster", "127.0.0.2:20911", world.topics.version, 0
        )
        assert known == (False, world.topics.version)


async def test_the_end_of_a_broker_is_known_at_once(clock: VirtualClock) -> None:
    async with name_server(clock) as server, registered(clock, str(server.address)) as world:
        world.create("Fresh")
        await clock.drain()
        await world.registration.stop()
        await clock.drain()
        assert route(server, "Fresh") is None
        assert server.tables.live_broker_count == 0
        world.create("Later")  # nobody is told any more
        await clock.advance(60)
        assert server.tables.live_broker_count == 0


async def test_two_name_servers_and_a_dead_one(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "skylark.broker.topics.registration")
    async with name_server(clock) as one, name_server(clock) as two:
        addresses = f"{one.address};{DEAD};{two.address}"
        async with registered(clock, addresses) as world:
            assert world.registration.states == {
                str(one.address): True,
                DEAD: False,
                str(two.address): True,
            }
            world.create("Fresh")
            await clock.drain()
            assert route(one, "Fresh") is not None
            assert route(two, "Fresh") is not None
            await clock.advance(minutes=3)
            assert world.registration.states[DEAD] is False
            lines = [line for line in caplog.messages if DEAD in line]
            assert len(lines) == 1, "a state that lasts is logged once"
            assert lines[0].startswith(f"cannot register with name server {DEAD}, will retry: ")
            assert sum("registered with" in line for line in caplog.messages) == 2


async def test_a_name_server_that_restarts_gets_everything_again(
    clock: VirtualClock,
) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(name_server(clock))
        port = first.address.port
        world = await stack.enter_async_context(registered(clock, str(first.address)))
        await first.stop()
        await clock.advance(5)
        world.create("WhileAway")
        await clock.advance(5)
        assert world.registration.states == {str(first.address): False}
        second = await stack.enter_async_context(name_server(clock, port))
        await clock.advance(10)
        assert route(second, "WhileAway") is not None
        assert second.tables.topic_count == len(world.topics)


async def test_a_broken_connection_is_mended_before_the_next_round(clock: VirtualClock) -> None:
    async with name_server(clock) as server, registered(clock, str(server.address)) as world:
        await clock.advance(11)
        world.client.disconnect(str(server.address))
        await clock.drain()
        assert route(server, "broker-a") is None  # the name server dropped it
        await clock.advance(1)
        assert route(server, "broker-a") is not None


async def test_name_servers_are_changed_at_run_time(clock: VirtualClock) -> None:
    async with (
        name_server(clock) as old,
        name_server(clock) as new,
        registered(clock, str(old.address)) as world,
    ):
        world.configure(namesrvAddr=str(new.address))
        await clock.advance(1)
        assert world.registration.states == {str(new.address): True}
        assert route(old, "broker-a") is None
        assert route(new, "broker-a") is not None
        assert not world.client.connected(str(old.address))


async def test_new_permissions_reach_the_routes(clock: VirtualClock) -> None:
    async with name_server(clock) as server, registered(clock, str(server.address)) as world:
        world.create("Fresh")
        world.configure(brokerPermission="4")
        world.topics.renew_version()
        await world.registration.register_all()
        found = route(server, "Fresh")
        assert found is not None
        assert found.queue_datas[0].perm == 4


async def test_the_order_configuration_marks_topics(clock: VirtualClock) -> None:
    async with name_server(clock) as server, registered(clock, str(server.address)) as world:
        world.create("Ordered")
        server._kv.put(ORDER_TOPIC_CONFIG, "Ordered", "broker-a:2")
        assert not world.topics.is_order("Ordered")
        await clock.advance(10)
        assert world.topics.is_order("Ordered")


async def test_a_slave_learns_of_its_master_and_forgets_it_only_on_good_authority(
    clock: VirtualClock,
) -> None:
    async with name_server(clock) as server:
        address = str(server.address)
        async with registered(clock, address) as master:
            slave_settings = {"brokerRole": "SLAVE", "brokerId": "1", "listenPort": "20921"}
            async with registered(clock, address, **slave_settings) as slave:
                known = MasterAddress("127.0.0.2:20911", "127.0.0.2:20912")
                assert slave.registration.master == known
                assert slave.masters == [known]
                assert master.registration.master is None
                await master.registration.stop()
                await clock.advance(10)
                assert slave.masters == [known, None]


async def test_a_slave_that_comes_before_its_master_hears_of_it_soon(clock: VirtualClock) -> None:
    async with name_server(clock) as server:
        address = str(server.address)
        slave_settings = {"brokerRole": "SLAVE", "brokerId": "1", "listenPort": "20921"}
        async with registered(clock, address, **slave_settings) as slave:
            assert slave.registration.master is None
            async with registered(clock, address):
                await clock.advance(3)
                assert slave.masters == [MasterAddress("127.0.0.2:20911", "127.0.0.2:20912")]


async def test_the_master_stays_known_while_no_name_server_answers(clock: VirtualClock) -> None:
    async with listener(clock) as fake:
        ext = {"masterAddr": "10.0.0.9:10911", "haServerAddr": "10.0.0.9:10912"}
        fake.answers[RequestCode.REGISTER_BROKER] = Command(code=0, ext=ext)
        async with registered(clock, fake.address, brokerRole="SLAVE", brokerId="1") as slave:
            fake.answers[RequestCode.REGISTER_BROKER] = Command(code=1, remark="no")
            await clock.advance(60)
            assert slave.registration.states == {fake.address: False}
            assert slave.registration.master == MasterAddress("10.0.0.9:10911", "10.0.0.9:10912")


async def test_the_first_name_server_that_knows_a_master_is_believed(clock: VirtualClock) -> None:
    async with listener(clock) as young, listener(clock) as old:
        old.answers[RequestCode.REGISTER_BROKER] = Command(code=0, ext={"masterAddr": "h:1"})
        addresses = f"{young.address};{old.address}"
        async with registered(clock, addresses, brokerRole="SLAVE", brokerId="1") as slave:
            assert slave.registration.master == MasterAddress("h:1", None)


# --- what goes over the wire ---


def recorded(scenario: str, code: int) -> list[Command]:
    lines = (FRAMES / f"{scenario}.jsonl").read_text().splitlines()
    frames = [json.loads(line) for line in lines]
    return [
        decode_frame(base64.b64decode(frame["raw"]))
        for frame in frames
        if frame["code"] == code and frame["dir"] == "c2s"
    ]


def shape(value: Any) -> Any:
    """Keys and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return type(value)


@pytest.mark.parametrize("scenario", ["broker-registration", "binary-broker-registration"])
async def test_requests_are_those_of_a_real_broker(clock: VirtualClock, scenario: str) -> None:
    first, change = recorded(scenario, RequestCode.REGISTER_BROKER)[:2]
    async with listener(clock) as fake:
        async with registered(clock, fake.address) as world:
            world.create("FrameA")
            await clock.drain()
            ours, ours_change = fake.requests
        assert fake.codes[2:] == [RequestCode.UNREGISTER_BROKER]
    for mine, theirs in ((ours, first), (ours_change, change)):
        assert mine.ext is not None
        assert theirs.ext is not None
        assert mine.body is not None
        assert int(mine.ext.pop("bodyCrc32")) == register_body_crc(mine.body)
        theirs_ext = {k: v for k, v in theirs.ext.items() if k != "bodyCrc32"}
        assert mine.ext == theirs_ext
    theirs_table = json.loads(first.body or b"")["topicConfigSerializeWrapper"]["topicConfigTable"]
    ours_table = json.loads(ours.body or b"")["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert {k: v for k, v in ours_table.items() if k in theirs_table} == theirs_table
    assert shape(json.loads(ours_change.body or b"")) == shape(json.loads(change.body or b""))
    wrapper = json.loads(ours_change.body or b"")["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"]["counter"] == 1
    assert list(wrapper["topicConfigTable"]) == ["FrameA"]
    (theirs_end,) = recorded(scenario, RequestCode.UNREGISTER_BROKER)
    assert fake.requests[2].ext == theirs_end.ext


async def test_a_slave_registers_under_its_own_id(clock: VirtualClock) -> None:
    theirs = next(
        request.ext
        for request in recorded("slave-registration", RequestCode.REGISTER_BROKER)
        if request.ext is not None and request.ext["brokerId"] == "1"
    )
    settings = {"brokerRole": "SLAVE", "brokerId": "1", "listenPort": "20921"}
    async with listener(clock) as fake, registered(clock, fake.address, **settings):
        ours = dict(fake.requests[0].ext or {})
    assert ours | {"bodyCrc32": ""} == theirs | {"bodyCrc32": ""}


async def test_a_compressed_registration_has_the_flag(clock: VirtualClock) -> None:
    async with (
        listener(clock) as fake,
        registered(clock, fake.address, compressedRegister="true") as world,
    ):
        request = fake.requests[0]
        assert request.body is not None
        assert request.body[0] == 0x78
        header = decode_ext(RegisterBrokerRequestHeader, request.ext)
        assert header.compressed
        assert header.body_crc32 == register_body_crc(request.body)
        assert sorted(fake.topics(0)) == sorted(t.topic_name for t in world.topics)


async def test_a_slow_name_server_gets_one_request_at_a_time_and_delays_no_other(
    clock: VirtualClock,
) -> None:
    async with listener(clock) as slow, listener(clock) as quick:
        addresses = f"{slow.address};{quick.address}"
        async with registered(clock, addresses) as world:
            slow.gate.clear()
            world.create("T")
            await clock.drain()
            for name in ("U", "V", "W"):
                world.create(name)
                await clock.drain()
            assert [slow.topics(i) for i in range(1, len(slow.requests))] == [["T"]]
            assert [quick.topics(i) for i in range(1, 5)] == [["T"], ["U"], ["V"], ["W"]]
            slow.gate.set()
            await clock.drain()
            assert slow.topics(2) == ["U", "V", "W"]
            assert slow.body(2).topic_config_serialize_wrapper.data_version == world.topics.version


async def test_no_announcement_claims_changes_that_it_lacks(clock: VirtualClock) -> None:
    """A name server of Apache ignores a change whose version it believes to know."""
    async with listener(clock) as fake, registered(clock, fake.address) as world:
        for name in ("T", "U", "V"):
            world.create(name)  # before anything was sent
        await clock.drain()
        counters = [
            fake.body(n).topic_config_serialize_wrapper.data_version.counter for n in range(3)
        ]
        assert [fake.topics(1), fake.topics(2)] == [["T"], ["U", "V"]]
        assert counters == [0, 1, 3]


async def test_a_caller_can_wait_until_its_change_is_announced(clock: VirtualClock) -> None:
    async with (
        listener(clock) as slow,
        listener(clock) as quick,
        registered(clock, f"{slow.address};{quick.address};{DEAD}") as world,
    ):
        registration = world.registration
        await registration.announced()  # nothing to wait for, not even for the dead one
        slow.gate.clear()
        world.create("T")
        first = asyncio.create_task(registration.announced())
        given_up = asyncio.create_task(registration.announced())
        await clock.drain()
        given_up.cancel()
        world.create("U")
        second = asyncio.create_task(registration.announced())
        await clock.drain()
        assert [first.done(), second.done()] == [False, False]
        slow.gate.set()
        await first  # although U is still to come
        assert slow.topics(1) == ["T"]
        await second
        assert slow.topics(2) == ["U"]


async def test_the_stop_ends_all_waits(clock: VirtualClock) -> None:
    async with listener(clock) as slow, registered(clock, slow.address) as world:
        slow.gate.clear()
        world.create("T")
        waiting = asyncio.create_task(world.registration.announced())
        await clock.drain()
        slow.gate.set()
        await world.registration.stop()
        await waiting
        await world.registration.announced()


async def test_no_answer_within_the_timeout_is_a_failure(clock: VirtualClock) -> None:
    async with listener(clock) as fake:
        fake.gate.clear()
        world = World(clock, fake.address, registerBrokerTimeoutMills="5000")
        await world.registration.start()
        announced = asyncio.create_task(world.registration.announced())
        await clock.advance(4.9)
        assert world.registration.states == {fake.address: None}
        assert announced.done()  # nobody waits so long
        await clock.advance(0.2)
        assert world.registration.states == {fake.address: False}
        fake.gate.set()
        await clock.advance(1)
        assert world.registration.states == {fake.address: True}
        await world.registration.stop()
        await world.client.close()


async def test_a_refused_topic_brings_the_whole_table(clock: VirtualClock) -> None:
    async with listener(clock) as fake, registered(clock, fake.address) as world:
        refusal = Command(code=1, remark="register broker failed", ext={})
        fake.answers[RequestCode.REGISTER_BROKER] = refusal
        world.create("T")
        await clock.drain()
        assert fake.topics(1) == ["T"]
        assert len(fake.topics(2)) == len(world.topics)


async def test_without_force_only_changes_are_registered(clock: VirtualClock) -> None:
    async with (
        listener(clock) as fake,
        registered(clock, fake.address, forceRegister="false") as world,
    ):
        known = Command(code=0, ext={"changed": "false"}, body=encode_body(DataVersion()))
        fake.answers[RequestCode.QUERY_DATA_VERSION] = known
        await clock.advance(41)
        assert fake.codes == [103, 322, 322]
        assert decode_body(DataVersion, fake.requests[1].body or b"") == world.topics.version
        for doubt in (
            Command(code=0, ext={"changed": "true"}),
            Command(code=1, remark="?"),
            Command(code=0, ext={}),
        ):
            fake.requests.clear()
            fake.answers[RequestCode.QUERY_DATA_VERSION] = doubt
            await clock.advance(30)
            assert fake.codes == [322, 103]


async def test_a_slave_registers_without_force_too_for_it_learns_who_its_master_is(
    clock: VirtualClock,
) -> None:
    settings = {"forceRegister": "false", "brokerRole": "SLAVE", "brokerId": "1"}
    async with listener(clock) as fake:
        fake.answers[RequestCode.REGISTER_BROKER] = Command(
            code=0, ext={"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
        )
        known = Command(code=0, ext={"changed": "false"}, body=encode_body(DataVersion()))
        fake.answers[RequestCode.QUERY_DATA_VERSION] = known
        async with registered(clock, fake.address, **settings) as slave:
            assert slave.registration.master == MasterAddress("10.0.0.1:10911", "10.0.0.1:10912")
            fake.answers[RequestCode.REGISTER_BROKER] = Command(
                code=0, ext={"masterAddr": "10.0.0.2:10911", "haServerAddr": "10.0.0.2:10912"}
            )
            await clock.advance(41)
            assert slave.registration.master == MasterAddress("10.0.0.2:10911", "10.0.0.2:10912")
            assert set(fake.codes) == {103}


async def test_single_topics_may_be_registered_by_a_request_of_their_own(
    clock: VirtualClock,
) -> None:
    settings = {"enableSingleTopicRegister": "true", "brokerPermission": "4"}
    async with listener(clock) as fake, registered(clock, fake.address, **settings) as world:
        world.create("T")
        await clock.drain()
        request = fake.requests[1]
        assert request.code == RequestCode.REGISTER_TOPIC_IN_NAMESRV
        assert request.ext == {"topic": "T"}
        (queues,) = decode_body(TopicRouteData, request.body or b"").queue_datas
        assert (queues.broker_name, queues.write_queue_nums, queues.perm) == ("broker-a", 2, 4)


async def test_a_huge_table_goes_in_parts(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.broker.topics.registration.TOPICS_PER_REQUEST_MAX", 5)
    async with listener(clock) as fake, registered(clock, fake.address) as world:
        parts = [fake.topics(i) for i in range(len(fake.requests))]
        assert [len(part) for part in parts[:-1]] == [5] * (len(parts) - 1)
        assert [name for part in parts for name in part] == [t.topic_name for t in world.topics]


@pytest.mark.parametrize(
    "answer",
    [
        Command(code=0, ext={}, body=b"{"),
        Command(code=0, ext={}, body=b'{"table":{"a":[]}}'),
        Command(code=1),
    ],
)
async def test_a_strange_answer_is_a_failure_like_any_other(
    clock: VirtualClock, answer: Command
) -> None:
    async with listener(clock) as fake:
        fake.answers[RequestCode.REGISTER_BROKER] = answer
        async with registered(clock, fake.address) as world:
            assert world.registration.states == {fake.address: False}
            fake.answers[RequestCode.REGISTER_BROKER] = Command(
                code=0, ext={}, body=encode_body(KVTable(table={"no such topic": "x"}))
            )
            await clock.advance(1)
            assert world.registration.states == {fake.address: True}


async def test_without_name_servers_nothing_happens(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with registered(clock, "") as world:
        world.create("T")
        await clock.advance(60)
        assert world.registration.states == {}
        await world.registration.register_all()
    assert [
        r.levelname for r in caplog.records if r.name == "skylark.broker.topics.registration"
    ] == ["WARNING"]
