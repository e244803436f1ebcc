"""Compressed bodies: zlib, LZ4 frames and zstd, as Java clients write and read them.

A producer compresses large bodies and marks them in SYSFLAG: bit 0 set, bits 8-10 the kind. Brokers
never inflate a body; consumers inflate it and clear bit 0.

Two rules for interoperability and safety:

* Java's LZ4 reader (lz4-java) refuses frames whose blocks refer to each other, so ours are written
  with independent blocks, which is not the default of every library.
* Nothing is inflated beyond ``size_max``: a body of a few kilobytes can claim gigabytes. Bytes
  after the end of the compressed stream are ignored, as Java ignores them.

Counterpart of Java's ``CompressorFactory``, ``ZlibCompressor``, ``Lz4Compressor``,
``ZstdCompressor``.
"""

from __future__ import annotations

import zlib
from typing import Final

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK, FLAG_COMPRESSION_SHIFT

COMPRESSION_ZLIB_OLD: Final = 0  # 4.x producers set bit 0 and no kind
COMPRESSION_LZ4: Final = 1
COMPRESSION_ZSTD: Final = 2
COMPRESSION_ZLIB: Final = 3

COMPRESSION_LEVEL: Final = 5  # Java's default for zlib and zstd; LZ4 has none

#: Largest body that is inflated unless the caller sets a limit: 16 times Java's maxMessageSize.
INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024

# Guesses at the size of an output grow from here, so that small bodies cost small buffers.
_FIRST_GUESS = 64 * 1024


class InflatedSizeError(RemoteProtocolError):
    """A compressed body inflates to more than the limit allows."""

    def __init__(self, size_max: int) -> None:
        super().__init__(f"a compressed body exceeds {size_max} bytes when inflated")
        self.size_max = size_max


def compression_flags(kind: int) -> int:
    """The SYSFLAG bits of a body compressed as ``kind``."""
    return FLAG_COMPRESSED | kind << FLAG_COMPRESSION_SHIFT


def compress_body(body: bytes, kind: int, level: int = COMPRESSION_LEVEL) -> bytes:
    """Compress ``body``; LZ4 ignores ``level``."""
    if kind in (COMPRESSION_ZLIB, COMPRESSION_ZLIB_OLD):
        return zlib.compress(body, level)
    if kind == COMPRESSION_LZ4:
        import lz4.frame

        framed: bytes = lz4.frame.compress(body, block_linked=False, store_size=False)
        return framed
    if kind == COMPRESSION_ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=level).compress(body)
    raise LocalProtocolError(f"no compression of kind {kind}")


def decompress_body(body: bytes, sys_flag: int, *, size_max: int = INFLATED_SIZE_MAX) -> bytes:
    """Inflate a body that was stored with ``sys_flag``, whose bit 0 marks it as compressed.

    Raises :class:`InflatedSizeError` beyond ``size_max`` and :class:`RemoteProtocolError` for bytes
    that are damaged, cut short, or of an unknown kind.
    """
    kind = (sys_flag & FLAG_COMPRESSION_MASK) >> FLAG_COMPRESSION_SHIFT
    if kind in (COMPRESSION_ZLIB, COMPRESSION_ZLIB_OLD):
        return _inflate_zlib(body, size_max)
    if kind == COMPRESSION_LZ4:
        return _inflate_lz4(body, size_max)
    if kind == COMPRESSION_ZSTD:
        return _inflate_zstd(body, size_max)
    raise RemoteProtocolError(f"no compression of kind {kind}")


def _inflate_zlib(body: bytes, size_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, size_max + 1)
    except zlib.error as error:
        raise RemoteProtocolError(f"no zlib body: {error}") from error
    if len(inflated) > size_max:
        raise InflatedSizeError(size_max)
    if not inflater.eof:
        raise RemoteProtocolError("a zlib body is cut short")
    return inflated


def _inflate_lz4(body: bytes, size_max: int) -> bytes:
    import lz4.frame

    inflater = lz4.frame.LZ4FrameDecompressor()
    pieces: list[bytes] = []
    total = 0
    guess = _FIRST_GUESS
    while not inflater.eof:
        try:
            # The library allocates all of max_length at once.
            piece = inflater.decompress(b"" if pieces else body, max_length=guess)
        except (RuntimeError, ValueError, EOFError) as error:
            raise RemoteProtocolError(f"no LZ4 body: {error}") from error
        pieces.append(piece)
        total += len(piece)
        if total > size_max:
            raise InflatedSizeError(size_max)
        if not piece and not inflater.eof:
            raise RemoteProtocolError("an LZ4 body is cut short")
        guess = min(guess * 4, size_max - total + 1)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _inflate_zstd(body: bytes, size_max: int) -> bytes:
    import zstandard

    try:
        declared = zstandard.get_frame_parameters(body).content_size
        inflater = zstandard.ZstdDecompressor()
        if declared != zstandard.CONTENTSIZE_UNKNOWN:
            if declared > size_max:
                raise InflatedSizeError(size_max)
            return inflater.decompress(body)
    except zstandard.ZstdError as error:
        raise RemoteProtocolError(f"no zstd body: {error}") from error
    # Java streams, so its frames do not hold the size of their content.
    guess = min(_FIRST_GUESS, size_max)
    while True:
        try:
            return inflater.decompress(body, max_output_size=guess)
        except zstandard.ZstdError as error:
            if guess < size_max:
                guess = min(guess * 8, size_max)
                continue
            # The library has one error for "too large", "cut short" and "damaged".
            if _zstd_exceeds(body, size_max):
                raise InflatedSizeError(size_max) from error
            raise RemoteProtocolError(f"no zstd body: {error}") from error


def _zstd_exceeds(body: bytes, size_max: int) -> bool:
    import zstandard

    total = 0
    try:
        for piece in zstandard.ZstdDecompressor().read_to_iter(body):
            total += len(piece)
            if total > size_max:
                return True
    except zstandard.ZstdError:
        return False
    return False
