"""Members of groups: heartbeats of clients (34), checks of their subscriptions (46), the members
of a group (38), and the queue locks of orderly consumers (41, 42).

Heartbeat V2: if the broker supports it, a client sends a *fingerprint* of its subscriptions, and
leaves the subscriptions themselves out while the fingerprint is unchanged. It is the
``String.hashCode`` of the heartbeat's own JSON without everything that changes by itself. Brokers
only compare fingerprints, so ours need not equal that of another client.

Counterpart of Java's ``HeartbeatData``, ``ConsumerData``, ``SubscriptionData``, ``LockBatch*Body``.
"""

from __future__ import annotations

from enum import auto

import msgspec

from skylark.core.hashing import java_hash
from skylark.wire.bodies.common_body import Body, JavaEnum, MessageQueue
from skylark.wire.fastjson import encode_body
from skylark.wire.fields import Int32, Int64


class ConsumeType(JavaEnum):
    """Who moves the messages: the application, the client library, or the broker."""

    CONSUME_ACTIVELY = auto()  # pull
    CONSUME_PASSIVELY = auto()  # push
    CONSUME_POP = auto()


class MessageModel(JavaEnum):
    """Whether each member of a group gets all messages, or its share."""

    BROADCASTING = auto()
    CLUSTERING = auto()
    LITE_SELECTIVE = auto()


class ConsumeFromWhere(JavaEnum):
    """Where a group without committed offsets begins."""

    CONSUME_FROM_LAST_OFFSET = auto()
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = auto()
    CONSUME_FROM_MIN_OFFSET = auto()
    CONSUME_FROM_MAX_OFFSET = auto()
    CONSUME_FROM_FIRST_OFFSET = auto()
    CONSUME_FROM_TIMESTAMP = auto()


class SubscriptionData(Body, kw_only=True):
    """One topic as a group consumes it. ``code_set`` has the Java hash of each tag."""

    topic: str = ""
    sub_string: str = ""
    tags_set: list[str] = msgspec.field(default_factory=list)
    code_set: list[Int32] = msgspec.field(default_factory=list)
    sub_version: Int64 = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ConsumerData(Body, kw_only=True):
    """One consumer group of a client."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    unit_mode: bool = False


class ProducerData(Body, kw_only=True):
    """One producer group of a client."""

    group_name: str = ""


class HeartbeatData(Body, kw_only=True):
    """Body of HEART_BEAT (34); the client's language and version are in the frame's header."""

    client_id: str = msgspec.field(default="", name="clientID")
    producer_data_set: list[ProducerData] = msgspec.field(default_factory=list)
    consumer_data_set: list[ConsumerData] = msgspec.field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


class CheckClientRequestBody(Body, kw_only=True):
    """A subscription to be checked before it is used (46)."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None


class GetConsumerListByGroupResponseBody(Body, kw_only=True):
    """The client ids of a group (38)."""

    consumer_id_list: list[str] = msgspec.field(default_factory=list)


def heartbeat_fingerprint(heartbeat: HeartbeatData) -> int:
    """The fingerprint that goes with the subscriptions of a heartbeat."""
    consumers = [
        msgspec.structs.replace(
            consumer,
            subscription_data_set=[
                msgspec.structs.replace(subscription, sub_version=0)
                for subscription in consumer.subscription_data_set
            ],
        )
        for consumer in heartbeat.consumer_data_set
    ]
    bare = HeartbeatData(producer_data_set=heartbeat.producer_data_set, consumer_data_set=consumers)
    return java_hash(encode_body(bare).decode())


class LockBatchRequestBody(Body, kw_only=True):
    """Queues that a client wants for itself (41)."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)


class LockBatchResponseBody(Body, kw_only=True):
    """The queues of the request that the client holds now, newly locked or renewed."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class UnlockBatchRequestBody(Body, kw_only=True):
    """Queues that a client gives back (42)."""

    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = msgspec.field(default_factory=list)
