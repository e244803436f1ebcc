"""Request-reply: sends a message and waits for the reply to it; sends replies.

A request is an ordinary message with a correlation id, the client id of the requester and a
timeout. The consumer sends its reply to the reply topic of the cluster; the broker pushes it to the
requesting client (326). So the broker must have received a heartbeat of that client before.

Requests wait by their correlation id, which is globally unique. Replies arrive on the control loop
and are handed to the loop of the producer. Replies that come too late are acknowledged and ignored.

Counterpart of Java's ``RequestFutureHolder``, ``RequestResponseFuture`` and ``MessageUtil``.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Final

from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import Message, MessageExt, SendResult
from skylark.client.producer.accumulator_runner import STOPPED
from skylark.client.producer.send_retry import SendMode
from skylark.client.producer.sender import REPLY_TYPE, Sender
from skylark.core.clock import Clock
from skylark.core.errors import (
    CannotReplyError,
    ClientError,
    ClientStateError,
    ConfigError,
    RequestReplyTimeoutError,
    SkylarkError,
)
from skylark.core.names import parse_address, reply_topic
from skylark.wire import properties as names
from skylark.wire.headers.send import ReplyMessageRequestHeader
from skylark.wire.layout import MAGIC_V1
from skylark.wire.message import MessageRecord, inflate_record, pack_host

logger = logging.getLogger(__name__)

_NO_REQUEST: Final = "only messages that a producer sent with request() can be"
_NO_HOST: Final = pack_host("0.0.0.0", 0)  # noqa: S104 - a placeholder, nothing listens there


class Requests:
    """Requests and replies of one producer, on its loop."""

    def __init__(self, sender: Sender, instance: ClientInstance, clock: Clock) -> None:
        self._sender = sender
        self._instance = instance
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Changed on the producer's loop only; the control loop reads it.
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}
        self._listens = False

    def __len__(self) -> int:
        """The number of requests that wait for a reply."""
        return len(self._waiting)

    def close(self) -> None:
        """Receive no further replies; requests that still wait raise ClientStateError."""
        if self._listens:
            self._instance.remove_reply_listener(self)
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(ClientStateError(STOPPED))

    # ---- requests --------------------------------------------------------------------------------

    async def request(self, message: Message, timeout_s: float) -> MessageExt:
        """Send a message and wait for its reply.

        Raises RequestReplyTimeoutError if it was sent and no reply came, and ClientError, with the
        cause, if it could not be sent.
        """
        began = self._clock.monotonic()
        state = self._sender.checked(message)
        await self._sender.introduce(state)
        if not self._listens:
            self._listens = True
            self._instance.add_reply_listener(self)
        correlation_id = str(uuid.uuid4())
        extra = {
            names.PROPERTY_CORRELATION_ID: correlation_id,
            names.PROPERTY_REPLY_TO_CLIENT: self._instance.client_id,
            names.PROPERTY_TTL: str(round(timeout_s * 1000)),
        }
        reply: asyncio.Future[MessageExt] = self._loop.create_future()
        self._waiting[correlation_id] = reply
        try:
            await self._send(state.name, message, extra, timeout_s, began)
            left_s = began + timeout_s - self._clock.monotonic()
            return await self._clock.wait_for(reply, left_s)
        except TimeoutError as error:
            raise RequestReplyTimeoutError(
                f"the request was sent to topic {message.topic}, and no reply came within"
                f" {timeout_s:g} s"
            ) from error
        finally:
            del self._waiting[correlation_id]
            if reply.done() and not reply.cancelled():
                reply.exception()  # retrieved, also if the send failed first

    async def _send(
        self,
        topic: str,
        message: Message,
        extra: Mapping[str, str],
        timeout_s: float,
        began: float,
    ) -> None:
        try:
            state = self._sender.state_of(topic)
            parcel = await self._sender.parcel(message, extra)
            await self._sender.send(state, parcel, SendMode.ASYNC, timeout_s, began)
        except SkylarkError as error:
            raise ClientError(
                f"the request could not be sent to topic {topic}: {error}",
                response_code=getattr(error, "response_code", None),
            ) from error

    def reply_arrived(self, address: str, header: ReplyMessageRequestHeader, body: bytes) -> None:
        """Called for every reply, on the control loop.

        Raises RemoteProtocolError for a body that is damaged.
        """
        properties = names.parse_properties(header.properties or "")
        correlation_id = properties.get(names.PROPERTY_CORRELATION_ID, "")
        reply = self._waiting.get(correlation_id)
        if reply is None:
            logger.info("no request waits for reply %s from %s", correlation_id, address)
            return
        message = _message_of(header, body, self._clock.now_ms())
        try:
            self._loop.call_soon_threadsafe(_settle, reply, message)
        except RuntimeError:
            logger.warning("the loop that waits for reply %s is closed", correlation_id)

    # ---- replies ---------------------------------------------------------------------------------

    async def reply(self, request: MessageExt, body: bytes, timeout_s: float) -> SendResult:
        """Send the reply to a received request; raises CannotReplyError if it is not one."""
        topic, extra = reply_address(request)
        message = Message(topic, body)
        began = self._clock.monotonic()
        state = self._sender.checked(message)
        parcel = await self._sender.parcel(message, extra)
        return await self._sender.send(state, parcel, SendMode.SYNC, timeout_s, began)


def _settle(reply: asyncio.Future[MessageExt], message: MessageExt) -> None:
    if not reply.done():
        reply.set_result(message)


def reply_address(request: MessageExt) -> tuple[str, dict[str, str]]:
    """The topic of the reply, and the properties by which the broker finds the requester."""
    properties = request.properties
    cluster = properties.get(names.PROPERTY_CLUSTER)
    if not cluster:
        raise CannotReplyError(
            "the message cannot be answered: it has no property CLUSTER", hint=_NO_REQUEST
        )
    extra = {names.PROPERTY_MSG_TYPE: REPLY_TYPE}
    for name in (
        names.PROPERTY_CORRELATION_ID,
        names.PROPERTY_REPLY_TO_CLIENT,
        names.PROPERTY_TTL,
    ):
        value = properties.get(name)
        if value is None and name != names.PROPERTY_TTL:
            raise CannotReplyError(
                f"the message cannot be answered: it has no property {name}", hint=_NO_REQUEST
            )
        if value is not None:
            extra[name] = value
    return reply_topic(cluster), extra


def _message_of(header: ReplyMessageRequestHeader, body: bytes, now_ms: int) -> MessageExt:
    text = header.properties or ""
    if text and not text.endswith(names.ITEM_END):
        text += names.ITEM_END
    text += f"{names.PROPERTY_ARRIVE_TIME}{names.NAME_END}{now_ms}{names.ITEM_END}"
    record = MessageRecord(
        total_size=0,
        magic=MAGIC_V1,
        body_crc=0,
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=0,
        log_offset=0,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=_packed(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=_packed(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=body,
        topic=header.topic,
        raw_properties=text.encode(),
    )
    inflate_record(record)
    return MessageExt(record, "")


def _packed(address: str) -> bytes:
    try:
        host, port = parse_address(address.lstrip("/"))
        return pack_host(host, port)
    except (ConfigError, ValueError):
        return _NO_HOST
