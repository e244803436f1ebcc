"""Runs the revive of popped messages: reads the revive queues, and has expired messages copied.

:class:`ReviveQueue` decides (:mod:`skylark.broker.pop.revive`), and
:class:`~skylark.broker.pop.retry_copies.RetryCopies` puts the copies. One task serves all queues of
the revive topic, on masters only, in turns of the loop, which are bounded: by the records that a
turn reads, by the number and the size of the messages that it copies, and by the time of both. So
ten thousand messages which expire in one second delay no request. Each turn begins with another
queue. Between two passes ``reviveInterval`` goes by; while no check-point waits and nothing
arrives, nothing runs.

**A new retry topic** is saved before the first copy, and the check-points behind in the same queue
wait for that. So a turn that creates one creates those that they need as well, up to
:data:`TOPICS_PER_TURN`, and the pass goes on as soon as they are saved.

**What a crash leaves.** All copies of a check-point, and then the offset of the revive group, are
written in one turn. The file of offsets is some seconds old, so the next start finds check-points
again whose copies are in the log; :class:`~skylark.broker.pop.pop_recovery.RevivedCopies` has them,
and no second copy is made. The file is written only when the log is on disk, so it never counts
copies that a power failure could take back. The timer delivers the records of the last seconds
again; the runner knows the check-points that the queue had already, and skips them.

**An offset behind the end of its queue** (the broker was a slave, or its log was cut) is moved back
over the last :data:`CUT_MS` of the queue, because copies of these may be missing as well. So
messages of this time may come twice; older ones do not.

Counterpart of Java's ``PopReviveService``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.pop_record_writer import Receipt
from skylark.broker.pop.pop_recovery import PopRecovery
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.retry_copies import Outcome, RetryCopies, record_at
from skylark.broker.pop.retry_topics import ReviveTables
from skylark.broker.pop.revive import Point, ReviveQueue, ReviveRecord
from skylark.broker.pop.revive_turn import Turn
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.core.clock import Clock, TimerHandle, yield_once
from skylark.core.errors import BrokerError, StoreError
from skylark.core.lifecycle import Tasks
from skylark.core.names import REVIVE_GROUP, revive_topic, topic_of_pop_retry
from skylark.store.consume_queue import Boundary, EntryQueue
from skylark.wire import properties as names
from skylark.wire.layout import CQ_ENTRY
from skylark.wire.message import MessageRecord
from skylark.wire.pop_records import CHECK_POINT_TAG, CheckPoint

logger = logging.getLogger(__name__)

#: Records of revive queues that are read in one turn of the loop, and for how long.
READ_PER_TURN: Final = 200
READING_S: Final = 0.004
#: Check-points and messages of one turn, the size of its copies, and for how long it makes them.
COPIES_PER_TURN: Final = 64
COPIED_BYTES_PER_TURN: Final = 1 << 20
COPYING_S: Final = 0.004
#: Retry topics that one turn creates.
TOPICS_PER_TURN: Final = 16
#: A record of a revive queue may repeat one that stands so long before it: the timer delivers again
#: after a crash, as late as the broker is started again.
REPEATED_MS: Final = 120_000
#: Records of a queue that a start reads at most to know them.
KNOWN_MAX: Final = 100_000
#: How far an offset behind the end of its queue is moved back.
CUT_MS: Final = 30_000


class TimerProgress(msgspec.Struct, frozen=True):
    """How far the timer wheel is."""

    #: Records that were stored and due before this time are delivered.
    delivered_before_ms: Callable[[], int]
    #: When the broker started: records whose time is not before this may be delivered again.
    saved_until_ms: Callable[[], int]


class ReviveRunner:
    """Revives the popped messages of one broker, from ``recover`` and ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        state: PopState,
        writer: MessageWriter,
        tables: ReviveTables,
        timer: TimerProgress,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self.topic = revive_topic(live.current.broker_cluster_name)
        copies = self.copies = RetryCopies(live, writer, state, tables, stats, clock)
        self.queues: dict[int, ReviveQueue] = {}
        self._live = live
        self._state = state
        self._store = copies.store
        self._tables = tables
        self._timer = timer
        self._clock = clock
        self._recovery = PopRecovery(self._store, tables.offsets, self.topic, copies.revived)
        self._started_with: dict[int, int] = {}  # ends of the revive queues at the start
        self._turn_count = 0
        self._awaits_topic = False  # a check-point waits until its topic is saved
        self._tasks = Tasks("revive")
        self._wake_event = asyncio.Event()
        self._is_resting = False
        self._timer_handle: TimerHandle | None = None
        state.revive_now = copies.copy_now
        state.copies_left = self._copies_left
        state.has_revive_queue = self.queues.__contains__

    # ---- start and stop --------------------------------------------------------------------------

    def recover(self) -> None:
        """Read from the log what the saved offsets lack; in a thread, when the store is open."""
        self._recovery.run()

    async def start(self) -> None:
        """Begin to revive; after the timer, and before the first request."""
        for queue_id in self._queue_ids():
            self.queues[queue_id] = self._make_queue(queue_id)
        self._tasks.spawn(self._run(), name="queues")
        self.wake()

    def acknowledge_void(self) -> None:
        """Acknowledge check-points whose messages are popped again; before offsets are saved."""
        for found in self._recovery.void:
            point = found.point
            receipt = Receipt(
                point.topic,
                point.group,
                point.queue_id,
                point.start_offset,
                point.pop_time_ms,
                point.invisible_ms,
                point.broker_name,
                found.revive_queue_id,
            )
            # What lies before the offset of the group is not popped again: it has to come back.
            offset = self._tables.offsets.get(point.group, point.topic, point.queue_id)
            offsets = [each for each in point.waiting_offsets() if each >= offset]
            if not offsets:
                continue
            try:
                self._state.records.put(self._state.records.ack(receipt, offsets))
            except BrokerError as error:
                logger.warning("messages may be delivered twice: %s", error)
                break
        self._recovery.void.clear()

    async def stop(self) -> None:
        self._cancel_timer()
        await self._tasks.cancel_and_wait()

    def wake(self) -> None:
        """A record has arrived: start a pass, unless the interval after the last one runs."""
        if not self._is_resting:
            self._cancel_timer()
            self._wake_event.set()

    def arrived(self, queue_id: int) -> None:
        """A record has arrived, perhaps in a queue of earlier settings."""
        if self.queues and queue_id not in self.queues:
            self.queues[queue_id] = self._make_queue(queue_id)
            self._started_with[queue_id] = 0
        self.wake()

    def _cancel_timer(self) -> None:
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None

    def _queue_ids(self) -> list[int]:
        """Those of the settings, and those that have records of earlier settings."""
        stored = {q.queue_id for q in self._store.queues if q.topic == self.topic}
        return sorted(stored | set(self._state.revive_queue_ids))

    def _make_queue(self, queue_id: int) -> ReviveQueue:
        committed = self._tables.offsets.get(REVIVE_GROUP, self.topic, queue_id)
        queue = self._store.queues.get(self.topic, queue_id)
        end = 0 if queue is None else queue.max_offset
        if queue is not None and committed >= end:
            committed = min(committed, self._restart_offset(queue) - 1)
        self._started_with[queue_id] = end
        seen: dict[int, int] = {}
        revive = ReviveQueue(
            queue_id,
            committed,
            self._live.current.broker_name,
            seen=seen,
            totals=self._state.totals,
        )
        if queue is not None:
            start = max(self._known_from(queue, committed), end - KNOWN_MAX, queue.min_offset)
            for record in self._records(queue, start, end - start):
                if record.tag == CHECK_POINT_TAG:
                    seen.setdefault(hash(record.body), record.queue_offset)
                if record.queue_offset <= committed:
                    revive.read_before(record)
        return revive

    def _known_from(self, queue: EntryQueue, committed: int) -> int:
        """The first record that the records to come, or those not yet done, may repeat.

        Those not yet done count too: the crash after which they were delivered again may be an
        earlier one, and what they repeat may be done since.
        """
        time_ms = self._timer.saved_until_ms()
        first_ms = self._time_of(queue, committed + 1)
        if first_ms is not None:
            time_ms = min(time_ms, first_ms)
        store_time_of = self._store.reader.store_time_of
        start = queue.offset_by_time(time_ms - REPEATED_MS, Boundary.LOWER, store_time_of)
        return min(start, committed + 1)

    def _restart_offset(self, queue: EntryQueue) -> int:
        """Where to continue if the next record is behind the end of a queue."""
        time_ms = self._time_of(queue, queue.max_offset - 1)
        if time_ms is None:
            return queue.max_offset
        store_time_of = self._store.reader.store_time_of
        return queue.offset_by_time(time_ms - CUT_MS, Boundary.LOWER, store_time_of)

    def _time_of(self, queue: EntryQueue, queue_offset: int) -> int | None:
        """When a record was stored; None if it is not there."""
        entry = queue.read_entry(queue_offset)
        return None if entry is None else self._store.reader.store_time_of(entry.log_offset)

    # ---- passes ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake_event.wait()
            self._wake_event.clear()
            try:
                while self._take_turn() or await self._topics_saved():
                    await yield_once()
            except StoreError as error:
                logger.error("the revive of popped messages failed and will retry: %s", error)  # noqa: TRY400
            except Exception:
                # Without this task no popped message would ever come back.
                logger.exception("the revive of popped messages failed and will retry")
            self._rest()

    async def _topics_saved(self) -> bool:
        """Wait until new topics are saved, if a check-point needs that; whether it can go on."""
        if not self._awaits_topic:
            return False
        try:
            await self._tables.topics_saved.written()
        except Exception:  # noqa: BLE001 - the saver logs it; the next pass copies all the same
            return False
        return True

    def _rest(self) -> None:
        """Let the interval go by before the next pass."""
        self._is_resting = True
        interval_s = self._live.current.pop.revive_interval / 1_000
        self._timer_handle = self._clock.call_later(interval_s, self._rested)

    def _rested(self) -> None:
        """Start a pass if there is something to do; else wait until there is."""
        self._is_resting = False
        self._timer_handle = None
        due = [due for queue in self.queues.values() if (due := queue.next_due_ms()) is not None]
        delay_s = (min(due) - self._clock.now_ms()) / 1_000 if due else 0.0
        if self._has_unread() or (due and delay_s <= 0):
            self._wake_event.set()
        elif due:
            self._timer_handle = self._clock.call_later(delay_s, self._wake_event.set)

    def _has_unread(self) -> bool:
        return any(
            self._store.reader.max_offset(self.topic, queue_id) > queue.position
            for queue_id, queue in self.queues.items()
        )

    def _take_turn(self) -> bool:
        """Read some records and make some copies; whether there is more to do now."""
        queues = list(self.queues.values())  # a copy may be the first record of another queue
        self._turn_count += 1
        first = self._turn_count % len(queues)
        queues = queues[first:] + queues[:first]
        reading = Turn(self._clock, count=READ_PER_TURN, bytes_max=sys.maxsize, seconds=READING_S)
        for queue in queues:
            self._read_some(queue, reading)
        more = reading.is_over
        self._awaits_topic = False
        copying = Turn(
            self._clock,
            count=COPIES_PER_TURN,
            bytes_max=COPIED_BYTES_PER_TURN,
            seconds=COPYING_S,
        )
        store_takes = True
        for queue in queues:
            more |= not self._is_read(queue)
            store_takes = store_takes and self._revive_some(queue, copying)
        return more or (store_takes and copying.is_over)

    def _revive_some(self, queue: ReviveQueue, turn: Turn) -> bool:
        """Revive check-points of a queue until the turn is over, or until one has to wait.

        Returns False if the store takes no messages.
        """
        while not turn.is_over and (waiting := self._due(queue)) is not None:
            outcome = self._revive(queue, waiting, turn)
            if outcome is Outcome.AWAITS_TOPIC:
                self._awaits_topic = True
                self._prepare_topics(queue)
            if outcome is not Outcome.DONE:
                return outcome is not Outcome.STORE_REFUSES
        return True

    def _prepare_topics(self, queue: ReviveQueue) -> None:
        """Create the topics of the next check-points of a queue: one wait is enough for them."""
        topics = self.copies.topics
        count_max = topics.created_count + TOPICS_PER_TURN
        for point in itertools.islice(queue.due_points(self._clock.now_ms()), READ_PER_TURN):
            if topics.created_count >= count_max:
                return
            if point.bits != point.all_bits and self._is_wanted(point):
                topics.prepare(point)

    # ---- reading ---------------------------------------------------------------------------------

    def _is_read(self, queue: ReviveQueue) -> bool:
        return queue.position >= self._store.reader.max_offset(self.topic, queue.queue_id)

    def _read_some(self, queue: ReviveQueue, turn: Turn) -> None:
        stored = self._store.queues.get(self.topic, queue.queue_id)
        if stored is None:
            return
        if not stored.min_offset <= queue.read_offset <= stored.max_offset:
            start = stored.min_offset
            if queue.read_offset > start:
                start = self._restart_offset(stored)
            logger.warning(
                "revive queue %s continues at %s instead of %s",
                queue.queue_id, start, queue.read_offset,
            )  # fmt: skip
            queue.skip_to(start)
        delivered_before_ms = self._timer.delivered_before_ms()
        records = self._records(stored, queue.position, READ_PER_TURN)
        while not turn.is_over and (record := next(records, None)) is not None:
            queue.read(record)
            turn.take()
        if queue.position >= stored.next_offset:
            queue.end_reached(delivered_before_ms)

    def _records(self, queue: EntryQueue, start: int, count_max: int) -> Iterator[ReviveRecord]:
        """Up to so many records; an entry whose record is unreadable gives one without a tag."""
        while count_max > 0 and (entries := queue.entries(start, count_max)):
            for log_offset, _size, _tags_code in CQ_ENTRY.iter_unpack(entries):
                record = record_at(self._store, log_offset)
                if record is None:
                    yield ReviveRecord(start, "", b"")
                else:
                    yield _revive_record(record, start)
                start += 1
                count_max -= 1

    # ---- copies ----------------------------------------------------------------------------------

    def _due(self, queue: ReviveQueue) -> Point | None:
        # After a start acks may stand far behind their check-point.
        if queue.position < self._started_with[queue.queue_id]:
            return None
        return queue.take_due(self._clock.now_ms())

    def _copies_left(self) -> list[int]:
        """Copies that the saved offsets of the revive group do not count.

        Those of check-points that are not done, and of before the start those that no check-point
        was found for yet.

        There are none when every check-point that stood in a queue at the start has left it.
        """
        if self.queues and all(map(self._has_left_old, self.queues)):
            self.copies.revived.clear()
        return [*self.copies.revived.log_offsets(), *self.copies.unfinished_offsets()]

    def _has_left_old(self, queue_id: int) -> bool:
        queue, end = self.queues[queue_id], self._started_with[queue_id]
        first = queue.first_offset
        return queue.read_offset >= end and (first is None or first >= end)

    def _revive(self, queue: ReviveQueue, waiting: Point, turn: Turn) -> Outcome:
        """Copy the messages of a check-point that are not acknowledged."""
        point = waiting.point
        if not waiting.is_repeated:
            if self._is_wanted(point):
                is_old = waiting.revive_offset < self._started_with[queue.queue_id]
                outcome = self.copies.copy(point, queue.queue_id, turn, is_old=is_old)
                if outcome is not Outcome.DONE:
                    return outcome
            else:
                logger.info("topic or group of a pop check-point is gone: %s", point.key)
                self.copies.give_up(point)
        turn.take()
        offset = queue.done(waiting)
        self.copies.left(queue.queue_id)
        self._tables.offsets.commit(REVIVE_GROUP, self.topic, queue.queue_id, offset)
        self._tables.offsets.log_grown = True
        return Outcome.DONE

    def _is_wanted(self, point: CheckPoint) -> bool:
        """Whether topic and group still exist."""
        topic = topic_of_pop_retry(point.topic, point.group)
        # A group that was created for a pop may be missing after a crash: it is created again.
        return topic in self._tables.topics and self._tables.groups.find(point.group) is not None

    # ---- numbers ---------------------------------------------------------------------------------

    def lags(self) -> dict[int, int]:
        """Records of each queue behind the committed offset."""
        return {
            queue_id: max(
                0,
                self._store.reader.max_offset(self.topic, queue_id) - queue.committed_offset - 1,
            )
            for queue_id, queue in self.queues.items()
        }

    def latencies_ms(self) -> dict[int, int]:
        """How long the next check-point of each queue has been visible again."""
        now_ms = self._clock.now_ms()
        return {
            queue_id: 0 if queue.first is None else max(0, now_ms - queue.first.revive_time_ms)
            for queue_id, queue in self.queues.items()
        }


def _revive_record(record: MessageRecord, queue_offset: int) -> ReviveRecord:
    tag = record.properties.get(names.PROPERTY_TAGS, "")
    return ReviveRecord(queue_offset, tag, record.body)
