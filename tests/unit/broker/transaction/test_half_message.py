"""Fields of half messages and of their copies. Those of Java: ``test_java_store``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.broker.transaction.half_message import (
    drop_half_names,
    final_properties,
    first_offset_of,
    parse_number,
    read_half,
    turn_into_half,
)
from skylark.store.commit_log import Draft
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.broker.transaction.halves import GIVEN_UP, HALF, half_of, half_record


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("-1", -1), ("+12", 12), ("007", 7), ("", None), ("-", None), ("1.5", None),
        (" 1", None), ("9" * 18, int("9" * 18)), ("9" * 19, None), ("²", None),
    ],
)  # fmt: skip
def test_numbers_are_read_as_java_reads_them(text: str, number: int | None) -> None:
    assert parse_number(text) == number


def test_what_is_no_half_message() -> None:
    assert read_half(half_record(topic="T")) is None
    assert read_half(half_record(REAL_TOPIC=None)) is None
    for queue_id in (None, "x", "-1", str(1 << 31)):
        assert read_half(half_record(REAL_QID=queue_id)) is None
    assert read_half(half_record(topic=GIVEN_UP), GIVEN_UP) is not None


def test_the_first_copy_is_the_identity() -> None:
    assert first_offset_of(half_record(9)) == 9
    assert first_offset_of(half_record(9, TRAN_PREPARED_QUEUE_OFFSET="4")) == 4
    for text in ("-1", "x"):
        assert first_offset_of(half_record(9, TRAN_PREPARED_QUEUE_OFFSET=text)) == 9


def test_how_often_and_when_it_was_asked_about() -> None:
    assert half_of().check_count == 0
    assert half_of(TRANSACTION_CHECK_TIMES="3").check_count == 3
    assert half_of(TRANSACTION_CHECK_TIMES="x").check_count == -1
    assert (half_of().has_immunity, half_of().immunity_ms(6_000)) == (False, 6_000)
    for text, immunity_ms in [("100", 100_000), ("1", 6_000), ("-1", 6_000), ("soon", 6_000)]:
        half = half_of(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
        assert (half.has_immunity, half.immunity_ms(6_000)) == (True, immunity_ms)


def test_a_copy_keeps_all_fields_and_names_its_original() -> None:
    half = half_of(
        9, TRANSACTION_CHECK_TIMES="2", TRAN_PREPARED_QUEUE_OFFSET="4", flag=5, reconsume_times=2,
        sys_flag=3, DELAY="3",
    )  # fmt: skip
    for draft, topic, check_count in [
        (half.next_copy(), HALF, "3"),
        (half.resumed_copy(), HALF, "0"),
        (half.given_up_copy(), GIVEN_UP, "2"),
    ]:
        assert (draft.topic, draft.queue_id, draft.body) == (topic, 0, b"half")
        assert (draft.flag, draft.reconsume_times, draft.sys_flag) == (5, 2, 3)
        assert parse_properties(draft.properties) == {
            **half.properties,
            "TRANSACTION_CHECK_TIMES": check_count,
            "TRAN_PREPARED_QUEUE_OFFSET": "4",
        }
    final = half.final_message()
    properties = parse_properties(final.properties)
    assert (final.flag, final.reconsume_times, final.sys_flag) == (5, 2, 3 | 8)
    assert (final.topic, final.queue_id) == ("T", 3)
    assert final.prepared_transaction_offset == 1_000
    assert properties["DELAY"] == "3"
    assert "REAL_TOPIC" not in properties
    assert half.properties["REAL_TOPIC"] == "T"


def test_the_checksum_of_a_record_is_not_copied() -> None:
    checksum: dict[str, Any] = {"__CRC32#": "0000000001"}
    half = read_half(half_record(**checksum))
    assert half is not None
    assert "__CRC32#" not in half.properties


def test_a_producer_does_not_choose_the_identity() -> None:
    properties = {"UNIQ_KEY": "U", "TRAN_PREPARED_QUEUE_OFFSET": "0", "REAL_TOPIC": "other"}
    drop_half_names(properties)
    text = encode_properties(properties).encode()
    draft = Draft("T", 2, b"x", text, sys_flag=0x4 | 0x1)
    turn_into_half(draft, "U")
    assert (draft.topic, draft.queue_id, draft.sys_flag) == (HALF, 0, 1)
    assert parse_properties(draft.properties) == {
        "UNIQ_KEY": "U", "__transactionId__": "U", "REAL_TOPIC": "T", "REAL_QID": "2",
    }  # fmt: skip


NAMES = st.sampled_from(
    ["KEYS", "REAL_TOPIC", "REAL_QID", "__CRC32#", "XREAL_TOPIC", "REAL", "TAGS", "größe"]
)
VALUES = st.text("ab\x01REAL_TOPIC", min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.booleans(), st.booleans())
@example([("KEYS", "a"), ("REAL_TOPIC", "a"), ("KEYS", "b"), ("REAL_QID", "a")], False, False)
def test_final_properties_are_those_of_the_half_without_destination_and_checksum(
    items: list[tuple[str, str]], is_ours: bool, ends: bool
) -> None:
    raw = "".join(f"{name}\x01{value}\x02" for name, value in items).encode()
    if is_ours:
        draft = Draft("T", 2, b"x", raw)
        turn_into_half(draft, "U")
        raw = draft.properties
    elif not ends:
        raw = raw.removesuffix(b"\x02")
    expected = parse_properties(raw)
    for name in ("REAL_TOPIC", "REAL_QID", "__CRC32#"):
        expected.pop(name, None)
    assert parse_properties(final_properties(raw)) == expected
