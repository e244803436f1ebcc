"""Errors of clients that concern a queue; all others are in :mod:`skylark.core.errors`.

They stand apart from what raises them so that an application can name them without loading it.
"""

from __future__ import annotations

import msgspec

from skylark.core.errors import ClientError, RemoteProtocolError
from skylark.wire.bodies.common_body import MessageQueue


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that were asked for and are not there."""

    queue: MessageQueue
    wanted: int  #: the offset that was asked for
    available: int  #: where the broker says to go on
    count: int  #: messages of the range that are lost


class MissingError(ClientError):
    """Part of a range is gone: too old, or the topic was deleted and made anew."""

    def __init__(self, missing: Missing) -> None:
        queue = missing.queue
        super().__init__(
            f"{missing.count} messages of topic {queue.topic}, queue {queue.queue_id} of"
            f" {queue.broker_name}, are gone: offset {missing.wanted} was wanted, the broker goes"
            f" on at {missing.available}"
        )
        self.missing = missing


class UndecodableError(RemoteProtocolError):
    """The first message of an answer cannot be decoded; ``next_offset`` is where to go on."""

    def __init__(self, queue: MessageQueue, offset: int, next_offset: int) -> None:
        super().__init__(f"the message at offset {offset} of {queue} cannot be decoded")
        self.queue = queue
        self.offset = offset
        self.next_offset = next_offset
