"""Java's string hash, checksums and message ids."""

from __future__ import annotations

import random

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.core.hashing import (
    OffsetId,
    UniqueId,
    UniqueIdGenerator,
    body_crc,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    index_id_hash_continue,
    index_id_hashes_continue,
    index_key_hash,
    index_key_hash_continue,
    java_hash,
    java_hash_continue,
    local_month_start_ms,
)

LOOPBACK = bytes((127, 0, 0, 1))


def reference_hash(text: str) -> int:
    """The definition, unit by unit."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[index : index + 2], "big")) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.spec("store.12.8")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("\U0001f600", 1772899),
        ("TopicTest", -1902610879),
        ("polygenelubricants", -(1 << 31)),
        ("Aa", 2112),
        ("BB", 2112),
    ],
)
def test_java_hash_of_known_texts(text: str, expected: int) -> None:
    assert java_hash(text) == expected


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 1000])
@pytest.mark.parametrize("alphabet", ["azAZ09#", "é日本", "a\U0001f600", "\ud800a"])
def test_java_hash_follows_the_definition_at_every_length(size: int, alphabet: str) -> None:
    text = "".join(random.Random(size).choices(alphabet, k=size))
    assert java_hash(text) == reference_hash(text)


@pytest.mark.parametrize("cut", [0, 1, 9, 10, 11, 70])
def test_prefix_hashes_combine(cut: int) -> None:
    text = "TopicTest#" + "k1" * 40
    assert java_hash_continue(java_hash(text[:cut]), text[cut:]) == java_hash(text)


def test_index_hash_is_never_negative() -> None:
    assert index_key_hash(java_hash("TopicTest#k1")) == 2746024
    assert index_key_hash(7) == 7
    assert index_key_hash(-7) == 7
    assert index_key_hash(java_hash("polygenelubricants")) == 0


@pytest.mark.parametrize("size", [0, 1, 2, 32, 127, 128, 129, 5000])
@pytest.mark.parametrize("alphabet", ["\0\t\x7f~ _+-", "0123456789ABCDEF", "/0NO", "aé\U0001f600"])
def test_index_hashes_of_keys_as_bytes(size: int, alphabet: str) -> None:
    """Also of characters that int() would take for signs, blanks or separators."""
    key = "".join(random.Random(size).choices(alphabet, k=size))
    for prefix in ("", "T#", "polygenelubricants"):
        expected = index_key_hash(reference_hash(prefix + key))
        assert index_key_hash_continue(java_hash(prefix), key.encode()) == expected
        assert index_id_hash_continue(java_hash(prefix), key.encode()) == expected


def test_index_hashes_of_ids_that_begin_alike() -> None:
    ids = [f"7F0000010A2B18B4AAC2{number:08X}" for number in range(0, 1 << 32, 0x0101_0107)]
    prefix = java_hash("T#7F0000010A2B18B4AAC2")
    hashes = index_id_hashes_continue(prefix, "".join([each[-8:] for each in ids]).encode())
    assert hashes == [index_key_hash(reference_hash("T#" + each)) for each in ids]


@pytest.mark.parametrize("count", [1, 2, 32, 511, 512, 513, 1500])
@pytest.mark.parametrize("prefix", ["", "T#", "polygenelubricants"])
def test_index_hashes_of_any_endings(count: int, prefix: str) -> None:
    letters = random.Random(count)
    endings = ["\0" * 8, "\x7f" * 8, "order-77"]
    endings += ["".join(map(chr, letters.choices(range(128), k=8))) for _ in range(count)]
    endings = endings[:count]
    hashes = index_id_hashes_continue(java_hash(prefix), "".join(endings).encode())
    assert hashes == [index_key_hash(reference_hash(prefix + each)) for each in endings]


def test_an_index_hash_without_absolute_value() -> None:
    assert index_id_hashes_continue(java_hash("polygenelu"), b"bricants" * 2) == [0, 0]


def test_index_hashes_of_malformed_keys() -> None:
    prefix = java_hash("T#")
    assert index_key_hash_continue(prefix, b"a\xffb") == index_key_hash(java_hash("T#a\ufffdb"))
    assert index_key_hash_continue(0, b"polygenelubricants") == 0
    assert index_id_hash_continue(prefix, b"A\xffB") == index_key_hash(java_hash("T#A\ufffdB"))


@pytest.mark.spec("store.12.2")
def test_body_crc_has_no_top_bit() -> None:
    assert body_crc(b"Hello") == 0x77D18982
    assert body_crc(b"") == 0


@pytest.mark.spec("store.12.10")
def test_offset_id_with_ipv4() -> None:
    store_host = LOOPBACK + (10911).to_bytes(4, "big")
    message_id = encode_offset_id(store_host, 115)
    assert message_id == "7F00000100002A9F0000000000000073"
    assert decode_offset_id(message_id) == OffsetId(LOOPBACK, 10911, 115)
    assert decode_offset_id(message_id.lower()) == OffsetId(LOOPBACK, 10911, 115)


def test_offset_id_with_ipv6() -> None:
    ip = bytes(15) + b"\x01"
    message_id = encode_offset_id(ip + (10911).to_bytes(4, "big"), (1 << 63) - 1)
    assert message_id == "0" * 30 + "01" + "00002A9F" + "7FFFFFFFFFFFFFFF"
    assert decode_offset_id(message_id) == OffsetId(ip, 10911, (1 << 63) - 1)


@pytest.mark.parametrize(
    "message_id",
    [
        "",
        "7F00000100002A9F00000000000000",
        "7F00000100002A9F000000000000007G",
        "7F00000100002A9F00000000000000 7",  # bytes.fromhex() would skip the blank
        "7F000001 00002A9F 0000000000000",
        "7F00000100010000000000000000007é",
        "7F0000010001000000000000000000" + "00" * 4,
        "7F000001FFFFFFFF0000000000000073",  # port -1
        "7F00000100002A9FFFFFFFFFFFFFFFFF",  # offset -1
    ],
)
def test_what_is_no_offset_id_is_refused(message_id: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_offset_id(message_id)


class Clock:
    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


MONTHS = (0, 2_678_400_000, 5_097_600_000)  # January to March 1970, UTC


def utc_month_start_ms(time_ms: int) -> int:
    return max(start for start in MONTHS if start <= time_ms)


def generator(clock: Clock, **settings: object) -> UniqueIdGenerator:
    arguments = {"ip": LOOPBACK, "pid": 0x1_2345, "salt": 0x18B4AAC2} | settings
    return UniqueIdGenerator(
        now_ms=clock,
        month_start_ms=utc_month_start_ms,
        **arguments,  # type: ignore[arg-type]
    )


def test_unique_ids_count_up_and_come_apart_again() -> None:
    ids = generator(Clock(1_000))
    assert ids.next_id() == "7F000001234518B4AAC2000003E80000"
    second = ids.next_id()
    assert second == "7F000001234518B4AAC2000003E80001"
    assert decode_unique_id(second) == UniqueId(LOOPBACK, 0x2345, 0x18B4AAC2, 1_000, 1)


def test_unique_id_with_ipv6_has_56_characters() -> None:
    ip = bytes(range(16))
    message_id = generator(Clock(5), ip=ip).next_id()
    assert len(message_id) == 56
    assert decode_unique_id(message_id) == UniqueId(ip, 0x2345, 0x18B4AAC2, 5, 0)


def test_an_address_of_another_length_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="4 or 16 bytes"):
        generator(Clock(0), ip=b"\x01")


def test_the_counter_wraps_after_16_bits() -> None:
    ids = generator(Clock(0))
    drawn = [ids.next_id() for _ in range(0x1_0001)]
    assert len(set(drawn)) == 0x1_0000
    assert drawn[0xFFFF].endswith("FFFF")
    assert drawn[0x1_0000] == drawn[0]


def test_the_time_is_rebased_when_the_month_rolls() -> None:
    clock = Clock(MONTHS[1] - 1)
    ids = generator(clock)
    assert decode_unique_id(ids.next_id()).month_ms == MONTHS[1] - 1
    clock.now_ms += 1
    assert decode_unique_id(ids.next_id()).month_ms == 0
    clock.now_ms = MONTHS[2] + 7
    assert decode_unique_id(ids.next_id()).month_ms == 7


def test_a_clock_set_back_a_little_counts_as_the_start_of_the_month() -> None:
    clock = Clock(MONTHS[1])
    ids = generator(clock)
    clock.now_ms = MONTHS[1] - 999_999
    assert decode_unique_id(ids.next_id()).month_ms == 0
    clock.now_ms = MONTHS[1] - 1_000_000
    assert decode_unique_id(ids.next_id()).month_ms == (1 << 32) - 1_000_000


@pytest.mark.parametrize(
    ("zone", "time_ms", "expected"),
    [
        ("UTC", 1_700_000_000_000, 1_698_796_800_000),  # 14 Nov 2023 -> 1 Nov 00:00
        ("CST-8", 1_698_768_000_000, 1_698_768_000_000),  # 1 Nov 00:00 there
        ("CST-8", 1_698_767_999_999, 1_696_089_600_000),  # a moment earlier: October
        (
            "CET-1CEST,M3.5.0,M10.5.0/3",
            1_711_879_200_000,
            1_709_247_600_000,
        ),  # 31 Mar, summer: 1 Mar, winter
    ],
)
def test_months_start_at_local_midnight(
    monkeypatch: pytest.MonkeyPatch, zone: str, time_ms: int, expected: int
) -> None:
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert local_month_start_ms(time_ms) == expected
    finally:
        monkeypatch.undo()
        time.tzset()
