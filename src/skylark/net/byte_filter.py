"""What may stand between a socket and its frames."""

from __future__ import annotations

from typing import Protocol


class ByteFilter(Protocol):
    """Changes the bytes of one connection, for example TLS begun on the plain port."""

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """Bytes from the socket to (bytes for the frames, bytes to write back at once)."""

    def sending(self, data: bytes) -> bytes:
        """Bytes of frames to bytes for the socket."""
