"""Copies of expired messages: what a consumer popped and did not acknowledge goes to the retries.

**A copy** goes to the pop retry topic of the group, ``%RETRY%group_topic`` or, with
``enableRetryTopicV2``, ``%RETRY%group+topic``; that of a retry to the topic where it was popped. It
has the body and the properties of its message, one more reconsume time (not if the consumer gave it
back unused, ``suspend``), ORIGIN_GROUP, 1ST_POP_TIME, and this broker as born host. It goes to
queue 0, or with ``useSeparateRetryQueue`` to the queue of its message. The topic is created with
its offsets, gets more queues if its topic has, and is saved before the first copy.

**No message becomes a dead letter here**: clients and proxies decide that when they get a message
(:func:`skylark.core.retry_policy.decide_retry`).

**A batch** of a BatchCQ topic comes back as its messages, because retry topics take no batches.
(Java tries to copy the batch, which its own store never accepts.)

**Not copied** are messages that retention has deleted. A message that cannot be read now gets a
check-point of its own (:func:`~skylark.broker.pop.revive.put_off`). If the store takes no messages,
the caller tries again later.

The copies of one check-point are one run of puts: a crash leaves all, none, or the first of them,
and :class:`~skylark.broker.pop.pop_recovery.RevivedCopies` knows which. Counterpart of
``PopReviveService.reviveRetry`` in Java.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.pop_recovery import COPIED_FROM_MEMORY, RevivedCopies, copy_key
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.revive import put_off
from skylark.broker.send.message_writer import MessageWriter, copy_of
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.table_saver import SavedTable
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.errors import BrokerError, RemoteProtocolError, StoreError
from skylark.core.names import is_retry_topic, pop_retry_topic, topic_of_pop_retry
from skylark.store import config_tables
from skylark.store.commit_log import Draft
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.codes import Perm
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import (
    MessageRecord,
    RecordError,
    decode_record,
    inflate_record,
    unwrap_record,
)
from skylark.wire.pop_records import CheckPoint
from skylark.wire.properties import encode_properties

logger = logging.getLogger(__name__)

_READ_WRITE: Final = Perm.READ | Perm.WRITE


class ReviveTables(msgspec.Struct, frozen=True):
    """The tables of the broker that the revive uses."""

    topics: TopicTable
    topics_saved: SavedTable[config_tables.TopicTable]
    groups: GroupTable
    offsets: OffsetTable


class RetryCopies:
    """Puts copies into pop retry topics."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        state: PopState,
        tables: ReviveTables,
        stats: BrokerStats,
    ) -> None:
        self.store = writer.store
        #: Copies that the log had at the start.
        self.revived = RevivedCopies()
        self._totals = state.totals
        #: Messages that were deleted, or whose topic or group was, before they expired.
        self.lost_count = 0
        #: Check-points of messages that could not be read.
        self.put_off_count = 0
        self._live = live
        self._writer = writer
        self._records = state.records
        self._tables = tables
        self._stats = stats
        self._in_flight = state.in_flight_counts

    def copy_now(self, point: CheckPoint) -> bool:
        """Copy the message of a check-point that is in memory only; False: try again later."""
        return self.copy(point, None, is_old=False) is not None

    def copy(self, point: CheckPoint, revive_queue_id: int | None, *, is_old: bool) -> int | None:
        """Put the copies of one check-point in one run; None: try again later.

        ``revive_queue_id`` is None if the check-point is in memory only. ``is_old``: copies may be
        in the log already.
        """
        read, unreadable, lost = self._read(point)
        topic = self._retry_topic(point) if read else ""
        if topic is None or (unreadable and not self._put_off(point, unreadable, revive_queue_id)):
            return None
        # What is done is marked: should a put fail, the next attempt begins behind it.
        for offset in (*unreadable, *lost):
            point.mark(offset)
        self.lost_count += len(lost)
        self.count_out(point, len(lost))
        copies = []
        for record, offsets in read:
            parts = _parts(record)
            for part in parts:
                draft = self._draft_of(point, part, topic)
                if revive_queue_id is None:
                    draft.prepared_transaction_offset = COPIED_FROM_MEMORY
                settled = offsets if part is parts[-1] else []
                if is_old and self.revived.take(copy_key(part, topic, draft.reconsume_times)):
                    _mark(point, settled)
                else:
                    copies.append((part, draft, settled))
        return self._put_copies(point, copies) if copies else 0

    def _read(
        self, point: CheckPoint
    ) -> tuple[list[tuple[MessageRecord, list[int]]], list[int], list[int]]:
        """The records to copy, and the offsets of those that are unreadable and deleted.

        Each record has the offsets for which it is copied: check-points of other versions may name
        several messages of one record of a BatchCQ topic.
        """
        found: dict[int, tuple[MessageRecord, list[int]]] = {}
        unreadable: list[int] = []
        lost: list[int] = []
        for offset in point.waiting_offsets():
            try:
                record = self._message(point, offset)
            except StoreError as error:
                logger.warning("cannot read %s %s now: %s", point.key, offset, error)
                unreadable.append(offset)
            else:
                if record is not None:
                    found.setdefault(record.log_offset, (record, []))[1].append(offset)
                else:
                    lost.append(offset)
        return list(found.values()), unreadable, lost

    def _put_copies(
        self, point: CheckPoint, copies: list[tuple[MessageRecord, Draft, list[int]]]
    ) -> int | None:
        """Put copies in one run, and mark them; None: not all are stored, try again later."""
        for _, draft, _ in copies:
            self._writer.fit_copy(draft)
        results = self._writer.put_run([draft for _, draft, _ in copies])
        stored, settled_count, is_complete = [], 0, True
        for (record, draft, offsets), result in zip(copies, results, strict=True):
            if result.status.stored:
                stored.append(result)
                settled_count += len(offsets)
                self._stats.put(draft.topic, 1, result.size)
            elif result.status in NEVER_STORED:
                self._writer.uncopied.add("revive", record.log_offset, draft.topic, result.status)
            else:
                is_complete = False
                continue
            _mark(point, offsets)
        if stored:
            self.store.when_durable(stored[-1], _ignore, wait=False)
            self._tables.offsets.log_grown = True
            self._totals.copied[point.group, point.topic] += len(stored)
        self.count_out(point, settled_count)
        return len(stored) if is_complete else None

    def count_out(self, point: CheckPoint, count: int) -> None:
        """Messages of a check-point are in flight no more."""
        self._in_flight.subtract(point.topic, point.group, point.queue_id, count, point.pop_time_ms)

    def _message(self, point: CheckPoint, offset: int) -> MessageRecord | None:
        """A popped message; None if it is gone. Raises StoreError if it may be readable later."""
        if point.broker_name != self._live.current.broker_name:
            raise StoreError(f"it is a message of broker {point.broker_name}")
        queue = self.store.queues.get(point.topic, point.queue_id)
        entry = None if queue is None else queue.read_entry(offset)
        if entry is None:
            logger.info("a popped message was deleted before it expired: %s %s", point.key, offset)
            return None
        return record_at(self.store, entry.log_offset)

    def _draft_of(self, point: CheckPoint, record: MessageRecord, topic: str) -> Draft:
        draft = copy_of(record, topic, self._queue_of(record, topic))
        draft.born_host = self.store.log.store_host
        if not point.suspend:
            draft.reconsume_times += 1
        properties = dict(record.properties)
        properties[names.PROPERTY_ORIGIN_GROUP] = point.group
        first_time = properties.get(names.PROPERTY_FIRST_POP_TIME)
        if first_time is None or record.reconsume_times == 0:
            properties[names.PROPERTY_FIRST_POP_TIME] = str(point.pop_time_ms)
        draft.properties = encode_properties(properties).encode()
        return draft

    def _queue_of(self, record: MessageRecord, topic: str) -> int:
        retries = self._tables.topics.get(topic)
        if not self._live.current.pop.use_separate_retry_queue or retries is None:
            return 0
        # A topic may have lost queues: no pop would find a copy there.
        queue_count = min(retries.read_queue_nums, retries.write_queue_nums)
        return record.queue_id if record.queue_id < queue_count else 0

    def _put_off(
        self, point: CheckPoint, queue_offsets: list[int], revive_queue_id: int | None
    ) -> bool:
        """Write a check-point for each message that cannot be read now; False: try again later."""
        pop = self._live.current.pop
        later = (
            put_off(point, offset, give_up_at_max=pop.skip_when_ck_re_put_reach_max_times)
            for offset in queue_offsets
        )
        queue_id = 0 if revive_queue_id is None else revive_queue_id
        try:
            records = [self._records.check_point(p, queue_id) for p in later if p is not None]
            if records:
                self._records.put(*records)
        except BrokerError as error:
            logger.warning("unreadable messages cannot be put off: %s", error)
            return False
        self.put_off_count += len(records)
        return True

    def _retry_topic(self, point: CheckPoint) -> str | None:
        """The topic of the copies, created if it is missing; None while it is not saved."""
        pop, tables = self._live.current.pop, self._tables
        topic = point.topic
        if not is_retry_topic(topic):
            topic = pop_retry_topic(topic, point.group, v2=pop.enable_retry_topic_v2)
        queue_count = 1
        if pop.use_separate_retry_queue:
            original = tables.topics.get(topic_of_pop_retry(topic, point.group))
            queue_count = 1 if original is None else max(1, original.write_queue_nums)
        existing = tables.topics.get(topic)
        if existing is None or existing.write_queue_nums < queue_count:
            if existing is not None:
                tables.topics.grow(topic, queue_count)
            elif tables.topics.ensure(topic, queue_count=queue_count, perm=_READ_WRITE) is None:
                return None
            for queue_id in range(queue_count):
                if tables.offsets.get(point.group, topic, queue_id) < 0:
                    tables.offsets.commit(point.group, topic, queue_id, 0)
        return None if tables.topics_saved.is_on_its_way else topic


def _parts(record: MessageRecord) -> list[MessageRecord]:
    """The messages of a record; a batch that cannot be read is given as it is, and refused."""
    if not record.sys_flag & FLAG_INNER_BATCH:
        return [record]
    try:
        inflate_record(record)
        parts = unwrap_record(record)
    except RemoteProtocolError as error:
        logger.warning("the batch at log offset %s is unreadable: %s", record.log_offset, error)
        return [record]
    for part in parts:
        part.sys_flag &= ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    return parts or [record]


def _mark(point: CheckPoint, offsets: list[int]) -> None:
    for offset in offsets:
        point.mark(offset)


def record_at(store: MessageStore, log_offset: int) -> MessageRecord | None:
    """The record at a log offset; None if it is gone or damaged."""
    lease = store.reader.record(log_offset)
    if lease is None:
        return None
    try:
        with lease:
            return decode_record(lease.view)
    except RecordError as error:
        logger.warning("the record at log offset %s is unreadable: %s", log_offset, error)
        return None


def _ignore(_status: object) -> None:
    """No request waits for a copy."""
