"""Sends: checks a message or batch, makes its draft, and builds its result after the put.

A :class:`~skylark.broker.send.put_pipeline.PutStep`. Header checks are in
:mod:`skylark.broker.send.send_checks`, the meaning of properties in
:mod:`skylark.broker.send.message_policy`, durability and error texts in
:mod:`skylark.broker.send.put_outcome`.

The queue id of a result is the one in the request, or that of the priority, also when the message
is stored in another topic (delay, dead letters); the offset is that of the queue it is stored in.

**Empty bodies** are illegal messages (13), which producers do not send again. Java fails on them
with a null pointer (1), and producers try the next broker, in vain.

**Retry topics.** Consumers send failed messages here when sending them back (36) fails, and orderly
consumers always do. A message that was retried too often, or whose group consumes in order now,
becomes a dead letter of the group.

**Batches** are split: each message gets its own record, queue offset and id. In a topic of type
BatchCQ a queue has one entry per batch, so a batch, which needs a UNIQ_KEY there, is stored
unsplit: one record, one id, and as many queue offsets as it has messages. Other messages to such a
topic are refused. Java stores them, but no consumer can read them.

**Half messages** (TRAN_MSG=true) go to the half queue; the result has their offset there, which the
producer sends with its decision (:mod:`skylark.broker.transaction`).

**Timed messages** have a recall handle in their result (:mod:`skylark.broker.send.recall`).

Counterpart of ``SendMessageProcessor`` and ``AbstractSendMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from skylark.broker.api import Peer, Pending, SendRequest, SendResult
from skylark.broker.groups.queue_locks import QueueLocks
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.send.message_policy import (
    DECISIONS,
    EDITS,
    HALF,
    NORMALISE,
    OF_HALF,
    PropertyScanner,
    delay_level,
    edit_properties,
    is_half,
    take_priority,
    timer_refusal,
)
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability, waits_for_durability
from skylark.broker.send.recall import recall_handle
from skylark.broker.send.send_checks import Extra, OnDeadLetter, SendChecks, SendDraft
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.attributes import CLEANUP_POLICY, COMPACTION, QUEUE_TYPE
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.half_message import drop_half_names, turn_into_half
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.errors import (
    BrokerError,
    MessageIllegalError,
    SubscriptionGroupNotExistError,
)
from skylark.core.hashing import UniqueIdGenerator, join_offset_ids
from skylark.core.names import (
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dlq_topic,
    is_retry_topic,
)
from skylark.core.retry_policy import decide_retry
from skylark.net.success_response import FAQ_HINT
from skylark.store.batch_encoder import places_of
from skylark.store.commit_log import Draft
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.batch import Batch, split_batch
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import V3_4_9
from skylark.wire.headers.send import SendHeader
from skylark.wire.layout import FLAG_TRANSACTION_MASK
from skylark.wire.message import reserve_property_crc

_PUT_OK: Final = PutStatus.PUT_OK
_SUCCESS: Final = int(PutStatus.PUT_OK.code)
_HALF_ITEM: Final = f"{names.PROPERTY_TRAN_MSG}\x01true\x02"
#: Attributes of a topic that restrict the messages it accepts.
_PUT_ATTRIBUTES: Final = ((CLEANUP_POLICY, COMPACTION), (QUEUE_TYPE, "BatchCQ"))


class SendStep:
    """The step of the put pipeline that handles sends."""

    def __init__(
        self,
        checks: SendChecks,
        durability: Durability,
        writer: MessageWriter,
        topics: TopicTable,
        retries: RetryChecks,
        stats: BrokerStats,
        transactions: TransactionService,
        unique_ids: UniqueIdGenerator,
    ) -> None:
        self._checks = checks
        self._durability = durability
        self._writer = writer
        self._store = writer.store
        self._topics = topics
        self._retries = retries
        self._stats = stats
        self._transactions = transactions
        self._unique_ids = unique_ids
        self._scan = PropertyScanner().scan
        self._counted_topic, self._is_system = "", False  # cache of the last topic

    # --- from request to draft --------------------------------------------------------------------

    def draft(self, peer: Peer, request: SendRequest) -> Draft:
        """Check a send and draft its message; raises BrokerError."""
        header, body, checks = request.header, request.body, self._checks
        if not body:
            raise self._illegal("the message has no body")
        topic = checks.topic_of(peer, header)
        if header.batch:
            return self._draft_batch(peer, header, topic, body)
        text = header.properties or ""
        unique_id, actions = self._scan(text)
        draft = checks.draft(peer, header, topic, body)
        name = header.topic
        if (
            (actions and actions & DECISIONS and not _is_simple_half(text, actions))
            or (topic.attributes and _changes_puts(topic))
            or name.startswith(RETRY_PREFIX)
            or name == TIMER_TOPIC
        ):
            self._rewrite(request, draft, topic)
            return draft
        if text and text[-1] != "\x02":  # Java clients 4.9.2 to 5.1.4 leave it out
            text += "\x02"
        if unique_id is None:
            unique_id = self._unique_ids.next_id()
            text = f"{text}{names.PROPERTY_UNIQ_KEY}\x01{unique_id}\x02"
        draft.unique_id = unique_id
        if actions and actions & EDITS:
            text = edit_properties(text, checks.added_to_sends)
        else:
            text += checks.added_text
        draft.properties = text.encode()
        if actions & HALF:
            self._turn_into_half(draft, is_simple=True)
        return draft

    def _rewrite(self, request: SendRequest, draft: SendDraft, topic: TopicConfig) -> None:
        """Carry out the actions of the properties and of the topic, in Java's order."""
        header, checks = request.header, self._checks
        properties = names.parse_properties(header.properties or "")
        if header.topic == TIMER_TOPIC:
            self._check_destination(properties)
        properties.pop(names.PROPERTY_POP_CK, None)
        if is_retry_topic(header.topic):
            self._retries.divert_dead_letter(request, draft, properties)
        priority = take_priority(properties)
        if priority is not None:
            draft.queue_id = max(0, min(priority, topic.write_queue_nums - 1))
            draft.requested_queue_id = draft.queue_id
        draft.unique_id = properties.get(names.PROPERTY_UNIQ_KEY) or self._unique_ids.next_id()
        properties[names.PROPERTY_UNIQ_KEY] = draft.unique_id
        self._check_topic_type(topic, properties)
        properties.update(checks.added_to_sends)
        becomes_half = is_half(properties) and not (
            draft.reconsume_times > 0 and delay_level(properties) > 0
        )
        if becomes_half and checks.config.reject_transaction_message:
            raise checks.transactions_forbidden()
        if names.PROPERTY_INNER_NUM in properties:
            raise self._illegal()
        if becomes_half:
            delay_level(properties)  # applies at the commit, but an invalid one is refused now
            drop_half_names(properties)
            draft.properties = names.encode_properties(properties).encode()
            self._turn_into_half(draft, is_simple=False)
            return
        refused = self._writer.diverter.divert(draft, properties)
        if refused is not None:
            raise timer_refusal(refused, checks.config) or self._durability.refusal(refused)
        draft.properties = names.encode_properties(properties).encode()
        if draft.topic == TIMER_TOPIC:
            handle = recall_handle(properties, checks.config.broker_name)
            draft.extra = Extra(recall_handle=handle)

    def _turn_into_half(self, draft: SendDraft, *, is_simple: bool) -> None:
        """``is_simple``: no other property decides anything, now or at the commit."""
        if self._checks.config.reject_transaction_message:
            raise self._checks.transactions_forbidden()
        extra = draft.extra = Extra(half_of=draft.topic)
        final_size = turn_into_half(draft, draft.unique_id)
        if is_simple:
            extra.final_size = final_size

    def _illegal(self, hint: str | None = None) -> BrokerError:
        return self._durability.refusal(PutStatus.MESSAGE_ILLEGAL, hint)

    def _check_topic_type(self, topic: TopicConfig, properties: Mapping[str, str]) -> None:
        if (
            topic.attributes.get(CLEANUP_POLICY) == COMPACTION
            and names.PROPERTY_KEYS not in properties
        ):
            raise MessageIllegalError("Required message key is missing")
        if topic.attributes.get(QUEUE_TYPE) == "BatchCQ":
            raise self._illegal(
                f"topic {topic.topic_name} is of type BatchCQ, which accepts batches only"
            )

    def _check_destination(self, properties: Mapping[str, str]) -> None:
        """Refuse a message to the timer topic whose destination queue does not exist.

        Java accepts any destination, so that a client could create any number of queues.
        """
        topic = properties.get(names.PROPERTY_REAL_TOPIC)  # the timer skips messages without one
        queue_id = properties.get(names.PROPERTY_REAL_QID, "")
        if topic is not None and not self._topics.has_queue(topic, queue_id):
            raise self._illegal(
                f"{TIMER_TOPIC} accepts messages for existing queues only; for a timed message,"
                " send to its own topic with TIMER_DELIVER_MS",
            )

    # --- batches ----------------------------------------------------------------------------------

    def _draft_batch(
        self, peer: Peer, header: SendHeader, topic: TopicConfig, body: bytes
    ) -> Draft:
        if is_retry_topic(header.topic):
            raise MessageIllegalError(f"batch request does not support retry group {header.topic}")
        if (
            len(body) > self._store.config.max_message_size
            or header.sys_flag & FLAG_TRANSACTION_MASK
        ):
            raise self._illegal()
        batch = split_batch(body, size_max=len(body))
        if header.topic == TIMER_TOPIC:
            for properties in batch.properties:
                self._check_destination(names.parse_properties(properties))
        text = header.properties or ""
        made = self._checks.draft(peer, header, topic, body)
        made.unique_id = names.find_property(text, names.PROPERTY_UNIQ_KEY) or ""
        if topic.attributes.get(QUEUE_TYPE) == "BatchCQ":
            return self._draft_inner_batch(made, text, batch)
        made.unique_id = made.unique_id or self._unique_ids.next_id()
        made.properties = text.encode()
        made.batch = batch
        made.extra = Extra()
        return made

    def _draft_inner_batch(self, made: SendDraft, text: str, batch: Batch) -> Draft:
        """A batch that is stored unsplit."""
        properties = names.parse_properties(text)
        if names.PROPERTY_UNIQ_KEY not in properties:
            raise self._illegal(
                f"a batch to topic {made.topic}, which is of type BatchCQ, needs a UNIQ_KEY"
            )
        if delay_level(properties) > 0:
            raise self._illegal()
        for name in (names.PROPERTY_INNER_BASE, names.PROPERTY_INNER_NUM, names.PROPERTY_POP_CK):
            properties.pop(name, None)
        properties.update(self._checks.added_to_sends)
        made.properties = names.encode_properties(properties).encode()
        made.inner_count = len(batch)
        made.extra = Extra(batch_unique_id=made.unique_id)
        return made

    # --- from result to outcome -------------------------------------------------------------------

    def finish(
        self, _request: SendRequest, draft: SendDraft, result: PutResult, *, is_durable: bool
    ) -> SendResult | Pending[SendResult] | Exception:
        """Count the message, and build its result."""
        if not result.size:
            return self._durability.refusal(result.status)
        topic = draft.topic
        if topic != self._counted_topic:
            self._counted_topic, self._is_system = topic, self._topics.is_system(topic)
        self._stats.put(topic, result.message_count, result.size, is_system=self._is_system)
        if topic == SCHEDULE_TOPIC:
            self._stats.delayed(draft.queue_id, result.message_count, result.size)
        self._stats.sent(topic, draft.requested_queue_id, self._writer.put_ms)
        sent = SendResult(
            _SUCCESS,
            result.log_offset,
            draft.requested_queue_id,
            result.queue_offset,
            draft.unique_id,
        )
        if draft.extra is not None:
            self._finish_special(draft, draft.extra, result, sent)
        if is_durable and result.status is _PUT_OK:
            return sent
        return self._when_durable(sent, draft, result)

    def _finish_special(
        self, draft: SendDraft, extra: Extra, result: PutResult, sent: SendResult
    ) -> None:
        """Complete the result of a half message, dead letter, timed message or batch."""
        if extra.half_of is not None:
            self._transactions.record_half(draft, extra.half_of, extra.final_size, result)
        if extra.dead_letter_of is not None and self._retries.on_dead_letter is not None:
            self._retries.on_dead_letter(*extra.dead_letter_of)
        if draft.batch is not None:
            sent.message_ids = batch_ids(self._store, result, draft.batch)
        sent.batch_unique_id = extra.batch_unique_id
        sent.recall_handle = extra.recall_handle

    def _when_durable(
        self, sent: SendResult, draft: SendDraft, result: PutResult
    ) -> SendResult | Pending[SendResult]:
        def outcome(status: PutStatus) -> SendResult:
            sent.code = status.code
            return sent

        wait = waits_for_durability(draft.properties)
        return self._durability.when_durable(result, outcome, wait=wait)


@dataclass(eq=False)
class RetryChecks:
    """Decides which messages to retry topics become dead letters."""

    _groups: GroupTable
    _topics: TopicTable
    _locks: QueueLocks
    steady_ms: Callable[[], int]  # the clock of the queue locks (see ``client_liveness``)
    on_dead_letter: OnDeadLetter | None = None

    def divert_dead_letter(
        self, request: SendRequest, draft: SendDraft, properties: dict[str, str]
    ) -> None:
        """Turn a message to a retry topic into a dead letter if it has no retries left."""
        header = request.header
        name = header.topic.removeprefix(RETRY_PREFIX).partition("+")[0]
        group = self._groups.find(name)
        if group is None:
            raise SubscriptionGroupNotExistError(f"subscription group not exist, {name} {FAQ_HINT}")
        times_max = group.retry_max_times
        if request.version >= V3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        is_ordered = self._locks.holds_any(name, self.steady_ms())
        if decide_retry(draft.reconsume_times, times_max, is_ordered=is_ordered).is_dead:
            properties[names.PROPERTY_DELAY] = "-1"
            draft.topic, draft.queue_id = dlq_topic(name), 0
            if self._topics.ensure(draft.topic, queue_count=1) is None:
                raise BrokerError(f"topic[{draft.topic}] not exist")
            origin = properties.get(names.PROPERTY_RETRY_TOPIC, header.topic)
            draft.extra = Extra(dead_letter_of=(name, origin))


def _is_simple_half(text: str, actions: int) -> bool:
    """Whether a message is a half message, and no other property decides anything."""
    return actions & (DECISIONS | OF_HALF | NORMALISE) == HALF and (
        text.startswith(_HALF_ITEM) or f"\x02{_HALF_ITEM}" in text
    )


def _changes_puts(topic: TopicConfig) -> bool:
    """Whether a topic has an attribute that restricts the messages it accepts."""
    attributes = topic.attributes
    return any(attributes.get(name) == value for name, value in _PUT_ATTRIBUTES)


def batch_ids(store: MessageStore, result: PutResult, batch: Batch) -> str:
    """The offset id of each message of a batch, separated by commas.

    Their records have the same size, apart from body and properties.
    """
    if store.config.enabled_append_prop_crc:
        batch = batch.with_properties([reserve_property_crc(each) for each in batch.properties])
    overhead = (result.size - sum(batch.sizes)) // len(batch)
    log_offsets, _ = places_of(batch, overhead, result.log_offset)
    return join_offset_ids(store.log.store_host, log_offsets)
