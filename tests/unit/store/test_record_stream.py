"""Whole records out of a stream that is cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.store.record_stream import RecordStream, RecordStreamError
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_HEADS

FILE_SIZE = 1_000


def record(log_offset: int, size: int, magic: int = MAGIC_V1) -> bytes:
    head = RECORD_HEADS[0].pack(
        size, magic, 0, 0, 0, 0, log_offset, 0, 0, b"\1" * 8, 0, b"\2" * 8, 0, 0, 0
    )
    return head.ljust(size, b"x")


def blank(size: int) -> bytes:
    return BLANK_RECORD.pack(size, MAGIC_BLANK).ljust(size, b"\0")


def stream(log_end: int = 0) -> RecordStream:
    return RecordStream(log_end, FILE_SIZE, record_size_max=10_000)


def test_a_record_is_handed_out_when_its_last_byte_is_there() -> None:
    whole = record(0, 150)
    cut = stream()
    assert cut.take(0, whole[:5]) == b""
    assert cut.take(5, whole[5:149]) == b""
    assert (cut.whole, cut.end, cut.held_size) == (0, 149, 149)
    assert cut.take(149, whole[149:] + b"\0\0") == whole
    assert (cut.whole, cut.end, cut.held_size, cut.record_end) == (150, 152, 2, 150)


def test_a_blank_passes_as_it_comes_and_is_no_record() -> None:
    first, second = record(0, 900, MAGIC_V2), record(1_000, 100)
    cut = stream()
    assert cut.take(0, first + blank(100)[:8]) == first + blank(100)[:8]
    assert (cut.record_end, cut.blank_until) == (900, 1_000)
    assert cut.take(908, bytes(50)) == bytes(50)
    assert cut.take(958, bytes(42)) == bytes(42)
    assert cut.take(1_000, second) == second
    assert cut.record_end == 1_100


def test_the_shortest_blank_is_known_before_more_bytes_come() -> None:
    cut = stream(992)
    assert cut.take(992, blank(8)) == blank(8)
    assert cut.end == cut.whole == 1_000


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 120), min_size=1, max_size=30), st.integers(0, 2))
def test_any_cuts_give_the_same_bytes(pieces: list[int], files: int) -> None:
    log = b""
    for number in range(files + 1):
        log += record(number * FILE_SIZE, 200) + record(number * FILE_SIZE + 200, 700)
        log += blank(100)
    cut = stream()
    taken, position, turn = b"", 0, 0
    while position < len(log):
        size = min(pieces[turn % len(pieces)], FILE_SIZE - position % FILE_SIZE)
        taken += cut.take(position, log[position : position + size])
        assert len(taken) == cut.whole
        position += size
        turn += 1
    assert taken == log
    assert cut.held_size == 0


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (record(64, 100), "the record at 0 belongs to 64"),
        (record(0, 100, 7), "no record begins at 0: magic code 00000007"),
        (record(0, 90), "no record begins at 0"),
        (BLANK_RECORD.pack(999, MAGIC_BLANK) + bytes(20), "no record begins at 0"),
        (BLANK_RECORD.pack(1_001, MAGIC_V1) + bytes(28), "1001 bytes"),
        (bytes(40), "no record begins at 0"),
    ],
)
def test_what_is_no_record_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(RecordStreamError, match=text):
        stream().take(0, body)


def test_pieces_must_continue_each_other_and_stay_in_their_file() -> None:
    with pytest.raises(RecordStreamError, match="received bytes at 8 where 0 was expected"):
        stream().take(8, b"x")
    with pytest.raises(RecordStreamError, match="exceed the end of a file"):
        stream(900).take(900, bytes(101))


def test_a_record_longer_than_the_limit_is_not_waited_for() -> None:
    with pytest.raises(RecordStreamError, match="600 bytes"):
        RecordStream(0, FILE_SIZE, record_size_max=500).take(0, record(0, 600)[:50])
