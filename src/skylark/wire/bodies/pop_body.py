"""POP consumption: assignments made by the broker, the mode of a group, acks in batches.

A batch ack names the offsets ``start .. start + n`` by a bit set: bit n of byte k (lowest bit
first) stands for offset ``start + 8 k + n``. It travels as Base64 of Java's
``BitSet.toByteArray``, so bits 0 and 9 are ``AQI=``.

Counterpart of Java's ``QueryAssignment*Body``, ``SetMessageRequestModeRequestBody``, ``BatchAck``.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable
from enum import auto
from typing import Final

import msgspec

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.bodies.common_body import Body, JavaEnum, MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.fields import Int32, Int64

#: Bits of one batch ack. A pop hands out at most 32 messages of a queue at a time.
BITS_MAX: Final = 65_536


class MessageRequestMode(JavaEnum):
    """How a group gets the messages of a topic."""

    PULL = auto()
    POP = auto()


class QueryAssignmentRequestBody(Body, kw_only=True):
    """A client asks for its queues (400)."""

    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(Body, kw_only=True):
    """One queue given to a client; queue -1 means pop from all."""

    message_queue: MessageQueue | None = None
    mode: MessageRequestMode | None = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body, kw_only=True):
    """Answer of 400. ``None`` means "keep what you have", an empty list "drop everything"."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body, kw_only=True):
    """Switches a group between pull and pop for one topic (401, 402)."""

    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode | None = MessageRequestMode.PULL
    pop_share_queue_num: Int32 = 0


class BatchAck(Body, kw_only=True):
    """Acks for messages of one queue and one pop, as a bit set."""

    consumer_group: str = msgspec.field(default="", name="c")
    topic: str = msgspec.field(default="", name="t")
    retry: str = msgspec.field(default="0", name="r")  # the retry flag of POP_CK
    start_offset: Int64 = msgspec.field(default=0, name="so")
    queue_id: Int32 = msgspec.field(default=0, name="q")
    revive_queue_id: Int32 = msgspec.field(default=0, name="rq")
    pop_time: Int64 = msgspec.field(default=0, name="pt")
    invisible_time: Int64 = msgspec.field(default=0, name="it")
    bit_set: str | None = msgspec.field(default=None, name="b")

    def offsets(self) -> list[int]:
        """The acknowledged queue offsets, ascending."""
        return self.offsets_of(self.mask(self.start_offset, self.start_offset + BITS_MAX))

    def mask(self, first: int, end: int) -> int:
        """The acknowledged offsets from ``first`` to ``end`` - 1, as the bits of a number.

        A bit set may have 65,536 bits, and a request thousands of bit sets: count the bits of all
        masks (``int.bit_count``) before :meth:`offsets_of` makes lists of them.
        """
        width, skipped = end - self.start_offset, first - self.start_offset
        if self.bit_set is None:
            return 0
        mask = _decode_mask(self.bit_set)
        if width <= 0 or skipped >= BITS_MAX:
            return 0
        if width < BITS_MAX:
            mask &= (1 << width) - 1
        return mask >> skipped << skipped if skipped > 0 else mask

    def offsets_of(self, mask: int) -> list[int]:
        """The queue offsets of a mask, ascending."""
        return [self.start_offset + bit for bit in _bits(mask)]


class BatchAckMessageRequestBody(Body, kw_only=True):
    """Many acks in one request (200151)."""

    broker_name: str = ""
    acks: list[BatchAck] = msgspec.field(default_factory=list)


def encode_bit_set(bits: Iterable[int]) -> str:
    """Base64 of the bit set that has the given bits."""
    mask = 0
    for bit in bits:
        if not 0 <= bit < BITS_MAX:
            raise LocalProtocolError(f"bit {bit} of a batch ack is not below {BITS_MAX}")
        mask |= 1 << bit
    return b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode()


def decode_bit_set(text: str) -> list[int]:
    """The bits of a bit set given as Base64, ascending."""
    return _bits(_decode_mask(text))


def _decode_mask(text: str) -> int:
    """A bit set given as Base64, as a number; raises RemoteProtocolError."""
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError(f"a bit set is not Base64: {error}") from error
    if len(data) > BITS_MAX // 8:
        raise RemoteProtocolError(f"a bit set of {len(data)} bytes")
    return int.from_bytes(data, "little")


def _bits(mask: int) -> list[int]:
    """The places of the bits of a number, ascending."""
    data = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    return [
        8 * index + bit
        for index, byte in enumerate(data)
        if byte
        for bit in range(8)
        if byte >> bit & 1
    ]
