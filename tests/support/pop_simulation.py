"""Random schedules of pops, acks and changes against the pure machines of POP, and their model.

:class:`Simulation` has the real :class:`PopState`, :class:`CheckPointBuffer` and
:class:`ReviveQueue`, and plays the rest: a log whose timed records a timer delivers in slots of a
second, sometimes late, and which sometimes refuses records; consumers that acknowledge in time,
late or never, one or several, by old handles too, and change the invisible time; restarts of the
revive from its committed offset, after which the timer delivers the records of the last seconds
once more. All of it on a clock that only moves in here.

**The model** knows of each delivery of a message which handle counts and until when. At each copy:
it is not early (not before the end of its invisible time), its delivery was not acknowledged in
time, there is one per delivery, and the attempt is one more, or the same after ``suspend``. In the
end every delivery that was not acknowledged has had its copy, and the offset of the queue is behind
all messages. A request that is refused has done nothing; only a change whose ack was not stored
leaves one more check-point that may bring the message back.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from skylark.broker.pop.pop_record_writer import Receipt
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.pop_totals import PopTotals
from skylark.broker.pop.revive import ReviveQueue, ReviveRecord
from skylark.core.clock import Clock
from skylark.core.errors import BrokerError
from skylark.wire.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECK_POINT_TAG, Ack, CheckPoint

BROKER: Final = "broker-a"
TOPIC: Final = "T"
RETRY: Final = "%RETRY%g_T"
GROUP: Final = "g"
START_MS: Final = 1_700_000_000_000
SLOT_MS: Final = 1_000
#: The timer may deliver the records of so long before a restart again.
REPEATED_MS: Final = 2_000


class SimClock:
    """A clock that runs its timers when it is moved."""

    def __init__(self) -> None:
        self.time_ms = START_MS
        self._timers: list[tuple[int, int, SimTimer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self.time_ms

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> SimTimer:
        timer = SimTimer(lambda: callback(*args))
        when_ms = self.time_ms + round(delay_s * 1_000)
        heapq.heappush(self._timers, (when_ms, next(self._order), timer))
        return timer

    def advance(self, until_ms: int) -> None:
        while self._timers and self._timers[0][0] <= until_ms:
            when_ms, _, timer = heapq.heappop(self._timers)
            self.time_ms = max(self.time_ms, when_ms)
            if not timer.is_cancelled:
                timer.callback()
        self.time_ms = max(self.time_ms, until_ms)


class SimTimer:
    """A timer of the clock."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimRecord(msgspec.Struct):
    """A record of POP in the log."""

    tag: str
    body: bytes
    deliver_ms: int


class SimLog:
    """Log, timer wheel and one revive queue; takes the place of ``PopRecordWriter``."""

    def __init__(self, clock: SimClock) -> None:
        self.totals = PopTotals()
        self._clock = clock
        self._slots: dict[int, list[SimRecord]] = {}
        self._delivered: list[tuple[int, SimRecord]] = []  # slot time and record
        self.queue: list[ReviveRecord] = []
        self.is_late = False
        #: Whether the next record is refused.
        self.is_refused: Callable[[], bool] = bool
        self.refused_count = 0

    # ---- as PopState sees it ---------------------------------------------------------------------

    def check_point(self, point: CheckPoint, revive_queue_id: int) -> SimRecord:
        assert revive_queue_id == 0
        return SimRecord(CHECK_POINT_TAG, point.encode(), point.deliver_ms)

    def ack(self, receipt: Receipt, queue_offsets: Sequence[int]) -> SimRecord:
        is_batch = len(queue_offsets) > 1
        ack = Ack(
            topic=receipt.topic,
            group=receipt.group,
            queue_id=receipt.queue_id,
            start_offset=receipt.start_offset,
            pop_time_ms=receipt.pop_time_ms,
            broker_name=receipt.broker_name,
            queue_offsets=queue_offsets,
            is_batch=is_batch,
        )
        deliver_ms = receipt.pop_time_ms + receipt.invisible_ms
        return SimRecord(BATCH_ACK_TAG if is_batch else ACK_TAG, ack.encode(), deliver_ms)

    def put(self, *records: SimRecord) -> None:
        """As ``PopRecordWriter.put``: each record may be refused alone."""
        stored = [self._put(record) for record in records]
        if not all(stored):
            raise BrokerError("the log takes no records")

    def put_change(self, check_point: SimRecord, ack: SimRecord) -> None:
        self.put(check_point)
        self._put(ack)

    def _put(self, record: SimRecord) -> bool:
        if self.is_refused():
            self.refused_count += 1
            return False
        if record.deliver_ms <= self._clock.now_ms():
            self._append(record)
        else:
            slot = (record.deliver_ms - 1) // SLOT_MS * SLOT_MS
            self._slots.setdefault(slot, []).append(record)
        return True

    def _append(self, record: SimRecord) -> None:
        self.queue.append(ReviveRecord(len(self.queue), record.tag, record.body))

    # ---- the timer -------------------------------------------------------------------------------

    @property
    def delivered_before_ms(self) -> int:
        """As ``TimerService.delivered_before_ms``."""
        return min([*self._slots, self._clock.now_ms() // SLOT_MS * SLOT_MS])

    def deliver(self) -> None:
        """Deliver the slots that are over, unless the timer is late."""
        if self.is_late:
            return
        for slot in sorted(self._slots):
            if slot + SLOT_MS > self._clock.now_ms():
                break
            for record in self._slots.pop(slot):
                self._append(record)
                self._delivered.append((slot, record))

    def crash(self) -> None:
        """The timer forgets what it has delivered of late."""
        since = self._clock.now_ms() - REPEATED_MS
        for slot, record in self._delivered:
            if slot >= since:
                self._slots.setdefault(slot, []).append(record)
        self._delivered.clear()


class Delivery(msgspec.Struct, eq=False):
    """One delivery of a message, until it is acknowledged or copied."""

    topic: str
    offset: int
    attempt: int
    receipt: Receipt
    suspend: bool = False
    is_acked: bool = False  # in time
    may_be_acked: bool = False  # late: it may count or not
    half_changes: int = 0  # without the ack: one more check-point may bring the message back
    copies: int = 0
    old_receipts: list[Receipt] = msgspec.field(default_factory=list)

    @property
    def visible_ms(self) -> int:
        return self.receipt.pop_time_ms + self.receipt.invisible_ms


class SimOffsets:
    """Takes the place of ``OffsetTable``: the committed offsets."""

    pop_marks = None
    log_grown = False

    def __init__(self) -> None:
        self.committed: dict[str, int] = {TOPIC: 0, RETRY: 0}

    def get(self, group: str, topic: str, queue_id: int) -> int:
        assert (group, queue_id) == (GROUP, 0)
        return self.committed[topic]

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        assert (group, topic in self.committed, queue_id) == (GROUP, True, 0)
        return False

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        assert (group, queue_id) == (GROUP, 0)
        assert offset >= self.committed[topic], "an offset goes back"
        self.committed[topic] = offset


class Simulation:
    """One schedule, made from a seed."""

    def __init__(self, seed: int, live: Any, *, merging: bool) -> None:
        self.rng = random.Random(seed)
        self.clock = SimClock()
        self.log = SimLog(self.clock)
        self.offsets = SimOffsets()
        state: Any = PopState(live, self.log, self.offsets, _Saved(), self._clock())  # type: ignore[arg-type]
        state._may_merge = merging
        state.revive_now = self._revive_now
        self.state: PopState = state
        self.revive = ReviveQueue(0, -1, BROKER)
        self.attempts: dict[str, list[int]] = {TOPIC: [], RETRY: []}  # of the messages, by offset
        self.open: list[Delivery] = []
        self.copy_count = self.acked_count = self.restart_count = 0
        self.log.is_refused = self._is_refused
        self.is_failing = False
        self._by_place: dict[tuple[str, int], Delivery] = {}

    def _clock(self) -> Clock:
        return self.clock  # type: ignore[return-value]

    def run(self) -> None:
        """Some seconds of actions, then silence until all has come back and is acknowledged."""
        self.attempts[TOPIC] = [0] * self.rng.randint(1, 12)
        actions: list[tuple[Callable[[], object], int]] = [
            (self._pop, 6), (self._ack, 6), (self._change, 3), (self._toggle_lateness, 1),
            (self._restart, 1), (self._toggle_failures, 2), (self._ack_by_old_handle, 2),
        ]  # fmt: skip
        for _ in range(self.rng.randint(5, 60)):
            self._pass_time(self.rng.choice((0, 1, 50, 400, 1_000, 3_000)))
            (action,) = self.rng.choices(*zip(*actions, strict=True))
            action()
        self.log.is_late = self.is_failing = False
        for _ in range(40):  # every message has an end
            self._pass_time(2_000)
            while self._pop(ack=True):
                pass
        self._pass_time(120_000)
        self._check_end()

    # ---- actions ---------------------------------------------------------------------------------

    def _pass_time(self, ms: int) -> None:
        end_ms = self.clock.now_ms() + ms
        while self.clock.now_ms() < end_ms:
            self.clock.advance(min(end_ms, self.clock.now_ms() + 200))
            self.log.deliver()
            if self.rng.random() < 0.5:
                self._revive_pass()
        self._revive_pass()

    def _pop(self, *, ack: bool = False) -> bool:
        topic = self.rng.choice((TOPIC, RETRY))
        offset = self.state.next_offset(topic, GROUP, 0)
        assert offset is not None
        count = min(self.rng.choice((1, 3, 32)), len(self.attempts[topic]) - offset)
        if count <= 0:
            other = RETRY if topic == TOPIC else TOPIC
            start = self.state.next_offset(other, GROUP, 0)
            return ack and start is not None and start < len(self.attempts[other])
        invisible_ms = self.rng.choice((1_200, 2_000, 5_000, 9_999, 20_000))
        point = CheckPoint(
            topic=topic,
            group=GROUP,
            queue_id=0,
            start_offset=offset,
            pop_time_ms=self.clock.now_ms(),
            invisible_ms=invisible_ms,
            broker_name=BROKER,
            offset_diffs=list(range(count)),
        )
        try:
            self.state.popped(point, 0, offset + count)
        except BrokerError:
            assert self.state.next_offset(topic, GROUP, 0) == offset
            return False
        receipt = Receipt(topic, GROUP, 0, offset, self.clock.now_ms(), invisible_ms, BROKER, 0)
        deliveries = []
        for place in range(offset, offset + count):
            delivery = Delivery(topic, place, self.attempts[topic][place], receipt)
            assert (topic, place) not in self._by_place, "popped twice"
            self._by_place[topic, place] = delivery
            deliveries.append(delivery)
        self.open += deliveries
        if ack:
            self._ack_some(deliveries)
        return True

    def _ack(self) -> None:
        if not self.open:
            return
        chosen = self.rng.choice(self.open)
        same = [d for d in self.open if d.receipt is chosen.receipt]
        self._ack_some(self.rng.sample(same, self.rng.randint(1, len(same))))

    def _ack_some(self, deliveries: list[Delivery]) -> None:
        deliveries.sort(key=lambda delivery: delivery.offset)
        receipt = deliveries[0].receipt
        try:
            self.state.ack(receipt, [delivery.offset for delivery in deliveries])
        except BrokerError:
            return
        for delivery in deliveries:
            if self.clock.now_ms() < delivery.visible_ms:
                assert not delivery.copies or delivery.half_changes
                delivery.is_acked = True
                self.acked_count += 1
            delivery.may_be_acked = True
            self.open.remove(delivery)

    def _change(self) -> None:
        if not self.open:
            return
        delivery = self.rng.choice(self.open)
        if self.clock.now_ms() >= delivery.visible_ms:
            return  # both handles would bring the message back
        invisible_ms = self.rng.choice((0, 1_000, 2_500, 6_000, 30_000))
        suspend = self.rng.random() < 0.3
        refused_before = self.log.refused_count
        try:
            changed = self.state.change_invisible_time(
                delivery.receipt, delivery.offset, invisible_ms, suspend=suspend
            )
        except BrokerError:
            return
        delivery.half_changes += self.log.refused_count > refused_before
        delivery.old_receipts.append(delivery.receipt)
        delivery.receipt = delivery.receipt._replace(
            start_offset=delivery.offset,
            pop_time_ms=changed.pop_time_ms,
            invisible_ms=invisible_ms,
        )
        delivery.suspend = suspend

    def _ack_by_old_handle(self) -> None:
        """An ack that has no effect, because a change came before it."""
        changed = [delivery for delivery in self.open if delivery.old_receipts]
        if changed:
            delivery = self.rng.choice(changed)
            with contextlib.suppress(BrokerError):
                self.state.ack(self.rng.choice(delivery.old_receipts), [delivery.offset])

    def _toggle_failures(self) -> None:
        self.is_failing = not self.is_failing

    def _is_refused(self) -> bool:
        return self.is_failing and self.rng.random() < 0.5

    def _toggle_lateness(self) -> None:
        self.log.is_late = not self.log.is_late

    def _restart(self) -> None:
        """The revive starts again at its committed offset; the timer repeats records."""
        self.restart_count += 1
        self.log.crash()
        seen: dict[int, int] = {}
        for record in self.log.queue:
            seen.setdefault(hash(record.body), record.queue_offset)
        self.revive = ReviveQueue(0, self.revive.committed_offset, BROKER, seen=seen)

    # ---- the revive ------------------------------------------------------------------------------

    def _revive_pass(self) -> None:
        revive, now_ms = self.revive, self.clock.now_ms()
        for record in self.log.queue[revive.read_offset :]:
            revive.read(record)
        revive.end_reached(self.log.delivered_before_ms)
        while (waiting := revive.take_due(now_ms)) is not None:
            if not waiting.is_repeated:
                self._copy(waiting.point)
            revive.done(waiting)

    def _revive_now(self, point: CheckPoint) -> bool:
        if self._is_refused():
            return False
        self._copy(point)
        return True

    def _copy(self, point: CheckPoint) -> None:
        for offset in point.waiting_offsets():
            delivery = self._by_place[point.topic, offset]
            if not delivery.half_changes:
                assert self.clock.now_ms() >= delivery.visible_ms, "early"
                assert not delivery.is_acked, "it was acknowledged in time"
                assert not delivery.copies, "a second copy"
                assert delivery.suspend == point.suspend
            delivery.copies += 1
            self.copy_count += 1
            if delivery in self.open:
                self.open.remove(delivery)
            self.attempts[RETRY].append(delivery.attempt + (0 if point.suspend else 1))

    def _check_end(self) -> None:
        for delivery in self._by_place.values():
            if not delivery.may_be_acked:
                assert 1 <= delivery.copies <= 1 + delivery.half_changes, "a message is lost"
        for topic, attempts in self.attempts.items():
            assert len(attempts) == self.state.next_offset(topic, GROUP, 0)
            assert self.offsets.committed[topic] == len(attempts), "an offset stays behind"
        assert self.state.held_count == 0


class _Saved:
    """Takes the place of the file of offsets."""

    def mark(self) -> None:
        """Nothing is saved here."""
