"""The types of JSON bodies by request code; the catalogue reads them from here.

Only JSON bodies are listed. Others are messages (10, 11, 310, ...), properties text (25, 26, 318,
319, 1009, 1010, 2001), or the timer's checkpoint (60, :class:`~skylark.wire.bodies.slave_sync_body.
TimerCheckpoint`). Two rows need more than :func:`~skylark.wire.fastjson.decode_body`: a request 103
is read by :func:`~skylark.wire.bodies.register.decode_register_body`, and a 220 to a client in C++
carries :class:`~skylark.wire.bodies.admin_body.ResetOffsetBodyForC`.
"""

from __future__ import annotations

from types import GenericAlias
from typing import Final, TypeAlias

from skylark.wire.bodies.acl_body import AclInfo, UserInfo
from skylark.wire.bodies.admin_body import (
    CheckRocksdbCqWriteResult,
    ColdDataFlowCtrInfo,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeQueueResponseBody,
    QuerySubscriptionResponseBody,
    ResetOffsetBody,
)
from skylark.wire.bodies.common_body import DataVersion, GroupList, KVTable, TopicList
from skylark.wire.bodies.config import (
    CreateTopicListRequestBody,
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfigAndQueueMapping,
    TopicQueueMappingDetail,
)
from skylark.wire.bodies.controller_body import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    EpochEntryCache,
    SyncStateSet,
)
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.bodies.heartbeat import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
)
from skylark.wire.bodies.lock import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylark.wire.bodies.pop_body import (
    BatchAckMessageRequestBody,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.bodies.register import RegisterBrokerBody
from skylark.wire.bodies.route_body import (
    ClusterInfo,
    GetBrokerMemberGroupResponseBody,
    TopicRouteData,
)
from skylark.wire.bodies.slave_sync_body import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupWrapper,
    TimerMetrics,
    TopicConfigAndMappingSerializeWrapper,
)
from skylark.wire.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    TopicStatsTable,
)
from skylark.wire.codes import RequestCode

#: A struct, or a list of structs or strings such as ``list[str]``.
BodyType: TypeAlias = type | GenericAlias

#: Request code to the type of the request's JSON body.
REQUEST_BODIES: Final[dict[int, BodyType]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: CreateTopicListRequestBody,
    RequestCode.HEART_BEAT: HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: UnlockBatchRequestBody,
    RequestCode.CHECK_CLIENT_CONFIG: CheckClientRequestBody,
    RequestCode.REGISTER_BROKER: RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: SubscriptionGroupConfig,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicRouteData,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffsetBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: SubscriptionGroupList,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: SetMessageRequestModeRequestBody,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: TopicQueueMappingDetail,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: SyncStateSet,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: list[str],
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: SyncStateSet,
    RequestCode.AUTH_CREATE_USER: UserInfo,
    RequestCode.AUTH_UPDATE_USER: UserInfo,
    RequestCode.AUTH_CREATE_ACL: AclInfo,
    RequestCode.AUTH_UPDATE_ACL: AclInfo,
    RequestCode.BATCH_ACK_MESSAGE: BatchAckMessageRequestBody,
}

#: Request code to the type of the JSON body of a successful response.
RESPONSE_BODIES: Final[dict[int, BodyType]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigAndMappingSerializeWrapper,
    RequestCode.GET_BROKER_RUNTIME_INFO: KVTable,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerListByGroupResponseBody,
    RequestCode.LOCK_BATCH_MQ: LockBatchResponseBody,
    RequestCode.GET_ALL_CONSUMER_OFFSET: ConsumerOffsetSerializeWrapper,
    RequestCode.GET_ALL_DELAY_OFFSET: DelayOffsetSerializeWrapper,
    RequestCode.GET_TIMER_METRICS: TimerMetrics,
    RequestCode.REGISTER_BROKER: KVTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupWrapper,
    RequestCode.GET_TOPIC_STATS_INFO: TopicStatsTable,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerConnection,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: TopicList,
    RequestCode.GET_CONSUME_STATS: ConsumeStats,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KVTable,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatusBody,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffsetBody,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatusBody,
    RequestCode.GET_TOPICS_BY_CLUSTER: TopicList,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: GroupList,
    RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpanBody,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: TopicList,
    RequestCode.GET_CONSUMER_RUNNING_INFO: ConsumerRunningInfo,
    RequestCode.QUERY_CORRECTION_OFFSET: QueryCorrectionOffsetBody,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectlyResult,
    RequestCode.GET_UNIT_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: TopicList,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: TopicList,
    RequestCode.VIEW_BROKER_STATS_DATA: BrokerStatsData,
    RequestCode.GET_BROKER_CONSUME_STATS: ConsumeStatsList,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueueResponseBody,
    RequestCode.QUERY_DATA_VERSION: DataVersion,
    RequestCode.GET_ALL_PRODUCER_INFO: ProducerTableInfo,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: TopicList,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: QuerySubscriptionResponseBody,
    RequestCode.GET_TOPIC_CONFIG: TopicConfigAndQueueMapping,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: GroupForbidden,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: CheckRocksdbCqWriteResult,
    RequestCode.QUERY_ASSIGNMENT: QueryAssignmentResponseBody,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: MessageRequestModeSerializeWrapper,
    RequestCode.GET_BROKER_MEMBER_GROUP: GetBrokerMemberGroupResponseBody,
    RequestCode.GET_BROKER_HA_STATUS: HARuntimeInfo,
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: SyncStateSet,
    RequestCode.CONTROLLER_ELECT_MASTER: ElectMasterResponseBody,
    RequestCode.CONTROLLER_REGISTER_BROKER: SyncStateSet,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: SyncStateSet,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: BrokerReplicasInfo,
    RequestCode.GET_BROKER_EPOCH_CACHE: EpochEntryCache,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: ColdDataFlowCtrInfo,
    RequestCode.AUTH_GET_USER: UserInfo,
    RequestCode.AUTH_LIST_USER: list[UserInfo],
    RequestCode.AUTH_GET_ACL: AclInfo,
    RequestCode.AUTH_LIST_ACL: list[AclInfo],
}
