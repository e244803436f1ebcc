"""Pulls and offset requests of consumers about single queues, and the decoding of pulled messages.

:class:`QueueAccess` sends requests for one group over the link of the event loop that pulls.
Committed offsets are in :mod:`skylark.client.consumer.offset_persistence`. Topics and groups are
names as brokers know them, except in messages, which have those of the application.

Pulls contain their subscription, so the broker need not know the group, and commit no offset;
those of a push consumer commit, and brokers know its subscription from heartbeats.
Only brokers since 4.1 filter by SQL; the version of a broker is known from its response to a
heartbeat, and without one such a pull is refused here.

:func:`decode_messages` serves every kind of consumer. It unpacks inner batches, and adds the lowest
and highest offset of the queue to the properties of each message, as Java's client does. A message
that was dispatched to several queues gets the queue from which it was read. Bytes that are not a
record end the list; the messages before them are valid.

Counterpart of Java's ``PullAPIWrapper`` and of the queries of ``MQAdminImpl``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from skylark.client.consumer.start_position import (
    AskMaxOffset,
    Start,
    UseOffset,
    start_position,
)
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.broker_calls import Pulled, PullStatus
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import MessageExt
from skylark.client.core.route_cache import MASTER_ID, Target
from skylark.client.errors import UndecodableError
from skylark.core.errors import BrokerError, ClientError, RemoteProtocolError
from skylark.core.names import is_retry_topic, topic_of_pop_retry
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.codes import V4_1_0_SNAPSHOT, PullSysFlag, ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP, RECORD_HEADS
from skylark.wire.message import MessageRecord, inflate_record, iter_records, unwrap_record
from skylark.wire.properties import PROPERTY_MAX_OFFSET, PROPERTY_MIN_OFFSET

_QUEUE_OFFSET: Final = 5  # index of the field in the head of a record


class PullResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a pull; the next pull starts at ``next_offset``, with any status."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt]


class PullTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a pull."""

    count_max: int
    size_max: int | None = None
    suspend_s: float = 0.0  #: how long the broker may wait for a first message; 0: not at all
    timeout_s: float = 30.0
    lite: bool = False  #: use the request of lite pull consumers (361), of brokers since 5.0
    bulk: bool = False  #: allow more messages than brokers send by default (Skylark's)
    commit_offset: int = 0  #: commit this offset too, unless the broker is a slave
    #: the subscription is known from heartbeats, in this version at least
    is_registered: bool = False
    with_subscription: bool = True
    needs_version: bool = True  #: SQL: refuse brokers that have not answered a heartbeat


class QueueAccess:
    """Requests about queues for one group, over one link."""

    def __init__(self, instance: ClientInstance, link: BrokerConnections, group: str) -> None:
        self.link = link
        self._instance = instance
        self._group = group
        self._without_lite: set[str] = set()  # addresses of brokers before 5.0

    # ---- messages --------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        offset: int,
        terms: PullTerms,
        broker_id: int = MASTER_ID,
    ) -> tuple[PullResult, int]:
        """Messages from ``offset`` on, and the id of the broker for the next pull.

        Returns the messages before one that cannot be decoded; the next pull, which starts with
        it, raises UndecodableError.
        """
        target = await self.link.lookup.reader_of(queue, broker_id)
        if subscription.is_sql and terms.needs_version:
            require_sql(self._instance, target, queue)
        header = self._pull_header(queue, subscription, offset, terms, target)
        pulled = await self._call(target.address, header, queue.broker_name, terms)
        shown = self._instance.namespace.unwrap
        # Of a pop retry topic the name says which topic it is for, of others each message.
        origin = topic_of_pop_retry(queue.topic, self._group)
        topic = None if is_retry_topic(origin) else shown(origin)
        found, error = decode_messages(pulled, queue, topic)
        next_offset = pulled.next_offset
        if error is not None:
            if not found:
                raise _undecodable(pulled, queue, offset, terms.count_max) from error
            next_offset = found[-1].queue_offset + 1
        result = PullResult(
            status=pulled.status,
            next_offset=next_offset,
            min_offset=pulled.min_offset,
            max_offset=pulled.max_offset,
            messages=subscription.select(found),
        )
        if topic is None and self._instance.namespace.name:
            result.messages[:] = [
                MessageExt(each.record, each.broker_name, shown(each.topic))
                for each in result.messages
            ]
        return result, pulled.suggested_broker_id

    async def _call(
        self, address: str, header: PullMessageRequestHeader, broker_name: str, terms: PullTerms
    ) -> Pulled:
        pull, timeout_s = self.link.calls.pull, terms.timeout_s
        if terms.lite and address not in self._without_lite:
            try:
                return await pull(address, header, broker_name, timeout_s, lite=True)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                self._without_lite.add(address)
        return await pull(address, header, broker_name, timeout_s)

    def _pull_header(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        offset: int,
        terms: PullTerms,
        target: Target,
    ) -> PullMessageRequestHeader:
        flags = 0
        if terms.commit_offset > 0 and not target.is_slave:
            flags |= PullSysFlag.COMMIT_OFFSET
        if terms.suspend_s > 0:
            flags |= PullSysFlag.SUSPEND
        if terms.with_subscription:
            flags |= PullSysFlag.SUBSCRIPTION
        if terms.lite:
            flags |= PullSysFlag.LITE_PULL
        has_version = terms.is_registered or subscription.is_sql
        data = subscription.data
        return PullMessageRequestHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=terms.count_max,
            max_msg_bytes=terms.size_max,
            sys_flag=flags,
            commit_offset=terms.commit_offset,
            suspend_timeout_millis=round(terms.suspend_s * 1000),
            subscription=data.sub_string if terms.with_subscription else None,
            sub_version=subscription.pull_version if has_version else 0,
            expression_type=data.expression_type,
            bulk=terms.bulk or None,
        )

    # ---- offsets ---------------------------------------------------------------------------------

    async def first_offset(
        self,
        queue: MessageQueue,
        read: Callable[[MessageQueue], Awaitable[int | None]],
        where: ConsumeFromWhere,
        time_ms: int,
    ) -> int:
        """The offset to start at; ``read`` finds the committed offset, None if there is none."""
        start = start_position(queue.topic, await read(queue), where, time_ms)
        return await first_offset(self.link, queue, start, read)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        return await self.link.calls.min_offset(await self.link.lookup.master_of(queue), queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset of the next message to be stored."""
        return await self.link.calls.max_offset(await self.link.lookup.master_of(queue), queue)

    async def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message stored at or after this time."""
        address = await self.link.lookup.master_of(queue)
        return await self.link.calls.search_offset(address, queue, time_ms)


async def check_sql(
    instance: ClientInstance, link: BrokerConnections, group: str, subscription: Subscription
) -> None:
    """Let a broker check an SQL condition; raises BrokerError if it is invalid."""
    if subscription.is_sql:
        await link.calls.check_client(
            await link.lookup.broker_of_topic(subscription.topic),
            instance.client_id,
            group,
            subscription.data,
            namespace=instance.namespace.name,
        )


def require_sql(instance: ClientInstance, target: Target, queue: MessageQueue) -> None:
    """Raise ClientError if a broker is too old to filter by SQL, or has sent no version yet."""
    version = instance.broker_version(target.address)
    if version < V4_1_0_SNAPSHOT:
        raise ClientError(
            f"broker {queue.broker_name} at {target.address}, version {version},"
            " does not upgrade to support for filter message by SQL92",
            hint="its version is known once it has answered a heartbeat",
        )


async def first_offset(
    link: BrokerConnections,
    queue: MessageQueue,
    start: Start,
    read: Callable[[MessageQueue], Awaitable[int | None]],
) -> int:
    """The offset that a start position stands for; asks the master of the queue if needed.

    The committed offset is read a second time (``read``) if the queue is not empty: its first
    message may have come after the broker had answered that there is no offset, and would be
    skipped. Now the broker answers 0, as it does for a queue whose first message is in memory.
    """
    if isinstance(start, UseOffset):
        return start.offset
    address = await link.lookup.master_of(queue)
    if isinstance(start, AskMaxOffset):
        end = await link.calls.max_offset(address, queue)
        stored = await read(queue) if end > 0 else None
        return end if stored is None or stored < 0 else stored
    return await link.calls.search_offset(address, queue, start.time_ms)


def _undecodable(
    pulled: Pulled, queue: MessageQueue, offset: int, count_max: int
) -> UndecodableError:
    """The error for a response that starts with bytes that are not a message.

    Its ``next_offset`` must skip no valid message: it is the end of the response if the pull was
    for one message, else the offset after the one in the record, if that offset is plausible.
    """
    if count_max == 1:
        return UndecodableError(queue, offset, max(offset + 1, pulled.next_offset))
    head = RECORD_HEADS[0]
    if len(pulled.body) >= head.size:
        claimed = int(head.unpack_from(pulled.body)[_QUEUE_OFFSET]) + pulled.offset_delta
        if offset <= claimed < pulled.next_offset:
            return UndecodableError(queue, claimed, claimed + 1)
    return UndecodableError(queue, offset, offset + 1)


_INNER_BATCH: Final = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP


def decode_messages(
    pulled: Pulled, queue: MessageQueue, topic: str | None = None
) -> tuple[list[MessageExt], RemoteProtocolError | None]:
    """The messages in a response, and the error that ended them; ``topic`` is the name to show."""
    broker_name, queue_id, delta = queue.broker_name, queue.queue_id, pulled.offset_delta
    seen = (
        f"{PROPERTY_MIN_OFFSET}\x01{pulled.min_offset}\x02"
        f"{PROPERTY_MAX_OFFSET}\x01{pulled.max_offset}\x02"
    ).encode()
    found: list[MessageExt] = []
    try:
        for stored in iter_records(pulled.body):
            parts = (stored,) if stored.sys_flag & _INNER_BATCH != _INNER_BATCH else None
            for record in parts or _unwrap(stored):
                raw = record.raw_properties
                record.raw_properties = raw + (seen if raw[-1:] == b"\x02" else b"\x02" + seen)
                if record.queue_id != queue_id:
                    record.queue_id = queue_id
                if delta:
                    record.queue_offset += delta
                found.append(MessageExt(record, broker_name, topic))
    except RemoteProtocolError as error:
        return found, error
    return found, None


def _unwrap(stored: MessageRecord) -> list[MessageRecord]:
    inflate_record(stored)
    return unwrap_record(stored)
