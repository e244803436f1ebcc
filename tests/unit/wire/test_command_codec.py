"""The codec of one frame: remembered layouts and shapes give what the plain codec gives."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import skylark
from skylark.core.errors import HeaderFieldError, LocalProtocolError, RemoteProtocolError
from skylark.wire import command_codec
from skylark.wire.codes import CURRENT_VERSION
from skylark.wire.command import FLAG_RESPONSE, SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.command_codec import (
    DECIMAL,
    FRAME_SIZE_MAX,
    TEXT,
    LazyCommand,
    ResponseShape,
    ShapedResponse,
    Slot,
    hex_slot,
    read,
    write,
)
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.frame import decode_frame, encode_frame
from skylark.wire.header_binary import decode_binary_header, encode_binary_header
from skylark.wire.header_json import decode_json_header, encode_json_header
from skylark.wire.header_layout import LayoutTable
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from tests.support.mutations import recorded_frames

SEND = {
    "a": "g", "b": "topic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1790000000000",
    "h": "0", "i": "UNIQ_KEY\x01A\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_layouts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_codec, "_layouts", LayoutTable())
        yield


def received(ext: dict[str, str], opaque: int = 7) -> Command:
    command = Command(code=310, opaque=opaque, ext=ext, serialize_type=SERIALIZE_BINARY)
    return read(encode_binary_header(command), SERIALIZE_BINARY)


def lazy(ext: dict[str, str], **other: str) -> LazyCommand:
    """A command of a known layout: earlier ones differed from it in these values."""
    received(ext)
    received(ext | other)
    command = received(ext)
    assert isinstance(command, LazyCommand)
    return command


def outcome(function: Any, *arguments: object) -> object:
    """The result, or the text of the error."""
    try:
        return function(*arguments)
    except (HeaderFieldError, RemoteProtocolError) as error:
        return type(error), str(error)


# --- reading --------------------------------------------------------------------------------------


def test_fields_and_custom_header_of_a_lazy_command() -> None:
    command = lazy(SEND, e="5", g="1790000000001", i="UNIQ_KEY\x01B\x02")
    assert command.layout.names == ["e", "g", "i"]
    header = command.header(SendMessageRequestHeaderV2)
    assert (header.queue_id, header.born_timestamp) == (3, 1_790_000_000_000)
    assert (header.properties, header.topic) == ("UNIQ_KEY\x01A\x02", "topic")
    assert command.values is not None, "no map was made"
    assert command.ext == SEND
    assert list(command.ext) == list(SEND)


def test_each_header_is_an_object_of_its_own() -> None:
    command = lazy(SEND, e="5")
    first = command.header(SendMessageRequestHeaderV2)
    first.topic, first.queue_id = "other", 9
    second = command.header(SendMessageRequestHeaderV2)
    assert (second.topic, second.queue_id) == ("topic", 3)


def test_a_map_that_was_changed_counts() -> None:
    command = lazy(SEND, e="5")
    assert command.header(SendMessageRequestHeaderV2).topic == "topic"
    assert command.ext is not None
    command.ext["b"] = "other"
    assert command.header(SendMessageRequestHeaderV2).topic == "other"
    command.ext = SEND | {"b": "third"}
    assert command.header(SendMessageRequestHeaderV2).topic == "third"
    command.ext = None
    assert command.ext is None


def test_a_map_that_was_set_counts_even_if_none_was_built() -> None:
    command = lazy(SEND, e="5")
    command.ext = SEND | {"b": "third"}
    assert command.header(SendMessageRequestHeaderV2).topic == "third"


def test_a_lazy_command_equals_a_plain_one_and_encodes_to_the_same_bytes() -> None:
    command = lazy(SEND, e="5")
    plain = Command(code=310, opaque=7, ext=SEND, serialize_type=SERIALIZE_BINARY)
    assert command == plain
    assert plain == command
    assert (command != plain) is False
    assert (plain != command) is False
    assert encode_binary_header(lazy(SEND, e="5")) == encode_binary_header(plain)
    plain.opaque = 8
    assert command != plain
    assert command != "a command"


def test_two_types_of_custom_headers_and_fields_that_none_declares() -> None:
    command = lazy(SEND | {"unknown": "1"}, unknown="2", e="5")
    assert command.header(SendMessageRequestHeaderV2).queue_id == 3
    with pytest.raises(HeaderFieldError):
        command.header(PullMessageRequestHeader)


#: No empty one: a zero-length value in a binary header is absent.
VALUES = st.sampled_from(
    [
        "0",
        "3",
        "-1",
        "+5",
        "007",
        "12345678901",
        "9" * 19,
        " ",
        "x",
        "1.0",
        "٣",
        "true",
        "TRUE",
        "1",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(list("bdefghijkmn")), VALUES, max_size=4),
        min_size=3,
        max_size=12,
    )
)
@example([{"e": "3"}, {"e": "5"}, {"e": "x"}, {"e": "7"}])
@example([{"j": "1.0", "e": e} for e in ("-1", "+5", "-1", "٣")])
@example([{"e": "-1"}, {"e": "+5"}, {"e": "-1"}, {"e": "1.0"}, {"e": "+7"}])
@example([{"m": "true"}, {"m": "TRUE"}, {"m": "true"}, {"m": "TRUE"}])
@example([{"e": "x"}, {"e": "y"}, {"e": "x"}, {"e": "1"}, {"e": "2"}])
def test_any_sequence_of_headers_is_read_as_by_the_plain_codec(
    changes: list[dict[str, str]],
) -> None:
    command_codec._layouts = LayoutTable()  # put back by the fixture
    for change in changes:
        ext = SEND | change
        command = received(ext)
        header = outcome(command.header, SendMessageRequestHeaderV2)
        assert header == outcome(decode_ext, SendMessageRequestHeaderV2, ext)
        assert command.ext == ext


#: Headers of requests that clients really sent, with both encodings.
RECORDED = tuple(
    sorted(
        {
            (frame[8 : 8 + int.from_bytes(frame[5:8], "big")], frame[4])
            for frame in recorded_frames()
        }
    )
)


def read_plainly(header: bytes, serialize_type: int) -> Command:
    return (decode_json_header, decode_binary_header)[serialize_type](header)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(RECORDED),
    st.lists(
        st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=4), max_size=6
    ),
)
def test_damaged_headers_of_real_clients_are_read_as_by_the_plain_codec(
    recorded: tuple[bytes, int], damages: list[list[tuple[int, int]]]
) -> None:
    command_codec._layouts = LayoutTable()  # put back by the fixture
    header, serialize_type = recorded
    for damage in [[], [], *damages, []]:
        changed = bytearray(header)
        for place, byte in damage:
            changed[place % len(header)] = byte
        raw = bytes(changed)
        fast = outcome(read, raw, serialize_type)
        plain = outcome(read_plainly, raw, serialize_type)
        if isinstance(fast, LazyCommand) and isinstance(plain, Command):
            assert fast.code == plain.code
            for header_type in (SendMessageRequestHeaderV2, PullMessageRequestHeader):
                expected = outcome(plain.header, header_type)
                assert outcome(fast.header, header_type) == expected
        assert fast == plain


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 1))
def test_garbage_is_the_error_of_the_plain_codec(garbage: bytes, serialize_type: int) -> None:
    fast = outcome(read, garbage, serialize_type)
    assert fast == outcome(read_plainly, garbage, serialize_type)


def test_an_unknown_serialize_type_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError, match="serialize type 2 is neither JSON nor ROCKETMQ"):
        read(b"{}", 2)


def test_the_memory_size_of_a_lazy_command_needs_no_map() -> None:
    command = lazy(SEND, e="5")
    command.body = bytes(100)
    size = command.memory_size
    assert command.values is not None
    assert sum(map(len, SEND.values())) + 100 < size < 1_000
    assert command.ext == SEND
    assert sum(map(len, SEND.values())) + 100 < command.memory_size <= size


# --- writing --------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
#: Texts that look like the marks and formats that a shape uses internally.
TRICKY = st.sampled_from(
    [
        "<",
        "<0>",
        "<<0>",
        '"<0>"',
        "%d",
        "%",
        "%%b",
        '"opaque":1073741824,',
        "1073741824",
        "\\",
        "\0",
    ]
)
TEXTS = ANY_TEXT | TRICKY
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
OFFSETS = st.integers(0, 2**63 - 1)


@st.composite
def shaped_responses(draw: st.DrawFn) -> ShapedResponse:
    """A response of any shape; at most one TEXT, which is any text."""
    fields: dict[str, str | Slot] = {}
    values: list[int | bytes] = []
    for name in draw(st.lists(TEXTS, unique=True, max_size=6)):
        kind = draw(st.sampled_from(["fixed", "decimal", "hex", "text"]))
        if kind == "decimal":
            fields[name] = DECIMAL
            values.append(draw(INT64))
        elif kind == "hex":
            fields[name] = hex_slot(draw(st.sampled_from(["", "7F0000", "100%d"])))
            values.append(draw(OFFSETS))
        elif kind == "text" and TEXT not in fields.values():
            fields[name] = TEXT
            values.append(draw(TEXTS | st.just("7F00K1")).encode())
        else:
            fields[name] = draw(TEXTS)
    shape = ResponseShape(draw(INT32), fields, draw(st.none() | TEXTS))
    body = draw(st.none() | st.binary(min_size=1, max_size=30))
    return ShapedResponse(shape, (*values, draw(INT32)), body)


@settings(max_examples=500, deadline=None)
@given(shaped_responses())
def test_a_shaped_response_has_the_frame_of_its_command(response: ShapedResponse) -> None:
    command = response.command()
    frame = write(response)
    assert frame == encode_frame(command) == write(command)
    assert decode_frame(frame).ext == command.ext
    if response.body is not None:
        assert write(ShapedResponse(response.shape, response.values, memoryview(response.body)))


@settings(max_examples=100, deadline=None)
@given(OFFSETS, INT32, OFFSETS, TEXTS, INT32)
def test_a_send_reply_is_what_the_typed_header_gives(
    log_offset: int, queue_id: int, queue_offset: int, key: str, opaque: int
) -> None:
    fixed = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    fields: dict[str, str | Slot] = {
        **fixed,
        "msgId": hex_slot("7F00000100002A9F"),
        "queueId": DECIMAL,
        "queueOffset": DECIMAL,
        "transactionId": TEXT,
    }
    header = SendMessageResponseHeader(
        msg_id=f"7F00000100002A9F{log_offset:016X}",
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=key,
    )
    plain = Command(
        code=0,
        flag=FLAG_RESPONSE,
        opaque=opaque,
        version=CURRENT_VERSION,
        ext=fixed | encode_ext(header),
    )
    values = (log_offset, queue_id, queue_offset, key.encode(), opaque)
    assert write(ShapedResponse(ResponseShape(0, fields), values)) == write(plain)


def test_the_layout_of_a_written_frame() -> None:
    response = ShapedResponse(ResponseShape(0, {"n": DECIMAL}), (5, 77), b"body")
    frame = write(response)
    length, header_size = struct.unpack_from(">iI", frame)
    assert length == len(frame) - 4
    assert frame[8 : 8 + header_size] == encode_json_header(response.command())
    assert frame[8 + header_size :] == b"body"
    command = response.command()
    command.serialize_type = SERIALIZE_BINARY
    assert decode_frame(write(command)).ext == {"n": "5"}
    assert write(command)[4] == SERIALIZE_BINARY != SERIALIZE_JSON


def test_a_shape_has_one_text_at_most() -> None:
    with pytest.raises(ValueError, match=r"at most one TEXT.*'a', 'b'"):
        ResponseShape(0, {"a": TEXT, "b": TEXT})


def test_a_text_that_is_not_utf8_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        write(ShapedResponse(ResponseShape(0, {"a": TEXT}), (b"\xff", 1)))


def test_the_frame_limit_is_exact() -> None:
    shape = ResponseShape(0, {"n": DECIMAL})
    room = FRAME_SIZE_MAX - len(write(ShapedResponse(shape, (1, 2))))
    assert len(write(ShapedResponse(shape, (1, 2), bytes(room)))) == FRAME_SIZE_MAX
    with pytest.raises(LocalProtocolError, match="exceeds 16777216"):
        write(ShapedResponse(shape, (1, 2), bytes(room + 1)))
    text = ResponseShape(0, {"n": TEXT})
    with pytest.raises(LocalProtocolError, match="exceeds 16777216"):
        write(ShapedResponse(text, (b"x" * FRAME_SIZE_MAX, 2)))


# --- the seam -------------------------------------------------------------------------------------


def test_no_other_package_names_the_accelerations() -> None:
    """Layouts and lazy commands stay behind ``read`` and ``Command.header``."""
    folder = Path(skylark.__file__).parent
    hidden = re.compile(
        r"\bLayoutTable\b|\bheader_layout\b|wire\.command_codec import .*LazyCommand"
    )
    users = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if hidden.search(path.read_text())
    }
    assert users == {"wire/command_codec.py", "wire/header_layout.py"}
