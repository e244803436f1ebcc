"""What the answer to a send says, once the message is stored."""

from __future__ import annotations

from functools import partial

import msgspec

from skylark.broker.send.put_replies import PutAnswers
from skylark.broker.send.send_checks import SendChecks
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.command import Command, response_to
from skylark.wire.command_codec import (
    DECIMAL,
    TEXT,
    ResponseShape,
    ShapedResponse,
    Slot,
    hex_slot,
    write,
)


class Sent(msgspec.Struct, gc=False):
    """A message, or a batch, that is stored."""

    request: Command
    message_id: str
    queue_id: int
    queue_offset: int
    unique_id: str | None
    batch_unique_id: str | None = None
    recall_handle: str | None = None


class SentAnswers:
    """Words the answers to sends, and lets them leave when they may."""

    def __init__(self, checks: SendChecks, answers: PutAnswers, store_host: bytes) -> None:
        self._checks = checks
        self._answers = answers
        self._host_hex = store_host.hex().upper()
        self._shape: ResponseShape | None = None
        self._shape_ext: dict[str, str] | None = None  # what it was made for

    def when_durable(
        self, connection: Connection, sent: Sent, result: PutResult, properties: str
    ) -> Answer:
        """The answer, if it may leave now; otherwise it is sent later."""
        answer = partial(self.answer, sent)
        return self._answers.when_durable(connection, sent.request, result, properties, answer)

    def answer(self, sent: Sent, status: PutStatus) -> Command:
        """The answer as it is when the message is as safe as ``status`` says."""
        ext = {
            **self._checks.ext,
            "msgId": sent.message_id,
            "queueId": str(sent.queue_id),
            "queueOffset": str(sent.queue_offset),
        }
        if sent.unique_id is not None:
            ext["transactionId"] = sent.unique_id
        if sent.batch_unique_id is not None:
            ext["batchUniqId"] = sent.batch_unique_id
        if sent.recall_handle is not None:
            ext["recallHandle"] = sent.recall_handle
        return response_to(sent.request, status.code, ext=ext)

    def frame(self, request: Command, queue_id: int, result: PutResult, unique_id: str) -> bytes:
        """The frame of :meth:`answer` to a message that is stored as safely as it must be."""
        shape = self._shape
        if shape is None or self._shape_ext is not self._checks.ext:
            shape = self._shape = self._make_shape()
        values = (
            result.log_offset, queue_id, result.queue_offset, unique_id.encode(), request.opaque
        )  # fmt: skip
        return write(ShapedResponse(shape, values))

    def _make_shape(self) -> ResponseShape:
        self._shape_ext = self._checks.ext
        fields: dict[str, str | Slot] = {
            **self._checks.ext,
            "msgId": hex_slot(self._host_hex),
            "queueId": DECIMAL,
            "queueOffset": DECIMAL,
            "transactionId": TEXT,
        }
        return ResponseShape(PutStatus.PUT_OK.code, fields)
