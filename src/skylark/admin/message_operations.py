"""Stored messages: find them, read them, explain their consumption.

=====================  ==========================================================================
``get``                by either kind of id
``by_unique_id``       by the producer's id: more than one after retries of a send
``by_key``             by one of its keys, within a time range
``at``                 by queue and offset
``between``            all messages of a time range, oldest first
``trace``              its trace records
``explain``            why groups did or did not consume it, and what to do about it
``explain_group``      why a group makes no progress
``consume_directly``   make a member of a group consume it now; returns the handler's result
=====================  ==========================================================================

Bodies are decompressed on access; :func:`view` makes a printable struct of a message.
Counterpart of mqadmin's queryMsgById, queryMsgByUniqueKey, queryMsgByKey, queryMsgByOffset,
printMsg, queryMsgTraceById, consumeMessage, and the reading side of checkMsgSendRT.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from skylark.admin.admin_session import Operations
from skylark.admin.connected_clients import RELAY_TIMEOUT_S, group_members, no_member
from skylark.admin.errors import NotFoundError
from skylark.admin.explain import Explanation, explain_group, explain_message
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.message_lookup import KEY_COUNT_MAX, at_offset, by_key, by_offset_id
from skylark.admin.queue_merge import QueueRange, merged, queue_messages
from skylark.admin.topic_queues import Moment, readable_queues, selected_queues, to_ms
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
    body: str  #: text, or Base64 if it is not text; truncated at a limit
    is_base64: bool
    is_cut: bool


@checks_arguments
class Messages(Operations):
    """Functions about messages."""

    # ---- one -------------------------------------------------------------------------------------

    async def get(self, message_id: str, topic: str | None = None) -> MessageExt:
        """A message by its offset message id or, if the topic is given, by its unique id.

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
        hint = "give the topic as well if this is the id that a producer got"
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
        """Messages with a unique id, oldest first: one, or more after retries of a send.

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

        The index lags a little behind the log. Returns an empty list if none is found. Raises
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

        At most ``limit`` of them. Each queue is searched by time and then read as far as needed.
        Raises NotFoundError; skips messages that expire meanwhile.
        """
        _checked_limit(limit)
        begin_ms, end_ms = to_ms(begin), INT64_MAX if end is None else to_ms(end)
        ranges = await self._ranges(topic, begin_ms, end_ms, broker, queue_id)
        session = self._session
        sources = [queue_messages(session, part, begin_ms, end_ms, tags) for part in ranges]
        async with aclosing(merged(sources, limit)) as found:
            async for message in found:
                yield message

    async def _ranges(
        self, topic: str, begin_ms: int, end_ms: int, broker: str | None, queue_id: int | None
    ) -> list[QueueRange]:
        session = self._session
        all_queues, masters = await readable_queues(session, topic)
        queues = selected_queues(all_queues, topic, broker, queue_id)

        async def search(queue: MessageQueue) -> QueueRange:
            address, calls = masters[queue.broker_name], session.calls
            last = await calls.max_offset(address, queue)
            first = await calls.min_offset(address, queue)
            if begin_ms > 0:
                first = max(first, await calls.search_offset(address, queue, begin_ms))
            if end_ms < INT64_MAX:
                # Older brokers return the last message before the time: one more is harmless.
                last = min(last, await calls.search_offset(address, queue, end_ms) + 1)
            return QueueRange(queue=queue, address=address, start=first, end=last)

        return await few_at_a_time(queues, search)

    # ---- consumption -----------------------------------------------------------------------------

    async def trace(self, message_id: str, *, trace_topic: str = TRACE_TOPIC) -> MessageTrace:
        """The trace records of a message, by its unique id (not the offset message id).

        Raises NotFoundError if there are none.
        """
        return await message_trace(self._session, message_id, trace_topic)

    async def explain(
        self, message_id: str, *, topic: str | None = None, group: str | None = None
    ) -> list[Explanation]:
        """Explain why a message was or was not consumed by one group, or by all of its topic.

        Accepts both kinds of ids; without ``topic`` it searches all topics. Raises NotFoundError if
        the message does not exist, and ClientError if it was not found and some brokers did not
        respond.
        """
        return await explain_message(self._session, message_id, topic=topic, group=group)

    async def explain_group(self, group: str, *, topic: str | None = None) -> Explanation:
        """Explain why a group makes no progress, in all of its topics or in one.

        Raises NotFoundError for a group that no broker knows.
        """
        return await explain_group(self._session, group, topic=topic)

    async def consume_directly(
        self, group: str, message: MessageExt, client_id: str | None = None
    ) -> ConsumeMessageDirectlyResult:
        """Make a member of a group consume a message now (309); returns the handler's result.

        It is the first member, unless one is named. Commits nothing. Raises NotFoundError if no
        such member is connected, BrokerError if it does not respond in time.
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
    """A message as plain values; the body is truncated."""
    record = message.record
    try:
        body = message.body
    except RemoteProtocolError:  # unknown compression: shown as stored
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
    """A truncated body as text, even if cut within a character, or as Base64."""
    if is_cut:
        for size in range(len(shown) - 1, max(0, len(shown) - 4), -1):
            try:
                return shown[:size].decode(), False
            except UnicodeDecodeError:
                continue
    return base64.b64encode(shown).decode(), True


def _checked_limit(limit: int) -> int:
    if limit < 1:
        raise InvalidParameterError(f"limit must be at least 1, not {limit}")
    return limit
