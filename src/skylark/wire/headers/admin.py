"""Headers of administration: topics, groups, statistics, settings, users and access control.

Many of these requests carry their content in the body (settings as Java properties text, topics,
groups and users as JSON); the header only names the topic, the group, the user or the subject
(``User:name``) of an access control list. Where Java has several classes with the same fields,
one class serves all of them here. Counterpart of Java's ``CreateTopicRequestHeader``,
``GetConsumeStatsRequestHeader``, ``CreateUserRequestHeader`` and others.
"""

from __future__ import annotations

from msgspec import field

from skylark.wire.fields import Header, Int32, Int64

# ---- shared: one name and nothing else ---------------------------------------------------------


class TopicRequestHeader(Header, kw_only=True, rename="camel"):
    """Requests about one topic."""

    topic: str


class GroupRequestHeader(Header, kw_only=True, rename="camel"):
    """Requests about one consumer group that call the field ``group``."""

    group: str


class ConsumerGroupRequestHeader(Header, kw_only=True, rename="camel"):
    """Requests about one consumer group that call the field ``consumerGroup``."""

    consumer_group: str


# ---- topics, groups, statistics, settings ------------------------------------------------------


class CreateTopicRequestHeader(Header, kw_only=True, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC and UPDATE_AND_CREATE_STATIC_TOPIC."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    #: Bits of :class:`~skylark.wire.codes.Perm`.
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    #: Changes such as ``+message.type=FIFO,-other``.
    attributes: str | None = None
    force: bool = False


class DeleteSubscriptionGroupRequestHeader(Header, kw_only=True, rename="camel"):
    """DELETE_SUBSCRIPTIONGROUP: deletes a consumer group, on demand with its offsets."""

    group_name: str
    clean_offset: bool = False


class UpdateGroupForbiddenRequestHeader(Header, kw_only=True, rename="camel"):
    """UPDATE_AND_GET_GROUP_FORBIDDEN; without ``readable`` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


class GetConsumeStatsRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_CONSUME_STATS: how far a group is behind."""

    consumer_group: str
    topic: str | None = None
    #: Joined by semicolons.
    topic_list: str | None = None
    #: A message of ``topic``: Skylark's brokers report its last pop.
    popped_queue_id: Int32 | None = None
    popped_offset: Int64 | None = None


class GetConsumeStatsInBrokerRequestHeader(Header, kw_only=True, rename="camel"):
    """GET_BROKER_CONSUME_STATS: all groups of a broker."""

    is_order: bool = False


class QuerySubscriptionByConsumerRequestHeader(Header, kw_only=True, rename="camel"):
    """QUERY_SUBSCRIPTION_BY_CONSUMER: asks how a consumer group subscribes to a topic."""

    group: str
    topic: str | None = None


class QueryConsumeTimeSpanRequestHeader(Header, kw_only=True, rename="camel"):
    """QUERY_CONSUME_TIME_SPAN: asks for the store times between which a group stands, per queue."""

    topic: str
    group: str


class QueryConsumeQueueRequestHeader(Header, kw_only=True, rename="camel"):
    """QUERY_CONSUME_QUEUE: raw entries of a consume queue."""

    topic: str | None = None
    queue_id: Int32 = 0
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True, rename="camel"):
    """VIEW_BROKER_STATS_DATA: one counter, such as TOPIC_PUT_NUMS of a topic."""

    stats_name: str
    stats_key: str


class GetBrokerConfigResponseHeader(Header, kw_only=True, rename="camel"):
    """GET_BROKER_CONFIG: the DataVersion of the settings as JSON."""

    version: str


class AddBrokerRequestHeader(Header, kw_only=True, rename="camel"):
    """ADD_BROKER, to a broker container; the body holds the settings."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(Header, kw_only=True, rename="camel"):
    """REMOVE_BROKER, from a broker container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Int64


class CheckRocksdbCqWriteProgressRequestHeader(Header, kw_only=True, rename="camel"):
    """CHECK_ROCKSDB_CQ_WRITE_PROGRESS: asks whether RocksDB queues equal those in files."""

    topic: str
    check_store_time: Int64 = 0


class ExportRocksDBConfigToJsonRequestHeader(Header, kw_only=True, rename="camel"):
    """EXPORT_ROCKSDB_CONFIG_TO_JSON: asks for tables of RocksDB as JSON files."""

    #: Some of topics, subscriptionGroups, consumerOffsets, joined by semicolons.
    config_type: str


class SetCommitLogReadModeRequestHeader(Header, kw_only=True):
    """SET_COMMITLOG_READ_MODE; Java reads the entry without a header class."""

    read_ahead_mode: str | None = field(default=None, name="READ_AHEAD_MODE")


# ---- users and access control (ACL 2.0) --------------------------------------------------------


class UserRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER, AUTH_GET_USER."""

    username: str | None = None


class ListUsersRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_LIST_USER: asks for the users whose names pass a filter."""

    filter: str | None = None


class AclRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_CREATE_ACL, AUTH_UPDATE_ACL, AUTH_GET_ACL."""

    subject: str | None = None


class DeleteAclRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_DELETE_ACL: deletes permissions of a subject."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(Header, kw_only=True, rename="camel"):
    """AUTH_LIST_ACL: asks for permissions, filtered by subject and resource."""

    subject_filter: str | None = None
    resource_filter: str | None = None
