"""State that the parts of one connection share: transport, byte filter, time of last activity.

Part of :class:`skylark.net.connection.Connection`, which owns it; the inbound half
(:mod:`skylark.net.inbound`), the outbound half (:mod:`skylark.net.outbound`) and the calls
(:mod:`skylark.net.calls`) use it.

A :class:`ByteFilter` sits between the socket and the frames; it is the seam for TLS.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class ByteFilter(Protocol):
    """Transforms the bytes of one connection, for example TLS on the plain port."""

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """Decode bytes from the socket: (bytes of frames, bytes to write back at once)."""

    def sending(self, data: bytes) -> bytes:
        """Encode bytes of frames for the socket."""


class Link:
    """The transport of one connection and its state; ``transport`` is None before it opens."""

    __slots__ = ("active_at", "byte_filter", "is_closing", "remote_address", "transport")

    def __init__(self, now: float) -> None:
        self.transport: asyncio.Transport | None = None
        self.remote_address: tuple[str, int] = ("", 0)
        #: None: the socket carries plain frames.
        self.byte_filter: ByteFilter | None = None
        #: The connection handles and sends nothing more.
        self.is_closing = False
        #: Monotonic time of the last read or write.
        self.active_at = now

    def __repr__(self) -> str:
        host, port = self.remote_address
        return f"<Connection to {host}:{port}{' closed' if self.is_closing else ''}>"

    @property
    def unsent_size(self) -> int:
        """Bytes that the transport has not yet passed to the socket."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()
