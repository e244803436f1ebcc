"""Takes back messages that a consumer could not consume (36): to be tried again, or dead letters.

The request names a message by its place in the log. A copy of it, tried once more often, goes to
the retry topic of the group, delayed by the level that the consumer asks for, or to the dead
letters of the group: :func:`skylark.core.retry_policy.decide_retry`.

The copy has the properties of the message and RETRY_TOPIC (the topic that it comes from, also after
many retries), ORIGIN_MESSAGE_ID (the id of the first of all copies), WAIT=false and DELAY (0 for a
dead letter). A retry is then stored as a delayed message
(:mod:`skylark.broker.send.message_policy`).

**A copy that does not fit.** The copy is not held to settings, only to the record format
(:mod:`skylark.broker.send.own_copies`). A retry that has too many properties even without the
optional ones becomes a dead letter, which has fewer. If that does not fit either, the message stays
where it is and is counted, and the consumer is told that it was taken back: it could do no better
itself, would hold the message for 5 s, try it again and come back, for ever. The exception is an
inner batch. No copy of it can be made, but its consumer publishes a retry of the one message.

The consumer forgets the message when it gets the answer. So that waits for the disk with
SYNC_FLUSH, and for slaves where a master has to, although Java takes the WAIT=false seriously here.
If they take too long it is a success nevertheless, as in Java: after an error, consumers send a
second copy. The answer also waits until a topic that was created is saved. A crash before the
answer may leave the copy behind, and the consumer gets the message twice. The queues of a retry
topic are taken in turn; Java draws one.

Counterpart of Java's ``AbstractSendMessageProcessor.consumerSendMsgBack``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import count

from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter, copy_of
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.send.put_outcome import Durability
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import (
    BrokerError,
    NoPermissionError,
    SubscriptionGroupNotExistError,
)
from skylark.core.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from skylark.core.retry_policy import RetryAction, RetryDecision, decide_retry
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import FAQ_HINT, success
from skylark.store.commit_log import Draft
from skylark.store.config import BrokerRole
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import V3_4_9, Perm, RequestCode, TopicSysFlag
from skylark.wire.command import Command
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import ConsumerSendMsgBackRequestHeader
from skylark.wire.layout import FLAG_INNER_BATCH
from skylark.wire.message import MessageRecord, RecordError, decode_record

#: Called for each dead letter, with the group and the topic that the message was first sent to.
OnDeadLetter = Callable[[str, str], None]


class SendBackHandlers:
    """The request by which consumers give messages back."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        topics: TopicTable,
        groups: GroupTable,
        stats: BrokerStats,
        durability: Durability,
        *,
        on_dead_letter: OnDeadLetter | None = None,
    ) -> None:
        self._live = live
        self._writer = writer
        self._reader = writer.store.reader
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._durability = durability
        self._on_dead_letter = on_dead_letter
        self._turns = count()

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_cold(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)

    async def send_back(self, _connection: Connection, request: Command) -> Command:
        """CONSUMER_SEND_MSG_BACK (36)."""
        header = decode_ext(ConsumerSendMsgBackRequestHeader, request.ext)
        group = self._check(header)
        if group.retry_queue_nums <= 0:
            return success(request)  # the group does not want to try again
        retries = self._ensure(
            retry_topic(header.group),
            queue_count=group.retry_queue_nums,
            sys_flag=TopicSysFlag.UNIT_SUB if header.unit_mode else 0,
        )
        if not retries.perm & Perm.WRITE:
            raise NoPermissionError(f"the topic[{retries.topic_name}] sending message is forbidden")
        record = self._find(header.offset)
        times_max = group.retry_max_times
        if request.version >= V3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        decision = decide_retry(
            record.reconsume_times + 1, times_max, delay_level=header.delay_level
        )
        status = await self._put_copy(header, group, record, decision)
        is_batch = bool(record.sys_flag & FLAG_INNER_BATCH)
        if status in NEVER_STORED and not is_batch and not decision.is_dead:
            decision = RetryDecision(RetryAction.DEAD_LETTER)
            status = await self._put_copy(header, group, record, decision)
        if status in NEVER_STORED and not is_batch:
            topic = dlq_topic(header.group)
            self._writer.uncopied.add("retry", record.log_offset, topic, status)
        elif not status.stored:  # where it is less safe than wanted, a second copy does not help
            raise BrokerError(status.name)
        await self._durability.topics_saved()
        return success(request)

    async def _put_copy(
        self,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        record: MessageRecord,
        decision: RetryDecision,
    ) -> PutStatus:
        """Store the copy that was decided upon, and count it."""
        is_dead = decision.is_dead
        if is_dead:
            self._ensure(dlq_topic(header.group), queue_count=1)
        properties = _properties_of_copy(record)
        properties[names.PROPERTY_DELAY] = str(decision.delay_level)
        draft = self._draft(header, group, record, is_dead)
        result, status = await self._writer.put_own_safely(draft, properties, may_wait=not is_dead)
        if status.stored:
            origin_topic = properties[names.PROPERTY_RETRY_TOPIC]
            self._count(header.group, origin_topic, draft, result, is_dead)
        return status

    def _check(self, header: ConsumerSendMsgBackRequestHeader) -> SubscriptionGroupConfig:
        config = self._live.current
        if config.store.broker_role is BrokerRole.SLAVE:
            raise BrokerError(f"no master available along with {config.broker_ip1}")
        group = self._groups.find(header.group)
        if group is None:
            raise SubscriptionGroupNotExistError(
                f"subscription group not exist, {header.group} {FAQ_HINT}"
            )
        if not config.broker_permission & Perm.WRITE:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        return group

    def _ensure(self, name: str, *, queue_count: int, sys_flag: int = 0) -> TopicConfig:
        topic = self._topics.ensure(name, queue_count=queue_count, sys_flag=sys_flag)
        if topic is None:
            raise BrokerError(f"topic[{name}] not exist")
        return topic

    def _find(self, log_offset: int) -> MessageRecord:
        lease = self._reader.record(log_offset)
        if lease is not None:
            with lease, contextlib.suppress(RecordError):
                return decode_record(lease.view)
        raise BrokerError(f"look message by offset failed, {log_offset}")

    def _draft(
        self,
        header: ConsumerSendMsgBackRequestHeader,
        group: SubscriptionGroupConfig,
        record: MessageRecord,
        is_dead: bool,
    ) -> Draft:
        topic, queue_id = dlq_topic(header.group), 0
        if not is_dead:
            topic = retry_topic(header.group)
            queue_id = next(self._turns) % group.retry_queue_nums
        draft = copy_of(record, topic, queue_id)
        draft.reconsume_times += 1
        return draft

    def _count(
        self, group: str, origin_topic: str, draft: Draft, result: PutResult, is_dead: bool
    ) -> None:
        back = self._stats.send_backs[origin_topic, group]
        back.count += 1
        back.times += 1
        if draft.topic == SCHEDULE_TOPIC:
            put = self._stats.topic_puts[SCHEDULE_TOPIC]
            put.count += 1
            put.size += result.size
            put.times += 1
        if is_dead and self._on_dead_letter is not None:
            self._on_dead_letter(group, origin_topic)


def _properties_of_copy(record: MessageRecord) -> dict[str, str]:
    """What a message has that comes back, but for its delay."""
    properties = dict(record.properties)
    properties.pop(names.PROPERTY_CRC32, None)
    properties.setdefault(names.PROPERTY_RETRY_TOPIC, record.topic)
    if not properties.get(names.PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
        properties[names.PROPERTY_ORIGIN_MESSAGE_ID] = record.offset_id
    properties[names.PROPERTY_WAIT] = "false"
    return properties
