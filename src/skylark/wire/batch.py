"""Batch bodies: many small messages in one send, and the way back.

The body of SEND_BATCH_MESSAGE is a run of messages, each :data:`~skylark.wire.layout.BATCH_HEAD`,
body, property length (2), properties. Topic, queue and times are those of the request. The broker
splits the run into records with consecutive offsets, except for topics of type BatchCQ, where it is
stored unsplit (an *inner batch*) and consumers take it apart.

Answers to Java's ``MessageDecoder.encodeMessages``/``decodeMessages``/``countInnerMsgNum``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

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
_ALIKE_COUNT_MAX: Final = 512  # a struct for more of them would take much memory


class BatchMessage(msgspec.Struct, gc=False):
    """What a message in a batch has of its own."""

    body: bytes
    properties: bytes = b""  # a raw property string
    flag: int = 0
    prepared_transaction_offset: int = 0  # not on the wire: of a final message that is stored


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
) -> list[BatchMessage]:
    """Take a batch body apart; anything that is not a run of whole messages raises
    :class:`RemoteProtocolError`. Magic and checksum of the parts are not looked at."""
    end = len(body)
    if end > size_max:
        raise RemoteProtocolError(f"a batch of {end} bytes exceeds {size_max}")
    alike = _split_alike(body, min(count_max, _ALIKE_COUNT_MAX))
    if alike is not None:
        return alike
    unpack_head = BATCH_HEAD.unpack_from
    unpack_length = PROPERTIES_LENGTH.unpack_from
    messages: list[BatchMessage] = []
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
        messages.append(
            BatchMessage(body[body_start:body_end], body[body_end + 2 : message_end], flag)
        )
        if len(messages) > count_max:
            raise RemoteProtocolError(f"a batch holds more than {count_max} messages")
        position = message_end
    return messages


def _split_alike(body: bytes, count_max: int) -> list[BatchMessage] | None:
    """The messages of a batch, if all have the same size of body and properties.

    That is how many programs fill their batches; one ``unpack`` takes them apart.
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
        fields[0::8] != (size,) * count
        or fields[4::8] != (body_size,) * count
        or fields[6::8] != (properties_size,) * count
    ):
        return None
    return list(map(BatchMessage, fields[5::8], fields[7::8], fields[3::8]))


@lru_cache(maxsize=64)
def _alike(count: int, body_size: int, properties_size: int) -> struct.Struct:
    return struct.Struct(">" + f"iiiii{body_size}sh{properties_size}s" * count)
