"""Rows of sending and consuming: the requests between clients and brokers."""

from __future__ import annotations

from functools import partial

from skylark.wire.bodies import admin_body, heartbeat, pop_body, slave_sync_body
from skylark.wire.codes import RequestCode
from skylark.wire.headers import admin, offset, pop, pull, send, txn
from skylark.wire.headers import client_header as client
from skylark.wire.rows.catalogue_row import (
    CLUSTER_GET,
    BodyKind,
    Oneway,
    Priority,
    Row,
    group,
    topic,
)

_P0 = Priority.P0
_MESSAGE, _RECORDS, _BINARY = BodyKind.MESSAGE, BodyKind.RECORDS, BodyKind.BINARY

_broker_to_client = partial(Row, priority=_P0, direction="B->C")
_client_or_admin_to_broker = partial(Row, priority=_P0, direction="CA->B")
_client_to_broker = partial(Row, priority=_P0, direction="C->B")

#: 10, 11 and 12 mean "stored, but not as safely as asked".
_STORED = (0, 10, 11, 12)
_SEND_CODES = (10, 11, 12, 13, 14, 16, 17, 26, 29)
#: The consumer acts upon the numbers of the header with each of these.
_PULLED = (0, 19, 20, 21)
_PULL_CODES = (16, 17, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29)
_BULK = "ext bulk=true lifts the caps on count and bytes up to pullMaxBytes"

_SUBSCRIBE = (topic("Sub"), group("Sub"))
_SUBSCRIBE_IN_BODY = (topic("Sub", field=None), group("Sub", field=None))

_send = partial(
    _client_to_broker,
    response_header=send.SendMessageResponseHeader,
    request_body=_MESSAGE,
    response_codes=_SEND_CODES,
    header_codes=_STORED,
)

SENDING = (
    _send(
        RequestCode.SEND_MESSAGE,
        send.SendMessageRequestHeader,
        oneway=Oneway.SOMETIMES,
        access=(topic("Pub"),),
    ),
    _send(
        RequestCode.SEND_MESSAGE_V2,
        send.SendMessageRequestHeaderV2,
        oneway=Oneway.SOMETIMES,
        access=(topic("Pub", field="b"),),
    ),
    _send(
        RequestCode.SEND_BATCH_MESSAGE,
        send.SendMessageRequestHeaderV2,
        oneway=Oneway.SOMETIMES,
        access=(topic("Pub", field="b"),),
    ),
    _send(RequestCode.SEND_REPLY_MESSAGE, send.SendMessageRequestHeader, access=(topic("Pub"),)),
    _send(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        send.SendMessageRequestHeaderV2,
        access=(topic("Pub", field="b"),),
    ),
    _broker_to_client(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        send.ReplyMessageRequestHeader,
        request_body=_MESSAGE,
    ),
    _client_to_broker(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        send.ConsumerSendMsgBackRequestHeader,
        access=(group("Sub", field="group"),),
        response_codes=(16, 26),
    ),
    _client_to_broker(
        RequestCode.END_TRANSACTION,
        txn.EndTransactionRequestHeader,
        oneway=Oneway.ALWAYS,
        access=(topic("Pub"),),
        response_codes=(11, 13, 14, 604),
    ),
    _send(
        RequestCode.SEND_HALVES,
        send.SendMessageRequestHeaderV2,
        priority=Priority.P2,
        access=(topic("Pub", field="b"),),
        extension="many half messages in one request",
    ),
    _client_to_broker(
        RequestCode.END_HALVES,
        txn.EndHalvesRequestHeader,
        priority=Priority.P2,
        request_body=_BINARY,
        response_body=_BINARY,
        access=(topic("Pub"),),
        response_codes=(11,),
        extension="END_TRANSACTION for many half messages; the answer has a code for each",
    ),
    _broker_to_client(
        RequestCode.CHECK_TRANSACTION_STATE,
        txn.CheckTransactionStateRequestHeader,
        request_body=_RECORDS,
        oneway=Oneway.ALWAYS,
    ),
    _client_to_broker(
        RequestCode.RECALL_MESSAGE,
        send.RecallMessageRequestHeader,
        send.RecallMessageResponseHeader,
        access=(topic("Pub"),),
        response_codes=(11, 14, 16, 17, 604),
    ),
)

PULLING = (
    _client_to_broker(
        RequestCode.PULL_MESSAGE,
        pull.PullMessageRequestHeader,
        pull.PullMessageResponseHeader,
        response_body=_RECORDS,
        access=_SUBSCRIBE,
        response_codes=_PULL_CODES,
        header_codes=_PULLED,
        extension=_BULK,
    ),
    _client_to_broker(
        RequestCode.LITE_PULL_MESSAGE,
        pull.PullMessageRequestHeader,
        pull.PullMessageResponseHeader,
        response_body=_RECORDS,
        access=_SUBSCRIBE,
        response_codes=_PULL_CODES,
        header_codes=_PULLED,
        extension=_BULK,
    ),
    _client_or_admin_to_broker(
        RequestCode.QUERY_MESSAGE,
        pull.QueryMessageRequestHeader,
        pull.QueryMessageResponseHeader,
        response_body=_RECORDS,
        access=(topic("Sub", "Get"),),
        response_codes=(22,),
        header_codes=(0, 22),
    ),
    _client_or_admin_to_broker(
        RequestCode.VIEW_MESSAGE_BY_ID,
        pull.ViewMessageRequestHeader,
        response_body=_RECORDS,
        access=(topic("Get"),),
    ),
)

MEMBERSHIP = (
    _client_to_broker(
        RequestCode.HEART_BEAT,
        None,
        client.HeartbeatResponseHeader,
        request_body=heartbeat.HeartbeatData,
        access=_SUBSCRIBE_IN_BODY,
    ),
    _client_to_broker(
        RequestCode.UNREGISTER_CLIENT, client.UnregisterClientRequestHeader, access=(group("Sub"),)
    ),
    _client_to_broker(
        RequestCode.CHECK_CLIENT_CONFIG,
        request_body=heartbeat.CheckClientRequestBody,
        access=_SUBSCRIBE_IN_BODY,
        response_codes=(23,),
    ),
    _client_to_broker(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        admin.ConsumerGroupRequestHeader,
        response_body=heartbeat.GetConsumerListByGroupResponseBody,
        access=(group("Sub", "Get"),),
    ),
    _broker_to_client(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        admin.ConsumerGroupRequestHeader,
        oneway=Oneway.ALWAYS,
    ),
    _client_to_broker(
        RequestCode.LOCK_BATCH_MQ,
        request_body=heartbeat.LockBatchRequestBody,
        response_body=heartbeat.LockBatchResponseBody,
        access=_SUBSCRIBE_IN_BODY,
    ),
    _client_to_broker(
        RequestCode.UNLOCK_BATCH_MQ,
        request_body=heartbeat.UnlockBatchRequestBody,
        oneway=Oneway.SOMETIMES,
        access=_SUBSCRIBE_IN_BODY,
    ),
    Row(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        client.GetConsumerRunningInfoRequestHeader,
        priority=_P0,
        direction="A->B->C",
        response_body=admin_body.ConsumerRunningInfo,
        access=(group("Get"),),
        response_codes=(207,),
    ),
    Row(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        client.ConsumeMessageDirectlyResultRequestHeader,
        priority=_P0,
        direction="A->B->C",
        request_body=_RECORDS,
        response_body=admin_body.ConsumeMessageDirectlyResult,
        access=_SUBSCRIBE,
        response_codes=(207,),
    ),
)

OFFSETS = (
    _client_to_broker(
        RequestCode.QUERY_CONSUMER_OFFSET,
        offset.QueryConsumerOffsetRequestHeader,
        offset.OffsetResponseHeader,
        access=(topic("Sub", "Get"), group("Sub", "Get")),
        response_codes=(22,),
    ),
    _client_to_broker(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        offset.UpdateConsumerOffsetRequestHeader,
        oneway=Oneway.SOMETIMES,
        access=(topic("Sub", "Update"), group("Sub", "Update")),
        response_codes=(17, 26, 29),
    ),
    _client_or_admin_to_broker(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        offset.SearchOffsetRequestHeader,
        offset.OffsetResponseHeader,
        access=(topic("Get"),),
    ),
    _client_or_admin_to_broker(
        RequestCode.GET_MAX_OFFSET,
        offset.GetMaxOffsetRequestHeader,
        offset.OffsetResponseHeader,
        access=(topic("Get"),),
        response_codes=(501,),
    ),
    _client_or_admin_to_broker(
        RequestCode.GET_MIN_OFFSET,
        offset.GetMinOffsetRequestHeader,
        offset.OffsetResponseHeader,
        access=(topic("Get"),),
        response_codes=(501,),
    ),
    _client_or_admin_to_broker(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        offset.GetEarliestMsgStoretimeRequestHeader,
        offset.GetEarliestMsgStoretimeResponseHeader,
        access=(topic("Get"),),
    ),
    _broker_to_client(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        offset.ResetOffsetRequestHeader,
        request_body=admin_body.ResetOffsetBody,
        oneway=Oneway.ALWAYS,
    ),
    _broker_to_client(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        offset.GetConsumerStatusRequestHeader,
        response_body=admin_body.GetConsumerStatusBody,
    ),
)

POP = (
    _client_to_broker(
        RequestCode.POP_MESSAGE,
        pop.PopMessageRequestHeader,
        pop.PopMessageResponseHeader,
        response_body=_RECORDS,
        access=_SUBSCRIBE,
        response_codes=(16, 17, 23, 26, 29, 209, 210),
    ),
    _client_to_broker(
        RequestCode.ACK_MESSAGE,
        pop.AckMessageRequestHeader,
        access=_SUBSCRIBE,
        response_codes=(13, 17, 208),
    ),
    _client_to_broker(
        RequestCode.BATCH_ACK_MESSAGE,
        request_body=pop_body.BatchAckMessageRequestBody,
        access=_SUBSCRIBE_IN_BODY,
        response_codes=(208,),
    ),
    _client_to_broker(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        pop.ChangeInvisibleTimeRequestHeader,
        pop.ChangeInvisibleTimeResponseHeader,
        access=_SUBSCRIBE,
        response_codes=(13, 17, 208),
    ),
    _client_to_broker(
        RequestCode.NOTIFICATION,
        pop.NotificationRequestHeader,
        pop.NotificationResponseHeader,
        access=_SUBSCRIBE,
        response_codes=(16, 17, 26, 29),
    ),
    _client_to_broker(
        RequestCode.POLLING_INFO,
        pop.PollingInfoRequestHeader,
        pop.PollingInfoResponseHeader,
        access=(topic("Get"), group("Get")),
        response_codes=(16, 17, 26, 29),
    ),
    _client_to_broker(
        RequestCode.PEEK_MESSAGE,
        pop.PeekMessageRequestHeader,
        pop.PopMessageResponseHeader,
        response_body=_RECORDS,
        access=_SUBSCRIBE,
        response_codes=(16, 17, 19, 26, 29),
    ),
    _client_to_broker(
        RequestCode.QUERY_ASSIGNMENT,
        request_body=pop_body.QueryAssignmentRequestBody,
        response_body=pop_body.QueryAssignmentResponseBody,
        access=_SUBSCRIBE_IN_BODY,
    ),
    Row(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        priority=_P0,
        direction="A->B",
        request_body=pop_body.SetMessageRequestModeRequestBody,
        access=(topic("Update", field=None), group("Update", field=None)),
        response_codes=(16, 17, 26),
    ),
    Row(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        priority=_P0,
        direction="S->B",
        response_body=slave_sync_body.MessageRequestModeSerializeWrapper,
        access=CLUSTER_GET,
    ),
)

ROWS = SENDING + PULLING + MEMBERSHIP + OFFSETS + POP
