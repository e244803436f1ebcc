"""The body by which a broker registers its topics with a name server (103).

Two forms travel under the same code. The plain one is the JSON of :class:`RegisterBrokerBody`. The
compressed one is a single zlib stream of::

    i32 length, DataVersion as JSON
    i32 number of topics, each: i32 length, the topic's text form
    i32 length, filter servers as a JSON array
    i32 number of mappings, each: i32 length, TopicQueueMappingInfo as JSON     (5.0 and later)

The header field ``compressed`` does not distinguish them: current brokers send ``false`` even when
they compressed. The first byte does, ``{`` or 0x78.

Brokers before 3.0.11 (and those that claim version 0) send a bare table of topics instead.

Counterpart of Java's ``RegisterBrokerBody``.
"""

from __future__ import annotations

import struct
import zlib
from typing import ClassVar, Final

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.core.hashing import body_crc
from skylark.wire.bodies.common_body import Body, DataVersion
from skylark.wire.bodies.config import TopicConfig, TopicQueueMappingInfo
from skylark.wire.bodies.slave_sync_body import (
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from skylark.wire.codes import CURRENT_VERSION, V3_0_11, V5_0_0
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fastjson_reader import SIZE_MAX

#: A stream that inflates to more is refused. 64 MiB hold about half a million topics.
INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024

_LENGTH = struct.Struct(">i")
_ZLIB_MAGIC: Final = b"\x78"  # deflate, window of 32 KiB: what Java's Deflater begins with


class RegisterBrokerBody(Body, kw_only=True):
    """Body of REGISTER_BROKER (103): the topics of a broker, with one DataVersion for all."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = msgspec.field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = msgspec.field(default_factory=list)


def register_body_crc(data: bytes) -> int:
    """The header field ``bodyCrc32``: over the body as sent, that is compressed or not."""
    return body_crc(data)


def decode_register_body(
    data: bytes | None, *, version: int, compressed: bool = False
) -> RegisterBrokerBody:
    """Read the body of a registration sent by a broker of the given version.

    ``compressed`` is the header field; it matters only to insist on the compressed form. Without
    a body there are no topics, and the version is all zeros.
    """
    if not data:
        return RegisterBrokerBody()
    if version < V3_0_11:
        old = decode_body(TopicConfigSerializeWrapper, data)
        return RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
                topic_config_table=old.topic_config_table, data_version=old.data_version
            )
        )
    if compressed or data.startswith(_ZLIB_MAGIC):
        return _decode_inflated(_inflate(data), with_mappings=version >= V5_0_0)
    return decode_body(RegisterBrokerBody, data)


def encode_register_body(
    body: RegisterBrokerBody, *, compress: bool = False, version: int = CURRENT_VERSION
) -> bytes:
    """The body as a broker of the given version sends it."""
    if not compress:
        return encode_body(body)
    wrapper = body.topic_config_serialize_wrapper
    parts = [_prefixed(encode_body(wrapper.data_version))]
    parts.append(_LENGTH.pack(len(wrapper.topic_config_table)))
    parts.extend(
        _prefixed(topic.to_text().encode("utf-8", "replace"))
        for topic in wrapper.topic_config_table.values()
    )
    parts.append(_prefixed(encode_body(body.filter_server_list)))
    if version >= V5_0_0:
        mappings = wrapper.topic_queue_mapping_info_map
        parts.append(_LENGTH.pack(len(mappings)))
        parts.extend(_prefixed(encode_body(mapping)) for mapping in mappings.values())
    return zlib.compress(b"".join(parts), 9)


def _prefixed(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, INFLATED_SIZE_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"the registration is not a zlib stream: {error}") from error
    if not inflater.eof:
        raise RemoteProtocolError(
            "the compressed registration is cut short, or larger than"
            f" {INFLATED_SIZE_MAX} bytes when inflated"
        )
    return inflated


def _decode_inflated(data: bytes, *, with_mappings: bool) -> RegisterBrokerBody:
    reader = _Reader(data)
    wrapper = TopicConfigAndMappingSerializeWrapper(
        data_version=decode_body(DataVersion, reader.chunk())
    )
    for _ in range(reader.count()):
        topic = TopicConfig.from_text(reader.text())
        wrapper.topic_config_table[topic.topic_name] = topic
    filter_servers = decode_body(list[str], reader.chunk())
    for _ in range(reader.count() if with_mappings else 0):
        mapping = decode_body(TopicQueueMappingInfo, reader.chunk())
        wrapper.topic_queue_mapping_info_map[mapping.topic] = mapping
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=wrapper, filter_server_list=filter_servers
    )


class _Reader:
    """Takes length-prefixed pieces off the inflated registration."""

    __slots__ = ("_data", "_pos")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def count(self) -> int:
        """A number of pieces; each of them has at least a length."""
        count = self._int()
        if not 0 <= count <= (len(self._data) - self._pos) // _LENGTH.size:
            raise RemoteProtocolError(f"a registration with {count} entries")
        return count

    def chunk(self) -> bytes:
        size = self._int()
        end = self._pos + size
        if size < 0 or end > len(self._data):
            raise RemoteProtocolError(f"a piece of {size} bytes leaves the registration")
        chunk = self._data[self._pos : end]
        self._pos = end
        return chunk

    def text(self) -> str:
        try:
            return self.chunk().decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a topic of the registration: {error}") from error

    def _int(self) -> int:
        if self._pos + _LENGTH.size > len(self._data):
            raise RemoteProtocolError("the registration ends too early")
        (value,) = _LENGTH.unpack_from(self._data, self._pos)
        self._pos += _LENGTH.size
        return int(value)
