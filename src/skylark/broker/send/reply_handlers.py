"""Request-reply: a reply (324, 325) goes straight to the client that waits for it (326).

A request is an ordinary message that names, in REPLY_TO_CLIENT, the client that sent it. Its
consumer sends the reply to the broker that the request came from, as a message to
``<cluster>_REPLY_TOPIC``::

    replier --325--> broker                           checks of a send
                     reply topic                      stored, if storeReplyMessageEnable
                     broker --326--> requester        found by its client id (ProducerTable)
                     broker <---0--- requester        within PUSH_TIMEOUT_S
    replier <---0--- broker

Code 1 says that the requester did not get the reply. The code does not depend on whether the reply
was stored, but only a stored one has a message id and a queue offset in its reply (``0`` and 0
where it was delivered and not stored). The record is the message as it was sent: PUSH_REPLY_TIME is
for the requester alone, and CLUSTER is not added.

Two differences from Java, which delivers a reply before it stores it, and drops the flags of the
stored one: here the flags that say how the body is compressed stay. Counterpart of Java's
``ReplyMessageProcessor``.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from skylark.broker.api import (
    Peer,
    Pending,
    PutService,
    ReplyRequest,
    ReplyResult,
    result_of,
)
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import Done
from skylark.broker.send.send_checks import SendChecks, SendDraft, send_header
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import (
    BrokerError,
    ServiceNotAvailableError,
    SkylarkError,
    TransportError,
)
from skylark.core.hashing import encode_offset_id
from skylark.core.names import Address
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.codes import CURRENT_VERSION, RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import encode_ext
from skylark.wire.headers.send import ReplyMessageRequestHeader, SendHeader
from skylark.wire.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK

logger = logging.getLogger(__name__)

PUSH_TIMEOUT_S: Final = 10.0
#: Fields that 326 has in common with the header of the reply.
_FIELDS_OF_SEND: Final = (
    "producer_group", "topic", "default_topic", "default_topic_queue_nums", "queue_id", "sys_flag",
    "born_timestamp", "flag", "reconsume_times",
)  # fmt: skip
_KEPT_FLAGS: Final = FLAG_COMPRESSED | FLAG_COMPRESSION_MASK


class ReplyHandlers:
    """The remoting requests that carry replies."""

    def __init__(self, checks: SendChecks, puts: PutService, store_host: bytes) -> None:
        self._checks = checks
        self._puts = puts
        self._store_host = store_host

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_cold(RequestCode.SEND_REPLY_MESSAGE, self.reply)
        dispatcher.add_cold(RequestCode.SEND_REPLY_MESSAGE_V2, self.reply)

    async def reply(self, connection: Connection, command: Command) -> Command:
        """SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325)."""
        request = ReplyRequest(send_header(command), command.body)
        pending = self._puts.run(connection, [request])[0]
        ext = self._checks.ext.copy()
        try:
            result: ReplyResult = await result_of(pending)
        except BrokerError as error:
            return response_to(command, error.code, str(error), ext=ext)
        failure = result.failure
        if failure is None or result.log_offset is not None:
            ext["msgId"] = "0"  # clients want a number
            if result.log_offset is not None:
                ext["msgId"] = encode_offset_id(self._store_host, result.log_offset)
            ext["queueId"] = str(result.queue_id)
            ext["queueOffset"] = str(result.queue_offset)
        remark = None if failure is None else str(failure)
        return response_to(command, result.code, remark, ext=ext)


class ReplyDraft(SendDraft, gc=False):
    """A reply on its way into the log."""

    #: Address of the client that has sent the reply.
    replier: str = ""


@dataclass(eq=False)
class ReplyStep:
    """The part of the pipeline that is about replies: stores them, and sends them on."""

    _checks: SendChecks
    _durability: Durability
    _writer: MessageWriter
    _topics: TopicTable
    _producers: ProducerTable
    _stats: BrokerStats
    _clock: TimeSource
    _deliveries: set[asyncio.Task[ReplyResult]] = field(default_factory=set)

    # --- to the store -----------------------------------------------------------------------------

    def draft(self, peer: Peer, request: ReplyRequest) -> ReplyDraft | Done:
        """The reply as it will be stored; raises BrokerError."""
        checks, header = self._checks, request.header
        if not request.body:
            raise self._durability.refusal(PutStatus.MESSAGE_ILLEGAL, "the reply has no body")
        topic = checks.topic_of(peer, header)
        draft = ReplyDraft(
            **msgspec.structs.asdict(checks.draft(peer, header, topic, request.body)),
            replier=str(Address(*peer.remote_address)),
        )
        if checks.config.store_reply_message_enable:
            properties = self._properties(header)
            try:
                refused = self._writer.divert_own(draft, properties)
                if refused is None:
                    draft.properties = names.encode_properties(properties).encode()
                    draft.sys_flag &= _KEPT_FLAGS
                    return draft
                problem = refused.name
            except SkylarkError as error:  # a property that cannot be
                problem = str(error)
            logger.warning("a reply to %s was not stored: %s", header.topic, problem)
        return Done(self._deliver(header, draft))

    def finish(
        self, request: ReplyRequest, draft: ReplyDraft, result: PutResult, *, is_durable: bool
    ) -> Pending[ReplyResult]:
        """Send the reply to the requester, whether it was stored or not."""
        topic = request.header.topic
        if not result.status.stored:
            logger.warning("a reply to %s was not stored: %s", topic, result.status.name)
            return self._deliver(request.header, draft)
        self._stats.put(topic, 1, result.size, is_system=self._topics.is_system(topic))
        durable: object = None
        if not is_durable:
            durable = self._durability.when_durable(result, lambda status: status)
        return self._deliver(request.header, draft, result, durable)

    def _properties(self, header: SendHeader) -> dict[str, str]:
        properties = names.parse_properties(header.properties or "")
        properties.pop(names.PROPERTY_POP_CK, None)
        properties.update(self._checks.added)
        return properties

    # --- to the requester -------------------------------------------------------------------------

    def _deliver(
        self,
        header: SendHeader,
        draft: ReplyDraft,
        stored: PutResult | None = None,
        durable: object = None,
    ) -> Pending[ReplyResult]:
        """Send the reply to the requester; the result waits for ``durable``, if that is pending."""
        result = ReplyResult(draft.requested_queue_id)
        if stored is not None:
            result.log_offset, result.queue_offset = stored.log_offset, stored.queue_offset
        pending: Pending[Any] = Pending()
        task = asyncio.get_running_loop().create_task(self._push(header, draft, result, durable))
        self._deliveries.add(task)

        def finish(done: asyncio.Task[ReplyResult]) -> None:
            self._deliveries.discard(done)
            if done.cancelled():  # the loop ends
                pending.set(ServiceNotAvailableError("the broker stops"))
            else:
                pending.set(done.exception() or done.result())

        task.add_done_callback(finish)
        return pending

    async def _push(
        self, header: SendHeader, draft: ReplyDraft, result: ReplyResult, durable: object
    ) -> ReplyResult:
        result.failure = await self._push_failure(header, draft)
        await result_of(durable)
        return result

    async def _push_failure(self, header: SendHeader, draft: ReplyDraft) -> BrokerError | None:
        """Send the reply (326); None if the requester has it."""
        properties = self._properties(header)
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
        try:
            reply = await requester.call(
                self._push_request(header, properties, draft), PUSH_TIMEOUT_S
            )
        except TransportError as error:
            why = str(error)
        else:
            if reply.code == ResponseCode.SUCCESS:
                return None
            why = f"the requester answered {reply.code} {reply.remark or ''}".rstrip()
        logger.warning("the requester %s did not take a reply: %s", client_id, why)
        return BrokerError(f"push reply message to {client_id}fail.", hint=why)

    def _push_request(
        self, header: SendHeader, properties: dict[str, str], draft: ReplyDraft
    ) -> Command:
        now_ms = self._clock.now_ms()
        fields = {name: getattr(header, name) for name in _FIELDS_OF_SEND}
        push_header = ReplyMessageRequestHeader(
            **fields,
            unit_mode=header.unit_mode or False,
            properties=names.encode_properties(
                {**properties, names.PROPERTY_PUSH_REPLY_TIME: str(now_ms)}
            ),
            born_host=draft.replier,
            store_host=self._checks.config.broker_addr,
            store_timestamp=now_ms,
        )
        return Command(
            code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ext=encode_ext(push_header),
            body=draft.body,
            version=CURRENT_VERSION,
        )
