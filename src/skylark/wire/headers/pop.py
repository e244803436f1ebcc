"""Headers of pop consumption (5.x), where the broker hands out queues message by message.

A popped message stays invisible for ``invisibleTime`` ms; until then the consumer acknowledges it
or asks for more time, naming it by ``extraInfo`` (the message property POP_CK) and its offset.
``startOffsetInfo``, ``msgOffsetInfo`` and ``orderCountInfo`` are lists joined by ``;`` which let
the client rebuild POP_CK for each message. These codes exceed int16 and travel under JSON headers
only. BATCH_ACK_MESSAGE has no header: all is in its body. Counterpart of Java's
``PopMessageRequestHeader``, ``AckMessageRequestHeader`` and others.
"""

from __future__ import annotations

from skylark.wire.fields import Header, Int32, Int64


class PopMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """POP_MESSAGE: asks for messages, which stay invisible for ``invisible_time`` ms."""

    consumer_group: str
    topic: str
    #: -1: any queue.
    queue_id: Int32 = 0
    max_msg_nums: Int32 = 0
    invisible_time: Int64 = 0
    poll_time: Int64 = 0
    #: When the client sent this; 0: now.
    born_time: Int64 = 0
    #: A queue without offset starts at 0 its minimum, 1 its maximum.
    init_mode: Int32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    #: For reports of which client has a message; only Skylark's clients send it.
    client_id: str | None = None


class PopMessageResponseHeader(Header, kw_only=True, rename="camel"):
    """Response to POP_MESSAGE and PEEK_MESSAGE."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    #: 999 marks ordered consumption.
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """ACK_MESSAGE: done with one message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


class ChangeInvisibleTimeRequestHeader(Header, kw_only=True, rename="camel"):
    """CHANGE_MESSAGE_INVISIBLETIME: hide one message for longer, or show it sooner."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(Header, kw_only=True, rename="camel"):
    """The parts of the new ``extraInfo``."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0


class NotificationRequestHeader(Header, kw_only=True, rename="camel"):
    """NOTIFICATION: wait until there is something to pop, without popping it."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    order: bool = False
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header, kw_only=True, rename="camel"):
    """Whether a pop would find something."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoRequestHeader(Header, kw_only=True, rename="camel"):
    """POLLING_INFO: how many pops wait on a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0


class PollingInfoResponseHeader(Header, kw_only=True, rename="camel"):
    """The number of waiting pops."""

    polling_num: Int32 = 0


class PeekMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """PEEK_MESSAGE: look at messages without taking them."""

    consumer_group: str
    topic: str
    queue_id: Int32 = 0
    max_msg_nums: Int32 = 0
