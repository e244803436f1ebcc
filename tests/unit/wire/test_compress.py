"""Compressed bodies: interoperable, and never larger than allowed."""

from __future__ import annotations

import random
import zlib

import pytest
import zstandard

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.compress import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZLIB_OLD,
    COMPRESSION_ZSTD,
    InflatedSizeError,
    compress_body,
    compression_flags,
    decompress_body,
)

KINDS = (COMPRESSION_ZLIB_OLD, COMPRESSION_LZ4, COMPRESSION_ZSTD, COMPRESSION_ZLIB)
NOISE = random.Random(1).randbytes(300_000)
BODIES = [b"", b"x", b"hello " * 1000, bytes(1_000_000), NOISE]


def streamed_zstd(body: bytes) -> bytes:
    """As Java writes it: the frame does not hold the size of its content."""
    compressor = zstandard.ZstdCompressor(level=5).compressobj()
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", BODIES, ids=len)
def test_round_trip(kind: int, body: bytes) -> None:
    compressed = compress_body(body, kind)
    flags = compression_flags(kind)
    assert flags == 1 | kind << 8
    assert decompress_body(compressed, flags, size_max=len(body)) == body


@pytest.mark.parametrize("body", BODIES, ids=len)
def test_zstd_of_unknown_size(body: bytes) -> None:
    compressed = streamed_zstd(body)
    assert decompress_body(compressed, compression_flags(COMPRESSION_ZSTD)) == body


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [100, 65_536, 1_000_000])
def test_nothing_is_inflated_beyond_the_limit(kind: int, size: int) -> None:
    flags = compression_flags(kind)
    compressed = compress_body(bytes(size), kind)
    assert decompress_body(compressed, flags, size_max=size) == bytes(size)
    with pytest.raises(InflatedSizeError, match=f"exceeds {size - 1} bytes") as raised:
        decompress_body(compressed, flags, size_max=size - 1)
    assert raised.value.size_max == size - 1


@pytest.mark.parametrize("size", [100, 65_536, 1_000_000])
def test_nothing_is_inflated_beyond_the_limit_of_an_unknown_size(size: int) -> None:
    flags = compression_flags(COMPRESSION_ZSTD)
    compressed = streamed_zstd(bytes(size))
    assert decompress_body(compressed, flags, size_max=size) == bytes(size)
    with pytest.raises(InflatedSizeError):
        decompress_body(compressed, flags, size_max=size - 1)


def test_a_compression_bomb_is_refused_before_it_is_inflated() -> None:
    """100 MB of zeros in 100 kB: inflating stops at the limit."""
    bomb = zlib.compress(bytes(100_000_000), 9)
    with pytest.raises(InflatedSizeError):
        decompress_body(bomb, compression_flags(COMPRESSION_ZLIB), size_max=4 << 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"hello " * 1000, NOISE], ids=len)
def test_a_body_cut_short_is_refused(kind: int, body: bytes) -> None:
    compressed = compress_body(body, kind)
    for size in {0, 1, 2, 4, 7, 15, len(compressed) // 2, len(compressed) - 1}:
        with pytest.raises(RemoteProtocolError):
            decompress_body(compressed[:size], compression_flags(kind))


def test_a_streamed_zstd_body_cut_short_is_refused() -> None:
    compressed = streamed_zstd(NOISE)
    for size in (len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(RemoteProtocolError, match="no zstd body"):
            decompress_body(compressed[:size], compression_flags(COMPRESSION_ZSTD))


@pytest.mark.parametrize("kind", KINDS)
def test_damage_raises_nothing_but_the_typed_error(kind: int) -> None:
    """A damaged body may still inflate (LZ4 has no checksum); it must not raise anything else."""
    dice = random.Random(kind)
    original = compress_body(b"hello world " * 50, kind)
    refused = 0
    for _ in range(400):
        damaged = bytearray(original)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            decompress_body(bytes(damaged), compression_flags(kind), size_max=1 << 20)
        except RemoteProtocolError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_after_the_end_are_ignored(kind: int) -> None:
    compressed = compress_body(b"hello " * 1000, kind)
    assert decompress_body(compressed + b"xx", compression_flags(kind)) == b"hello " * 1000


def test_lz4_blocks_are_independent() -> None:
    """Java's reader refuses linked blocks; a frame of several blocks is where it would show."""
    compressed = compress_body(NOISE, COMPRESSION_LZ4)
    flags = compressed[4]
    assert compressed[:4] == bytes.fromhex("04224d18")
    assert flags >> 6 == 1  # version
    assert flags & 0x20  # blocks are independent
    assert not flags & 0x09  # no content size, no dictionary


def test_unknown_kinds() -> None:
    with pytest.raises(RemoteProtocolError, match="kind 4"):
        decompress_body(b"x", 1 | 4 << 8)
    with pytest.raises(LocalProtocolError, match="kind 4"):
        compress_body(b"x", 4)
