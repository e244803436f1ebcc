"""Splits a byte stream into frames and decodes each to a command.

The layout of a frame is shown in :mod:`skylark.wire.command_codec`, which reads and writes one.
:class:`FrameBuffer` accepts the stream in chunks of any size and returns whole commands. It is the
only place that checks lengths: a negative or oversized L, a header longer than its frame, an
unknown type byte or an undecodable header is a final error of the stream
(:attr:`FrameBuffer.error`), and the connection must be closed. Counterpart of Java's
``NettyDecoder`` and ``NettyEncoder``.
"""

from __future__ import annotations

import struct

from skylark.core.errors import RemoteProtocolError
from skylark.wire.command import Command
from skylark.wire.command_codec import FRAME_SIZE_MAX, HEADER_SIZE_MASK, PREFIX, read, write_head

_LENGTH = struct.Struct(">i")
_SMALL_CHUNK_SIZE = 1024


class FrameBuffer:
    """Collects bytes and returns whole commands.

    ``frame_size_max`` limits one frame and so this buffer: the length word of an oversized frame is
    enough to refuse it, its bytes are not collected.

    The commands before a broken frame are not lost: :meth:`feed` returns them and sets
    :attr:`error`. The next call of :meth:`feed` raises that error.
    """

    __slots__ = ("_frame_size_max", "_length_max", "_parts", "_parts_size", "_wanted", "error")

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        self._frame_size_max = frame_size_max
        self._length_max = frame_size_max - 4
        # An incomplete frame is kept as a list of chunks and joined once, when complete: appending
        # each chunk to one buffer would copy a large frame again and again. Consecutive small
        # chunks do share a buffer: as objects they would take many times their bytes.
        self._parts: list[bytes | bytearray] = []
        self._parts_size = 0
        self._wanted = 8
        self.error: RemoteProtocolError | None = None

    @property
    def pending_size(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return self._parts_size

    def feed(self, chunk: bytes) -> list[Command]:
        """Add a chunk from the peer; return the commands that it completes, in order."""
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
            header_size = word & HEADER_SIZE_MASK
            if not 4 <= length <= length_max or header_size > length - 4:
                self._refuse(length, header_size)
            wanted = length + 4
            end = position + wanted
            if end > size:
                break
            position += 8
            header_end = position + header_size
            # A copy of the header is cheaper than a view at these sizes.
            command = read(chunk[position:header_end], word >> 24)
            if header_end < end:
                command.body = chunk[header_end:end]
            commands.append(command)
            position = end
            wanted = 8
        if position < size:
            # A length word alone may already be wrong: do not wait for a frame of 369 MB.
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
    """Decode the bytes of exactly one frame, length word included."""
    buffer = FrameBuffer()
    commands = buffer.feed(frame)
    if buffer.error is not None:
        raise buffer.error
    if len(commands) != 1 or buffer.pending_size:
        raise RemoteProtocolError(f"{len(frame)} bytes are not exactly one frame")
    return commands[0]


def encode_frame(command: Command) -> bytes:
    """The whole frame of ``command`` as one byte string."""
    body = command.body
    return write_head(command, len(body)) + body if body else write_head(command, 0)
