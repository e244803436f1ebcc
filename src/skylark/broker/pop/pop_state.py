"""State of POP consumption: what was popped and acknowledged, and where each queue continues.

The requests (:mod:`skylark.broker.pop.pop_service`, :mod:`skylark.broker.pop.acknowledge`) read
messages and check arguments; :class:`PopState` keeps what they have done::

    offset = state.next_offset(topic, group, queue)        # None: choose one, and advance() to it
    pending = state.popped(check_point, revive_queue_id, next_offset)
    pending = state.ack(receipt, [offset])                 # or several offsets of one check-point
    changed = state.change_invisible_time(receipt, offset, invisible_ms)

A method that returns a :class:`~skylark.broker.api.Pending` has done its work; the answer to the
client must wait until the Pending comes, because the record is not durable before (SYNC_FLUSH,
synchronous slaves). None: answer now. A method that raises BrokerError has done nothing: a pop must
not hand out the messages, an ack must be answered with the error.

**Records.** Check-points and acks are messages of the revive topic on their way through the timer
wheel (:mod:`skylark.wire.pop_records`); :mod:`skylark.broker.pop.revive` reads them there. So they
are in the log, slaves have them, and a Java broker can go on with the store. With
``enablePopBufferMerge`` they are first kept in memory
(:mod:`skylark.broker.pop.check_point_buffer`).

**What a crash leaves.** ``consumerOffset.json`` has the pop offsets of some seconds ago. It also
has a position in the log behind which everything is that they do not count: the end of the log, or
where it ended when the oldest check-point in memory came. The file is written only when the log is
on disk: an offset in it never skips messages whose check-point a power failure could take back.

* Without merging every pop is in the log before its answer. The next start reads the check-points
  behind that log position and moves the offsets over them (:mod:`skylark.broker.pop.pop_recovery`).
  So only messages whose ack was not answered come back, at their time.
* With merging the offset of a queue waits for the check-points in memory. What is in memory only is
  popped again, acknowledged or not. A check-point stays so long that it is finished and its offset
  saved within ``popCkStayBufferTime`` after the pop (:func:`stay_time`): nothing that was
  acknowledged earlier is repeated. The file says that check-points were merged, and merging does
  not begin before it does: recovery then moves an offset only as far as no check-point is missing,
  because one in the log may follow one that is lost. A start saves what it has recovered before
  the first pop, so that check-points from before a crash and from after it never mix.
* The first offset of a group in a queue is saved before the first pop of it is answered; pops of
  other queues do not wait. Otherwise a group that starts at the end of a queue would start there
  once more, and skip what came in between.

Counterpart of ``PopMessageProcessor.appendCheckPoint``, ``AckMessageProcessor.appendAck`` and
``ChangeInvisibleTimeProcessor`` in Java.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from skylark.broker.api import Pending
from skylark.broker.groups.consumer_offsets import OffsetTable, PopMarks
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.check_point_buffer import BufferLimits, CheckPointBuffer, Held, LineKey
from skylark.broker.pop.in_flight import InFlightCounts
from skylark.broker.pop.pop_record_writer import PopRecord, PopRecordWriter, Receipt
from skylark.broker.table_saver import SavedTable
from skylark.core.clock import Clock, TimerHandle, yield_once
from skylark.core.errors import BrokerError, StoreError
from skylark.core.lifecycle import Tasks
from skylark.store.config_tables import ConsumerOffsetTable
from skylark.wire.pop_records import CheckPoint

logger = logging.getLogger(__name__)

#: Check-points that leave memory in one turn of the loop.
WRITTEN_PER_TURN: Final = 128
#: Acks may always name one of the first so many revive queues.
REVIVE_QUEUES_ALWAYS: Final = 64
#: Time for writing a file of offsets, its wait for the log included.
SAVE_TIME_MS: Final = 1_500


class Changed(NamedTuple):
    """The answer to a change of invisible time, for the new receipt handle."""

    pop_time_ms: int
    pending: Pending[None] | None


class PopState:
    """Check-points, acks and pop offsets of one broker."""

    def __init__(
        self,
        live: LiveSettings,
        records: PopRecordWriter,
        offsets: OffsetTable,
        offsets_saved: SavedTable[ConsumerOffsetTable],
        clock: Clock,
    ) -> None:
        self.records = records
        self.totals = records.totals
        self.in_flight_counts = InFlightCounts(clock.now_ms())
        #: Makes the copy of a message that was given back and is visible again; False: not now.
        self.revive_now: Callable[[CheckPoint], bool] = lambda _point: False
        #: Whether the revive reads a queue.
        self.has_revive_queue: Callable[[int], bool] = lambda _queue_id: False
        #: Log offsets of copies whose check-points the revive has not come across since the start.
        self.copies_left: Callable[[], Sequence[int]] = tuple
        self._live = live
        self._offsets = offsets
        self._offsets_saved = offsets_saved
        self._clock = clock
        self._buffer = CheckPointBuffer(BufferLimits())
        self._log_end: Callable[[], int] = int
        self._may_merge = False  # the setting is on, and the file of offsets says so
        self._due_timer: TimerHandle | None = None
        self._armed_ms: int | None = None  # when the timer fires
        # Queues whose first offset is not on disk, and the pops that wait for it.
        self._unsaved: dict[LineKey, list[Pending[None]]] = {}
        self._is_saving = False
        self._tasks = Tasks("pop state")
        self._apply(live)
        live.changes.subscribe(lambda _config: self._apply(live))

    def _apply(self, live: LiveSettings) -> None:
        pop = live.current.pop
        self._buffer.limits = BufferLimits(
            stay_time(pop.pop_ck_stay_buffer_time, live.current.flush_consumer_offset_interval),
            pop.pop_ck_stay_buffer_time_out,
            pop.pop_ck_max_buffer_size,
            pop.pop_ck_offset_max_queue_size,
            live.current.timer_max_delay_sec * 1_000,
        )
        if not pop.enable_pop_buffer_merge:
            self._may_merge = False
        elif not self._may_merge and self._offsets.pop_marks is not None:
            self._tasks.spawn(self._begin_to_merge(), name="merge")

    # ---- start and stop --------------------------------------------------------------------------

    async def start(self, log_end: Callable[[], int]) -> None:
        """Begin to save the position in the log along with the offsets, and to merge.

        For a master, after recovery and before the first pop. ``log_end``: the end of the log.
        Raises StoreError if the file of offsets cannot be written.
        """
        self._log_end = log_end
        self._offsets.pop_marks = self._marks
        self._offsets_saved.mark()
        # Before anything is popped: a crash after that must not find these check-points again, and
        # between those of later pops.
        await self._offsets_saved.written()
        self._apply(self._live)

    def _marks(self) -> PopMarks:
        log_end = self._log_end()
        wanted = self._live.current.pop.enable_pop_buffer_merge  # they may soon be in memory
        return PopMarks(
            self._buffer.log_end(log_end),
            wanted or bool(self._buffer.line_count),
            log_end,
            self.copies_left(),
        )

    async def _begin_to_merge(self) -> None:
        self._offsets_saved.mark()
        try:
            await self._offsets_saved.written()
        except StoreError as error:
            logger.warning("pop check-points are not merged in memory: %s", error)
            return
        self._may_merge = self._live.current.pop.enable_pop_buffer_merge

    async def stop(self) -> None:
        """Write the check-points in memory; no request comes any more."""
        self._may_merge = False
        if self._due_timer is not None:
            self._due_timer.cancel()
        await self._tasks.cancel_and_wait()
        failed_count, last_error = 0, None
        for number, held in enumerate(self._buffer.all(), start=1):
            try:
                self._write(held)
            except (BrokerError, StoreError) as error:
                # The offset of its queue stays before it; those of other queues go on.
                failed_count, last_error = failed_count + 1, error
            if number % WRITTEN_PER_TURN == 0:
                await yield_once()
        if failed_count:
            logger.error(
                "%s pop check-points cannot be written, and are popped again: %s",
                failed_count,
                last_error,
            )

    # ---- offsets ---------------------------------------------------------------------------------

    @property
    def revive_queue_ids(self) -> range:
        """The queues of the revive topic; a pop chooses one of them in turn."""
        return range(self._live.current.pop.revive_queue_num)

    def may_have_revive_queue(self, queue_id: int) -> bool:
        """Whether a check-point may stand in this queue of the revive topic.

        Not only in those of the settings: ``reviveQueueNum`` may have been lowered since the pop,
        and the check-point may still be in the timer wheel.
        """
        bound = max(REVIVE_QUEUES_ALWAYS, self._live.current.pop.revive_queue_num)
        return 0 <= queue_id < bound or self.has_revive_queue(queue_id)

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Where the next pop of a queue reads; None if the group has no offset yet.

        Then the caller chooses one by ``initMode``, calls :meth:`advance` and reads there.
        """
        committed = self._offsets.get(group, topic, queue_id)
        end = self._buffer.end_offset((topic, group, queue_id))
        if end is not None and end > committed:
            return end
        return None if committed < 0 else committed

    def advance(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Continue at an offset without a check-point.

        For a first offset, for messages that the filter does not match, and for an illegal offset
        that was corrected (also downwards).
        """
        key = (topic, group, queue_id)
        end = self._buffer.end_offset(key)
        if end is not None and offset < end:
            self._buffer.forget(key, self._clock.now_ms())
            self._arm()
        elif self._buffer.add_finished(key, offset):
            return
        is_first = self._offsets.get(group, topic, queue_id) < 0
        self._offsets.commit(group, topic, queue_id, offset)
        if is_first:
            self._save_first_offset(key)

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """The offset of a queue was reset: drop what would advance it.

        Check-points of messages that were popped before stay, as in Java: what is not acknowledged
        comes back.
        """
        self._buffer.forget((topic, group, queue_id), self._clock.now_ms())
        self._arm()
        self._offsets_saved.mark()  # recovery must not move the offset over older check-points

    def topic_deleted(self, topic: str) -> None:
        """Commit no more offsets of a topic; what was popped of it finds its end in the revive."""
        self.in_flight_counts.topic_deleted(topic)
        self.totals.topic_deleted(topic)
        self._forget_lines(lambda line: line[0] == topic)

    def group_deleted(self, group: str) -> None:
        """The same for a group."""
        self.in_flight_counts.group_deleted(group)
        self.totals.group_deleted(group)
        self._forget_lines(lambda line: line[1] == group)

    def _forget_lines(self, is_gone: Callable[[LineKey], bool]) -> None:
        for line in self._buffer.lines():
            if is_gone(line):
                self._buffer.forget(line, self._clock.now_ms())
        self._arm()

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Messages of a queue that were popped since the start and are neither acknowledged nor
        given back; an estimate, for the threshold and for reports."""
        return self.in_flight_counts.get(topic, group, queue_id)

    @property
    def held_count(self) -> int:
        """Check-points in memory."""
        return len(self._buffer)

    @property
    def offset_count(self) -> int:
        """Check-points, in memory or written, that wait for their offset to be committed."""
        return self._buffer.waiting_count

    def in_line(self, topic: str, group: str, queue_id: int) -> list[Held]:
        """The check-points, also finished ones, that hold back the offset of a queue."""
        return self._buffer.in_line((topic, group, queue_id))

    def _save_first_offset(self, key: LineKey) -> None:
        self._unsaved.setdefault(key, [])
        self._offsets_saved.mark()
        if not self._is_saving:
            self._is_saving = True
            self._tasks.spawn(self._save_first_offsets(), name="first offset")

    async def _save_first_offsets(self) -> None:
        """Let pops go on when the first offset of their queue is on disk."""
        while self._unsaved:
            saved = list(self._unsaved)  # what comes during a write waits for the next one
            # The saver logs any failure; pops go on without the disk then.
            with contextlib.suppress(Exception):
                await self._offsets_saved.written()
            for key in saved:
                for pending in self._unsaved.pop(key):
                    pending.set(None)
        self._is_saving = False

    # ---- pops ------------------------------------------------------------------------------------

    def popped(
        self, check_point: CheckPoint, revive_queue_id: int, next_offset: int
    ) -> Pending[None] | None:
        """Keep a check-point; the next pop of the queue reads at ``next_offset``.

        Raises BrokerError if it cannot be kept: then the messages must not be handed out.
        """
        pending = None
        topic, group, queue_id = check_point.topic, check_point.group, check_point.queue_id
        held = None
        if self._may_merge:
            now_ms = self._clock.now_ms()
            held = self._buffer.add(
                check_point, revive_queue_id, next_offset, now_ms, self._log_end()
            )
        if held is None:
            pending = self._put(check_point, revive_queue_id)
            if not self._buffer.add_finished((topic, group, queue_id), next_offset):
                self._offsets.commit(group, topic, queue_id, next_offset)
        else:
            self._arm()
        self.in_flight_counts.add(topic, group, queue_id, len(check_point.offset_diffs))
        waiting = self._unsaved.get((topic, group, queue_id)) if self._unsaved else None
        if waiting is not None:
            saved: Pending[None] = Pending()
            waiting.append(saved)
            pending = saved if pending is None else _both(pending, saved)
        return pending

    # ---- acks ------------------------------------------------------------------------------------

    def ack(self, receipt: Receipt, queue_offsets: Sequence[int]) -> Pending[None] | None:
        """Acknowledge messages of one check-point; an ack that comes too late has no effect.

        Several offsets are a batch ack. The caller has checked topic, queue and offsets, and that
        the revive queue is not that of ordered consumption. Raises BrokerError.
        """
        draft = self.ack_draft(receipt, queue_offsets)
        return None if draft is None else self.records.put(draft)

    def ack_draft(
        self, receipt: Receipt, queue_offsets: Sequence[int], open_ack: PopRecord | None = None
    ) -> PopRecord | None:
        """:meth:`ack` without the put: the caller stores the draft with those of other requests.

        Acks that came together are one run of the put pipeline, and so one put. None: the ack is
        in memory, nothing is to be stored. The draft is prepared for the timer already; raises
        BrokerError if that refuses it. The message counts as acknowledged, also for
        :meth:`in_flight`: if the put fails, the client gets the error and the message comes back.

        ``open_ack``: an earlier ack of the same check-point that is not stored yet. It gets these
        offsets, too, and is the result; it must be completed
        (:meth:`PopRecordWriter.complete_ack`).
        """
        draft = None
        held = self._buffer.find(receipt.key)
        if held is None and open_ack is not None:
            draft = open_ack
            self.records.add_to_ack(draft, queue_offsets)
        elif held is None:
            draft = self.records.ack(receipt, queue_offsets)
        else:
            self._buffer.ack(held, queue_offsets)
            self._commit(held)
        self.in_flight_counts.subtract(
            receipt.topic, receipt.group, receipt.queue_id, len(queue_offsets), receipt.pop_time_ms
        )
        return draft

    def change_invisible_time(
        self, receipt: Receipt, queue_offset: int, invisible_ms: int, *, suspend: bool = False
    ) -> Changed:
        """Give one message a check-point of its own, from now on, then ack it in the old one.

        The new receipt handle has the new pop time, ``invisible_ms``, the same revive queue, and
        ``queue_offset`` as start offset. ``suspend``: the next delivery counts no attempt.
        Raises BrokerError.
        """
        now_ms = self._clock.now_ms()
        # Not the old pop time: then the ack of the old check-point would be one of the new.
        pop_time_ms = max(now_ms, receipt.pop_time_ms + 1)
        point = CheckPoint(
            topic=receipt.topic,
            group=receipt.group,
            queue_id=receipt.queue_id,
            start_offset=queue_offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            broker_name=receipt.broker_name,
            offset_diffs=(0,),
            suspend=suspend,
        )
        held = self._buffer.find(receipt.key)
        if held is not None and self._buffer.change(held, point, now_ms):
            self._arm()
            return Changed(pop_time_ms, None)
        if held is None:
            record = self.records.check_point(point, receipt.revive_queue_id)
            ack = self.records.ack(receipt, (queue_offset,))
            return Changed(pop_time_ms, self.records.put_change(record, ack))
        pending = self._put(point, receipt.revive_queue_id)
        self._buffer.ack(held, (queue_offset,))
        self._commit(held)
        return Changed(pop_time_ms, pending)

    # ---- out of memory ---------------------------------------------------------------------------

    def _commit(self, held: Held) -> None:
        """Commit the offset of a queue if the check-points at its head are finished.

        Not over a reset that no pop has taken yet, and never backwards: pull consumers of the group
        may have committed more.
        """
        offset = self._buffer.take_commit(held)
        if offset is None:
            return
        point, offsets = (held.whole or held).point, self._offsets
        queue = point.group, point.topic, point.queue_id
        if not offsets.has_reset(*queue) and offset > offsets.get(*queue):
            offsets.commit(*queue, offset)

    def _arm(self) -> None:
        """Set the timer for the next deadline, if that has changed."""
        due_ms = self._buffer.next_due_ms()
        if due_ms == self._armed_ms:
            return
        if self._due_timer is not None:
            self._due_timer.cancel()
            self._due_timer = None
        self._armed_ms = due_ms
        if due_ms is not None:
            delay_s = max(0.0, (due_ms - self._clock.now_ms()) / 1_000)
            self._due_timer = self._clock.call_later(delay_s, self._write_due)

    def _write_due(self) -> None:
        self._due_timer = self._armed_ms = None
        now_ms = self._clock.now_ms()
        for held in self._buffer.due(now_ms, WRITTEN_PER_TURN):
            try:
                is_done = self._settle(held)
            except (BrokerError, StoreError) as error:
                logger.warning("a pop check-point cannot be written now: %s", error)
                is_done = False
            if not is_done:
                self._buffer.postpone(held, now_ms)
        self._arm()

    def _settle(self, held: Held) -> bool:
        if not CheckPointBuffer.is_expired(held):
            self._write(held)
            return True
        if not self.revive_now(held.point):
            return False
        self._buffer.finish(held)
        self._commit(held)
        return True

    def _write(self, held: Held) -> None:
        """Write a check-point with its ack bits, after those of its parts; raises BrokerError.

        A part is a message that got an invisible time of its own. Each record is one put: after a
        BrokerError the next attempt writes only the missing ones.
        """
        queue_id = held.revive_queue_id
        for part in tuple(held.parts or ()):
            self._put(part.point, queue_id)
            self._buffer.finish(part)
        if not held.is_finished:
            self._put(held.point, queue_id)
            self._buffer.finish(held)
        self._commit(held)

    def _put(self, point: CheckPoint, revive_queue_id: int) -> Pending[None] | None:
        """Write one check-point; raises BrokerError."""
        pending = self.records.put(self.records.check_point(point, revive_queue_id))
        self._offsets.log_grown = True
        return pending


def stay_time(stay_ms: int, save_interval_ms: int) -> int:
    """How long a check-point may stay, so that its offset is saved ``stay_ms`` after the pop.

    At least a quarter of that, for settings that leave no time.
    """
    return max(stay_ms - save_interval_ms - SAVE_TIME_MS, stay_ms // 4)


def _both(first: Pending[None], second: Pending[None]) -> Pending[None]:
    """A Pending that comes after both."""
    result: Pending[None] = Pending()
    first.then(lambda _: second.then(result.set))
    return result
