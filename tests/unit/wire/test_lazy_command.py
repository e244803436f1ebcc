"""Requests that were cut by a layout: the same fields and custom headers as if they were not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.core.errors import HeaderFieldError
from skylark.wire import header_binary
from skylark.wire.command import SERIALIZE_BINARY, Command
from skylark.wire.fields import Header, decode_ext
from skylark.wire.header_binary import decode_binary_header, encode_binary_header
from skylark.wire.header_layout import Layouts
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.headers.send import SendMessageRequestHeaderV2
from skylark.wire.lazy_command import CutCommand, header_of

SEND = {
    "a": "g", "b": "topic", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1790000000000",
    "h": "0", "i": "UNIQ_KEY\x01A\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_learned() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header_binary, "_layouts", Layouts())
        yield


def received(ext: dict[str, str], opaque: int = 7) -> Command:
    command = Command(code=310, opaque=opaque, ext=ext, serialize_type=SERIALIZE_BINARY)
    return decode_binary_header(encode_binary_header(command))


def cut(ext: dict[str, str], **other: str) -> CutCommand:
    """A request that was cut: others like it came before, which differed as these values do."""
    received(ext)
    received(ext | other)
    command = received(ext)
    assert isinstance(command, CutCommand)
    return command


def custom_header(header_type: type[Header], command: Command) -> Header | str:
    try:
        return header_of(header_type, command)
    except HeaderFieldError as error:
        return str(error)


def expected_header(header_type: type[Header], ext: dict[str, str]) -> Header | str:
    try:
        return decode_ext(header_type, ext)
    except HeaderFieldError as error:
        return str(error)


def test_fields_and_header_of_a_request_that_was_cut() -> None:
    command = cut(SEND, e="5", g="1790000000001", i="UNIQ_KEY\x01B\x02")
    assert command.layout.names == ["e", "g", "i"]
    header = header_of(SendMessageRequestHeaderV2, command)
    assert (header.queue_id, header.born_timestamp) == (3, 1_790_000_000_000)
    assert (header.properties, header.topic) == ("UNIQ_KEY\x01A\x02", "topic")
    assert command.values is not None, "no map was made"
    assert command.ext == SEND
    assert list(command.ext) == list(SEND)


def test_each_header_is_an_object_of_its_own() -> None:
    command = cut(SEND, e="5")
    first = header_of(SendMessageRequestHeaderV2, command)
    first.topic, first.queue_id = "other", 9
    second = header_of(SendMessageRequestHeaderV2, command)
    assert (second.topic, second.queue_id) == ("topic", 3)


def test_a_map_that_was_changed_counts() -> None:
    command = cut(SEND, e="5")
    assert header_of(SendMessageRequestHeaderV2, command).topic == "topic"
    assert command.ext is not None
    command.ext["b"] = "other"
    assert header_of(SendMessageRequestHeaderV2, command).topic == "other"
    command.ext = SEND | {"b": "third"}
    assert header_of(SendMessageRequestHeaderV2, command).topic == "third"
    command.ext = None
    assert command.ext is None


def test_a_map_that_was_given_counts_also_if_none_was_asked_for() -> None:
    command = cut(SEND, e="5")
    command.ext = SEND | {"b": "third"}
    assert header_of(SendMessageRequestHeaderV2, command).topic == "third"


def test_it_equals_a_command_that_was_not_cut_and_encodes_to_the_same_bytes() -> None:
    command = cut(SEND, e="5")
    plain = Command(code=310, opaque=7, ext=SEND, serialize_type=SERIALIZE_BINARY)
    assert command == plain
    assert plain == command
    assert (command != plain) is False
    assert (plain != command) is False
    assert encode_binary_header(cut(SEND, e="5")) == encode_binary_header(plain)
    plain.opaque = 8
    assert command != plain
    assert command != "a command"


def test_two_types_of_headers_and_fields_that_none_declares() -> None:
    command = cut(SEND | {"unknown": "1"}, unknown="2", e="5")
    assert header_of(SendMessageRequestHeaderV2, command).queue_id == 3
    with pytest.raises(HeaderFieldError):
        header_of(PullMessageRequestHeader, command)


#: None of length zero: those are no values in a binary header.
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
def test_any_sequence_of_headers_is_read_as_by_itself(changes: list[dict[str, str]]) -> None:
    header_binary._layouts = Layouts()  # put back by the fixture
    for change in changes:
        ext = SEND | change
        command = received(ext)
        header = custom_header(SendMessageRequestHeaderV2, command)
        assert header == expected_header(SendMessageRequestHeaderV2, ext)
        assert command.ext == ext
