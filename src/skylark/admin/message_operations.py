"""Messages that are stored: find them, read them, see what became of them.

=====================  ==========================================================================
``get``                by id of either kind
``by_unique_id``       by the producer's id: more than one after retries
``by_key``             by one of its keys, within a time range
``at``                 by queue and offset
``between``            all messages of a time range, oldest first
``trace``              what producers and consumers have told about it
``explain``            why groups did or did not consume it, and what to do about it
``explain_group``      why a group does not get on
``consume_directly``   let a member of a group consume it now, and see what its handler says
=====================  ==========================================================================

Bodies are decompressed when they are looked at; :func:`view` makes a printable struct of a message.
Answers to mqadmin's queryMsgById, queryMsgByUniqueKey, queryMsgByKey, queryMsgByOffset,
printMsg, queryMsgTraceById, consumeMessage, checkMsgSendRT's reading side.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.connected_clients import RELAY_TIMEOUT_S, group_members, no_member
from skylark.admin.errors import NotFoundError
from skylark.admin.explain import Explanation, explain_group, explain_message
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.message_lookup import KEY_COUNT_MAX, at_offset, by_key, by_offset_id
from skylark.admin.queue_merge import QueueRange, merged, queue_messages
from skylark.admin.topic_queues import Moment, readable_queues, to_ms
from skylark.admin.trace_query import MessageTrace, message_trace
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import InvalidParameterError, RemoteProtocolError
from skylark.core.names import TRACE_TOPIC
from skylark.wire.bodies.admin_body import ConsumeMessageDirectlyResult
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.fields import INT64_MAX
from skylark.wire.headers.client_header import ConsumeMessageDirectlyResultRequestHeader

LIMIT: Final = 1_000
BODY_SIZE_SHOWN: Final = 64 * 1024


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message as plain values, for output."""

    msg_id: str
    offset_msg_id: str
    topic: str
    stored_topic: str  #: differs from ``topic`` for retries
    broker: str
    queue_id: int
    queue_offset: int
    tag: str | None
    keys: tuple[str, ...]
    born_time_ms: int
    born_host: str
    store_time_ms: int
    store_host: str
    reconsume_times: int
    flag: int
    properties: dict[str, str]
    body_size: int  #: decompressed
    body: str  #: text, or Base64 if it is none; cut at a limit
    is_base64: bool
    is_cut: bool


@checks_arguments
class Messages:
    """The functions about messages."""

    def __init__(self, session: Session) -> None:
        self._session = session

    # ---- one -------------------------------------------------------------------------------------

    async def get(self, message_id: str, topic: str | None = None) -> MessageExt:
        """A message by its offset id, or, if the topic is given, by its unique id.

        Raises NotFoundError.
        """
        session = self._session
        if topic is not None:
            found = await by_key(session, session.wrap(topic), message_id, unique=True)
            if found:
                return found[0]
        message = await by_offset_id(session, message_id)
        if message is not None and (topic is None or message.record.topic == session.wrap(topic)):
            return message
        hint = "name the topic as well if this is the id that a producer got"
        raise NotFoundError(
            f"no message {message_id}" + (f" in topic {topic}" if topic else ""),
            hint=None if topic else hint,
        )

    async def at(self, queue: MessageQueue, offset: int) -> MessageExt:
        """The message at an offset of a queue; raises NotFoundError."""
        session, wrapped = self._session, self._session.namespace.wrap_queue(queue)
        masters = await session.topic_masters(wrapped.topic)
        if queue.broker_name not in masters:
            raise NotFoundError(f"broker {queue.broker_name} does not have topic {queue.topic}")
        return await at_offset(session, masters[queue.broker_name], wrapped, offset)

    # ---- several ---------------------------------------------------------------------------------

    async def by_unique_id(self, topic: str, message_id: str) -> list[MessageExt]:
        """Messages with a producer's id, oldest first: one, or more after retries.

        Raises NotFoundError.
        """
        found = await by_key(self._session, self._session.wrap(topic), message_id, unique=True)
        if not found:
            raise NotFoundError(f"no message {message_id} in topic {topic}")
        return found

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: Moment = 0,
        end: Moment = INT64_MAX,
        limit: int = KEY_COUNT_MAX,
    ) -> list[MessageExt]:
        """Messages with a key, stored within a time, oldest first; of too many, the newest.

        The index is a little behind the log, and forgets with it. None found is no error. Raises
        NotFoundError for the topic, PartialFailureError.
        """
        return await by_key(
            self._session,
            self._session.wrap(topic),
            key,
            begin_ms=to_ms(begin),
            end_ms=to_ms(end),
            count_max=_checked_limit(limit),
        )

    async def between(
        self,
        topic: str,
        begin: Moment = 0,
        end: Moment | None = None,
        *,
        tags: str = "*",
        limit: int = LIMIT,
        broker: str | None = None,
        queue_id: int | None = None,
    ) -> AsyncGenerator[MessageExt, None]:
        """Messages stored from ``begin`` until before ``end`` (else: now), oldest first.

        At most ``limit`` of them. Each queue is searched by time and then read as far as it is
        wanted. Raises NotFoundError; what expires meanwhile is passed over.
        """
        _checked_limit(limit)
        begin_ms, end_ms = to_ms(begin), INT64_MAX if end is None else to_ms(end)
        ranges = await self._ranges(topic, begin_ms, end_ms, broker, queue_id)
        session = self._session
        sources = [queue_messages(session, part, begin_ms, end_ms, tags) for part in ranges]
        count = 0
        found = merged(sources)
        try:
            async for message in found:
                yield message
                count += 1
                if count >= limit:
                    return
        finally:
            await found.aclose()

    async def _ranges(
        self, topic: str, begin_ms: int, end_ms: int, broker: str | None, queue_id: int | None
    ) -> list[QueueRange]:
        session = self._session
        queues, masters = await readable_queues(session, topic)
        wanted = [
            queue
            for queue in queues
            if broker in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
        ]
        if not wanted:
            raise NotFoundError(f"topic {topic} has no such queue")

        async def search(queue: MessageQueue) -> QueueRange:
            address, calls = masters[queue.broker_name], session.calls
            last = await calls.max_offset(address, queue)
            first = await calls.min_offset(address, queue)
            if begin_ms > 0:
                first = max(first, await calls.search_offset(address, queue, begin_ms))
            if end_ms < INT64_MAX:
                # Old brokers give the last message before the time: one more does no harm.
                last = min(last, await calls.search_offset(address, queue, end_ms) + 1)
            return QueueRange(queue=queue, address=address, start=first, end=last)

        return await few_at_a_time(wanted, search)

    # ---- what became of it -----------------------------------------------------------------------

    async def trace(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> MessageTrace:
        """What producers and consumers with tracing have told about a message.

        Raises NotFoundError if there is nothing.
        """
        return await message_trace(self._session, message_id, trace_topic)

    async def explain(
        self, message_id: str, *, topic: str | None = None, group: str | None = None
    ) -> list[Explanation]:
        """Why a message was or was not consumed: by one group, or by each that reads its topic.

        Takes ids of both kinds; without its topic all topics are looked through. Raises
        NotFoundError if there is no such message, and ClientError if it was not found and brokers
        did not answer.
        """
        return await explain_message(self._session, message_id, topic=topic, group=group)

    async def explain_group(self, group: str, *, topic: str | None = None) -> Explanation:
        """Why a group does not get on, in all of its topics or in one.

        Raises NotFoundError for a group that no broker knows.
        """
        return await explain_group(self._session, group, topic=topic)

    async def consume_directly(
        self, group: str, message: MessageExt, client_id: str | None = None
    ) -> ConsumeMessageDirectlyResult:
        """Let a member of a group consume a message now (309), and see what its handler says.

        The first member, unless one is named. Nothing is committed. Raises NotFoundError if no
        such member is connected, BrokerError if it does not answer in time.
        """
        session, name = self._session, self._session.wrap(group)
        members = await group_members(session, name)
        ids = [member.client_id for member in members.members]
        if not ids or client_id not in (None, *ids):
            raise no_member(group, client_id or "at all")
        header = ConsumeMessageDirectlyResultRequestHeader(
            consumer_group=name,
            client_id=client_id or ids[0],
            msg_id=message.offset_msg_id,
            topic=message.record.topic,
        )
        _, address = await session.broker(message.broker_name)
        return await session.ask(
            ConsumeMessageDirectlyResult,
            address,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            header,
            timeout_s=RELAY_TIMEOUT_S,
        )


def view(message: MessageExt, body_size_max: int = BODY_SIZE_SHOWN) -> MessageView:
    """A message as plain values; of the body at most so many bytes."""
    record = message.record
    try:
        body = message.body
    except RemoteProtocolError:  # compressed by something unknown: shown as it is
        body = record.body
    shown = body[:body_size_max]
    try:
        text, is_base64 = shown.decode(), False
    except UnicodeDecodeError:
        text, is_base64 = _cut_text(shown, len(body) > len(shown))
    return MessageView(
        msg_id=message.msg_id,
        offset_msg_id=message.offset_msg_id,
        topic=message.topic,
        stored_topic=record.topic,
        broker=message.broker_name,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        tag=message.tag,
        keys=message.keys,
        born_time_ms=record.born_timestamp,
        born_host=message.born_host,
        store_time_ms=record.store_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        flag=message.flag,
        properties=dict(message.properties),
        body_size=len(body),
        body=text,
        is_base64=is_base64,
        is_cut=len(body) > len(shown),
    )


def _cut_text(shown: bytes, is_cut: bool) -> tuple[str, bool]:
    """Text that was cut within a character, or Base64."""
    if is_cut:
        for size in range(len(shown) - 1, max(0, len(shown) - 4), -1):
            try:
                return shown[:size].decode(), False
            except UnicodeDecodeError:
                continue
    return base64.b64encode(shown).decode(), True


def _checked_limit(limit: int) -> int:
    if limit < 1:
        raise InvalidParameterError(f"a limit of {limit} messages")
    return limit
