"""Rows of routing, registration, replication and the controller: how servers find each other."""

from __future__ import annotations

from functools import partial

from skylark.wire.bodies import common_body, ha_body, register, route_body, slave_sync_body
from skylark.wire.codes import RequestCode
from skylark.wire.headers import admin, controller, ha, route
from skylark.wire.rows.catalogue_row import (
    CLUSTER_GET,
    CLUSTER_UPDATE,
    BodyKind,
    Oneway,
    Row,
    change_broker,
    read_broker,
    topic,
)

_admin_to_controller = partial(Row, direction="A->K")
_broker_or_admin_to_controller = partial(Row, direction="BA->K")
_broker_to_controller = partial(Row, direction="B->K")
_broker_to_namesrv = partial(Row, direction="B->N")
_slave_reads_broker = partial(Row, direction="S->B", access=CLUSTER_GET)

ROUTING = (
    Row(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        route.GetRouteInfoRequestHeader,
        direction="CBA->N",
        response_body=route_body.TopicRouteData,
        access=(topic("Pub", "Sub", "Get"),),
        response_codes=(17,),
    ),
    _broker_to_namesrv(
        RequestCode.REGISTER_BROKER,
        route.RegisterBrokerRequestHeader,
        route.RegisterBrokerResponseHeader,
        request_body=register.RegisterBrokerBody,
        response_body=common_body.KVTable,
        access=CLUSTER_UPDATE,
    ),
    _broker_to_namesrv(
        RequestCode.UNREGISTER_BROKER, route.BrokerRequestHeader, access=CLUSTER_UPDATE
    ),
    _broker_to_namesrv(
        RequestCode.QUERY_DATA_VERSION,
        route.BrokerRequestHeader,
        route.QueryDataVersionResponseHeader,
        request_body=common_body.DataVersion,
        response_body=common_body.DataVersion,
        oneway=Oneway.SOMETIMES,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.BROKER_HEARTBEAT,
        route.BrokerHeartbeatRequestHeader,
        direction="B->NK",
        oneway=Oneway.SOMETIMES,
        access=CLUSTER_UPDATE,
        response_codes=(2005,),
    ),
    _broker_to_namesrv(
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        admin.TopicRequestHeader,
        request_body=route_body.TopicRouteData,
        access=CLUSTER_UPDATE,
    ),
    _broker_to_namesrv(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        route.GetBrokerMemberGroupRequestHeader,
        response_body=route_body.GetBrokerMemberGroupResponseBody,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        route.NotifyMinBrokerIdChangeRequestHeader,
        direction="N->B",
        oneway=Oneway.ALWAYS,
        access=CLUSTER_UPDATE,
    ),
)

REPLICATION = (
    Row(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        ha.GetAllTopicConfigRequestHeader,
        ha.GetAllTopicConfigResponseHeader,
        direction="SA->B",
        response_body=slave_sync_body.TopicConfigAndMappingSerializeWrapper,
        access=CLUSTER_GET,
    ),
    Row(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ha.GetAllSubscriptionGroupRequestHeader,
        ha.GetAllSubscriptionGroupResponseHeader,
        direction="SA->B",
        response_body=slave_sync_body.SubscriptionGroupWrapper,
        access=CLUSTER_GET,
    ),
    _slave_reads_broker(
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        response_body=slave_sync_body.ConsumerOffsetSerializeWrapper,
    ),
    _slave_reads_broker(
        RequestCode.GET_ALL_DELAY_OFFSET, response_body=slave_sync_body.DelayOffsetSerializeWrapper
    ),
    _slave_reads_broker(RequestCode.GET_TIMER_CHECK_POINT, response_body=BodyKind.BINARY),
    _slave_reads_broker(RequestCode.GET_TIMER_METRICS, response_body=slave_sync_body.TimerMetrics),
    Row(
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        ha.ExchangeHAInfoHeader,
        ha.ExchangeHAInfoHeader,
        direction="B->B",
        access=CLUSTER_UPDATE,
    ),
    read_broker(RequestCode.GET_BROKER_HA_STATUS, response_body=ha_body.HARuntimeInfo),
    change_broker(RequestCode.RESET_MASTER_FLUSH_OFFSET, ha.ResetMasterFlushOffsetRequestHeader),
    Row(
        RequestCode.LOG_CHECK,
        ha.LogCheckRequestHeader,
        ha.LogCheckResponseHeader,
        direction="B->B",
        access=CLUSTER_GET,
        response_codes=(21, 22, 29),
        extension="a slave that doubts the tail of its log compares checksums with its master",
    ),
)

CONTROLLER = (
    _broker_to_controller(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        controller.AlterSyncStateSetRequestHeader,
        controller.AlterSyncStateSetResponseHeader,
        request_body=ha_body.SyncStateSet,
        response_body=ha_body.SyncStateSet,
        access=CLUSTER_UPDATE,
        response_codes=(2000, 2001, 2002, 2003, 2006, 2007, 2008, 2013),
    ),
    _broker_or_admin_to_controller(
        RequestCode.CONTROLLER_ELECT_MASTER,
        controller.ElectMasterRequestHeader,
        controller.ElectMasterResponseHeader,
        response_body=ha_body.ElectMasterResponseBody,
        access=CLUSTER_UPDATE,
        response_codes=(2004, 2007, 2010, 2011, 2012),
    ),
    _broker_to_controller(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        controller.RegisterBrokerToControllerRequestHeader,
        controller.RegisterBrokerToControllerResponseHeader,
        response_body=ha_body.SyncStateSet,
        access=CLUSTER_UPDATE,
        response_codes=(2007, 2010),
    ),
    _broker_or_admin_to_controller(
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        controller.GetReplicaInfoRequestHeader,
        controller.GetReplicaInfoResponseHeader,
        response_body=ha_body.SyncStateSet,
        access=CLUSTER_GET,
        response_codes=(2007, 2008),
    ),
    _broker_or_admin_to_controller(
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        None,
        controller.GetMetaDataResponseHeader,
        access=CLUSTER_GET,
    ),
    _admin_to_controller(
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        request_body=list[str],
        response_body=ha_body.BrokerReplicasInfo,
        access=CLUSTER_GET,
        response_codes=(2007,),
    ),
    read_broker(RequestCode.GET_BROKER_EPOCH_CACHE, response_body=ha_body.EpochEntryCache),
    Row(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        controller.NotifyBrokerRoleChangedRequestHeader,
        direction="K->B",
        request_body=ha_body.SyncStateSet,
        access=CLUSTER_UPDATE,
    ),
    _admin_to_controller(
        RequestCode.UPDATE_CONTROLLER_CONFIG,
        request_body=BodyKind.PROPERTIES,
        access=CLUSTER_UPDATE,
    ),
    _admin_to_controller(
        RequestCode.GET_CONTROLLER_CONFIG, response_body=BodyKind.PROPERTIES, access=CLUSTER_GET
    ),
    _admin_to_controller(
        RequestCode.CLEAN_BROKER_DATA,
        controller.CleanControllerBrokerDataRequestHeader,
        access=CLUSTER_UPDATE,
        response_codes=(2007, 2009),
    ),
    _broker_to_controller(
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        controller.GetNextBrokerIdRequestHeader,
        controller.GetNextBrokerIdResponseHeader,
        access=CLUSTER_GET,
        response_codes=(2007,),
    ),
    _broker_to_controller(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        controller.ApplyBrokerIdRequestHeader,
        controller.ApplyBrokerIdResponseHeader,
        access=CLUSTER_UPDATE,
        response_codes=(2007, 2014),
    ),
)

CONTAINER = (
    change_broker(
        RequestCode.ADD_BROKER,
        admin.AddBrokerRequestHeader,
        request_body=BodyKind.PROPERTIES,
    ),
    change_broker(RequestCode.REMOVE_BROKER, admin.RemoveBrokerRequestHeader),
)

ROWS = ROUTING + REPLICATION + CONTROLLER + CONTAINER
