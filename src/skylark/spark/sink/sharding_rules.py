"""Sharding rules: the functions that map a sharding key to a queue, as different clients do it.

=============  ==============================================  ====================================
rule           used by                                         index among n queues
=============  ==============================================  ====================================
hash           Java's ``SelectMessageQueueByHash`` and the     absolute remainder of Java's hash
               clients of this project
consistent     Apache's proxy                                  jump hash of Java's hash (Guava)
siphash        gRPC clients                                    SipHash-2-4 of the bytes, modulo n
=============  ==============================================  ====================================

The three give different queues, so all producers of a topic must use the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from skylark.client.producer.queue_selector import shard_index
from skylark.core.hashing import java_hash

_MASK64: Final = (1 << 64) - 1
#: Guava's default key: the bytes 00 to 0f.
_KEY0: Final = 0x0706050403020100
_KEY1: Final = 0x0F0E0D0C0B0A0908


def consistent_hash(number: int, count: int) -> int:
    """Counterpart of Guava's ``Hashing.consistentHash``: few keys move when ``count`` changes."""
    state, candidate = number & _MASK64, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK64
        following = int((candidate + 1) / (((state >> 33) + 1) / 0x8000_0000))
        if following >= count:
            return candidate
        candidate = following


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & _MASK64


def siphash24(data: bytes, key0: int = _KEY0, key1: int = _KEY1) -> int:
    """SipHash-2-4, as an unsigned number of 64 bits."""
    v0, v1 = key0 ^ 0x736F6D6570736575, key1 ^ 0x646F72616E646F6D
    v2, v3 = key0 ^ 0x6C7967656E657261, key1 ^ 0x7465646279746573
    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0, v2 = (v0 + v1) & _MASK64, (v2 + v3) & _MASK64
            v1, v3 = _rotate(v1, 13) ^ v0, _rotate(v3, 16) ^ v2
            v0 = _rotate(v0, 32)
            v2, v0 = (v2 + v1) & _MASK64, (v0 + v3) & _MASK64
            v1, v3 = _rotate(v1, 17) ^ v2, _rotate(v3, 21) ^ v0
            v2 = _rotate(v2, 32)

    for word in words:
        v3 ^= word
        rounds(2)
        v0 ^= word
    v2 ^= 0xFF
    rounds(4)
    return v0 ^ v1 ^ v2 ^ v3


def _consistent(key: str, count: int) -> int:
    return consistent_hash(java_hash(key), count)


def _siphash(key: str, count: int) -> int:
    number = siphash24(key.encode())
    signed = number - (1 << 64) if number >> 63 else number
    return signed % count  # as Guava's LongMath.mod: never negative


#: Value of the option ``queueSelector`` -> function from key and number of queues to an index.
SHARD_RULES: Final[dict[str, Callable[[str, int], int]]] = {
    "roundrobin": shard_index,
    "hash": shard_index,
    "consistent": _consistent,
    "siphash": _siphash,
}
