"""Recovery of the timer at start: keep what the checkpoint covers, rebuild the rest from the topic.

The checkpoint guarantees: units before ``P`` are on disk, with the slots that point to them, and so
is everything that was delivered instead of being placed, up to message ``Q`` of the timer topic;
slots before ``R`` are done. Behind that, files may hold anything: all of it after a kill, any part
after a power loss. So, in every case:

1. The timer log is truncated after its last unit of a message before ``Q``. In our files that is
   at ``P``. Java records ``P`` before it flushes, and ``Q`` after: there it is a little later.
2. A slot that points beyond the new end is newer than the checkpoint. It gets the last unit before
   the end, found by a scan of the log from the first unit of such a slot on.
3. A slot that ends before the last unit of its time is older (Java stops without flushing the
   wheel), or there is no wheel at all: it is linked again, by the same scan from one file before
   ``P`` on, or from the beginning.
4. Reading continues at message ``Q``, which is placed again in the emptied places. So is everything
   after it: once, since its units were removed.

A slot that is marked as done is not linked again: the clock was set back after its messages were
delivered (:mod:`skylark.store.timer.timer_store`). Other slots from ``R`` on wait, also those that
were done after the checkpoint was written. Their messages are never lost, and the owner does not
deliver them again if it finds their copies in the log (:mod:`skylark.broker.delay.timer_copies`).
After a clean shutdown there are none.

**Without the timer log** (it was deleted or lost, or this was a slave, which has none) the wheel is
emptied and the timer topic is read from its beginning. A message before ``Q`` that was due before
``R`` was delivered, and is skipped. A rolled message may be delivered twice. First the checkpoint
is set so that no log is long enough for it, because the new files would soon be as long as the lost
ones: a start after a crash in between then begins once more.

A slot waits without limit, even for weeks. Java drops slots older than seven days at start.

Counterpart of Java's ``TimerMessageStore.recover``, ``recoverAndRevise`` and
``TimerWheel.checkPhyPos``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from skylark.store.timer.timer_layout import MAGIC_MASK, SLOT_DONE, UNIT_SIZE
from skylark.store.timer.timer_log import TimerLog, Unit
from skylark.store.timer.timer_store import TimerStore
from skylark.store.timer.timer_wheel import Slot
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint

logger = logging.getLogger(__name__)

NO_LOG_IS_LONG_ENOUGH: Final = 1 << 62

#: The offset in the timer topic of the message of a unit; None if there is no such message.
FindQueueOffset: TypeAlias = Callable[[Unit], int | None]


def recover(
    timer: TimerStore, find: FindQueueOffset, queue_min_offset: int, queue_max_offset: int
) -> None:
    """Open the files and make them consistent; the bounds are those of the timer topic's queue.

    Raises StoreError. Every change can be repeated after another crash: the checkpoint is
    unchanged, except for a log that has to be rebuilt.
    """
    checkpoint = timer.checkpoint.load()
    timer.load_counts()
    timer.log.files.load()
    timer.wheel.open()
    queue_offset = min(
        checkpoint.last_timer_queue_offset, checkpoint.master_timer_queue_offset, queue_max_offset
    )
    timer.read_time_ms = timer.floor(checkpoint.last_read_time_ms)
    if timer.log.end < checkpoint.last_timer_log_flush_pos:
        logger.warning("the timer log is incomplete: placing all timed messages again")
        timer.placed_until = queue_offset
        queue_offset = queue_min_offset
        _distrust(timer, checkpoint)
        timer.log.truncate(0)
        end = timer.log.end
    else:
        end = _trusted_end(timer.log, checkpoint, find, queue_offset)
        timer.log.truncate(end)
    slots, count = _Relinking(timer, end).run(checkpoint.last_timer_log_flush_pos)
    timer.restore(slots, count, max(queue_offset, queue_min_offset))
    if slots or end:
        logger.info(
            "the timer has %s messages in %s slots and continues at offset %s of its topic",
            count, len(slots), timer.queue_offset,
        )  # fmt: skip


def _distrust(timer: TimerStore, checkpoint: TimerCheckpoint) -> None:
    """Record that the timer log must be rebuilt, until the next snapshot is written."""
    marked = msgspec.structs.replace(checkpoint, last_timer_log_flush_pos=NO_LOG_IS_LONG_ENOUGH)
    timer.checkpoint.write(marked)
    timer.checkpoint.saved = marked


def _trusted_end(
    log: TimerLog, checkpoint: TimerCheckpoint, find: FindQueueOffset, queue_offset: int
) -> int:
    """Position after the last unit of a message before ``queue_offset``."""
    end = max(checkpoint.last_timer_log_flush_pos, log.min_position)
    while True:
        position = log.following(end)
        unit = log.read(position)
        found = None if unit is None else find(unit)
        if found is None or found >= queue_offset:
            return end
        end = position + UNIT_SIZE


class _Relinking:
    """Makes the wheel point to the units before ``end``, and to nothing else."""

    def __init__(self, timer: TimerStore, end: int) -> None:
        self._timer = timer
        self._end = end
        self._waiting: dict[int, Slot] = {}  # by time, from the read time on
        self._leading: dict[int, Slot] = {}  # those that point beyond the end

    def run(self, flushed_position: int) -> tuple[list[int], int]:
        """The times of the slots that wait, sorted, and the number of their messages."""
        timer, log = self._timer, self._timer.log
        self._collect()
        start = log.min_position
        if timer.wheel.handle is not None:
            file_size = timer.options.log_file_size
            start = max(start, (flushed_position - file_size) // file_size * file_size)
            firsts = [slot.first_position for slot in self._leading.values()]
            start = max(log.min_position, log.unit_at(min([start, *firsts])))
        lasts = self._last_units(start)
        for time_ms in self._leading.keys() - lasts.keys():
            timer.wheel.clear(time_ms)
        for time_ms, position in lasts.items():
            slot = self._waiting.get(time_ms) or timer.done.get(time_ms)
            if slot is None or slot.last_position < position:
                timer.wheel.prepare()
                slot = self._waiting[time_ms] = self._follow(time_ms, position)
                timer.wheel.put(slot)
                timer.done.pop(time_ms, None)
        return sorted(self._waiting), sum(slot.message_count for slot in self._waiting.values())

    def _collect(self) -> None:
        wheel, log = self._timer.wheel, self._timer.log
        read_time = self._timer.read_time_ms // wheel.precision_ms
        for slots in wheel.scan():
            chosen = (slots["time"] >= read_time) | (slots["last"] >= self._end)
            for row in slots[chosen].tolist():
                slot = Slot(row[0] * wheel.precision_ms, *row[1:])
                if slot.last_position >= self._end:
                    self._leading[slot.time_ms] = slot
                elif slot.magic == SLOT_DONE:
                    self._timer.done[slot.time_ms] = slot
                elif slot.last_position >= log.min_position:
                    self._waiting[slot.time_ms] = slot
                else:  # its messages have expired: the slot must be empty for new ones
                    wheel.clear(slot.time_ms)

    def _last_units(self, start: int) -> dict[int, int]:
        """The last unit of each slot that is not done, among the units from ``start`` on."""
        lasts: dict[int, int] = {}
        for first, units in self._timer.log.scan(start, self._end):
            times = units["write_time"] + units["delay"]
            valid = (units["size"] == UNIT_SIZE) & (units["magic"] & ~MAGIC_MASK == 0)
            chosen = (valid & (times >= self._timer.read_time_ms)).nonzero()[0]
            positions = first + chosen * UNIT_SIZE
            lasts.update(zip(times[chosen].tolist(), positions.tolist(), strict=True))
        return lasts

    def _follow(self, time_ms: int, last_position: int) -> Slot:
        """Build a slot from its chain."""
        first = position = last_position
        count = 0
        while position >= 0:
            unit = self._timer.log.read(position)
            if unit is None or unit.slot_time_ms != time_ms:
                break
            first = position
            count += -1 if unit.is_delete else 1
            position = unit.previous_position if unit.previous_position < position else -1
        return Slot(time_ms, first, last_position, count)
