"""Put: appends drafts to the log as records and dispatches them to the derived files, in one pass.

Checks come in Java's order (``HookUtils.checkBeforePutMessage``, ``MessageExtEncoder``), then
append and dispatch. Only a successful append uses a queue offset: a failed one leaves no gap.
Statuses and their response codes are in :mod:`skylark.store.store_results`.

**Limits** (:class:`PutLimits`). The settings limit a client's message. Only the record format
limits a copy that the broker makes of a stored message: the settings may have changed since the
message was acknowledged. A message that the broker will copy (in the timer topic, in the half
topic) is put only if its copies will fit: ``copy_growth`` returns how many bytes of properties they
have more than its record.

Crash: limits are checked before a byte is written, so a refused message leaves nothing. An accepted
one leaves what :class:`CommitLog` describes, under any limits. Recovery does not use
``maxMessageSize``: a larger record is kept whole or not at all, like any other. ``copy_growth`` is
not stored; a store that was written without it is readable.

The result is returned at once; :meth:`MessageStore.when_durable` reports when the message is
*durable*. If the disk is full, the status is SERVICE_NOT_AVAILABLE, so that producers try another
broker, and the store refuses messages until retention finds room again.

**Unexpected errors.** Every record of the log must be in the derived files: a record without a
queue entry is invisible, and the next record of its queue would take its offset. So each message of
a run fails alone, and a dispatch that raises (because a callback for arrivals has a defect) is
continued. A put fails only if its record is not in the log, or if its entries cannot be made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final, TypeAlias, TypeVar

import msgspec

from skylark.core.errors import StoreError
from skylark.core.names import RETRY_PREFIX
from skylark.store.batch_queue import MESSAGE_COUNT_MAX
from skylark.store.commit_log import CommitLog, Draft, PutLimits, TopicField, topic_field
from skylark.store.config import BrokerRole, StoreConfig
from skylark.store.consume_queue import ConsumeQueue, EntryQueue
from skylark.store.errors import StoreFullError
from skylark.store.log_replay import SECTOR_SIZE
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.reput import HIDDEN_KINDS, Appended, Reput
from skylark.store.running_flags import RunningFlags, StoreFlag
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.batch import Batch
from skylark.wire.layout import (
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    FLAG_TRANSACTION_MASK,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC_SIZE,
    TOPIC_SIZE_V1_MAX,
)
from skylark.wire.properties import find_raw_property

logger = logging.getLogger(__name__)

Queue = TypeVar("Queue", bound=EntryQueue)

#: Given the topic and property string of a timed or half message, returns how many bytes of
#: properties its copies have more than its record; at most :data:`COPY_GROWTH_MAX`.
CopyGrowth: TypeAlias = Callable[[str, bytes], int]

RETRY_TOPIC_SIZE_MAX: Final = 255
COPY_GROWTH_MAX: Final = 1 << 10
_ZERO_SECTOR: Final = bytes(SECTOR_SIZE)
_CACHED_TOPICS_MAX: Final = 100_000
_DELAY: Final = b"DELAY"
_FIELD_SIZE_MAX: Final = TOPIC_SIZE_V1_MAX + 1  # with the byte that holds the length


def no_growth(_topic: str, _properties: bytes) -> int:
    """Copy growth of a store whose messages are not copied."""
    return 0


class Putter:
    """Puts messages into one store."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatch: Reput,
        flags: RunningFlags,
        *,
        copy_growth: CopyGrowth = no_growth,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._flags = flags
        self._body_size_max = config.max_message_size
        self._record_size_max = config.record_size_max
        self._adds_crc = config.enabled_append_prop_crc
        crc_size = PROPERTY_CRC_SIZE if self._adds_crc else 0
        self._properties_size_max = PROPERTIES_SIZE_MAX - crc_size
        # Properties up to this size leave room for any copy.
        self._usual_properties_size_max = self._properties_size_max - COPY_GROWTH_MAX
        self._copy_growth = copy_growth
        self._refuses = config.broker_role is BrokerRole.SLAVE
        self._topics: dict[str, TopicField] = {}

    def shut_down(self) -> None:
        """Refuse all messages from now on."""
        self._refuses = True

    def properties_fit(self, properties: bytes, growth: int = 0) -> bool:
        """Whether a record can hold these properties and ``growth`` bytes, with their checksum."""
        size_max = self._properties_size_max - self._missing_separator_size(properties)
        return len(properties) + growth <= size_max

    def put(self, draft: Draft) -> PutResult:
        """Store one message."""
        return self.put_run([draft])[0]

    def put_batch(self, draft: Draft, batch: Batch) -> PutResult:
        """Store each message of a batch as a record, all or none.

        Topic, queue and times come from the draft; its body is ignored.
        """
        return self.put(msgspec.structs.replace(draft, batch=batch))

    def put_inner_batch(self, draft: Draft, message_count: int) -> PutResult:
        """Store a batch body unsplit, as one record of a BatchCQ topic."""
        if message_count <= 0:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        return self.put(msgspec.structs.replace(draft, inner_count=message_count))

    def put_run(self, drafts: Sequence[Draft]) -> list[PutResult]:
        """Store the messages of a run, in order; each may fail alone.

        A draft with a ``batch`` becomes a record for each of its messages, all or none; one with an
        ``inner_count`` becomes one record of so many messages.
        """
        results: list[PutResult] = []
        appended: list[Appended] = []
        now_ms = self._log.now_ms()
        for draft in drafts:
            try:
                if draft.batch is not None:
                    result = self._append_batch(draft, draft.batch, now_ms, appended)
                elif draft.inner_count:
                    result = self._append_inner_batch(draft, now_ms, appended)
                else:
                    result = self._append(draft, now_ms, appended)
            except StoreError as error:
                result = PutResult(self._failure(error))
            except Exception:
                logger.exception("the store cannot store a message")
                result = PutResult(PutStatus.UNKNOWN_ERROR)
            results.append(result)
        if appended:
            try:
                self._dispatch.add_run(appended, now_ms)
            except Exception as error:  # noqa: BLE001 - raised again if entries are missing
                self._dispatch_remaining(appended, now_ms, error)
        return results

    def _dispatch_remaining(self, records: list[Appended], now_ms: int, error: Exception) -> None:
        """Dispatch the records that an error has left over; raises it if that is not possible."""
        dispatch = self._dispatch
        if dispatch.waiting_count:
            raise error  # out of memory: unknown which of them wait for the disk already
        logger.error("the dispatch of %s messages failed midway", len(records), exc_info=error)
        missing = False
        for queue, log_offset, size, sys_flag, properties in records:
            if log_offset < dispatch.dispatched_until:
                continue  # the error came after its entries
            try:
                dispatch.add_run([(queue, log_offset, size, sys_flag, properties)], now_ms)
            except Exception as again:
                logger.debug("the dispatch of a message failed again", exc_info=again)
                missing |= dispatch.dispatched_until < log_offset + size
        if missing:
            raise error

    def _append(self, draft: Draft, now_ms: int, appended: list[Appended]) -> PutResult:
        """Append one message to the log, unless it is refused."""
        properties, sys_flag = draft.properties, draft.sys_flag
        topic = self._topics.get(draft.topic) or self._topic(draft.topic)
        # One condition that holds for nearly every message; _refusal finds which part failed.
        if not (
            self._flags.writeable
            and 0 < len(draft.body) <= self._body_size_max
            and len(properties) < self._usual_properties_size_max
            and len(topic.field) <= _FIELD_SIZE_MAX
            and 0 not in properties
            and not sys_flag & FLAG_INNER_BATCH
            and not self._refuses
        ):
            refusal = self._refusal(draft, topic, len(draft.body), properties)
            if refusal is not None:
                return PutResult(refusal)
        queues = self._queues.by_topic.get(draft.topic)
        queue = queues.get(draft.queue_id) if queues else None
        if type(queue) is not ConsumeQueue:
            queue = self._new_queue(self._queues.get_or_create, draft)
            if queue is None:
                return PutResult(PutStatus.MESSAGE_ILLEGAL)
        counted = not sys_flag or sys_flag & FLAG_TRANSACTION_MASK not in HIDDEN_KINDS
        queue_offset = queue.next_offset if counted else 0
        result = self._log.append(draft, topic, queue_offset, now_ms)
        if counted:
            queue.next_offset = queue_offset + 1
        appended.append((queue, result.log_offset, result.size, sys_flag, properties))
        return result

    def _append_batch(
        self, draft: Draft, batch: Batch, now_ms: int, appended: list[Appended]
    ) -> PutResult:
        """Append the messages of a batch to the log, all or none."""
        topic = self._topics.get(draft.topic) or self._topic(draft.topic)
        refusal = self._batch_refusal(draft, topic, batch)
        if refusal is not None:
            return PutResult(refusal)
        queue = self._new_queue(self._queues.get_or_create, draft)
        if queue is None:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        queue_offset = queue.next_offset
        offsets, sizes = self._log.append_batch(draft, topic, queue_offset, batch, now_ms)
        count = len(batch)
        queue.next_offset = queue_offset + count
        appended += zip(
            repeat(queue), offsets, sizes, repeat(draft.sys_flag, count), batch.properties
        )
        return PutResult(PutStatus.PUT_OK, offsets[0], sum(sizes), queue_offset, now_ms, count)

    def _append_inner_batch(self, draft: Draft, now_ms: int, appended: list[Appended]) -> PutResult:
        """Append a batch body unsplit, as one record of a BatchCQ topic.

        Adds INNER_BASE and INNER_NUM to the properties, and the flags by which consumers unwrap it;
        the queue offset grows by the number of messages.
        """
        message_count = draft.inner_count
        topic = self._topics.get(draft.topic) or self._topic(draft.topic)
        if not 0 < message_count <= MESSAGE_COUNT_MAX or draft.sys_flag & FLAG_TRANSACTION_MASK:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        queue = self._new_queue(self._queues.get_or_create_batch, draft)
        if queue is None:
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        queue_offset = queue.next_offset
        properties = draft.properties
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties = b"INNER_BASE\x01%d\x02%bINNER_NUM\x01%d\x02" % (
            queue_offset, properties, message_count,
        )  # fmt: skip
        refusal = self._refusal(draft, topic, len(draft.body), properties)
        if refusal is not None:
            return PutResult(refusal)
        sys_flag = draft.sys_flag | FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
        record = msgspec.structs.replace(draft, properties=properties, sys_flag=sys_flag)
        result = self._log.append(record, topic, queue_offset, now_ms)
        queue.next_offset = queue_offset + message_count
        appended.append((queue, result.log_offset, result.size, sys_flag, properties))
        return msgspec.structs.replace(result, message_count=message_count)

    # ---- checks ----------------------------------------------------------------------------------

    def _refusal(
        self,
        draft: Draft,
        topic: TopicField,
        body_size: int,
        properties: bytes,
    ) -> PutStatus | None:
        if self._refuses or not self._flags.writeable:
            return PutStatus.SERVICE_NOT_AVAILABLE
        of_client = draft.limits is PutLimits.SETTINGS
        if len(topic.field) > _FIELD_SIZE_MAX and not self._may_be_long(draft.topic, of_client):
            return PutStatus.MESSAGE_ILLEGAL
        if of_client and body_size == 0:
            return PutStatus.MESSAGE_ILLEGAL
        growth = self._copy_growth(draft.topic, properties) if of_client else 0
        if not self.properties_fit(properties, growth):
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if properties[-1:] == b"\0" or _ZERO_SECTOR in properties:
            # Recovery would treat a record that ends in a zero, or has a sector of zeros outside
            # the checksum, as torn: the store must refuse it.
            return PutStatus.MESSAGE_ILLEGAL
        is_too_large = (
            body_size > self._body_size_max
            or body_size + len(properties) + len(topic.field) + 128 > self._record_size_max
            if of_client
            else not self._log.can_hold(draft, topic)
        )
        if is_too_large:
            return PutStatus.MESSAGE_ILLEGAL
        if draft.sys_flag & FLAG_INNER_BATCH:
            return PutStatus.MESSAGE_ILLEGAL  # only topics of type BatchCQ accept inner batches
        return None

    def _batch_refusal(self, draft: Draft, topic: TopicField, batch: Batch) -> PutStatus | None:
        if not batch or draft.topic.startswith(RETRY_PREFIX):
            return PutStatus.MESSAGE_ILLEGAL
        if draft.sys_flag & FLAG_TRANSACTION_MASK in HIDDEN_KINDS:
            return PutStatus.MESSAGE_ILLEGAL
        delay = find_raw_property(draft.properties, _DELAY)
        if delay is not None and delay.lstrip(b"+0").isdigit():
            return PutStatus.MESSAGE_ILLEGAL
        usual_max = min(self._body_size_max, self._usual_properties_size_max) - _FIELD_SIZE_MAX
        if (
            self._refuses
            or not self._flags.writeable
            or len(topic.field) > _FIELD_SIZE_MAX
            or draft.sys_flag & FLAG_INNER_BATCH
            or max(batch.sizes) > usual_max
            or not all(batch.bodies)
            or 0 in b"".join(batch.properties)
        ):  # true for hardly any batch; the loop finds the message that is refused
            for message in batch:
                body_size, properties = len(message.body), message.properties
                refusal = self._refusal(draft, topic, body_size, properties)
                if refusal is not None:
                    return refusal
        of_client = draft.limits is PutLimits.SETTINGS
        is_too_large = of_client and sum(batch.sizes) > self._record_size_max
        return PutStatus.MESSAGE_ILLEGAL if is_too_large else None

    def _missing_separator_size(self, properties: bytes) -> int:
        """Size of the separator that a checksum needs before it, 0 or 1."""
        return self._adds_crc and bool(properties) and properties[-1:] != b"\x02"

    def _may_be_long(self, topic: str, of_client: bool) -> bool:
        of_retries = topic.startswith(RETRY_PREFIX)
        return (of_retries or not of_client) and len(topic.encode()) <= RETRY_TOPIC_SIZE_MAX

    # ---- helpers ---------------------------------------------------------------------------------

    def _topic(self, topic: str) -> TopicField:
        if len(self._topics) >= _CACHED_TOPICS_MAX:
            self._topics.clear()
        field = self._topics[topic] = topic_field(topic)
        return field

    def _new_queue(self, make: Callable[[str, int], Queue], draft: Draft) -> Queue | None:
        """The queue of a message; None if its name is invalid, or it is of the other kind."""
        try:
            return make(draft.topic, draft.queue_id)
        except StoreError as error:
            logger.debug("the store refuses a message: %s", error)
            return None

    def _failure(self, error: StoreError) -> PutStatus:
        if isinstance(error, StoreFullError):
            if self._flags.set(StoreFlag.DISK_FULL):
                logger.error("the store refuses messages until there is room: %s", error)
            return PutStatus.SERVICE_NOT_AVAILABLE
        logger.error("the store cannot store a message: %s", error)
        return PutStatus.CREATE_MAPPED_FILE_FAILED
