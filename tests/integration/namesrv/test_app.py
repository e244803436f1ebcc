"""A real name server on a loopback port: its life, and the protocol as seen from outside."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from skylark.core.clock import LoopClock
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.dispatch import Dispatcher
from skylark.net.transport import PortInUseError
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.route_body import ClusterInfo
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, SERIALIZE_BINARY, SerializeType
from skylark.wire.fastjson import decode_body
from tests.support.loops import on_both_loops
from tests.support.namesrv_peers import (
    BROKER_ADDR,
    RawPeer,
    ask_route,
    calling,
    open_peer,
    raw_peer,
    register_request,
    request,
    route_request,
    serving,
    until_connections,
)

NO_ROUTE = "No topic route info in name server for the topic: "


# --- life ---------------------------------------------------------------------------------------


@on_both_loops
async def test_register_ask_and_leave() -> None:
    async with serving() as server, calling(server) as (client, address):
        assert server.address.host == "127.0.0.1"
        async with raw_peer(server.address) as broker:
            assert (await broker.call(register_request("T", "U"))).code == 0
            route = await ask_route(client, address, "T")
            assert route is not None
            assert route.broker_datas[0].broker_addrs == {0: BROKER_ADDR}
        async with LoopClock().timeout(10):
            while await ask_route(client, address, "T") is not None:
                await LoopClock().sleep(0.01)


async def test_a_port_in_use_is_an_error(server: NameServer) -> None:
    second = NameServer(NamesrvConfig(listen_port=server.address.port))
    with pytest.raises(PortInUseError, match=f"cannot listen on {server.address}"):
        await second.start()


async def test_the_port_is_free_after_stop() -> None:
    async with serving() as first:
        port = first.address.port
    second = NameServer(NamesrvConfig(listen_port=port))
    await second.start()
    await second.stop()


async def test_start_logs_which_machines_can_connect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serving() as server:
            (record,) = [each for each in caplog.records if each.name == "skylark.namesrv.app"]
            assert record.levelno == logging.INFO
            assert record.getMessage() == (
                f"name server listens on {server.address}, this machine only (bindAddress)"
            )


async def test_a_wide_address_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    config = NamesrvConfig(bind_address="0.0.0.0")
    server = NameServer(config, network=MemoryNetwork(clock=clock), clock=clock)
    await server.start()
    await server.stop()
    (record,) = [each for each in caplog.records if each.name == "skylark.namesrv.app"]
    assert record.levelno == logging.WARNING
    assert "open to other machines without access control" in record.getMessage()


async def test_metrics_by_http() -> None:
    async with serving(metrics_port=0) as server:
        assert server.metrics_address is not None
        reader, writer = await asyncio.open_connection(*server.metrics_address)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        async with LoopClock().timeout(10):
            text = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert text.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\nskylark_namesrv_topics 0\n" in text


async def test_a_failed_start_leaves_nothing_behind(server: NameServer) -> None:
    second = NameServer(NamesrvConfig(listen_port=server.address.port, metrics_port=0))
    with pytest.raises(PortInUseError):
        await second.start()
    with pytest.raises(RuntimeError, match="not started"):
        _ = second.metrics_address


async def test_metrics(server: NameServer, peer: RawPeer) -> None:
    await peer.call(register_request("T", "U"))
    await peer.call(route_request("T"))
    await peer.call(route_request("V"))
    lines = server.metrics.render().splitlines()
    for line in (
        'skylark_namesrv_requests_total{request="REGISTER_BROKER",code="0"} 1',
        'skylark_namesrv_requests_total{request="GET_ROUTEINFO_BY_TOPIC",code="0"} 1',
        'skylark_namesrv_requests_total{request="GET_ROUTEINFO_BY_TOPIC",code="17"} 1',
        "skylark_namesrv_brokers 1",
        "skylark_namesrv_topics 2",
        "skylark_namesrv_connections 1",
        "skylark_namesrv_removals_waiting 0",
    ):
        assert line in lines


@pytest.mark.spec("broker.13.1")
async def test_the_other_connection_of_a_broker_does_not_matter(server: NameServer) -> None:
    async with calling(server) as (client, address):
        broker = await open_peer(server.address)
        await broker.call(register_request("T", "U"))
        async with raw_peer(server.address) as other:
            await other.call(request(106))
        await until_connections(server, 1)
        await client.call(address, request(106))
        assert await ask_route(client, address, "T") is not None
        await broker.close()
        await until_connections(server, 1)  # the client's
        assert await ask_route(client, address, "T") is None


def test_the_handlers_are_those_that_the_catalogue_lists() -> None:
    asked = {code for code, row in CATALOGUE.items() if "N" in row.receivers}
    dispatcher = Dispatcher()
    NameServer().handlers.add_to(dispatcher)
    assert dispatcher.codes == asked


# --- the protocol, seen from outside ------------------------------------------------------------


@pytest.mark.spec("remoting.10.4")
async def test_unknown_codes_and_stray_responses(peer: RawPeer) -> None:
    answer = await peer.call(request(9999))
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")
    oneway = request(9999)
    oneway.flag, oneway.opaque = FLAG_ONEWAY, 1
    stray = request(105, {"topic": "T"})
    stray.flag, stray.opaque = FLAG_RESPONSE, 2
    await peer.send(oneway)
    await peer.send(stray)
    # The next frame is the answer to what is sent now: nothing came for the two before.
    after = request(106)
    after.opaque = 3
    assert (await peer.call(after)).code == 0


@pytest.mark.spec("remoting.10.5")
@pytest.mark.parametrize("opaque", [-5, 2_147_483_647, -2_147_483_648, 0])
async def test_opaque_comes_back(peer: RawPeer, opaque: int) -> None:
    asked = request(106)
    asked.opaque = opaque
    assert (await peer.call(asked)).opaque == opaque


@pytest.mark.spec("remoting.10.6")
@pytest.mark.parametrize("asked_in", [0, SERIALIZE_BINARY])
@pytest.mark.parametrize("configured", SerializeType)
async def test_the_answer_has_the_configured_type(asked_in: int, configured: SerializeType) -> None:
    async with (
        serving(serialize_type=configured) as server,
        raw_peer(server.address) as peer,
    ):
        asked = request(106)
        asked.serialize_type = asked_in
        answer = await peer.call(asked)
        assert answer.serialize_type == configured.value
        assert answer.version == 513


@pytest.mark.spec("remoting.10.7")
async def test_loose_headers_are_served_and_answers_are_strict(peer: RawPeer) -> None:
    await peer.call(register_request("T", "U"))
    header = json.dumps(
        {
            "code": 205,
            "extFields": {"brokerName": "b", "queueId": 0, "flag": True, "nothing": None},
            "language": "FOO",
            "opaque": 7,
        }
    ).encode()
    frame = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
    await peer.send_bytes(frame)
    received = await peer.receive_bytes()
    assert received[4] == SerializeType.JSON.value
    header_size = int.from_bytes(received[5:8])
    assert len(received) == 8 + header_size  # no body
    text = received[8:]
    members = json.loads(text)
    assert (members["code"], members["opaque"], members["flag"]) == (0, 7, 1)
    assert members["extFields"] == {"wipeTopicCount": "2"}
    assert b"null" not in text
    assert None not in members.values()


@pytest.mark.spec("remoting.10.8")
async def test_a_code_cut_to_16_bits_is_unknown(peer: RawPeer) -> None:
    asked = request(3442)  # what is left of 200050 in the binary header
    asked.serialize_type = SERIALIZE_BINARY
    answer = await peer.call(asked)
    assert (answer.code, answer.remark) == (3, " request type 3442 not supported")


@pytest.mark.spec("remoting.10.10")
@pytest.mark.parametrize(
    ("version", "ext", "standard"),
    [
        (399, {}, False),
        (399, {"acceptStandardJsonOnly": "true"}, True),
        (401, {}, True),
        (513, {}, True),
    ],
)
async def test_route_dialect_by_version(
    peer: RawPeer, version: int, ext: dict[str, str], standard: bool
) -> None:
    await peer.call(register_request("T", "U"))
    asked = route_request("T", **ext)
    asked.version = version
    body = (await peer.call(asked)).body or b""
    assert (b'{"0":"' in body) is standard
    assert (b'{0:"' in body) is not standard
    assert b" " not in body
    if standard:
        assert json.loads(body)["brokerDatas"][0]["brokerAddrs"] == {"0": BROKER_ADDR}
    missing = route_request("missing")
    missing.version = version
    answer = await peer.call(missing)
    assert answer.code == 17
    assert (answer.remark or "").startswith(f"{NO_ROUTE}missing\nSee https://")


@pytest.mark.spec("remoting.10.11")
async def test_cluster_information_has_bare_keys_for_everybody(server: NameServer) -> None:
    async with calling(server) as (client, address):
        await client.call(address, register_request("T", "U"))
        answer = await client.call(address, request(106))
        body = answer.body or b""
        assert b'{0:"' in body
        info = decode_body(ClusterInfo, body)
        assert info.broker_addr_table["b"].broker_addrs == {0: BROKER_ADDR}
        assert info.cluster_addr_table == {"c": ["b"]}


async def test_shutdown_does_not_wait_for_idle_connections() -> None:
    async with serving() as server, raw_peer(server.address) as idle:
        await idle.call(request(106))
        async with LoopClock().timeout(2):
            await server.stop()
        assert await idle.is_at_end()
