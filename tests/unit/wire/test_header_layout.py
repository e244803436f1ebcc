"""Headers read by a layout that was learned: never anything else than what the walk would give."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.core.errors import RemoteProtocolError
from skylark.wire import header_binary
from skylark.wire.command import Command
from skylark.wire.header_binary import decode_binary_header
from skylark.wire.header_layout import (
    ALIKE_MAX,
    ENTRIES_MAX,
    HEADER_SIZE_MAX,
    KEYS_MAX,
    Layout,
    Layouts,
)


class Forgetful(Layouts):
    """Remembers nothing, so that every header is walked."""

    def learn(self, header: bytes, code: int, ext_at: int, ext: dict[str, str]) -> None:
        pass


class Noting(Layouts):
    """Notes which headers it could read."""

    def __init__(self) -> None:
        super().__init__()
        self.was_known: list[bool] = []

    def read(self, header: bytes, code: int) -> tuple[Layout, tuple[str, ...]] | None:
        found = super().read(header, code)
        self.was_known.append(found is not None)
        return found


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> Noting:
    """What the decoder learns during the test."""
    noting = Noting()
    monkeypatch.setattr(header_binary, "_layouts", noting)
    return noting


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


def outcome(layouts: Layouts, raw: bytes) -> Command | type[Exception]:
    """What the decoder makes of a header with this knowledge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_binary, "_layouts", layouts)
        try:
            return decode_binary_header(raw)
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
def test_what_was_learned_changes_nothing(sequence: list[bytes]) -> None:
    learned, forgetful = Layouts(), Forgetful()
    for raw in sequence:
        assert outcome(learned, raw) == outcome(forgetful, raw)


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x7F, 0x80, 0xFF])
def test_damage_at_every_place_of_a_known_header(byte: int) -> None:
    raw = header(("a", "1"), ("größe", "ü2"), ("c", "345"))
    learned, forgetful = Layouts(), Forgetful()
    outcome(learned, raw)
    for place in range(len(raw)):
        changed = damaged(raw, [(place, byte)])
        assert outcome(learned, changed) == outcome(forgetful, changed), place
    assert isinstance(outcome(learned, raw), Command)


# ---- what is known -------------------------------------------------------------------------------


def test_headers_alike_are_read_in_one_step_whatever_their_values(layouts: Noting) -> None:
    def read(topic: str, number: str) -> bool:
        command = decode_binary_header(header(("topic", topic), ("é", number)))
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


def test_the_fixed_part_is_that_of_each_header(layouts: Noting) -> None:
    ext = entries(("a", "1"))
    for opaque, flag, version in ((1, 0, 400), (2, 2, 500)):
        fixed = struct.pack(">hbhiii", 310, 9, version, opaque, flag, 0)
        command = decode_binary_header(fixed + struct.pack(">i", len(ext)) + ext)
        assert (command.opaque, command.flag, command.version) == (opaque, flag, version)
        assert (command.language, command.ext, command.ext_entries) == ("GO", {"a": "1"}, None)
    assert layouts.was_known == [False, True]


def test_layouts_of_one_size_stand_side_by_side(layouts: Noting) -> None:
    assert len({len(header(*pairs)) for pairs in SPLITS}) == 1
    for _ in range(2):
        for pairs in SPLITS:
            assert decode_binary_header(header(*pairs)).ext == dict(pairs)
    assert layouts.was_known == [False, False, True, True]


def test_the_same_size_with_another_code_is_something_else(layouts: Noting) -> None:
    for code in (310, 10, -310, 310):
        assert decode_binary_header(header(("a", "1"), code=code)).code == code
    assert layouts.was_known == [False, False, False, True]


def test_with_too_many_alike_the_oldest_is_forgotten(layouts: Noting) -> None:
    size = ALIKE_MAX + 2
    alike = [header(("a", "x" * cut), ("b", "y" * (size - cut)), code=11) for cut in range(1, size)]
    assert len(alike) == ALIKE_MAX + 1
    for raw in alike:
        decode_binary_header(raw)
    assert layouts.was_known == [False] * len(alike)
    layouts.was_known.clear()
    for raw in reversed(alike):
        decode_binary_header(raw)
    assert layouts.was_known == [True] * ALIKE_MAX + [False]


def test_of_too_many_sizes_none_is_kept() -> None:
    layouts = Noting()
    raws = [header(("a", "x" * length)) for length in range(1, KEYS_MAX + 2)]
    for raw in raws[:KEYS_MAX]:
        outcome(layouts, raw)
    assert outcome(layouts, raws[0]) == outcome(Forgetful(), raws[0])
    assert layouts.was_known[-1]
    outcome(layouts, raws[KEYS_MAX])
    for raw in (raws[0], raws[KEYS_MAX - 1]):
        assert layouts.read(raw, 310) is None
    assert layouts.read(raws[KEYS_MAX], 310) is not None


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
def test_what_is_never_learned(layouts: Noting, raw: bytes) -> None:
    first, second = decode_binary_header(raw), decode_binary_header(raw)
    assert first == second == outcome(Forgetful(), raw)
    assert not any(layouts.was_known)


@pytest.mark.parametrize(
    "raw",
    [
        header(*((f"k{number}", "v") for number in range(ENTRIES_MAX))),
        header(("a", "x" * (HEADER_SIZE_MAX - 28))),
    ],
)
def test_what_is_just_small_enough(layouts: Noting, raw: bytes) -> None:
    assert decode_binary_header(raw) == decode_binary_header(raw)
    assert layouts.was_known == [False, True]


def test_a_known_layout_does_not_excuse_bytes_that_are_no_text(layouts: Noting) -> None:
    for number, value in (("1", "first"), ("2", "other"), ("3", "value")):
        raw = header(("a", number), ("name", value))
        assert decode_binary_header(raw).ext == {"a": number, "name": value}
    assert layouts.was_known[-1], "both values are known to change"
    with pytest.raises(RemoteProtocolError, match="holds no UTF-8"):
        decode_binary_header(raw.replace(b"value", b"val\xc3e"))
    assert decode_binary_header(raw).ext == {"a": "3", "name": "value"}
    assert layouts.was_known[-1]
