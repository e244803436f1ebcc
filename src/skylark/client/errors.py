"""Errors of clients about a queue; all others are in :mod:`skylark.core.errors`.

A separate module, so that an application can import them without the code that raises them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skylark.core.errors import ClientError, RemoteProtocolError
from skylark.wire.bodies.common_body import MessageQueue


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """Requested messages that do not exist any more."""

    queue: MessageQueue
    wanted: int  #: the requested offset
    available: int  #: the next offset that the broker has
    count: int  #: messages of the range that are lost


class MissingError(ClientError):
    """Part of a range is missing: it expired, or the topic was deleted and created again."""

    def __init__(self, missing: Missing) -> None:
        queue = missing.queue
        super().__init__(
            f"{missing.count} messages of topic {queue.topic}, queue {queue.queue_id} of"
            f" {queue.broker_name}, are gone: offset {missing.wanted} was wanted, the broker goes"
            f" on at {missing.available}"
        )
        self.missing = missing


class ReceiptExpiredError(ClientError):
    """A popped message was held for longer than its invisible time, so others may have it now.

    An acknowledgement would have no effect. ``messages`` are those concerned.
    """

    def __init__(self, messages: Sequence[object]) -> None:
        first = messages[0]
        text = f"the invisible time of {first} is over"
        if len(messages) > 1:
            text = f"the invisible time of {len(messages)} messages is over, the first is {first}"
        super().__init__(
            f"{text}: it may be delivered again",
            hint="raise invisible=, call extend() in time, or receive fewer messages at once",
        )
        self.messages = tuple(messages)


class UndecodableError(RemoteProtocolError):
    """The first message of a response cannot be decoded; continue at ``next_offset``."""

    def __init__(self, queue: MessageQueue, offset: int, next_offset: int) -> None:
        super().__init__(f"the message at offset {offset} of {queue} cannot be decoded")
        self.queue = queue
        self.offset = offset
        self.next_offset = next_offset
