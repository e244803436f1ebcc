"""Delay levels: delivers delayed messages when they are due, never early, in order per level.

::

    SCHEDULE_TOPIC_XXXX, queue of the level  --due-->  REAL_TOPIC, REAL_QID

A delayed message was stored in the queue of its level (:mod:`skylark.broker.send.message_policy`).
When it is due, the service stores a copy in its real topic: same body, flags, born time and host,
reconsume times, and the same property string, which still has DELAY, REAL_TOPIC and REAL_QID. It
does not wait for the flush of the copy, but saves its progress only up to copies that are on disk
(:mod:`skylark.broker.delay.delay_progress`). Copies that it made after the last save are found in
the log at the next start (:mod:`skylark.broker.delay.delay_recovery` says what a crash leaves).

**Time.** A message is due at the wall time in its queue entry, whichever way the clock was set
since, or earlier if the settings have shortened the delay of its level. A level with messages has
one timer, set to the time at which the first is due. A level without messages has no timer; the
next message that arrives starts it. Because the wall clock may be set, or the machine may sleep, a
timer runs for at most ``TIMER_S_MAX`` before the service checks the clock again. After the clock
was set back, messages that come in then are due before older ones: they are a *run* of their own,
with its own timer. Java delivers at once what is due later than the whole delay from now.

**Slices.** Levels with due messages take turns. A turn delivers for about 5 ms and then lets the
loop do its other work, so that ten thousand messages due at once do not delay requests.

**Failures.** While a copy cannot be stored (disk full, for example) the service tries it again
every 100 ms, after an unexpected error every 10 s; later messages of the level wait. The copy is
not held to ``maxMessageSize`` and other settings: the message was acknowledged. The service skips,
and logs, messages that cannot be read, that have no destination or one that is not allowed, and
those of which no record can be made (:mod:`skylark.broker.send.own_copies`). They stay in the
schedule topic. Java retries the last kind for ever.

Messages of topics that were deleted meanwhile are delivered, as in Java. Only a master delivers.

Counterpart of Java's ``ScheduleMessageService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

import msgspec

from skylark.broker.delay.delay_progress import DelayLevel, DelayLevels, DelayRun
from skylark.broker.delay.delay_recovery import recover
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

logger = logging.getLogger(__name__)

SLICE_S: Final = 0.005
SLICE_COUNT_MAX: Final = 200
RETRY_S: Final = 0.1
RETRY_AFTER_ERROR_S: Final = 10.0
TIMER_S_MAX: Final = 0.5
#: The group under which reads of delayed messages are counted.
SCHEDULE_GROUP: Final = "SCHEDULE_CONSUMER"

_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_REAL_QID: Final = PROPERTY_REAL_QID.encode()
_CRC32: Final = PROPERTY_CRC32.encode()
_QUEUE_DIGITS_MAX: Final = 9
_iter_entries = CQ_ENTRY.iter_unpack


class NotDeliverableError(ValueError):
    """A record in the schedule topic that cannot be delivered."""


def delivery_of(record: MessageRecord) -> Draft:
    """The message to be stored when a delayed one is due; raises NotDeliverableError."""
    properties = record.raw_properties
    raw_topic = find_raw_property(properties, _REAL_TOPIC)
    queue_id = find_raw_property(properties, _REAL_QID)
    if raw_topic is None or queue_id is None:
        raise NotDeliverableError("it has no destination")
    if not queue_id.isdigit() or len(queue_id) > _QUEUE_DIGITS_MAX:
        raise NotDeliverableError("its destination queue is invalid")
    topic = raw_topic.decode("utf-8", "replace")
    if topic == HALF_TOPIC:
        raise NotDeliverableError("it is a half message")
    if topic in NO_DESTINATIONS:
        raise NotDeliverableError(f"its destination {topic} is not allowed")
    if _CRC32 in properties:  # of the old record
        properties = without_property(properties, _CRC32)
    draft = copy_of(record, topic, int(queue_id))
    draft.properties = properties
    return draft


class _Lane(msgspec.Struct, eq=False):
    """The progress, timer and state of one run of a level."""

    level: DelayLevel
    run: DelayRun
    idle: bool = True  # nothing to deliver: no timer, and not in the queue of turns
    timer: TimerHandle | None = None
    failing: bool = False


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
        self._lanes: dict[int, list[_Lane]] = {}  # by queue id, one for each run
        self._ready: deque[_Lane] = deque()
        self._turn: TimerHandle | None = None
        self.is_running = False
        #: Messages skipped since the start.
        self.skipped_count = 0

    # --- start and stop ---------------------------------------------------------------------------

    def load(self, table: DelayOffsetTable) -> None:
        """Load ``delayOffset.json``; the store is open. Raises StoreError."""
        queues = self._store.queues.topic_queues(SCHEDULE_TOPIC)
        if table.log_offset is not None:  # a power failure may have taken the end of the log
            table.log_offset = min(table.log_offset, self._store.log.max_offset)
        self._levels.load(table, [queue.queue_id for queue in queues], self._bounds)
        recover(self._levels, self._store)

    def snapshot(self) -> DelayOffsetTable:
        """The content of ``delayOffset.json``, as far as it may be saved now."""
        log = self._store.log
        return self._levels.snapshot(log.files.flushed_where, log.max_offset)

    def offsets(self) -> DelayOffsetTable:
        """The part of the file that Java has too, for slaves (45)."""
        return self._levels.offsets(self._store.log.files.flushed_where)

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
        for level in self._levels.by_level.values():
            self._make_lanes(level)

    def _make_lanes(self, level: DelayLevel) -> None:
        lanes = self._lanes[level.queue_id] = [_Lane(level, run) for run in level.runs]
        for lane in lanes:
            self._schedule(lane, 0.0)

    async def stop(self) -> None:
        """Stop, and flush what was delivered, so that the saved progress is exact."""
        if not self.is_running:
            return
        self.is_running = False
        timers = [lane.timer for lanes in self._lanes.values() for lane in lanes]
        for timer in (self._turn, *timers):
            if timer is not None:
                timer.cancel()
        self._turn = None
        self._ready.clear()
        if self._levels.are_safe(self._store.log.files.flushed_where):
            return
        flushed: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()

        def finish(status: PutStatus) -> None:
            if not flushed.done():
                flushed.set_result(status)

        self._store.when_all_on_disk(finish)
        if await flushed is not PutStatus.PUT_OK:
            logger.warning("cannot flush delivered messages: the next start may deliver them again")

    def arrived(self, arrival: Arrival) -> None:
        """Handle a message that has arrived in the schedule topic."""
        lanes = self._lanes.get(arrival.queue_id)
        if not lanes or not self.is_running:
            return
        level = lanes[-1].level
        level.listed = True
        run = level.arrived(arrival.next_offset - 1, arrival.tags_code)
        if run is not None:
            lanes.append(_Lane(level, run))
        if lanes[-1].idle:
            delay_s = (arrival.tags_code - self._clock.now_ms()) / 1000
            self._schedule(lanes[-1], min(delay_s, TIMER_S_MAX))

    # --- turns ------------------------------------------------------------------------------------

    def _schedule(self, lane: _Lane, delay_s: float) -> None:
        lane.idle = False
        if delay_s <= 0:
            self._enqueue(lane)
        else:
            lane.timer = self._clock.call_later(delay_s, self._enqueue, lane)

    def _enqueue(self, lane: _Lane) -> None:
        lane.timer = None
        self._ready.append(lane)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._turn is None and self._ready:
            self._turn = self._clock.call_later(0, self._take_turn)

    def _take_turn(self) -> None:
        """Deliver a slice of one run, then let the others have their turns."""
        self._turn = None
        lane = self._ready.popleft()
        run = lane.run
        first_offset = run.next_offset
        pause_s: float | None
        try:
            pause_s = self._deliver_due(lane)
        except Exception:
            logger.exception("delay level %d failed and pauses", lane.level.level)
            pause_s = RETRY_AFTER_ERROR_S
        run.mark(self._store.log.files.flushed_where)
        self._levels.count_progress(
            run.next_offset - first_offset,
            self._live.current.delay_offset_update_version_step,
            self._clock.now_ms(),
        )
        if run.is_done:
            self._lanes[lane.level.queue_id].remove(lane)
        elif pause_s is None:
            lane.idle = True
        else:
            self._schedule(lane, pause_s)
        self._next_turn()

    def _deliver_due(self, lane: _Lane) -> float | None:
        """Deliver a slice; returns the pause in seconds, None: until the next message arrives."""
        level, run, clock = lane.level, lane.run, self._clock
        queue = self._store.queues.get(SCHEDULE_TOPIC, level.queue_id)
        if queue is None:
            return None
        self._skip_expired(level, queue)
        if run not in level.runs:  # the queue was deleted and created again
            self._make_lanes(level)
            return None
        slice_end = clock.monotonic() + SLICE_S
        now_ms = clock.now_ms()
        end = queue.max_offset if run.end is None else run.end
        entries = queue.entries(run.next_offset, min(SLICE_COUNT_MAX, end - run.next_offset))
        for log_offset, _size, tags_code in _iter_entries(entries):
            if tags_code > now_ms:
                now_ms = clock.now_ms()
                due_ms = self._due_ms(level, log_offset, tags_code, now_ms)
                if due_ms > now_ms:
                    return min((due_ms - now_ms) / 1000, TIMER_S_MAX)
            if not self._deliver(lane, log_offset):
                return RETRY_S
            if clock.monotonic() >= slice_end:
                break
        return 0.0 if run.next_offset < (queue.max_offset if run.end is None else end) else None

    def _due_ms(self, level: DelayLevel, log_offset: int, tags_code: int, now_ms: int) -> int:
        """When an entry is due: at its time, or earlier if the settings have a shorter delay now.

        An entry that is due later than the whole delay from now tells that the delay was shortened,
        or that the clock was set back. The store time of its message decides which.
        """
        if level.delay_ms is None or tags_code <= now_ms + level.delay_ms:
            return tags_code
        lease = self._store.reader.record(log_offset)
        if lease is None:
            return tags_code
        try:
            with lease:
                return min(tags_code, decode_record(lease.view).store_timestamp + level.delay_ms)
        except RecordError:
            return tags_code

    def _skip_expired(self, level: DelayLevel, queue: EntryQueue) -> None:
        count = level.keep_within(queue.min_offset, queue.max_offset)
        if count:
            self.skipped_count += count
            logger.error(
                "retention deleted %d messages of delay level %d before they were delivered",
                count,
                level.level,
            )

    # --- one message ------------------------------------------------------------------------------

    def _deliver(self, lane: _Lane, log_offset: int) -> bool:
        """Deliver or skip the next message of a level; False: try it again later."""
        lease = self._store.reader.record(log_offset)
        if lease is None:
            return self._log_and_skip(lane, log_offset, "the log does not have it")
        try:
            with lease:
                draft = delivery_of(decode_record(lease.view))
        except (RecordError, NotDeliverableError) as error:
            return self._log_and_skip(lane, log_offset, str(error))
        result = self._writer.put_copy(draft)
        if result.status.stored:
            lane.run.delivered(result.next_offset)
            self._count(lane.level.level, draft.topic, result)
            if lane.failing:
                lane.failing = False
                logger.info("delay level %d delivers again", lane.level.level)
            return True
        if result.status in NEVER_STORED:
            self._writer.uncopied.add("delivery", log_offset, draft.topic, result.status)
            return self._skip(lane)
        if not lane.failing:
            lane.failing = True
            logger.warning(
                "delay level %d cannot store a message: %s", lane.level.level, result.status.name
            )
        return False

    def _log_and_skip(self, lane: _Lane, log_offset: int, reason: str) -> bool:
        logger.error(
            "skipped message %d of delay level %d, at log offset %d: %s",
            lane.run.next_offset,
            lane.level.level,
            log_offset,
            reason,
        )
        return self._skip(lane)

    def _skip(self, lane: _Lane) -> bool:
        self.skipped_count += 1
        lane.run.next_offset += 1
        return True

    def _count(self, level: int, topic: str, result: PutResult) -> None:
        self._stats.put(topic, 1, result.size, is_system=self._topics.is_system(topic))
        stats = self._stats
        for read in (
            stats.group_gets[SCHEDULE_TOPIC, SCHEDULE_GROUP],
            stats.level_gets[SCHEDULE_TOPIC, level - 1, SCHEDULE_GROUP],
        ):
            read.count += 1
            read.size += result.size
            read.times += 1
