"""Delivers delayed messages when they are due: level by level, in order, never early.

::

    SCHEDULE_TOPIC_XXXX, queue of the level  --due-->  REAL_TOPIC, REAL_QID

A delayed message was stored in the queue of its level (:mod:`skylark.broker.send.message_policy`).
When it is due, a copy goes where it belongs: same body, flags, born time and host, reconsume times,
and the same property string, so that DELAY, REAL_TOPIC and REAL_QID still stand in it. Nobody waits
for the copy to be flushed; progress counts as made when it is
(:mod:`skylark.broker.delay.delay_progress`, which also says what a crash leaves).

**Time.** A level that has messages has one timer, set to the time at which the first is due; one
without has none, and is woken by the next message that arrives. The wall clock may be set, or the
machine sleep, so a timer runs for at most ``TIMER_S_MAX`` before the clock is looked at again. Java
looks every 100 ms.

**Slices.** Levels with messages that are due take turns. A turn delivers for about 5 ms and then
lets the loop do its other work, so that ten thousand messages due at once delay nobody.

**Failures.** While a copy cannot be stored (disk full, for example) its level tries it again every
100 ms; what comes behind it waits. After an unexpected error it is 10 s. The copy is not held to
``maxMessageSize`` and other settings: the message was acknowledged. Passed over, with a line in the
log, are messages that cannot be read, that name no destination or one which nobody may send to, and
those of which no record can be made (:mod:`skylark.broker.send.own_copies`). They stay in the
schedule topic. Java is stuck with the last kind for ever.

Delivery goes on for topics that were deleted meanwhile, as in Java. Only a master delivers.

Counterpart of Java's ``ScheduleMessageService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from skylark.broker.delay.delay_progress import DelayLevel, DelayLevels
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_policy import NO_DESTINATIONS
from skylark.broker.send.message_writer import MessageWriter, copy_of
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock, TimerHandle
from skylark.core.names import HALF_TOPIC, SCHEDULE_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.config_tables import DelayOffsetTable
from skylark.store.consume_queue import EntryQueue
from skylark.store.reput import Arrival
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.layout import CQ_ENTRY
from skylark.wire.message import MessageRecord, RecordError, decode_record
from skylark.wire.properties import (
    PROPERTY_CRC32,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    find_raw_property,
    without_property,
)

log = logging.getLogger(__name__)

SLICE_S: Final = 0.005
SLICE_COUNT_MAX: Final = 200
RETRY_S: Final = 0.1
RETRY_AFTER_ERROR_S: Final = 10.0
TIMER_S_MAX: Final = 10.0
#: The group in whose name delayed messages are read, in statistics.
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"

_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_REAL_QID: Final = PROPERTY_REAL_QID.encode()
_CRC32: Final = PROPERTY_CRC32.encode()
_QUEUE_DIGITS_MAX: Final = 9
_iter_entries = CQ_ENTRY.iter_unpack


class NotDeliverableError(ValueError):
    """A record in the schedule topic that is no delayed message."""


def delivery_of(record: MessageRecord) -> Draft:
    """The message to be stored when a delayed one is due; raises NotDeliverableError."""
    properties = record.raw_properties
    raw_topic = find_raw_property(properties, _REAL_TOPIC)
    queue_id = find_raw_property(properties, _REAL_QID)
    if raw_topic is None or queue_id is None:
        raise NotDeliverableError("it does not say where it belongs")
    if not queue_id.isdigit() or len(queue_id) > _QUEUE_DIGITS_MAX:
        raise NotDeliverableError("it belongs to a queue that cannot be")
    topic = raw_topic.decode("utf-8", "replace")
    if topic == HALF_TOPIC:
        raise NotDeliverableError("it is a half message")
    if topic in NO_DESTINATIONS:
        raise NotDeliverableError(f"it belongs to {topic}, to which nobody may send")
    if _CRC32 in properties:  # of the record that it was in
        properties = without_property(properties, _CRC32)
    draft = copy_of(record, topic, int(queue_id))
    draft.properties = properties
    return draft


class _Lane:
    """What the service keeps of a level besides its progress."""

    __slots__ = ("failing", "idle", "progress", "timer")

    def __init__(self, progress: DelayLevel) -> None:
        self.progress = progress
        self.idle = True  # nothing to deliver: no timer, and not waiting for its turn
        self.timer: TimerHandle | None = None
        self.failing = False


class ScheduleService:
    """Delivers the delayed messages of one broker, from ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        topics: TopicTable,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._live = live
        self._writer = writer
        self._store = writer.store
        self._topics = topics
        self._stats = stats
        self._clock = clock
        self._levels = DelayLevels(writer.store.config.delay_levels_ms, clock.now_ms())
        self._lanes: dict[int, _Lane] = {}  # by queue id
        self._ready: deque[_Lane] = deque()
        self._turn: TimerHandle | None = None
        self.is_running = False
        #: Messages passed over since the start.
        self.skipped_count = 0

    # --- life -------------------------------------------------------------------------------------

    def load(self, table: DelayOffsetTable) -> None:
        """Take over ``delayOffset.json``; after the store was opened."""
        queues = self._store.queues.topic_queues(SCHEDULE_TOPIC)
        self._levels.load(table, [queue.queue_id for queue in queues], self._bounds)

    def snapshot(self) -> DelayOffsetTable:
        """The content of ``delayOffset.json``, as far as it may be saved now."""
        return self._levels.snapshot(self._store.log.files.flushed_where)

    def progress(self) -> dict[int, tuple[int, int]]:
        """Delay level -> (offset of the next message, end of the queue); for request 28."""
        return {
            level: (progress.next_offset, self._bounds(progress.queue_id)[1])
            for level, progress in self._levels.by_level.items()
            if progress.listed
        }

    def _bounds(self, queue_id: int) -> tuple[int, int]:
        reader = self._store.reader
        return (
            reader.min_offset(SCHEDULE_TOPIC, queue_id),
            reader.max_offset(SCHEDULE_TOPIC, queue_id),
        )

    def start(self) -> None:
        """Deliver from now on; only for a master."""
        self.is_running = True
        for progress in self._levels.by_level.values():
            lane = self._lanes[progress.queue_id] = _Lane(progress)
            self._look_after(lane, 0.0)

    async def stop(self) -> None:
        """Deliver no more, and bring to disk what was delivered: the file can be exact then."""
        if not self.is_running:
            return
        self.is_running = False
        timers = [lane.timer for lane in self._lanes.values()]
        for timer in (self._turn, *timers):
            if timer is not None:
                timer.cancel()
        self._turn = None
        self._ready.clear()
        if self._levels.are_safe(self._store.log.files.flushed_where):
            return
        flushed: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def note(status: PutStatus) -> None:
            if not flushed.done():
                flushed.set_result(status)

        self._store.when_all_on_disk(note)
        if await flushed is not PutStatus.PUT_OK:
            log.warning("delayed messages may be delivered twice: the disk does not have them yet")

    def arrived(self, arrival: Arrival) -> None:
        """A message can be read; for those of the schedule topic."""
        lane = self._lanes.get(arrival.queue_id)
        if lane is None:
            return
        lane.progress.listed = True
        if lane.idle and self.is_running:
            now_ms = self._clock.now_ms()
            due_ms = lane.progress.due_ms(arrival.tags_code, now_ms)
            self._look_after(lane, (due_ms - now_ms) / 1000)

    # --- turns ------------------------------------------------------------------------------------

    def _look_after(self, lane: _Lane, delay_s: float) -> None:
        lane.idle = False
        if delay_s <= 0:
            self._line_up(lane)
        else:
            lane.timer = self._clock.call_later(min(delay_s, TIMER_S_MAX), self._line_up, lane)

    def _line_up(self, lane: _Lane) -> None:
        lane.timer = None
        self._ready.append(lane)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._turn is None and self._ready:
            self._turn = self._clock.call_later(0, self._take_turn)

    def _take_turn(self) -> None:
        """Deliver a slice of one level, then let others have theirs."""
        self._turn = None
        lane = self._ready.popleft()
        progress = lane.progress
        first_offset = progress.next_offset
        pause_s: float | None
        try:
            pause_s = self._deliver_due(lane)
        except Exception:
            log.exception("delay level %d rests for a while", progress.level)
            pause_s = RETRY_AFTER_ERROR_S
        progress.mark(self._store.log.files.flushed_where)
        self._levels.note_progress(
            progress.next_offset - first_offset,
            self._live.current.delay_offset_update_version_step,
            self._clock.now_ms(),
        )
        if pause_s is None:
            lane.idle = True
        else:
            self._look_after(lane, pause_s)
        self._next_turn()

    def _deliver_due(self, lane: _Lane) -> float | None:
        """Deliver a slice; after how many seconds to go on, None: when the next one arrives."""
        progress, clock = lane.progress, self._clock
        queue = self._store.queues.get(SCHEDULE_TOPIC, progress.queue_id)
        if queue is None:
            return None
        self._skip_expired(progress, queue)
        slice_end = clock.monotonic() + SLICE_S
        now_ms = clock.now_ms()
        entries = queue.entries(progress.next_offset, SLICE_COUNT_MAX)
        for log_offset, _size, tags_code in _iter_entries(entries):
            if tags_code > now_ms:
                now_ms = clock.now_ms()
                due_ms = progress.due_ms(tags_code, now_ms)
                if due_ms > now_ms:
                    return (due_ms - now_ms) / 1000
            if not self._deliver(lane, log_offset):
                return RETRY_S
            if clock.monotonic() >= slice_end:
                break
        return 0.0 if progress.next_offset < queue.max_offset else None

    def _skip_expired(self, progress: DelayLevel, queue: EntryQueue) -> None:
        count = progress.keep_within(queue.min_offset, queue.max_offset)
        if count:
            self.skipped_count += count
            log.error("%d messages of delay level %d expired undelivered", count, progress.level)

    # --- one message ------------------------------------------------------------------------------

    def _deliver(self, lane: _Lane, log_offset: int) -> bool:
        """Deliver the next message of a level, or pass over it; False: it has to wait."""
        lease = self._store.reader.record(log_offset)
        if lease is None:
            return self._pass_over(lane, log_offset, "it is not there any more")
        try:
            with lease:
                draft = delivery_of(decode_record(lease.view))
        except (RecordError, NotDeliverableError) as error:
            return self._pass_over(lane, log_offset, str(error))
        result = self._writer.put_copy(draft)
        if result.status.stored:
            lane.progress.delivered(result.next_offset)
            self._store.when_durable(result, _ignore, wait=False)
            self._count(draft.topic, result)
            if lane.failing:
                lane.failing = False
                log.info("delay level %d is delivered again", lane.progress.level)
            return True
        if result.status in NEVER_STORED:
            self._writer.uncopied.add("delivery", log_offset, draft.topic, result.status)
            return self._skip(lane)
        if not lane.failing:
            lane.failing = True
            log.warning("delay level %d has to wait: %s", lane.progress.level, result.status.name)
        return False

    def _pass_over(self, lane: _Lane, log_offset: int, reason: str) -> bool:
        progress = lane.progress
        log.error(
            "message %d of delay level %d, at %d of the log, is not delivered: %s",
            progress.next_offset,
            progress.level,
            log_offset,
            reason,
        )
        return self._skip(lane)

    def _skip(self, lane: _Lane) -> bool:
        self.skipped_count += 1
        lane.progress.next_offset += 1
        return True

    def _count(self, topic: str, result: PutResult) -> None:
        self._stats.put(topic, 1, result.size, is_system=self._topics.is_system(topic))
        read = self._stats.group_gets[SCHEDULE_TOPIC, SCHEDULE_GROUP]
        read.count += 1
        read.size += result.size
        read.times += 1


def _ignore(_status: PutStatus) -> None:
    """Nobody waits for a delivery to be flushed."""
