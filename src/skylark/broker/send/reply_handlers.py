"""Request-reply: a reply (324, 325) goes straight to the client that waits for it (326).

A request is an ordinary message that names, in REPLY_TO_CLIENT, the client that sent it. Whoever
consumes it sends the reply to the broker that the request came from, as a message to
``<cluster>_REPLY_TOPIC``::

    replier --325--> broker --326--> requester        found by its client id (ProducerTable)
                     broker <---0--- requester        within PUSH_TIMEOUT_S
                     reply topic                      stored in any case, if storeReplyMessageEnable
    replier <---0--- broker

The checks are those of a send. Code 1 says that the requester did not get the reply; whether it
could be stored makes no difference to the code, but only then the answer has its message id and
queue offset (``0`` and 0 where it was delivered and not stored). What is stored is what was
sent: PUSH_REPLY_TIME is for the requester alone, and CLUSTER is not added.

Cold: a requester that is slow to acknowledge keeps nobody but its replier waiting. One difference
from Java, which forgets the flags of a stored reply: those that say how the body is compressed
stay. Answers to ``ReplyMessageProcessor``.
"""

from __future__ import annotations

import logging
from typing import Final

from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.send_checks import SendChecks, send_header
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, SkylarkError, TransportError
from skylark.core.hashing import encode_offset_id
from skylark.core.names import Address
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.store.commit_log import Draft, PutLimits
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.codes import CURRENT_VERSION, RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import encode_ext
from skylark.wire.headers.send import ReplyMessageRequestHeader, SendHeader
from skylark.wire.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK

log = logging.getLogger(__name__)

PUSH_TIMEOUT_S: Final = 10.0
_KEPT_FLAGS: Final = FLAG_COMPRESSED | FLAG_COMPRESSION_MASK


class ReplyHandlers:
    """The requests that carry replies."""

    def __init__(
        self,
        checks: SendChecks,
        durability: Durability,
        writer: MessageWriter,
        topics: TopicTable,
        producers: ProducerTable,
        stats: BrokerStats,
        clock: TimeSource,
    ) -> None:
        self._checks = checks
        self._durability = durability
        self._writer = writer
        self._topics = topics
        self._producers = producers
        self._stats = stats
        self._clock = clock

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_cold(RequestCode.SEND_REPLY_MESSAGE, self.reply)
        dispatcher.add_cold(RequestCode.SEND_REPLY_MESSAGE_V2, self.reply)

    async def reply(self, connection: Connection, request: Command) -> Command:
        """SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325)."""
        checks = self._checks
        header = send_header(request)
        ext = checks.ext.copy()
        try:
            if not request.body:
                raise self._durability.refusal(PutStatus.MESSAGE_ILLEGAL, "the reply has no body")
            topic = checks.topic_of(connection, header)
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext=ext)
        draft = checks.draft(connection, header, topic, request.body)
        queue_id = draft.queue_id
        properties = names.parse_properties(header.properties or "")
        properties.pop(names.PROPERTY_POP_CK, None)
        properties.update(checks.added)
        problem = await self._push(connection, header, properties, draft.body)
        stored = None
        if checks.config.store_reply_message_enable:
            stored = await self._put(draft, properties)
        if stored is not None:
            store_host = self._writer.store.log.store_host
            ext["msgId"] = encode_offset_id(store_host, stored.log_offset)
        elif problem is None:
            ext["msgId"] = "0"  # clients want a number
        if "msgId" in ext:
            ext["queueId"] = str(queue_id)
            ext["queueOffset"] = str(0 if stored is None else stored.queue_offset)
        if problem is None:
            return response_to(request, ResponseCode.SUCCESS, ext=ext)
        return response_to(request, ResponseCode.SYSTEM_ERROR, str(problem), ext=ext)

    # --- to the requester -------------------------------------------------------------------------

    async def _push(
        self, connection: Connection, header: SendHeader, properties: dict[str, str], body: bytes
    ) -> BrokerError | None:
        """Hand the reply over (326); None if the requester has it."""
        client_id = properties.get(names.PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            return BrokerError(
                f"reply message properties[{names.PROPERTY_REPLY_TO_CLIENT}] is null",
                hint="a reply is made from the request that it answers",
            )
        requester = self._producers.find(client_id)
        if requester is None:
            return BrokerError(
                f"push reply message fail, channel of <{client_id}> not found.",
                hint="the requester is gone, or does not send heartbeats to this broker",
            )
        push = self._push_request(connection, header, properties, body)
        try:
            answer = await requester.call(push, PUSH_TIMEOUT_S)
        except TransportError as error:
            why = str(error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return None
            why = f"the requester answered {answer.code} {answer.remark or ''}".rstrip()
        log.warning("a reply to %s was not taken: %s", client_id, why)
        return BrokerError(f"push reply message to {client_id}fail.", hint=why)

    def _push_request(
        self, connection: Connection, header: SendHeader, properties: dict[str, str], body: bytes
    ) -> Command:
        config = self._checks.config
        now_ms = self._clock.now_ms()
        push_header = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=names.encode_properties(
                {**properties, names.PROPERTY_PUSH_REPLY_TIME: str(now_ms)}
            ),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode or False,
            born_host=str(Address(*connection.remote_address)),
            store_host=config.broker_addr,
            store_timestamp=now_ms,
        )
        return Command(
            code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ext=encode_ext(push_header),
            body=body,
            version=CURRENT_VERSION,
        )

    # --- to the store -----------------------------------------------------------------------------

    async def _put(self, draft: Draft, properties: dict[str, str]) -> PutResult | None:
        """Where the reply is stored, once it is safe there; None if it could not be."""
        topic = draft.topic
        draft.sys_flag &= _KEPT_FLAGS
        try:
            result, _status = await self._writer.put_own_safely(
                draft, properties, limits=PutLimits.SETTINGS
            )
        except SkylarkError as error:  # a property that cannot be
            log.warning("a reply to %s was not stored: %s", topic, error)
            return None
        if not result.status.stored:
            log.warning("a reply to %s was not stored: %s", topic, result.status.name)
            return None
        self._stats.put(topic, 1, result.size, is_system=self._topics.is_system(topic))
        await self._durability.topics_saved()
        return result
