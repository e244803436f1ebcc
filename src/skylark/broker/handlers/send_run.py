"""Sends that came together: the plain ones are checked here, and answered when they are stored.

Hot: this is the way of nearly every message of a busy producer. *Plain* is a message to an ordinary
topic whose property string is stored as it is (:func:`skylark.broker.rewriting.plain_unique_id`),
and a plain half message (:mod:`skylark.broker.transaction.plain_halves`). Everything else in a run
takes its turn through :mod:`skylark.broker.handlers.send`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from skylark.broker.handlers.put_answers import PutAnswers
from skylark.broker.handlers.put_runs import Plain
from skylark.broker.handlers.send_checks import SendChecks, send_header
from skylark.broker.handlers.sent import Sent, SentAnswers
from skylark.broker.message_writer import MessageWriter
from skylark.broker.rewriting import plain_unique_id
from skylark.broker.stats import BrokerStats
from skylark.broker.topics import TopicTable
from skylark.broker.transaction.plain_halves import PlainHalf, read_plain_half
from skylark.broker.transaction.service import TransactionService
from skylark.core.errors import BrokerError, RemoteProtocolError
from skylark.core.hashing import encode_offset_id
from skylark.core.names import RETRY_PREFIX, TIMER_TOPIC
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer
from skylark.store.commit_log import Draft
from skylark.store.results import PutResult, PutStatus
from skylark.wire.command import Command, response_to
from skylark.wire.properties import PROPERTY_UNIQ_KEY, find_property

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
        self.alone = send

    def follow(self) -> None:
        self._checks.follow()

    def plain(self, connection: Connection, request: Command) -> _Plain | None:
        """The message of a request, ready to be stored; None if it is not plain."""
        try:
            return self._plain(connection, request)
        except (BrokerError, RemoteProtocolError):
            return None  # worded by the other way

    def _plain(self, connection: Connection, request: Command) -> _Plain | None:
        body = request.body
        header = send_header(request)
        text = header.properties
        if not body or not text or header.batch:
            return None
        note: str | PlainHalf | None = plain_unique_id(text) or self._plain_half(text)
        if note is None:
            return None
        name = header.topic
        topic = self._checks.topic_of(connection, header)
        if topic.attributes or name.startswith(RETRY_PREFIX) or name == TIMER_TOPIC:
            return None
        draft = self._checks.draft(connection, header, topic, body)
        if isinstance(note, str):
            draft.properties = (text + self._checks.added_text).encode()
        else:
            note.prepare(draft, self._checks.added_text)
        return draft, request, note

    def _plain_half(self, text: str) -> PlainHalf | None:
        unique_id = find_property(text, PROPERTY_UNIQ_KEY)
        if unique_id is None or self._checks.config.reject_transaction_message:
            return None
        return read_plain_half(text, unique_id)

    def stored(
        self,
        connection: Connection,
        plain: Sequence[_Plain],
        results: Sequence[PutResult],
        as_frames: bool,
    ) -> list[Answer | bytes]:
        self._count(plain, results)
        leaves_now = self._answers.leave_now(list(results))
        answers: list[Answer | bytes] = []
        for (draft, request, note), result in zip(plain, results, strict=True):
            queue_id = draft.queue_id
            if isinstance(note, str):
                unique_id = note
            else:
                unique_id, queue_id = note.unique_id, note.queue_id
                if result.status.stored:
                    self._transactions.plain_half_stored(note, note.topic, result)
            answer: Answer | bytes | None = None
            if leaves_now and as_frames and result.status is _PUT_OK:
                answer = self._sent_answers.frame(request, queue_id, result, unique_id)
            if answer is None:
                sent = Sent(request, "", queue_id, result.queue_offset, unique_id)
                answer = self._answer(connection, draft, sent, result, leaves_now)
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

    def _count(self, plain: Sequence[_Plain], results: Sequence[PutResult]) -> None:
        if self._stats.on_put is not None:  # who wants to know of each
            for (draft, _, _), result in zip(plain, results, strict=True):
                if result.size:
                    is_system = self._topics.is_system(draft.topic)
                    self._stats.put(draft.topic, 1, result.size, is_system=is_system)
            return
        totals: dict[str, list[int]] = {}
        for (draft, _, _), result in zip(plain, results, strict=True):
            if result.size:
                total = totals.get(draft.topic)
                if total is None:
                    totals[draft.topic] = [1, result.size]
                else:
                    total[0] += 1
                    total[1] += result.size
        for topic, (count, size) in totals.items():
            is_system = self._topics.is_system(topic)
            self._stats.put(topic, count, size, is_system=is_system, times=count)
