"""State that the halves of one connection share: its transport, its byte filter, its activity.

Part of :class:`skylark.net.connection.Connection`. The inbound half (:mod:`skylark.net.inbound`),
the outbound half (:mod:`skylark.net.outbound`) and the calls (:mod:`skylark.net.calls`) know each
other as little as possible; what all of them need is here, owned by the connection.

A :class:`ByteFilter` stands between the socket and the frames; it is the seam for TLS.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class ByteFilter(Protocol):
    """Changes the bytes of one connection, for example TLS begun on the plain port."""

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """Bytes from the socket to (bytes for the frames, bytes to write back at once)."""

    def sending(self, data: bytes) -> bytes:
        """Bytes of frames to bytes for the socket."""


class Link:
    """One transport, from before it is there until after it has ended."""

    __slots__ = ("active_at", "byte_filter", "is_closing", "remote_address", "transport")

    def __init__(self, now: float) -> None:
        self.transport: asyncio.Transport | None = None
        self.remote_address: tuple[str, int] = ("", 0)
        #: None: frames are read from and written to the socket as they are.
        self.byte_filter: ByteFilter | None = None
        #: Nothing more is handled or sent.
        self.is_closing = False
        #: When bytes were last read or written.
        self.active_at = now

    def __repr__(self) -> str:
        host, port = self.remote_address
        return f"<Connection to {host}:{port}{' closed' if self.is_closing else ''}>"

    @property
    def unsent_size(self) -> int:
        """Bytes that were handed to the transport and have not left it."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()
