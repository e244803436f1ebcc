"""Cuts a master's stream of log bytes into whole records, so that a slave never writes a torn one.

A master cuts its log anywhere: frames begin and end within records. :class:`RecordStream` holds
back the bytes of a record until all of it has arrived::

    log end              received
      |== record ==|== record ==|== rec          <- what came in
      |------- returned --------|--held--|       <- :attr:`whole`, :attr:`end`

So the end of a slave's log is always the end of a record (or within a blank, of which only the head
matters), and a crash leaves there what it leaves at a master. The held bytes are lost with the
connection; the next connection requests them again.

Cheap checks are made on the way: each record must have a known magic code, a size that its file has
room for, and the log offset at which it is about to be written. This detects logs that have
diverged, unless records of both happen to begin at the same offset.
"""

from __future__ import annotations

import struct
from typing import Final

from skylark.core.errors import RemoteProtocolError
from skylark.wire.layout import (
    BLANK_RECORD,
    BLANK_SIZE_MIN,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
)

_HEAD: Final = struct.Struct(
    ">i"  # 0  TOTALSIZE
    "i"  # 4  MAGICCODE
    "20x"  # 8  BODYCRC, QUEUEID, FLAG, QUEUEOFFSET
    "q"  # 28 PHYSICALOFFSET
)
assert _HEAD.size == 36


class RecordStreamError(RemoteProtocolError):
    """A master sends bytes that cannot follow what the log holds; none of them was written."""


class RecordStream:
    """Takes bytes in the order of the log and returns whole records."""

    __slots__ = ("_file_size", "_held", "_needed", "_size_max", "blank_until", "end",
                 "held_size", "record_end", "whole")  # fmt: skip

    def __init__(self, log_end: int, file_size: int, *, record_size_max: int) -> None:
        #: End of what was returned.
        self.whole = log_end
        #: End of what came in: the next piece must begin there.
        self.end = log_end
        #: End of the last record that was returned; 0 before the first.
        self.record_end = 0
        #: End of the last blank that began.
        self.blank_until = 0
        self._file_size = file_size
        self._size_max = min(record_size_max, file_size)
        self._held: list[bytes] = []
        self.held_size = 0  # bytes that wait for the rest of a record
        self._needed = BLANK_SIZE_MIN  # bytes needed to decide anything

    def take(self, log_offset: int, body: bytes) -> bytes | memoryview:
        """Take a piece of the log; return what is complete now, to be written at :attr:`whole`.

        Raises RecordStreamError; the stream must not be used afterwards.
        """
        if log_offset != self.end:
            raise RecordStreamError(f"received bytes at {log_offset} where {self.end} was expected")
        if log_offset % self._file_size + len(body) > self._file_size:
            raise RecordStreamError(
                f"{len(body)} bytes from {log_offset} on exceed the end of a file",
                hint="mappedFileSizeCommitLog must be the same at master and slave",
            )
        self.end += len(body)
        self._held.append(body)
        self.held_size += len(body)
        if self.held_size < self._needed and self.whole >= self.blank_until:
            return b""
        content = body if len(self._held) == 1 else b"".join(self._held)
        stop = self._walk(content)
        rest = content[stop:]
        self._held, self.held_size = [rest] if rest else [], len(rest)
        self.whole += stop
        return memoryview(content)[:stop] if rest else content

    def _walk(self, content: bytes) -> int:
        """Position after the last whole record."""
        start, size, file_size = self.whole, len(content), self._file_size
        position = max(0, min(size, self.blank_until - start))
        while True:
            position = self._pass_records(content, position)
            if size - position < BLANK_SIZE_MIN:
                self._needed = BLANK_SIZE_MIN
                return position
            here = start + position
            room = file_size - here % file_size
            total_size, magic = BLANK_RECORD.unpack_from(content, position)
            if magic == MAGIC_BLANK and total_size == room:
                self.blank_until = here + total_size
                position = min(size, position + total_size)
                continue
            if (
                magic not in (MAGIC_V1, MAGIC_V2)
                or not RECORD_SIZE_MIN <= total_size <= room
                or total_size > self._size_max
            ):
                raise RecordStreamError(
                    f"no record begins at {here}: magic code {magic & 0xFFFF_FFFF:08X}, "
                    f"{total_size} bytes"
                )
            if size - position < _HEAD.size:
                self._needed = _HEAD.size
                return position
            log_offset = _HEAD.unpack_from(content, position)[2]
            if log_offset != here:
                raise RecordStreamError(f"the record at {here} belongs to {log_offset}")
            assert total_size > size - position, "else it was passed: no piece runs over a file"
            self._needed = total_size
            return position

    def _pass_records(self, content: bytes, position: int) -> int:
        """Pass valid and whole records; return the position after them.

        Fast path: a slave that catches up runs this for each record of its master.
        """
        start, size = self.whole, len(content)
        size_max = self._size_max
        file_end = self._file_size - start % self._file_size  # of the file at ``whole``
        head_end = size - _HEAD.size
        unpack_head = _HEAD.unpack_from
        begin = position
        while position <= head_end:
            total_size, magic, log_offset = unpack_head(content, position)
            end = position + total_size
            if (
                (magic != MAGIC_V1 and magic != MAGIC_V2)
                or log_offset != start + position
                or not RECORD_SIZE_MIN <= total_size <= size_max
                or end > size
                or end > file_end
            ):
                break
            position = end
        if position > begin:
            self.record_end = start + position
        return position
