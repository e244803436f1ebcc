"""The replication stream between master and slave (4.x and the default of 5.x).

Plain TCP, no handshake, no remoting frames::

    slave -> master   log end 8                              "send from here", and every ack
    master -> slave   log offset 8, size 4, body of size     size 0 = heartbeat

Bodies are raw log bytes and may split records anywhere. Both buffers accept the stream in chunks of
any size; neither decodes the log. Counterpart of Java's ``DefaultHAConnection`` and
``DefaultHAClient``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from skylark.core.errors import RemoteProtocolError
from skylark.wire.layout import HA_FRAME_HEAD, HA_FRAME_HEAD_SIZE, HA_REPORT, HA_REPORT_SIZE

#: Java's haTransferBatchSize, the largest body a master sends.
HA_BODY_SIZE: Final = 32_768
#: Largest body a slave accepts: masters may be configured for more than the default.
HA_BODY_SIZE_MAX: Final = 4 * 1024 * 1024


def encode_report(log_end: int) -> bytes:
    """A slave's report of where its log ends."""
    return HA_REPORT.pack(log_end)


def encode_frame_head(log_offset: int, body_size: int) -> bytes:
    """Head of a frame; its ``body_size`` bytes of log are sent after it."""
    return HA_FRAME_HEAD.pack(log_offset, body_size)


class ReportBuffer:
    """The master's side: collects reports; only the newest one is used."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> int | None:
        """Add bytes from the slave; return the last complete report, None if there is none."""
        stream = self._rest + chunk
        complete = len(stream) - len(stream) % HA_REPORT_SIZE
        self._rest = stream[complete:]
        if not complete:
            return None
        log_end: int
        (log_end,) = HA_REPORT.unpack_from(stream, complete - HA_REPORT_SIZE)
        if log_end < 0:
            raise RemoteProtocolError(f"a slave reports the log end {log_end}")
        return log_end


class HaFrame(NamedTuple):
    """Log bytes that belong at ``log_offset``; an empty body is a heartbeat."""

    log_offset: int
    body: bytes


class HaFrameBuffer:
    """The slave's side: collects frames. ``body_size_max`` bounds what it may hold."""

    __slots__ = ("_body_size_max", "_chunks", "_size", "_wanted")

    def __init__(self, body_size_max: int = HA_BODY_SIZE_MAX) -> None:
        self._body_size_max = body_size_max
        # Kept as they came and joined once a frame is complete: no byte is copied repeatedly.
        self._chunks: list[bytes] = []
        self._size = 0
        self._wanted = HA_FRAME_HEAD_SIZE

    @property
    def pending_size(self) -> int:
        """Bytes held of a frame that is not complete yet."""
        return self._size

    def feed(self, chunk: bytes) -> list[HaFrame]:
        """Add bytes from the master; return the frames that they complete, in order."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size < self._wanted:
            return []
        stream = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        frames: list[HaFrame] = []
        position = 0
        wanted = HA_FRAME_HEAD_SIZE
        while len(stream) - position >= HA_FRAME_HEAD_SIZE:
            log_offset, body_size = HA_FRAME_HEAD.unpack_from(stream, position)
            if log_offset < 0 or not 0 <= body_size <= self._body_size_max:
                raise RemoteProtocolError(
                    f"a master sends {body_size} bytes for offset {log_offset}",
                    hint=f"at most {self._body_size_max} bytes are accepted in one frame",
                )
            start = position + HA_FRAME_HEAD_SIZE
            if len(stream) - start < body_size:
                wanted = HA_FRAME_HEAD_SIZE + body_size
                break
            frames.append(HaFrame(log_offset, stream[start : start + body_size]))
            position = start + body_size
        self._chunks = [stream[position:]] if position < len(stream) else []
        self._size = len(stream) - position
        self._wanted = wanted
        return frames
