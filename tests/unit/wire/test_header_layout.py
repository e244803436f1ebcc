"""Layouts of binary headers: the result is always that of decoding entry by entry."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.core.errors import RemoteProtocolError
from skylark.wire import command_codec
from skylark.wire.command import SERIALIZE_BINARY, Command
from skylark.wire.command_codec import read
from skylark.wire.header_layout import (
    ENTRIES_MAX,
    HEADER_SIZE_MAX,
    KEYS_MAX,
    LAYOUTS_PER_KEY_MAX,
    Layout,
    LayoutTable,
)


class EmptyTable(LayoutTable):
    """Stays empty, so that every header is decoded entry by entry."""

    def add(self, header: bytes, code: int, ext: dict[str, str]) -> None:
        pass


class RecordingTable(LayoutTable):
    """Records for each header whether it had a known layout."""

    def __init__(self) -> None:
        super().__init__()
        self.was_known: list[bool] = []

    def find(self, header: bytes, code: int) -> tuple[Layout, tuple[str, ...]] | None:
        found = super().find(header, code)
        self.was_known.append(found is not None)
        return found


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> RecordingTable:
    """The table that ``read`` uses during the test."""
    table = RecordingTable()
    monkeypatch.setattr(command_codec, "_layouts", table)
    return table


def read_binary(raw: bytes) -> Command:
    return read(raw, SERIALIZE_BINARY)


def entries(*pairs: tuple[str, str]) -> bytes:
    parts = []
    for key, value in pairs:
        key_bytes, value_bytes = key.encode(), value.encode()
        parts += [struct.pack(">h", len(key_bytes)), key_bytes]
        parts += [struct.pack(">i", len(value_bytes)), value_bytes]
    return b"".join(parts)


def header(*pairs: tuple[str, str], code: int = 310, remark: str = "", rest: bytes = b"") -> bytes:
    text, ext = remark.encode(), entries(*pairs)
    fixed = struct.pack(">hbhiii", code, 0, 513, 7, 0, len(text))
    return fixed + text + struct.pack(">i", len(ext)) + ext + rest


def outcome(layouts: LayoutTable, raw: bytes) -> Command | type[Exception]:
    """The command, or the error, that ``read`` gives with this table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_codec, "_layouts", layouts)
        try:
            return read_binary(raw)
        except RemoteProtocolError as error:
            return type(error)


# ---- any sequence --------------------------------------------------------------------------------

# Few names, values and sizes: many headers of a sequence then share their code and size.
names = st.sampled_from(["a", "b", "ab", "topic", "ü", "größe", ""])
values = st.sampled_from(["1", "2", "12", "21", "123", "ü", "é", "aü", "😀", "\0\x01a\0", ""])
headers = st.builds(
    header,
    st.tuples(names, values),
    st.tuples(names, values),
    code=st.sampled_from([10, 310, -1]),
    remark=st.sampled_from(["", "", "", "r", "ü"]),
    rest=st.sampled_from([b"", b"", b"", b"\0", bytes(6)]),
) | st.builds(lambda pairs: header(*pairs), st.lists(st.tuples(names, values), max_size=6))
damage = st.tuples(
    st.integers(0, 80), st.sampled_from([0, 1, 2, 3, 6, 0x61, 0x62, 0x7F, 0x80, 0xC3, 0xFF])
)


def damaged(raw: bytes, marks: list[tuple[int, int]]) -> bytes:
    changed = bytearray(raw)
    for place, byte in marks:
        changed[place % len(raw)] = byte
    return bytes(changed)


@st.composite
def sequences(draw: st.DrawFn) -> list[bytes]:
    """Headers, each followed by others that are nearly the same."""
    found = []
    for raw in draw(st.lists(headers, min_size=1, max_size=6)):
        found += [raw, raw]
        found += [damaged(raw, marks) for marks in draw(st.lists(st.lists(damage), max_size=4))]
        found.append(raw)
    return found


SPLITS = [(("a", "1"), ("b", "23")), (("a", "12"), ("b", "3"))]
WITHIN = header(("a", "xxxxxxxxxx"), ("b", "1"))  # the first value may look like entries


@settings(max_examples=400, deadline=None)
@given(sequences())
@example([header(*pairs) for pairs in SPLITS * 2])
@example([WITHIN, header(("a", "x"), ("c", "yy"), ("b", "1"))])
@example([header(("a", "1"), ("b", "2")), header(("a", "1"), ("a", "2"))] * 2)
@example([header(("a", "1"), rest=entries(("b", "2"))), header(("a", "1"), ("b", "2"))] * 2)
@example([header(("a", "12")), header(("a", "ü")), damaged(header(("a", "12")), [(28, 0xFF)])])
def test_known_layouts_do_not_change_the_result(sequence: list[bytes]) -> None:
    table, empty = LayoutTable(), EmptyTable()
    for raw in sequence:
        assert outcome(table, raw) == outcome(empty, raw)


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_damage_at_every_place_of_a_known_header(byte: int) -> None:
    raw = header(("a", "1"), ("größe", "ü2"), ("c", "345"))
    table, empty = LayoutTable(), EmptyTable()
    outcome(table, raw)
    for place in range(len(raw)):
        changed = damaged(raw, [(place, byte)])
        assert outcome(table, changed) == outcome(empty, changed), place
    assert isinstance(outcome(table, raw), Command)


# ---- which headers are matched -------------------------------------------------------------------


def test_a_layout_matches_any_values_of_the_same_lengths(layouts: RecordingTable) -> None:
    def read(topic: str, number: str) -> bool:
        command = read_binary(header(("topic", topic), ("é", number)))
        assert command.ext == {"topic": topic, "é": number}
        return layouts.was_known[-1]

    assert not read("first", "1")
    assert read("first", "1")
    read("first", "2")  # one value changes, and then the other
    read("other", "2")
    assert read("third", "3")
    assert not read("größ", "4")  # of another size
    read("ßörg", "5")
    assert read("äöxx", "6")


def test_the_fixed_part_is_read_from_each_header(layouts: RecordingTable) -> None:
    ext = entries(("a", "1"))
    for opaque, flag, version in ((1, 0, 400), (2, 2, 500)):
        fixed = struct.pack(">hbhiii", 310, 9, version, opaque, flag, 0)
        command = read_binary(fixed + struct.pack(">i", len(ext)) + ext)
        assert (command.opaque, command.flag, command.version) == (opaque, flag, version)
        assert (command.language, command.ext, command.ext_entries) == ("GO", {"a": "1"}, None)
    assert layouts.was_known == [False, True]


def test_the_table_keeps_several_layouts_of_one_size(layouts: RecordingTable) -> None:
    assert len({len(header(*pairs)) for pairs in SPLITS}) == 1
    for _ in range(2):
        for pairs in SPLITS:
            assert read_binary(header(*pairs)).ext == dict(pairs)
    assert layouts.was_known == [False, False, True, True]


def test_the_same_size_with_another_code_is_another_layout(layouts: RecordingTable) -> None:
    for code in (310, 10, -310, 310):
        assert read_binary(header(("a", "1"), code=code)).code == code
    assert layouts.was_known == [False, False, False, True]


def test_of_too_many_layouts_with_one_size_the_oldest_is_dropped(layouts: RecordingTable) -> None:
    size = LAYOUTS_PER_KEY_MAX + 2
    alike = [header(("a", "x" * cut), ("b", "y" * (size - cut)), code=11) for cut in range(1, size)]
    assert len(alike) == LAYOUTS_PER_KEY_MAX + 1
    for raw in alike:
        read_binary(raw)
    assert layouts.was_known == [False] * len(alike)
    layouts.was_known.clear()
    for raw in reversed(alike):
        read_binary(raw)
    assert layouts.was_known == [True] * LAYOUTS_PER_KEY_MAX + [False]


def test_too_many_sizes_clear_the_table() -> None:
    layouts = RecordingTable()
    raws = [header(("a", "x" * length)) for length in range(1, KEYS_MAX + 2)]
    for raw in raws[:KEYS_MAX]:
        outcome(layouts, raw)
    assert outcome(layouts, raws[0]) == outcome(EmptyTable(), raws[0])
    assert layouts.was_known[-1]
    outcome(layouts, raws[KEYS_MAX])
    for raw in (raws[0], raws[KEYS_MAX - 1]):
        assert layouts.find(raw, 310) is None
    assert layouts.find(raws[KEYS_MAX], 310) is not None


@pytest.mark.parametrize(
    "raw",
    [
        header(("a", "1"), remark="r"),
        header(("a", "1"), ("a", "2")),
        header(("a", "1"), ("b", "")),
        header(("a", "1"), ("", "x")),
        header(("a", "1"), ("", "")),
        header(("a", "1"), rest=b"behind"),
        header(("a", "")),
        header(),
        header(*((f"k{number}", "v") for number in range(ENTRIES_MAX + 1))),
        header(("a", "x" * (HEADER_SIZE_MAX - 27))),
    ],
)
def test_headers_that_get_no_layout(layouts: RecordingTable, raw: bytes) -> None:
    first, second = read_binary(raw), read_binary(raw)
    assert first == second == outcome(EmptyTable(), raw)
    assert not any(layouts.was_known)


@pytest.mark.parametrize(
    "raw",
    [
        header(*((f"k{number}", "v") for number in range(ENTRIES_MAX))),
        header(("a", "x" * (HEADER_SIZE_MAX - 28))),
    ],
)
def test_headers_just_small_enough_for_a_layout(layouts: RecordingTable, raw: bytes) -> None:
    assert read_binary(raw) == read_binary(raw)
    assert layouts.was_known == [False, True]


def test_bytes_that_are_not_utf8_are_replaced_in_a_known_layout_too(
    layouts: RecordingTable,
) -> None:
    for number, value in (("1", "first"), ("2", "other"), ("3", "value")):
        raw = header(("a", number), ("name", value))
        assert read_binary(raw).ext == {"a": number, "name": value}
    assert layouts.was_known[-1], "both values are known to change"
    assert read_binary(raw.replace(b"value", b"val\xc3e")).ext == {"a": "3", "name": "val\ufffde"}
    assert read_binary(raw).ext == {"a": "3", "name": "value"}
    assert layouts.was_known[-1]
