"""Property strings."""

from __future__ import annotations

import pytest

from skylark.core.errors import LocalProtocolError
from skylark.wire.properties import (
    PROPERTY_KEYS,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TRANSIENT_PREFIX,
    RESERVED_NAMES,
    SETTABLE_NAMES,
    encode_properties,
    find_property,
    find_raw_property,
    is_reserved,
    parse_properties,
    without_property,
)


@pytest.mark.spec("store.12.6")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x01\x02b\x011\x02", {"b": "1"}),
        ("b\x011", {"b": "1"}),
        ("", {}),
        ("\x02\x02", {}),
        ("\x01v\x02", {}),  # no name
        ("abc\x02", {}),  # no 0x01
        ("a\x011\x02a\x012\x02", {"a": "2"}),
        ("a\x011\x02a\x01\x02", {"a": "1"}),  # the later one does not exist
        ("a\x01x\x01y\x02", {"a": "x\x01y"}),
        ("\x01a\x01b\x02c\x01d", {"c": "d"}),
        ("名\x01値\x02", {"名": "値"}),
    ],
)
def test_parsing(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected
    assert parse_properties(text.encode()) == expected
    for name in ("a", "b", "c", "名", "abc"):
        assert find_property(text, name) == expected.get(name)
        raw = find_raw_property(text.encode(), name.encode())
        assert (raw and raw.decode()) == expected.get(name)


def test_malformed_utf8_reads_as_replacement_characters() -> None:
    assert parse_properties(b"a\x01\xff\x02\xe4\x01x\x02") == {"a": "\ufffd", "\ufffd": "x"}


def test_encoding_keeps_the_order_and_ends_with_a_separator() -> None:
    assert encode_properties({"TAGS": "A", "KEYS": "k1 k2"}) == "TAGS\x01A\x02KEYS\x01k1 k2\x02"
    assert encode_properties({}) == ""
    assert encode_properties({"a": ""}) == "a\x01\x02"
    assert encode_properties({"a": "x\x01y"}) == "a\x01x\x01y\x02"


@pytest.mark.parametrize("properties", [{"a\x01": "v"}, {"a\x02b": "v"}, {"a": "v\x02"}])
def test_a_separator_in_a_property_is_our_own_error(properties: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError, match="separator"):
        encode_properties(properties)


def test_a_name_within_another_is_not_found() -> None:
    text = "XTAGS\x011\x02TAGSX\x012\x02KEYS\x01TAGS\x013\x02"
    assert find_property(text, "TAGS") is None
    assert find_raw_property(text.encode(), b"TAGS") is None
    assert find_property(text, "KEYS") == "TAGS\x013"


@pytest.mark.parametrize(
    ("raw", "rest"),
    [
        (b"a\x011\x02X\x012\x02b\x013\x02", b"a\x011\x02b\x013\x02"),
        (b"X\x012\x02a\x011", b"a\x011"),
        (b"a\x011\x02X\x012", b"a\x011"),
        (b"XX\x012\x02", b"XX\x012\x02"),
        (b"X\x011\x02X\x012\x02", b""),
    ],
)
def test_removing_a_property_leaves_the_others_alone(raw: bytes, rest: bytes) -> None:
    assert without_property(raw, b"X") == rest


def test_reserved_names() -> None:
    assert is_reserved(PROPERTY_TAGS)
    assert is_reserved(PROPERTY_KEYS)
    assert is_reserved("1ST_POP_TIME")
    assert is_reserved("__CRC32#")
    assert is_reserved(PROPERTY_TRANSIENT_PREFIX + "TOPIC_SYS_FLAG")
    assert not is_reserved(PROPERTY_SHARDING_KEY)
    assert not is_reserved("__transactionId__")
    assert not is_reserved(PROPERTY_ORIGIN_GROUP)
    assert not is_reserved("color")
    assert len(RESERVED_NAMES) == 51
    assert not RESERVED_NAMES & SETTABLE_NAMES
