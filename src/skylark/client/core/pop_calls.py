"""Typed requests of pop consumption: pop, acknowledge, change the invisible time, ask for queues.

As :class:`~skylark.client.core.broker_calls.BrokerCalls`, over the same callers; these requests
always go to the master of a broker, on its main port. Codes above 32767 travel under JSON headers
only, which the connection sees to. Counterpart of the pop methods of Java's ``MQClientAPIImpl``.

``bornTime`` of a pop is left at 0: the broker then uses its own clock. (Java's client sends its
own time, and a client whose clock is behind by more than the poll time gets no messages.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from skylark.client.core.broker_calls import Caller, checked, make_request
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.bodies.pop_body import (
    BatchAck,
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)

#: Timeout of acks, changes of the invisible time and queries of assignments.
POP_CALL_TIMEOUT_S: Final = 3.0
#: A pop may take this much longer than the time for which the broker may hold it.
POP_SLACK_S: Final = 10.0

_NOT_FOUND: Final = (
    ResponseCode.POLLING_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
)


class Popped(msgspec.Struct, frozen=True, gc=False):
    """The response to a pop; ``body`` holds the records one after the other."""

    header: PopMessageResponseHeader
    body: bytes
    is_full: bool = False  #: too many pops wait at the broker, which did not hold this one


_NOTHING: Final = Popped(PopMessageResponseHeader(), b"")
_POLLING_FULL: Final = Popped(PopMessageResponseHeader(), b"", is_full=True)


class PopCalls:
    """The typed requests of pop consumers."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def pop(self, address: str, header: PopMessageRequestHeader, broker_name: str) -> Popped:
        """POP_MESSAGE (200050); without messages the body is empty."""
        request = make_request(RequestCode.POP_MESSAGE, header, broker_name=broker_name)
        timeout_s = header.poll_time / 1000 + POP_SLACK_S
        answer = await self._caller.call(address, request, timeout_s)
        if answer.code == ResponseCode.POLLING_FULL:
            return _POLLING_FULL
        checked(answer, address, *_NOT_FOUND)
        if answer.code != ResponseCode.SUCCESS:
            return _NOTHING
        return Popped(decode_ext(PopMessageResponseHeader, answer.ext), answer.body or b"")

    async def ack(self, address: str, header: AckMessageRequestHeader, broker_name: str) -> None:
        """ACK_MESSAGE (200051)."""
        request = make_request(RequestCode.ACK_MESSAGE, header, broker_name=broker_name)
        checked(await self._caller.call(address, request, POP_CALL_TIMEOUT_S), address)

    async def ack_many(self, address: str, broker_name: str, acks: Sequence[BatchAck]) -> None:
        """BATCH_ACK_MESSAGE (200151); brokers before 5.1 do not support it."""
        body = BatchAckMessageRequestBody(broker_name=broker_name, acks=list(acks))
        code = RequestCode.BATCH_ACK_MESSAGE
        request = make_request(code, body=body, broker_name=broker_name)
        checked(await self._caller.call(address, request, POP_CALL_TIMEOUT_S), address)

    async def change_invisible_time(
        self, address: str, header: ChangeInvisibleTimeRequestHeader, broker_name: str
    ) -> ChangeInvisibleTimeResponseHeader:
        """CHANGE_MESSAGE_INVISIBLETIME (200053): returns the parts of the new receipt handle."""
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        request = make_request(code, header, broker_name=broker_name)
        answer = await self._caller.call(address, request, POP_CALL_TIMEOUT_S)
        return decode_ext(ChangeInvisibleTimeResponseHeader, checked(answer, address).ext)

    async def query_assignment(
        self,
        address: str,
        topic: str,
        group: str,
        client_id: str,
        strategy: str,
        message_model: MessageModel = MessageModel.CLUSTERING,
    ) -> list[MessageQueueAssignment] | None:
        """QUERY_ASSIGNMENT (400): the queues of a member, each with its mode.

        None means that the broker cannot tell; the member keeps what it has.
        """
        body = QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=group,
            client_id=client_id,
            strategy_name=strategy,
            message_model=message_model,
        )
        request = make_request(RequestCode.QUERY_ASSIGNMENT, body=body)
        answer = await self._caller.call(address, request, POP_CALL_TIMEOUT_S)
        checked(answer, address)
        found = decode_body(QueryAssignmentResponseBody, answer.body or b"{}")
        return found.message_queue_assignments

    async def set_request_mode(
        self,
        address: str,
        topic: str,
        group: str,
        mode: MessageRequestMode,
        pop_share_queue_num: int = 0,
    ) -> None:
        """SET_MESSAGE_REQUEST_MODE (401): how the group gets the messages of the topic."""
        body = SetMessageRequestModeRequestBody(
            topic=topic,
            consumer_group=group,
            mode=mode,
            pop_share_queue_num=pop_share_queue_num,
        )
        request = make_request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        checked(await self._caller.call(address, request, POP_CALL_TIMEOUT_S), address)
