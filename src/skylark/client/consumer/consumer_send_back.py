"""Sends messages that a handler failed on back to the broker, for another delivery later.

The broker that a message came from stores a copy in the retry topic of the group (36). If it does
not, the client publishes the message there itself: three attempts, each at another broker if there
is one. If that fails too, the caller keeps the message. In both cases the broker decides whether it
becomes a dead letter (:mod:`skylark.core.retry_policy`). Popped messages are never published: what
is not acknowledged is delivered again anyway. Runs on the loop that consumes.
Counterpart of Java's ``sendMessageBack`` of ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import logging
import random
from typing import Final

from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_message import Message, MessageExt
from skylark.client.core.route_cache import DEFAULT_QUEUE_COUNT
from skylark.client.producer.queue_selector import RoundRobin, choose_in_turn
from skylark.client.producer.send_request import (
    COMPRESS_OVER,
    Parcel,
    SendTemplate,
    compress,
    read_result,
)
from skylark.core.errors import ClientError, SkylarkError
from skylark.core.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, is_retry_topic, retry_topic
from skylark.core.retry_policy import FIRST_RETRY_LEVEL
from skylark.wire import properties as names
from skylark.wire.compress import COMPRESSION_ZLIB
from skylark.wire.headers.send import ConsumerSendMsgBackRequestHeader

logger = logging.getLogger(__name__)

RECONSUME_TIMES_MAX: Final = 16  # maxReconsumeTimes
#: Delay levels of a message that is sent back, besides the levels themselves.
BROKER_DECIDES: Final = 0
STRAIGHT_TO_DEAD_LETTERS: Final = -1

ATTEMPTS: Final = 3
SEND_TIMEOUT_S: Final = 3.0
#: Properties that the consumer or the store has added, which are not published.
_NOT_PUBLISHED: Final = frozenset(
    {
        names.PROPERTY_MIN_OFFSET,
        names.PROPERTY_MAX_OFFSET,
        names.PROPERTY_CRC32,
        names.PROPERTY_POP_CK,
    }
)


class SendBackClient:
    """Sends the failed messages of one consumer back."""

    def __init__(
        self,
        link: BrokerConnections,
        group: str,
        *,
        reconsume_times_max: int,
        unit_mode: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self._link = link
        self._group = group
        self._reconsume_times_max = reconsume_times_max
        self._topic = retry_topic(group)
        self._turn = RoundRobin(rng or random.Random())
        self._template = SendTemplate(
            INNER_PRODUCER_GROUP,
            self._topic,
            model=AUTO_CREATE_TOPIC,
            queue_count=DEFAULT_QUEUE_COUNT,
            unit_mode=unit_mode,
        )

    async def give(self, message: MessageExt, delay_level: int = BROKER_DECIDES) -> bool:
        """Send a message back, or publish it; returns whether a broker has stored it."""
        return await self.return_to_broker(message, delay_level) or await self.publish(message)

    async def return_to_broker(self, message: MessageExt, delay_level: int) -> bool:
        """Send a message back (36); returns whether its broker has stored it."""
        header = send_back_header(message, self._group, delay_level, self._reconsume_times_max)
        # The message has the address of its broker, even if that is no longer in any route.
        address = self._link.lookup.routes.master(message.broker_name) or message.store_host
        try:
            await self._link.calls.send_back(address, header, message.broker_name)
        except SkylarkError as error:
            logger.warning("%s does not accept %s back: %s", address, message, error)
        except Exception:  # such as an error of a hook
            logger.exception("cannot send %s the message %s back", address, message)
        else:
            return True
        return False

    async def publish(self, message: MessageExt) -> bool:
        """Publish a message to the retry topic; returns whether a broker has stored it."""
        try:
            parcel = self._parcel(retry_message(message, self._group, self._reconsume_times_max))
            await self._send(parcel)
        except SkylarkError as error:
            logger.warning(
                "cannot publish %s to the retry topic, the consumer keeps it: %s", message, error
            )
            return False
        except Exception:
            logger.exception("cannot publish %s to the retry topic, the consumer keeps it", message)
            return False
        return True

    def _parcel(self, message: Message) -> Parcel:
        properties = {k: v for k, v in message.properties.items() if k not in _NOT_PUBLISHED}
        body, sys_flag = message.body, 0
        if len(body) >= COMPRESS_OVER:
            body, sys_flag = compress(body, COMPRESSION_ZLIB)
        return Parcel(
            messages=[message],
            properties=names.encode_properties(properties),
            body=body,
            sys_flag=sys_flag,
            flag=message.flag,
            msg_id=properties.get(names.PROPERTY_UNIQ_KEY, ""),
            fields={
                "j": properties[names.PROPERTY_RECONSUME_TIME],
                "l": properties[names.PROPERTY_MAX_RECONSUME_TIMES],
            },
        )

    async def _send(self, parcel: Parcel) -> None:
        link = self._link
        last_broker: str | None = None
        failure: SkylarkError = ClientError("not tried")
        for _ in range(ATTEMPTS):
            route = await link.lookup.publish_route(self._topic)
            queue = choose_in_turn(route.publish, self._turn, last_broker)
            last_broker = queue.broker_name
            try:
                address = link.send_address(await link.lookup.master_of(queue))
                request = self._template.request(parcel, queue, link.clock.now_ms())
                answer = await link.call(address, request, SEND_TIMEOUT_S)
                read_result(answer, address, parcel, queue)
            except SkylarkError as error:
                failure = error
            else:
                return
        raise failure


# ---- what is sent --------------------------------------------------------------------------------


def send_back_header(
    message: MessageExt,
    group: str,
    delay_level: int = BROKER_DECIDES,
    reconsume_times_max: int = RECONSUME_TIMES_MAX,
) -> ConsumerSendMsgBackRequestHeader:
    """CONSUMER_SEND_MSG_BACK (36), for the master of the broker that the message came from."""
    return ConsumerSendMsgBackRequestHeader(
        offset=message.record.log_offset,
        group=group,
        delay_level=delay_level,
        origin_msg_id=message.msg_id,
        origin_topic=_origin_topic(message),
        max_reconsume_times=reconsume_times_max,
    )


def retry_message(
    message: MessageExt, group: str, reconsume_times_max: int = RECONSUME_TIMES_MAX
) -> Message:
    """The message as the client publishes it to the retry topic of the group.

    The broker delays it, or makes it a dead letter if it was delivered too often. Raises
    RemoteProtocolError if the body cannot be decompressed.
    """
    found = dict(message.record.properties)
    wait_store_ok = found.get(names.PROPERTY_WAIT, "").lower() != "false"
    if not found.get(names.PROPERTY_ORIGIN_MESSAGE_ID, "").strip():
        found[names.PROPERTY_ORIGIN_MESSAGE_ID] = message.msg_id
    found[names.PROPERTY_RETRY_TOPIC] = _origin_topic(message)
    found[names.PROPERTY_RECONSUME_TIME] = str(message.reconsume_times + 1)
    found[names.PROPERTY_MAX_RECONSUME_TIMES] = str(reconsume_times_max)
    found.pop(names.PROPERTY_TRAN_MSG, None)
    found[names.PROPERTY_DELAY] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
    return Message(
        topic=retry_topic(group),
        body=message.body,
        properties=found,
        flag=message.flag,
        wait_store_ok=wait_store_ok,
    )


def _origin_topic(message: MessageExt) -> str:
    """The topic that it was sent to, as brokers know it, with namespace."""
    record = message.record
    if is_retry_topic(record.topic):
        return record.properties.get(names.PROPERTY_RETRY_TOPIC, record.topic)
    return record.topic
