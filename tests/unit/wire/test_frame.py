"""Frames: the examples of the specification byte by byte, every split, and every limit."""

from __future__ import annotations

import struct
import sys

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.command import SERIALIZE_BINARY, Command
from skylark.wire.command_codec import FRAME_SIZE_MAX
from skylark.wire.frame import FrameBuffer, decode_frame, encode_frame


def route_request(serialize_type: int = 0) -> Command:
    return Command(
        code=105,
        ext={"topic": "TopicTest"},
        opaque=1,
        version=399,
        serialize_type=serialize_type,
    )


JSON_ROUTE_HEADER = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":1,'
    b'"serializeTypeCurrentRPC":"JSON","version":399}'
)
BINARY_ROUTE_FRAME = bytes.fromhex(
    "0000002d 01000029 0069 00 018f 00000001 00000000 00000000 00000014"
    "0005 746f706963 00000009 546f70696354657374"
)


@pytest.mark.spec("remoting.10.1")
def test_the_two_encodings_of_the_specification() -> None:
    frame = encode_frame(route_request())
    assert frame[:8] == bytes.fromhex("00000087 00000083")
    assert frame[8:] == JSON_ROUTE_HEADER
    assert encode_frame(route_request(SERIALIZE_BINARY)) == BINARY_ROUTE_FRAME

    from_json, from_binary = decode_frame(frame), decode_frame(BINARY_ROUTE_FRAME)
    for command in (from_json, from_binary):
        assert (command.code, command.opaque, command.flag) == (105, 1, 0)
        assert (command.language, command.version, command.remark) == ("JAVA", 399, None)
        assert command.ext == {"topic": "TopicTest"}
        assert command.body is None


@pytest.mark.spec("remoting.10.2")
def test_three_frames_split_at_every_byte_and_in_one_write() -> None:
    commands = [
        Command(code=310, opaque=1, ext={"a": "g"}, body=b"hello", version=513),
        Command(code=34, opaque=2, ext={}, body=b"{}", serialize_type=SERIALIZE_BINARY),
        Command(code=105, opaque=3, remark="äöü"),
    ]
    stream = b"".join(map(encode_frame, commands))
    expected = [(310, 1, b"hello"), (34, 2, b"{}"), (105, 3, None)]

    assert [(c.code, c.opaque, c.body) for c in FrameBuffer().feed(stream)] == expected
    for cut in range(len(stream) + 1):
        buffer = FrameBuffer()
        got = buffer.feed(stream[:cut]) + buffer.feed(stream[cut:])
        assert [(c.code, c.opaque, c.body) for c in got] == expected
        assert buffer.pending_size == 0
        assert buffer.error is None


@pytest.mark.spec("remoting.10.2")
def test_the_frame_limit_is_exact() -> None:
    largest = FRAME_SIZE_MAX - 4
    assert largest == 16_777_212
    header = b'{"code":1}'
    prefix = struct.pack(">iI", largest, len(header)) + header
    buffer = FrameBuffer()
    assert buffer.feed(prefix) == []
    (command,) = buffer.feed(bytes(largest - 4 - len(header)))
    assert len(command.body or b"") == largest - 4 - len(header)

    refused = FrameBuffer()
    assert refused.feed(struct.pack(">iI", largest + 1, len(header))) == []
    assert refused.error is not None
    assert "exceeds the limit" in str(refused.error)


def test_a_frame_one_byte_over_the_limit_is_refused_also_when_it_arrives_whole() -> None:
    largest, too_large = (encode_frame(Command(code=10, body=bytes(size))) for size in (100, 101))
    before = encode_frame(Command(code=11))
    buffer = FrameBuffer(len(largest))
    assert [command.code for command in buffer.feed(before + largest)] == [11, 10]
    assert [command.code for command in buffer.feed(before + too_large + before)] == [11]
    assert buffer.error is not None
    assert f"a frame of {len(too_large)} bytes exceeds the limit" in str(buffer.error)
    assert buffer.pending_size == 0


def test_an_oversized_frame_is_refused_from_its_length_word_alone() -> None:
    buffer = FrameBuffer()
    assert buffer.feed(b"\x16\x03\x01\x00") == []  # a TLS hello would be a frame of 369 MB
    assert buffer.error is not None
    assert buffer.pending_size == 0


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">iI", -1, 0), id="negative length"),
        pytest.param(struct.pack(">iI", 3, 0), id="length below its own header word"),
        pytest.param(struct.pack(">iI", 20, 20) + bytes(16), id="header as long as the frame"),
        pytest.param(struct.pack(">iI", 6, 2 << 24 | 2) + b"{}", id="unknown type byte"),
        pytest.param(struct.pack(">iI", 6, 2) + b"{x", id="no JSON"),
        pytest.param(struct.pack(">iI", 6, 2) + b"[]", id="JSON but no object"),
        pytest.param(struct.pack(">iI", 24, 1 << 24 | 20) + bytes(20), id="short binary header"),
    ],
)
@pytest.mark.spec("remoting.10.2")
def test_broken_frames_break_the_stream(frame: bytes) -> None:
    good = encode_frame(route_request())
    buffer = FrameBuffer()
    assert [command.code for command in buffer.feed(good + frame + good)] == [105]
    error = buffer.error
    assert isinstance(error, RemoteProtocolError)
    with pytest.raises(RemoteProtocolError) as raised:
        buffer.feed(good)
    assert raised.value is error
    with pytest.raises(RemoteProtocolError):
        decode_frame(frame)


def test_exactly_one_frame() -> None:
    good = encode_frame(route_request())
    for wrong in (good + good, good[:-1], good + b"\0", b""):
        with pytest.raises(RemoteProtocolError, match="not exactly one frame"):
            decode_frame(wrong)


def test_a_frame_too_large_to_send_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="exceeds 16777216"):
        encode_frame(Command(code=1, body=bytes(FRAME_SIZE_MAX)))


def test_a_frame_in_tiny_chunks_takes_no_more_memory_than_its_bytes() -> None:
    frame = encode_frame(Command(code=10, body=bytes(200_000)))
    buffer = FrameBuffer()
    for position in range(0, 190_000, 2):
        buffer.feed(frame[position : position + 2])
    held = sum(map(sys.getsizeof, buffer._parts)) + sys.getsizeof(buffer._parts)
    assert buffer.pending_size == 190_000
    assert held < 300_000
    (command,) = buffer.feed(frame[190_000:])
    assert command.body == bytes(200_000)


def test_a_large_frame_in_small_chunks_is_joined_once() -> None:
    frame = encode_frame(Command(code=10, body=bytes(1_000_000)))
    buffer = FrameBuffer()
    got = []
    for position in range(0, len(frame), 1000):
        got += buffer.feed(frame[position : position + 1000])
    assert len(got) == 1
    assert len(got[0].body or b"") == 1_000_000
