"""Registrations: plain, compressed, old, damaged (the codec half of remoting 10.16)."""

from __future__ import annotations

import struct
import zlib

import pytest

from skylark.core.errors import RemoteProtocolError
from skylark.wire.bodies import register
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig, TopicQueueMappingInfo
from skylark.wire.bodies.register import (
    RegisterBrokerBody,
    decode_register_body,
    encode_register_body,
    register_body_crc,
)
from skylark.wire.bodies.slave_sync_body import (
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from skylark.wire.fastjson import encode_body


def registration() -> RegisterBrokerBody:
    topics = [
        TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4),
        TopicConfig(topic_name="U", perm=7, attributes={"message.type": "FIFO"}),
    ]
    mapping = TopicQueueMappingInfo(topic="S", bname="b", total_queues=2, curr_id_map={0: 1})
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
            topic_config_table={topic.topic_name: topic for topic in topics},
            data_version=DataVersion(counter=3, timestamp=9),
            topic_queue_mapping_info_map={"S": mapping},
        ),
        filter_server_list=["f:1"],
    )


def pieces(*parts: bytes | int) -> bytes:
    """A compressed registration of counts and length-prefixed pieces."""
    raw = b"".join(
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part
        for part in parts
    )
    return zlib.compress(raw)


def test_plain_form() -> None:
    data = encode_register_body(registration())
    assert data.startswith(b'{"filterServerList":["f:1"],"topicConfigSerializeWrapper":{')
    assert decode_register_body(data, version=513) == registration()


@pytest.mark.parametrize("flag", [True, False])
def test_compressed_form_with_and_without_the_flag(flag: bool) -> None:
    data = encode_register_body(registration(), compress=True)
    assert data[0] == 0x78
    assert decode_register_body(data, version=513, compressed=flag) == registration()


def test_the_pieces_of_the_compressed_form() -> None:
    inflated = zlib.decompress(encode_register_body(registration(), compress=True))
    version = b'{"counter":3,"stateVersion":0,"timestamp":9}'
    assert inflated.startswith(struct.pack(">i", len(version)) + version + struct.pack(">i", 2))
    assert b"T 4 4 6 SINGLE_TAG {}" in inflated
    assert b'U 16 16 7 SINGLE_TAG {"message.type":"FIFO"}' in inflated
    assert b'\0\0\0\x07["f:1"]\0\0\0\x01' in inflated


def test_brokers_before_5_0_send_no_mappings() -> None:
    data = encode_register_body(registration(), compress=True, version=409)
    found = decode_register_body(data, version=409)
    assert found.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}
    assert list(found.topic_config_serialize_wrapper.topic_config_table) == ["T", "U"]
    with pytest.raises(RemoteProtocolError, match="too early"):
        decode_register_body(data, version=413)


def test_brokers_before_3_0_11_send_a_bare_table() -> None:
    topics = {"T": TopicConfig(topic_name="T")}
    data = encode_body(
        TopicConfigSerializeWrapper(topic_config_table=topics, data_version=DataVersion(counter=2))
    )
    wrapper = decode_register_body(data, version=36).topic_config_serialize_wrapper
    assert wrapper.topic_config_table == topics
    assert wrapper.data_version == DataVersion(counter=2)
    assert decode_register_body(data, version=37) == RegisterBrokerBody()


def test_version_0_with_a_new_body_has_no_topics() -> None:
    found = decode_register_body(encode_register_body(registration()), version=0)
    assert found == RegisterBrokerBody()


@pytest.mark.parametrize("data", [None, b""])
def test_no_body(data: bytes | None) -> None:
    found = decode_register_body(data, version=513)
    assert found.topic_config_serialize_wrapper.topic_config_table == {}
    assert found.topic_config_serialize_wrapper.data_version == DataVersion()


def test_checksum_is_over_the_body_as_sent() -> None:
    assert register_body_crc(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    data = encode_register_body(registration(), compress=True)
    assert register_body_crc(data) == zlib.crc32(data) & 0x7FFFFFFF


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"\x78\xda garbage",
        pieces(),
        pieces(b"{}")[:-3],
        pieces(b"no json", 0, b"[]", 0),
        pieces(b"{}", -1, b"[]", 0),
        pieces(b"{}", 2**31 - 1),
        pieces(b"{}", 1, b"T 4 4 6", b"[]", 0),
        pieces(b"{}", 1, b"\xff 4 4 6 SINGLE_TAG", b"[]", 0),
        pieces(b"{}", 0, b"{}", 0),
        pieces(b"{}", 0, b"[]", 1),
        pieces(b"{}", 0, b"[]", 1, b"[]"),
        zlib.compress(struct.pack(">i", -5)),
        zlib.compress(struct.pack(">i", 100) + b"short"),
    ],
)
def test_damaged_registrations(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_register_body(data, version=513)


def test_the_flag_insists_on_the_compressed_form() -> None:
    with pytest.raises(RemoteProtocolError, match="zlib"):
        decode_register_body(encode_register_body(registration()), version=513, compressed=True)


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pieces(b" " * 10_000 + b"{}", 0, b"[]", 0)
    assert decode_register_body(data, version=513) == RegisterBrokerBody()
    monkeypatch.setattr(register, "INFLATED_SIZE_MAX", 10_000)
    with pytest.raises(RemoteProtocolError, match="larger than 10000"):
        decode_register_body(data, version=513)
