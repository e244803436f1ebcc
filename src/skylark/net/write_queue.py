"""The write queue of one connection, and the leases on mapped files whose bytes it sends.

A body may be views over a mapped file (:class:`ViewResponse`). The transport gets large views
without a copy; a lease keeps their file open until the transport has sent them::

    add(response)     queues a response; views under 2 KB are copied, which is cheaper
    write(transport)  writes all that is queued: up to 64 KB joined, more by ``writelines``
    sent()            the transport has sent all its bytes: the leases end
    drop()            the connection has ended: the leases end

A transport may keep the buffers that it cannot write at once (uvloop; asyncio since 3.12; TLS) or
copy them (asyncio 3.11), and does not report which. So leases end only when its buffer is empty. A
peer that reads slowly may keep it filled for ever; to bound what such a peer pins, views are copied
while earlier bytes still wait. It pins the views of one ``write`` at most.

One copied piece of some kilobytes is cheaper than several views, both for the transport and for the
kernel. A Java consumer that catches up, with pulls of 32 messages of 100 B, became 15 % faster.

Code that does not send a response that it has calls :func:`discard`. Counterpart of Netty's
``FileRegion`` and of Java's ``ManyMessageTransfer``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from skylark.wire.codes import CURRENT_VERSION
from skylark.wire.command import FLAG_RESPONSE, Command
from skylark.wire.command_codec import write_head

#: Views below this size are copied.
COPY_SIZE_MAX: Final = 2_048
#: A write of at most this size is joined into one piece.
JOIN_SIZE_MAX: Final = 64 * 1024

#: Whether asyncio's ``writelines`` pauses a protocol whose peer does not read. It did not in 3.12.0
#: to 3.12.8 and 3.13.0 to 3.13.1 (CVE-2024-12254), so that nobody heard of the peer reading again;
#: ``write`` of the last piece does.
WRITELINES_PAUSES: Final = not (
    (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
)


def write_pieces(transport: asyncio.WriteTransport, pieces: Sequence[bytes | memoryview]) -> None:
    """``transport.writelines``, with back-pressure also where asyncio forgets it."""
    if WRITELINES_PAUSES:
        transport.writelines(pieces)
        return
    transport.writelines(pieces[:-1])
    transport.write(pieces[-1])


class Leased(Protocol):
    """Views that stay valid until ``release``, which may be called again."""

    views: Sequence[memoryview]
    size: int

    def release(self) -> None:
        """End the lease."""


class ViewResponse(Command, kw_only=True):
    """A response whose body is the views of ``leased``, or ``body`` if that is None."""

    leased: Leased | None = None

    def copy_body(self) -> None:
        """Copy the bytes into ``body`` and end the lease, to keep the response for later."""
        leased, self.leased = self.leased, None
        if leased is not None:
            self.body = b"".join(leased.views)
            leased.release()


def view_response(
    request: Command, code: int, remark: str | None, *, ext: dict[str, str], leased: Leased
) -> ViewResponse:
    """A response to ``request`` that owns the lease."""
    return ViewResponse(
        code=code,
        flag=FLAG_RESPONSE,
        opaque=request.opaque,
        remark=remark,
        ext=ext,
        version=CURRENT_VERSION,
        leased=leased,
    )


def discard(response: Command | None) -> None:
    """End the lease of a response that is not sent, if it has one."""
    if isinstance(response, ViewResponse) and response.leased is not None:
        leased, response.leased = response.leased, None
        leased.release()


class WriteQueue:
    """The pieces of the next write, in order."""

    __slots__ = ("_leases", "_pieces", "_written_leases", "count", "size")

    def __init__(self) -> None:
        #: Number and bytes of the queued commands, without those that the transport has.
        self.count = 0
        self.size = 0
        self._pieces: list[bytes | memoryview] = []
        self._leases: list[Leased] = []
        self._written_leases: list[Leased] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, command: Command) -> None:
        """Queue a command; raises LocalProtocolError if it cannot be encoded."""
        self._add(command)
        self.count += 1

    def add_frame(self, frame: bytes) -> None:
        """Queue an encoded command."""
        self._pieces.append(frame)
        self.size += len(frame)
        self.count += 1

    def _add(self, command: Command) -> None:
        if isinstance(command, ViewResponse) and command.leased is not None:
            if command.leased.size >= COPY_SIZE_MAX:
                self._add_views(command, command.leased)
                return
            command.copy_body()
        body = command.body
        if body:
            head = write_head(command, len(body))
            self._pieces.append(head)
            self._pieces.append(body)
            self.size += len(head) + len(body)
        else:
            head = write_head(command, 0)
            self._pieces.append(head)
            self.size += len(head)

    def _add_views(self, command: Command, leased: Leased) -> None:
        head = write_head(command, leased.size)
        self._pieces.append(head)
        for view in leased.views:
            self._pieces.append(view if len(view) >= COPY_SIZE_MAX else bytes(view))
        self._leases.append(leased)
        self.size += len(head) + leased.size

    def write(
        self, transport: asyncio.Transport, encode: Callable[[bytes], bytes] | None = None
    ) -> int:
        """Write all that is queued, through ``encode`` if given; returns its size."""
        pieces, self._pieces = self._pieces, []
        leases, self._leases = self._leases, []
        size, self.size = self.size, 0
        self.count = 0
        if (
            encode is None
            and size > JOIN_SIZE_MAX
            and not (leases and transport.get_write_buffer_size())
        ):
            self._written_leases += leases
            write_pieces(transport, pieces)
            return size
        joined = b"".join(pieces)
        for leased in leases:
            leased.release()
        transport.write(joined if encode is None else encode(joined))
        return size

    def sent(self) -> None:
        """End the leases of written views: the transport has sent all its bytes."""
        if self._written_leases:
            leases, self._written_leases = self._written_leases, []
            for leased in leases:
                leased.release()

    def drop(self) -> None:
        """Clear the queue and end all leases: the connection has ended."""
        self._pieces.clear()
        self.size = self.count = 0
        self._written_leases += self._leases
        self._leases = []
        self.sent()
