"""Builds the SEND replies of the remoting protocol from the results of sends."""

from __future__ import annotations

from typing import Final

from skylark.broker.api import SendResult
from skylark.broker.send.send_checks import SendChecks
from skylark.core.hashing import encode_offset_id
from skylark.store.store_results import PutStatus
from skylark.wire.command import Command, response_to
from skylark.wire.command_codec import (
    DECIMAL,
    TEXT,
    ResponseShape,
    ShapedResponse,
    Slot,
    hex_slot,
)

_SUCCESS: Final = int(PutStatus.PUT_OK.code)


class SendReplies:
    """Encodes results; what is the same in all replies to single messages is encoded once."""

    def __init__(self, checks: SendChecks, store_host: bytes) -> None:
        self._checks = checks
        self._store_host = store_host
        self._shape: ResponseShape | None = None
        self._shape_ext: dict[str, str] | None = None  # what it was made for

    def write(self, request: Command, result: SendResult) -> Command | ShapedResponse:
        """The reply to a send."""
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
