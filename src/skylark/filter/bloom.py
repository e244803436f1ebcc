"""The Bloom filter by which a pull can skip messages without reading them.

A broker with ``enableCalcFilterBitMap`` evaluates the SQL92 subscriptions of a topic when a message
arrives, and stores the result as a bit map in the extended consume queue: each subscription that
matches sets its ``k`` of ``m`` bits. A pull skips a message if one of its bits is not set;
otherwise it evaluates the expression again, because other subscriptions may have set its bits.

The positions of a subscription follow from the text ``group#topic``. Let ``h`` be the first half of
its murmur3 (x64, 128 bits, seed 0), cut into a low and a high half of 32 bits; the i-th position,
from 1, is ``low + i * high`` in 32-bit arithmetic, all bits flipped if negative, modulo ``m``. Bit
p is bit ``p % 8`` of byte ``p / 8``.

``m`` and ``k`` follow from the accepted rate of errors and the expected number of subscriptions;
Java's defaults, 20 % and 32, give 112 and 3.

Counterpart of Java's ``BloomFilter``, ``BloomFilterData`` and ``BitsArray``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Final

from skylark.core.errors import ConfigError

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F
_BLOCK: Final = struct.Struct("<QQ")


class BloomFilter:
    """Size and hash count of the bit maps of one broker."""

    __slots__ = ("bit_count", "hash_count")

    def __init__(self, error_rate_percent: int, expected_count: int) -> None:
        if not 1 <= error_rate_percent < 100:
            raise ConfigError(f"an error rate of {error_rate_percent} % is not from 1 to 99")
        if expected_count < 1:
            raise ConfigError(f"{expected_count} expected subscriptions are less than 1")
        error_rate = error_rate_percent / 100.0
        self.hash_count = math.ceil(math.log(error_rate) / math.log(0.5))
        bits = expected_count * _log2(1 / error_rate) * _log2(math.e)
        self.bit_count = 8 * math.ceil(math.ceil(bits) / 8)

    def __repr__(self) -> str:
        return f"<BloomFilter m={self.bit_count} k={self.hash_count}>"

    def positions(self, key: str) -> tuple[int, ...]:
        """The bits of ``group#topic``, in the order in which Java lists them."""
        first_half = murmur3(key.encode("utf-8", "replace"))[0]
        low, high = first_half & 0xFFFF_FFFF, first_half >> 32
        found = []
        for index in range(1, self.hash_count + 1):
            combined = (low + index * high) & 0xFFFF_FFFF
            if combined & 0x8000_0000:
                combined ^= 0xFFFF_FFFF
            found.append(combined % self.bit_count)
        return tuple(found)

    def is_valid(self, bit_count: int, positions: Iterable[int]) -> bool:
        """Whether stored positions are from a filter with the same size and hash count."""
        return bit_count == self.bit_count and sum(1 for _ in positions) == self.hash_count


def _log2(number: float) -> float:
    # Not math.log2: a rounding other than Java's could give one bit more or less.
    return math.log(number) / math.log(2)


# ---- murmur3 -----------------------------------------------------------------------------------


def murmur3(data: bytes) -> tuple[int, int]:
    """The two unsigned halves of MurmurHash3_x64_128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 ^= _mixed_1(k1)
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DC_E729) & _MASK
        h2 ^= _mixed_2(k2)
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x3849_5AB5) & _MASK
    k1, k2 = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    h1 ^= _mixed_1(k1)  # 0 for an empty tail
    h2 ^= _mixed_2(k2)
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1 = _final(h1)
    h2 = _final(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h2 + h1) & _MASK


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _MASK


def _mixed_1(k1: int) -> int:
    return _rotated(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_2(k2: int) -> int:
    return _rotated(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _final(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51_AFD7_ED55_8CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return h ^ h >> 33
