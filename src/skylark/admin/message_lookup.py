"""Finding stored messages: by place, by id, by key. What the families of functions share.

**Ids.** An *offset id* says which broker stored a message, and where in its log; a *unique id* was
drawn by the producer and is looked up in the index of its topic. Both are 32 digits (56 with IPv6)
and cannot be told apart for certain.

An offset id names the broker as it knew itself when it stored the message. It is looked for at the
registered broker with that address; if there is none (behind address translation, or the broker has
moved), at all masters, and what is found counts only if it carries the id. So nobody makes us
connect to an address that is not registered.

**Keys.** The index knows hashes, so what it finds is compared with what was asked for, and messages
of all brokers of the topic are put together, oldest first.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from skylark.admin.admin_session import Session
from skylark.admin.errors import NotFoundError
from skylark.admin.fan_out import FannedOut, on_each
from skylark.client.core.broker_calls import Pulled, PullStatus
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import BrokerError, RemoteProtocolError
from skylark.core.hashing import OffsetId, decode_offset_id
from skylark.core.names import TOOLS_GROUP, Address, is_retry_topic
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import PullSysFlag
from skylark.wire.fields import INT64_MAX
from skylark.wire.headers.pull import PullMessageRequestHeader, QueryMessageRequestHeader
from skylark.wire.layout import FLAG_INNER_BATCH
from skylark.wire.message import MessageRecord, inflate_record, iter_records, unwrap_record
from skylark.wire.properties import PROPERTY_RETRY_TOPIC

KEY_COUNT_MAX: Final = 64
KEY_INDEX: Final = "K"
UNIQUE_INDEX: Final = "U"
PULL_TIMEOUT_S: Final = 10.0


async def by_offset_id(session: Session, message_id: str) -> MessageExt | None:
    """The message with an offset id; None if there is none, or if it is no offset id."""
    try:
        place = decode_offset_id(message_id)
    except RemoteProtocolError:
        return None
    address = _address(place)
    info = await session.cluster_info()
    masters = await session.masters()
    names = {
        address: name
        for name, data in info.broker_addr_table.items()
        for address in data.broker_addrs.values()
    }
    targets = {names[address]: address} if address in names else masters

    async def view(_: str, address: str) -> MessageRecord | None:
        try:
            record = await session.calls.view_message(address, place.log_offset)
        except BrokerError:  # code 1: nothing there
            return None
        except RemoteProtocolError:  # the middle of something
            return None
        return record if record.offset_id == message_id.upper() else None

    answers = await on_each(targets, view)
    for broker, record in answers.some().items():
        if record is not None:
            return message_of(session, record, broker)
    if answers.failures:
        answers.all()
    return None


def _address(place: OffsetId) -> str:
    return str(Address(str(ipaddress.ip_address(place.ip)), place.port))


async def by_key(
    session: Session,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = INT64_MAX,
    count_max: int = KEY_COUNT_MAX,
    unique: bool = False,
) -> list[MessageExt]:
    """Messages of a topic, named as servers know it, that have a key or a unique id.

    Raises NotFoundError for the topic, and if not all brokers can be asked.
    """
    answers = await search_index(
        session,
        await session.topic_masters(topic),
        topic,
        key,
        begin_ms=begin_ms,
        end_ms=end_ms,
        count_max=count_max,
        unique=unique,
    )
    return oldest_first(answers.all().values(), count_max)


async def search_index(
    session: Session,
    masters: Mapping[str, str],
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = INT64_MAX,
    count_max: int = KEY_COUNT_MAX,
    unique: bool = False,
) -> FannedOut[list[MessageExt]]:
    """What each of some masters has of a topic with a key or a unique id."""
    header = QueryMessageRequestHeader(
        topic=topic,
        key=key,
        max_num=count_max,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        index_type=UNIQUE_INDEX if unique else KEY_INDEX,
        unique_key_query=unique,
    )

    async def search(broker: str, address: str) -> list[MessageExt]:
        answer = await session.calls.query_messages(address, header, session.timeout_s)
        found = (message_of(session, record, broker) for record in answer.records)
        return [
            message
            for message in found
            if message.record.topic == topic
            and (message.msg_id == key if unique else key in message.keys)
        ]

    return await on_each(masters, search)


def oldest_first(
    found: Iterable[list[MessageExt]], count_max: int = KEY_COUNT_MAX
) -> list[MessageExt]:
    """What brokers have found, put together; of too many, the newest."""
    messages = [message for part in found for message in part]
    messages.sort(key=lambda message: message.record.store_timestamp)
    return messages[-count_max:]


async def at_offset(session: Session, address: str, queue: MessageQueue, offset: int) -> MessageExt:
    """The message at an offset of a queue; raises NotFoundError."""
    header = PullMessageRequestHeader(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription="*",
        sub_version=0,
    )
    pulled = await session.calls.pull(address, header, queue.broker_name, PULL_TIMEOUT_S)
    if pulled.status is PullStatus.FOUND:
        for record in records_of(pulled):
            if record.queue_offset == offset:
                return message_of(session, record, queue.broker_name)
    raise NotFoundError(
        f"there is no message at offset {offset} of queue {queue.queue_id} of"
        f" {session.unwrap(queue.topic)} on {queue.broker_name}",
        hint=f"it has {pulled.min_offset} to {pulled.max_offset - 1}",
    )


def records_of(pulled: Pulled) -> Iterator[MessageRecord]:
    """The messages of a pull, those inside batches too, with offsets as the queue counts them."""
    for outer in iter_records(pulled.body):
        if outer.sys_flag & FLAG_INNER_BATCH:
            inflate_record(outer)
        for record in unwrap_record(outer):
            record.queue_offset += pulled.offset_delta
            yield record


def message_of(session: Session, record: MessageRecord, broker: str) -> MessageExt:
    """A record as a message, with its topic as the application knows it."""
    if not session.namespace.name:
        return MessageExt(record, broker)
    topic = record.topic
    if is_retry_topic(topic):
        topic = record.properties.get(PROPERTY_RETRY_TOPIC, topic)
    return MessageExt(record, broker, session.unwrap(topic))
