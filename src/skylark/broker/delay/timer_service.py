"""Timer service: puts timed messages from the timer topic into the wheel, and delivers them.

::

    rmq_sys_wheel_timer --(each message, in order)--> late: deliver          not late: place
    first slot of the wheel --(due)--> recalls, then each message: deliver, drop or roll
    deliver = put into REAL_TOPIC with TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS; roll = put into
    rmq_sys_wheel_timer again with TIMER_ROLL_TIMES one higher

The service works in turns of the loop, each with a limited amount of work, so that ten thousand
messages of one second do not delay requests. Between turns there is one timer, for the slot that is
due next; a message that arrives in the timer topic starts a turn. Without timed messages nothing
runs.

**A put that fails** is tried three times, half a second apart; then the message is dropped and the
loss logged, as in Java. With ``timerEnableRetryUntilSuccess`` it is tried for ever. If the store
takes no messages at all, because its disk is full, the service waits in any case: Java would lose
every message that is due meanwhile. A message of which no copy can be made is skipped at once, and
counted.

**On disk.** State goes to disk ``timerFlushIntervalMs`` after a change, and the checkpoint follows
when the commit log has on disk what was delivered. So after a crash messages of the last seconds
count as waiting; those whose copies are in the log are not delivered again
(:mod:`skylark.broker.delay.timer_copies`). An orderly stop leaves none: it finishes the current
slot while the store still takes messages, and saves the state after the log is on disk.

Runs on masters only. Counterpart of the threads of Java's ``TimerMessageStore``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

import msgspec

from skylark.broker.delay.timer_copies import find_copies
from skylark.broker.delay.timer_delivery import Delivery, Outcome, delete_key
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.table_saver import InThread
from skylark.core.clock import Clock, TimerHandle, yield_once
from skylark.core.errors import StoreError
from skylark.core.hashing import java_hash
from skylark.core.lifecycle import Tasks
from skylark.core.names import TIMER_TOPIC
from skylark.store.config_tables import TimerMetricsTable
from skylark.store.consume_queue import EntryQueue
from skylark.store.errors import StoreFileError
from skylark.store.timer.timer_log import SlotWalk, Unit
from skylark.store.timer.timer_recovery import recover
from skylark.store.timer.timer_store import Snapshot, TimerStore
from skylark.wire import properties as names
from skylark.wire.layout import CQ_ENTRY
from skylark.wire.message import MessageRecord

logger = logging.getLogger(__name__)

PLACED_PER_TURN: Final = 100
DELIVERED_PER_TURN: Final = 50
WALKED_PER_TURN: Final = 1_000
RETRY_S: Final = 0.5
STOPPED_CHECK_S: Final = 1.0  # while timerStopEnqueue or timerStopDequeue holds something up
WALL_CHECK_S: Final = 0.5  # the wall clock may be set while a slot is waited for
EXPIRED_CHECK_S: Final = 30.0
STOP_GRACE_S: Final = 10.0
RATE_WINDOW_S: Final = 10
UNREADABLE_MAX_MS: Final = 5_000  # a message that waits for the disk is not older


class TimerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the timer; all zeros without one."""

    read_behind: int = 0
    offset_behind: int = 0
    congest_count: int = 0
    enqueue_tps: float = 0.0
    dequeue_tps: float = 0.0


class Rate:
    """Events per second over the last ten seconds."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # second -> events

    def add(self, now_ms: int) -> None:
        second = now_ms // 1_000
        count = self._counts.get(second)
        if count is None:
            oldest = second - RATE_WINDOW_S
            self._counts = {key: n for key, n in self._counts.items() if key >= oldest}
            count = 0
        self._counts[second] = count + 1

    def per_second(self, now_ms: int) -> float:
        second = now_ms // 1_000
        window = range(second - RATE_WINDOW_S, second)
        return sum(n for key, n in self._counts.items() if key in window) / RATE_WINDOW_S


class TimerService:
    """Runs the timer of a broker, from ``load`` and ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        timer: TimerStore,
        writer: MessageWriter,
        stats: BrokerStats,
        clock: Clock,
        *,
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        self.timer = timer
        self._live = live
        self._store = writer.store
        self._clock = clock
        self._in_thread = in_thread
        self._delivery = Delivery(live, timer, writer, stats, clock)
        self._tasks = Tasks("timer")
        self._running = False
        self._has_run = False
        self._turn: TimerHandle | None = None
        self._wake_timer: TimerHandle | None = None
        self._wait_until = 0.0  # monotonic: a put has failed, or the disk
        self._walk: SlotWalk | None = None
        self._deleted: dict[str, str | None] = {}  # see ``Delivery.due``
        self._handled: set[int] = set()  # log offsets of messages of the current slot
        self._paused: dict[int, tuple[set[int], dict[str, str | None]]] = {}  # both, by slot
        self._flush_timer: TimerHandle | None = None
        self._snapshot: Snapshot | None = None
        self._is_flushing = False
        self._expiry_timer: TimerHandle | None = None
        self._enqueue_rate = Rate()
        self._dequeue_rate = Rate()

    # ---- start and stop --------------------------------------------------------------------------

    def load(self) -> None:
        """Recover the files; the store is open. Raises StoreError."""
        queue = self._queue()
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        recover(self.timer, self._queue_offset_of, low, high)
        if queue is not None:
            now_ms = self._clock.now_ms()
            self._delivery.copies = find_copies(self.timer, queue, self._store, now_ms)

    def _queue_offset_of(self, unit: Unit) -> int | None:
        record = self._delivery.record(unit.log_offset, unit.size)
        return None if record is None or record.topic != TIMER_TOPIC else record.queue_offset

    def start(self) -> None:
        """Begin to put messages into the wheel and to deliver."""
        self._running = self._has_run = True
        self.wake()

    async def stop(self) -> None:
        """Finish the current slot and stop; :meth:`save` follows."""
        if not self._running:
            return
        self._running = False
        for timer in (self._turn, self._wake_timer, self._flush_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        await self._tasks.wait()
        try:
            await self._finish_slot()
        except StoreError as error:
            logger.error("cannot finish the current slot, the next start repeats it: %s", error)  # noqa: TRY400

    def save(self) -> None:
        """Save the state and close the files; in any thread.

        Comes after the last put, when the log is on disk: a checkpoint that counts messages as
        delivered before the log has them on disk would lose them. The next start repeats what is
        not saved.
        """
        timer = self.timer
        try:
            if self._has_run and not timer.is_rebuilding and (timer.is_dirty or self._snapshot):
                snapshot = self._take_snapshot()
                if self._is_on_disk(snapshot):
                    timer.begin_write(snapshot)
                    timer.write(snapshot)
                    timer.end_write(snapshot)
        except StoreError as error:
            logger.error("cannot save the state of the timer: %s", error)  # noqa: TRY400
        finally:
            timer.close()

    async def _finish_slot(self) -> None:
        """Deliver the rest of the current slot: otherwise its first part is delivered twice."""
        deadline = self._clock.monotonic() + STOP_GRACE_S
        while self._walk is not None:
            self._wait_until = 0.0
            self._deliver_some()
            if self._wait_until or self._clock.monotonic() > deadline:
                logger.warning(
                    "cannot finish slot %s, the next start repeats it", self._walk.time_ms
                )
                return
            await yield_once()

    def wake(self) -> None:
        """Start a turn: there is a new message in the timer topic, or a slot is due."""
        if self._running and self._turn is None:
            self._turn = self._clock.call_later(0, self._take_turn)

    # ---- turns -----------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        self._turn = None
        if not self._running:
            return
        if self._clock.monotonic() >= self._wait_until:
            self._wait_until = 0.0
            self.timer.advance(self._clock.now_ms())
            try:
                more = self._place_some()
                more |= self._deliver_some()
            except StoreError as error:
                logger.error("the timer failed and will retry: %s", error)  # noqa: TRY400
                self._hold(RETRY_S)
                more = False
            self._flush_later()
            if more and not self._wait_until:
                self.wake()
                return
            if self._delivery.copies and not (self._wait_until or self.enqueue_lag()):
                self._delivery.copies.caught_up(self.timer.oldest_ms)
        self._arm()
        if self._expiry_timer is None and self.timer.log.has_old_files:
            self._expiry_timer = self._clock.call_later(EXPIRED_CHECK_S, self._delete_expired)

    def _hold(self, seconds: float) -> None:
        """Pause."""
        self._wait_until = self._clock.monotonic() + seconds

    def _arm(self) -> None:
        """Set the timer for the next turn, if there is something to wait for."""
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        delay_s = self._next_check_s()
        if delay_s is not None:
            self._wake_timer = self._clock.call_later(delay_s, self.wake)

    def _next_check_s(self) -> float | None:
        if self._wait_until:
            return max(0.0, self._wait_until - self._clock.monotonic())
        settings = self._live.current
        checks_s = []
        if settings.timer_stop_enqueue and self.enqueue_lag():
            checks_s.append(STOPPED_CHECK_S)
        due_ms = self.timer.due_ms()
        if due_ms is not None:
            delay_s = (due_ms - self._clock.now_ms()) / 1_000
            soonest_s = STOPPED_CHECK_S if settings.timer_stop_dequeue else 0.0
            checks_s.append(min(max(delay_s, soonest_s), WALL_CHECK_S))
        return min(checks_s, default=None)

    # ---- into the wheel --------------------------------------------------------------------------

    def _queue(self) -> EntryQueue | None:
        return self._store.queues.get(TIMER_TOPIC, 0)

    def _place_some(self) -> bool:
        """Put messages of the timer topic into the wheel; whether there may be more."""
        queue = self._queue()
        if queue is None or self._live.current.timer_stop_enqueue:
            return False
        timer = self.timer
        if timer.queue_offset < queue.min_offset:
            logger.warning(
                "retention deleted timed messages %s to %s before they were placed",
                timer.queue_offset,
                queue.min_offset,
            )
            timer.placed(queue.min_offset)
        for queue_offset, log_offset, size in self._entries(queue):
            record = self._delivery.record(log_offset, size)
            if record is not None and not self._place(record, queue_offset):
                return False
            timer.placed(queue_offset + 1)
        return timer.queue_offset < queue.max_offset

    def _entries(self, queue: EntryQueue) -> Iterator[tuple[int, int, int]]:
        start = self.timer.queue_offset
        entries = queue.entries(start, PLACED_PER_TURN)
        for number, (log_offset, size, _tags_code) in enumerate(CQ_ENTRY.iter_unpack(entries)):
            yield start + number, log_offset, size

    def _place(self, record: MessageRecord, queue_offset: int) -> bool:
        """Put a message into the wheel, or deliver it if it is late; False: try it again later."""
        properties = record.properties
        text = properties.get(names.PROPERTY_TIMER_OUT_MS, "")
        real_topic = properties.get(names.PROPERTY_REAL_TOPIC)
        if not text.isdecimal() or len(text) > 18 or real_topic is None:
            logger.warning(
                "skipped message %s of the timer topic: it has no time or no topic", queue_offset
            )
            return True
        timer, time_ms = self.timer, int(text)
        if queue_offset < timer.placed_until and time_ms < timer.checkpoint.saved.last_read_time_ms:
            return True  # delivered before the timer log was lost
        now_ms = self._clock.now_ms()
        if time_ms < timer.write_time_ms:
            return not self._must_wait(self._delivery.late(record))
        is_delete = names.PROPERTY_TIMER_DEL_UNIQKEY in properties
        topic_hash = java_hash(real_topic)
        if not timer.place(
            time_ms, record.log_offset, record.total_size, topic_hash, is_delete=is_delete
        ):
            return False
        self._enqueue_rate.add(now_ms)
        timer.counts.add(real_topic, -1 if is_delete else 1, now_ms)
        return True

    # ---- out of the wheel ------------------------------------------------------------------------

    def _deliver_some(self) -> bool:
        """Deliver a part of the slot that is due; whether there is more to do now."""
        if self._live.current.timer_stop_dequeue and self._walk is None:
            return False
        walk = self._walk
        if walk is not None and walk.time_ms >= self.timer.write_time_ms:
            # The clock was set back: the rest of the slot is due later.
            self._paused[walk.time_ms] = self._handled, self._deleted
            walk = self._walk = None
        if walk is None:
            walk = self._walk = self.timer.next_slot()
            if walk is None:
                return False
            self._handled, self._deleted = self._paused.pop(walk.time_ms, (set(), {}))
        if not walk.is_complete:
            walk.step(WALKED_PER_TURN)
            return True
        for _ in range(DELIVERED_PER_TURN):
            mark = walk.next_delete()
            if mark is not None:
                self._add_recall(mark)
                continue
            unit = walk.next()
            if unit is None:
                self._slot_is_done(walk)
                break
            if unit.log_offset not in self._handled:
                if self._must_wait(self._delivery.due(unit, self._deleted)):
                    return False
                self._handled.add(unit.log_offset)
            walk.done()
        return True

    def _add_recall(self, mark: Unit) -> None:
        record = self._delivery.record(mark.log_offset, mark.size)
        if record is not None:
            properties = record.properties
            text = properties.get(names.PROPERTY_TIMER_DEL_UNIQKEY)
            topic = properties.get(names.PROPERTY_REAL_TOPIC, "")
            if text is not None:
                self._deleted.setdefault(delete_key(topic, text), topic)

    def _slot_is_done(self, walk: SlotWalk) -> None:
        now_ms = self._clock.now_ms()
        for topic in self._deleted.values():
            if topic is not None:  # a recall that was counted and found no message
                self.timer.counts.add(topic, 1, now_ms)
        self._deleted = {}
        self._walk = None
        self.timer.finish(walk)

    def _must_wait(self, outcome: Outcome) -> bool:
        """Handle the result of a delivery; whether to try it again later."""
        if outcome is Outcome.DELIVERED:
            self._dequeue_rate.add(self._clock.now_ms())
        elif outcome is Outcome.FAILED:
            self._hold(RETRY_S)
        return outcome is Outcome.FAILED

    # ---- to disk ---------------------------------------------------------------------------------

    def _flush_later(self) -> None:
        if self._running and self._flush_timer is None and not self._is_flushing:
            if self._snapshot is None and (not self.timer.is_dirty or self.timer.is_rebuilding):
                return
            interval_s = self._live.current.timer_flush_interval_ms / 1_000
            self._flush_timer = self._clock.call_later(interval_s, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        if self._snapshot is None:
            self._snapshot = self._take_snapshot()
        if not self._is_on_disk(self._snapshot):
            self._flush_later()
            return
        snapshot, self._snapshot = self._snapshot, None
        self._is_flushing = True
        self._tasks.spawn(self._flush_now(snapshot), name="flush")

    def _take_snapshot(self) -> Snapshot:
        return self.timer.snapshot(self._clock.now_ms(), self._store.log.files.wrote_end)

    def _is_on_disk(self, snapshot: Snapshot) -> bool:
        """Whether the commit log has on disk what the snapshot counts as delivered or placed."""
        return self._store.log.files.flushed_where >= snapshot.log_end

    async def _flush_now(self, snapshot: Snapshot) -> None:
        timer = self.timer
        timer.begin_write(snapshot)
        try:
            await self._in_thread(timer.write, snapshot)
        except StoreFileError as error:
            timer.end_write(snapshot, error)
            logger.warning("cannot save the state of the timer: %s", error)
        else:
            timer.end_write(snapshot)
        self._is_flushing = False
        self._flush_later()

    def _delete_expired(self) -> None:
        """Delete timer log files whose messages are deleted; repeats while there are several."""
        self._expiry_timer = None
        try:
            self.timer.log.delete_before(self._store.log.min_offset, self._clock.monotonic())
        except StoreError as error:
            logger.warning("cannot delete an expired timer log file: %s", error)
        self.wake()

    # ---- reading ---------------------------------------------------------------------------------

    def enqueue_lag(self) -> int:
        """Messages of the timer topic that are not in the wheel yet."""
        queue = self._queue()
        return 0 if queue is None else max(0, queue.max_offset - self.timer.queue_offset)

    def dequeue_lag(self) -> int:
        """Messages that are due and not delivered."""
        self.timer.advance(self._clock.now_ms())
        return self.timer.due_count()

    def delivered_before_ms(self) -> int:
        """Every message that was stored before this time, and due before it, is delivered."""
        now_ms = self._clock.now_ms()
        self.timer.advance(now_ms)
        until_ms = self.timer.oldest_ms
        queue = self._queue()
        if queue is not None and self.timer.queue_offset < queue.next_offset:
            entry = queue.read_entry(self.timer.queue_offset)
            stored_ms = None
            if entry is not None:
                stored_ms = self._store.reader.store_time_of(entry.log_offset)
            if stored_ms is None:  # it waits for the disk
                stored_ms = now_ms - UNREADABLE_MAX_MS
            until_ms = min(until_ms, stored_ms)
        return until_ms

    def timing_counts(self) -> dict[str, int]:
        """Messages that wait, by topic."""
        return self.timer.counts.by_topic()

    def topic_deleted(self, topic: str) -> None:
        """Stop counting the messages of a deleted topic; they are still delivered."""
        self.timer.counts.remove(topic, self._clock.now_ms())

    def checkpoint_body(self) -> bytes:
        """How far the timer is on disk, for slaves (60)."""
        return self.timer.checkpoint.saved.encode()

    def counts_table(self) -> TimerMetricsTable:
        """Messages that wait, by topic, for slaves (61)."""
        return self.timer.counts.table()

    def facts(self) -> TimerFacts:
        """The state of the timer for runtime information (28)."""
        now_ms = self._clock.now_ms()
        self.timer.advance(now_ms)
        return TimerFacts(
            read_behind=max(0, now_ms - self.timer.oldest_ms) // 1_000,
            offset_behind=self.enqueue_lag(),
            congest_count=self.timer.waiting_count,
            enqueue_tps=self._enqueue_rate.per_second(now_ms),
            dequeue_tps=self._dequeue_rate.per_second(now_ms),
        )
