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
from skylark.wire.frame_template import FrameTemplate


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
        self._template: FrameTemplate | None = None
        self._template_ext: dict[str, str] | None = None  # what it was made for

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

    def frame(
        self, request: Command, queue_id: int, result: PutResult, unique_id: str
    ) -> bytes | None:
        """The whole frame of the answer to a plain message that is safe; None if not that simple.

        What is the same in all of them is encoded once.
        """
        id_text = unique_id.encode()
        if not id_text.isalnum():  # of ASCII, that is
            return None
        template = self._template
        if template is None or self._template_ext is not self._checks.ext:
            template = self._template = self._make_template()
        values = result.log_offset, queue_id, result.queue_offset, id_text, request.opaque
        return template.frame(values)

    def _make_template(self) -> FrameTemplate:
        answer = self.answer(Sent(Command(), "<id>", 0, 0, "<key>"), PutStatus.PUT_OK)
        answer.ext = (answer.ext or {}) | {"queueId": "<queue>", "queueOffset": "<offset>"}
        forms = {
            "<id>": f"{self._host_hex}%016X",
            "<queue>": "%d",
            "<offset>": "%d",
            "<key>": "%b",
        }
        template = FrameTemplate(answer, forms)
        self._template_ext = self._checks.ext
        return template
