"""Headers of the name server: routes, registration of brokers, key-value configuration.

A broker registers every 30 s with all its topics in the body (``bodyCrc32`` over the body as sent,
0 = not checked). The zone entries are set by a client hook next to the typed header; the name
server acts upon them, so they are declared. Counterpart of the classes of the same names in Java's
package ``header.namesrv`` and a few neighbours.
"""

from __future__ import annotations

from msgspec import field

from skylark.wire.fields import Header, Int32, Int64


class GetRouteInfoRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC: asks for the brokers and queues of a topic."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_mode: bool | None = field(default=None, name="__ZONE_MODE")
    zone_name: str | None = field(default=None, name="__ZONE_NAME")


class RegisterBrokerRequestHeader(Header, kw_only=True, rename="camel"):
    """REGISTER_BROKER: a broker reports its address, and in the body its topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    #: Absent: a broker that knows nothing of acting masters.
    enable_acting_master: bool | None = None
    #: 5.x says false even when it compressed: look at the first byte of the body.
    compressed: bool = False
    body_crc32: Int32 = 0
    zone_name: str | None = field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponseHeader(Header, kw_only=True, rename="camel"):
    """For a slave: where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerRequestHeader(Header, kw_only=True, rename="camel"):
    """UNREGISTER_BROKER and QUERY_DATA_VERSION: the broker that sends the request.

    The second asks whether the name server knows its newest topics, and is also a sign of life.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header, kw_only=True, rename="camel"):
    """``changed``: what the name server has differs, or it has nothing."""

    changed: bool


class BrokerHeartbeatRequestHeader(Header, kw_only=True, rename="camel"):
    """BROKER_HEARTBEAT, to the name server (first three fields) or to the controller (all)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int32 | None = None


class DeleteTopicFromNamesrvRequestHeader(Header, kw_only=True, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV, everywhere or in one cluster."""

    topic: str
    cluster_name: str | None = None


class GetBrokerMemberGroupRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_BROKER_MEMBER_GROUP: the replicas of one broker."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChangeRequestHeader(Header, kw_only=True, rename="camel"):
    """NOTIFY_MIN_BROKER_ID_CHANGE: who acts as master now."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class PutKVConfigRequestHeader(Header, kw_only=True, rename="camel"):
    """PUT_KV_CONFIG: stores one value of the name server's key-value table."""

    namespace: str
    key: str
    value: str


class KVKeyRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_KV_CONFIG and DELETE_KV_CONFIG."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True, rename="camel"):
    """The value of one key."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_KVLIST_BY_NAMESPACE: asks for all keys and values of one namespace."""

    namespace: str


class GetTopicsByClusterRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_TOPICS_BY_CLUSTER: asks for the topics on the brokers of a cluster."""

    cluster: str


class WritePermOfBrokerRequestHeader(Header, kw_only=True, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER (routes without sends to this broker) and its reverse, ADD_."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True, rename="camel"):
    """How many topics lost the permission."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True, rename="camel"):
    """How many topics got the permission."""

    add_topic_count: Int32
