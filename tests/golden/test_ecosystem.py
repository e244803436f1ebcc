"""Requests on which programs for Apache's broker met another answer, beside its answers.

``data/ecosystem/java-5.5.0.jsonl`` holds frames that were sent to a broker of RocketMQ 5.5.0 with
``brokerIP1=127.0.0.3``, and its answers. The same frames are sent to a broker of ours. Remarks of
Java that only name a place in its source are not compared.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.core.config import parse_properties
from skylark.core.names import SPARK_PRODUCER_GROUP
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.heartbeat import HeartbeatData, ProducerData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.frame import decode_frame, encode_frame
from tests.support.namesrv_peers import RawPeer, raw_peer
from tests.unit.broker.stored import texts

RECORDED: Final = {
    line["name"]: (
        base64.b64decode(line["request"]),
        decode_frame(base64.b64decode(line["answer"])),
    )
    for line in map(
        json.loads,
        (Path(__file__).parent / "data" / "ecosystem" / "java-5.5.0.jsonl")
        .read_text()
        .splitlines(),
    )
}
ACCESS_CONTROL: Final = [
    name for name in RECORDED if name.endswith(("user", "users", "acl", "acls"))
]
MALFORMED_TEXT: Final = [name for name in RECORDED if name.startswith("utf-8")]


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[RawPeer]:
    """A connection to a broker."""
    broker = Broker(load_broker_config(texts(tmp_path, brokerIP1="127.0.0.3", listenPort="0")))
    await broker.start()
    try:
        async with raw_peer(broker.address) as peer:
            yield peer
    finally:
        await broker.stop()


async def replayed(peer: RawPeer, name: str) -> Command:
    """Our answer to a recorded request."""
    await peer.send_bytes(RECORDED[name][0])
    return await peer.receive()


# --- lite topics ---


async def test_a_topic_may_have_the_type_of_lite_topics(peer: RawPeer) -> None:
    assert (await replayed(peer, "lite-topic")).code == RECORDED["lite-topic"][1].code == 0
    config = decode_body(TopicConfig, (await replayed(peer, "lite-topic-config")).body or b"")
    assert config == decode_body(TopicConfig, RECORDED["lite-topic-config"][1].body or b"")
    assert config.attributes == {"message.type": "LITE"}


async def test_another_type_is_refused_with_the_list_of_java(peer: RawPeer) -> None:
    answer, recorded = (
        await replayed(peer, "unknown-message-type"),
        RECORDED["unknown-message-type"][1],
    )
    assert (answer.code, answer.remark) == (recorded.code, recorded.remark)


# --- internal producers ---


@pytest.mark.parametrize("name", ["producers-of-an-idle-broker", "producers-of-spark"])
async def test_a_resolver_without_work_is_not_listed(peer: RawPeer, name: str) -> None:
    beat = HeartbeatData(
        client_id="10.0.0.1@1",
        producer_data_set=[ProducerData(group_name=SPARK_PRODUCER_GROUP)],
    )
    heartbeat = Command(code=RequestCode.HEART_BEAT, body=encode_body(beat), opaque=1)
    assert (await peer.call(heartbeat)).code == 0
    answer, recorded = await replayed(peer, name), RECORDED[name][1]
    assert (answer.code, answer.remark or "", answer.body or b"") == (
        recorded.code,
        recorded.remark or "",
        recorded.body or b"",
    )


# --- access control ---


@pytest.mark.parametrize("name", ACCESS_CONTROL)
async def test_access_control_is_not_configured(peer: RawPeer, name: str) -> None:
    answer = await replayed(peer, name)
    assert answer.code == RECORDED[name][1].code == 1
    assert (answer.remark or "").startswith("AUTH_")


# --- settings ---


async def test_settings_have_a_home_and_the_own_address_for_slaves(peer: RawPeer) -> None:
    """With only brokerIP1 set, Java keeps the address that it found by itself as brokerIP2."""
    answer = await peer.call(Command(code=RequestCode.GET_BROKER_CONFIG, opaque=1))
    settings = parse_properties(answer.body or b"")
    assert settings["rocketmqHome"]
    assert (settings["brokerIP1"], settings["brokerIP2"]) == ("127.0.0.3", "127.0.0.1")


# --- malformed text ---


@pytest.mark.parametrize("name", MALFORMED_TEXT)
async def test_malformed_text_in_a_binary_header_is_answered(peer: RawPeer, name: str) -> None:
    await replayed(peer, "lite-topic")
    answer, recorded = await replayed(peer, name), RECORDED[name][1]
    assert (answer.code, answer.opaque) == (recorded.code, recorded.opaque)
    if recorded.ext is not None:
        assert (answer.ext or {})["offset"] == recorded.ext["offset"]
    assert (await replayed(peer, "lite-topic-config")).code == 0


async def test_malformed_text_in_a_json_header_is_answered(peer: RawPeer) -> None:
    """Java closes the connection."""
    request = Command(code=RequestCode.GET_MAX_OFFSET, ext={"topic": "?", "queueId": "0"}, opaque=5)
    frame = encode_frame(request)
    await peer.send_bytes(frame.replace(b'"?"', b'"\xff"'))
    assert (await peer.receive()).opaque == 5
