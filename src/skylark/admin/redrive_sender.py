"""Restores the original message of a dead letter and sends it, at most once.

**What is sent.** The stored body, flag, tag, keys, user properties, unique id and born time.
Properties of retries and deliveries are removed (:data:`LEFT_BEHIND`). One property is added:
:data:`REDRIVEN_FROM`, the offset message id of the dead letter.

**At most once.** Before each attempt, a query of the index looks for a message with this unique id
and this property in the destination. So a dead letter is not sent again after a send whose response
was lost. The copy is younger than the dead letter and does not expire before it. On a broker
without an index the query finds nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Session, masters_of
from skylark.admin.errors import NotFoundError
from skylark.admin.message_lookup import by_key
from skylark.client.core.broker_calls import make_request
from skylark.client.core.client_message import MessageExt
from skylark.client.core.route_cache import make_route
from skylark.client.producer.queue_selector import shard_index
from skylark.core.backoff import Backoff
from skylark.core.errors import SkylarkError
from skylark.core.names import AUTO_CREATE_TOPIC, retry_topic, topic_of_pop_retry
from skylark.wire import properties as names
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from skylark.wire.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK, FLAG_MULTI_TAGS
from skylark.wire.message import MessageRecord
from skylark.wire.properties import encode_properties

#: To the original topic, or to the retry topic of the group, where no other group gets it.
Destination: TypeAlias = Literal["topic", "group"]

PRODUCER_GROUP: Final = "SKYLARK_REDRIVE"
REDRIVEN_FROM: Final = "SKYLARK_REDRIVEN_FROM"
ATTEMPTS: Final = 3
REPEAT: Final = Backoff(first_s=0.5, most_s=30.0)
QUEUE_COUNT: Final = 4  # of a topic that a send would create; destinations exist

#: Properties of retries, delays, transactions, pops and of the broker that stored it.
LEFT_BEHIND: Final = frozenset(
    {
        names.PROPERTY_RETRY_TOPIC,
        names.PROPERTY_ORIGIN_MESSAGE_ID,
        names.PROPERTY_ORIGIN_GROUP,
        names.PROPERTY_RECONSUME_TIME,
        names.PROPERTY_MAX_RECONSUME_TIMES,
        names.PROPERTY_CONSUME_START_TIME,
        names.PROPERTY_DLQ_ORIGIN_TOPIC,
        names.PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
        names.PROPERTY_REAL_TOPIC,
        names.PROPERTY_REAL_QID,
        names.PROPERTY_DELAY,
        names.PROPERTY_TIMER_DELAY_SEC,
        names.PROPERTY_TIMER_DELAY_MS,
        names.PROPERTY_TIMER_DELIVER_MS,
        names.PROPERTY_TIMER_OUT_MS,
        names.PROPERTY_TIMER_ENQUEUE_MS,
        names.PROPERTY_TIMER_DEQUEUE_MS,
        names.PROPERTY_TIMER_ROLL_TIMES,
        names.PROPERTY_TIMER_DEL_UNIQKEY,
        names.PROPERTY_TIMER_DELAY_LEVEL,
        names.PROPERTY_TRAN_MSG,
        names.PROPERTY_PGROUP,
        names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
        names.PROPERTY_TRANSACTION_CHECK_TIMES,
        names.PROPERTY_POP_CK,
        names.PROPERTY_POP_CK_OFFSET,
        names.PROPERTY_FIRST_POP_TIME,
        names.PROPERTY_MIN_OFFSET,
        names.PROPERTY_MAX_OFFSET,
        names.PROPERTY_MSG_REGION,
        names.PROPERTY_TRACE_ON,
        names.PROPERTY_CLUSTER,
        names.PROPERTY_CRC32,
        names.PROPERTY_WAIT,
        REDRIVEN_FROM,
    }
)


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """The message to send for a dead letter; topic with namespace."""

    origin: str  #: the original topic
    destination: str
    unique_id: str
    properties: dict[str, str]


def restore(record: MessageRecord, group: str, to: Destination = "topic") -> Letter:
    """Restore the original message of a dead letter; raises NotFoundError without its topic."""
    old = record.properties
    origin = old.get(names.PROPERTY_DLQ_ORIGIN_TOPIC) or old.get(names.PROPERTY_RETRY_TOPIC)
    if not origin:
        raise NotFoundError(
            f"dead letter {record.offset_id} has no RETRY_TOPIC, so its original topic is unknown",
            hint="send it with skylark produce",
        )
    origin = topic_of_pop_retry(origin, group)  # Apache's brokers name the retry topic of pops
    properties = {name: value for name, value in old.items() if name not in LEFT_BEHIND}
    unique_id = properties.setdefault(names.PROPERTY_UNIQ_KEY, record.offset_id)
    properties[names.PROPERTY_WAIT] = "true"
    properties[REDRIVEN_FROM] = record.offset_id
    if to == "group":
        properties[names.PROPERTY_RETRY_TOPIC] = origin
        if source := old.get(names.PROPERTY_ORIGIN_MESSAGE_ID):
            properties[names.PROPERTY_ORIGIN_MESSAGE_ID] = source
    return Letter(
        origin=origin,
        destination=retry_topic(group) if to == "group" else origin,
        unique_id=unique_id,
        properties=properties,
    )


class DeadLetterSender:
    """Sends the messages of one redrive run; caches routes, and uses queues round-robin."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._queues: dict[str, tuple[Sequence[MessageQueue], dict[str, str]]] = {}
        self._turns = itertools.count()

    async def check(self, topic: str) -> None:
        """Raise NotFoundError unless a topic exists and can be sent to."""
        await self._where(topic)

    async def already_sent(self, letter: Letter) -> str | None:
        """The offset message id of the copy, if it was already sent."""
        found = await by_key(self._session, letter.destination, letter.unique_id, unique=True)
        mark = letter.properties[REDRIVEN_FROM]
        for message in found:
            if message.properties.get(REDRIVEN_FROM) == mark:
                return message.offset_msg_id
        return None

    async def send(self, letter: Letter, message: MessageExt) -> str:
        """Send a message that was not sent before; returns its offset message id.

        Tries different queues a few times; before each retry it checks that the message has not
        arrived. Raises the error of the last attempt.
        """
        for attempt in itertools.count(1):
            try:
                return await self._send(letter, message.record)
            except SkylarkError as error:
                if not error.retriable or attempt >= ATTEMPTS:
                    raise
            await self._session.clock.sleep(REPEAT.pause_s(attempt))
            if (arrived := await self.already_sent(letter)) is not None:
                return arrived
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, letter: Letter, record: MessageRecord) -> str:
        queues, masters = await self._where(letter.destination)
        shard = letter.properties.get(names.PROPERTY_SHARDING_KEY)
        turn = next(self._turns) if shard is None else shard_index(shard, len(queues))
        queue = queues[turn % len(queues)]
        kept = FLAG_MULTI_TAGS
        if record.sys_flag & FLAG_COMPRESSED:
            kept |= FLAG_COMPRESSED | FLAG_COMPRESSION_MASK
        header = SendMessageRequestHeaderV2(
            producer_group=PRODUCER_GROUP,
            topic=letter.destination,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=QUEUE_COUNT,
            queue_id=queue.queue_id,
            sys_flag=record.sys_flag & kept,
            born_timestamp=record.born_timestamp,
            flag=record.flag,
            properties=encode_properties(letter.properties),
            reconsume_times=0,
            broker_name=queue.broker_name,
        )
        request = make_request(RequestCode.SEND_MESSAGE_V2, header)
        request.body = record.body
        answer = await self._session.call(
            masters[queue.broker_name],
            request,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            ResponseCode.SLAVE_NOT_AVAILABLE,
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
        )
        return decode_ext(SendMessageResponseHeader, answer.ext).msg_id

    async def _where(self, topic: str) -> tuple[Sequence[MessageQueue], dict[str, str]]:
        if topic not in self._queues:
            route = await self._session.route(topic)
            queues = make_route(topic, route).publish
            if not queues:
                raise NotFoundError(f"topic {self._session.unwrap(topic)} is not writable")
            self._queues[topic] = queues, masters_of(route)
        return self._queues[topic]
