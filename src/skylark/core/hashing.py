"""Java's string hash, body checksums and the two kinds of message id.

Consume queues store the hash of a tag, the index the hash of a key, and both must equal what the
JVM computes (``String.hashCode``): over the UTF-16 code units ``u`` of the text,
``h = 31 * h + u`` in 32-bit signed arithmetic. A character beyond U+FFFF counts as its two
surrogates.

Message ids are upper-case hex, 32 characters with an IPv4 address and 56 with an IPv6 one::

    offset id   ip 4|16   port 4   log offset 8                       where the broker stored it
    unique id   ip 4|16   pid 2    salt 4   ms of month 4   counter 2   drawn by the producer

Answers to Java's ``UtilAll``, ``MessageDecoder`` and ``MessageClientIDSetter``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from operator import mul
from zlib import crc32

import msgspec

from skylark.core.errors import LocalProtocolError, RemoteProtocolError

# ---- Java's String.hashCode ------------------------------------------------------------------

_MASK = 0xFFFF_FFFF
_CHUNK = 64
_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

# _POWERS[n] weighs the units of a text of n: 31**(n-1) first, 1 last. One sum of products per
# chunk runs in C; Horner's rule would cost three byte codes per character.
_POWERS: tuple[tuple[int, ...], ...] = tuple(
    tuple(31**k & _MASK for k in reversed(range(n))) for n in range(_CHUNK + 1)
)
_FACTORS = tuple(31**n & _MASK for n in range(_CHUNK + 1))


def java_hash(text: str) -> int:
    """``text.hashCode()`` of Java: a signed 32-bit integer."""
    count = len(text)
    if count > _CHUNK or not text.isascii():
        return java_hash_continue(0, text)
    total: int = sum(map(mul, text.encode(), _POWERS[count])) & _MASK
    return total - 0x1_0000_0000 if total & 0x8000_0000 else total


def java_hash_continue(prefix_hash: int, text: str) -> int:
    """The hash of ``prefix + text``, given the hash of ``prefix``.

    >>> java_hash_continue(java_hash("TopicTest#"), "k1") == java_hash("TopicTest#k1")
    True
    """
    units: bytes | memoryview
    if text.isascii():
        units = text.encode()
    else:
        units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
    count = len(units)
    total: int = prefix_hash
    if count > _CHUNK:
        whole = count - count % _CHUNK
        for start in range(0, whole, _CHUNK):
            chunk = units[start : start + _CHUNK]
            total = (total * _FACTORS[_CHUNK] + sum(map(mul, chunk, _POWERS[_CHUNK]))) & _MASK
        units = units[whole:]
        count -= whole
    total = (total * _FACTORS[count] + sum(map(mul, units, _POWERS[count]))) & _MASK
    return total - 0x1_0000_0000 if total & 0x8000_0000 else total


def index_key_hash(key_hash: int) -> int:
    """The absolute value under which the index files a key; -2**31 has none and becomes 0."""
    if key_hash >= 0:
        return key_hash
    return 0 if key_hash == -0x8000_0000 else -key_hash


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """CRC-32 of a stored body without its top bit, as Java keeps it in a signed field."""
    return crc32(body) & 0x7FFF_FFFF


# ---- offset ids --------------------------------------------------------------------------------

_LOG_OFFSET = struct.Struct(">q")
_PORT_AND_OFFSET = struct.Struct(">iq")


class OffsetId(msgspec.Struct, frozen=True):
    """The parts of an offset id: which broker stored the message, and where in its log."""

    ip: bytes
    port: int
    log_offset: int


def encode_offset_id(store_host: bytes, log_offset: int) -> str:
    """Id of the record at ``log_offset``; ``store_host`` is packed, address and 4-byte port."""
    return (store_host + _LOG_OFFSET.pack(log_offset)).hex().upper()


def decode_offset_id(message_id: str) -> OffsetId:
    """Take an offset id apart; anything else raises :class:`RemoteProtocolError`."""
    raw = _id_bytes(message_id)
    port, log_offset = _PORT_AND_OFFSET.unpack_from(raw, len(raw) - _PORT_AND_OFFSET.size)
    if not 0 <= port <= 0xFFFF or log_offset < 0:
        raise RemoteProtocolError(f"no offset id: {message_id}")
    return OffsetId(raw[:-12], port, log_offset)


def _id_bytes(message_id: str) -> bytes:
    if len(message_id) in (32, 56):
        try:
            raw = bytes.fromhex(message_id)
        except ValueError:
            raw = b""
        # fromhex() skips white space, so an id with blanks in it comes out short.
        if len(raw) * 2 == len(message_id):
            return raw
    raise RemoteProtocolError(f"no message id: {message_id[:80]!r}")


# ---- unique ids of clients ---------------------------------------------------------------------

_UNIQUE_TAIL = struct.Struct(">HIIH")  # pid, salt, ms of month, counter
assert _UNIQUE_TAIL.size == 12

_MONTH_AND_A_BIT_MS = 32 * 86_400_000
# A clock set back by less than this is a correction, not another month.
_CLOCK_STEP_MAX_MS = 1_000_000


class UniqueId(msgspec.Struct, frozen=True):
    """The parts of a client's unique id."""

    ip: bytes
    pid: int
    salt: int
    month_ms: int
    counter: int

    def nearest_time_ms(
        self, now_ms: int, month_start_ms: Callable[[int], int] | None = None
    ) -> int:
        """When the id was drawn, if that was within the month before ``now_ms``."""
        start_of = month_start_ms or local_month_start_ms
        start = start_of(now_ms)
        if start + self.month_ms >= now_ms:
            start = start_of(start - 1)
        return start + self.month_ms


def decode_unique_id(message_id: str) -> UniqueId:
    """Take a unique id apart; anything else raises :class:`RemoteProtocolError`."""
    raw = _id_bytes(message_id)
    return UniqueId(raw[:-12], *_UNIQUE_TAIL.unpack_from(raw, len(raw) - 12))


def local_month_start_ms(time_ms: int) -> int:
    """Midnight that began the month of ``time_ms``, in the local time zone."""
    local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    # Without a zone, timestamp() applies the rules of that day: the first of the month may lie on
    # the other side of a change to summer time.
    start = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    return int(start.timestamp()) * 1000


class UniqueIdGenerator:
    """Draws the ids that producers put into ``UNIQ_KEY``.

    Two ids of one generator are equal only if 65,536 of them are drawn within a millisecond.
    ``salt`` separates generators of one process (Java uses the hash of its class loader).
    """

    __slots__ = (
        "_counter",
        "_month_end_ms",
        "_month_start_ms",
        "_month_start_of",
        "_now_ms",
        "_prefix",
    )

    def __init__(
        self,
        *,
        ip: bytes,
        pid: int,
        salt: int,
        now_ms: Callable[[], int],
        month_start_ms: Callable[[int], int] = local_month_start_ms,
    ) -> None:
        if len(ip) not in (4, 16):
            raise LocalProtocolError(f"an address has 4 or 16 bytes, not {len(ip)}")
        self._now_ms = now_ms
        self._month_start_of = month_start_ms
        self._prefix = f"{ip.hex().upper()}{pid & 0xFFFF:04X}{salt & _MASK:08X}"
        self._counter = 0
        self._rebase(now_ms())

    def _rebase(self, now_ms: int) -> None:
        self._month_start_ms = self._month_start_of(now_ms)
        self._month_end_ms = self._month_start_of(self._month_start_ms + _MONTH_AND_A_BIT_MS)

    def next_id(self) -> str:
        """A new id of 32 (IPv4) or 56 (IPv6) characters."""
        now_ms = self._now_ms()
        if now_ms >= self._month_end_ms:
            self._rebase(now_ms)
        month_ms = now_ms - self._month_start_ms
        if -_CLOCK_STEP_MAX_MS < month_ms < 0:
            month_ms = 0
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._prefix}{month_ms & _MASK:08X}{counter:04X}"
