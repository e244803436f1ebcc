"""Java's string hash, body checksums and the two kinds of message id.

Consume queues store the hash of a tag, the index the hash of a key, and both must equal what the
JVM computes (``String.hashCode``): over the UTF-16 code units ``u`` of the text,
``h = 31 * h + u`` in 32-bit signed arithmetic. A character beyond U+FFFF counts as its two
surrogates.

Message ids are upper-case hex, 32 characters with an IPv4 address and 56 with an IPv6 one::

    offset id   ip 4|16   port 4   log offset 8                       where the broker stored it
    unique id   ip 4|16   pid 2    salt 4   ms of month 4   counter 2   drawn by the producer

Counterpart of Java's ``UtilAll``, ``MessageDecoder`` and ``MessageClientIDSetter``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import mul
from zlib import crc32

import msgspec

from skylark.core.errors import LocalProtocolError, RemoteProtocolError

# ---- Java's String.hashCode ------------------------------------------------------------------

#: What unique ids of one producer differ in: with Java's, half of the time and the counter.
ID_ENDING_SIZE = 8
_LANES_MAX = 512  # ids that are hashed at once; masks for more of them would take much memory
_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000
_CHUNK = 128
_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

# The hash is a number in base 31 whose digits are the code units, and int() reads base 31 in C. A
# unit is larger than a digit may be, so it is split: u = 31 * high + low. Then the hash is 31 times
# the number of the high digits plus the number of the low ones: two conversions for any length,
# while a sum over the units costs 35 ns for each of them.
_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_HIGH = bytes(_DIGITS[unit // 31] for unit in range(256))
_LOW = bytes(_DIGITS[unit % 31] for unit in range(256))
_FACTORS: tuple[int, ...] = tuple(31**count & _MASK for count in range(_CHUNK + 1))
# The characters of a unique id, 0-9 and A-F, lie within 31 units: counted from "0", each is one
# digit, and what was left out is the same for all ids of a length. Others become no digit at all.
_NARROW = bytes(_DIGITS[unit - 48] if 48 <= unit < 79 else 33 for unit in range(256))
_LEFT_OUT: tuple[int, ...] = tuple(
    48 * sum(31**k for k in range(count)) & _MASK for count in range(_CHUNK + 1)
)

# Units beyond ASCII are summed up. _POWERS[n] weighs those of a text of n: 31**(n-1) first, 1 last.
_POWERS: tuple[tuple[int, ...], ...] = tuple(
    tuple(31**k & _MASK for k in reversed(range(n))) for n in range(_CHUNK + 1)
)


def java_hash(text: str) -> int:
    """``text.hashCode()`` of Java: a signed 32-bit integer."""
    return java_hash_continue(0, text)


def java_hash_continue(prefix_hash: int, text: str) -> int:
    """The hash of ``prefix + text``, given the hash of ``prefix``.

    >>> java_hash_continue(java_hash("TopicTest#"), "k1") == java_hash("TopicTest#k1")
    True
    """
    total = prefix_hash & _MASK
    if text.isascii():
        ascii_units = text.encode()
        for start in range(0, len(ascii_units), _CHUNK):
            chunk = ascii_units[start : start + _CHUNK]
            number = 31 * int(chunk.translate(_HIGH), 31) + int(chunk.translate(_LOW), 31)
            total = (total * _FACTORS[len(chunk)] + number) & _MASK
    else:
        units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
        for start in range(0, len(units), _CHUNK):
            part = units[start : start + _CHUNK]
            weighed = sum(map(mul, part, _POWERS[len(part)]))
            total = (total * _FACTORS[len(part)] + weighed) & _MASK
    return total - 0x1_0000_0000 if total & _SIGN else total


def index_key_hash(key_hash: int) -> int:
    """The absolute value under which the index files a key; -2**31 has none and becomes 0."""
    if key_hash >= 0:
        return key_hash
    return 0 if key_hash == -0x8000_0000 else -key_hash


def index_key_hash_continue(prefix_hash: int, key: bytes) -> int:
    """``index_key_hash`` of ``prefix + key``, given the hash of ``prefix`` and the key in UTF-8.

    For every message: the way from bytes through a text and back would double the cost.

    >>> index_key_hash_continue(java_hash("TopicTest#"), b"k1")
    2746024
    """
    size = len(key)
    if not 0 < size <= _CHUNK or not key.isascii():
        return index_key_hash(java_hash_continue(prefix_hash, key.decode("utf-8", "replace")))
    number = 31 * int(key.translate(_HIGH), 31) + int(key.translate(_LOW), 31)
    total = (prefix_hash * _FACTORS[size] + number) & _MASK
    return total if total < _SIGN else -total & (_SIGN - 1)


def index_id_hash_continue(prefix_hash: int, unique_id: bytes) -> int:
    """:func:`index_key_hash_continue`, faster for unique ids, which are upper-case hex."""
    size = len(unique_id)
    try:
        number = int(unique_id.translate(_NARROW), 31)
    except ValueError:
        size = 0  # some client's own idea of a unique id
    if not 0 < size <= _CHUNK:
        return index_key_hash_continue(prefix_hash, unique_id)
    total = (prefix_hash * _FACTORS[size] + number + _LEFT_OUT[size]) & _MASK
    return total if total < _SIGN else -total & (_SIGN - 1)


def index_id_hashes_continue(prefix_hash: int, endings: bytes) -> list[int]:
    """:func:`index_id_hash_continue` for ids that begin alike, all at once.

    ``endings`` are the last :data:`ID_ENDING_SIZE` characters of each, all of them ASCII, joined.
    They are one number whose digits are added up pairwise in lanes: two units of 8 bits to one of
    16, two of those to one of 32, two of those to one of 64. No sum outgrows its lane.
    """
    count = len(endings) // ID_ENDING_SIZE
    if count > _LANES_MAX:
        step = _LANES_MAX * ID_ENDING_SIZE
        parts = [endings[start : start + step] for start in range(0, len(endings), step)]
        return [each for part in parts for each in index_id_hashes_continue(prefix_hash, part)]
    low_8, low_16, low_32, ones = _lanes(count)
    total = int.from_bytes(endings, "big")
    total = (total >> 8 & low_8) * 31 + (total & low_8)
    total = (total >> 16 & low_16) * _FACTORS[2] + (total & low_16)
    total = (total >> 32 & low_32) * _FACTORS[4] + (total & low_32)
    total += (prefix_hash * _FACTORS[8] & _MASK) * ones
    halves = struct.unpack(f">{2 * count}i", total.to_bytes(len(endings), "big"))
    hashes = list(map(abs, halves[1::2]))
    return [index_key_hash(-each) for each in hashes] if _SIGN in hashes else hashes


@lru_cache(maxsize=64)
def _lanes(count: int) -> tuple[int, int, int, int]:
    """For ``count`` lanes of 64 bits: masks of the lower half of 16, 32 and 64 bits, and ones."""
    ones = int.from_bytes(bytes((0, 0, 0, 0, 0, 0, 0, 1)) * count, "big")
    return ones * 0x00FF_00FF_00FF_00FF, ones * 0x0000_FFFF_0000_FFFF, ones * _MASK, ones


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


def join_offset_ids(store_host: bytes, log_offsets: Sequence[int]) -> str:
    """The ids of one or more records of one broker, by comma."""
    raw = struct.pack(f">{len(log_offsets)}q", *log_offsets)
    host = store_host.hex().upper()
    return host + raw.hex(",", _LOG_OFFSET.size).upper().replace(",", "," + host)


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
        "_text",
        "_text_ms",
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
        self._text, self._text_ms = "", -1  # what the ids of this millisecond begin with
        self._rebase(now_ms())

    def _rebase(self, now_ms: int) -> None:
        self._month_start_ms = self._month_start_of(now_ms)
        self._month_end_ms = self._month_start_of(self._month_start_ms + _MONTH_AND_A_BIT_MS)

    def next_id(self) -> str:
        """A new id of 32 (IPv4) or 56 (IPv6) characters."""
        now_ms = self._now_ms()
        if now_ms != self._text_ms:
            self._text, self._text_ms = self._text_at(now_ms), now_ms
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._text}{counter:04X}"

    def _text_at(self, now_ms: int) -> str:
        if now_ms >= self._month_end_ms:
            self._rebase(now_ms)
        month_ms = now_ms - self._month_start_ms
        if -_CLOCK_STEP_MAX_MS < month_ms < 0:
            month_ms = 0
        return f"{self._prefix}{month_ms & _MASK:08X}"
