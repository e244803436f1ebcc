"""What each request to the name server does, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from skylark.core.errors import ConfigError
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.net.limits import NetLimits
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import DataVersion, KVTable, TopicList
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.route_body import ClusterInfo, QueueData, TopicRouteData
from skylark.wire.bodies.slave_sync_body import TopicConfigSerializeWrapper
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.frame import FrameBuffer, encode_frame
from tests.support.namesrv_peers import (
    BROKER_ADDR,
    RawPeer,
    raw_peer,
    register_request,
    request,
    route_request,
    serving,
)

# --- registration -------------------------------------------------------------------------------


@pytest.mark.spec("remoting.10.16")
async def test_checksum_of_a_registration(peer: RawPeer) -> None:
    good = register_request("T", "U")
    assert good.ext is not None
    crc = int(good.ext["bodyCrc32"])
    answer = await peer.call(register_request("T", "U", body_crc32=crc + 1))
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert (await peer.call(route_request("T"))).code == 17
    assert (await peer.call(register_request("T", "U", body_crc32=0))).code == 0
    assert (await peer.call(route_request("T"))).code == 0


@pytest.mark.spec("remoting.10.16")
@pytest.mark.parametrize("said", [True, False])
async def test_compressed_registration(peer: RawPeer, said: bool) -> None:
    asked = register_request("T", "U", compress=True, compressed=said)
    assert (asked.body or b"")[:1] == b"\x78"
    assert (await peer.call(asked)).code == 0
    topics = decode_body(TopicList, (await peer.call(request(206))).body or b"")
    assert topics.topic_list == ["T", "U"]


@pytest.mark.spec("remoting.10.16")
async def test_a_broker_without_version_registers_a_bare_table(server: NameServer) -> None:
    asked = register_request("T", "U")
    async with raw_peer(server.address) as peer:
        await peer.send_bytes(encode_frame(asked))  # version 0, yet the new form of body
        assert (await peer.receive()).code == 0
        assert (await peer.call(route_request("T"))).code == 17
        table = TopicConfigSerializeWrapper(
            topic_config_table={name: TopicConfig(topic_name=name) for name in ("T", "U")},
            data_version=DataVersion(counter=1),
        )
        old = register_request(body=encode_body(table))
        await peer.send_bytes(encode_frame(old))
        assert (await peer.receive()).code == 0
        assert (await peer.call(route_request("T"))).code == 0


async def test_a_registration_without_body_has_no_topics(peer: RawPeer) -> None:
    assert (await peer.call(register_request(body=b"", body_crc32=0))).code == 0
    assert (await peer.call(request(206))).body == b'{"topicList":[]}'
    info = decode_body(ClusterInfo, (await peer.call(request(106))).body or b"")
    assert info.cluster_addr_table == {"c": ["b"]}


@pytest.mark.parametrize("body", [b"{", b"\x78garbage", b"[]", b'{"filterServerList":1}'])
async def test_a_damaged_registration_is_refused(peer: RawPeer, body: bytes) -> None:
    answer = await peer.call(register_request(body=body))
    assert answer.code == 1
    assert answer.remark
    assert (await peer.call(request(106))).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


@pytest.mark.spec("broker.13.2")
async def test_a_single_topic_before_and_after_the_whole_table(peer: RawPeer) -> None:
    answer = await peer.call(register_request("new", counter=2))
    assert (answer.code, answer.remark, answer.ext) == (1, "register broker failed", {})
    assert (await peer.call(register_request("T", "U", counter=1))).code == 0
    # announced while the broker registered for the first time, and not lost
    assert (await peer.call(route_request("new"))).code == 0
    assert (await peer.call(register_request("new", counter=2))).code == 0
    await peer.call(register_request("T", "U", counter=2, broker_id=1, broker_name="x"))
    await peer.call(register_request("T", "U", counter=2, broker_id=0, broker_name="x"))
    group = await peer.call(request(901, {"clusterName": "c", "brokerName": "x"}))
    assert group.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"x","cluster":"c"}}'
    )


async def test_a_slave_learns_its_master(peer: RawPeer) -> None:
    assert (await peer.call(register_request("T", "U"))).ext == {}
    slave = register_request("T", "U", broker_id=1, broker_addr="10.0.0.2:10911")
    assert (await peer.call(slave)).ext == {
        "haServerAddr": "10.0.0.1:10912",
        "masterAddr": BROKER_ADDR,
    }


async def test_limits_are_answered_by_code_1() -> None:
    async with (
        serving(topic_count_max=1, broker_count_max=1) as server,
        raw_peer(server.address) as peer,
    ):
        answer = await peer.call(register_request("T", "U"))
        assert answer.code == 1
        assert answer.remark == (
            "1 topics left out: the name server knows 1, the limit: raise topicCountMax"
        )
        assert (await peer.call(route_request("T"))).code == 0
        other = register_request("T", "U", broker_name="other", broker_addr="o:1")
        answer = await peer.call(other)
        assert (answer.code, answer.remark) == (
            1,
            "the name server knows 1 brokers, the limit: raise brokerCountMax",
        )


async def test_data_version_query(peer: RawPeer) -> None:
    ext = {"clusterName": "c", "brokerAddr": BROKER_ADDR, "brokerName": "b", "brokerId": "0"}
    body = encode_body(DataVersion(counter=1, timestamp=1_700_000_000_001))
    answer = await peer.call(request(322, ext, body))
    assert (answer.code, answer.ext, answer.body) == (0, {"changed": "true"}, None)
    await peer.call(register_request("T", "U", counter=1))
    answer = await peer.call(request(322, ext, body))
    assert (answer.code, answer.ext, answer.body) == (0, {"changed": "false"}, body)


# --- routes and topics --------------------------------------------------------------------------


async def test_waiting_for_service() -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    server = NameServer(NamesrvConfig(need_wait_for_service=True), network=network, clock=clock)
    client = RemotingClient(network, clock)
    await server.start()
    await client.call("127.0.0.1:9876", register_request("T", "U"))
    answer = await client.call("127.0.0.1:9876", route_request("T"))
    assert (answer.code, answer.remark) == (1, "name server not ready")
    await clock.advance(45)
    assert (await client.call("127.0.0.1:9876", route_request("T"))).code == 0
    await client.close()
    await server.stop()


async def test_zone_of_a_client(peer: RawPeer) -> None:
    for name, zone in (("east-b", "east"), ("west-b", "west")):
        asked = register_request(
            "T", "U", broker_name=name, broker_addr=f"{name}:1", zone_name=zone
        )
        assert (await peer.call(asked)).code == 0
    for ext, expected in (
        ({}, ["east-b", "west-b"]),
        ({"__ZONE_NAME": "EAST"}, ["east-b", "west-b"]),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": " "}, ["east-b", "west-b"]),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": "EAST"}, ["east-b"]),
    ):
        answer = await peer.call(route_request("T", **ext))
        route = decode_body(TopicRouteData, answer.body or b"")
        assert [data.broker_name for data in route.broker_datas] == expected


async def test_own_brokers_get_the_address_by_which_we_were_reached() -> None:
    server = NameServer(NamesrvConfig(listen_port=0), own_brokers={"b"})
    await server.start()
    async with raw_peer(server.address) as peer:
        await peer.call(register_request("T", "U"))
        route = decode_body(TopicRouteData, (await peer.call(route_request("T"))).body or b"")
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
        system = decode_body(TopicList, (await peer.call(request(304))).body or b"")
        assert system.broker_addr == "127.0.0.1:10911"
    await server.stop()


@pytest.mark.spec("broker.13.3")
async def test_write_permission_taken_and_given_back(peer: RawPeer) -> None:
    async def perm() -> int:
        answer = await peer.call(route_request("T"))
        return decode_body(TopicRouteData, answer.body or b"").queue_datas[0].perm

    await peer.call(register_request("T", "U", counter=1))
    answer = await peer.call(request(205, {"brokerName": "b"}))
    assert (answer.code, answer.ext, await perm()) == (0, {"wipeTopicCount": "2"}, 4)
    await peer.call(register_request("T", "U", counter=1))
    assert await perm() == 4
    await peer.call(register_request("T", "U", counter=2))
    assert await perm() == 6
    await peer.call(request(205, {"brokerName": "b"}))
    answer = await peer.call(request(327, {"brokerName": "b"}))
    assert (answer.code, answer.ext, await perm()) == (0, {"addTopicCount": "2"}, 6)


async def test_topic_lists(peer: RawPeer) -> None:
    await peer.call(register_request("T", "U"))

    async def topics(code: int, ext: dict[str, str] | None = None) -> TopicList:
        answer = await peer.call(request(code, ext))
        assert answer.code == 0
        return decode_body(TopicList, answer.body or b"")

    assert (await topics(206)).topic_list == ["T", "U"]
    assert (await topics(224, {"cluster": "c"})).topic_list == ["T", "U"]
    assert (await topics(224, {"cluster": "unknown"})).topic_list == []
    system = await topics(304)
    assert (system.topic_list, system.broker_addr) == (["b", "c"], BROKER_ADDR)
    flags = (("none", 0), ("unit", 1), ("sub", 2), ("both", 3))
    for topic, flag in flags:
        route = TopicRouteData(queue_datas=[QueueData(broker_name="b", topic_sys_flag=flag)])
        await peer.call(request(217, {"topic": topic}, encode_body(route)))
    assert (await topics(311)).topic_list == ["both", "unit"]
    assert (await topics(312)).topic_list == ["both", "sub"]
    assert (await topics(313)).topic_list == ["sub"]


async def test_topic_lists_can_be_switched_off() -> None:
    async with (
        serving(enable_all_topic_list=False, enable_topic_list=False) as server,
        raw_peer(server.address) as peer,
    ):
        for code in (206, 224, 311, 312, 313):
            answer = await peer.call(request(code, {"cluster": "c"}))
            assert (answer.code, answer.remark) == (1, "disable")


async def test_single_topics_come_and_go(peer: RawPeer) -> None:
    await peer.call(register_request("T", "U"))
    route = TopicRouteData(queue_datas=[QueueData(broker_name="b", perm=6)])
    assert (await peer.call(request(217, {"topic": "V"}, encode_body(route)))).code == 0
    assert (await peer.call(route_request("V"))).code == 0
    assert (await peer.call(request(217, {"topic": "W"}))).code == 0
    assert (await peer.call(route_request("W"))).code == 17
    for ext in ({"topic": "V", "clusterName": "c"}, {"topic": "T"}, {"topic": "never there"}):
        assert (await peer.call(request(216, ext))).code == 0
    assert (await peer.call(request(206))).body == b'{"topicList":["U"]}'


async def test_a_missing_field_is_named(peer: RawPeer) -> None:
    answer = await peer.call(request(205))
    assert (answer.code, answer.remark) == (1, "the custom field <brokerName> is null")
    answer = await peer.call(request(105))  # as Java answers
    assert answer.code == 17
    assert (answer.remark or "").startswith(
        "No topic route info in name server for the topic: null"
    )


# --- KV table and settings ----------------------------------------------------------------------


async def test_kv_table_is_kept_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
    async with (
        serving(kv_config_path=path, order_message_enable=True) as server,
        raw_peer(server.address) as peer,
    ):
        miss = await peer.call(request(101, entry))
        assert (miss.code, miss.remark) == (
            22,
            "No config item, Namespace: ORDER_TOPIC_CONFIG Key: T",
        )
        assert (await peer.call(request(219, entry))).code == 22
        assert (await peer.call(register_request("T", "U"))).body is None
        assert (await peer.call(request(100, {**entry, "value": "b:4"}))).code == 0
        assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4"}}}'
        assert (await peer.call(request(101, entry))).ext == {"value": "b:4"}
        # brokers and clients see it
        table = (await peer.call(register_request("T", "U"))).body
        assert decode_body(KVTable, table or b"").table == {"T": "b:4"}
        route = decode_body(TopicRouteData, (await peer.call(route_request("T"))).body or b"")
        assert route.order_topic_conf == "b:4"
    async with serving(kv_config_path=path) as server, raw_peer(server.address) as peer:
        listed = await peer.call(request(219, entry))
        assert (listed.code, listed.body) == (0, b'{"table":{"T":"b:4"}}')
        assert (await peer.call(request(102, entry))).code == 0
        assert (await peer.call(request(102, entry))).code == 0
        assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{}}}'


async def test_order_is_not_given_to_brokers_when_switched_off() -> None:
    async with (
        serving(return_order_topic_config_to_broker=False) as server,
        raw_peer(server.address) as peer,
    ):
        entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:4"}
        assert (await peer.call(request(100, entry))).code == 0
        assert (await peer.call(register_request("T", "U"))).body is None


async def test_a_kv_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{broken")
    server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=path))
    with pytest.raises(ConfigError, match="kvConfigPath"):
        await server.start()


async def test_a_change_that_cannot_be_saved_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device")

    config = NamesrvConfig(listen_port=0, kv_config_path=tmp_path / "kv.json")
    server = NameServer(config, replace=fail)
    await server.start()
    async with raw_peer(server.address) as peer:
        entry = {"namespace": "n", "key": "k", "value": "v"}
        answer = await peer.call(request(100, entry))
        assert answer.code == 1
        assert "holds until restart" in (answer.remark or "")
        assert "No space left on device" in (answer.remark or "")
        assert (await peer.call(request(101, entry))).ext == {"value": "v"}
    await server.stop()
    assert "only until restart" in caplog.text


async def test_settings_are_shown_changed_and_saved(tmp_path: Path) -> None:
    path = tmp_path / "ns.conf"
    path.write_text("# ours\nserverWorkerThreads = 4\n")
    async with serving(config_store_path=path) as server, raw_peer(server.address) as peer:
        shown = (await peer.call(request(319))).body or b""
        assert b"\nenableTopicList=true\n" in shown
        answer = await peer.call(request(318, body=b"enableTopicList=false\nunknownKey=1\n"))
        assert answer.code == 0
        assert server.config.enable_topic_list is False
        assert b"\nenableTopicList=false\n" in ((await peer.call(request(319))).body or b"")
        assert (await peer.call(request(224, {"cluster": "c"}))).code == 1
        assert path.read_text() == "# ours\nserverWorkerThreads = 4\nenableTopicList=false\n"
        assert (await peer.call(request(318))).code == 0


async def test_routes_follow_changed_settings(server: NameServer, peer: RawPeer) -> None:
    asked = register_request("T", "U", broker_id=1, enable_acting_master=True)
    await peer.call(asked)

    async def ids() -> list[int]:
        answer = await peer.call(route_request("T"))
        return list(decode_body(TopicRouteData, answer.body or b"").broker_datas[0].broker_addrs)

    assert await ids() == [1]
    await peer.call(request(318, body=b"supportActingMaster=true"))
    assert await ids() == [0]


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"kvConfigPath=/x\nenableTopicList=false", 16, "Can not update config in black list."),
        (b"rocketmqHome=/x", 16, "Can not update config in black list."),
        (b"listenPort=many", 1, "1 setting is wrong: listenPort: 'many' is not an integer"),
        (b"a=\\uZZZZ", 1, "properties text, line 1: \\u without four hexadecimal digits"),
    ],
)
async def test_settings_that_cannot_be_changed(
    server: NameServer, peer: RawPeer, body: bytes, code: int, remark: str
) -> None:
    before = server.config
    answer = await peer.call(request(318, body=body))
    assert (answer.code, answer.remark) == (code, remark)
    assert server.config == before


# --- fairness -----------------------------------------------------------------------------------


class Asking(asyncio.Protocol):
    """Counts its answers, and does something at each."""

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self.answer_count = 0
        self._on_answer = on_answer
        self._frames = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        for _ in self._frames.feed(data):
            self.answer_count += 1
            self._on_answer()


async def test_a_client_that_asks_for_10_000_routes_does_not_hold_up_another() -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock, window_size=4 << 20, reads_per_turn=32)
    server = NameServer(NamesrvConfig(), network=network, clock=clock)
    await server.start()
    host, port = server.address
    client = RemotingClient(network, clock)
    topics = [f"T{number}" for number in range(100)]
    assert (await client.call(str(server.address), register_request(*topics))).code == 0
    question = encode_frame(route_request("T1"))
    answered: list[int] = []  # to the busy client, at each answer to the quiet one

    def ask_again() -> None:
        answered.append(busy.answer_count)
        if busy.answer_count < 10_000:
            asks.write(question)

    floods, busy = await network.connect(
        lambda: Asking(lambda: None), host, port, timeout_s=1, clock=clock
    )
    asks, _ = await network.connect(lambda: Asking(ask_again), host, port, timeout_s=1, clock=clock)
    floods.write(b"".join(encode_frame(route_request(f"T{n % 100}")) for n in range(10_000)))
    asks.write(question)
    await clock.drain()
    assert busy.answer_count == 10_000
    # A question and its answer take four turns of this network, in each of which the other one
    # gets its share.
    steps = [after - before for before, after in pairwise(answered)]
    assert len(steps) >= 30
    assert max(steps) <= 6 * NetLimits().frames_per_turn_max
    for transport in (floods, asks):
        transport.close()
    await client.close()
    await clock.drain()
    await server.stop()
