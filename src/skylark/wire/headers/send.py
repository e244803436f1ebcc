"""Headers of sending: messages, batches, replies, send-back and recall.

A message travels with the long field names (codes 10, 324) or with one letter per field (310, 320,
325), which is what every client since 3.x sends::

    a producerGroup   b topic      c defaultTopic      d defaultTopicQueueNums
    e queueId         f sysFlag    g bornTimestamp     h flag
    i properties      j reconsumeTimes                 k unitMode
    l maxReconsumeTimes            m batch             n brokerName

Both classes have the same attributes, so a handler takes either (:data:`SendHeader`) and converts
nothing. The letter form and the answer belong to Java's "fast codec": a malformed number in them
aborts the request. Counterpart of Java's ``SendMessageRequestHeader``,
``SendMessageRequestHeaderV2``, ``SendMessageResponseHeader``, ``ReplyMessageRequestHeader`` and
others.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from skylark.wire.fields import Header, Int32, Int64

#: Ext entries of every response to a send, success or not; not part of the typed header.
EXT_MSG_REGION = "MSG_REGION"
EXT_TRACE_ON = "TRACE_ON"


class SendMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """SEND_MESSAGE and SEND_REPLY_MESSAGE: the long names."""

    producer_group: str
    topic: str
    #: Template for a topic that is created by this send, normally TBW102.
    default_topic: str
    default_topic_queue_nums: Int32
    #: Below zero: the broker picks a queue.
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None
    broker_name: str | None = field(default=None, name="bname")


class SendMessageRequestHeaderV2(Header, kw_only=True):
    """SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2: the letters."""

    strict_numbers: ClassVar[bool] = True

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_timestamp: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(default=None, name="i")
    reconsume_times: Int32 | None = field(default=None, name="j")
    unit_mode: bool | None = field(default=None, name="k")
    max_reconsume_times: Int32 | None = field(default=None, name="l")
    batch: bool | None = field(default=None, name="m")
    broker_name: str | None = field(default=None, name="n")


SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


class SendMessageResponseHeader(Header, kw_only=True, rename="camel"):
    """Where the message is stored; sent with codes 0, 10, 11 and 12 (stored, but not as safely)."""

    strict_numbers: ClassVar[bool] = True

    #: Offset id of the message; those of a batch joined by commas.
    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    #: The unique key (UNIQ_KEY) of the message.
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    #: Token for RECALL_MESSAGE when the message is a timer message.
    recall_handle: str | None = None


class ReplyMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: a reply handed to the client that waits for it."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    #: ``ip:port`` of the replier and of the broker.
    born_host: str
    store_host: str
    store_timestamp: Int64 = 0


class ConsumerSendMsgBackRequestHeader(Header, kw_only=True, rename="camel"):
    """CONSUMER_SEND_MSG_BACK: put a message that failed into the group's retry topic."""

    #: Position in the commit log.
    offset: Int64
    group: str
    #: Below zero: to the dead letters. 0: 3 + reconsume times.
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessageRequestHeader(Header, kw_only=True, rename="camel"):
    """RECALL_MESSAGE: take back a timer message before it is due."""

    producer_group: str | None = None
    topic: str
    recall_handle: str


class RecallMessageResponseHeader(Header, kw_only=True, rename="camel"):
    """The unique key of the message that was recalled."""

    msg_id: str
