"""An endpoint without a socket, for tests of the services of a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from skylark.broker.api import (
    BrokerServices,
    EndTransactionRequest,
    EndTransactionResult,
    Identity,
    Pending,
    PullOutcome,
    PullRequest,
    PullResult,
    RecallRequest,
    RecallResult,
    ReplyRequest,
    ReplyResult,
    SendBackRequest,
    SendBackResult,
    SendRequest,
    SendResult,
    result_of,
)
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from skylark.wire.codes import ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    RecallMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from skylark.wire.headers.txn import EndTransactionRequestHeader
from skylark.wire.message import pack_host
from skylark.wire.properties import encode_properties
from tests.unit.broker.stored import OWN, SUSPEND, records_of

REPLY_TOPIC: Final = "DefaultCluster_REPLY_TOPIC"


class FakePeer:
    """A client of the fake endpoint."""

    def __init__(self, port: int = 1) -> None:
        self.client_id: str | None = None
        self.identity: Identity | None = None
        self.remote_address = ("10.0.0.1", port)
        self.born_host = pack_host(*self.remote_address)
        self.is_closing = False
        self.is_reading = True
        self.sent: list[Command] = []
        self._on_close: list[Callable[[], object]] = []
        self._when_writable: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], object]) -> None:
        self._on_close.append(callback)

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        self._when_writable.append(callback)

    def begin_results(self) -> None:
        pass

    def end_results(self) -> None:
        pass

    def oneway(self, request: Command) -> None:
        self.sent.append(request)

    def call(self, request: Command, _timeout_s: float) -> asyncio.Future[Command]:
        self.sent.append(request)
        answered: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        answered.set_result(response_to(request, ResponseCode.SUCCESS))
        return answered

    def read_all(self) -> None:
        self.is_reading = True
        callbacks, self._when_writable = self._when_writable, []
        for callback in callbacks:
            callback()

    def close(self) -> None:
        self.is_closing = True
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()


class FakeEndpoint:
    """What an endpoint does with one client, without any bytes: it calls services."""

    def __init__(self, services: BrokerServices, peer: FakePeer | None = None) -> None:
        self.services = services
        self.peer = peer or FakePeer()

    def send(
        self, topic: str = "T", body: bytes = b"hello", *, batch: bool = False, **properties: str
    ) -> SendResult | Pending[SendResult]:
        header = send_header(topic, batch=batch, **properties)
        result: SendResult | Pending[SendResult] = self.put(SendRequest(header, body))
        return result

    async def sent(self, *args: Any, **options: Any) -> SendResult:
        """Send, and wait: the first message of a new topic waits until the topic is saved."""
        return await result_of(self.send(*args, **options))

    def end(self, half: SendResult, decision: int) -> EndTransactionResult:
        result = self.put(end_request(half, decision))
        assert isinstance(result, EndTransactionResult)
        return result

    def put(self, request: object) -> Any:
        (outcome,) = self.services.puts.run(self.peer, [request])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def send_back(self, log_offset: int, level: int = 0, group: str = "g") -> SendBackResult:
        result = await result_of(self.put(send_back_request(log_offset, level, group)))
        assert isinstance(result, SendBackResult)
        return result

    async def reply(self, client_id: str, body: bytes = b"reply") -> ReplyResult:
        result = await result_of(self.put(reply_request(client_id, body)))
        assert isinstance(result, ReplyResult)
        return result

    async def recall(self, handle: str, topic: str = "T") -> RecallResult:
        result = await result_of(self.put(recall_request(handle, topic)))
        assert isinstance(result, RecallResult)
        return result

    def pull(self, offset: int = 0, **changes: Any) -> PullResult | Pending[PullOutcome]:
        fields: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": OWN,
            "commit_offset": 0,
            "suspend_timeout_millis": 15_000,
            "subscription": "*",
            "sub_version": 0,
        }
        header = PullMessageRequestHeader(**fields | changes)
        return self.services.pulls.pull(self.peer, PullRequest(header))

    def hold(self, offset: int = 0, **changes: Any) -> list[PullOutcome]:
        """A pull that waits; its outcome will be in the list."""
        pending = self.pull(offset, sys_flag=OWN | SUSPEND, **changes)
        assert isinstance(pending, Pending)
        outcomes: list[PullOutcome] = []
        pending.then(outcomes.append)
        return outcomes


def send_header(
    topic: str, *, batch: bool = False, **properties: str
) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        producer_group="pg",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=4 if "TRAN_MSG" in properties else 0,
        born_timestamp=1_794_710_000_000,
        flag=0,
        properties=encode_properties(properties),
        batch=batch,
    )


def end_request(half: SendResult, decision: int, topic: str | None = None) -> EndTransactionRequest:
    header = EndTransactionRequestHeader(
        topic=topic,
        producer_group="pg",
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.log_offset,
        commit_or_rollback=decision,
        msg_id=half.unique_id,
        transaction_id=half.unique_id,
    )
    return EndTransactionRequest(header)


def send_back_request(log_offset: int, level: int = 0, group: str = "g") -> SendBackRequest:
    header = ConsumerSendMsgBackRequestHeader(offset=log_offset, group=group, delay_level=level)
    return SendBackRequest(header)


def reply_request(client_id: str, body: bytes = b"reply") -> ReplyRequest:
    header = send_header(REPLY_TOPIC, REPLY_TO_CLIENT=client_id, CORRELATION_ID="c1")
    return ReplyRequest(header, body)


def recall_request(handle: str, topic: str = "T") -> RecallRequest:
    return RecallRequest(RecallMessageRequestHeader(topic=topic, recall_handle=handle))


def bodies(outcome: object) -> list[bytes]:
    """The messages of a result, which gives them back."""
    assert isinstance(outcome, PullResult)
    assert outcome.messages is not None
    found = [record.body for record in records_of(b"".join(outcome.messages.views))]
    outcome.messages.release()
    return found


def consumer(group: str, topic: str) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")],
    )


def heartbeat(client_id: str) -> HeartbeatData:
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name="pg")],
        consumer_data_set=[consumer("g", "T")],
    )


def join(endpoint: FakeEndpoint, client_id: str) -> None:
    endpoint.services.clients.heartbeat(
        endpoint.peer, heartbeat(client_id), language="PYTHON", version=513
    )
