"""Rows of day-to-day administration: topics, groups, statistics, settings, routes."""

from __future__ import annotations

from functools import partial

from skylark.wire.bodies import admin_body, common_body, config, route_body, stats
from skylark.wire.codes import RequestCode
from skylark.wire.headers import admin, offset, route, txn
from skylark.wire.headers import client_header as client
from skylark.wire.rows.catalogue_row import (
    CLUSTER_GET,
    BodyKind,
    Row,
    admin_to_broker,
    change_broker,
    change_namesrv,
    group,
    read_broker,
    read_namesrv,
    topic,
)

_PROPERTIES = BodyKind.PROPERTIES

_read_topic = partial(admin_to_broker, access=(topic("Get"),))

TOPICS = (
    admin_to_broker(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        admin.CreateTopicRequestHeader,
        access=(topic("Create"),),
        response_codes=(29,),
    ),
    admin_to_broker(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        request_body=config.CreateTopicListRequestBody,
        access=(topic("Create", field=None),),
        response_codes=(29,),
    ),
    admin_to_broker(
        RequestCode.DELETE_TOPIC_IN_BROKER,
        admin.TopicRequestHeader,
        access=(topic("Delete"),),
        response_codes=(29,),
    ),
    change_namesrv(RequestCode.DELETE_TOPIC_IN_NAMESRV, route.DeleteTopicFromNamesrvRequestHeader),
    _read_topic(
        RequestCode.GET_TOPIC_CONFIG,
        admin.TopicRequestHeader,
        response_body=config.TopicConfigAndQueueMapping,
        response_codes=(17,),
    ),
    _read_topic(
        RequestCode.GET_TOPIC_STATS_INFO,
        admin.TopicRequestHeader,
        response_body=stats.TopicStatsTable,
        response_codes=(17,),
    ),
    _read_topic(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        admin.TopicRequestHeader,
        response_body=common_body.GroupList,
    ),
    admin_to_broker(
        RequestCode.QUERY_CONSUME_QUEUE,
        admin.QueryConsumeQueueRequestHeader,
        response_body=admin_body.QueryConsumeQueueResponseBody,
        access=(topic("Get"), group("Get")),
    ),
    admin_to_broker(
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        txn.ResumeCheckHalfMessageRequestHeader,
        access=(topic("Update"),),
    ),
)

GROUPS = (
    admin_to_broker(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        request_body=config.SubscriptionGroupConfig,
        access=(group("Create", field=None),),
        response_codes=(29,),
    ),
    admin_to_broker(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        request_body=config.SubscriptionGroupList,
        access=(group("Create", field=None),),
        response_codes=(29,),
    ),
    admin_to_broker(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        admin.DeleteSubscriptionGroupRequestHeader,
        access=(group("Delete", field="groupName"),),
    ),
    admin_to_broker(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        admin.GroupRequestHeader,
        response_body=config.SubscriptionGroupConfig,
        access=(group("Get", field="group"),),
        response_codes=(26,),
    ),
    admin_to_broker(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        admin.UpdateGroupForbiddenRequestHeader,
        response_body=config.GroupForbidden,
        access=(topic("Update"), group("Update", field="group")),
    ),
    admin_to_broker(
        RequestCode.GET_CONSUME_STATS,
        admin.GetConsumeStatsRequestHeader,
        response_body=stats.ConsumeStats,
        access=(group("Get"), topic("Get"), topic("Get", field="topicList", separator=";")),
    ),
    read_broker(
        RequestCode.GET_BROKER_CONSUME_STATS,
        admin.GetConsumeStatsInBrokerRequestHeader,
        response_body=stats.ConsumeStatsList,
    ),
    Row(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        admin.ConsumerGroupRequestHeader,
        direction="CA->B",
        response_body=admin_body.ConsumerConnection,
        access=(group("Get"),),
        response_codes=(17, 206),
        extension="the answer also has lock owners, their expiry, and subscription conflicts",
    ),
    read_broker(
        RequestCode.GET_PRODUCER_CONNECTION_LIST,
        client.GetProducerConnectionListRequestHeader,
        response_body=admin_body.ProducerConnection,
    ),
    read_broker(RequestCode.GET_ALL_PRODUCER_INFO, response_body=admin_body.ProducerTableInfo),
    admin_to_broker(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        admin.GroupRequestHeader,
        response_body=common_body.TopicList,
        access=(group("Get", field="group"),),
    ),
    admin_to_broker(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        admin.QuerySubscriptionByConsumerRequestHeader,
        response_body=admin_body.QuerySubscriptionResponseBody,
        access=(group("Get", field="group"), topic("Get")),
    ),
    admin_to_broker(
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        admin.QueryConsumeTimeSpanRequestHeader,
        response_body=stats.QueryConsumeTimeSpanBody,
        access=(topic("Get"), group("Get", field="group")),
        response_codes=(17,),
    ),
    admin_to_broker(
        RequestCode.QUERY_CORRECTION_OFFSET,
        offset.QueryCorrectionOffsetRequestHeader,
        response_body=stats.QueryCorrectionOffsetBody,
        access=(
            topic("Get"),
            group("Get", field="compareGroup"),
            group("Get", field="filterGroups", separator=","),
        ),
    ),
    admin_to_broker(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        offset.ResetOffsetRequestHeader,
        response_body=admin_body.ResetOffsetBody,
        access=(topic("Update"), group("Update", field="group")),
        response_codes=(17, 26, 206),
    ),
    admin_to_broker(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        offset.GetConsumerStatusRequestHeader,
        response_body=admin_body.GetConsumerStatusBody,
        access=(topic("Get"), group("Get", field="group")),
    ),
    admin_to_broker(
        RequestCode.CLONE_GROUP_OFFSET,
        offset.CloneGroupOffsetRequestHeader,
        access=(topic("Update"), group("Update", field="destGroup")),
    ),
)

BROKER = (
    change_broker(RequestCode.UPDATE_BROKER_CONFIG, request_body=_PROPERTIES, response_codes=(16,)),
    read_broker(
        RequestCode.GET_BROKER_CONFIG,
        None,
        admin.GetBrokerConfigResponseHeader,
        response_body=_PROPERTIES,
        extension="transactionEndIdempotent=true: END_TRANSACTION may be repeated",
    ),
    read_broker(RequestCode.GET_BROKER_RUNTIME_INFO, response_body=common_body.KVTable),
    read_broker(
        RequestCode.VIEW_BROKER_STATS_DATA,
        admin.ViewBrokerStatsDataRequestHeader,
        response_body=stats.BrokerStatsData,
    ),
    read_broker(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, response_body=common_body.TopicList),
    change_broker(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    change_broker(RequestCode.CLEAN_UNUSED_TOPIC),
    change_broker(RequestCode.DELETE_EXPIRED_COMMITLOG),
)

NAME_SERVER = (
    change_namesrv(
        RequestCode.UPDATE_NAMESRV_CONFIG, request_body=_PROPERTIES, response_codes=(16,)
    ),
    read_namesrv(RequestCode.GET_NAMESRV_CONFIG, response_body=_PROPERTIES),
    change_namesrv(RequestCode.PUT_KV_CONFIG, route.PutKVConfigRequestHeader),
    read_namesrv(
        RequestCode.GET_KV_CONFIG,
        route.KVKeyRequestHeader,
        route.GetKVConfigResponseHeader,
        response_codes=(22,),
    ),
    change_namesrv(RequestCode.DELETE_KV_CONFIG, route.KVKeyRequestHeader),
    read_namesrv(
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        route.GetKVListByNamespaceRequestHeader,
        response_body=common_body.KVTable,
        response_codes=(22,),
    ),
    Row(
        RequestCode.GET_BROKER_CLUSTER_INFO,
        direction="BA->N",
        response_body=route_body.ClusterInfo,
        access=CLUSTER_GET,
    ),
    change_namesrv(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        route.WritePermOfBrokerRequestHeader,
        route.WipeWritePermOfBrokerResponseHeader,
    ),
    change_namesrv(
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        route.WritePermOfBrokerRequestHeader,
        route.AddWritePermOfBrokerResponseHeader,
    ),
    read_namesrv(
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, response_body=common_body.TopicList
    ),
    read_namesrv(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        route.GetTopicsByClusterRequestHeader,
        response_body=common_body.TopicList,
    ),
    read_namesrv(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, response_body=common_body.TopicList),
)

ROWS = TOPICS + GROUPS + BROKER + NAME_SERVER
