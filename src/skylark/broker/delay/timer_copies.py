"""Copies of timed messages that are in the log already, though the timer's files lack them.

The checkpoint of the timer follows its deliveries by seconds, so after a crash it counts messages
as waiting whose copies are in the log. A delivered copy has the id, the time and the destination of
its message (:class:`CopyKey`), and so has the copy that rolls a message. At the start,
:func:`find_copies` reads the log from where such copies can be on, and the delivery takes a copy
that it finds there for its own (:meth:`TimerCopies.take`) instead of making another.

**What a crash leaves**, at any line of a delivery:

* before the copy is in the log: nothing. The message is delivered after the start;
* the copy is in the log, the checkpoint is not written: the copy is found. This does not depend on
  how long the broker ran, or how often it crashed;
* a power failure takes back a copy that was not on disk: the message is delivered again. The
  checkpoint never counts such a copy (:mod:`skylark.broker.delay.timer_service`).

A message is delivered a second time if its copy is not recognised: it has no unique id, or
properties were left out of the copy (:mod:`skylark.broker.send.own_copies`); if its copy is more
than ``SCAN_SIZE_MAX`` before the end of the log; or, now and then, if the clock was set back just
before the crash. Two messages with one id, born at the same time, with the same body, time and
destination, count as one message, which a producer has sent twice.

Cost: some 1 GB/s for the log since the checkpoint; nothing after an orderly stop, or if no message
is due. Java delivers again what its checkpoint lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from skylark.broker.delay.delay_recovery import rows_with
from skylark.store.consume_queue import EntryQueue
from skylark.store.log_replay import LogScan
from skylark.store.message_store import MessageStore
from skylark.store.timer.timer_store import TimerStore
from skylark.wire import properties as names
from skylark.wire.message import MessageRecord, decode_record

SCAN_SIZE_MAX: Final = 1 << 30
_DEQUEUE_ITEM: Final = names.PROPERTY_TIMER_DEQUEUE_MS.encode() + b"\x01"


class CopyKey(NamedTuple):
    """What a copy and the delivery that makes it have in common."""

    unique_id: str
    topic: str  # of the copy
    queue_id: int
    out_ms: str
    roll_times: str
    reconsume_times: int
    born_timestamp: int
    body_crc: int

    @classmethod
    def of(
        cls, record: MessageRecord, properties: Mapping[str, str], topic: str, queue_id: int
    ) -> CopyKey | None:
        """The key of a copy with these properties, in this queue; None without a unique id."""
        unique_id = properties.get(names.PROPERTY_UNIQ_KEY)
        if unique_id is None:
            return None
        return cls(
            unique_id,
            topic,
            queue_id,
            properties.get(names.PROPERTY_TIMER_OUT_MS, ""),
            properties.get(names.PROPERTY_TIMER_ROLL_TIMES, ""),
            record.reconsume_times,
            record.born_timestamp,
            record.body_crc,
        )


class TimerCopies:
    """The copies that a crash has left, until the timer has caught up with them."""

    def __init__(self) -> None:
        self._counts: Counter[CopyKey] = Counter()
        self._until_ms = 0  # when the last of them was made

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, record: MessageRecord) -> None:
        """Keep a copy that is in the log."""
        text = record.properties.get(names.PROPERTY_TIMER_DEQUEUE_MS, "")
        key = CopyKey.of(record, record.properties, record.topic, record.queue_id)
        if key is not None and text.isdecimal():
            self._counts[key] += 1
            self._until_ms = max(self._until_ms, record.store_timestamp)

    def take(self, key: CopyKey | None) -> bool:
        """Whether there is such a copy; it then counts as that of one delivery."""
        if key is None or not self._counts[key]:
            return False
        self._counts[key] -= 1
        return True

    def caught_up(self, time_ms: int) -> None:
        """All that was due before this time is done: later deliveries have no copies yet."""
        if time_ms > self._until_ms:
            self._counts.clear()


def find_copies(
    timer: TimerStore, queue: EntryQueue, store: MessageStore, now_ms: int
) -> TimerCopies:
    """The copies that the files of the timer may lack; raises StoreError."""
    copies = TimerCopies()
    start = _scan_start(timer, queue, store, now_ms)
    if start is None:
        return copies
    scan = LogScan(store.log.files, start)
    while (columns := scan.next(store.log.max_offset)) is not None:
        for row in rows_with(columns, _DEQUEUE_ITEM):
            copies.add(decode_record(columns.buffer, int(columns.position[row])))
    return copies


def _scan_start(
    timer: TimerStore, queue: EntryQueue, store: MessageStore, now_ms: int
) -> int | None:
    """The log offset from which on such copies are; None if there can be none.

    A copy was stored after the checkpoint, and so after the last message that it counts as placed;
    and either after its slot was due or, if its message was late, after the message.
    """
    starts = []
    files = store.log.files.files
    # The clock may have been set back since the crash.
    last_ms = max(now_ms, files[-1].last_store_timestamp) if files else now_ms
    due_ms = timer.due_ms()
    if due_ms is not None and due_ms <= last_ms:
        starts.append(_file_of_time(store, due_ms))
    if timer.queue_offset < queue.max_offset:
        starts.append(_log_offset(queue, timer.queue_offset))
    if not starts:
        return None
    saved = timer.checkpoint.saved
    placed = min(saved.last_timer_queue_offset, saved.master_timer_queue_offset)
    start = max(min(starts), _log_offset(queue, placed - 1), store.log.min_offset)
    if store.log.max_offset - start > SCAN_SIZE_MAX:
        file = store.log.files.find(store.log.max_offset - SCAN_SIZE_MAX)
        start = start if file is None else max(start, file.start_offset)
    return start


def _file_of_time(store: MessageStore, time_ms: int) -> int:
    """Start of the last file that begins before a time."""
    for file in reversed(store.log.files.files):
        stored_ms = store.reader.store_time_of(file.start_offset)
        if stored_ms is not None and stored_ms < time_ms:
            return file.start_offset
    return store.log.min_offset


def _log_offset(queue: EntryQueue, queue_offset: int) -> int:
    """Log offset of a message of the timer topic, or of the first that there still is."""
    entry = queue.read_entry(max(queue_offset, queue.min_offset))
    return 0 if entry is None else entry.log_offset
