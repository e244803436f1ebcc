"""Bodies of administration: connections (203, 204, 328), running information (307), consuming one
message on demand (309), offsets (220-223), queries (321, 345), users (3001-3005), access control
lists (3006-3010) and others.

Counterpart of Java's ``ConsumerConnection``, ``ProducerConnection``, ``ConsumerRunningInfo``,
``ConsumeMessageDirectlyResult``, ``ResetOffsetBody``, ``GetConsumerStatusBody``, ``UserInfo``,
``AclInfo`` and others.
"""

from __future__ import annotations

from enum import auto
from typing import ClassVar

import msgspec

from skylark.wire.bodies.common_body import Body, JavaEnum, MessageQueue
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from skylark.wire.fastjson_reader import SIZE_MAX
from skylark.wire.fields import Int32, Int64

# ---- connections -------------------------------------------------------------------------------


class Connection(Body, kw_only=True):
    """One client of a group."""

    client_id: str = ""
    client_addr: str = ""
    language: str | None = None  # a name of LanguageCode
    version: Int32 = 0


class SubscriptionSide(Body, kw_only=True):
    """Members that agree about one topic. No expression: they do not subscribe to it."""

    expression_type: str | None = None
    expression: str | None = None
    client_count: Int32 = 0
    #: The first few of them.
    client_ids: list[str] = msgspec.field(default_factory=list)


class SubscriptionConflict(Body, kw_only=True):
    """A topic about which the members of a group disagree."""

    topic: str = ""
    sides: list[SubscriptionSide] = msgspec.field(default_factory=list)


class QueueLock(Body, kw_only=True):
    """Who holds a queue, and until when unless renewed."""

    message_queue: MessageQueue = MessageQueue()
    client_id: str = ""
    expires_ms: Int64 = 0


class ConsumerConnection(Body, kw_only=True):
    """The members of a consumer group (203). The last two are Skylark's, absent when empty."""

    connection_set: list[Connection] = msgspec.field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_conflicts: list[SubscriptionConflict] | None = None
    queue_locks: list[QueueLock] | None = None


class ProducerConnection(Body, kw_only=True):
    """The members of a producer group (204)."""

    connection_set: list[Connection] = msgspec.field(default_factory=list)


class ProducerInfo(Body, kw_only=True):
    """One producer."""

    client_id: str = ""
    remote_ip: str = msgspec.field(default="", name="remoteIP")
    language: str | None = None
    version: Int32 = 0
    last_update_timestamp: Int64 = 0


class ProducerTableInfo(Body, kw_only=True):
    """All producers of a broker by group (328)."""

    data: dict[str, list[ProducerInfo]] = msgspec.field(default_factory=dict)


# ---- what a consumer is doing ------------------------------------------------------------------


class ProcessQueueInfo(Body, kw_only=True):
    """A pulled queue inside a client."""

    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_in_mib: Int32 = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp: Int64 = 0
    dropped: bool = msgspec.field(default=False, name="droped")
    last_pull_timestamp: Int64 = 0
    last_consume_timestamp: Int64 = 0


class PopProcessQueueInfo(Body, kw_only=True):
    """A popped queue inside a client."""

    wait_ack_count: Int32 = 0
    dropped: bool = msgspec.field(default=False, name="droped")
    last_pop_timestamp: Int64 = 0


class ConsumeStatus(Body, kw_only=True):
    """Rates of one topic inside a client; RT in ms."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: Int64 = 0


class ConsumerRunningInfo(Body, kw_only=True):
    """Settings, queues and rates of a consumer, as it reports them (307)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    properties: dict[str, str] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=dict)
    jstack: str | None = None


class CMResult(JavaEnum):
    """How consuming one message on demand ended."""

    CR_SUCCESS = auto()
    CR_LATER = auto()
    CR_ROLLBACK = auto()
    CR_COMMIT = auto()
    CR_THROW_EXCEPTION = auto()
    CR_RETURN_NULL = auto()


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """Answer of 309."""

    order: bool = False
    auto_commit: bool = True
    consume_result: CMResult | None = None
    remark: str | None = None
    spent_time_mills: Int64 = 0


# ---- offsets -----------------------------------------------------------------------------------


class ResetOffsetBody(Body, kw_only=True):
    """Offsets to jump to (220 to the client, 222 back to the tool)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    offset_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)


class MessageQueueForC(Body, kw_only=True):
    """A queue and its new offset in one object."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0
    offset: Int64 = 0


class ResetOffsetBodyForC(Body, kw_only=True):
    """220 for clients in C++, whose JSON reader knows no objects as keys."""

    offset_table: list[MessageQueueForC] = msgspec.field(default_factory=list)


class GetConsumerStatusBody(Body, kw_only=True):
    """Offsets as the clients see them (221 from one client, 223 of all by client id)."""

    dialect_size_max: ClassVar[int] = SIZE_MAX

    message_queue_table: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, Int64]] = msgspec.field(default_factory=dict)


# ---- queries -----------------------------------------------------------------------------------


class QuerySubscriptionResponseBody(Body, kw_only=True):
    """The subscription of a group to a topic (345)."""

    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


class ConsumeQueueData(Body, kw_only=True):
    """One entry of a consume queue."""

    physic_offset: Int64 = 0
    physic_size: Int32 = 0
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """Entries of a consume queue, seen through the filter of a group (321)."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] | None = None
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


class ColdDataReadCount(Body, kw_only=True):
    """What a group has read from cold files."""

    cold_acc: Int64 = 0
    last_cold_read_time_mills: Int64 = 0
    create_time_mills: Int64 = 0


class ColdDataFlowCtrInfo(Body, kw_only=True):
    """Throttling of cold reads (2003)."""

    runtime_table: dict[str, ColdDataReadCount] = msgspec.field(default_factory=dict)
    config_table: dict[str, Int64] = msgspec.field(default_factory=dict)
    cg_cold_read_threshold: Int64 = 0
    global_cold_read_threshold: Int64 = 0
    global_acc: Int64 = 0


class CheckRocksdbCqWriteResult(Body, kw_only=True):
    """Comparison of file and RocksDB queues (354): 0 equal, 1 not, 2 under way, 3 failed."""

    check_result: str | None = None
    check_status: Int32 = 0


# ---- users and access control lists ------------------------------------------------------------


class UserInfo(Body, kw_only=True):
    """One user; absent members are left as they are by an update."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None  # Super or Normal
    user_status: str | None = None  # enable or disable


class PolicyEntryInfo(Body, kw_only=True):
    """What may, or may not, be done with a resource."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None  # Allow or Deny


class PolicyInfo(Body, kw_only=True):
    """Entries of one rank: Custom before Default."""

    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None


class AclInfo(Body, kw_only=True):
    """The policies of one subject, ``User:name``."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = None
