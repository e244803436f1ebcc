"""Handlers of the requests that brokers send to a client: one per code, routed by group.

Each request goes to the producer or consumer of its group. The protocols below are what a member
may serve; a member implements those that apply to it (a pull consumer cannot consume on demand).
Handlers run on the control loop.

====  ====================================  ==================================================
39    transaction check                     :class:`ChecksTransactions`; no answer
40    members of a group changed            rebalance; no answer
220   reset offsets                         :class:`ResetsOffsets`, as a task; no answer
221   committed offsets in memory           :class:`ShowsStatus`
307   running info of a consumer            :class:`ShowsRunningInfo`
309   consume one message on demand         :class:`ConsumesDirectly`
326   a reply to a request of ours          :class:`ReplyReceiver`
====  ====================================  ==================================================

Counterpart of Java's ``ClientRemotingProcessor``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from skylark.core.errors import BrokerError
from skylark.core.lifecycle import Tasks
from skylark.core.names import Address
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.wire.bodies.admin_body import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.admin import ConsumerGroupRequestHeader
from skylark.wire.headers.client_header import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from skylark.wire.headers.offset import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from skylark.wire.headers.send import ReplyMessageRequestHeader
from skylark.wire.headers.txn import CheckTransactionStateRequestHeader
from skylark.wire.message import MessageRecord, decode_record
from skylark.wire.properties import PROPERTY_PGROUP

logger = logging.getLogger(__name__)


class TransactionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A check-back: a broker asks how a transaction ended."""

    address: str  #: of the broker; the decision is sent there
    broker_name: str | None
    header: CheckTransactionStateRequestHeader
    record: MessageRecord


@runtime_checkable
class ChecksTransactions(Protocol):
    """A producer of transactions."""

    def check_transaction(self, check: TransactionCheck) -> None:
        """Queue the check and return at once."""


@runtime_checkable
class ResetsOffsets(Protocol):
    """A consumer whose offsets a broker can reset."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets, which may be lower or higher than the current ones."""


@runtime_checkable
class ShowsStatus(Protocol):
    """A consumer that reports its offsets."""

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """The committed offsets in memory."""


@runtime_checkable
class ShowsRunningInfo(Protocol):
    """A consumer that reports its state."""

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        """Settings, subscriptions, queues and rates; with the stacks of all threads if wanted."""


@runtime_checkable
class ConsumesDirectly(Protocol):
    """A consumer with a handler."""

    async def consume_directly(
        self, record: MessageRecord, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the handler with one message; no offset moves."""


class ReplyReceiver(Protocol):
    """Receives replies to requests of an application (request-reply)."""

    def reply_arrived(self, address: str, header: ReplyMessageRequestHeader, body: bytes) -> None:
        """Called for every reply, also for those of other clients and those that came too late.

        If this raises, the broker gets an error response.
        """


class BrokerRequestHandlers:
    """The handlers; ``producer`` and ``consumer`` find a member by its group."""

    def __init__(
        self,
        producer: Callable[[str], object | None],
        consumer: Callable[[str], object | None],
        rebalance: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._rebalance = rebalance
        self._tasks = tasks
        #: All of them get every reply; replaced as a whole, from any thread.
        self.replies: tuple[ReplyReceiver, ...] = ()

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each request code."""
        dispatcher.add_hot(RequestCode.CHECK_TRANSACTION_STATE, self.check_transaction)
        dispatcher.add_hot(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self.group_changed)
        dispatcher.add_hot(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self.reset_offsets)
        dispatcher.add_hot(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.consumer_status)
        dispatcher.add_hot(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info)
        dispatcher.add_cold(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)
        dispatcher.add_hot(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.reply)

    def check_transaction(self, connection: Connection, request: Command) -> None:
        """CHECK_TRANSACTION_STATE (39)."""
        header = decode_ext(CheckTransactionStateRequestHeader, request.ext)
        record = decode_record(request.body or b"")
        group = record.properties.get(PROPERTY_PGROUP, "")
        member = self._producer(group)
        if not isinstance(member, ChecksTransactions):
            logger.warning("no producer of group %s here can answer a transaction check", group)
            return
        member.check_transaction(
            TransactionCheck(
                address=_peer(connection),
                broker_name=(request.ext or {}).get("bname"),
                header=header,
                record=record,
            )
        )

    def group_changed(self, connection: Connection, request: Command) -> None:
        """NOTIFY_CONSUMER_IDS_CHANGED (40)."""
        group = decode_ext(ConsumerGroupRequestHeader, request.ext).consumer_group
        logger.info("broker %s reports that the members of %s changed", _peer(connection), group)
        self._rebalance()

    def reset_offsets(self, connection: Connection, request: Command) -> None:
        """RESET_CONSUMER_CLIENT_OFFSET (220)."""
        header = decode_ext(ResetOffsetRequestHeader, request.ext)
        offsets = decode_body(ResetOffsetBody, request.body or b"{}").offset_table
        logger.info(
            "broker %s resets the offsets of group %s in topic %s",
            _peer(connection),
            header.group,
            header.topic,
        )
        member = self._consumer(header.group)
        if isinstance(member, ResetsOffsets) and not self._tasks.closed:
            name = f"reset {header.group}"
            self._tasks.spawn(member.reset_offsets(header.topic, offsets), name=name)

    def consumer_status(self, connection: Connection, request: Command) -> Command:
        """GET_CONSUMER_STATUS_FROM_CLIENT (221)."""
        del connection
        header = decode_ext(GetConsumerStatusRequestHeader, request.ext)
        member = self._consumer(header.group)
        offsets = member.consumer_status(header.topic) if isinstance(member, ShowsStatus) else {}
        body = GetConsumerStatusBody(message_queue_table=dict(offsets))
        return success(request, body=body)

    def running_info(self, connection: Connection, request: Command) -> Command:
        """GET_CONSUMER_RUNNING_INFO (307)."""
        del connection
        header = decode_ext(GetConsumerRunningInfoRequestHeader, request.ext)
        member = self._consumer(header.consumer_group)
        if not isinstance(member, ShowsRunningInfo):
            raise _not_here(header.consumer_group)
        return success(request, body=member.running_info(with_stacks=header.jstack_enable))

    async def consume_directly(self, connection: Connection, request: Command) -> Command:
        """CONSUME_MESSAGE_DIRECTLY (309)."""
        del connection
        header = decode_ext(ConsumeMessageDirectlyResultRequestHeader, request.ext)
        member = self._consumer(header.consumer_group)
        if not isinstance(member, ConsumesDirectly):
            raise _not_here(header.consumer_group)
        record = decode_record(request.body or b"")
        return success(request, body=await member.consume_directly(record, header.broker_name))

    def reply(self, connection: Connection, request: Command) -> Command:
        """PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""
        header = decode_ext(ReplyMessageRequestHeader, request.ext)
        try:
            for listener in self.replies:
                listener.reply_arrived(_peer(connection), header, request.body or b"")
        except Exception:
            logger.exception("cannot process a reply from %s", _peer(connection))
            remark = "process reply message fail"
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark)
        return success(request)


def _peer(connection: Connection) -> str:
    return str(Address(*connection.remote_address))


def _not_here(group: str) -> BrokerError:
    return BrokerError(f"The Consumer Group <{group}> not exist in this consumer")
