"""The body of END_HALVES and of its response, a request between Skylark processes only.

The request names half messages, :data:`PLACE` for each. The response has a code for each, in the
same order and up to the first failure, :data:`CODE`: the code that END_TRANSACTION would return.
The half messages themselves travel as a batch (:mod:`skylark.wire.batch`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from skylark.core.errors import RemoteProtocolError

UNIQUE_ID_SIZE: Final = 32
PLACE: Final = struct.Struct(">qq32s")  # log_offset, queue_offset, unique id in ASCII
CODE: Final = struct.Struct(">h")
#: Half messages in one request; a broker deals with so many in a few milliseconds.
PLACES_MAX: Final = 1024

assert PLACE.size == 16 + UNIQUE_ID_SIZE


class HalfPlace(NamedTuple):
    """One half message: where it is, and which one must be there."""

    log_offset: int
    queue_offset: int
    unique_id: str


def encode_places(places: Iterable[HalfPlace]) -> bytes:
    """The body of a request."""
    pack = PLACE.pack
    return b"".join(
        [pack(log_offset, offset, name.encode()) for log_offset, offset, name in places]
    )


def decode_places(body: bytes) -> list[HalfPlace]:
    """Read the body of a request; raises RemoteProtocolError."""
    count, rest = divmod(len(body), PLACE.size)
    if rest or not 0 < count <= PLACES_MAX:
        raise RemoteProtocolError(f"{len(body)} bytes are not a list of half messages")
    try:
        return [
            HalfPlace(log_offset, offset, name.decode("ascii"))
            for log_offset, offset, name in PLACE.iter_unpack(body)
        ]
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a half message has no readable id: {error}") from error


def encode_codes(codes: Iterable[int]) -> bytes:
    """The body of a response."""
    return b"".join([CODE.pack(code) for code in codes])


def decode_codes(body: bytes | None, count: int) -> Sequence[int]:
    """Read the body of a response about ``count`` half messages; raises RemoteProtocolError."""
    size = len(body or b"")
    if not body or size % CODE.size or size > count * CODE.size:
        raise RemoteProtocolError(f"{size} bytes are not codes of {count} half messages or fewer")
    return [code for (code,) in CODE.iter_unpack(body)]
