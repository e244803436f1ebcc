"""Rows of rare requests: access control lists, cold data, lite topics, and unused codes.

Lite topics (5.4 and later) and the timer engine switch are named, so that they are refused by
name; their headers are not described yet.
"""

from __future__ import annotations

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

TOPICS = (
    Row(
        RequestCode.GET_UNIT_TOPIC_LIST,
        _P2,
        "A->N",
        response_body=common_body.TopicList,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        _P2,
        "A->N",
        response_body=common_body.TopicList,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        _P2,
        "A->N",
        response_body=common_body.TopicList,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        _P2,
        "A->B",
        admin.CreateTopicRequestHeader,
        request_body=config.TopicQueueMappingDetail,
        access=(topic("Create"),),
        response_codes=(29,),
    ),
    Row(
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        _P2,
        "A->B",
        admin.CheckRocksdbCqWriteProgressRequestHeader,
        response_body=admin_body.CheckRocksdbCqWriteResult,
        access=(topic("Get"),),
    ),
    Row(
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
        _P2,
        "A->B",
        admin.ExportRocksDBConfigToJsonRequestHeader,
        access=CLUSTER_GET,
    ),
)

COLD_DATA = (
    Row(
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        _P2,
        "A->B",
        request_body=_PROPERTIES,
        access=CLUSTER_UPDATE,
    ),
    Row(
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        _P2,
        "A->B",
        request_body=_TEXT,
        access=CLUSTER_UPDATE,
    ),
    Row(
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
        _P2,
        "A->B",
        response_body=admin_body.ColdDataFlowCtrInfo,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.SET_COMMITLOG_READ_MODE,
        _P2,
        "A->B",
        admin.SetCommitLogReadModeRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(29,),
    ),
)

ACCESS_CONTROL = (
    Row(
        RequestCode.AUTH_CREATE_USER,
        _P2,
        "A->B",
        admin.UserRequestHeader,
        request_body=admin_body.UserInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    Row(
        RequestCode.AUTH_UPDATE_USER,
        _P2,
        "A->B",
        admin.UserRequestHeader,
        request_body=admin_body.UserInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29, 3001),
    ),
    Row(
        RequestCode.AUTH_DELETE_USER,
        _P2,
        "A->B",
        admin.UserRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    Row(
        RequestCode.AUTH_GET_USER,
        _P2,
        "A->B",
        admin.UserRequestHeader,
        response_body=admin_body.UserInfo,
        access=CLUSTER_GET,
        response_codes=(16, 29, 3001),
    ),
    Row(
        RequestCode.AUTH_LIST_USER,
        _P2,
        "A->B",
        admin.ListUsersRequestHeader,
        response_body=list[admin_body.UserInfo],
        access=CLUSTER_GET,
        response_codes=(16,),
    ),
    Row(
        RequestCode.AUTH_CREATE_ACL,
        _P2,
        "A->B",
        admin.AclRequestHeader,
        request_body=admin_body.AclInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    Row(
        RequestCode.AUTH_UPDATE_ACL,
        _P2,
        "A->B",
        admin.AclRequestHeader,
        request_body=admin_body.AclInfo,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    Row(
        RequestCode.AUTH_DELETE_ACL,
        _P2,
        "A->B",
        admin.DeleteAclRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(16, 29),
    ),
    Row(
        RequestCode.AUTH_GET_ACL,
        _P2,
        "A->B",
        admin.AclRequestHeader,
        response_body=admin_body.AclInfo,
        access=CLUSTER_GET,
        response_codes=(16, 29, 3002),
    ),
    Row(
        RequestCode.AUTH_LIST_ACL,
        _P2,
        "A->B",
        admin.ListAclsRequestHeader,
        response_body=list[admin_body.AclInfo],
        access=CLUSTER_GET,
        response_codes=(16,),
    ),
)

LATER = (
    Row(RequestCode.POP_ROLLBACK, _P2, "A->B", access=CLUSTER_UPDATE),
    Row(RequestCode.SWITCH_TIMER_ENGINE, _P2, "A->B", access=CLUSTER_UPDATE),
    Row(RequestCode.POP_LITE_MESSAGE, _P2, "C->B"),
    Row(RequestCode.LITE_SUBSCRIPTION_CTL, _P2, "C->B"),
    Row(RequestCode.ACK_LITE_MESSAGE, _P2, "C->B"),
    Row(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, _P2, "B->C"),
    Row(RequestCode.GET_BROKER_LITE_INFO, _P2, "A->B", access=CLUSTER_GET),
    Row(RequestCode.GET_PARENT_TOPIC_INFO, _P2, "A->B", access=CLUSTER_GET),
    Row(RequestCode.GET_LITE_TOPIC_INFO, _P2, "A->B", access=CLUSTER_GET),
    Row(RequestCode.GET_LITE_CLIENT_INFO, _P2, "A->B", access=CLUSTER_GET),
    Row(RequestCode.GET_LITE_GROUP_INFO, _P2, "A->B", access=CLUSTER_GET),
    Row(RequestCode.TRIGGER_LITE_DISPATCH, _P2, "A->B", access=CLUSTER_UPDATE),
)

UNUSED = tuple(
    Row(code, Priority.UNUSED)
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
