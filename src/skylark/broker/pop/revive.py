"""Revive: decides which popped messages are delivered again, from the records of a revive queue.

The timer wheel puts a check-point into its revive queue a second before its messages become
visible, and an ack when they do (:mod:`skylark.wire.pop_records`). :class:`ReviveQueue` reads the
queue in order and matches the two. A check-point is due **two seconds after** its messages have
become visible, and not before it is certain that all acks that came in time have been read: the
queue is read to its end after the timer has delivered what was stored before that time and due
before it (:meth:`~skylark.broker.delay.timer_service.TimerService.delivered_before_ms`). The time
of a record in the queue is no evidence for that. Records that are late are stored directly, and
after a crash the timer delivers out of order what it had not placed. (Java takes it for some, and
repeats acknowledged messages while the timer is behind.)

For the same reason an ack may come **before its check-point**. It is kept until that comes.

Check-points leave in the order of the log. **The committed offset** of the revive group is the
offset of the last check-point that has left, as in Java; a restart reads from the next one on. So a
check-point that is due only later holds back the offset, not the reading.

**Too many check-points.** Memory holds :data:`POINTS_MAX` of them. While there are more, the queue
is read on for acks of those in memory only: without its acks no check-point could leave. When half
of them have left, all records behind the last one in memory are read again.

**The same record twice.** After a crash the timer delivers the records of the last seconds once
more. A check-point whose body was read before is skipped: it must not give a second copy of its
messages, nor take back acks. The caller knows the check-points that the queue had at the start.

**An unreadable message** gets a check-point of its own, with a delay that grows from 10 s to 2 h
(:func:`put_off`); so have messages whose retry topic cannot be created
(:func:`wait_for_topic`). Both leave the queue, and hold up no others.

This is a pure machine: records and times come in, check-points go out;
:mod:`skylark.broker.pop.revive_runner` reads and puts. Counterpart of Java's ``PopReviveService``.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from skylark.broker.pop.pop_totals import ACK, CHECK_POINT, PopTotals
from skylark.core.errors import RemoteProtocolError
from skylark.wire.pop_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    BITS,
    CHECK_POINT_TAG,
    Ack,
    CheckPoint,
    PopKey,
    decode_ack,
    decode_check_point,
)

logger = logging.getLogger(__name__)

#: How long after its messages became visible a check-point is due.
GRACE_MS: Final = 2_000
#: Delays after the first, second, ... attempt to read a message.
PUT_OFF_S: Final = (
    10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
#: Check-points in memory per revive queue; the rest is read when half of them have left.
POINTS_MAX: Final = 200_000
#: Check-points of which acks are kept that came before them, or after their end.
EARLY_ACKS_MAX: Final = 10_000
#: How long a check-point waits whose retry topic cannot be created.
TOPIC_WAIT_S: Final = 30
_SHOWN_MAX: Final = 200  # bytes of an unreadable record in the log


class ReviveRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a revive queue."""

    queue_offset: int
    tag: str
    body: bytes


class Point(msgspec.Struct, eq=False):
    """A check-point of a revive queue that waits for its time."""

    point: CheckPoint
    revive_offset: int
    #: It was read before.
    is_repeated: bool = False


class ReviveCounts(msgspec.Struct):
    """Numbers of records, for metrics."""

    check_points: int = 0
    acks: int = 0
    unmatched_acks: int = 0
    unreadable: int = 0
    repeated: int = 0


class ReviveQueue:
    """One queue of the revive topic."""

    def __init__(
        self,
        queue_id: int,
        committed_offset: int,
        broker_name: str,
        *,
        seen: Mapping[int, int] | None = None,
        totals: PopTotals | None = None,
    ) -> None:
        """``committed_offset`` is -1 for a new queue.

        ``seen``: ``hash()`` of the bodies of check-points that the timer may deliver twice, with
        the offset where each stands first.
        """
        self.queue_id = queue_id
        self.committed_offset = committed_offset
        #: The records before this are read: their check-points are in memory, or have left.
        self.read_offset = committed_offset + 1
        self._ahead_offset: int | None = None  # while full: so far acks are read
        self.counts = ReviveCounts()
        self._broker_name = broker_name
        self._totals = PopTotals() if totals is None else totals
        self._seen: Mapping[int, int] = {} if seen is None else seen  # the caller may fill it
        self._left: set[PopKey] = set()  # check-points before the committed offset
        self._points: deque[Point] = deque()
        self._by_key: dict[PopKey, Point] = {}
        self._early_acks: dict[PopKey, set[int]] = {}  # of check-points that may still come
        self._acks_until_ms = 0

    def __len__(self) -> int:
        """Check-points that wait."""
        return len(self._points)

    @property
    def position(self) -> int:
        """The next record that the caller reads."""
        return self.read_offset if self._ahead_offset is None else self._ahead_offset

    @property
    def first(self) -> CheckPoint | None:
        """The check-point that leaves next."""
        return self._points[0].point if self._points else None

    @property
    def first_offset(self) -> int | None:
        """The offset of the record of the check-point that leaves next."""
        return self._points[0].revive_offset if self._points else None

    # ---- records ---------------------------------------------------------------------------------

    def read(self, record: ReviveRecord) -> None:
        """Take the record at :attr:`position`; one that is unreadable is logged and skipped."""
        if self._ahead_offset is not None:
            self._read_ahead(record)
            return
        self.read_offset = record.queue_offset + 1
        try:
            if record.tag == CHECK_POINT_TAG:
                self._read_check_point(record)
            else:
                self._read_ack(record)
        except RemoteProtocolError as error:
            self.counts.unreadable += 1
            logger.warning(
                "skipped record %s of revive queue %s: %s: %r",
                record.queue_offset, self.queue_id, error, record.body[:_SHOWN_MAX],
            )  # fmt: skip

    def _read_ahead(self, record: ReviveRecord) -> None:
        """Take an ack of a check-point in memory; everything else is read again later."""
        self._ahead_offset = record.queue_offset + 1
        if record.tag in (ACK_TAG, BATCH_ACK_TAG):
            with contextlib.suppress(RemoteProtocolError):
                ack = decode_ack(record.body, is_batch=record.tag == BATCH_ACK_TAG)
                found = self._by_key.get(ack.key(self._broker_name))
                if found is not None:
                    for offset in ack.queue_offsets:
                        found.point.mark(offset)

    def _read_again(self) -> None:
        """There is room: return to the check-points that were passed over, and to their acks."""
        self._ahead_offset = None
        self._acks_until_ms = 0  # acks of these check-points were passed over, too

    def read_before(self, record: ReviveRecord) -> None:
        """Take a record from before the committed offset.

        An ack may stand there whose check-point comes later, or again.
        """
        assert record.queue_offset <= self.committed_offset, "records are read once"
        with contextlib.suppress(RemoteProtocolError):
            if record.tag == CHECK_POINT_TAG:
                self._left.add(decode_check_point(record.body).key)
            elif record.tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = decode_ack(record.body, is_batch=record.tag == BATCH_ACK_TAG)
                if ack.key(self._broker_name) not in self._left:
                    self._keep_early(ack)

    def skip_to(self, queue_offset: int) -> None:
        """Continue there: records before it are gone, or the queue ends before the next one."""
        self.read_offset = queue_offset
        self._ahead_offset = None
        if queue_offset <= self.committed_offset:  # the queue was deleted and starts again
            self.committed_offset = queue_offset - 1

    def _read_check_point(self, record: ReviveRecord) -> None:
        point = decode_check_point(record.body)
        self.counts.check_points += 1
        self._totals.count_read(point.group, point.topic, self.queue_id, CHECK_POINT)
        first_offset = self._seen.get(hash(record.body), record.queue_offset)
        is_repeated = first_offset < record.queue_offset or self._waits(point)
        waiting = Point(point, record.queue_offset, is_repeated)
        self._points.append(waiting)
        if len(self._points) >= POINTS_MAX:
            self._ahead_offset = self.read_offset
        if is_repeated:
            self.counts.repeated += 1
        else:
            self._by_key[point.key] = waiting
            for offset in self._early_acks.pop(point.key, ()):
                point.mark(offset)

    def _waits(self, point: CheckPoint) -> bool:
        """Whether a check-point is in memory already: the queue was cut, and is read again."""
        waiting = self._by_key.get(point.key)
        return (
            waiting is not None
            and waiting.point.invisible_ms == point.invisible_ms
            and list(waiting.point.offset_diffs) == list(point.offset_diffs)
        )

    def _read_ack(self, record: ReviveRecord) -> None:
        if record.tag not in (ACK_TAG, BATCH_ACK_TAG):
            raise RemoteProtocolError(f"the tag {record.tag:.20} is unknown")
        ack = decode_ack(record.body, is_batch=record.tag == BATCH_ACK_TAG)
        self.counts.acks += 1
        self._totals.count_read(ack.group, ack.topic, self.queue_id, ACK)
        key = ack.key(self._broker_name)
        found = self._by_key.get(key)
        if found is None:
            self.counts.unmatched_acks += 1  # it came too late, twice, or early
            self._keep_early(ack)
            return
        for offset in ack.queue_offsets:
            if not found.point.mark(offset):
                logger.warning("an ack of %s, which was not popped: %s", offset, found.point.key)

    def _keep_early(self, ack: Ack) -> None:
        early = self._early_acks.setdefault(ack.key(self._broker_name), set())
        if len(early) < BITS:
            early.update(ack.queue_offsets[:BITS])
        if len(self._early_acks) > EARLY_ACKS_MAX:
            del self._early_acks[next(iter(self._early_acks))]

    # ---- check-points ----------------------------------------------------------------------------

    def end_reached(self, delivered_before_ms: int) -> None:
        """The queue is read to its end, and this is how far the timer was before that."""
        self._acks_until_ms = max(self._acks_until_ms, delivered_before_ms)

    def take_due(self, now_ms: int) -> Point | None:
        """The next check-point if it is due; :meth:`done` follows before the next call."""
        if not self._points:
            return None
        waiting = self._points[0]
        revive_time_ms = waiting.point.revive_time_ms
        if now_ms - revive_time_ms <= GRACE_MS or self._acks_until_ms < revive_time_ms:
            return None
        return waiting

    def due_points(self, now_ms: int) -> Iterator[CheckPoint]:
        """The check-points at the head of the queue whose time has come, so far as is known."""
        for waiting in self._points:
            if now_ms - waiting.point.revive_time_ms <= GRACE_MS:
                return
            yield waiting.point

    def next_due_ms(self) -> int | None:
        """The earliest time at which :meth:`take_due` may return something."""
        first = self.first
        return None if first is None else first.revive_time_ms + GRACE_MS + 1

    def done(self, waiting: Point) -> int:
        """A check-point has left, its messages are copied or given up; the offset to commit."""
        left = self._points.popleft()
        assert left is waiting, "check-points leave in order"
        key = waiting.point.key
        if self._by_key.get(key) is waiting:
            del self._by_key[key]
        self.committed_offset = waiting.revive_offset
        if self._ahead_offset is not None and len(self._points) <= POINTS_MAX // 2:
            self._read_again()
        return waiting.revive_offset


def put_off(
    point: CheckPoint, queue_offset: int, now_ms: int, *, give_up_at_max: bool = False
) -> CheckPoint | None:
    """A check-point of one message that could not be read; None: give it up."""
    count = point.re_put_count
    if count >= len(PUT_OFF_S) and give_up_at_max:
        return None
    delay_s = PUT_OFF_S[min(count, len(PUT_OFF_S) - 1)]
    return _later(point, (queue_offset,), now_ms + delay_s * 1_000, count + 1)


def wait_for_topic(point: CheckPoint, queue_offsets: Sequence[int], now_ms: int) -> CheckPoint:
    """A check-point of messages whose retry topic cannot be created; it is not given up."""
    count = point.re_put_count
    return _later(point, queue_offsets, now_ms + TOPIC_WAIT_S * 1_000, count)


def _later(
    point: CheckPoint, queue_offsets: Sequence[int], visible_ms: int, re_put_count: int
) -> CheckPoint:
    """A check-point of some of the messages. The pop time stays, the invisible time grows."""
    start = queue_offsets[0]
    return CheckPoint(
        topic=point.topic,
        group=point.group,
        queue_id=point.queue_id,
        start_offset=start,
        pop_time_ms=point.pop_time_ms,
        # Not earlier than a delay from now: the broker may have been stopped since it was due.
        invisible_ms=max(point.invisible_ms, visible_ms - point.pop_time_ms),
        broker_name=point.broker_name,
        offset_diffs=[offset - start for offset in queue_offsets],
        re_put_times=str(re_put_count),
        suspend=point.suspend,
    )
