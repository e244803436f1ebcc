"""Headers about clients as group members: heartbeat, leaving, members, requests to one client.

HEART_BEAT itself has no header fields: groups and subscriptions are in the body, language and
version of the client in the frame header. Counterpart of Java's ``UnregisterClientRequestHeader``,
``GetConsumerRunningInfoRequestHeader`` and others.
"""

from __future__ import annotations

from msgspec import field

from skylark.wire.fields import Header, Int32


class HeartbeatResponseHeader(Header, kw_only=True):
    """Negotiates the short heartbeat (V2), which leaves the subscriptions out."""

    supports_v2: bool | None = field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    #: The broker's data of the group changed: send the full form again.
    sub_change: bool | None = field(default=None, name="IS_SUB_CHANGE")


class UnregisterClientRequestHeader(Header, kw_only=True, rename="camel"):
    """UNREGISTER_CLIENT: one client leaves one producer or consumer group.

    The connection identifies the client; some clients send no ``clientID``.
    """

    client_id: str | None = field(default=None, name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerRunningInfoRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_CONSUMER_RUNNING_INFO, from the admin to the broker and on to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header, kw_only=True, rename="camel"):
    """CONSUME_MESSAGE_DIRECTLY; the broker adds the last three for the client."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class GetProducerConnectionListRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_PRODUCER_CONNECTION_LIST: asks for the connected members of a producer group."""

    producer_group: str
