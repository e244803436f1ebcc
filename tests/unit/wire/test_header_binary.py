"""Binary headers: nulls, repetitions and false lengths."""

from __future__ import annotations

import struct

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.command import SERIALIZE_BINARY, Command
from skylark.wire.header_binary import decode_binary_header, encode_binary_header


def entry(key: str, value: str) -> bytes:
    key_bytes, value_bytes = key.encode(), value.encode()
    return (
        struct.pack(">h", len(key_bytes))
        + key_bytes
        + struct.pack(">i", len(value_bytes))
        + value_bytes
    )


def header(ext: bytes, *, remark: bytes = b"", code: int = 310, language: int = 0) -> bytes:
    fixed = struct.pack(">hbhiii", code, language, 513, 7, 0, len(remark))
    return fixed + remark + struct.pack(">i", len(ext)) + ext


@pytest.mark.spec("remoting.10.9")
def test_the_last_of_two_equal_keys_wins() -> None:
    raw = header(entry("a", "1") + entry("topic", "T") + entry("a", "2"))
    command = decode_binary_header(raw)
    assert command.ext == {"a": "2", "topic": "T"}
    assert encode_binary_header(command) == raw


@pytest.mark.spec("remoting.10.9")
def test_a_zero_length_value_is_absent() -> None:
    for ext in (
        entry("a", "") + entry("b", "x"),
        entry("b", "x") + entry("", ""),
        entry("b", "x") + entry("", "nameless"),
        entry("", "") + entry("b", "x"),
    ):
        raw = header(ext)
        command = decode_binary_header(raw)
        assert command.ext == {"b": "x"}
        assert encode_binary_header(command) == raw


def test_text_beyond_ascii() -> None:
    ext = {"i": "schlüssel\x01wért\x02", "größe": "😀", "plain": "p" * 200}
    command = Command(code=10, ext=ext, remark="grüß", opaque=-5, language="GO", version=1)
    command.serialize_type = SERIALIZE_BINARY
    assert decode_binary_header(encode_binary_header(command)) == command


def test_unknown_language_codes_survive() -> None:
    raw = header(b"", language=77)
    command = decode_binary_header(raw)
    assert command.language == 77
    assert encode_binary_header(command) == raw
    assert (
        decode_binary_header(encode_binary_header(Command(language="KLINGON"))).language == "OTHER"
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(20),
        header(b"")[:-1] + b"\x01",
        header(b"", remark=b"abc")[:16] + b"\x7f" + header(b"", remark=b"abc")[17:],
        struct.pack(">hbhiii", 1, 0, 0, 0, 0, -1) + bytes(8),
        struct.pack(">hbhiii", 1, 0, 0, 0, 0, 0) + struct.pack(">i", -1),
        header(struct.pack(">h", -6) + bytes(5)),
        header(struct.pack(">h", 1) + b"a" + struct.pack(">i", -7)),
        header(struct.pack(">h", 1) + b"a" + struct.pack(">i", 9) + b"x"),
        header(struct.pack(">h", 300) + b"a" + struct.pack(">i", 0)),
        header(entry("a", "1") + b"\0\0\0"),
        header(entry("b", "x") + b"\0\0\0\0\0\x01"),
    ],
)
def test_false_lengths_are_one_typed_error(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_binary_header(raw)


@pytest.mark.parametrize(
    "command",
    [
        Command(remark="\ud800"),
        Command(ext={"\udcff": "v"}),
        Command(ext={"k": "\udcff"}),
        Command(ext_entries=[("k", "\udcff"), ("k", "v")]),
    ],
)
def test_text_that_is_not_utf8_cannot_be_written(command: Command) -> None:
    with pytest.raises(LocalProtocolError, match="cannot be written"):
        encode_binary_header(command)


def test_a_code_above_32767_must_go_as_json() -> None:
    with pytest.raises(LocalProtocolError, match="JSON header"):
        encode_binary_header(Command(code=200050))
    with pytest.raises(LocalProtocolError, match="32767"):
        encode_binary_header(Command(code=1, ext={"k" * 40000: "v"}))


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    raw = header(entry("a", "\x7f").replace(b"\x7f", b"\xff") + entry("b", "x"), remark=b"\xc3(")
    command = decode_binary_header(raw)
    assert command.ext == {"a": "\ufffd", "b": "x"}
    assert command.remark == "\ufffd("
