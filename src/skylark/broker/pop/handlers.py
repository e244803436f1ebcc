"""Remoting requests of pop consumers: read into typed requests, run, and answered.

Pops, peeks, notifications and questions for waiting pops may be held: only the main port has them.
Acks and changes of the invisible time are requests that store records: their codecs stand here, and
:mod:`skylark.broker.send.handlers` runs them, together with all that came in one read.

**Refusals** have the fields of their response header, all 0 or false, as in Java, which makes the
header before it checks the request. A request that cannot be read has none.

This module handles frames, not messages; see :mod:`skylark.broker.pop.pop_service`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from skylark.broker.api import AckResult, Pending, PopResult, PopService
from skylark.core.errors import BrokerError
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer, Dispatcher, LateAnswer, error_response
from skylark.net.success_response import UNSET_REMARK, success
from skylark.net.write_queue import view_response
from skylark.wire.bodies.pop_body import BatchAckMessageRequestBody
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.command_codec import ResponseShape, ShapedResponse
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import encode_ext
from skylark.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)

_Header: TypeAlias = (
    PopMessageResponseHeader
    | NotificationResponseHeader
    | PollingInfoResponseHeader
    | ChangeInvisibleTimeResponseHeader
)
_ACKED: Final = ResponseShape(int(ResponseCode.SUCCESS), {})
#: The fields of a refusal.
_NOT_POPPED: Final = PopMessageResponseHeader()
_NOT_NOTIFIED: Final = NotificationResponseHeader()
_NOT_COUNTED: Final = PollingInfoResponseHeader()
_NOT_CHANGED: Final = ChangeInvisibleTimeResponseHeader()


class PopHandlers:
    """Handlers of the requests that read queues without owning them."""

    def __init__(self, pops: PopService) -> None:
        self._pops = pops
        #: Called with each request that is held.
        self.on_held: Callable[[Command], None] | None = None

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.POP_MESSAGE, self.pop)
        dispatcher.add_hot(RequestCode.PEEK_MESSAGE, self.peek)
        dispatcher.add_hot(RequestCode.NOTIFICATION, self.notify)
        dispatcher.add_hot(RequestCode.POLLING_INFO, self.polling_info)

    def pop(self, connection: Connection, command: Command) -> Answer:
        """POP_MESSAGE (200050)."""
        header = command.header(PopMessageRequestHeader)
        try:
            outcome = self._pops.pop(connection, header)
        except BrokerError as error:
            return _refusal(command, error, _NOT_POPPED)
        return self._answer(connection, command, outcome, _NOT_POPPED)

    def peek(self, connection: Connection, command: Command) -> Answer:
        """PEEK_MESSAGE (200052)."""
        header = command.header(PeekMessageRequestHeader)
        try:
            return _response(command, self._pops.peek(connection, header))
        except BrokerError as error:
            return _refusal(command, error, _NOT_POPPED)

    def notify(self, connection: Connection, command: Command) -> Answer:
        """NOTIFICATION (200054)."""
        header = command.header(NotificationRequestHeader)
        try:
            outcome = self._pops.notify(connection, header)
        except BrokerError as error:
            return _refusal(command, error, _NOT_NOTIFIED)
        return self._answer(connection, command, outcome, _NOT_NOTIFIED)

    def polling_info(self, connection: Connection, command: Command) -> Answer:
        """POLLING_INFO (200055)."""
        header = command.header(PollingInfoRequestHeader)
        try:
            count = self._pops.waiting_count(connection, header)
        except BrokerError as error:
            return _refusal(command, error, _NOT_COUNTED)
        return success(
            command, header=PollingInfoResponseHeader(polling_num=count), remark=UNSET_REMARK
        )

    def _answer(
        self, connection: Connection, command: Command, outcome: object, refused: _Header
    ) -> Answer:
        if not isinstance(outcome, Pending):
            return _response(command, outcome)
        outcome.then(partial(_answer_later, connection, command, refused))
        if self.on_held is not None:
            self.on_held(command)
        return LATER


def _answer_later(
    connection: Connection, command: Command, refused: _Header, outcome: object
) -> None:
    """Send the response of a request that waited; none if the client has disconnected."""
    answer: LateAnswer = None
    try:
        if isinstance(outcome, BrokerError):
            answer = _refusal(command, outcome, refused)
        elif isinstance(outcome, BaseException):
            answer = error_response(command, outcome)
        elif outcome is not None:
            answer = _response(command, outcome)
    except Exception as error:  # noqa: BLE001 - becomes code 1
        answer = error_response(command, error)
    connection.answer(command, answer)


def _refusal(command: Command, error: BrokerError, header: _Header) -> Command:
    return response_to(command, error.code, str(error), ext=encode_ext(header))


def _response(command: Command, result: object) -> Command:
    if isinstance(result, NotificationResponseHeader):
        return success(command, header=result, remark=UNSET_REMARK)
    assert isinstance(result, PopResult)
    ext = pop_ext(result.header)
    if result.messages is None:
        return response_to(command, result.code, result.remark, ext=ext)
    return view_response(command, result.code, result.remark, ext=ext, leased=result.messages)


def pop_ext(header: PopMessageResponseHeader) -> dict[str, str]:
    """The ext fields of the header; three times as fast as ``encode_ext``."""
    ext = {
        "popTime": str(header.pop_time),
        "invisibleTime": str(header.invisible_time),
        "reviveQid": str(header.revive_qid),
        "restNum": str(header.rest_num),
    }
    if header.start_offset_info is not None:
        ext["startOffsetInfo"] = header.start_offset_info
    if header.msg_offset_info is not None:
        ext["msgOffsetInfo"] = header.msg_offset_info
    if header.order_count_info is not None:
        ext["orderCountInfo"] = header.order_count_info
    return ext


class AckCodec:
    """ACK_MESSAGE (200051)."""

    def read(self, command: Command) -> AckMessageRequestHeader:
        return command.header(AckMessageRequestHeader)

    def write(self, command: Command, outcome: Any) -> LateAnswer:
        if type(outcome) is AckResult:
            if outcome.remark is None:
                return ShapedResponse(_ACKED, (command.opaque,))
            return response_to(command, ResponseCode.SUCCESS, outcome.remark)
        return error_response(command, outcome)


class BatchAckCodec(AckCodec):
    """BATCH_ACK_MESSAGE (200151)."""

    def read(self, command: Command) -> Any:
        if not command.body:
            return BatchAckMessageRequestBody()
        return decode_body(BatchAckMessageRequestBody, command.body)


class ChangeInvisibleTimeCodec:
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    def read(self, command: Command) -> ChangeInvisibleTimeRequestHeader:
        return command.header(ChangeInvisibleTimeRequestHeader)

    def write(self, command: Command, outcome: Any) -> LateAnswer:
        if isinstance(outcome, ChangeInvisibleTimeResponseHeader):
            return success(command, header=outcome, remark=UNSET_REMARK)
        if isinstance(outcome, BrokerError):
            return _refusal(command, outcome, _NOT_CHANGED)
        return error_response(command, outcome)
