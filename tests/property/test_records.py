"""Records, properties, batches and replication frames under arbitrary input.

Three claims: what is encoded comes back; the vectorised scanner finds what the plain decoder finds,
on sound and on damaged buffers alike; garbage raises :class:`RemoteProtocolError` and nothing else.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import RemoteProtocolError
from skylark.core.hashing import (
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    java_hash,
    java_hash_continue,
)
from skylark.wire.batch import Batch, BatchMessage, encode_batch, split_batch
from skylark.wire.ha_frame import HaFrame, HaFrameBuffer, encode_frame_head
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from skylark.wire.message import (
    Verify,
    decode_record,
    encode_record,
    iter_records,
    unwrap_record,
)
from skylark.wire.properties import (
    encode_properties,
    find_property,
    find_raw_property,
    parse_properties,
    without_property,
)
from tests.support.records import assert_same, lanes_everywhere

int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
short_bytes = st.binary(max_size=40)

# Property strings in which everything that matters is frequent.
pieces = st.sampled_from(
    [
        b"\x01",
        b"\x02",
        b"a",
        b"b",
        b"TAGS",
        b"KEYS",
        b"KEYX",
        b"\x00",
        b"\xc3\xa9",
        b"\xff",
        b"12345678",
    ]
)
raw_properties = st.lists(pieces, max_size=30).map(b"".join)
properties = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8),
    st.text(st.characters(codec="utf-8", exclude_characters="\x02"), min_size=1, max_size=8),
    max_size=6,
)

NAMES = ("TAGS", "KEYS", "a", "b", "é")


@given(
    text=raw_properties,
    changes=st.lists(
        st.tuples(st.integers(0, 19), st.integers(0, 200), st.sampled_from(b"\x00\x01\x02aK\xff")),
        max_size=6,
    ),
)
def test_records_that_look_almost_alike(text: bytes, changes: list[tuple[int, int, int]]) -> None:
    texts = [bytearray(text) for _ in range(20)]
    for index, place, other in changes:
        if text:
            texts[index][place % len(text)] = other
    log = b"".join(encode_record("T", b"x", properties=bytes(each)) for each in texts)
    assert_same(log, names=NAMES)


@st.composite
def fields(draw: st.DrawFn) -> dict[str, object]:
    return {
        "topic": draw(short_bytes | st.binary(min_size=120, max_size=200)),
        "body": draw(short_bytes),
        "properties": draw(raw_properties),
        "queue_id": draw(int32s),
        "queue_offset": draw(int64s),
        "log_offset": draw(int64s),
        "born_timestamp": draw(int64s),
        "born_host": draw(hosts),
        "store_timestamp": draw(int64s),
        "store_host": draw(hosts),
        "flag": draw(int32s),
        "sys_flag": draw(st.integers(0, 0x7FF)),
        "reconsume_times": draw(int32s),
        "prepared_transaction_offset": draw(int64s),
        "property_crc": draw(st.booleans()),
    }


records = fields().map(lambda given_fields: encode_record(**given_fields))  # type: ignore[arg-type]
blanks = st.integers(8, 60).map(lambda size: BLANK_RECORD.pack(size, MAGIC_BLANK) + bytes(size - 8))
logs = st.lists(records | blanks, max_size=8).map(b"".join)
checks = st.sampled_from([None, Verify.BODY, Verify.PROPERTY])


@settings(max_examples=150, deadline=None)
@given(fields())
def test_records_round_trip(given_fields: dict[str, object]) -> None:
    encoded = encode_record(**given_fields)  # type: ignore[arg-type]
    verify = Verify.PROPERTY if given_fields["property_crc"] else Verify.BODY
    record = decode_record(encoded, verify=verify)
    for name in given_fields.keys() - {"topic", "properties", "property_crc", "sys_flag"}:
        assert getattr(record, name) == given_fields[name]
    assert record.total_size == len(encoded)
    assert record.magic == (MAGIC_V2 if len(given_fields["topic"]) > 127 else MAGIC_V1)  # type: ignore[arg-type]
    assert record.topic == given_fields["topic"].decode("utf-8", "replace")  # type: ignore[attr-defined]
    if not given_fields["property_crc"]:
        assert record.raw_properties == given_fields["properties"]
    again = given_fields | {
        "properties": record.raw_properties,
        "sys_flag": record.sys_flag,
        "body_crc": record.body_crc,
    }
    assert encode_record(**again) == encoded  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(logs, checks)
def test_both_decoders_agree_on_sound_logs(log: bytes, verify: Verify | None) -> None:
    assert_same(log, verify=verify, names=NAMES)
    with lanes_everywhere():
        assert_same(log, verify=verify)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_both_decoders_agree_on_damaged_logs(data: st.DataObject) -> None:
    log = bytearray(data.draw(st.lists(records | blanks, min_size=1, max_size=8).map(b"".join)))
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, len(log) - 1))
        log[position] = data.draw(st.sampled_from([0, 1, 2, 0x10, 0x30, 0x7F, 0x80, 0xFF]))
    if data.draw(st.booleans()):
        del log[data.draw(st.integers(0, len(log))) :]
    verify = data.draw(checks)
    log_start = data.draw(st.sampled_from([None, 0]))
    assert_same(bytes(log), verify=verify, log_start=log_start, names=NAMES)
    with lanes_everywhere():
        assert_same(bytes(log) * 3, verify=verify)


heads = st.builds(
    BLANK_RECORD.pack,
    st.integers(-10, 300) | int32s,
    st.sampled_from([MAGIC_V1, MAGIC_V2, MAGIC_BLANK, 0]),
)


@settings(max_examples=250, deadline=None)
@given(heads, st.binary(max_size=300), checks)
def test_garbage_raises_only_the_typed_error(
    head: bytes, rest: bytes, verify: Verify | None
) -> None:
    garbage = head + rest
    with suppress(RemoteProtocolError):
        decode_record(garbage, verify=verify)
    with suppress(RemoteProtocolError):
        for record in iter_records(garbage):
            unwrap_record(record)
    with suppress(RemoteProtocolError):
        split_batch(garbage)
    with suppress(RemoteProtocolError):
        HaFrameBuffer(body_size_max=100).feed(garbage)
    assert_same(garbage, verify=verify)


@settings(max_examples=300, deadline=None)
@given(raw_properties)
def test_single_names_are_found_as_all_are_parsed(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    parsed = parse_properties(raw)
    assert parse_properties(text) == parsed
    for name in NAMES:
        found = find_raw_property(raw, name.encode())
        assert (found and found.decode("utf-8", "replace")) == parsed.get(name)
        assert find_property(text, name) == parsed.get(name)
        rest = parse_properties(without_property(raw, name.encode()))
        assert rest == {key: value for key, value in parsed.items() if key != name}


@settings(max_examples=100, deadline=None)
@given(properties)
def test_properties_round_trip(given_properties: dict[str, str]) -> None:
    text = encode_properties(given_properties)
    assert parse_properties(text) == given_properties
    assert parse_properties(text.encode()) == given_properties


batch_messages = st.builds(BatchMessage, short_bytes, raw_properties, int32s)


@settings(max_examples=100, deadline=None)
@given(st.lists(batch_messages, max_size=5), st.data())
def test_batches_round_trip_and_fail_typed(
    messages: list[BatchMessage], data: st.DataObject
) -> None:
    encoded = encode_batch(messages)
    batch = split_batch(encoded)
    assert list(batch) == messages
    assert (list(batch.sizes), batch.is_alike) == (
        Batch.of(messages).sizes,
        Batch.of(messages).is_alike,
    )
    if encoded:
        damaged = bytearray(encoded)
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
        with suppress(RemoteProtocolError):
            split_batch(bytes(damaged))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 62), short_bytes), max_size=6),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_any_split_of_the_replication_stream_gives_the_same_frames(
    frames: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(encode_frame_head(offset, len(body)) + body for offset, body in frames)
    buffer = HaFrameBuffer()
    received: list[HaFrame] = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        received += buffer.feed(stream[position : position + size])
        position += size
        turn += 1
    assert received == frames
    assert buffer.pending_size == 0


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=150), st.integers(0, 150))
def test_hashes_combine_at_any_place(text: str, cut: int) -> None:
    assert java_hash_continue(java_hash(text[:cut]), text[cut:]) == java_hash(text)


@settings(max_examples=100, deadline=None)
@given(hosts, st.integers(0, (1 << 63) - 1), st.integers(0, 0xFFFF))
def test_offset_ids_round_trip(host: bytes, log_offset: int, port: int) -> None:
    host = host[:-4] + port.to_bytes(4, "big")
    decoded = decode_offset_id(encode_offset_id(host, log_offset))
    assert (decoded.ip, decoded.port, decoded.log_offset) == (host[:-4], port, log_offset)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60) | st.text("0123456789ABCDEFabcdef ", min_size=32, max_size=32))
def test_ids_fail_typed(text: str) -> None:
    for decode in (decode_offset_id, decode_unique_id):
        with suppress(RemoteProtocolError):
            decode(text)
