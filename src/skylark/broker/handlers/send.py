"""Sends: one message (10, 310) or a batch (320), checked, stored, and answered when that is safe.

Hot: called while the bytes are being read. Plain messages, which are nearly all, take a quicker way
(:mod:`skylark.broker.handlers.send_run`); here are the batches, and single messages of any kind.
Both ways store and answer the same, except that here of a name that occurs twice among the
properties the last item stays, as in Java, and there both do. The checks are in
:mod:`skylark.broker.handlers.send_checks`; when the answer leaves, and how a refusal is worded, in
:mod:`skylark.broker.handlers.put_answers`.

Every answer, refusals included, has the ext fields MSG_REGION and TRACE_ON, except when the request
itself cannot be read. The queue id in the answer is the one that was asked for, or that of the
priority, also when the message went elsewhere (delay, dead letters); the offset is that of the
queue it is in.

**Empty bodies** are illegal messages (13), which producers do not send again. Java fails on them
with a null pointer (1), and producers try the next broker, in vain.

**Retry topics.** Consumers send here what they could not consume, when sending it back (36) fails,
and orderly consumers always do. What has been tried too often, or comes from a group that consumes
in order right now, goes to the dead letters of the group.

**Batches** are taken apart: each message gets a record, a queue offset and an id of its own. Topics
of type BatchCQ are different. Their queues have one entry per batch, so a batch, which needs a
UNIQ_KEY there, is stored as it came: one record, one id, and as many queue offsets as it has
messages. Other messages to such a topic are refused. Java stores them, but nobody can read them.

**Half messages** (TRAN_MSG=true) go to the half queue, whose offset is the one in the answer: the
producer names it when it decides (:mod:`skylark.broker.transaction`).

**Timed messages** are answered with a handle (:mod:`skylark.broker.handlers.recall`).

Answers to ``SendMessageProcessor`` and ``AbstractSendMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skylark.broker.attributes import CLEANUP_POLICY, QUEUE_TYPE
from skylark.broker.groups import GroupTable
from skylark.broker.handlers.batch_ids import batch_ids
from skylark.broker.handlers.put_answers import PutAnswers
from skylark.broker.handlers.put_runs import PutRuns
from skylark.broker.handlers.recall import recall_handle
from skylark.broker.handlers.send_checks import SendChecks, send_header
from skylark.broker.handlers.send_run import PlainSends
from skylark.broker.handlers.sent import Sent, SentAnswers
from skylark.broker.message_writer import MessageWriter
from skylark.broker.order_locks import QueueLocks
from skylark.broker.rewriting import delay_level, take_priority, timer_refusal
from skylark.broker.stats import BrokerStats
from skylark.broker.topics import TopicTable
from skylark.broker.transaction.half import prepare as prepare_half
from skylark.broker.transaction.service import TransactionService
from skylark.core.errors import (
    BrokerError,
    MessageIllegalError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
)
from skylark.core.hashing import UniqueIdGenerator, encode_offset_id
from skylark.core.names import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    dlq_topic,
    is_dlq_topic,
    is_retry_topic,
)
from skylark.net.answers import FAQ_HINT
from skylark.net.connection import Connection
from skylark.net.dispatch import Answer, Dispatcher
from skylark.store.commit_log import Draft
from skylark.store.results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.batch import Batch, split_batch
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import V3_4_9, RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.headers.send import SendHeader
from skylark.wire.layout import FLAG_TRANSACTION_MASK


class SendHandlers:
    """The requests that store messages of producers."""

    def __init__(
        self,
        checks: SendChecks,
        answers: PutAnswers,
        writer: MessageWriter,
        topics: TopicTable,
        groups: GroupTable,
        locks: QueueLocks,
        stats: BrokerStats,
        transactions: TransactionService,
        unique_ids: UniqueIdGenerator,
        *,
        steady_ms: Callable[[], int],
        on_dead_letter: Callable[[str, str], None] | None = None,
    ) -> None:
        """``steady_ms`` is the time that queue locks are given (see ``client_liveness``).

        ``on_dead_letter`` hears of each the group and the topic it came from.
        """
        self._checks = checks
        self._answers = answers
        self._sent_answers = SentAnswers(checks, answers, writer.store.log.store_host)
        self._writer = writer
        self._store = writer.store
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._stats = stats
        self._transactions = transactions
        self._unique_ids = unique_ids
        self._steady_ms = steady_ms
        self._on_dead_letter = on_dead_letter
        self._plain = PlainSends(
            checks,
            answers,
            self._sent_answers,
            writer,
            topics,
            stats,
            transactions,
            send=self.send,
        )
        #: What comes together is stored together; others may join.
        self.put_runs = PutRuns(writer)

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            self.put_runs.add(code, self._plain)
            dispatcher.add_hot(code, self.send, run=self.put_runs.run)
        dispatcher.add_hot(RequestCode.SEND_BATCH_MESSAGE, self.send)

    def send(self, connection: Connection, request: Command) -> Answer:
        """SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320)."""
        checks = self._checks
        checks.follow()
        header = send_header(request)
        body = request.body
        try:
            if not body:
                raise self._answers.refusal(PutStatus.MESSAGE_ILLEGAL, "the message has no body")
            topic = checks.topic_of(connection, header)
            if header.batch:
                return self._send_batch(connection, request, header, topic, body)
            return self._send_one(connection, request, header, topic, body)
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext=checks.ext.copy())

    # --- one message ------------------------------------------------------------------------------

    def _send_one(
        self,
        connection: Connection,
        request: Command,
        header: SendHeader,
        topic: TopicConfig,
        body: bytes,
    ) -> Answer:
        draft = self._checks.draft(connection, header, topic, body)
        queue_id = draft.queue_id
        text = header.properties or ""
        properties = names.parse_properties(text)
        if header.topic == TIMER_TOPIC:
            self._check_destination(properties)
        properties.pop(names.PROPERTY_POP_CK, None)
        if is_retry_topic(header.topic):
            self._look_for_dead_letter(request, header, draft, properties)
        priority = take_priority(properties)
        if priority is not None:
            queue_id = draft.queue_id = max(0, min(priority, topic.write_queue_nums - 1))
        unique_id = self._complete(draft, properties, topic)
        draft.properties = names.encode_properties(properties).encode()
        result = self._writer.put(draft)
        if not result.status.stored:
            raise self._answers.refusal(result.status)
        if draft.topic == HALF_TOPIC:
            self._transactions.half_stored(draft)
        self._count(draft.topic, result)  # where it waits, if it does
        # What a client itself sends to the dead letters does not count, as in Java.
        if self._on_dead_letter and is_retry_topic(header.topic) and is_dlq_topic(draft.topic):
            origin = properties.get(names.PROPERTY_RETRY_TOPIC, header.topic)
            self._on_dead_letter(draft.topic.removeprefix(DLQ_PREFIX), origin)
        sent = Sent(
            request,
            encode_offset_id(self._store.log.store_host, result.log_offset),
            queue_id,
            result.queue_offset,
            unique_id,
        )
        if draft.topic == TIMER_TOPIC:
            sent.recall_handle = recall_handle(properties, self._checks.config.broker_name)
        return self._sent_answers.when_durable(connection, sent, result, text)

    def _check_destination(self, properties: Mapping[str, str]) -> None:
        """A message that goes straight into the timer names its destination itself.

        Java takes any, and so anybody could have queues made without end.
        """
        topic = properties.get(names.PROPERTY_REAL_TOPIC)  # without one, it is passed over
        queue_id = properties.get(names.PROPERTY_REAL_QID, "")
        if topic is not None and not self._topics.has_queue(topic, queue_id):
            raise self._answers.refusal(
                PutStatus.MESSAGE_ILLEGAL,
                f"{TIMER_TOPIC} takes messages for queues that exist; for a timed message,"
                " send to its own topic with TIMER_DELIVER_MS",
            )

    def _look_for_dead_letter(
        self, request: Command, header: SendHeader, draft: Draft, properties: dict[str, str]
    ) -> None:
        """A message to a retry topic may have to go to the dead letters instead."""
        name = header.topic.removeprefix(RETRY_PREFIX).partition("+")[0]
        group = self._groups.find(name)
        if group is None:
            raise SubscriptionGroupNotExistError(f"subscription group not exist, {name} {FAQ_HINT}")
        times_max = group.retry_max_times
        if request.version >= V3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        if draft.reconsume_times > times_max or self._locks.holds_any(name, self._steady_ms()):
            properties[names.PROPERTY_DELAY] = "-1"
            draft.topic, draft.queue_id = dlq_topic(name), 0
            if self._topics.ensure(draft.topic, queue_count=1) is None:
                raise BrokerError(f"topic[{draft.topic}] not exist")

    def _complete(self, draft: Draft, properties: dict[str, str], topic: TopicConfig) -> str:
        """Fill in what is missing, and change what must change; the unique id."""
        config = self._checks.config
        unique_id = properties.get(names.PROPERTY_UNIQ_KEY) or self._unique_ids.next_id()
        properties[names.PROPERTY_UNIQ_KEY] = unique_id
        if (
            topic.attributes.get(CLEANUP_POLICY) == "COMPACTION"
            and names.PROPERTY_KEYS not in properties
        ):
            raise MessageIllegalError("Required message key is missing")
        if topic.attributes.get(QUEUE_TYPE) == "BatchCQ":
            raise self._answers.refusal(
                PutStatus.MESSAGE_ILLEGAL,
                f"topic {topic.topic_name} is of type BatchCQ, which takes batches only",
            )
        properties.update(self._checks.added_to_sends)
        if properties.get(names.PROPERTY_TRAN_MSG, "").lower() == "true" and not (
            draft.reconsume_times > 0 and delay_level(properties) > 0
        ):
            if config.reject_transaction_message:
                raise NoPermissionError(
                    f"the broker[{config.broker_ip1}] sending transaction message is forbidden"
                )
            prepare_half(draft, properties)
        if names.PROPERTY_INNER_NUM in properties:
            raise self._answers.refusal(PutStatus.MESSAGE_ILLEGAL)
        if draft.topic == HALF_TOPIC:  # a delay counts when the message is committed,
            delay_level(properties)  # but one that is no number is refused at once
            return unique_id
        refused = self._writer.diverter.divert(draft, properties)
        if refused is not None:
            raise timer_refusal(refused, config) or self._answers.refusal(refused)
        return unique_id

    # --- batches ----------------------------------------------------------------------------------

    def _send_batch(
        self,
        connection: Connection,
        request: Command,
        header: SendHeader,
        topic: TopicConfig,
        body: bytes,
    ) -> Answer:
        if is_retry_topic(header.topic):
            raise MessageIllegalError(f"batch request does not support retry group {header.topic}")
        if (
            len(body) > self._store.config.max_message_size
            or header.sys_flag & FLAG_TRANSACTION_MASK
        ):
            raise self._answers.refusal(PutStatus.MESSAGE_ILLEGAL)
        batch = split_batch(body, size_max=len(body))
        if header.topic == TIMER_TOPIC:
            for properties in batch.properties:
                self._check_destination(names.parse_properties(properties))
        text = header.properties or ""
        unique_id = names.find_property(text, names.PROPERTY_UNIQ_KEY)
        batch_unique_id = None
        if topic.attributes.get(QUEUE_TYPE) == "BatchCQ":
            batch_unique_id = unique_id
            draft = self._checks.draft(connection, header, topic, body)
            result = self._put_inner_batch(draft, text, topic, batch)
        else:
            draft = self._checks.draft(connection, header, topic, b"")
            draft.properties = text.encode()
            result = self._writer.put_batch(draft, batch)
        if not result.status.stored:
            raise self._answers.refusal(result.status)
        self._count(header.topic, result)
        if batch_unique_id is None:
            ids = batch_ids(self._store, result, batch)
        else:
            ids = encode_offset_id(self._store.log.store_host, result.log_offset)
        sent = Sent(
            request,
            ids,
            draft.queue_id,
            result.queue_offset,
            unique_id or self._unique_ids.next_id(),
            batch_unique_id,
        )
        return self._sent_answers.when_durable(connection, sent, result, text)

    def _put_inner_batch(
        self, draft: Draft, text: str, topic: TopicConfig, batch: Batch
    ) -> PutResult:
        properties = names.parse_properties(text)
        if names.PROPERTY_UNIQ_KEY not in properties:
            raise self._answers.refusal(
                PutStatus.MESSAGE_ILLEGAL,
                f"a batch to topic {topic.topic_name}, which is of type BatchCQ, needs a UNIQ_KEY",
            )
        if delay_level(properties) > 0:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        for name in (names.PROPERTY_INNER_BASE, names.PROPERTY_INNER_NUM, names.PROPERTY_POP_CK):
            properties.pop(name, None)
        properties.update(self._checks.added_to_sends)
        draft.properties = names.encode_properties(properties).encode()
        return self._writer.put_inner_batch(draft, len(batch))

    # --- answers ----------------------------------------------------------------------------------

    def _count(self, topic: str, result: PutResult) -> None:
        self._stats.put(
            topic, result.message_count, result.size, is_system=self._topics.is_system(topic)
        )
