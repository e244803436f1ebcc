"""The record: known bytes, versions, hosts, checksums, and what is refused."""

from __future__ import annotations

import struct

import msgspec
import pytest

from skylark.core.errors import LocalProtocolError
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.compress import COMPRESSION_ZLIB, compress_body, compression_flags
from skylark.wire.layout import (
    BLANK_RECORD,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from skylark.wire.message import (
    MessageRecord,
    ReadBuffer,
    RecordError,
    RecordFault,
    Verify,
    decode_record,
    encode_record,
    format_host,
    inflate_record,
    iter_records,
    pack_host,
    pack_record_into,
    record_size,
    unwrap_record,
)

BORN_HOST = pack_host("127.0.0.1", 50000)
STORE_HOST = pack_host("127.0.0.1", 10911)
V6_HOST = pack_host("2001:db8::1", 50000)
TAGS = b"TAGS\x01TagA\x02"
HELLO = bytes.fromhex(
    "00000073daa320a777d18982000000010000000000000000000000070000000000000000000000000000018b"
    "cfe568007f0000010000c3500000018bcfe5687b7f00000100002a9f00000000000000000000000000000005"
    "48656c6c6f09546f70696354657374000a54414753015461674102"
)


def hello(
    *,
    born_host: bytes = BORN_HOST,
    store_host: bytes = STORE_HOST,
    property_crc: bool = False,
    properties: bytes = TAGS,
) -> bytes:
    return encode_record(
        "TopicTest",
        b"Hello",
        properties,
        queue_id=1,
        queue_offset=7,
        born_timestamp=1_700_000_000_000,
        born_host=born_host,
        store_timestamp=1_700_000_000_123,
        store_host=store_host,
        property_crc=property_crc,
    )


@pytest.mark.spec("store.12.1")
def test_the_record_of_the_specification() -> None:
    assert hello() == HELLO
    record = decode_record(HELLO)
    assert record == MessageRecord(
        total_size=115,
        magic=MAGIC_V1,
        body_crc=0x77D18982,
        queue_id=1,
        flag=0,
        queue_offset=7,
        log_offset=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        born_host=BORN_HOST,
        store_timestamp=1_700_000_000_123,
        store_host=STORE_HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"Hello",
        topic="TopicTest",
        raw_properties=TAGS,
    )
    assert record.properties == {"TAGS": "TagA"}
    assert record.properties is record.properties
    assert record.offset_id == "7F00000100002A9F0000000000000000"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_decodes_to_the_same_record(kind: type[ReadBuffer]) -> None:
    record = decode_record(kind(b"xx" + HELLO + b"xx"), 2, 2 + len(HELLO))
    assert record == decode_record(HELLO)
    assert type(record.body) is type(record.raw_properties) is bytes


def test_packing_into_a_buffer_touches_nothing_else() -> None:
    buffer = bytearray(b"\xee" * 140)
    size = pack_record_into(
        memoryview(buffer),
        10,
        b"TopicTest",
        memoryview(b"Hello"),
        TAGS,
        queue_id=1,
        queue_offset=7,
        log_offset=0,
        born_timestamp=1_700_000_000_000,
        born_host=BORN_HOST,
        store_timestamp=1_700_000_000_123,
        store_host=STORE_HOST,
    )
    assert size == record_size(9, 5, 10) == 115
    assert buffer == b"\xee" * 10 + HELLO + b"\xee" * 15


def test_every_field_survives() -> None:
    encoded = encode_record(
        "T",
        b"",
        b"",
        queue_id=-1,
        queue_offset=1 << 62,
        log_offset=1 << 61,
        born_timestamp=-1,
        born_host=BORN_HOST,
        store_timestamp=1 << 60,
        store_host=STORE_HOST,
        flag=-2,
        sys_flag=0x7FF & ~0x30,
        reconsume_times=16,
        prepared_transaction_offset=1 << 59,
        body_crc=12345,
    )
    record = decode_record(encoded)
    assert msgspec.structs.astuple(record)[:-1] == (
        92, MAGIC_V1, 12345, -1, -2, 1 << 62, 1 << 61, 0x7CF, -1, BORN_HOST, 1 << 60, STORE_HOST,
        16, 1 << 59, b"", "T", b"",
    )  # fmt: skip


@pytest.mark.spec("store.12.4")
def test_a_born_host_with_ipv6_moves_what_follows() -> None:
    encoded = hello(born_host=V6_HOST)
    assert len(encoded) == 127
    assert encoded[36:40].hex() == "00000010"
    assert encoded[68:76] == (1_700_000_000_123).to_bytes(8, "big")
    record = decode_record(encoded)
    assert record.born_host == V6_HOST
    assert record.store_host == STORE_HOST
    assert record.store_timestamp == 1_700_000_000_123
    assert record.body == b"Hello"


@pytest.mark.parametrize(
    ("born_host", "store_host", "sys_flag", "size"),
    [
        (BORN_HOST, STORE_HOST, 0x00, 115),
        (V6_HOST, STORE_HOST, 0x10, 127),
        (BORN_HOST, V6_HOST, 0x20, 127),
        (V6_HOST, V6_HOST, 0x30, 139),
    ],
)
def test_hosts(born_host: bytes, store_host: bytes, sys_flag: int, size: int) -> None:
    encoded = hello(born_host=born_host, store_host=store_host)
    record = decode_record(encoded)
    assert len(encoded) == record.total_size == size
    assert (record.sys_flag, record.born_host, record.store_host) == (
        sys_flag,
        born_host,
        store_host,
    )
    assert record.topic == "TopicTest"


def test_hosts_as_text() -> None:
    assert format_host(STORE_HOST) == "127.0.0.1:10911"
    assert format_host(V6_HOST) == "2001:db8:0:0:0:0:0:1:50000"
    assert pack_host(bytes((127, 0, 0, 1)), 10911) == STORE_HOST


@pytest.mark.parametrize(
    ("topic_size", "magic", "length"), [(127, MAGIC_V1, "7f"), (128, MAGIC_V2, "0080")]
)
def test_long_topics_make_a_record_of_version_two(topic_size: int, magic: int, length: str) -> None:
    topic = "%RETRY%" + "g" * (topic_size - 7)
    encoded = encode_record(topic, b"Hello", TAGS)
    assert len(encoded) == record_size(topic_size, 5, 10)
    assert encoded[93 : 93 + len(length) // 2].hex() == length
    record = decode_record(encoded)
    assert (record.magic, record.topic, record.properties) == (magic, topic, {"TAGS": "TagA"})


def test_limits_of_what_can_be_encoded() -> None:
    assert decode_record(encode_record("t", b"", bytes(32767))).raw_properties == bytes(32767)
    assert decode_record(encode_record(b"t" * 32767, b"")).topic == "t" * 32767
    with pytest.raises(LocalProtocolError, match="properties of 32768 bytes exceed 32767"):
        encode_record("t", b"", bytes(32768))
    with pytest.raises(LocalProtocolError, match="topic of 32768 bytes exceed 32767"):
        encode_record(b"t" * 32768, b"")
    with pytest.raises(LocalProtocolError, match="does not fit"):
        pack_record_into(
            bytearray(114), 0, b"TopicTest", b"Hello", TAGS,
            queue_id=0, queue_offset=0, log_offset=0, born_timestamp=0, born_host=BORN_HOST,
            store_timestamp=0, store_host=STORE_HOST,
        )  # fmt: skip


def test_malformed_text_does_not_make_a_record_unreadable() -> None:
    record = decode_record(encode_record(b"\xffT", b"", b"a\x01\xff\x02"))
    assert record.topic == "\ufffdT"
    assert record.properties == {"a": "\ufffd"}
    assert record.raw_properties == b"a\x01\xff\x02"


# ---- checksums -----------------------------------------------------------------------------------


@pytest.mark.spec("store.12.3")
def test_property_crc() -> None:
    encoded = hello(property_crc=True)
    assert len(encoded) == 135
    assert encoded[103:105] == (30).to_bytes(2, "big")
    assert encoded[115:] == b"__CRC32#\x016305304021\x02"
    assert decode_record(encoded, verify=Verify.PROPERTY).properties["__CRC32#"] == "6305304021"
    changed = encoded.replace(b"TopicTest", b"TopicTesu")
    assert decode_record(changed, verify=Verify.BODY).topic == "TopicTesu"
    with pytest.raises(RecordError) as raised:
        decode_record(changed, verify=Verify.PROPERTY)
    assert raised.value.fault is RecordFault.BAD_PROPERTY_CRC


@pytest.mark.parametrize(
    "properties",
    [
        TAGS[:-1],  # no last separator
        b"__CRC32#\x010000000000\x02" + TAGS,
        TAGS + b"__CRC32#\x011\x02",
    ],
)
def test_property_crc_replaces_an_old_one(properties: bytes) -> None:
    assert hello(property_crc=True, properties=properties) == hello(property_crc=True)


def test_property_crc_without_other_properties() -> None:
    record = decode_record(hello(property_crc=True, properties=b""), verify=Verify.PROPERTY)
    assert len(record.raw_properties) == 20
    assert list(record.properties) == ["__CRC32#"]


def test_a_missing_property_crc_is_a_fault_where_one_is_required() -> None:
    with pytest.raises(RecordError) as raised:
        decode_record(HELLO, verify=Verify.PROPERTY)
    assert raised.value.fault is RecordFault.BAD_PROPERTY_CRC


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_body_crc(kind: type[ReadBuffer]) -> None:
    damaged = kind(HELLO.replace(b"Hello", b"Hallo"))
    assert decode_record(damaged).body == b"Hallo"
    assert decode_record(kind(HELLO), verify=Verify.BODY).body == b"Hello"
    with pytest.raises(RecordError) as raised:
        decode_record(damaged, verify=Verify.BODY)
    assert (raised.value.fault, raised.value.position) == (RecordFault.BAD_BODY_CRC, 0)


def test_an_empty_body_has_no_checksum_to_break() -> None:
    encoded = encode_record("t", b"", body_crc=99)
    assert decode_record(encoded, verify=Verify.BODY).body_crc == 99


def test_the_log_offset_must_be_the_position() -> None:
    log = encode_record("t", b"", log_offset=1000) + encode_record("t", b"", log_offset=1092)
    assert [record.log_offset for record in iter_records(log, log_start=1000)] == [1000, 1092]
    with pytest.raises(RecordError) as raised:
        decode_record(log, 92, log_start=1001)
    assert (raised.value.fault, raised.value.position) == (RecordFault.BAD_LOG_OFFSET, 92)


# ---- faults --------------------------------------------------------------------------------------


def patched(position: int, layout: str, value: int, record: bytes = HELLO) -> bytes:
    raw = bytearray(record)
    struct.pack_into(layout, raw, position, value)
    return bytes(raw)


@pytest.mark.parametrize(
    ("buffer", "fault"),
    [
        (b"", RecordFault.TORN),
        (HELLO[:7], RecordFault.TORN),
        (HELLO[:8], RecordFault.TORN),
        (HELLO[:114], RecordFault.TORN),
        (bytes(200), RecordFault.UNWRITTEN),
        (bytes(8), RecordFault.UNWRITTEN),
        (patched(4, ">i", 0), RecordFault.BAD_MAGIC),
        (patched(4, ">i", MAGIC_V1 + 1), RecordFault.BAD_MAGIC),
        (patched(0, ">i", 90), RecordFault.BAD_SIZE),
        (patched(0, ">i", -1), RecordFault.BAD_SIZE),
        (patched(0, ">i", 0), RecordFault.BAD_SIZE),
        (patched(0, ">i", 116), RecordFault.TORN),
        (patched(0, ">i", 0x7FFF_FFFF), RecordFault.TORN),
        (patched(0, ">i", 114), RecordFault.BAD_LENGTHS),
        (patched(84, ">i", -1), RecordFault.BAD_LENGTHS),
        (patched(84, ">i", 6), RecordFault.BAD_LENGTHS),
        (patched(84, ">i", 0x7FFF_FFFF), RecordFault.BAD_LENGTHS),
        (patched(93, ">b", -128), RecordFault.BAD_LENGTHS),
        (patched(93, ">b", 10), RecordFault.BAD_LENGTHS),
        (patched(103, ">h", -1), RecordFault.BAD_LENGTHS),
        (patched(103, ">h", 9), RecordFault.BAD_LENGTHS),
        (patched(4, ">i", MAGIC_V2), RecordFault.BAD_LENGTHS),
        (patched(36, ">i", 0x30), RecordFault.BAD_LENGTHS),
        (patched(36, ">i", 0x30, encode_record("t", b"")), RecordFault.BAD_LENGTHS),
        (BLANK_RECORD.pack(8, MAGIC_BLANK), RecordFault.BLANK),
        (BLANK_RECORD.pack(200, MAGIC_BLANK) + bytes(192), RecordFault.BLANK),
        (BLANK_RECORD.pack(201, MAGIC_BLANK) + bytes(192), RecordFault.TORN),
        (BLANK_RECORD.pack(7, MAGIC_BLANK) + bytes(192), RecordFault.BAD_SIZE),
    ],
)
def test_faults(buffer: bytes, fault: RecordFault) -> None:
    for variant in (buffer, memoryview(buffer)):
        with pytest.raises(RecordError) as raised:
            decode_record(variant)
        assert raised.value.fault is fault
    with pytest.raises(RecordError, match="position 3") as raised:
        decode_record(b"xyz" + buffer, 3)
    assert raised.value.fault is fault


def test_a_topic_longer_than_a_signed_byte_is_no_topic() -> None:
    """A length of 128 in a record of version one is -128 to Java."""
    long = encode_record("t" * 127, b"")
    broken = patched(88, ">B", 128, patched(0, ">i", len(long) + 1, long)) + b"\x00"
    with pytest.raises(RecordError) as raised:
        decode_record(broken)
    assert raised.value.fault is RecordFault.BAD_LENGTHS


# ---- several records -----------------------------------------------------------------------------


def test_blanks_are_skipped() -> None:
    blank = BLANK_RECORD.pack(50, MAGIC_BLANK) + b"\xff" * 42
    log = HELLO + blank + hello(born_host=V6_HOST) + BLANK_RECORD.pack(8, MAGIC_BLANK)
    assert [record.total_size for record in iter_records(log)] == [115, 127]
    assert [record.total_size for record in iter_records(log, 115)] == [127]
    assert [record.total_size for record in iter_records(log, 0, 165)] == [115]
    assert list(iter_records(b"")) == []


def test_iterating_ends_with_the_fault() -> None:
    records = iter_records(HELLO + HELLO[:50])
    assert next(records).total_size == 115
    with pytest.raises(RecordError) as raised:
        next(records)
    assert (raised.value.fault, raised.value.position) == (RecordFault.TORN, 115)


# ---- consumers -----------------------------------------------------------------------------------


def test_inflating() -> None:
    body = b"hello " * 1000
    flags = compression_flags(COMPRESSION_ZLIB)
    record = decode_record(
        encode_record("t", compress_body(body, COMPRESSION_ZLIB), sys_flag=flags | 8)
    )
    inflate_record(record)
    assert (record.body, record.sys_flag) == (body, 0x308)
    inflate_record(record)
    assert record.body == body


def test_unwrapping_an_inner_batch() -> None:
    messages = [BatchMessage(b"one", b"KEYS\x01a\x02", 5), BatchMessage(b"two", b"", -1)]
    flags = FLAG_NEED_UNWRAP | FLAG_INNER_BATCH
    record = decode_record(
        encode_record(
            "t", encode_batch(messages), TAGS, queue_offset=40, sys_flag=flags, reconsume_times=3
        )
    )
    assert record.properties == {"TAGS": "TagA"}
    parts = unwrap_record(record)
    assert [(part.body, part.properties, part.flag) for part in parts] == [
        (b"one", {"KEYS": "a"}, 5),
        (b"two", {}, -1),
    ]
    assert [part.queue_offset for part in parts] == [40, 41]
    assert {(part.total_size, part.body_crc, part.reconsume_times) for part in parts} == {(0, 0, 0)}
    assert {part.sys_flag for part in parts} == {flags}


@pytest.mark.parametrize("sys_flag", [0, FLAG_NEED_UNWRAP, FLAG_INNER_BATCH])
def test_a_record_that_is_not_an_inner_batch_stays_whole(sys_flag: int) -> None:
    record = decode_record(encode_record("t", b"xx", sys_flag=sys_flag))
    assert unwrap_record(record) == [record]


def test_records_are_equal_by_their_bytes() -> None:
    one, other = decode_record(HELLO), decode_record(HELLO)
    assert one.properties
    assert one == other
    other.queue_id = 9
    assert one != other
    assert one != "Hello"
