"""Merging in memory: check-points that are not written while their acks may still come.

A check-point and its acks are four or more records of the log, each written twice because of the
timer wheel. With ``enablePopBufferMerge`` the buffer keeps a check-point in memory for some seconds
instead. Acks set bits, and a check-point whose messages are all acknowledged is never written::

    add --> held --(all bits set)------------------------> finished
              |----(its deadline)--> due: write it -------> finished

**Offsets** are committed in the order of the pops: each queue of a group has a line of its
check-points, and the committed offset moves when those at the head are finished. So everything
behind the committed offset is acknowledged or in the log, and a process that dies loses nothing:
the group gets again what was not committed (:mod:`skylark.broker.pop.pop_state`). A check-point
that is written at once takes its place in the line as well.

**Deadline**: the stay time after the pop, or some seconds before the messages become visible again,
so that the record still goes through the timer wheel in time. A check-point is written with the
bits it has; acks that come later are records.

**Given back.** A consumer that stops gives its messages back with an invisible time of a second.
The buffer keeps such a message as a *part* of its check-point, with an end of its own. Then the
broker makes the copy for the retry topic from memory, without timer wheel and revive queue. The bit
of the check-point is set when the part is finished, so that a crash in between repeats the message,
and not by an ack with the old handle. Another change by the old handle makes one more part, and one
more copy, as it does without merging. A check-point that is written takes its parts along.

This is a pure machine: times come as arguments, and the caller writes. One check-point costs one
object and one dictionary entry, an ack a look-up; deadlines are kept in buckets of
:data:`BUCKET_MS`, no timer per check-point. Counterpart of Java's ``PopBufferMergeService``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from skylark.wire.pop_records import BITS, CheckPoint, PopKey

#: Precision of deadlines.
BUCKET_MS: Final = 50
#: A check-point must be able to stay so long, or it is written at once.
STAY_MIN_MS: Final = 1_500
#: Pause before another attempt to write a check-point.
RETRY_MS: Final = 500
#: A change to less invisible time than this is kept in memory, where its check-point is.
PART_INVISIBLE_MAX_MS: Final = 4_000

#: Topic, group and queue.
LineKey: TypeAlias = tuple[str, str, int]


class Line:
    """The check-points of one queue of a group, in the order of the pops."""

    __slots__ = ("held", "is_forgotten", "key")

    def __init__(self, key: LineKey) -> None:
        self.key = key
        self.held: deque[Held] = deque()
        #: The offset was reset: these check-points do not commit any more.
        self.is_forgotten = False


class Held(msgspec.Struct, eq=False):
    """A check-point in memory."""

    point: CheckPoint
    revive_queue_id: int
    next_offset: int
    line: Line | None
    deadline_ms: int = 0
    #: The end of the log when the check-point came: those behind it in the line are written later.
    log_end: int = 0
    #: All messages are acknowledged, or the check-point is in the log.
    is_finished: bool = False
    #: Messages with an invisible time of their own.
    parts: list[Held] | None = None
    #: Of a part: the check-point that it belongs to.
    whole: Held | None = None


class BufferLimits(msgspec.Struct, frozen=True):
    """How long and how many check-points are kept."""

    stay_ms: int = 10_000
    #: A check-point leaves so long before its messages become visible.
    lead_ms: int = 3_000
    count_max: int = 200_000
    line_count_max: int = 20_000
    #: The timer refuses a check-point that it would have to keep longer: so it is written at once,
    #: and the pop gets the error.
    timer_ms_max: int = 3 * 86_400_000


class CheckPointBuffer:
    """The check-points of one broker that are in memory."""

    def __init__(self, limits: BufferLimits) -> None:
        self.limits = limits
        self._held: dict[PopKey, Held] = {}
        self._lines: dict[LineKey, Line] = {}
        self._buckets: dict[int, list[Held]] = {}
        self._ticks: list[int] = []  # a heap of the keys of the buckets

    def __len__(self) -> int:
        return len(self._held)

    @property
    def line_count(self) -> int:
        """Queues with check-points that hold back the committed offset."""
        return len(self._lines)

    @property
    def waiting_count(self) -> int:
        """Check-points whose offsets are not committed."""
        return sum(len(line.held) for line in self._lines.values())

    # ---- pops ------------------------------------------------------------------------------------

    def end_offset(self, key: LineKey) -> int | None:
        """Where the last pop of a queue ended; None if nothing holds back the committed offset."""
        line = self._lines.get(key)
        return None if line is None else line.held[-1].next_offset

    def add(
        self,
        point: CheckPoint,
        revive_queue_id: int,
        next_offset: int,
        now_ms: int,
        log_end: int = 0,
    ) -> Held | None:
        """Keep a check-point; None if it has to be written at once."""
        limits = self.limits
        deadline_ms = min(point.pop_time_ms + limits.stay_ms, point.revive_time_ms - limits.lead_ms)
        if (
            deadline_ms - now_ms < min(STAY_MIN_MS, limits.stay_ms)
            or len(self._held) >= limits.count_max
            or len(point.offset_diffs) > BITS
            or point.deliver_ms - now_ms > limits.timer_ms_max
        ):
            return None
        key = point.key
        line_key = key[:3]
        line = self._lines.get(line_key)
        if key in self._held or (line is not None and len(line.held) >= limits.line_count_max):
            return None
        held = Held(point, revive_queue_id, next_offset, None, deadline_ms, log_end)
        self._append(line_key, held)
        self._held[key] = held
        self._schedule(held, deadline_ms)
        return held

    def add_finished(self, key: LineKey, next_offset: int) -> bool:
        """Queue an offset behind the check-points in memory; False if there is none.

        For check-points that were written at once, and for messages that no filter has matched.
        """
        if key not in self._lines:
            return False
        last = self._lines[key].held[-1]
        if last.is_finished:
            last.next_offset = max(last.next_offset, next_offset)
        else:
            log_end = last.log_end
            self._append(
                key, Held(last.point, 0, next_offset, None, log_end=log_end, is_finished=True)
            )
        return True

    def log_end(self, log_end: int) -> int:
        """A log offset: what was popped and is not committed stands behind it, if it is written.

        ``log_end`` is the end of the log now.
        """
        ends = (line.held[0].log_end for line in self._lines.values())
        return min(ends, default=log_end)

    def _append(self, key: LineKey, held: Held) -> None:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(key)
        held.line = line
        line.held.append(held)

    # ---- acks ------------------------------------------------------------------------------------

    def find(self, key: PopKey) -> Held | None:
        """The check-point in memory that an ack names."""
        return self._held.get(key)

    def ack(self, held: Held, queue_offsets: Sequence[int]) -> None:
        """Mark messages as acknowledged.

        Offsets that the check-point does not have are ignored, and those of messages with an
        invisible time of their own: the handle of the pop does not count any more.
        """
        point, parts = held.point, held.parts or ()
        for offset in queue_offsets:
            if all(part.point.start_offset != offset for part in parts):
                point.mark(offset)
        if point.bits == point.all_bits and not parts:
            self.finish(held)

    def change(self, held: Held, point: CheckPoint, now_ms: int) -> bool:
        """Give one message an invisible time of its own; False if that has to be written."""
        whole = held.whole or held
        if (
            not 0 <= point.invisible_ms <= PART_INVISIBLE_MAX_MS
            or whole.is_finished
            or len(whole.parts or ()) >= BITS
            or point.key in self._held
        ):
            return False
        part = Held(point, held.revive_queue_id, 0, None, point.revive_time_ms, whole=whole)
        if held.whole is not None:
            self._drop_part(held)
        if whole.parts is None:
            whole.parts = []
        whole.parts.append(part)
        self._held[point.key] = part
        self._schedule(part, max(point.revive_time_ms, now_ms))
        return True

    def finish(self, held: Held) -> None:
        """A check-point is acknowledged, written, or its message was copied to the retries."""
        if held.is_finished:
            return
        held.is_finished = True
        self._held.pop(held.point.key, None)
        whole = held.whole
        if whole is not None:
            self._drop_part(held)
            self.ack(whole, (held.point.start_offset,))

    def _drop_part(self, part: Held) -> None:
        part.is_finished = True
        self._held.pop(part.point.key, None)
        whole = part.whole
        if whole is not None and whole.parts is not None and part in whole.parts:
            whole.parts.remove(part)

    def take_commit(self, held: Held) -> int | None:
        """The offset to commit after a check-point was finished; None if its line has to wait."""
        line = (held.whole or held).line
        if line is None or not line.held or not line.held[0].is_finished:
            return None
        offset = 0
        waiting = line.held
        while waiting and waiting[0].is_finished:
            offset = waiting.popleft().next_offset
        if line.is_forgotten:
            return None
        if not waiting:
            del self._lines[line.key]
        return offset

    # ---- deadlines -------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When :meth:`due` has something to return."""
        return self._ticks[0] * BUCKET_MS if self._ticks else None

    def due(self, now_ms: int, count_max: int) -> Iterator[Held]:
        """Check-points to be written, or of which a message is visible again (:meth:`is_expired`).

        The caller calls :meth:`finish` or :meth:`postpone` for each before it asks for the next.
        """
        while count_max and self._ticks and self._ticks[0] * BUCKET_MS <= now_ms:
            bucket = self._buckets[self._ticks[0]]
            while bucket and count_max:
                held = bucket.pop()
                if not held.is_finished:
                    count_max -= 1
                    yield held
            if not bucket and self._buckets.get(self._ticks[0]) is bucket:
                del self._buckets[heapq.heappop(self._ticks)]

    @staticmethod
    def is_expired(held: Held) -> bool:
        """Whether this is a message that was given back and is visible again."""
        return held.whole is not None

    def postpone(self, held: Held, now_ms: int) -> None:
        """Try again later: the log takes no records now."""
        self._schedule(held, now_ms + RETRY_MS)

    def _schedule(self, held: Held, due_ms: int) -> None:
        tick = -(-due_ms // BUCKET_MS)
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = []
            heapq.heappush(self._ticks, tick)
        bucket.append(held)

    # ---- the end ---------------------------------------------------------------------------------

    def forget(self, key: LineKey, now_ms: int) -> None:
        """The offset of a queue was reset: its check-points commit nothing, and are written soon.

        They cannot stay in memory, since no committed offset waits for them any more.
        """
        line = self._lines.pop(key, None)
        if line is None:
            return
        line.is_forgotten = True
        for held in line.held:
            if not held.is_finished:
                self._schedule(held, now_ms)

    def lines(self) -> list[LineKey]:
        """The queues whose committed offset is held back."""
        return list(self._lines)

    def in_line(self, key: LineKey) -> list[Held]:
        """The check-points of one queue that hold back its committed offset, also finished ones."""
        line = self._lines.get(key)
        return [] if line is None else list(line.held)

    def all(self) -> list[Held]:
        """Every check-point in memory, without parts; for a stop, which writes them."""
        return [held for held in self._held.values() if held.whole is None]
