"""The vectorised scanner: the same records, stops and properties as the plain decoder."""

from __future__ import annotations

import random
import struct

import pytest

from skylark.wire import property_scan
from skylark.wire import record_scan as scan
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK, MAGIC_V1
from skylark.wire.message import (
    ReadBuffer,
    RecordError,
    RecordFault,
    Verify,
    encode_record,
    pack_host,
)
from skylark.wire.property_scan import scan_properties
from skylark.wire.record_scan import scan_records
from tests.support.records import assert_same, lanes_everywhere, properties_of

V4 = pack_host("127.0.0.1", 10911)
V6 = pack_host("::1", 10911)
TYPICAL = (
    b"KEYS\x01order-1\x02UNIQ_KEY\x017F000001000118B4AAC2000000000001\x02WAIT\x01true\x02"
    b"TAGS\x01TagA\x02CLUSTER\x01DefaultCluster\x02"
)
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "a", "absent")


def log_of(*records: bytes) -> bytes:
    return b"".join(records)


def record(
    index: int = 0, body: bytes = b"Hello", properties: bytes = TYPICAL, **fields: object
) -> bytes:
    return encode_record(
        "TopicTest",
        body,
        properties,
        queue_id=index % 4,
        queue_offset=index,
        born_timestamp=1_700_000_000_000 + index,
        born_host=V4,
        store_timestamp=1_700_000_000_100 + index,
        store_host=V4,
        **fields,  # type: ignore[arg-type]
    )


def test_columns() -> None:
    columns = scan_records(log_of(record(5), record(6, b"longer body")))
    assert len(columns) == 2
    assert columns.position.tolist() == [0, columns.total_size[0]]
    assert columns.magic.tolist() == [MAGIC_V1, MAGIC_V1]
    assert columns.queue_id.tolist() == [1, 2]
    assert columns.queue_offset.tolist() == [5, 6]
    assert columns.born_timestamp.tolist() == [1_700_000_000_005, 1_700_000_000_006]
    assert columns.store_timestamp.tolist() == [1_700_000_000_105, 1_700_000_000_106]
    assert columns.body_start.tolist() == [88, columns.total_size[0] + 88]
    assert columns.body_size.tolist() == [5, 11]
    assert columns.topic_size.tolist() == [9, 9]
    assert columns.properties_size.tolist() == [len(TYPICAL)] * 2
    assert (columns.end_position, columns.fault, columns.blank_count) == (
        len(columns.buffer),
        None,
        0,
    )


def test_an_empty_buffer_has_no_records() -> None:
    columns = assert_same(b"", names=NAMES)
    assert (len(columns), columns.fault) == (0, None)
    assert len(scan_properties(columns)) == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_mixed_hosts_and_versions(kind: type[ReadBuffer]) -> None:
    log = log_of(
        *[
            encode_record(topic, b"body", TYPICAL, born_host=born, store_host=store, queue_id=7)
            for topic in ("t", "%RETRY%" + "g" * 130)
            for born in (V4, V6)
            for store in (V6, V4)
        ]
    )
    columns = assert_same(kind(log), names=NAMES)
    assert len(columns) == 8
    assert columns.queue_id.tolist() == [7] * 8


def test_part_of_a_buffer() -> None:
    log = log_of(record(1), record(2), record(3))
    size = len(log) // 3
    assert assert_same(log, size).queue_offset.tolist() == [2, 3]
    assert assert_same(log, 0, 2 * size).queue_offset.tolist() == [1, 2]
    assert assert_same(log, size, 2 * size).queue_offset.tolist() == [2]


def test_blanks_are_left_out_and_counted() -> None:
    blank = BLANK_RECORD.pack(33, MAGIC_BLANK) + b"\xff" * 25
    log = log_of(record(1), blank, record(2), BLANK_RECORD.pack(8, MAGIC_BLANK))
    columns = assert_same(log)
    assert columns.queue_offset.tolist() == [1, 2]
    assert (columns.blank_count, columns.fault) == (2, None)


@pytest.mark.parametrize(
    ("tail", "fault"),
    [
        (record(3)[:7], RecordFault.TORN),
        (record(3)[:-1], RecordFault.TORN),
        (bytes(500), RecordFault.UNWRITTEN),
        (struct.pack(">ii", 100, 1) + bytes(92), RecordFault.BAD_MAGIC),
        (struct.pack(">ii", 90, MAGIC_V1) + bytes(92), RecordFault.BAD_SIZE),
        (struct.pack(">ii", 7, MAGIC_BLANK) + bytes(92), RecordFault.BAD_SIZE),
        (struct.pack(">ii", 500, MAGIC_BLANK) + bytes(92), RecordFault.TORN),
        (record(3, b"x", b"")[:36] + b"\0\0\0\x30" + record(3, b"x", b"")[40:], "lengths"),
        (record(3)[:84] + b"\xff" + record(3)[85:], "lengths"),
        (record(3)[:84] + b"\x00\x00\x00\x06" + record(3)[88:], "lengths"),
        (record(3)[:93] + b"\x80" + record(3)[94:], "lengths"),
        (record(3)[:103] + b"\xff\xff" + record(3)[105:], "lengths"),
    ],
)
def test_a_scan_stops_at_the_first_fault(tail: bytes, fault: RecordFault | str) -> None:
    expected = RecordFault.BAD_LENGTHS if fault == "lengths" else fault
    good = log_of(record(1), record(2))
    columns = assert_same(good + tail)
    assert columns.queue_offset.tolist() == [1, 2]
    assert (columns.end_position, columns.fault) == (len(good), expected)
    assert_same(good + tail + record(4))
    with pytest.raises(RecordError) as raised:
        scan_records(good + tail)
    assert (raised.value.fault, raised.value.position) == (expected, len(good))


def test_the_earliest_of_several_faults_counts() -> None:
    broken_topic = bytearray(record(2))
    broken_topic[93] = 0x80
    broken_body = bytearray(record(3))
    broken_body[84] = 0xFF
    log = log_of(record(1), bytes(broken_topic), bytes(broken_body), record(4)[:50])
    columns = assert_same(log)
    assert columns.queue_offset.tolist() == [1]
    assert columns.end_position == len(record(1))


@pytest.mark.spec("store.12.3")
def test_checksums() -> None:
    good = [record(index, property_crc=True) for index in range(4)]
    damaged = good[2].replace(b"Hello", b"Hallo")
    log = log_of(*good[:2], damaged, good[3])
    assert len(assert_same(log)) == 4
    columns = assert_same(log, verify=Verify.BODY)
    assert (len(columns), columns.fault) == (2, RecordFault.BAD_BODY_CRC)
    columns = assert_same(log, verify=Verify.PROPERTY)
    assert (len(columns), columns.fault) == (2, RecordFault.BAD_PROPERTY_CRC)
    renamed = good[2].replace(b"TopicTest", b"TopicTesu")
    log = log_of(*good[:2], renamed, good[3])
    assert len(assert_same(log, verify=Verify.BODY)) == 4
    columns = assert_same(log, verify=Verify.PROPERTY)
    assert (len(columns), columns.end_position) == (2, 2 * len(good[0]))


def test_empty_bodies_need_no_checksum() -> None:
    log = log_of(record(1, b"", body_crc=5), record(2))
    assert assert_same(log, verify=Verify.BODY).fault is None


def test_offsets() -> None:
    size = len(record())
    log = log_of(*[record(index, log_offset=700 + index * size) for index in range(3)])
    assert assert_same(log, log_start=700).fault is None
    columns = assert_same(log + record(3, log_offset=1), log_start=700)
    assert (len(columns), columns.fault) == (3, RecordFault.BAD_LOG_OFFSET)
    assert len(assert_same(log, size, log_start=700)) == 2


# ---- properties ----------------------------------------------------------------------------------

ODD_PROPERTIES = [
    b"",
    TYPICAL,
    TYPICAL[:-1],
    b"\x02",
    b"\x01",
    b"\x02\x02\x01\x02",
    b"a\x01\x02b\x011\x02",
    b"b\x011",
    b"\x01v\x02a\x011\x02",
    b"abc\x02a\x011\x02",
    b"a\x01x\x01y\x02b\x012\x02",
    b"a\x011\x02a\x012\x02a\x013\x02",
    b"a\x011\x02a\x01\x02",
    b"a\x011\x02ab\x012\x02abc\x013\x02b\x014\x02",
    b"attribute-1\x011\x02attribute-2\x012\x02attribute-1\x013\x02",
    b"same-first-8-and-last\x011\x02same-first-9-and-last\x012\x02",
    b"KEY\x00\x011\x02KEYS\x012\x02KEY\x013\x02",
    "名前\x01値\x02TAGS\x01タグ\x02名前\x01二\x02".encode(),
    b"\xff\x011\x02\xfe\x012\x02",
    b"".join(b"k%d\x01%d\x02" % (n % 20, n) for n in range(40)),
    b"n" * 300 + b"\x011\x02" + b"n" * 299 + b"m\x012\x02" + b"n" * 300 + b"\x013\x02",
]


@pytest.mark.parametrize("properties", ODD_PROPERTIES)
def test_properties_of_one_record(properties: bytes) -> None:
    assert_same(record(1, properties=properties), names=NAMES)


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_properties_do_not_leak_into_the_next_record(
    monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(property_scan, "_BLOCK", block)
    shuffled = random.Random(block).sample(ODD_PROPERTIES * 3, k=3 * len(ODD_PROPERTIES))
    log = log_of(*[record(n, properties=raw) for n, raw in enumerate(shuffled)])
    assert len(assert_same(log, names=NAMES)) == len(shuffled)


ALIKE_COUNT = 20


@pytest.mark.parametrize("properties", ODD_PROPERTIES)
def test_records_that_look_alike(properties: bytes) -> None:
    log = log_of(*[record(n, properties=properties) for n in range(ALIKE_COUNT)])
    assert len(assert_same(log, names=NAMES)) == ALIKE_COUNT


@pytest.mark.parametrize(
    "properties", [TYPICAL, b"a\x01x\x01y\x02\x02a\x012\x02c", b"a\x01\x02b\x012"]
)
@pytest.mark.parametrize("other", [b"\x00", b"\x01", b"\x02", b"X"])
def test_one_record_that_looks_otherwise_in_one_byte(properties: bytes, other: bytes) -> None:
    for odd in (0, 7, ALIKE_COUNT - 1):
        for place in range(len(properties)):
            texts = [properties] * ALIKE_COUNT
            texts[odd] = properties[:place] + other + properties[place + 1 :]
            log = log_of(*[record(n, properties=text) for n, text in enumerate(texts)])
            assert_same(log, names=NAMES)


def test_messages_of_one_producer_look_alike() -> None:
    """So that what follows from it is tested at all: only the first of them is parsed."""
    texts = [
        b"UNIQ_KEY\x01%032d\x02KEYS\x01k%05d\x02WAIT\x01true" % (n, n) for n in range(ALIKE_COUNT)
    ]
    columns = scan_records(log_of(*[record(n, properties=text) for n, text in enumerate(texts)]))
    found = property_scan._by_pattern(
        columns.buffer, columns.properties_start, columns.properties_size
    )
    assert found is not None
    assert len(found[0]) == 3 * ALIKE_COUNT


def test_items_come_in_the_order_of_the_records() -> None:
    log = log_of(
        record(0, properties=b"a\x011\x02b\x012\x02"),
        record(1, properties=b""),
        record(2, properties=b"c\x013\x02"),
    )
    items = scan_properties(scan_records(log))
    assert items.record.tolist() == [0, 0, 2]
    assert items.name_size.tolist() == [1, 1, 1]
    assert items.value_size.tolist() == [1, 1, 1]
    assert properties_of(items) == [{"a": "1", "b": "2"}, {}, {"c": "3"}]
    assert items.column("b")[1].tolist() == [1, 0, 0]


# ---- lanes ---------------------------------------------------------------------------------------


def large_log(count: int, size_max: int, *, seed: int = 1) -> bytes:
    dice = random.Random(seed)
    return log_of(*[record(n, dice.randbytes(dice.randrange(size_max))) for n in range(count)])


@pytest.mark.parametrize("size_max", [1, 200, 3000])
def test_large_buffers(size_max: int) -> None:
    """Large enough for lanes with the real settings."""
    log = large_log(1500, size_max)
    assert len(log) > 16 * scan._SAMPLE_BYTES
    columns = assert_same(log)
    assert columns.queue_offset.tolist() == list(range(1500))


def test_lanes_are_used_and_give_what_single_steps_give(monkeypatch: pytest.MonkeyPatch) -> None:
    log = large_log(3000, 200)
    starts, stop = scan._walk_on(log, 0, len(log) - 7, len(log))
    monkeypatch.setattr(scan, "_LANES_MAX", 64)
    lanes = scan._lanes(log, 0, len(log) - 7, [-300])
    assert len(lanes) > 50
    followed, arrived = scan._walk_lanes(log, lanes, len(log) - 7, len(log))
    assert followed.tolist() == starts
    assert arrived == stop == len(log)


def test_the_magic_code_in_bodies_does_not_mislead() -> None:
    decoy = record(9)[:100]
    bodies = [decoy * (n % 5) + bytes(n % 7) for n in range(400)]
    log = log_of(*[record(n, body) for n, body in enumerate(bodies)])
    with lanes_everywhere():
        assert len(assert_same(log)) == 400
    log = large_log(2000, 100) + log + large_log(2000, 100, seed=2)
    assert len(assert_same(log)) == 4400


# What a lane reads as a size where the magic code is not that of a record: too small, so small that
# the lane hardly moves, negative, and leading just anywhere.
DECOY_SIZES = [
    bytes(4),
    b"\0\0\0\1",
    b"\0\0\0\7",
    b"\x80\0\0\0",
    b"\xff" * 4,
    b"\0\0\1\x03",
    b"\0\1",
]


@pytest.mark.parametrize("size", DECOY_SIZES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_magic_code_anywhere_does_not_mislead(size: bytes, kind: type[ReadBuffer]) -> None:
    """In bodies and properties, at odd places, behind bytes that are no size of a record."""
    dice = random.Random(5)
    decoy = size + MAGIC_V1.to_bytes(4, "big", signed=True)
    records = []
    for n in range(1500):
        noise = [dice.randbytes(dice.randrange(40)) for _ in range(3)]
        text = TYPICAL + b"x\x01" + decoy.join([b"a" * dice.randrange(9)] * 3) + b"\x02"
        records.append(record(n, decoy.join(noise), text if n % 4 else TYPICAL))
    log = kind(log_of(*records))
    assert len(log) > 16 * scan._SAMPLE_BYTES
    assert len(assert_same(log)) == 1500
    with lanes_everywhere():
        assert len(assert_same(log)) == 1500


def test_lanes_that_never_move_end_the_walk() -> None:
    """A record whose body is full of places that look like starts with size zero."""
    decoy = bytes(4) + MAGIC_V1.to_bytes(4, "big", signed=True)
    log = large_log(200, 50) + record(200, decoy * 100_000) + large_log(200, 50)
    columns = assert_same(log)
    assert (len(columns), columns.body_size.max()) == (401, 800_000)


def test_records_much_smaller_than_the_first_ones() -> None:
    """Lanes are laid out by the first records; many more then belong to each."""
    big = log_of(*[record(n, bytes(1500)) for n in range(50)])
    assert len(assert_same(big + large_log(4000, 30))) == 4050


@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "damage", [bytes(4), b"\x00\x00\x00\x03", b"\xff\xff\xff\xff", b"\x7f" * 4]
)
def test_a_broken_chain_in_a_large_buffer(where: float, damage: bytes) -> None:
    log = bytearray(large_log(1500, 200))
    position = int(scan_records(bytes(log)).position[int(1500 * where)])
    log[position : position + 4] = damage
    columns = assert_same(bytes(log))
    assert (len(columns), columns.end_position) == (int(1500 * where), position)
    assert columns.fault is not None


def test_a_large_file_that_is_mostly_unwritten() -> None:
    log = large_log(100, 200) + bytes(1 << 20)
    columns = assert_same(log)
    assert (len(columns), columns.fault) == (100, RecordFault.UNWRITTEN)


def test_a_large_file_of_blanks_and_records() -> None:
    dice = random.Random(3)
    pieces = []
    for n in range(4000):
        size = dice.choice([8, 9, 90, 100, 400])
        pieces.append(BLANK_RECORD.pack(size, MAGIC_BLANK) + dice.randbytes(size - 8))
        pieces.append(record(n) if n % 3 else b"")
    columns = assert_same(log_of(*pieces))
    assert (columns.blank_count, len(columns)) == (4000, 2666)
