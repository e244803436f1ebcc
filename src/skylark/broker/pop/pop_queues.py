"""Reads one queue for a pop: where the group is, what it may have, and the check-point of it.

::

    a pending reset           -> its offset; what was in hand is forgotten
    a committed offset, or the end of what was popped last
    none of these             -> initMode 0, or a retry topic: the first message;
                                 initMode 1: the last one, but the first one of a young queue

An offset outside the queue is corrected, and read once more. The offsets of the messages that were
found follow from where the read began and ended; only where a filter or a deleted record has left
gaps, each record is asked for its own. A record of a BatchCQ topic has one offset, that of its
first message (:mod:`skylark.broker.pop.record_bounds`).

A pop ends before the messages of its queues exceed :data:`BYTES_MAX`: each read is limited as that
of a pull, but clients accept no frame of more than 16 MiB. (Java counts messages only, and its
clients close the connection.) What did not fit stays in its queue, and counts as left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from skylark.broker.api import LeasedMessages, Pending
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.order_locks import OrderLocks
from skylark.broker.pop.order_pop import OrderPops
from skylark.broker.pop.pop_checks import PopFilter
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.queue_order import QueueOfTopic
from skylark.broker.pop.record_bounds import record_start
from skylark.broker.send.own_copies import without_optional
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.stats.store_stats import StoreStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.core.errors import BrokerError, StoreError
from skylark.store.batch_queue import BatchQueue
from skylark.store.message_reader import GetResult
from skylark.store.message_store import MessageStore
from skylark.store.store_results import GetStatus
from skylark.wire.headers.pop import PopMessageRequestHeader, PopMessageResponseHeader
from skylark.wire.layout import PROPERTIES_SIZE_MAX
from skylark.wire.message import decode_record, encode_record
from skylark.wire.pop_handle import NORMAL_TOPIC, OffsetKey, PopHandle, QueueKey, kind_of
from skylark.wire.pop_records import CheckPoint
from skylark.wire.properties import PROPERTY_POP_CK, without_property

logger = logging.getLogger(__name__)

#: Bytes of messages in one answer, unless a single message has more.
BYTES_MAX: Final = 8 << 20
INIT_MIN: Final = 0  # initMode: a group without an offset starts at the first message
_HEAD: Final = Struct(">i16xq")  # of a record: size, offset in its queue
_POP_CK: Final = PROPERTY_POP_CK.encode()
_CORRECTED: Final = frozenset(
    {GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL}
)
_PASSED_OVER: Final = frozenset({GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING})


class TakenMessages(NamedTuple):
    """Messages of one queue that a pop has taken."""

    start_offset: int
    offsets: Sequence[int]
    messages: LeasedMessages
    pending: Pending[None] | None = None
    #: Of an ordered pop: how often each offset was delivered before, and the least of all.
    order_counts: tuple[dict[int, int], int] | None = None


class Found(msgspec.Struct):
    """What one pop has taken so far."""

    count_max: int
    count: int = 0
    size: int = 0
    rest: int = 0
    #: Whether a queue had more than the answer has room for.
    is_closed: bool = False
    #: Whether messages were passed over that the filter does not match.
    has_skipped: bool = False
    parts: list[LeasedMessages] = msgspec.field(default_factory=list)
    starts: dict[QueueKey, int] = msgspec.field(default_factory=dict)
    offsets: dict[QueueKey, Sequence[int]] = msgspec.field(default_factory=dict)
    counts: dict[QueueKey | OffsetKey, int] = msgspec.field(default_factory=dict)
    waits_for: list[Pending[None]] = msgspec.field(default_factory=list)
    error: BrokerError | None = None

    def is_full(self) -> bool:
        """Whether the pop takes no more messages: it has as many as it wants, or as fit."""
        return self.count >= self.count_max or self.is_closed

    def has_room_for(self, result: GetResult) -> bool:
        """Whether messages fit into the answer, which at least one does; else it is full."""
        self.is_closed = self.count > 0 and self.size + result.size > BYTES_MAX
        return not self.is_closed

    def add(self, topic: str, queue_id: int, taken: TakenMessages) -> None:
        """Add the messages of one queue."""
        key = (kind_of(topic), queue_id)
        self.count += len(taken.offsets)
        self.size += taken.messages.size
        self.parts.append(taken.messages)
        self.starts[key] = taken.start_offset
        self.offsets[key] = taken.offsets
        if taken.order_counts is not None:
            counts, least = taken.order_counts
            for offset, count in counts.items():
                self.counts[(*key, offset)] = count
            self.counts[key] = least
        if taken.pending is not None:
            self.waits_for.append(taken.pending)

    def release(self) -> None:
        for part in self.parts:
            part.release()


class CopiedMessages(msgspec.Struct):
    """Messages that do not stand in the log like this."""

    views: Sequence[memoryview]
    size: int

    def release(self) -> None:
        """Nothing is pinned."""


class PopQueues:
    """Takes messages of queues, for groups."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        state: PopState,
        offsets: OffsetTable,
        order_pops: OrderPops,
        counters: PopCounters,
        clock: Clock,
    ) -> None:
        self._live = live
        self._store = store
        self._reader = store.reader
        self._state = state
        self._offsets = offsets
        self._order_pops = order_pops
        self._counters = counters
        self._clock = clock
        #: Wakes pops when messages that are popped in order become visible; set by the feature.
        self.order_locks: OrderLocks | None = None

    @property
    def revive_queue_ids(self) -> range:
        return self._state.revive_queue_ids

    def is_taken(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Whether a group has popped a message already, or passed it over."""
        next_offset = self._state.next_offset(topic, group, queue_id)
        return next_offset is not None and next_offset > offset

    def behind(self, topic: str, group: str, queue_id: int) -> int:
        """How many messages a pop of the queue might find, whatever its filter."""
        offset = self._offset(topic, group, queue_id)
        return max(0, self._reader.max_offset(topic, queue_id) - offset)

    def has_matching(self, topic: str, group: str, queue_id: int, wanted: PopFilter) -> bool:
        """Whether one of the next messages of a queue passes a filter."""
        offset = self._offset(topic, group, queue_id)
        found = self._read(topic, queue_id, offset, wanted, Found(1))
        found.release()
        return found.status is GetStatus.FOUND or found.status in _CORRECTED

    def _offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where a pop of the queue would begin to read; a new group at the first message."""
        offset = self._state.next_offset(topic, group, queue_id)
        return self._reader.min_offset(topic, queue_id) if offset is None else offset

    def take(
        self,
        queue: QueueOfTopic,
        header: PopMessageRequestHeader,
        wanted: PopFilter,
        answer: PopMessageResponseHeader,
        found: Found,
    ) -> None:
        """Add messages of a queue to what a pop has found."""
        topic, queue_id, _ = queue
        group = header.consumer_group
        max_offset = self._reader.max_offset(topic, queue_id)
        offset = self._start(topic, group, queue_id, header.init_mode)
        if self._state.in_flight_counts.is_closed(topic, group, queue_id):
            found.rest += max(0, max_offset - offset)
            return
        if header.order and self._order_pops.is_blocked(
            topic,
            group,
            queue_id,
            answer.pop_time,
            attempt_id=header.attempt_id,
            invisible_ms=header.invisible_time,
        ):
            return  # without its backlog: pops that wait are woken by the acks
        if offset == max_offset:
            return
        if found.is_full():
            found.rest += max(0, max_offset - offset)
            return
        try:
            result = self._read(topic, queue_id, offset, wanted, found)
            if result.status in _CORRECTED:
                offset = result.next_offset
                result.release()
                self._state.advance(topic, group, queue_id, offset)
                result = self._read(topic, queue_id, offset, wanted, found)
        except BrokerError as error:
            found.error = found.error or error
            return
        if not found.has_room_for(result):
            found.rest += max(0, result.max_offset - offset)
            result.release()
            return
        try:
            self._keep(queue, header, answer, offset, result, found)
        except BaseException:
            result.release()
            raise

    def peek(self, queue: QueueOfTopic, group: str, found: Found) -> None:
        """Add messages of a queue to what a peek has found; the group stays where it is."""
        topic, queue_id, _ = queue
        offset = self._offset(topic, group, queue_id)
        found.rest += max(0, self._reader.max_offset(topic, queue_id) - offset)
        if found.is_full():
            return
        result = self._read(topic, queue_id, offset, PopFilter(), found)
        if result.status in _CORRECTED:
            offset = result.next_offset
            result.release()
            result = self._read(topic, queue_id, offset, PopFilter(), found)
        if not found.has_room_for(result):
            result.release()
        elif result.message_count:
            found.count += result.message_count
            found.size += result.size
            found.parts.append(result)
            self._counters.got(topic, topic, group, result)

    def _start(self, topic: str, group: str, queue_id: int, init_mode: int) -> int:
        """Where a pop of the queue begins to read: at the start of a record."""
        offset = self._next_offset(topic, group, queue_id, init_mode)
        start = record_start(self._store.queues.get(topic, queue_id), offset)
        if start != offset:  # a reset, or initMode 1, of a BatchCQ topic
            self._state.advance(topic, group, queue_id, start)
        return start

    def _next_offset(self, topic: str, group: str, queue_id: int, init_mode: int) -> int:
        reset = self._offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            self._order_pops.clear(topic, group, queue_id)
            self._state.in_flight_counts.clear(topic, group, queue_id)
            self._state.forget(topic, group, queue_id)
            self._state.advance(topic, group, queue_id, reset)
            return reset
        offset = self._state.next_offset(topic, group, queue_id)
        if offset is None:
            offset = self._first(topic, queue_id, init_mode)
            self._state.advance(topic, group, queue_id, offset)
        return offset

    def _first(self, topic: str, queue_id: int, init_mode: int) -> int:
        """Where a group begins that has never read the queue."""
        if init_mode == INIT_MIN or kind_of(topic) != NORMAL_TOPIC:
            return max(0, self._reader.min_offset(topic, queue_id))
        if self._live.current.pop.init_pop_offset_by_check_msg_in_mem and self._starts_in_memory(
            topic, queue_id
        ):
            return 0
        return max(0, self._reader.max_offset(topic, queue_id) - 1)

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return False
        entry = queue.read_entry(0)
        return entry is not None and self._reader.is_in_memory(entry.log_offset)

    def _read(
        self, topic: str, queue_id: int, offset: int, wanted: PopFilter, found: Found
    ) -> GetResult:
        """Read as many messages as a pop has room for, at least one."""
        count_max, bytes_max = found.count_max - found.count, max(1, BYTES_MAX - found.size)
        tags, sql = wanted
        try:
            return self._reader.get(
                topic, queue_id, offset, count_max, tags, sql, bytes_max=bytes_max
            )
        except StoreError as error:
            raise BrokerError("store getMessage return null", hint=str(error)) from error

    def _keep(
        self,
        queue: QueueOfTopic,
        header: PopMessageRequestHeader,
        answer: PopMessageResponseHeader,
        offset: int,
        result: GetResult,
        found: Found,
    ) -> None:
        """Keep a check-point of what was read, and add it to what the pop has found."""
        topic, queue_id, is_retry = queue
        group = header.consumer_group
        if not result.message_count:
            if result.status in _PASSED_OVER and result.next_offset > offset:
                self._state.advance(topic, group, queue_id, result.next_offset)
                found.has_skipped = True
                found.rest += max(0, result.max_offset - result.next_offset)
            result.release()
            return
        is_batch = isinstance(self._store.queues.get(topic, queue_id), BatchQueue)
        offsets = offsets_of(result, offset, is_batch=is_batch)
        pending, order_counts = None, None
        if header.order:
            order_counts = self._keep_order(topic, queue_id, header, answer, offsets)
        else:
            point = CheckPoint(
                topic=topic,
                group=group,
                queue_id=queue_id,
                start_offset=offset,
                pop_time_ms=answer.pop_time,
                invisible_ms=answer.invisible_time,
                broker_name=self._live.current.broker_name,
                offset_diffs=[each - offset for each in offsets],
            )
            try:
                pending = self._state.popped(point, answer.revive_qid, result.next_offset)
            except BrokerError as error:
                found.error = found.error or error
                result.release()
                return
            self._counters.kept(header.topic, group)
        found.rest += max(0, result.max_offset - result.next_offset)
        self._counters.got(header.topic, topic, group, result)
        messages: LeasedMessages = result
        if is_retry and not self._live.current.pop.pop_response_return_actual_retry_topic:
            messages = self._renamed(result, header.topic, topic, offset, answer)
        found.add(topic, queue_id, TakenMessages(offset, offsets, messages, pending, order_counts))

    def _keep_order(
        self,
        topic: str,
        queue_id: int,
        header: PopMessageRequestHeader,
        answer: PopMessageResponseHeader,
        offsets: Sequence[int],
    ) -> tuple[dict[int, int], int]:
        counts = self._order_pops.popped(
            topic,
            header.consumer_group,
            queue_id,
            offsets,
            pop_time_ms=answer.pop_time,
            invisible_ms=answer.invisible_time,
            attempt_id=header.attempt_id,
            now_ms=answer.pop_time,
        )
        if self.order_locks is not None:
            self.order_locks.changed(topic, header.consumer_group, queue_id)
        return counts

    def _renamed(
        self,
        result: GetResult,
        topic: str,
        retry: str,
        start_offset: int,
        answer: PopMessageResponseHeader,
    ) -> CopiedMessages:
        """Copies of retried messages, with the topic of the client and their receipt handles."""
        views: list[memoryview] = []
        name = topic.encode()
        for view in result.views:
            position = 0
            while position < len(view):
                record = decode_record(view, position)
                position += record.total_size
                handle = PopHandle(
                    start_offset,
                    answer.pop_time,
                    answer.invisible_time,
                    answer.revive_qid,
                    kind_of(retry),
                    self._live.current.broker_name,
                    record.queue_id,
                    record.queue_offset,
                )
                added = b"%b\x01%b\x02" % (_POP_CK, str(handle).encode())
                raw = without_property(record.raw_properties, _POP_CK)
                room = PROPERTIES_SIZE_MAX - len(added) - 1
                raw = without_optional(retry, raw, lambda each, room=room: len(each) <= room)  # type: ignore[misc]
                if raw and not raw.endswith(b"\x02"):
                    raw += b"\x02"
                views.append(
                    memoryview(
                        encode_record(
                            name,
                            record.body,
                            raw + added,
                            queue_id=record.queue_id,
                            queue_offset=record.queue_offset,
                            log_offset=record.log_offset,
                            born_timestamp=record.born_timestamp,
                            born_host=record.born_host,
                            store_timestamp=record.store_timestamp,
                            store_host=record.store_host,
                            flag=record.flag,
                            sys_flag=record.sys_flag,
                            reconsume_times=record.reconsume_times,
                            prepared_transaction_offset=record.prepared_transaction_offset,
                            body_crc=record.body_crc,
                        )
                    )
                )
        result.release()
        return CopiedMessages(views, sum(map(len, views)))


class PopCounters:
    """Counts the messages that pops hand out, and their check-points."""

    def __init__(self, stats: BrokerStats, store_stats: StoreStats, topics: TopicTable) -> None:
        self._stats = stats
        self._store_stats = store_stats
        self._topics = topics

    def kept(self, topic: str, group: str) -> None:
        """Count a check-point of a request for ``topic``."""
        self._stats.kept_check_point(topic, group)

    def got(self, topic: str, real_topic: str, group: str, result: GetResult) -> None:
        """Count messages of ``real_topic`` that a request for ``topic`` has found."""
        self._store_stats.found_count += 1
        self._store_stats.transferred_count += result.message_count
        self._stats.got(
            real_topic,
            group,
            result.message_count,
            result.size,
            is_system=self._topics.is_system(topic),
        )


def offsets_of(result: GetResult, start_offset: int, *, is_batch: bool = False) -> Sequence[int]:
    """The queue offsets of the records in a result that was read from ``start_offset`` on.

    ``is_batch``: a record may hold several messages, and has the offset of the first.
    """
    if not is_batch and result.next_offset - start_offset == result.message_count:
        return range(start_offset, result.next_offset)
    offsets = []
    for view in result.views:
        position = 0
        while position < len(view):
            size, offset = _HEAD.unpack_from(view, position)
            offsets.append(offset)
            position += size
    return offsets
