"""Copies of expired messages: what a consumer popped and did not acknowledge goes to the retries.

**A copy** goes to the pop retry topic of the group (:mod:`skylark.broker.pop.retry_topics`). It
has the body and the properties of its message, one more reconsume time (not if the consumer gave it
back unused, ``suspend``), ORIGIN_GROUP, 1ST_POP_TIME, and this broker as born host. It goes to
queue 0, or with ``useSeparateRetryQueue`` to the queue of its message.

**No message becomes a dead letter here**: clients and proxies decide that when they get a message
(:func:`skylark.core.retry_policy.decide_retry`).

**A batch** of a BatchCQ topic comes back as its messages, because retry topics take no batches.
(Java tries to copy the batch, which its own store never accepts.)

**Not copied** are messages that retention has deleted. A message that cannot be read now gets a
check-point of its own (:func:`~skylark.broker.pop.revive.put_off`), and so have messages whose
retry topic cannot be created: they hold up no others. If the store takes no messages, the caller
tries again later.

The copies of one check-point are one run of puts, or a few if they are too many for a turn of the
loop. A crash leaves all, none, or the first of them, and
:class:`~skylark.broker.pop.pop_recovery.RevivedCopies` knows which; the files that are written
meanwhile name them (:meth:`RetryCopies.unfinished_offsets`). Counterpart of
``PopReviveService.reviveRetry`` in Java.
"""

from __future__ import annotations

import enum
import logging
import math
import sys
from collections.abc import Iterator

import msgspec

from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.pop_recovery import COPIED_FROM_MEMORY, RevivedCopies, copy_key
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.retry_topics import Readiness, RetryTopics, ReviveTables
from skylark.broker.pop.revive import put_off, wait_for_topic
from skylark.broker.pop.revive_turn import Turn
from skylark.broker.send.message_writer import MessageWriter, copy_of
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, RemoteProtocolError, StoreError
from skylark.store.commit_log import Draft
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import (
    MessageRecord,
    RecordError,
    decode_record,
    inflate_record,
    unwrap_record,
)
from skylark.wire.pop_records import COUNT_MAX, CheckPoint
from skylark.wire.properties import encode_properties

logger = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """How far the messages of a check-point are."""

    #: Each has its copy, or a new check-point, or is gone.
    DONE = enum.auto()
    #: The turn is over before the last one; call again.
    UNFINISHED = enum.auto()
    #: Their topic is new, and being saved.
    AWAITS_TOPIC = enum.auto()
    #: The store takes no messages now.
    STORE_REFUSES = enum.auto()


class _Read(msgspec.Struct):
    """Messages of a check-point, as they were found."""

    #: By log offset: the record, and the queue offsets for which it is copied. Check-points of
    #: other versions may name several messages of one record of a BatchCQ topic.
    records: dict[int, tuple[MessageRecord, list[int]]] = msgspec.field(default_factory=dict)
    unreadable: list[int] = msgspec.field(default_factory=list)
    lost: list[int] = msgspec.field(default_factory=list)
    #: Whether no messages are left for another turn.
    is_all: bool = True


class RetryCopies:
    """Puts copies into pop retry topics."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        state: PopState,
        tables: ReviveTables,
        stats: BrokerStats,
        clock: TimeSource,
    ) -> None:
        self.store = writer.store
        self.topics = RetryTopics(live, tables)
        #: Copies that the log had at the start.
        self.revived = RevivedCopies()
        self._totals = state.totals
        #: Messages that were deleted, or whose topic or group was, before they expired.
        self.lost_count = 0
        #: Messages that got a check-point of their own, each time.
        self.put_off_count = 0
        self._live = live
        self._writer = writer
        self._records = state.records
        self._tables = tables
        self._stats = stats
        self._clock = clock
        self._in_flight = state.in_flight_counts
        #: Log offsets of copies whose check-point is not done, by its revive queue.
        self._unfinished: dict[int, list[int]] = {}

    def copy_now(self, point: CheckPoint) -> bool:
        """Copy the message of a check-point that is in memory only; False: try again later."""
        turn = Turn(self._clock, count=COUNT_MAX, bytes_max=sys.maxsize, seconds=math.inf)
        return self.copy(point, None, turn, is_old=False) is Outcome.DONE

    def copy(
        self, point: CheckPoint, revive_queue_id: int | None, turn: Turn, *, is_old: bool
    ) -> Outcome:
        """Put the copies of one check-point, at least one of them, until the turn is over.

        ``revive_queue_id`` is None if the check-point is in memory only. ``is_old``: copies may be
        in the log already. What is done is marked: another call begins behind it.
        """
        if self.topics.is_unsaved(point):
            return Outcome.AWAITS_TOPIC
        read = self._read(point, turn)
        readiness = self.topics.prepare(point) if read.records else Readiness.READY
        if readiness is Readiness.UNSAVED:
            return Outcome.AWAITS_TOPIC
        self._give_up(point, read.lost)
        later = self._later(point, read, needs_topic=readiness is Readiness.REFUSED)
        if not self._put_off(point, later, revive_queue_id):
            return Outcome.STORE_REFUSES
        if readiness is Readiness.READY and not self._copy_records(
            point, read, revive_queue_id, is_old=is_old
        ):
            return Outcome.STORE_REFUSES
        return Outcome.DONE if read.is_all else Outcome.UNFINISHED

    def left(self, revive_queue_id: int) -> None:
        """A check-point has left its queue: the saved offset will count its copies."""
        self._unfinished.pop(revive_queue_id, None)

    def unfinished_offsets(self) -> list[int]:
        """Log offsets of the copies that were made of check-points that have not left yet."""
        return [offset for offsets in self._unfinished.values() for offset in offsets]

    def give_up(self, point: CheckPoint) -> None:
        """Topic or group of a check-point is gone: its messages have no end but this."""
        self._give_up(point, point.waiting_offsets())

    def _give_up(self, point: CheckPoint, queue_offsets: list[int]) -> None:
        _mark(point, queue_offsets)
        self.lost_count += len(queue_offsets)
        self.count_out(point, len(queue_offsets))

    def _read(self, point: CheckPoint, turn: Turn) -> _Read:
        """Read messages until the turn is over, at least one."""
        read = _Read()
        for offset in point.waiting_offsets():
            try:
                log_offset = self._log_offset(point, offset)
                if log_offset in read.records:
                    read.records[log_offset][1].append(offset)
                    continue
                if turn.is_over and (read.records or read.unreadable or read.lost):
                    read.is_all = False
                    break
                record = None if log_offset is None else record_at(self.store, log_offset)
            except StoreError as error:
                logger.warning("cannot read %s %s now: %s", point.key, offset, error)
                read.unreadable.append(offset)
                turn.take()
            else:
                if record is None:
                    logger.info(
                        "a popped message is gone before it expired: %s %s", point.key, offset
                    )
                    read.lost.append(offset)
                else:
                    read.records[record.log_offset] = record, [offset]
                turn.take(0 if record is None else record.total_size)
        return read

    def _copy_records(
        self, point: CheckPoint, read: _Read, revive_queue_id: int | None, *, is_old: bool
    ) -> bool:
        """Put the copies of records; False: not all are stored."""
        topic = self.topics.name_of(point)
        copies = []
        for record, offsets in read.records.values():
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
        return not copies or self._put_copies(point, revive_queue_id, copies)

    def _put_copies(
        self,
        point: CheckPoint,
        revive_queue_id: int | None,
        copies: list[tuple[MessageRecord, Draft, list[int]]],
    ) -> bool:
        """Put copies in one run, and mark them; False: not all are stored."""
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
                settled_count += len(offsets)
                self._writer.uncopied.add("revive", record.log_offset, draft.topic, result.status)
            else:
                is_complete = False
                continue
            _mark(point, offsets)
        if stored:
            self.store.when_durable(stored[-1], _ignore, wait=False)
            self._tables.offsets.log_grown = True
            self._totals.copied[point.group, point.topic] += len(stored)
            if revive_queue_id is not None:
                unfinished = self._unfinished.setdefault(revive_queue_id, [])
                unfinished.extend(result.log_offset for result in stored)
        self.count_out(point, settled_count)
        return is_complete

    def count_out(self, point: CheckPoint, count: int) -> None:
        """Messages of a check-point are in flight no more."""
        self._in_flight.subtract(point.topic, point.group, point.queue_id, count, point.pop_time_ms)

    def _log_offset(self, point: CheckPoint, queue_offset: int) -> int | None:
        """Where a popped message is; None if it is gone. Raises StoreError if that is unknown."""
        if point.broker_name != self._live.current.broker_name:
            raise StoreError(f"it is a message of broker {point.broker_name}")
        queue = self.store.queues.get(point.topic, point.queue_id)
        entry = None if queue is None else queue.read_entry(queue_offset)
        return None if entry is None else entry.log_offset

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

    def _later(
        self, point: CheckPoint, read: _Read, *, needs_topic: bool
    ) -> Iterator[tuple[CheckPoint | None, list[int]]]:
        """New check-points with the messages that they are for; None: these are given up."""
        gives_up = self._live.current.pop.skip_when_ck_re_put_reach_max_times
        now_ms = self._clock.now_ms()
        for offset in read.unreadable:
            yield put_off(point, offset, now_ms, give_up_at_max=gives_up), [offset]
        if needs_topic:
            waiting = [offset for _, offsets in read.records.values() for offset in offsets]
            yield wait_for_topic(point, waiting, now_ms), waiting

    def _put_off(
        self,
        point: CheckPoint,
        later: Iterator[tuple[CheckPoint | None, list[int]]],
        revive_queue_id: int | None,
    ) -> bool:
        """Write new check-points; False: not all are stored."""
        for new_point, offsets in later:
            if new_point is None:
                self._give_up(point, offsets)
                continue
            try:
                self._records.put(self._records.check_point(new_point, revive_queue_id or 0))
            except BrokerError as error:
                logger.warning("messages cannot be put off now: %s", error)
                return False
            _mark(point, offsets)
            self._tables.offsets.log_grown = True
            self.put_off_count += len(offsets)
        return True


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
