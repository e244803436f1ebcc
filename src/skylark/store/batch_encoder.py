"""Encodes the records of a batch as one string of bytes.

Java's client usually fills a batch with messages of one size. Such records differ in five places,
and one ``pack`` for all of them takes half the time::

    size, magic | crc | queue id, flag | queue offset | log offset | ... | body | topic | properties

Any other batch is packed record by record. The bytes are those that :meth:`CommitLog.append` writes
for the same messages one by one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from skylark.wire.batch import ALIKE_COUNT_MAX, Batch
from skylark.wire.layout import (
    BODY_LENGTH_SIZE,
    PREPARED_OFFSET_SIZE,
    PROPERTIES_LENGTH,
    SYS_FLAG_POSITION,
)

_TWO = struct.Struct(">ii")
_LAST = struct.Struct(">qi")  # prepared transaction offset, body length
assert _LAST.size == PREPARED_OFFSET_SIZE + BODY_LENGTH_SIZE
_pack_properties_length = PROPERTIES_LENGTH.pack


class Shared(NamedTuple):
    """The fields that all records of a batch have in common."""

    magic: int
    queue_id: int
    middle: bytes  # of the head: from SYSFLAG up to RECONSUMETIMES
    topic_field: bytes

    @property
    def size(self) -> int:
        """Size of a record without its body and properties."""
        return (
            SYS_FLAG_POSITION + len(self.middle) + _LAST.size
            + len(self.topic_field) + PROPERTIES_LENGTH.size
        )  # fmt: skip


def middle_of(head: bytes) -> bytes:
    """The part of a record head that is the same for the whole batch."""
    return head[SYS_FLAG_POSITION : -_LAST.size]


def places_of(batch: Batch, overhead: int, log_offset: int) -> tuple[Sequence[int], Sequence[int]]:
    """Log offsets and sizes of the records, the first at ``log_offset``.

    ``overhead`` is :attr:`Shared.size`; the property strings are those that are stored.
    """
    if batch.is_alike:
        count, size = len(batch), overhead + batch.sizes[0]
        return range(log_offset, log_offset + count * size, size), (size,) * count
    sizes = [overhead + size for size in batch.sizes]
    return list(accumulate(sizes[:-1], initial=log_offset)), sizes


def pack_batch(shared: Shared, batch: Batch, queue_offset: int, log_offset: int) -> bytes:
    """The bytes of the records, the first at ``log_offset``."""
    bodies, properties, count = batch.bodies, batch.properties, len(batch)
    flag = batch.flags[0]
    if not batch.is_alike or count > ALIKE_COUNT_MAX or batch.flags.count(flag) < count:
        return _pack_each(shared, batch, queue_offset, log_offset)
    body_size, properties_size = len(bodies[0]), len(properties[0])
    size = shared.size + body_size + properties_size
    middle, pack_last = shared.middle, _LAST.pack
    topic = shared.topic_field + _pack_properties_length(properties_size)
    start = _TWO.pack(size, shared.magic)
    fields: list[bytes | int]
    fields = [start, 0, _TWO.pack(shared.queue_id, flag), 0, 0, b"", b"", topic, b""] * count
    fields[1::9] = [crc32(body) & 0x7FFF_FFFF for body in bodies]
    fields[3::9] = range(queue_offset, queue_offset + count)
    fields[4::9] = range(log_offset, log_offset + count * size, size)
    prepared = batch.prepared_transaction_offsets
    if prepared.count(prepared[0]) == count:
        fields[5::9] = [middle + pack_last(prepared[0], body_size)] * count
    else:
        fields[5::9] = [middle + pack_last(each, body_size) for each in prepared]
    fields[6::9] = bodies
    fields[8::9] = properties
    return _alike(count, len(middle) + _LAST.size, body_size, len(topic), properties_size).pack(
        *fields
    )


@lru_cache(maxsize=16)
def _alike(count: int, rest: int, body: int, topic: int, properties: int) -> struct.Struct:
    return struct.Struct(">" + f"8si8sqq{rest}s{body}s{topic}s{properties}s" * count)


def _pack_each(shared: Shared, batch: Batch, queue_offset: int, log_offset: int) -> bytes:
    magic, queue_id, middle, topic_field = shared
    overhead = shared.size
    pack_head = _head(len(middle)).pack
    parts: list[bytes] = []
    for message in batch:
        body, properties = message.body, message.properties
        body_size, properties_size = len(body), len(properties)
        size = overhead + body_size + properties_size
        head = pack_head(
            size, magic, crc32(body) & 0x7FFF_FFFF, queue_id, message.flag, queue_offset,
            log_offset, middle, message.prepared_transaction_offset, body_size,
        )  # fmt: skip
        parts += (head, body, topic_field, _pack_properties_length(properties_size), properties)
        queue_offset += 1
        log_offset += size
    return b"".join(parts)


@lru_cache(maxsize=4)
def _head(middle: int) -> struct.Struct:
    return struct.Struct(f">iiiiiqq{middle}sqi")
