"""Remoting requests that store messages: read into typed requests, run, and answered.

Sends (10, 310, 320, 9002) and decisions about half messages (37) that came together from one
connection are one run of :class:`~skylark.broker.send.put_pipeline.PutPipeline`, in the order of
their arrival; a request that came alone is a run of one. This module handles frames, not messages:
each code has a :class:`PutCodec` that reads its header and writes its response.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Protocol

from skylark.broker.api import Pending, PutService, SendRequest, SendResult
from skylark.broker.send.send_checks import SendChecks
from skylark.core.errors import BrokerError
from skylark.core.hashing import encode_offset_id
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer, Dispatcher, LateAnswer, error_response
from skylark.store.store_results import PutStatus
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.command_codec import (
    DECIMAL,
    TEXT,
    ResponseShape,
    ShapedResponse,
    Slot,
    hex_slot,
)
from skylark.wire.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2

_LONG_NAMES: Final = int(RequestCode.SEND_MESSAGE)
_SUCCESS: Final = int(PutStatus.PUT_OK.code)


class PutCodec(Protocol):
    """Reads the requests of one code and writes their responses."""

    def read(self, command: Command) -> object:
        """The typed request; raises RemoteProtocolError."""

    def write(self, command: Command, outcome: Any) -> LateAnswer:
        """The response to a request with this outcome, which is never Pending."""


class PutHandlers:
    """Handlers of the requests that store messages."""

    def __init__(self, puts: PutService, codecs: dict[int, PutCodec]) -> None:
        self._run = puts.run
        self._codecs = {int(code): codec for code, codec in codecs.items()}

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        for code in self._codecs:
            dispatcher.add_run(code, self.run)

    def run(
        self, connection: Connection, commands: list[Command]
    ) -> list[Answer | ShapedResponse | bytes]:
        """The responses to the requests of a run, in their order."""
        codecs = self._codecs
        requests: list[Any] = []
        for command in commands:
            try:
                requests.append(codecs[command.code].read(command))
            except Exception as error:  # noqa: BLE001 - the outcome
                requests.append(error)
        answers: list[Answer | ShapedResponse | bytes] = []
        for command, outcome in zip(commands, self._run(connection, requests), strict=True):
            if type(outcome) is Pending:
                outcome.then(partial(self._answer_later, connection, command))
                answers.append(LATER)
                continue
            try:
                answers.append(codecs[command.code].write(command, outcome))
            except Exception as error:  # noqa: BLE001 - becomes code 1
                answers.append(error_response(command, error))
        return answers

    def _answer_later(self, connection: Connection, command: Command, outcome: Any) -> None:
        connection.answer(command, self._codecs[command.code].write(command, outcome))


class SendCodec:
    """SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

    Every response, errors included, has the ext fields MSG_REGION and TRACE_ON, except when the
    request itself cannot be read. The common part of all replies to single messages is encoded
    once, as a :class:`ResponseShape`.
    """

    def __init__(self, checks: SendChecks, store_host: bytes) -> None:
        self._checks = checks
        self._store_host = store_host
        self._shape: ResponseShape | None = None
        self._shape_ext: dict[str, str] | None = None  # the ext fields in the shape

    def read(self, command: Command) -> SendRequest:
        if command.code == _LONG_NAMES:
            header = command.header(SendMessageRequestHeader)
            return SendRequest(header, command.body, command.version)
        header_v2 = command.header(SendMessageRequestHeaderV2)
        return SendRequest(header_v2, command.body, command.version)

    def write(self, command: Command, outcome: SendResult | Exception) -> Command | ShapedResponse:
        if type(outcome) is SendResult:
            return self._reply(command, outcome)
        assert isinstance(outcome, BaseException)
        if isinstance(outcome, BrokerError):
            return response_to(command, outcome.code, str(outcome), ext=self._checks.ext.copy())
        return error_response(command, outcome)

    def _reply(self, request: Command, result: SendResult) -> Command | ShapedResponse:
        """The response to a send that was stored."""
        if (
            result.code != _SUCCESS
            or result.message_ids is not None
            or result.recall_handle is not None
            or result.batch_unique_id is not None
        ):
            return self._command(request, result)
        shape = self._shape
        if shape is None or self._shape_ext is not self._checks.ext:
            shape = self._shape = self._make_shape()
        values = (
            result.log_offset, result.queue_id, result.queue_offset, result.unique_id.encode(),
            request.opaque,
        )  # fmt: skip
        return ShapedResponse(shape, values)

    def _command(self, request: Command, result: SendResult) -> Command:
        message_id = result.message_ids
        if message_id is None:
            message_id = encode_offset_id(self._store_host, result.log_offset)
        ext = {
            **self._checks.ext,
            "msgId": message_id,
            "queueId": str(result.queue_id),
            "queueOffset": str(result.queue_offset),
            "transactionId": result.unique_id,
        }
        if result.batch_unique_id is not None:
            ext["batchUniqId"] = result.batch_unique_id
        if result.recall_handle is not None:
            ext["recallHandle"] = result.recall_handle
        return response_to(request, result.code, ext=ext)

    def _make_shape(self) -> ResponseShape:
        self._shape_ext = self._checks.ext
        fields: dict[str, str | Slot] = {
            **self._checks.ext,
            "msgId": hex_slot(self._store_host.hex().upper()),
            "queueId": DECIMAL,
            "queueOffset": DECIMAL,
            "transactionId": TEXT,
        }
        return ResponseShape(_SUCCESS, fields)
