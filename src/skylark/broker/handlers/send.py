"""Sends: one message (10, 310) or a batch (320), checked, stored, and answered when that is safe.

Hot: called while the bytes are being read. With ASYNC_FLUSH the answer is returned at once. It is
parked in two cases: with SYNC_FLUSH until the disk has the message (unless the message says
WAIT=false), and while a topic that a send has created is not on disk yet, for a crash would
otherwise leave acknowledged messages in a topic that nobody knows.

Checks come in Java's order; what is refused because of overload, or because this broker is a
slave, does not get here (:mod:`skylark.broker.overload`). Every answer, refusals included, has the
ext fields MSG_REGION and TRACE_ON, except when the request itself cannot be read. The queue id in
the answer is the one that was asked for, also when the message went elsewhere (delay, dead
letters); the offset is that of the queue it is in. A batch is answered with the id of each of its
messages.

**Retry topics.** Consumers send here what they could not consume, when sending it back (36) fails,
and orderly consumers always do. What has been tried too often, or comes from a group that consumes
in order right now, goes to the dead letters of the group.

Not supported yet, and refused by name: transactional messages, timer messages, and batches to
topics of the type BatchCQ. A queue id below 0 gets the queues in turn; Java draws one.

Answers to ``SendMessageProcessor`` and ``AbstractSendMessageProcessor``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Final

import msgspec

from skylark.broker.attributes import CLEANUP_POLICY, QUEUE_TYPE
from skylark.broker.config import BrokerConfig
from skylark.broker.groups import GroupTable
from skylark.broker.handlers.answers import FAQ_HINT
from skylark.broker.live_settings import LiveSettings
from skylark.broker.message_writer import MessageWriter
from skylark.broker.order_locks import QueueLocks
from skylark.broker.persist import SavedTable
from skylark.broker.rewriting import delay_level, is_plain
from skylark.broker.stats import BrokerStats
from skylark.broker.topics import TopicTable, describe
from skylark.core.clock import TimeSource
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    MessageIllegalError,
    NoPermissionError,
    StoreError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
    broker_error,
)
from skylark.core.hashing import UniqueIdGenerator, encode_offset_id
from skylark.core.names import (
    RETRY_PREFIX,
    Address,
    dlq_topic,
    is_retry_topic,
    send_problem,
    topic_problem,
)
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.store import config_tables
from skylark.store.commit_log import Draft
from skylark.store.config import FlushDiskType
from skylark.store.results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.batch import BatchMessage, split_batch
from skylark.wire.bodies.config import TopicConfig, TopicFilterType
from skylark.wire.codes import V3_4_9, Perm, RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext
from skylark.wire.headers.send import (
    EXT_MSG_REGION,
    EXT_TRACE_ON,
    SendHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
)
from skylark.wire.layout import FLAG_MULTI_TAGS
from skylark.wire.message import pack_host, reserve_property_crc

BORN_HOST: Final = "born_host"  # attribute of a connection: its address as records hold it
_UNKNOWN_HOST: Final = bytes(8)


class _Sent(msgspec.Struct, gc=False):
    """What the answer to a send says, once the message is stored."""

    request: Command
    message_id: str
    queue_id: int
    queue_offset: int
    unique_id: str | None


class SendHandlers:
    """The requests that store messages of producers."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        topics: TopicTable,
        groups: GroupTable,
        locks: QueueLocks,
        stats: BrokerStats,
        unique_ids: UniqueIdGenerator,
        clock: TimeSource,
        *,
        topics_saved: SavedTable[config_tables.TopicTable],
        steady_ms: Callable[[], int],
    ) -> None:
        """``steady_ms`` is the time that queue locks are given (see ``client_liveness``)."""
        self._live = live
        self._writer = writer
        self._store = writer.store
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._stats = stats
        self._unique_ids = unique_ids
        self._clock = clock
        self._topics_saved = topics_saved
        self._steady_ms = steady_ms
        self._waits_for_disk = writer.store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._turns = count()
        self._parked_count = 0
        self._none_parked: asyncio.Future[None] | None = None
        self._follow(live.current)

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Tell the dispatcher which code each method answers."""
        dispatcher.add_hot(RequestCode.SEND_MESSAGE, self.send)
        dispatcher.add_hot(RequestCode.SEND_MESSAGE_V2, self.send)
        dispatcher.add_hot(RequestCode.SEND_BATCH_MESSAGE, self.send)

    def _follow(self, config: BrokerConfig) -> None:
        """Prepare what every message and every answer gets."""
        self._config = config
        trace_on = "true" if config.trace_on else "false"
        self._ext = {EXT_TRACE_ON: trace_on, EXT_MSG_REGION: config.region_id}
        self._added = {
            names.PROPERTY_MSG_REGION: config.region_id,
            names.PROPERTY_TRACE_ON: trace_on,
            names.PROPERTY_CLUSTER: config.broker_cluster_name,
        }
        self._added_text = names.encode_properties(self._added)

    def send(self, connection: Connection, request: Command) -> Command | None:
        """SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320)."""
        config = self._live.current
        if config is not self._config:
            self._follow(config)
        header: SendHeader
        if request.code == RequestCode.SEND_MESSAGE:
            header = decode_ext(SendMessageRequestHeader, request.ext)
        else:
            header = decode_ext(SendMessageRequestHeaderV2, request.ext)
        body = request.body
        if not body:
            raise BrokerError("the message has no body")
        try:
            topic = self._check(connection, header)
            if header.batch:
                return self._send_batch(connection, request, header, topic, body)
            return self._send_one(connection, request, header, topic, body)
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext=self._ext.copy())

    # --- checks -----------------------------------------------------------------------------------

    def _check(self, connection: Connection, header: SendHeader) -> TopicConfig:
        """The checks before anything is looked at but the header; the topic."""
        config = self._config
        start_ms = config.start_accept_send_request_time_stamp
        if start_ms and self._clock.now_ms() < start_ms:
            raise BrokerError(f"broker unable to service, until {_local_time(start_ms)}")
        topic = self._topics.get(header.topic)
        if not config.broker_permission & Perm.WRITE and topic is not None and topic.order:
            raise NoPermissionError(f"the broker[{config.broker_ip1}] sending message is forbidden")
        # Also where the topic exists: the broker itself makes some that nobody may send to.
        if (problem := topic_problem(header.topic)) is not None:
            raise InvalidParameterError(problem)
        if (problem := send_problem(header.topic)) is not None:
            raise NoPermissionError(problem)
        if topic is None:
            topic = self._create(header)
        if header.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise InvalidParameterError(
                f"request queueId[{header.queue_id}] is illegal, {describe(topic)}"
                f" Producer: {Address(*connection.remote_address)}"
            )
        return topic

    def _create(self, header: SendHeader) -> TopicConfig:
        topic = self._topics.create_on_send(
            header.topic,
            default_topic=header.default_topic,
            queue_count=header.default_topic_queue_nums,
            unit_mode=header.unit_mode or False,
        )
        if topic is None:
            raise TopicNotExistError(
                f"topic[{header.topic}] not exist, apply first please!{FAQ_HINT}"
            )
        return topic

    # --- one message ------------------------------------------------------------------------------

    def _send_one(
        self,
        connection: Connection,
        request: Command,
        header: SendHeader,
        topic: TopicConfig,
        body: bytes,
    ) -> Command | None:
        draft = self._draft(connection, header, topic, body)
        queue_id = draft.queue_id
        text = header.properties or ""
        unique_id = names.find_property(text, names.PROPERTY_UNIQ_KEY)
        if (
            unique_id is not None
            and not topic.attributes
            and not header.topic.startswith(RETRY_PREFIX)
            and is_plain(text)
        ):
            draft.properties = (text + self._added_text).encode()
        else:
            properties = names.parse_properties(text)
            properties.pop(names.PROPERTY_POP_CK, None)
            if is_retry_topic(header.topic):
                self._look_for_dead_letter(request, header, draft, properties)
            unique_id = self._complete(draft, properties, topic)
            draft.properties = names.encode_properties(properties).encode()
        result = self._writer.put(draft)
        if not result.status.stored:
            raise self._refusal(result.status)
        self._count(header.topic, result)
        sent = _Sent(
            request,
            encode_offset_id(self._store.log.store_host, result.log_offset),
            queue_id,
            result.queue_offset,
            unique_id,
        )
        return self._when_durable(connection, sent, result, text)

    def _draft(
        self, connection: Connection, header: SendHeader, topic: TopicConfig, body: bytes
    ) -> Draft:
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = next(self._turns) % max(1, topic.write_queue_nums)
        sys_flag = header.sys_flag
        if topic.topic_filter_type is TopicFilterType.MULTI_TAG:
            sys_flag |= FLAG_MULTI_TAGS
        return Draft(
            header.topic,
            queue_id,
            body,
            flag=header.flag,
            sys_flag=sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_born_host(connection),
            reconsume_times=header.reconsume_times or 0,
        )

    def _look_for_dead_letter(
        self, request: Command, header: SendHeader, draft: Draft, properties: dict[str, str]
    ) -> None:
        """A message to a retry topic may have to go to the dead letters instead."""
        name = header.topic.removeprefix(RETRY_PREFIX).partition("+")[0]
        group = self._groups.find(name)
        if group is None:
            raise SubscriptionGroupNotExistError(f"subscription group not exist, {name} {FAQ_HINT}")
        times_max = group.retry_max_times
        if request.version >= V3_4_9 and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        if draft.reconsume_times > times_max or self._locks.holds_any(name, self._steady_ms()):
            properties[names.PROPERTY_DELAY] = "-1"
            draft.topic, draft.queue_id = dlq_topic(name), 0
            if self._topics.ensure(draft.topic, queue_count=1) is None:
                raise BrokerError(f"topic[{draft.topic}] not exist")

    def _complete(self, draft: Draft, properties: dict[str, str], topic: TopicConfig) -> str:
        """Fill in what is missing, and change what must change; the unique id."""
        unique_id = properties.get(names.PROPERTY_UNIQ_KEY) or self._unique_ids.next_id()
        properties[names.PROPERTY_UNIQ_KEY] = unique_id
        if (
            topic.attributes.get(CLEANUP_POLICY) == "COMPACTION"
            and names.PROPERTY_KEYS not in properties
        ):
            raise MessageIllegalError("Required message key is missing")
        properties.update(self._added)
        if properties.get(names.PROPERTY_TRAN_MSG, "").lower() == "true" and not (
            draft.reconsume_times > 0 and delay_level(properties) > 0
        ):
            if self._config.reject_transaction_message:
                raise NoPermissionError(
                    f"the broker[{self._config.broker_ip1}] sending transaction message"
                    " is forbidden"
                )
            raise BrokerError("this broker does not support transactional messages")
        if names.PROPERTY_INNER_NUM in properties:
            raise self._refusal(PutStatus.MESSAGE_ILLEGAL)
        refused = self._writer.diverter.divert(draft, properties)
        if refused is not None:
            raise self._refusal(refused)
        return unique_id

    # --- batches ----------------------------------------------------------------------------------

    def _send_batch(
        self,
        connection: Connection,
        request: Command,
        header: SendHeader,
        topic: TopicConfig,
        body: bytes,
    ) -> Command | None:
        if is_retry_topic(header.topic):
            raise MessageIllegalError(f"batch request does not support retry group {header.topic}")
        if topic.attributes.get(QUEUE_TYPE) == "BatchCQ":
            raise BrokerError(f"topic {header.topic} is of type BatchCQ, not supported for batches")
        if len(body) > self._store.config.max_message_size:
            raise self._refusal(PutStatus.MESSAGE_ILLEGAL)
        messages = split_batch(body, size_max=len(body))
        text = header.properties or ""
        draft = self._draft(connection, header, topic, b"")
        draft.properties = text.encode()
        result = self._writer.put_batch(draft, messages)
        if not result.status.stored:
            raise self._refusal(result.status)
        self._count(header.topic, result)
        sent = _Sent(
            request,
            ",".join(self._batch_ids(result, messages)),
            draft.queue_id,
            result.queue_offset,
            names.find_property(text, names.PROPERTY_UNIQ_KEY) or self._unique_ids.next_id(),
        )
        return self._when_durable(connection, sent, result, text)

    def _batch_ids(self, result: PutResult, messages: list[BatchMessage]) -> list[str]:
        """The offset id of each message: all have the same size but for body and properties."""
        with_crc = self._store.config.enabled_append_prop_crc
        own_sizes = []
        for message in messages:
            properties = message.properties
            if with_crc:
                properties = reserve_property_crc(properties)
            own_sizes.append(len(message.body) + len(properties))
        overhead = (result.size - sum(own_sizes)) // len(messages)
        store_host, log_offset = self._store.log.store_host, result.log_offset
        ids = []
        for size in own_sizes:
            ids.append(encode_offset_id(store_host, log_offset))
            log_offset += size + overhead
        return ids

    # --- putting and answering --------------------------------------------------------------------

    def _count(self, topic: str, result: PutResult) -> None:
        self._stats.put(
            topic, result.message_count, result.size, is_system=self._topics.is_system(topic)
        )

    def _when_durable(
        self, connection: Connection, sent: _Sent, result: PutResult, properties: str
    ) -> Command | None:
        wait = self._waits_for_disk and _wants_to_wait(properties)
        if wait:
            self._parked_count += 1
            self._store.when_durable(result, partial(self._reply, connection, sent))
            return None
        self._store.when_durable(result, _ignore, wait=False)
        return self._when_saved(connection, sent.request, self._answer(sent, PutStatus.PUT_OK))

    def _reply(self, connection: Connection, sent: _Sent, status: PutStatus) -> None:
        """The outcome of a put that waited for the disk."""
        self._parked_count -= 1
        if not connection.is_closing:
            response = self._when_saved(connection, sent.request, self._answer(sent, status))
            if response is not None:
                connection.reply(sent.request, response)
        if not self._parked_count and self._none_parked is not None:
            self._none_parked.set_result(None)
            self._none_parked = None

    async def none_parked(self) -> None:
        """Wait until no message waits for the disk any more."""
        while self._parked_count:
            if self._none_parked is None:
                self._none_parked = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._none_parked)

    def _answer(self, sent: _Sent, status: PutStatus) -> Command:
        ext = {
            **self._ext,
            "msgId": sent.message_id,
            "queueId": str(sent.queue_id),
            "queueOffset": str(sent.queue_offset),
        }
        if sent.unique_id is not None:
            ext["transactionId"] = sent.unique_id
        return response_to(sent.request, status.code, ext=ext)

    def _when_saved(
        self, connection: Connection, request: Command, response: Command
    ) -> Command | None:
        if not self._topics_saved.is_dirty:
            return response
        connection.spawn(self._reply_when_saved(connection, request, response), request)
        return None

    async def _reply_when_saved(
        self, connection: Connection, request: Command, response: Command
    ) -> None:
        # Whoever saves has logged a failure. The message is stored, so that is the answer.
        with contextlib.suppress(StoreError):
            await self._topics_saved.written()
        connection.reply(request, response)

    def _refusal(self, status: PutStatus) -> BrokerError:
        """Why a message was not stored."""
        hint = None
        match status:
            case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
                size_max = self._store.config.max_message_size
                remark = (
                    "the message is illegal, maybe msg body or properties length not matched."
                    f" msg body length limit {size_max}B, msg properties length limit 32KB."
                )
            case PutStatus.SERVICE_NOT_AVAILABLE:
                remark = (
                    "service not available now. It may be caused by one of the following reasons:"
                    " the broker's disk is full, messages are put to the slave, message store has"
                    " been shut down, etc."
                )
            case PutStatus.CREATE_MAPPED_FILE_FAILED:
                remark = "create mapped file failed, server is busy or broken."
            case PutStatus.OS_PAGE_CACHE_BUSY:
                remark = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
            case PutStatus.WHEEL_TIMER_NOT_ENABLE:
                remark = "accurate timer message is not enabled, timerWheelEnable is false"
                hint = "this broker knows delay levels only"
            case _:
                remark = status.name
        return broker_error(status.code, remark, hint=hint)


def _wants_to_wait(properties: str) -> bool:
    text = names.find_property(properties, names.PROPERTY_WAIT)
    return text is None or text.lower() == "true"


def _born_host(connection: Connection) -> bytes:
    found = connection.attributes.get(BORN_HOST)
    if isinstance(found, bytes):
        return found
    ip, port = connection.remote_address
    try:
        host = pack_host(ip.partition("%")[0], port)
    except ValueError:  # not an address of the internet
        host = _UNKNOWN_HOST
    connection.attributes[BORN_HOST] = host
    return host


def _ignore(_status: PutStatus) -> None:
    """For a put that nobody waits for."""


def _local_time(time_ms: int) -> str:
    local = datetime.fromtimestamp(time_ms / 1000, tz=UTC).astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03d}"
