"""Rows of rare requests: access control lists, cold data, lite topics.

Lite topics (5.4 and later) and the timer engine switch are named, so that they are refused by
name; their headers are not described yet.
"""

from __future__ import annotations

from skylark.wire.bodies import admin_body, common_body, config
from skylark.wire.codes import RequestCode
from skylark.wire.headers import admin
from skylark.wire.rows.catalogue_row import (
    BodyKind,
    admin_to_broker,
    broker_to_client,
    change_broker,
    client_to_broker,
    read_broker,
    read_namesrv,
    topic,
)

_PROPERTIES, _TEXT = BodyKind.PROPERTIES, BodyKind.TEXT

TOPICS = (
    read_namesrv(RequestCode.GET_UNIT_TOPIC_LIST, response_body=common_body.TopicList),
    read_namesrv(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, response_body=common_body.TopicList),
    read_namesrv(
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, response_body=common_body.TopicList
    ),
    admin_to_broker(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        admin.CreateTopicRequestHeader,
        request_body=config.TopicQueueMappingDetail,
        access=(topic("Create"),),
        response_codes=(29,),
    ),
    admin_to_broker(
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
        admin.CheckRocksdbCqWriteProgressRequestHeader,
        response_body=admin_body.CheckRocksdbCqWriteResult,
        access=(topic("Get"),),
    ),
    read_broker(
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, admin.ExportRocksDBConfigToJsonRequestHeader
    ),
)

COLD_DATA = (
    change_broker(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, request_body=_PROPERTIES),
    change_broker(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, request_body=_TEXT),
    read_broker(
        RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, response_body=admin_body.ColdDataFlowCtrInfo
    ),
    change_broker(
        RequestCode.SET_COMMITLOG_READ_MODE,
        admin.SetCommitLogReadModeRequestHeader,
        response_codes=(29,),
    ),
)

ACCESS_CONTROL = (
    change_broker(
        RequestCode.AUTH_CREATE_USER,
        admin.UserRequestHeader,
        request_body=admin_body.UserInfo,
        response_codes=(16, 29),
    ),
    change_broker(
        RequestCode.AUTH_UPDATE_USER,
        admin.UserRequestHeader,
        request_body=admin_body.UserInfo,
        response_codes=(16, 29, 3001),
    ),
    change_broker(RequestCode.AUTH_DELETE_USER, admin.UserRequestHeader, response_codes=(16, 29)),
    read_broker(
        RequestCode.AUTH_GET_USER,
        admin.UserRequestHeader,
        response_body=admin_body.UserInfo,
        response_codes=(16, 29, 3001),
    ),
    read_broker(
        RequestCode.AUTH_LIST_USER,
        admin.ListUsersRequestHeader,
        response_body=list[admin_body.UserInfo],
        response_codes=(16,),
    ),
    change_broker(
        RequestCode.AUTH_CREATE_ACL,
        admin.AclRequestHeader,
        request_body=admin_body.AclInfo,
        response_codes=(16, 29),
    ),
    change_broker(
        RequestCode.AUTH_UPDATE_ACL,
        admin.AclRequestHeader,
        request_body=admin_body.AclInfo,
        response_codes=(16, 29),
    ),
    change_broker(
        RequestCode.AUTH_DELETE_ACL, admin.DeleteAclRequestHeader, response_codes=(16, 29)
    ),
    read_broker(
        RequestCode.AUTH_GET_ACL,
        admin.AclRequestHeader,
        response_body=admin_body.AclInfo,
        response_codes=(16, 29, 3002),
    ),
    read_broker(
        RequestCode.AUTH_LIST_ACL,
        admin.ListAclsRequestHeader,
        response_body=list[admin_body.AclInfo],
        response_codes=(16,),
    ),
)

LATER = (
    change_broker(RequestCode.POP_ROLLBACK),
    change_broker(RequestCode.SWITCH_TIMER_ENGINE),
    client_to_broker(RequestCode.POP_LITE_MESSAGE),
    client_to_broker(RequestCode.LITE_SUBSCRIPTION_CTL),
    client_to_broker(RequestCode.ACK_LITE_MESSAGE),
    broker_to_client(RequestCode.NOTIFY_UNSUBSCRIBE_LITE),
    read_broker(RequestCode.GET_BROKER_LITE_INFO),
    read_broker(RequestCode.GET_PARENT_TOPIC_INFO),
    read_broker(RequestCode.GET_LITE_TOPIC_INFO),
    read_broker(RequestCode.GET_LITE_CLIENT_INFO),
    read_broker(RequestCode.GET_LITE_GROUP_INFO),
    change_broker(RequestCode.TRIGGER_LITE_DISPATCH),
)

ROWS = TOPICS + COLD_DATA + ACCESS_CONTROL + LATER
