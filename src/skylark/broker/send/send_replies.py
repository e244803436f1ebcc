"""Builds the SEND replies of the remoting protocol from the results of sends."""

from __future__ import annotations

from skylark.broker.api import SendResult
from skylark.broker.send.send_checks import SendChecks
from skylark.core.hashing import encode_offset_id
from skylark.store.store_results import PutStatus
from skylark.wire.command import Command, response_to
from skylark.wire.frame_template import FrameTemplate

_SUCCESS = int(PutStatus.PUT_OK.code)


class SendReplies:
    """Encodes results; what is the same in all replies to single messages is encoded once."""

    def __init__(self, checks: SendChecks, store_host: bytes) -> None:
        self._checks = checks
        self._store_host = store_host
        self._host_hex = store_host.hex().upper()
        self._template: FrameTemplate | None = None
        self._template_ext: dict[str, str] | None = None  # what it was made for

    def write(self, request: Command, result: SendResult, as_frame: bool) -> Command | bytes:
        """The reply to a send, as a frame if that is wanted and the result is an ordinary one."""
        if (
            as_frame
            and result.code == _SUCCESS
            and result.message_ids is None
            and result.recall_handle is None
            and result.batch_unique_id is None
            and (id_text := result.unique_id.encode()).isalnum()
        ):
            template = self._template
            if template is None or self._template_ext is not self._checks.ext:
                template = self._make_template()
            return template.frame(
                (result.log_offset, result.queue_id, result.queue_offset, id_text, request.opaque)
            )
        return self._command(request, result)

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

    def _make_template(self) -> FrameTemplate:
        example = self._command(Command(), SendResult(_SUCCESS, 0, 0, 0, "<key>", "<id>"))
        example.ext = (example.ext or {}) | {"queueId": "<queue>", "queueOffset": "<offset>"}
        forms = {
            "<id>": f"{self._host_hex}%016X",
            "<queue>": "%d",
            "<offset>": "%d",
            "<key>": "%b",
        }
        self._template_ext = self._checks.ext
        self._template = FrameTemplate(example, forms)
        return self._template
