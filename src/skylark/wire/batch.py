"""Batch bodies: encodes many small messages into one send, and splits them again.

The body of SEND_BATCH_MESSAGE is a run of messages, each :data:`~skylark.wire.layout.BATCH_HEAD`,
body, property length (2), properties. Topic, queue and times are those of the request. The broker
splits the run into records with consecutive offsets, except for topics of type BatchCQ, where it is
stored unsplit (an *inner batch*) and consumers split it.

A decoded batch is a :class:`Batch`: columns rather than messages. The broker handles a whole column
at once, and where all messages have the same size, as those of most programs have, it does not have
to visit each of them.

Counterpart of Java's ``MessageDecoder.encodeMessages``/``decodeMessages``/``countInnerMsgNum``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import add
from typing import Final, Self

import msgspec

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.layout import (
    BATCH_HEAD,
    BATCH_HEAD_SIZE,
    BATCH_MESSAGE_SIZE_MIN,
    PROPERTIES_LENGTH,
    PROPERTIES_SIZE_MAX,
)

#: Java's maxMessageSize, which bounds a batch as a whole.
BATCH_SIZE_MAX: Final = 4 * 1024 * 1024
#: A batch of 4 MiB with unique ids and tags holds fewer.
BATCH_COUNT_MAX: Final = 65_535
#: Equally long messages that are packed or unpacked at once: a struct for more takes much memory.
ALIKE_COUNT_MAX: Final = 512


class BatchMessage(msgspec.Struct, gc=False):
    """The fields of one message in a batch: a row of a :class:`Batch`."""

    body: bytes
    properties: bytes = b""  # a raw property string
    flag: int = 0
    prepared_transaction_offset: int = 0  # not on the wire: of a final message that is stored


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The messages of a batch by column; iteration goes over the messages."""

    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    flags: Sequence[int]
    prepared_transaction_offsets: Sequence[int]
    sizes: Sequence[int]  # of body and properties together
    is_alike: bool  # all bodies have one size, and so have all property strings

    @classmethod
    def of(cls, messages: Iterable[BatchMessage]) -> Self:
        """The batch with these messages."""
        rows = list(messages)
        return cls.of_columns(
            [row.body for row in rows],
            [row.properties for row in rows],
            [row.flag for row in rows],
            [row.prepared_transaction_offset for row in rows],
        )

    @classmethod
    def of_columns(
        cls,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        flags: Sequence[int],
        prepared_transaction_offsets: Sequence[int],
    ) -> Self:
        """The batch with these columns; the messages may differ in size."""
        body_sizes, properties_sizes = list(map(len, bodies)), list(map(len, properties))
        return cls(
            bodies,
            properties,
            flags,
            prepared_transaction_offsets,
            list(map(add, body_sizes, properties_sizes)),
            len(set(body_sizes)) <= 1 and len(set(properties_sizes)) <= 1,
        )

    def with_properties(self, properties: Sequence[bytes]) -> Self:
        """The same messages with other property strings."""
        return self.of_columns(
            self.bodies, properties, self.flags, self.prepared_transaction_offsets
        )

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[BatchMessage]:
        return map(
            BatchMessage,
            self.bodies,
            self.properties,
            self.flags,
            self.prepared_transaction_offsets,
        )


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """The body of a batch send."""
    parts: list[bytes] = []
    for message in messages:
        body = message.body
        properties = message.properties
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise LocalProtocolError(
                f"properties of {len(properties)} bytes exceed {PROPERTIES_SIZE_MAX}"
            )
        size = BATCH_MESSAGE_SIZE_MIN + len(body) + len(properties)
        parts.append(BATCH_HEAD.pack(size, 0, 0, message.flag, len(body)))
        parts.append(body)
        parts.append(PROPERTIES_LENGTH.pack(len(properties)))
        parts.append(properties)
    return b"".join(parts)


def split_batch(
    body: bytes, *, size_max: int = BATCH_SIZE_MAX, count_max: int = BATCH_COUNT_MAX
) -> Batch:
    """Split a batch body; anything that is not a run of whole messages raises
    :class:`RemoteProtocolError`. Magic and checksum of the messages are not checked."""
    end = len(body)
    if end > size_max:
        raise RemoteProtocolError(f"a batch of {end} bytes exceeds {size_max}")
    alike = _split_alike(body, min(count_max, ALIKE_COUNT_MAX))
    if alike is not None:
        return alike
    unpack_head = BATCH_HEAD.unpack_from
    unpack_length = PROPERTIES_LENGTH.unpack_from
    bodies: list[bytes] = []
    properties: list[bytes] = []
    flags: list[int] = []
    position = 0
    while position < end:
        if end - position < BATCH_MESSAGE_SIZE_MIN:
            raise RemoteProtocolError(f"a batch ends within a message, at {position} of {end}")
        size, _, _, flag, body_size = unpack_head(body, position)
        body_start = position + BATCH_HEAD_SIZE
        body_end = body_start + body_size
        message_end = position + size
        if body_size < 0 or message_end > end or body_end + 2 > message_end:
            raise RemoteProtocolError(
                f"message at {position} of a batch of {end}: size {size}, body size {body_size}"
            )
        (properties_size,) = unpack_length(body, body_end)
        if body_end + 2 + properties_size != message_end:
            raise RemoteProtocolError(
                f"message at {position} of a batch: size {size}, sum of its parts "
                f"{body_end + 2 + properties_size - position}"
            )
        bodies.append(body[body_start:body_end])
        properties.append(body[body_end + 2 : message_end])
        flags.append(flag)
        if len(bodies) > count_max:
            raise RemoteProtocolError(f"a batch holds more than {count_max} messages")
        position = message_end
    return Batch.of_columns(bodies, properties, flags, (0,) * len(bodies))


def _split_alike(body: bytes, count_max: int) -> Batch | None:
    """A batch whose messages all have the same size of body and properties; one ``unpack`` takes
    it apart. None for any other.
    """
    end = len(body)
    if end < BATCH_MESSAGE_SIZE_MIN:
        return None
    size, _, _, _, body_size = BATCH_HEAD.unpack_from(body, 0)
    properties_size = size - BATCH_MESSAGE_SIZE_MIN - body_size
    if size < BATCH_MESSAGE_SIZE_MIN or end % size or body_size < 0 or properties_size < 0:
        return None
    count = end // size
    if not 1 < count <= count_max:
        return None
    fields = _alike(count, body_size, properties_size).unpack(body)
    if (
        fields[0::6] != (size,) * count
        or fields[2::6] != (body_size,) * count
        or fields[4::6] != (properties_size,) * count
    ):
        return None
    own_size = body_size + properties_size
    return Batch(
        fields[3::6], fields[5::6], fields[1::6], (0,) * count, (own_size,) * count, is_alike=True
    )


@lru_cache(maxsize=16)
def _alike(count: int, body_size: int, properties_size: int) -> struct.Struct:
    # Without magic and checksum, which no reader checks.
    return struct.Struct(">" + f"i8xii{body_size}sh{properties_size}s" * count)
