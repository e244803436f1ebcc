"""Typed requests to brokers: each method builds a request, sends it, and decodes the response.

:class:`BrokerCalls` needs an object that sends requests (:class:`Caller`): a
:class:`~skylark.client.core.broker_connections.BrokerConnections` in producers and consumers, or
plain connections::

    async with open_caller() as caller:
        end = await BrokerCalls(caller).max_offset("127.0.0.1:10911", queue)

A response with an unexpected code raises the :class:`~skylark.core.errors.BrokerError` of that code
with the broker's address, a missing response a :class:`~skylark.core.errors.TransportError`, and an
invalid one a :class:`~skylark.core.errors.RemoteProtocolError`. Topics and groups are names as
brokers know them (:mod:`skylark.client.core.namespace`). Every request about a queue has ``bname``,
by which proxies route. SEND requests are in :mod:`skylark.client.producer.send_request`.

With ``vip`` requests go to the second port of a broker, two below the first, except heartbeats,
unregistrations, pulls and decisions of transactions. Counterpart of Java's ``MQClientAPIImpl``.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

import msgspec

from skylark.core.clock import LoopClock
from skylark.core.errors import broker_error
from skylark.core.names import Address, parse_address
from skylark.filter.errors import FilterSyntaxError
from skylark.net.client import RemotingClient
from skylark.net.transport import TcpNetwork
from skylark.wire.bodies.admin_body import ConsumerConnection, GetConsumerStatusBody
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    SubscriptionData,
    UnlockBatchRequestBody,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import Header, decode_ext, encode_ext
from skylark.wire.headers.admin import ConsumerGroupRequestHeader
from skylark.wire.headers.client_header import (
    HeartbeatResponseHeader,
    UnregisterClientRequestHeader,
)
from skylark.wire.headers.offset import (
    GetConsumerStatusRequestHeader,
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylark.wire.headers.pull import (
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from skylark.wire.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
)
from skylark.wire.headers.txn import EndTransactionRequestHeader
from skylark.wire.message import MessageRecord, decode_record, iter_records

BROKER_NAME: Final = "bname"
#: Default timeout of small requests (mqClientApiTimeout).
TIMEOUT_S: Final = 3.0
#: Timeout of requests of tools: offsets by time, single messages.
ADMIN_TIMEOUT_S: Final = 6.0
LOCK_TIMEOUT_S: Final = 1.0
SEND_BACK_TIMEOUT_S: Final = 5.0
#: Timeout of a pull that the broker may hold for 15 or 20 seconds.
PULL_TIMEOUT_S: Final = 30.0


class Caller(Protocol):
    """Sends a request to ``host:port`` and returns the response, with any code."""

    async def call(self, address: str, request: Command, timeout_s: float = TIMEOUT_S) -> Command:
        """Raises TransportError if there is no response."""

    async def oneway(self, address: str, request: Command, timeout_s: float = TIMEOUT_S) -> None:
        """Sends a one-way request; raises TransportError if it could not be sent."""


@asynccontextmanager
async def open_caller() -> AsyncIterator[Caller]:
    """Connections on the running loop, closed at the end of the block."""
    client = RemotingClient(TcpNetwork(), LoopClock())
    try:
        yield client
    finally:
        await client.close()


# ---- responses -----------------------------------------------------------------------------------


class PullStatus(enum.Enum):
    """The status of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


PULL_STATUS: Final[Mapping[int, PullStatus]] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class Pulled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The response to a pull; ``body`` holds the records one after the other."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: bytes = b""
    offset_delta: int = 0  #: to be added to the queue offset of each record (static topics)


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The response of a broker to a heartbeat."""

    version: int  #: of the broker
    supports_v2: bool
    sub_change: bool


def checked(answer: Command, address: str, *also: int) -> Command:
    """The response, if its code is success or one of ``also``; else raises its error."""
    if answer.code != ResponseCode.SUCCESS and answer.code not in also:
        remark = answer.remark or f"answered with code {answer.code}"
        if answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            raise FilterSyntaxError(remark, position=None, broker_address=address)
        raise broker_error(answer.code, remark, broker_address=address)
    return answer


def make_request(
    code: int, header: Header | None = None, body: object | None = None, broker_name: str = ""
) -> Command:
    """A request with an optional typed header and JSON body."""
    ext = encode_ext(header) if header is not None else {}
    if broker_name:
        ext[BROKER_NAME] = broker_name
    return Command(code=code, ext=ext, body=None if body is None else encode_body(body))


def vip_address(address: str) -> str:
    """The second port of the broker at ``address``."""
    host, port = parse_address(address)
    return str(Address(host, port - 2))


# ---- calls ---------------------------------------------------------------------------------------


class BrokerCalls:
    """The typed requests; ``timeout_s`` is the default timeout."""

    def __init__(self, caller: Caller, timeout_s: float = TIMEOUT_S, *, vip: bool = False) -> None:
        self._caller = caller
        self._timeout_s = timeout_s
        self._vip = vip

    async def _call(
        self, address: str, request: Command, timeout_s: float | None = None, *also: int
    ) -> Command:
        """Send to the VIP port if that is used; returns the checked response."""
        if self._vip:
            address = vip_address(address)
        return await self._call_main(address, request, timeout_s, *also)

    async def _call_main(
        self, address: str, request: Command, timeout_s: float | None = None, *also: int
    ) -> Command:
        """Send to the main port; returns the checked response."""
        answer = await self._caller.call(address, request, timeout_s or self._timeout_s)
        return checked(answer, address, *also)

    async def _command(
        self, address: str, request: Command, timeout_s: float | None, *, oneway: bool
    ) -> None:
        """Send a request without a result; with ``oneway`` without waiting for the response."""
        if oneway:
            to = vip_address(address) if self._vip else address
            await self._caller.oneway(to, request, timeout_s or self._timeout_s)
        else:
            await self._call(address, request, timeout_s)

    # ---- membership

    async def heartbeat(self, address: str, heartbeat: HeartbeatData) -> HeartbeatAnswer:
        """HEART_BEAT (34)."""
        request = make_request(RequestCode.HEART_BEAT, body=heartbeat)
        answer = await self._call_main(address, request)
        header = decode_ext(HeartbeatResponseHeader, answer.ext)
        return HeartbeatAnswer(
            version=answer.version,
            supports_v2=bool(header.supports_v2),
            sub_change=bool(header.sub_change),
        )

    async def unregister(
        self,
        address: str,
        client_id: str,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """UNREGISTER_CLIENT (35): leave one group."""
        header = UnregisterClientRequestHeader(
            client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
        )
        await self._call_main(address, make_request(RequestCode.UNREGISTER_CLIENT, header))

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """GET_CONSUMER_LIST_BY_GROUP (38): the client ids; a group without any is an error."""
        header = ConsumerGroupRequestHeader(consumer_group=group)
        request = make_request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        answer = await self._call(address, request)
        body = decode_body(GetConsumerListByGroupResponseBody, answer.body or b"{}")
        return body.consumer_id_list

    async def consumer_connection(self, address: str, group: str) -> ConsumerConnection:
        """GET_CONSUMER_CONNECTION_LIST (203): the members; a group without any is an error."""
        header = ConsumerGroupRequestHeader(consumer_group=group)
        request = make_request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        answer = await self._call(address, request)
        return decode_body(ConsumerConnection, answer.body or b"{}")

    async def consumer_status(
        self, address: str, group: str, topic: str, client_id: str, timeout_s: float | None = None
    ) -> Mapping[MessageQueue, int] | None:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): the offsets in the memory of one member.

        None if the member did not respond.
        """
        header = GetConsumerStatusRequestHeader(topic=topic, group=group, client_addr=client_id)
        request = make_request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        answer = await self._call(address, request, timeout_s)
        body = decode_body(GetConsumerStatusBody, answer.body or b"{}")
        return body.consumer_table.get(client_id)

    async def check_client(
        self,
        address: str,
        client_id: str,
        group: str,
        subscription: SubscriptionData,
        *,
        namespace: str | None = None,
    ) -> None:
        """CHECK_CLIENT_CONFIG (46): raises if the broker refuses the filter of a subscription."""
        body = CheckClientRequestBody(
            client_id=client_id, group=group, namespace=namespace, subscription_data=subscription
        )
        await self._call(address, make_request(RequestCode.CHECK_CLIENT_CONFIG, body=body))

    # ---- locks

    async def lock_queues(
        self, address: str, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """LOCK_BATCH_MQ (41): returns the queues whose locks this client holds now."""
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=list(queues))
        request = make_request(RequestCode.LOCK_BATCH_MQ, body=body, broker_name=_broker_of(body))
        answer = await self._call(address, request, LOCK_TIMEOUT_S)
        return frozenset(decode_body(LockBatchResponseBody, answer.body or b"{}").lock_ok_mq_set)

    async def unlock_queues(
        self,
        address: str,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        *,
        oneway: bool = False,
    ) -> None:
        """UNLOCK_BATCH_MQ (42)."""
        body = UnlockBatchRequestBody(
            consumer_group=group, client_id=client_id, mq_set=list(queues)
        )
        request = make_request(RequestCode.UNLOCK_BATCH_MQ, body=body, broker_name=_broker_of(body))
        await self._command(address, request, LOCK_TIMEOUT_S, oneway=oneway)

    # ---- offsets

    async def query_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        timeout_s: float | None = None,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int:
        """QUERY_CONSUMER_OFFSET (14); raises QueryNotFoundError if nothing is committed."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=set_zero_if_not_found,
        )
        code = RequestCode.QUERY_CONSUMER_OFFSET
        return await self._offset(address, code, header, queue, timeout_s)

    async def update_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        offset: int,
        timeout_s: float | None = None,
        *,
        oneway: bool = False,
    ) -> None:
        """UPDATE_CONSUMER_OFFSET (15)."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        request = make_request(code, header, broker_name=queue.broker_name)
        await self._command(address, request, timeout_s, oneway=oneway)

    async def max_offset(
        self, address: str, queue: MessageQueue, timeout_s: float = ADMIN_TIMEOUT_S
    ) -> int:
        """GET_MAX_OFFSET (30): the offset of the next message to be stored."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(address, RequestCode.GET_MAX_OFFSET, header, queue, timeout_s)

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """GET_MIN_OFFSET (31): the offset of the oldest message."""
        header = QueueRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(address, RequestCode.GET_MIN_OFFSET, header, queue)

    async def search_offset(
        self, address: str, queue: MessageQueue, time_ms: int, *, upper: bool = False
    ) -> int:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the first message stored at or after ``time_ms``."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=time_ms,
            boundary_type="upper" if upper else "lower",
        )
        return await self._offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)

    async def _offset(
        self,
        address: str,
        code: int,
        header: Header,
        queue: MessageQueue,
        timeout_s: float | None = ADMIN_TIMEOUT_S,
    ) -> int:
        request = make_request(code, header, broker_name=queue.broker_name)
        answer = await self._call(address, request, timeout_s)
        return decode_ext(OffsetResponseHeader, answer.ext).offset

    # ---- messages

    async def pull(
        self,
        address: str,
        header: PullMessageRequestHeader,
        broker_name: str,
        timeout_s: float = PULL_TIMEOUT_S,
        *,
        lite: bool = False,
    ) -> Pulled:
        """PULL_MESSAGE (11) or LITE_PULL_MESSAGE (361); flow control (215) is an error."""
        code = RequestCode.LITE_PULL_MESSAGE if lite else RequestCode.PULL_MESSAGE
        request = make_request(code, header, broker_name=broker_name)
        answer = await self._call_main(address, request, timeout_s, *PULL_STATUS)
        numbers = decode_ext(PullMessageResponseHeader, answer.ext)
        return Pulled(
            status=PULL_STATUS[answer.code],
            next_offset=numbers.next_begin_offset,
            min_offset=numbers.min_offset,
            max_offset=numbers.max_offset,
            suggested_broker_id=numbers.suggest_which_broker_id,
            body=answer.body or b"",
            offset_delta=numbers.offset_delta or 0,
        )

    async def send_back(
        self, address: str, header: ConsumerSendMsgBackRequestHeader, broker_name: str
    ) -> None:
        """CONSUMER_SEND_MSG_BACK (36): deliver a message again, later."""
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        request = make_request(code, header, broker_name=broker_name)
        await self._call(address, request, SEND_BACK_TIMEOUT_S)

    async def end_transaction(
        self,
        address: str,
        header: EndTransactionRequestHeader,
        broker_name: str,
        *,
        remark: str | None = None,
    ) -> None:
        """END_TRANSACTION (37), one-way: the broker sends a check-back if it is lost."""
        request = make_request(RequestCode.END_TRANSACTION, header, broker_name=broker_name)
        request.remark = remark
        await self._caller.oneway(address, request, self._timeout_s)

    async def recall(
        self,
        address: str,
        header: RecallMessageRequestHeader,
        broker_name: str,
        timeout_s: float | None = None,
    ) -> str:
        """RECALL_MESSAGE (370): recall a timed message; returns its unique id."""
        request = make_request(RequestCode.RECALL_MESSAGE, header, broker_name=broker_name)
        answer = await self._call(address, request, timeout_s)
        return decode_ext(RecallMessageResponseHeader, answer.ext).msg_id

    async def view_message(self, address: str, log_offset: int) -> MessageRecord:
        """VIEW_MESSAGE_BY_ID (33): the message at a position of the broker's log."""
        header = ViewMessageRequestHeader(offset=log_offset)
        request = make_request(RequestCode.VIEW_MESSAGE_BY_ID, header)
        answer = await self._call(address, request, ADMIN_TIMEOUT_S)
        return decode_record(answer.body or b"")

    async def query_messages(
        self,
        address: str,
        header: QueryMessageRequestHeader,
        timeout_s: float = ADMIN_TIMEOUT_S,
    ) -> list[MessageRecord]:
        """QUERY_MESSAGE (12): messages by key and time; none found is no error."""
        request = make_request(RequestCode.QUERY_MESSAGE, header)
        answer = await self._call(address, request, timeout_s, ResponseCode.QUERY_NOT_FOUND)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        return list(iter_records(answer.body or b""))


def _broker_of(body: LockBatchRequestBody | UnlockBatchRequestBody) -> str:
    return body.mq_set[0].broker_name if body.mq_set else ""
