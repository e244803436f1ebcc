"""Frames: the length prefix, the type byte and the pieces between.

====================  =====================================================
 0   4                L = 4 + header length + body length (without these 4)
 4   1                serialize type: 0 JSON, 1 ROCKETMQ binary
 5   3                header length, unsigned
 8   header length    header
 ..  the rest         body; length 0 reads as "no body"
====================  =====================================================

:class:`FrameBuffer` turns any split of the byte stream into whole commands. It is the only place
that judges lengths: a negative or oversized L, a header longer than its frame, an unknown type
byte or an undecodable header break the stream for good (:attr:`FrameBuffer.error`), and the
connection is of no further use. Answers to ``NettyDecoder`` and ``NettyEncoder``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.command import SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.header_binary import decode_binary_header, encode_binary_header
from skylark.wire.header_json import decode_json_header, encode_json_header

#: Java's com.rocketmq.remoting.frameMaxLength: the whole frame, length word included.
FRAME_SIZE_MAX = 16_777_216

PREFIX = struct.Struct(">iI")  # L, then type byte and 24-bit header length in one word
assert PREFIX.size == 8
_LENGTH = struct.Struct(">i")
_HEADER_SIZE_MASK = 0xFF_FFFF
assert SERIALIZE_JSON == 0  # a JSON frame's second word is the plain header length
_SMALL_CHUNK_SIZE = 1024


class FrameBuffer:
    """Collects bytes and hands out whole commands.

    ``frame_size_max`` bounds what one frame may hold and so what this buffer may hold: bytes of
    an oversized frame are refused from its length word, not collected.

    What came before a broken frame is still handed out: :meth:`feed` returns it and sets
    :attr:`error`. Feeding a broken stream again raises that error.
    """

    __slots__ = ("_frame_size_max", "_length_max", "_parts", "_parts_size", "_wanted", "error")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frame_size_max = frame_size_max
        self._length_max = frame_size_max - 4
        # An unfinished frame is kept as the chunks it came in and joined once, when complete:
        # appending each chunk to one buffer would copy a large frame again and again. Small
        # chunks in a row do share a buffer: as objects they would take many times their bytes.
        self._parts: list[bytes | bytearray] = []
        self._parts_size = 0
        self._wanted = 8
        self.error: RemoteProtocolError | None = None

    @property
    def pending_size(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return self._parts_size

    def feed(self, chunk: bytes) -> list[Command]:
        """Take a chunk as it came from the peer; return the commands it completes, in order."""
        if self.error is not None:
            raise self.error
        if self._parts:
            self._keep(chunk)
            self._parts_size += len(chunk)
            if self._parts_size < self._wanted:
                return []
            chunk = b"".join(self._parts)
            self._parts.clear()
            self._parts_size = 0
        commands: list[Command] = []
        try:
            self._split(chunk, commands)
        except RemoteProtocolError as error:
            self.error = error
        return commands

    def _keep(self, chunk: bytes) -> None:
        last = self._parts[-1]
        if len(chunk) >= _SMALL_CHUNK_SIZE:
            self._parts.append(chunk)
        elif isinstance(last, bytearray):
            last += chunk
        else:
            self._parts.append(bytearray(chunk))

    def _split(self, chunk: bytes, commands: list[Command]) -> None:
        position = 0
        size = len(chunk)
        unpack_prefix = PREFIX.unpack_from
        length_max = self._length_max
        wanted = 8
        while size - position >= 8:
            length, word = unpack_prefix(chunk, position)
            header_size = word & _HEADER_SIZE_MASK
            if not 4 <= length <= length_max or header_size > length - 4:
                self._refuse(length, header_size)
            wanted = length + 4
            end = position + wanted
            if end > size:
                break
            position += 8
            header_end = position + header_size
            # A JSON header is decoded from a copy: cheaper than a view at these sizes.
            header = chunk[position:header_end]
            if word == header_size:
                command = decode_json_header(header)
            elif word >> 24 == SERIALIZE_BINARY:
                command = decode_binary_header(header)
            else:
                raise RemoteProtocolError(
                    f"serialize type {word >> 24} is neither JSON nor ROCKETMQ"
                )
            if header_end < end:
                command.body = chunk[header_end:end]
            commands.append(command)
            position = end
            wanted = 8
        if position < size:
            # Even an unfinished prefix may already be wrong: do not wait for a 369 MB frame.
            if size - position < 4:
                wanted = 4
            else:
                self._check_length(chunk, position)
            self._parts.append(chunk[position:] if position else chunk)
            self._parts_size = size - position
            self._wanted = wanted

    def _check_length(self, chunk: bytes, position: int) -> None:
        (length,) = _LENGTH.unpack_from(chunk, position)
        if not 4 <= length <= self._length_max:
            self._refuse(length, 0)

    def _refuse(self, length: int, header_size: int) -> None:
        if length > self._length_max:
            raise RemoteProtocolError(
                f"a frame of {length + 4} bytes exceeds the limit of {self._frame_size_max}",
                hint="raise com.rocketmq.remoting.frameMaxLength on both sides if it is meant",
            )
        raise RemoteProtocolError(f"frame length {length} with header length {header_size}")


def decode_frame(frame: bytes) -> Command:
    """Decode exactly one whole frame, length word included."""
    buffer = FrameBuffer()
    commands = buffer.feed(frame)
    if buffer.error is not None:
        raise buffer.error
    if len(commands) != 1 or buffer.pending_size:
        raise RemoteProtocolError(f"{len(frame)} bytes are not exactly one frame")
    return commands[0]


def encode_head(command: Command, body_size: int) -> bytes:
    """Prefix and header of a frame whose body of ``body_size`` bytes is sent after it."""
    if command.serialize_type == SERIALIZE_BINARY:
        header = encode_binary_header(command)
    else:
        header = encode_json_header(command)
    header_size = len(header)
    length = 4 + header_size + body_size
    if header_size > _HEADER_SIZE_MASK or length + 4 > FRAME_SIZE_MAX:
        raise LocalProtocolError(
            f"a frame of {length + 4} bytes (code {command.code}) exceeds {FRAME_SIZE_MAX}"
        )
    return PREFIX.pack(length, command.serialize_type << 24 | header_size) + header


def encode_frame(command: Command) -> bytes:
    """The whole frame of ``command`` as one byte string."""
    body = command.body
    if not body:
        return encode_head(command, 0)
    return encode_head(command, len(body)) + body


def encode_frames(commands: Iterable[Command]) -> list[bytes]:
    """Pieces for one ``writelines``: head and body of each command, bodies not copied."""
    pieces = []
    for command in commands:
        body = command.body
        if body:
            pieces.append(encode_head(command, len(body)))
            pieces.append(body)
        else:
            pieces.append(encode_head(command, 0))
    return pieces
