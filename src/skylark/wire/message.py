"""The commit-log record: a message as it is stored, replicated and pulled.

:mod:`skylark.wire.layout` has the bytes. A record is written once, by the broker that stores it,
and travels unchanged after that: pull answers and replicas are slices of the log. So this module
packs straight into the mapped file (:func:`pack_record_into`) and decodes from any buffer, one
record at a time; :mod:`skylark.wire.record_scan` does it for many at once and must agree.

All reasons why a record is invalid are in one list, :class:`RecordFault`, in the order of the
checks. Every length is limited by the buffer: nothing is allocated for a size that does not fit.
Text is decoded as Java does, malformed UTF-8 as U+FFFD, so that one odd property does not make a
message unreadable; the raw bytes stay available.

Hosts are packed bytes (address, then port in 4 bytes), because that is what a connection computes
once and every record repeats.

Counterpart of Java's ``MessageExtEncoder``, ``MessageDecoder`` and the record check of
``CommitLog``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from ipaddress import ip_address
from typing import TypeAlias
from zlib import crc32

import msgspec

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.core.hashing import encode_offset_id
from skylark.wire.batch import split_batch
from skylark.wire.compress import INFLATED_SIZE_MAX, decompress_body
from skylark.wire.layout import (
    BLANK_RECORD,
    BLANK_SIZE_MIN,
    FLAG_COMPRESSED,
    FLAG_HOSTS_V6_MASK,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC_SIZE,
    RECORD_HEAD_SIZE,
    RECORD_HEADS,
    RECORD_SIZE_MIN,
    TOPIC_LENGTH_V1,
    TOPIC_SIZE_V1_MAX,
    TOPIC_SIZE_V2_MAX,
)
from skylark.wire.properties import PROPERTY_CRC32, parse_properties, without_property

ReadBuffer: TypeAlias = bytes | bytearray | memoryview
WriteBuffer: TypeAlias = bytearray | memoryview  # of bytes: format "B"

_CRC_NAME = PROPERTY_CRC32.encode()
_CRC_PREFIX = _CRC_NAME + b"\x01"
assert len(_CRC_PREFIX) + 11 == PROPERTY_CRC_SIZE


# ---- hosts ---------------------------------------------------------------------------------------

_PORT = struct.Struct(">i")


def pack_host(ip: bytes | str, port: int) -> bytes:
    """A host as records hold it: 8 bytes for an IPv4 address, 20 for IPv6."""
    return (ip if isinstance(ip, bytes) else ip_address(ip).packed) + _PORT.pack(port)


def format_host(host: bytes) -> str:
    """``ip:port`` as Java prints it: IPv6 in eight plain groups, without brackets."""
    (port,) = _PORT.unpack_from(host, len(host) - 4)
    if len(host) == HOST_V4_SIZE:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{port}"
    return f"{':'.join([f'{group:x}' for group in struct.unpack_from('>8H', host)])}:{port}"


# ---- faults --------------------------------------------------------------------------------------


class RecordFault(Enum):
    """Why bytes are not a record, in the order of checking."""

    BLANK = "a blank: the rest of the file is unused"
    TORN = "the buffer ends within the record"
    UNWRITTEN = "zeros: nothing was written here"
    BAD_MAGIC = "no known magic code"
    BAD_SIZE = "impossible total size"
    BAD_LENGTHS = "the sum of the parts is not the total size"
    BAD_LOG_OFFSET = "the record belongs to another offset"
    BAD_BODY_CRC = "the body does not match its checksum"
    BAD_PROPERTY_CRC = "the record does not match the checksum in its properties"


class Verify(Enum):
    """Which checksum a reader recomputes."""

    BODY = "body"  #: checkCRCOnRecover
    PROPERTY = "property"  #: forceVerifyPropCRC: the whole record but the checksum itself


class RecordError(RemoteProtocolError):
    """The bytes at ``position`` are not a valid record."""

    def __init__(self, fault: RecordFault, position: int) -> None:
        super().__init__(f"no record at position {position}: {fault.value}")
        self.fault = fault
        self.position = position


# ---- decoding ------------------------------------------------------------------------------------


class MessageRecord(msgspec.Struct, gc=False, eq=False):
    """One record. ``body`` is as stored: see :func:`inflate_record` and :func:`unwrap_record`."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    raw_properties: bytes
    _parsed: dict[str, str] | None = None  # what ``properties`` returns, once asked for

    @property
    def properties(self) -> dict[str, str]:
        """All properties, parsed on first use; changing the dict does not change the record."""
        properties = self._parsed
        if properties is None:
            properties = self._parsed = parse_properties(self.raw_properties)
        return properties

    @property
    def offset_id(self) -> str:
        """The id under which the broker finds this record again."""
        return encode_offset_id(self.store_host, self.log_offset)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageRecord):
            return NotImplemented
        return msgspec.structs.astuple(self)[:-1] == msgspec.structs.astuple(other)[:-1]

    __hash__ = None  # type: ignore[assignment]


_unpack_head_v4 = RECORD_HEADS[0].unpack_from


def decode_record(
    buffer: ReadBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    verify: Verify | None = None,
    log_start: int | None = None,
) -> MessageRecord:
    """Decode the record at ``position``; :class:`RecordError` if there is none.

    ``end`` bounds the buffer. ``log_start`` is the log offset of the buffer's first byte: with it,
    the offset in the record must be its own. The next record follows ``total_size`` later.
    """
    if end is None:
        end = len(buffer)
    if end - position < RECORD_SIZE_MIN:
        raise _error(buffer, position, end)
    (total_size, magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag,
     born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
     prepared_transaction_offset, body_size) = _unpack_head_v4(buffer, position)  # fmt: skip
    body_start = position + RECORD_HEAD_SIZE
    if sys_flag & FLAG_HOSTS_V6_MASK:
        head = RECORD_HEADS[(sys_flag & FLAG_HOSTS_V6_MASK) >> 4]
        body_start = position + head.size
        if body_start > end:
            raise _error(buffer, position, end)
        (born_host, store_timestamp, store_host, reconsume_times, prepared_transaction_offset,
         body_size) = head.unpack_from(buffer, position)[9:]  # fmt: skip
    record_end = position + total_size
    body_end = body_start + body_size
    if record_end > end or body_size < 0 or body_end + 3 > record_end:
        raise _error(buffer, position, end)
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        topic_size = buffer[body_end]
        topic_size_max = TOPIC_SIZE_V1_MAX
    elif magic == MAGIC_V2:
        topic_start = body_end + 2
        topic_size = buffer[body_end] << 8 | buffer[body_end + 1]
        topic_size_max = TOPIC_SIZE_V2_MAX
    else:
        raise _error(buffer, position, end)
    topic_end = topic_start + topic_size
    properties_start = topic_end + 2
    properties_size = record_end - properties_start
    if topic_size > topic_size_max or not 0 <= properties_size <= PROPERTIES_SIZE_MAX:
        raise _error(buffer, position, end)
    if buffer[topic_end] << 8 | buffer[topic_end + 1] != properties_size:
        raise _error(buffer, position, end)
    if log_start is not None and log_offset != log_start + position:
        raise RecordError(RecordFault.BAD_LOG_OFFSET, position)
    if verify is not None:
        _verify(buffer, position, record_end, body_start, body_end, body_crc, verify)
    if type(buffer) is bytes:  # a slice is a copy already
        body = buffer[body_start:body_end]
        topic = buffer[topic_start:topic_end]
        properties = buffer[properties_start:record_end]
    else:
        body = bytes(buffer[body_start:body_end])
        topic = bytes(buffer[topic_start:topic_end])
        properties = bytes(buffer[properties_start:record_end])
    return MessageRecord(
        total_size, magic, body_crc, queue_id, flag, queue_offset, log_offset, sys_flag,
        born_timestamp, born_host, store_timestamp, store_host, reconsume_times,
        prepared_transaction_offset, body, topic.decode("utf-8", "replace"), properties,
    )  # fmt: skip


def _error(buffer: ReadBuffer, position: int, end: int) -> RecordError:
    """Name what is wrong with a record that is known not to decode."""
    return RecordError(_fault(buffer, position, end), position)


def _fault(buffer: ReadBuffer, position: int, end: int) -> RecordFault:
    remaining = end - position
    if remaining < BLANK_SIZE_MIN:
        return RecordFault.TORN
    total_size, magic = BLANK_RECORD.unpack_from(buffer, position)
    if total_size == 0 and magic == 0:
        return RecordFault.UNWRITTEN
    if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return RecordFault.BAD_MAGIC
    if total_size < (BLANK_SIZE_MIN if magic == MAGIC_BLANK else RECORD_SIZE_MIN):
        return RecordFault.BAD_SIZE
    if total_size > remaining:
        return RecordFault.TORN
    return RecordFault.BLANK if magic == MAGIC_BLANK else RecordFault.BAD_LENGTHS


def _verify(
    buffer: ReadBuffer,
    position: int,
    record_end: int,
    body_start: int,
    body_end: int,
    body_crc: int,
    verify: Verify,
) -> None:
    view = memoryview(buffer)
    if verify is Verify.BODY:
        if body_end > body_start and crc32(view[body_start:body_end]) & 0x7FFF_FFFF != body_crc:
            raise RecordError(RecordFault.BAD_BODY_CRC, position)
    else:
        crc_start = record_end - PROPERTY_CRC_SIZE
        actual = crc32(view[position:crc_start]) & 0x7FFF_FFFF
        if view[crc_start:record_end] != _property_crc(actual):
            raise RecordError(RecordFault.BAD_PROPERTY_CRC, position)


def iter_records(
    buffer: ReadBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    verify: Verify | None = None,
    log_start: int | None = None,
) -> Iterator[MessageRecord]:
    """Decode record after record up to ``end``, skipping blanks.

    Bytes that are not a record raise :class:`RecordError`; its ``position`` and ``fault`` give a
    recovery the end of the log and the reason.
    """
    if end is None:
        end = len(buffer)
    while position < end:
        try:
            record = decode_record(buffer, position, end, verify=verify, log_start=log_start)
        except RecordError as error:
            if error.fault is not RecordFault.BLANK:
                raise
            position += BLANK_RECORD.unpack_from(buffer, position)[0]
        else:
            yield record
            position += record.total_size


# ---- consumers -----------------------------------------------------------------------------------


def inflate_record(record: MessageRecord, *, size_max: int = INFLATED_SIZE_MAX) -> None:
    """Replace a compressed body by the inflated one and clear the bit that marks it."""
    if record.sys_flag & FLAG_COMPRESSED:
        record.body = decompress_body(record.body, record.sys_flag, size_max=size_max)
        record.sys_flag &= ~FLAG_COMPRESSED


def unwrap_record(record: MessageRecord) -> list[MessageRecord]:
    """The messages in an inner batch, or the record itself if it is not one.

    The body must be inflated. Each part has its own body, flag and properties and the next queue
    offset; it has no size, checksum or offset id, because nothing is stored for it.
    """
    needed = FLAG_NEED_UNWRAP | FLAG_INNER_BATCH
    if record.sys_flag & needed != needed:
        return [record]
    return [
        msgspec.structs.replace(
            record,
            total_size=0,
            body_crc=0,
            reconsume_times=0,
            prepared_transaction_offset=0,
            flag=message.flag,
            body=message.body,
            raw_properties=message.properties,
            _parsed=None,
            queue_offset=record.queue_offset + index,
        )
        for index, message in enumerate(split_batch(record.body, size_max=len(record.body)))
    ]


# ---- encoding ------------------------------------------------------------------------------------


def record_size(
    topic_size: int, body_size: int, properties_size: int, hosts_size: int = 2 * HOST_V4_SIZE
) -> int:
    """Bytes of a record; ``hosts_size`` counts both hosts."""
    size = RECORD_SIZE_MIN - 2 * HOST_V4_SIZE + hosts_size + topic_size + body_size
    return size + properties_size + (topic_size > TOPIC_SIZE_V1_MAX)


def pack_record_into(
    buffer: WriteBuffer,
    position: int,
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    log_offset: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
) -> int:
    """Write a record at ``position`` of a mapped file or other buffer; return its size.

    The bits for IPv6 hosts are set from the hosts, the version from the length of the topic.
    ``properties`` is raw; pass it through :func:`reserve_property_crc` first and call
    :func:`seal_property_crc` afterwards where property checksums are wanted.
    """
    topic_size = len(topic)
    body_size = len(body)
    properties_size = len(properties)
    if topic_size <= TOPIC_SIZE_V1_MAX:
        magic = MAGIC_V1
        topic_length = TOPIC_LENGTH_V1.pack(topic_size)
    else:
        magic = MAGIC_V2
        topic_length = _pack_length("topic", topic_size)
    hosts = (len(born_host) == HOST_V6_SIZE) | (len(store_host) == HOST_V6_SIZE) << 1
    head = RECORD_HEADS[hosts]
    body_start = position + head.size
    body_end = body_start + body_size
    end = body_end + len(topic_length) + topic_size + 2 + properties_size
    if end > len(buffer):
        raise LocalProtocolError(f"a record of {end - position} bytes does not fit")
    tail = (topic_length, topic, _pack_length("properties", properties_size), properties)
    head.pack_into(
        buffer,
        position,
        end - position,
        magic,
        crc32(body) & 0x7FFF_FFFF if body_crc is None else body_crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag & ~FLAG_HOSTS_V6_MASK | hosts << 4,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    )
    buffer[body_start:body_end] = body
    buffer[body_end:end] = b"".join(tail)
    return end - position


def _pack_length(what: str, size: int) -> bytes:
    if size > PROPERTIES_SIZE_MAX:
        raise LocalProtocolError(f"{what} of {size} bytes exceed {PROPERTIES_SIZE_MAX}")
    return PROPERTIES_LENGTH.pack(size)


def encode_record(
    topic: str | bytes,
    body: bytes,
    properties: bytes = b"",
    *,
    queue_id: int = 0,
    queue_offset: int = 0,
    log_offset: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = bytes(HOST_V4_SIZE),
    store_timestamp: int = 0,
    store_host: bytes = bytes(HOST_V4_SIZE),
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
    property_crc: bool = False,
) -> bytes:
    """One record as a byte string; see :func:`pack_record_into`."""
    if isinstance(topic, str):
        topic = topic.encode("utf-8", "replace")
    if property_crc:
        properties = reserve_property_crc(properties)
    hosts_size = len(born_host) + len(store_host)
    buffer = bytearray(record_size(len(topic), len(body), len(properties), hosts_size))
    size = pack_record_into(
        buffer,
        0,
        topic,
        body,
        properties,
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        flag=flag,
        sys_flag=sys_flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        body_crc=body_crc,
    )
    assert size == len(buffer)
    if property_crc:
        seal_property_crc(buffer, 0, size)
    return bytes(buffer)


def reserve_property_crc(properties: bytes) -> bytes:
    """``properties`` without an old checksum and with room for a new one at their end."""
    properties = without_property(properties, _CRC_NAME)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties + bytes(PROPERTY_CRC_SIZE)


def seal_property_crc(buffer: WriteBuffer, position: int, size: int) -> None:
    """Write the checksum over a finished record of ``size`` bytes into its reserved place."""
    crc_start = position + size - PROPERTY_CRC_SIZE
    crc = crc32(memoryview(buffer)[position:crc_start]) & 0x7FFF_FFFF
    buffer[crc_start : crc_start + PROPERTY_CRC_SIZE] = _property_crc(crc)


def _property_crc(crc: int) -> bytes:
    # Java appends digit after digit from the right: the least significant one comes first.
    return _CRC_PREFIX + f"{crc:010d}"[::-1].encode() + b"\x02"
