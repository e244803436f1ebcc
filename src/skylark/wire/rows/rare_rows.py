"""Rows of rare requests: access control lists, cold data, lite topics, and unused codes.

Lite topics (5.4 and later) and the timer engine switch are named, so that they are refused by
name; their headers are not described yet.
"""

from __future__ import annotations

from functools import partial

from skylark.wire.bodies import admin_body, common_body, config
from skylark.wire.codes import RequestCode
from skylark.wire.headers import admin
from skylark.wire.rows.catalogue_row import (
    CLUSTER_GET,
    CLUSTER_UPDATE,
    BodyKind,
    Priority,
    Row,
    topic,
)

_P2 = Priority.P2
_PROPERTIES, _TEXT = BodyKind.PROPERTIES, BodyKind.TEXT

_admin_to_broker = partial(Row, priority=_P2, direction="A->B")
_admin_to_namesrv = partial(Row, priority=_P2, direction="A->N")
_client_to_broker = partial(Row, priority=_P2, direction="C->B")

TOPICS = (
    _admin_to_namesrv(
        RequestCode.GET_UNIT_TOPIC_LIST, response_body=common_body.TopicList, access=CLUSTER_GET
    ),
    _admin_to_namesrv(
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        response_body=common_body.TopicList,
        access=CLUSTER_GET,
    ),
    _admin_to_namesrv(
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        response_body=common_body.TopicList,
        access=CLUSTER_GET,
    ),
    _admin_to_broker(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        admin.CreateTopicRequestHeader,
        request_body=config.TopicQueueMappingDetail,
        access=(topic("Create"),),
        response_codes=(29,),
    ),
    _admin_to_broker(
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        admin.CheckRocksdbCqWriteProgressRequestHeader,
        response_body=admin_body.CheckRocksdbCqWriteResult,
        access=(topic("Get"),),
    ),
    _admin_to_broker(
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        admin.ExportRocksDBConfigToJsonRequestHeader,
        access=CLUSTER_GET,
    ),
)

COLD_DATA = (
    _admin_to_broker(
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        request_body=_PROPERTIES,
        access=CLUSTER_UPDATE,
    ),
    _admin_to_broker(
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, request_body=_TEXT, access=CLUSTER_UPDATE
    ),
    _admin_to_broker(
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        response_body=admin_body.ColdDataFlowCtrInfo,
        access=CLUSTER_GET,
    ),
    _admin_to_broker(
        RequestCode.SET_COMMITLOG_READ_MODE,
        admin.SetCommitLogReadModeRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(29,),
    ),
)

ACCESS_CONTROL = (
    _admin_to_broker(
        RequestCode.AUTH_CREATE_USER,
        admin.UserRequestHeader,
        request_body=admin_body.UserInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    _admin_to_broker(
        RequestCode.AUTH_UPDATE_USER,
        admin.UserRequestHeader,
        request_body=admin_body.UserInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29, 3001),
    ),
    _admin_to_broker(
        RequestCode.AUTH_DELETE_USER,
        admin.UserRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    _admin_to_broker(
        RequestCode.AUTH_GET_USER,
        admin.UserRequestHeader,
        response_body=admin_body.UserInfo,
        access=CLUSTER_GET,
        response_codes=(16, 29, 3001),
    ),
    _admin_to_broker(
        RequestCode.AUTH_LIST_USER,
        admin.ListUsersRequestHeader,
        response_body=list[admin_body.UserInfo],
        access=CLUSTER_GET,
        response_codes=(16,),
    ),
    _admin_to_broker(
        RequestCode.AUTH_CREATE_ACL,
        admin.AclRequestHeader,
        request_body=admin_body.AclInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    _admin_to_broker(
        RequestCode.AUTH_UPDATE_ACL,
        admin.AclRequestHeader,
        request_body=admin_body.AclInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    _admin_to_broker(
        RequestCode.AUTH_DELETE_ACL,
        admin.DeleteAclRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    _admin_to_broker(
        RequestCode.AUTH_GET_ACL,
        admin.AclRequestHeader,
        response_body=admin_body.AclInfo,
        access=CLUSTER_GET,
        response_codes=(16, 29, 3002),
    ),
    _admin_to_broker(
        RequestCode.AUTH_LIST_ACL,
        admin.ListAclsRequestHeader,
        response_body=list[admin_body.AclInfo],
        access=CLUSTER_GET,
        response_codes=(16,),
    ),
)

LATER = (
    _admin_to_broker(RequestCode.POP_ROLLBACK, access=CLUSTER_UPDATE),
    _admin_to_broker(RequestCode.SWITCH_TIMER_ENGINE, access=CLUSTER_UPDATE),
    _client_to_broker(RequestCode.POP_LITE_MESSAGE),
    _client_to_broker(RequestCode.LITE_SUBSCRIPTION_CTL),
    _client_to_broker(RequestCode.ACK_LITE_MESSAGE),
    Row(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, priority=_P2, direction="B->C"),
    _admin_to_broker(RequestCode.GET_BROKER_LITE_INFO, access=CLUSTER_GET),
    _admin_to_broker(RequestCode.GET_PARENT_TOPIC_INFO, access=CLUSTER_GET),
    _admin_to_broker(RequestCode.GET_LITE_TOPIC_INFO, access=CLUSTER_GET),
    _admin_to_broker(RequestCode.GET_LITE_CLIENT_INFO, access=CLUSTER_GET),
    _admin_to_broker(RequestCode.GET_LITE_GROUP_INFO, access=CLUSTER_GET),
    _admin_to_broker(RequestCode.TRIGGER_LITE_DISPATCH, access=CLUSTER_UPDATE),
)

UNUSED = tuple(
    Row(code, priority=Priority.UNUSED)
    for code in (
        RequestCode.QUERY_BROKER_OFFSET,
        RequestCode.GET_TOPIC_CONFIG_LIST,
        RequestCode.GET_TOPIC_NAME_LIST,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.GET_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.SUSPEND_CONSUMER,
        RequestCode.RESUME_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
        RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
        RequestCode.ADJUST_CONSUMER_THREAD_POOL,
        RequestCode.WHO_CONSUME_THE_MESSAGE,
        RequestCode.REGISTER_FILTER_SERVER,
        RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    )
)

ROWS = TOPICS + COLD_DATA + ACCESS_CONTROL + LATER + UNUSED
