"""Sends that came together: the plain ones are checked here, and answered when they are stored.

Hot: this is the way of nearly every message of a busy producer. *Plain* is a message to an ordinary
topic whose property string is stored as it is
(:class:`skylark.broker.send.message_policy.PlainIds`), and a plain half message
(:mod:`skylark.broker.transaction.recent_halves`). Everything else in a run takes its turn through
:mod:`skylark.broker.send.handlers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from skylark.broker.send.message_policy import PlainIds
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_replies import PutAnswers
from skylark.broker.send.request_runs import Plain
from skylark.broker.send.send_checks import SendChecks, send_header
from skylark.broker.send.send_replies import Sent, SentAnswers
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.recent_halves import PlainHalf, read_plain_half
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.errors import BrokerError, RemoteProtocolError
from skylark.core.hashing import encode_offset_id
from skylark.core.names import RETRY_PREFIX, TIMER_TOPIC
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer, error_response
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.command import Command, response_to

#: A message that can be stored, its request, and its unique id or the half message it is.
_Plain: TypeAlias = Plain[str | PlainHalf]
_PUT_OK = PutStatus.PUT_OK


class PlainSends:
    """The part of runs that are sends (10, 310)."""

    def __init__(
        self,
        checks: SendChecks,
        answers: PutAnswers,
        sent_answers: SentAnswers,
        writer: MessageWriter,
        topics: TopicTable,
        stats: BrokerStats,
        transactions: TransactionService,
        *,
        send: Callable[[Connection, Command], Answer],
    ) -> None:
        """``send`` takes messages that are not plain, and words the refusal of bad ones."""
        self._checks = checks
        self._answers = answers
        self._sent_answers = sent_answers
        self._store = writer.store
        self._topics = topics
        self._stats = stats
        self._transactions = transactions
        self._plain_ids = PlainIds()
        self.alone = send

    def follow(self) -> None:
        self._checks.follow()

    def plain(self, connection: Connection, request: Command) -> _Plain | None:
        """The message of a request, ready to be stored; None if it is not plain."""
        body = request.body
        try:
            header = send_header(request)
            text = header.properties
            if not body or not text or header.batch:
                return None
            note: str | PlainHalf | None = self._plain_ids.find(text)
            if note is None and not self._checks.config.reject_transaction_message:
                note = read_plain_half(text)
            if note is None:
                return None
            topic = self._checks.topic_of(connection, header)
        except (BrokerError, RemoteProtocolError):
            return None  # worded by the other way
        name = header.topic
        if topic.attributes or name.startswith(RETRY_PREFIX) or name == TIMER_TOPIC:
            return None
        draft = self._checks.draft(connection, header, topic, body)
        if isinstance(note, str):
            draft.properties = (text + self._checks.added_text).encode()
        else:
            note.prepare(draft, self._checks.added_text)
        return draft, request, note

    def stored(
        self,
        connection: Connection,
        plain: Sequence[_Plain],
        results: Sequence[PutResult],
        as_frames: bool,
    ) -> list[Answer | bytes]:
        """The answers; what goes wrong with one message is no answer to the others.

        Some of those may wait for the disk already, and are answered when it has them.
        """
        leaves_now = self._answers.leave_now(list(results))
        answers: list[Answer | bytes] = []
        topic, is_system = "", False  # nearly always the same as before
        for (draft, request, note), result in zip(plain, results, strict=True):
            answer: Answer | bytes
            try:
                if isinstance(note, str):
                    unique_id, queue_id = note, draft.queue_id
                else:
                    unique_id, queue_id = note.unique_id, note.queue_id
                    if result.size:
                        self._transactions.plain_half_stored(note, result)
                if result.size:  # it is stored
                    if draft.topic != topic:
                        topic = draft.topic
                        is_system = self._topics.is_system(topic)
                    self._stats.put(topic, 1, result.size, is_system=is_system)
                answer = None
                if leaves_now and as_frames and result.status is _PUT_OK:
                    answer = self._sent_answers.frame(request, queue_id, result, unique_id)
                if answer is None:
                    sent = Sent(request, "", queue_id, result.queue_offset, unique_id)
                    answer = self._answer(connection, draft, sent, result, leaves_now)
            except Exception as error:  # noqa: BLE001 - becomes code 1
                answer = error_response(request, error)
            answers.append(answer)
        return answers

    def _answer(
        self,
        connection: Connection,
        draft: Draft,
        sent: Sent,
        result: PutResult,
        leaves_now: bool,
    ) -> Answer:
        if not result.status.stored:
            error = self._answers.refusal(result.status)
            return response_to(sent.request, error.code, str(error), ext=self._checks.ext.copy())
        sent.message_id = encode_offset_id(self._store.log.store_host, result.log_offset)
        if leaves_now:
            return self._sent_answers.answer(sent, result.status)
        text = draft.properties.decode()
        return self._sent_answers.when_durable(connection, sent, result, text)
