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
    Row,
    broker_to_client,
    client_to_broker,
    group,
    topic,
)

_MESSAGE, _RECORDS, _BINARY = BodyKind.MESSAGE, BodyKind.RECORDS, BodyKind.BINARY

_client_or_admin_to_broker = partial(Row, direction="CA->B")

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
    client_to_broker,
    response_header=send.SendMessageResponseHeader,
    request_body=_MESSAGE,
    response_codes=_SEND_CODES,
    header_codes=_STORED,
)
_send_long_names = partial(
    _send, request_header=send.SendMessageRequestHeader, access=(topic("Pub"),)
)
_send_letters = partial(
    _send, request_header=send.SendMessageRequestHeaderV2, access=(topic("Pub", field="b"),)
)
_pull = partial(
    client_to_broker,
    request_header=pull.PullMessageRequestHeader,
    response_header=pull.PullMessageResponseHeader,
    response_body=_RECORDS,
    access=_SUBSCRIBE,
    response_codes=_PULL_CODES,
    header_codes=_PULLED,
    extension=_BULK,
)
_subscriber = partial(client_to_broker, access=_SUBSCRIBE)
_subscriber_in_body = partial(client_to_broker, access=_SUBSCRIBE_IN_BODY)
_read_topic = partial(_client_or_admin_to_broker, access=(topic("Get"),))

SENDING = (
    _send_long_names(RequestCode.SEND_MESSAGE, oneway=Oneway.SOMETIMES),
    _send_letters(RequestCode.SEND_MESSAGE_V2, oneway=Oneway.SOMETIMES),
    _send_letters(RequestCode.SEND_BATCH_MESSAGE, oneway=Oneway.SOMETIMES),
    _send_long_names(RequestCode.SEND_REPLY_MESSAGE),
    _send_letters(RequestCode.SEND_REPLY_MESSAGE_V2),
    broker_to_client(
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        send.ReplyMessageRequestHeader,
        request_body=_MESSAGE,
    ),
    client_to_broker(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        send.ConsumerSendMsgBackRequestHeader,
        access=(group("Sub", field="group"),),
        response_codes=(16, 26),
    ),
    client_to_broker(
        RequestCode.END_TRANSACTION,
        txn.EndTransactionRequestHeader,
        oneway=Oneway.ALWAYS,
        access=(topic("Pub"),),
        response_codes=(11, 13, 14, 604),
    ),
    _send_letters(RequestCode.SEND_HALVES, extension="many half messages in one request"),
    client_to_broker(
        RequestCode.END_HALVES,
        txn.EndHalvesRequestHeader,
        request_body=_BINARY,
        response_body=_BINARY,
        access=(topic("Pub"),),
        response_codes=(11,),
        extension="END_TRANSACTION for many half messages; the answer has a code for each",
    ),
    broker_to_client(
        RequestCode.CHECK_TRANSACTION_STATE,
        txn.CheckTransactionStateRequestHeader,
        request_body=_RECORDS,
        oneway=Oneway.ALWAYS,
    ),
    client_to_broker(
        RequestCode.RECALL_MESSAGE,
        send.RecallMessageRequestHeader,
        send.RecallMessageResponseHeader,
        access=(topic("Pub"),),
        response_codes=(11, 14, 16, 17, 604),
    ),
)

PULLING = (
    _pull(RequestCode.PULL_MESSAGE),
    _pull(RequestCode.LITE_PULL_MESSAGE),
    _client_or_admin_to_broker(
        RequestCode.QUERY_MESSAGE,
        pull.QueryMessageRequestHeader,
        pull.QueryMessageResponseHeader,
        response_body=_RECORDS,
        access=(topic("Sub", "Get"),),
        response_codes=(22,),
        header_codes=(0, 22),
    ),
    _read_topic(
        RequestCode.VIEW_MESSAGE_BY_ID, pull.ViewMessageRequestHeader, response_body=_RECORDS
    ),
)

MEMBERSHIP = (
    _subscriber_in_body(
        RequestCode.HEART_BEAT,
        None,
        client.HeartbeatResponseHeader,
        request_body=heartbeat.HeartbeatData,
    ),
    client_to_broker(
        RequestCode.UNREGISTER_CLIENT, client.UnregisterClientRequestHeader, access=(group("Sub"),)
    ),
    _subscriber_in_body(
        RequestCode.CHECK_CLIENT_CONFIG,
        request_body=heartbeat.CheckClientRequestBody,
        response_codes=(23,),
    ),
    client_to_broker(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        admin.ConsumerGroupRequestHeader,
        response_body=heartbeat.GetConsumerListByGroupResponseBody,
        access=(group("Sub", "Get"),),
    ),
    broker_to_client(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        admin.ConsumerGroupRequestHeader,
        oneway=Oneway.ALWAYS,
    ),
    _subscriber_in_body(
        RequestCode.LOCK_BATCH_MQ,
        request_body=heartbeat.LockBatchRequestBody,
        response_body=heartbeat.LockBatchResponseBody,
    ),
    _subscriber_in_body(
        RequestCode.UNLOCK_BATCH_MQ,
        request_body=heartbeat.UnlockBatchRequestBody,
        oneway=Oneway.SOMETIMES,
    ),
    Row(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        client.GetConsumerRunningInfoRequestHeader,
        direction="A->B->C",
        response_body=admin_body.ConsumerRunningInfo,
        access=(group("Get"),),
        response_codes=(207,),
    ),
    Row(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        client.ConsumeMessageDirectlyResultRequestHeader,
        direction="A->B->C",
        request_body=_RECORDS,
        response_body=admin_body.ConsumeMessageDirectlyResult,
        access=_SUBSCRIBE,
        response_codes=(207,),
    ),
)

OFFSETS = (
    client_to_broker(
        RequestCode.QUERY_CONSUMER_OFFSET,
        offset.QueryConsumerOffsetRequestHeader,
        offset.OffsetResponseHeader,
        access=(topic("Sub", "Get"), group("Sub", "Get")),
        response_codes=(22,),
    ),
    client_to_broker(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        offset.UpdateConsumerOffsetRequestHeader,
        oneway=Oneway.SOMETIMES,
        access=(topic("Sub", "Update"), group("Sub", "Update")),
        response_codes=(17, 26, 29),
    ),
    _read_topic(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        offset.SearchOffsetRequestHeader,
        offset.OffsetResponseHeader,
    ),
    _read_topic(
        RequestCode.GET_MAX_OFFSET,
        offset.GetMaxOffsetRequestHeader,
        offset.OffsetResponseHeader,
        response_codes=(501,),
    ),
    _read_topic(
        RequestCode.GET_MIN_OFFSET,
        offset.QueueRequestHeader,
        offset.OffsetResponseHeader,
        response_codes=(501,),
    ),
    _read_topic(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        offset.QueueRequestHeader,
        offset.GetEarliestMsgStoretimeResponseHeader,
    ),
    broker_to_client(
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        offset.ResetOffsetRequestHeader,
        request_body=admin_body.ResetOffsetBody,
        oneway=Oneway.ALWAYS,
    ),
    broker_to_client(
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        offset.GetConsumerStatusRequestHeader,
        response_body=admin_body.GetConsumerStatusBody,
    ),
)

POP = (
    _subscriber(
        RequestCode.POP_MESSAGE,
        pop.PopMessageRequestHeader,
        pop.PopMessageResponseHeader,
        response_body=_RECORDS,
        response_codes=(16, 17, 23, 26, 29, 209, 210),
    ),
    _subscriber(RequestCode.ACK_MESSAGE, pop.AckMessageRequestHeader, response_codes=(13, 17, 208)),
    _subscriber_in_body(
        RequestCode.BATCH_ACK_MESSAGE,
        request_body=pop_body.BatchAckMessageRequestBody,
        response_codes=(208,),
    ),
    _subscriber(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        pop.ChangeInvisibleTimeRequestHeader,
        pop.ChangeInvisibleTimeResponseHeader,
        response_codes=(13, 17, 208),
    ),
    _subscriber(
        RequestCode.NOTIFICATION,
        pop.NotificationRequestHeader,
        pop.NotificationResponseHeader,
        response_codes=(16, 17, 26, 29),
    ),
    client_to_broker(
        RequestCode.POLLING_INFO,
        pop.PollingInfoRequestHeader,
        pop.PollingInfoResponseHeader,
        access=(topic("Get"), group("Get")),
        response_codes=(16, 17, 26, 29),
    ),
    _subscriber(
        RequestCode.PEEK_MESSAGE,
        pop.PeekMessageRequestHeader,
        pop.PopMessageResponseHeader,
        response_body=_RECORDS,
        response_codes=(16, 17, 19, 26, 29),
    ),
    _subscriber_in_body(
        RequestCode.QUERY_ASSIGNMENT,
        request_body=pop_body.QueryAssignmentRequestBody,
        response_body=pop_body.QueryAssignmentResponseBody,
    ),
    Row(
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        direction="A->B",
        request_body=pop_body.SetMessageRequestModeRequestBody,
        access=(topic("Update", field=None), group("Update", field=None)),
        response_codes=(16, 17, 26),
    ),
    Row(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        direction="S->B",
        response_body=slave_sync_body.MessageRequestModeSerializeWrapper,
        access=CLUSTER_GET,
    ),
)

ROWS = SENDING + PULLING + MEMBERSHIP + OFFSETS + POP
