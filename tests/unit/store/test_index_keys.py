"""Properties for the derived files: of single strings, and of many similar ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.store.index_keys import alike_ids, indexed_values
from skylark.wire.properties import find_raw_property

ID = b"7F0000010A2B18B4AAC2A4D2AEFD0001"


def properties_with(unique_id: bytes) -> bytes:
    return b"TAGS\x01TagA\x02UNIQ_KEY\x01" + unique_id + b"\x02WAIT\x01true\x02KEYS\x01k1 k2\x02"


def parts_of(endings: bytes) -> list[bytes]:
    return [endings[start : start + 8] for start in range(0, len(endings), 8)]


#: Put together they read like three strings of one length that differ in the ending only.
SHIFTED = [
    b"UNIQ_KEY\x017F0001234567\x02WAIT\x01abc\x02",
    b"UNIQ_KEY\x017F0001234567\x02WAIT\x01abc\x02UNIQ_KEY\x01",
    b"7F00WAIT\x01abc\x02WAIT\x01abc\x02",
]


def test_strings_that_differ_in_the_last_digits() -> None:
    ids = [b"%b%04X" % (ID[:-4], number) for number in range(9)]
    alike = alike_ids([properties_with(each) for each in ids])
    assert alike is not None
    assert alike.common == ID[:-8]
    assert alike.ids() == ids


def numbered(count: int = 70, value: bytes = b"value%02d", name: bytes = b"n") -> list[bytes]:
    """Strings whose ids and one other value differ."""
    return [
        properties_with(b"%b%04X" % (ID[:-4], number)) + name + b"\x01" + value % number + b"\x02"
        for number in range(count)
    ]


def test_strings_that_differ_in_values_that_are_not_indexed() -> None:
    strings = numbered()
    alike = alike_ids(strings)
    assert alike is not None
    assert alike.ids() == [indexed_values(string)[1] for string in strings]
    assert alike_ids(numbered(9)) is None  # too few to be looked at


@pytest.mark.parametrize("name", [b"TAGS", b"KEYS", b"UNIQ_KEY"])
def test_indexed_values_must_be_equal(name: bytes) -> None:
    assert alike_ids(numbered(name=name)) is None


@pytest.mark.parametrize(
    "last",
    [b"x\x02y\x01123", b"value\x01a", b"value\xc3\xa4", b"value\x00a", b"valu\x02aa"],
)
def test_a_value_that_is_no_plain_text(last: bytes) -> None:
    strings = numbered()
    assert len(last) == len(b"value00")
    strings[-1] = strings[-1].replace(b"value69", last)
    assert alike_ids(strings) is None


def test_a_name_that_differs() -> None:
    strings = numbered()
    strings[-1] = strings[-1].replace(b"n\x01value", b"m\x01value")
    assert alike_ids(strings) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [b"\x01", b"\x02", b"\x02UNIQ_KEY\x01", b"\x02TAGS\x01", b"\x02KEYS\x01", b"ab"]
        ),
        max_size=10,
    ),
    st.lists(
        st.lists(st.sampled_from([b"0", b"1", b"9", b"\x02"]), min_size=4, max_size=4),
        min_size=16,
        max_size=18,
    ),
    st.integers(0, 9),
)
def test_many_strings_that_are_alike_read_alike(
    shared: list[bytes], numbers: list[list[bytes]], at: int
) -> None:
    """The same, where a number may stand anywhere."""
    strings = []
    for place, number in enumerate(4 * numbers):
        text = b"UNIQ_KEY\x01%b%04X" % (ID[:-4], place)
        strings.append(b"".join([text, *shared[:at], *number, *shared[at:]]))
    alike = alike_ids(strings)
    if alike is None:
        return
    first_tags, _, first_keys = indexed_values(strings[0])
    for string, unique_id in zip(strings, alike.ids(), strict=True):
        assert indexed_values(string) == (first_tags, unique_id, first_keys)


@pytest.mark.parametrize(
    "strings",
    [
        [b"", b""],
        [b"TAGS\x01TagA\x02"] * 2,
        [b"UNIQ_KEY\x01short\x02"] * 2,
        [b"XUNIQ_KEY\x01" + ID] * 2,
        [properties_with(ID), properties_with(ID + b"0")],
        [properties_with(ID), properties_with(b"8" + ID[1:])],
        [properties_with(ID), properties_with(ID).replace(b"TagA", b"TagB")],
        [properties_with(ID), properties_with(ID).replace(b"k2", b"k3")],
        [properties_with(ID), properties_with(ID[:-5] + b"\x02K\x01ab")],
        [properties_with(ID), properties_with(ID[:-2] + b"\xc3\xa4")],
        [b"UNIQ_KEY\x01" + ID, b"UNIQ_KEY\x01" + ID[:-1]],
        SHIFTED,
    ],
)
def test_strings_that_are_not_alike(strings: list[bytes]) -> None:
    assert alike_ids(strings) is None


pieces = st.sampled_from(
    [
        b"\x01",
        b"\x02",
        b"UNIQ_KEY",
        b"\x02UNIQ_KEY\x01",
        b"TAGS\x01",
        b"KEYS\x01",
        b"abcdefgh",
        b"A",
    ]
)


@settings(max_examples=400, deadline=None)
@given(
    head=st.lists(pieces, max_size=6),
    foot=st.lists(pieces, max_size=6),
    endings=st.lists(
        st.one_of(
            st.binary(min_size=8, max_size=8),
            st.text("0123456789ABCDEF\x02", min_size=8, max_size=8).map(str.encode),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_what_is_alike_reads_alike(
    head: list[bytes], foot: list[bytes], endings: list[bytes]
) -> None:
    """What is concluded from the first string is what each of them says."""
    strings = [b"".join([*head, b"\x02UNIQ_KEY\x01", ending, *foot]) for ending in endings]
    for string in strings:
        values = indexed_values(string)
        names = (b"TAGS", b"UNIQ_KEY", b"KEYS")
        assert values == tuple(find_raw_property(string, name) or None for name in names)
    alike = alike_ids(strings)
    if alike is None:
        return
    first_tags, _, first_keys = indexed_values(strings[0])
    for string, ending in zip(strings, parts_of(alike.endings), strict=True):
        tags, unique_id, keys = indexed_values(string)
        assert unique_id == alike.common + ending
        assert (tags, keys) == (first_tags, first_keys)
