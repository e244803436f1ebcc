"""What is to be written to one peer, and the leases on what is being written.

A body may be views over a mapped file (:class:`ViewResponse`). Large ones are handed to the
transport as they are, so that nothing is copied on the way to the kernel, and given back when
nobody needs them any more::

    add(response)     views under 2 KB are copied: cheaper, and the lease may end at once
    write(transport)  everything queued: up to 64 KB as one piece, more in one ``writelines``
    sent()            the transport has written all it had: the leases end
    drop()            the connection has ended: the leases end, whatever was written

A transport may keep the buffers that it cannot write at once (uvloop; asyncio since 3.12; TLS) or
copy them (asyncio 3.11), and none says which. So leases end only when its buffer is empty. A peer
that reads slowly may never get there; to bound what it pins, views are copied while something
written earlier still waits. It pins one ``write`` of views at most.

One piece of some kilobytes, copied, is cheaper than a handful of views: to the transport, which
looks at each, and to the kernel, which copies from memory that is at hand. A Java consumer that
catches up, 32 messages of 100 B at a time, got 15 % more of them.

Code that has a response and does not send it calls :func:`discard`. Counterpart of Netty's
``FileRegion`` and of Java's ``ManyMessageTransfer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from skylark.wire.codes import CURRENT_VERSION
from skylark.wire.command import FLAG_RESPONSE, Command
from skylark.wire.command_codec import write_head

#: Slices below this are copied.
COPY_SIZE_MAX: Final = 2_048
#: What is written at once and is no larger than this is joined.
JOIN_SIZE_MAX: Final = 64 * 1024


class Leased(Protocol):
    """Views that stay valid until ``release``; releasing again does nothing."""

    views: Sequence[memoryview]
    size: int

    def release(self) -> None:
        """Give the bytes back."""


class ViewResponse(Command, kw_only=True):
    """A response whose body is the views of ``leased``; once that is None, ``body``."""

    leased: Leased | None = None

    def copy_body(self) -> None:
        """Take the bytes out of the lease, and end it. For who keeps a response."""
        leased, self.leased = self.leased, None
        if leased is not None:
            self.body = b"".join(leased.views)
            leased.release()


def view_response(
    request: Command, code: int, remark: str | None, *, ext: dict[str, str], leased: Leased
) -> ViewResponse:
    """A response that carries the request's ``opaque`` and the lease from now on."""
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
    """This response is not sent: end its lease, if it has one."""
    if isinstance(response, ViewResponse) and response.leased is not None:
        leased, response.leased = response.leased, None
        leased.release()


class WriteQueue:
    """The pieces that leave with the next ``writelines``, in order."""

    __slots__ = ("_leases", "_pieces", "_written_leases", "count", "size")

    def __init__(self) -> None:
        #: Commands that are queued here, and their bytes; what the transport still has is not
        #: counted.
        self.count = 0
        self.size = 0
        self._pieces: list[bytes | memoryview] = []
        self._leases: list[Leased] = []
        self._written_leases: list[Leased] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def leased_size(self) -> int:
        """Bytes of views that are queued or that the transport may still use."""
        return sum(leased.size for leased in (*self._leases, *self._written_leases))

    def add(self, command: Command) -> None:
        """Queue a command; raises LocalProtocolError if it cannot be encoded."""
        self._add(command)
        self.count += 1

    def add_frame(self, frame: bytes) -> None:
        """Queue a command that is encoded already."""
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
        """Hand everything to the transport, through ``encode`` if given; how many bytes it was."""
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
            transport.writelines(pieces)
            return size
        joined = b"".join(pieces)
        for leased in leases:
            leased.release()
        transport.write(joined if encode is None else encode(joined))
        return size

    def sent(self) -> None:
        """Everything that was written has left the transport."""
        if self._written_leases:
            leases, self._written_leases = self._written_leases, []
            for leased in leases:
                leased.release()

    def drop(self) -> None:
        """Nothing is sent any more."""
        self._pieces.clear()
        self.size = self.count = 0
        self._written_leases += self._leases
        self._leases = []
        self.sent()
