"""Send-back (36): a consumer returns a message that it could not process.

The request names a message by its place in the log. A copy of it, with one more reconsume time,
goes to the retry topic of the group, delayed by the level that the consumer asks for, or to the
dead letters of the group: :func:`skylark.core.retry_policy.decide_retry`.

The copy has the properties of the message and RETRY_TOPIC (the topic that it comes from, also after
many retries), ORIGIN_MESSAGE_ID (the id of the first of all copies), WAIT=false and DELAY (0 for a
dead letter). A retry is then stored as a delayed message
(:mod:`skylark.broker.send.message_policy`).

**A copy that does not fit.** The copy is not held to settings, only to the record format
(:mod:`skylark.broker.send.own_copies`). A retry that has too many properties even without the
optional ones becomes a dead letter, which has fewer. If that does not fit either, the message stays
where it is and is counted, and the result is a success: after an error the consumer would hold the
message for 5 s, try it again and send it back again, without end. The exception is an inner batch.
No copy of it can be made, but its consumer publishes a retry of the one message.

**Durability.** The consumer forgets the message when it has the result. So the result waits for the
disk with SYNC_FLUSH, and for slaves where a master has to, although Java obeys the WAIT=false here.
If they take too long it is a success nevertheless, as in Java: after an error, consumers send a
second copy. The result also waits until a topic that was created is saved. A crash before the
result may leave the copy behind, and the consumer gets the message twice.

The queues of a retry topic are taken in turn; Java draws one at random. Counterpart of Java's
``AbstractSendMessageProcessor.consumerSendMsgBack``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from skylark.broker.api import (
    Peer,
    Pending,
    PutService,
    SendBackRequest,
    SendBackResult,
    result_of,
)
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter, copy_of
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import Done
from skylark.broker.send.send_checks import OnDeadLetter
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
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import V3_4_9, Perm, RequestCode, TopicSysFlag
from skylark.wire.command import Command
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import ConsumerSendMsgBackRequestHeader
from skylark.wire.layout import FLAG_INNER_BATCH
from skylark.wire.message import MessageRecord, RecordError, decode_record

_RETRY_TOPIC: Final = names.PROPERTY_RETRY_TOPIC.encode()
Outcome: TypeAlias = SendBackResult | Pending[SendBackResult]


class SendBackHandlers:
    """The remoting request by which consumers give messages back."""

    def __init__(self, puts: PutService) -> None:
        self._puts = puts

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_cold(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)

    async def send_back(self, connection: Connection, command: Command) -> Command:
        """CONSUMER_SEND_MSG_BACK (36)."""
        header = decode_ext(ConsumerSendMsgBackRequestHeader, command.ext)
        request = SendBackRequest(header, command.version)
        await result_of(self._puts.run(connection, [request])[0])
        return success(command)


@dataclass(eq=False)
class SendBackStep:
    """The part of the pipeline that is about messages which consumers give back."""

    _live: LiveSettings
    _writer: MessageWriter
    _topics: TopicTable
    _groups: GroupTable
    _stats: BrokerStats
    _durability: Durability
    on_dead_letter: OnDeadLetter | None = None
    _turns: count[int] = field(default_factory=count)

    # --- from request to draft --------------------------------------------------------------------

    def draft(self, _peer: Peer, request: SendBackRequest) -> Draft | Done:
        """The copy to be stored; raises BrokerError."""
        header = request.header
        group = self._check(header)
        if group.retry_queue_nums <= 0:
            return Done(SendBackResult())  # the group does not want to try again
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
        queue_id = 0 if decision.is_dead else next(self._turns) % group.retry_queue_nums
        return self._copy(record, header.group, decision, queue_id)

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
        lease = self._writer.store.reader.record(log_offset)
        if lease is not None:
            with lease, contextlib.suppress(RecordError):
                return decode_record(lease.view)
        raise BrokerError(f"look message by offset failed, {log_offset}")

    def _copy(
        self, record: MessageRecord, group: str, decision: RetryDecision, queue_id: int = 0
    ) -> Draft:
        """The copy that was decided upon; creates the dead-letter topic if it is one."""
        topic = dlq_topic(group) if decision.is_dead else retry_topic(group)
        if decision.is_dead:
            self._ensure(topic, queue_count=1)
        draft = copy_of(record, topic, queue_id)
        draft.reconsume_times += 1
        properties = _properties_of_copy(record)
        properties[names.PROPERTY_DELAY] = str(decision.delay_level)
        refused = self._writer.prepare_own(draft, properties, may_wait=not decision.is_dead)
        if refused is not None:
            raise BrokerError(refused.name)
        return draft

    # --- from result to outcome -------------------------------------------------------------------

    def finish(
        self, request: SendBackRequest, draft: Draft, result: PutResult, *, is_durable: bool
    ) -> Outcome:
        """The outcome of a copy that was stored, or not; raises BrokerError."""
        header = request.header
        dead_letters = dlq_topic(header.group)
        is_dead = draft.topic == dead_letters
        if result.status.stored:
            self._count(header.group, draft, result, is_dead)
            outcome = SendBackResult(dead_letters if is_dead else retry_topic(header.group))
            if is_durable:
                return outcome
            return self._durability.when_durable(result, lambda _status: outcome)
        if result.status not in NEVER_STORED or draft.sys_flag & FLAG_INNER_BATCH:
            raise BrokerError(result.status.name)
        if is_dead:
            self._writer.uncopied.add("retry", header.offset, dead_letters, result.status)
            return SendBackResult()
        record = self._find(header.offset)
        dead = self._copy(record, header.group, RetryDecision(RetryAction.DEAD_LETTER))
        return self.finish(request, dead, self._writer.put(dead), is_durable=False)

    def _count(self, group: str, draft: Draft, result: PutResult, is_dead: bool) -> None:
        origin = names.find_raw_property(draft.properties, _RETRY_TOPIC)
        assert origin is not None, "every copy has it"
        origin_topic = origin.decode()
        back = self._stats.send_backs[origin_topic, group]
        back.count += 1
        back.times += 1
        if draft.topic == SCHEDULE_TOPIC:
            put = self._stats.topic_puts[SCHEDULE_TOPIC]
            put.count += 1
            put.size += result.size
            put.times += 1
            self._stats.delayed(draft.queue_id, 1, result.size)
        if is_dead:
            dead = self._stats.dead_letters["null", origin_topic, group, "SEND_BACK_TO_DLQ"]
            dead.count += 1
            dead.times += 1
        if is_dead and self.on_dead_letter is not None:
            self.on_dead_letter(group, origin_topic)


def _properties_of_copy(record: MessageRecord) -> dict[str, str]:
    """The properties of the copy, without its delay."""
    properties = dict(record.properties)
    properties.pop(names.PROPERTY_CRC32, None)
    properties.setdefault(names.PROPERTY_RETRY_TOPIC, record.topic)
    if not properties.get(names.PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
        properties[names.PROPERTY_ORIGIN_MESSAGE_ID] = record.offset_id
    properties[names.PROPERTY_WAIT] = "false"
    return properties
