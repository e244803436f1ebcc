"""Recovery of POP at start: what the log has that the saved offsets lack.

``consumerOffset.json`` is written every few seconds, with positions in the log: everything that its
offsets do not count is behind them (:mod:`skylark.broker.pop.pop_state` tells the whole story). A
start reads the log from there on and finds two kinds of records.

**Check-points**, behind ``logOffset``. The group has popped these messages.

* Without merging its offset moves behind them. Three kinds of check-points are not those of a pop,
  and must not move an offset, because it may have been reset meanwhile: those that the timer has
  delivered (they were in the log before), those of unreadable messages (they say so), and those of
  a change of invisible time, which are followed by the ack of the old one.
* If check-points were merged in memory (``popMerged``), the offset moves over those that follow
  each other without a gap: between others, one may be lost. The messages behind a gap are popped
  again, so their check-points must not bring them back a second time: the broker acknowledges
  these (:attr:`PopRecovery.void`) before it pops anything.

**Copies of expired messages** in pop retry topics, behind ``copiesFrom``, and those that stand at
``copiesLeft``: the revive group has handled their check-points, but its saved offset does not say
so. :class:`RevivedCopies` has them, and the revive makes no second copy. A copy whose check-point
it has not come across yet is named in the files that are written until then: another crash may
follow. The list must be exact, since a message may be copied more than once, each time for a
check-point of its own. So copies of messages that were given back while their check-point was in
memory do not count: no record of a revive queue belongs to them. They have a mark in a field that
only transactions use (:data:`COPIED_FROM_MEMORY`); merging in Java makes no such copies.

A file that a Java broker has written, or one of a slave, has no position in the log: then nothing
is recovered, and messages of the last seconds come twice, as they do in Java.

Cost: some 1 GB/s for the log since the last save.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.pop.record_bounds import record_end
from skylark.core.errors import RemoteProtocolError
from skylark.core.names import TIMER_TOPIC
from skylark.store.log_replay import LogScan
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.message import MessageRecord, RecordError, decode_record
from skylark.wire.pop_records import (
    ACK_TAG,
    CHECK_POINT_TAG,
    CheckPoint,
    decode_ack,
    decode_check_point,
)
from skylark.wire.record_scan import RecordColumns

logger = logging.getLogger(__name__)

#: ``preparedTransactionOffset`` of copies that have no check-point in a revive queue.
COPIED_FROM_MEMORY: Final = -1
_FIRST_POP_TIME: Final = names.PROPERTY_FIRST_POP_TIME.encode() + b"\x01"
_UNIQUE_ID: Final = names.PROPERTY_UNIQ_KEY.encode()
_QUEUE_ID_DIGITS_MAX: Final = 10


class CopyKey(NamedTuple):
    """What identifies the copy of an expired message."""

    topic: str
    unique_id: bytes
    reconsume_times: int
    born_timestamp: int
    body_crc: int


def copy_key(record: MessageRecord, topic: str, reconsume_times: int) -> CopyKey | None:
    """The key of a copy, made from it or from its message; None without a unique id."""
    unique_id = names.find_raw_property(record.raw_properties, _UNIQUE_ID)
    if unique_id is None:
        return None
    return CopyKey(topic, unique_id, reconsume_times, record.born_timestamp, record.body_crc)


class RevivedCopies:
    """Copies of expired messages that the saved offset of the revive group does not count."""

    def __init__(self) -> None:
        self._found: dict[CopyKey, list[int]] = {}  # their log offsets

    def __len__(self) -> int:
        return sum(map(len, self._found.values()))

    def add(self, key: CopyKey, log_offset: int) -> None:
        self._found.setdefault(key, []).append(log_offset)

    def take(self, key: CopyKey | None) -> bool:
        """Whether the log has a copy; it counts once."""
        found = None if key is None else self._found.get(key)
        if not found:
            return False
        found.pop()
        return True

    def log_offsets(self) -> list[int]:
        """Where the copies are that were not taken."""
        return sorted(offset for found in self._found.values() for offset in found)

    def clear(self) -> None:
        self._found.clear()


class FoundPoint(NamedTuple):
    """A check-point of the log."""

    point: CheckPoint
    revive_queue_id: int
    #: It was written by a pop, and not by a change of invisible time.
    is_pop: bool = True
    #: Nothing follows it: it may be that of a change whose ack was not written.
    is_last: bool = False


class PopRecovery:
    """Reads the log at start; :meth:`run` comes after the store was opened."""

    def __init__(
        self, store: MessageStore, offsets: OffsetTable, revive_topic: str, copies: RevivedCopies
    ) -> None:
        self.copies = copies
        #: Check-points with messages that are popped again: those from the offset of the group on.
        self.void: list[FoundPoint] = []
        self._store = store
        self._offsets = offsets
        self._revive_topic = revive_topic
        self._moved = 0

    def run(self) -> None:
        """Recover offsets, :attr:`copies` and :attr:`void`. Raises StoreError."""
        loaded = self._offsets.loaded
        if loaded.log_offset is None:
            return
        for log_offset in loaded.copies_left or ():
            self._add_copy_at(log_offset)
        copies_from = loaded.log_offset if loaded.copies_from is None else loaded.copies_from
        start = min(loaded.log_offset, copies_from)
        finder = _PointFinder(self._revive_topic)
        if start < self._store.log.max_offset:
            for record in self._records(max(start, self._store.log.min_offset)):
                if record.log_offset >= loaded.log_offset:
                    finder.add(record)
                if record.log_offset >= copies_from:
                    self._add_copy(record)
        found = finder.end()
        if loaded.pop_merged:
            self._move_merged(found)
        else:
            for each in found:
                self._move(each)
        if self._moved or self.void or len(self.copies):
            logger.info(
                "pops after the offsets were saved: %d kept, %d repeated; %d messages were"
                " delivered again",
                self._moved,
                len(self.void),
                len(self.copies),
            )

    def _records(self, start: int) -> Iterator[MessageRecord]:
        log = self._store.log
        scan = LogScan(log.files, start)
        needles = (_FIRST_POP_TIME, self._revive_topic.encode())
        while (columns := scan.next(log.max_offset)) is not None:
            for row in _rows_with(columns, needles):
                try:
                    yield decode_record(columns.buffer, int(columns.position[row]))
                except RecordError as error:
                    logger.warning("skipped a record while recovering pops: %s", error)

    def _offset_of(self, point: CheckPoint) -> int:
        return self._offsets.get(point.group, point.topic, point.queue_id)

    def _move(self, found: FoundPoint, *, gaps: bool = True) -> None:
        """Move an offset over a pop; ``gaps``: also if messages in between were filtered out."""
        point = found.point
        offset = self._offset_of(point)
        follows = point.start_offset == offset or (offset < 0 and gaps)
        if found.is_pop and (
            follows or (gaps and point.start_offset > offset and not found.is_last)
        ):
            self._moved += 1
            next_offset = self._next_offset(point)
            self._offsets.commit(point.group, point.topic, point.queue_id, next_offset)

    def _next_offset(self, point: CheckPoint) -> int:
        """The offset behind the last record of a check-point."""
        queue = self._store.queues.get(point.topic, point.queue_id)
        return record_end(queue, point.next_offset)

    def _move_merged(self, found: list[FoundPoint]) -> None:
        # The whole check-point first: a part of its first message begins at the same offset, and
        # would move the offset by one, between the messages of the whole one.
        found.sort(key=lambda each: (each.point.start_offset, -each.point.next_offset))
        for each in found:
            self._move(each, gaps=False)
        self.void = [
            each for each in found if self._next_offset(each.point) > self._offset_of(each.point)
        ]

    def _add_copy(self, record: MessageRecord) -> None:
        if record.prepared_transaction_offset == COPIED_FROM_MEMORY:
            return
        properties = record.raw_properties
        if names.find_raw_property(properties, _FIRST_POP_TIME[:-1]) is None:
            return
        if record.topic in (TIMER_TOPIC, self._revive_topic):
            return
        key = copy_key(record, record.topic, record.reconsume_times)
        if key is not None:
            self.copies.add(key, record.log_offset)

    def _add_copy_at(self, log_offset: int) -> None:
        record = self._store.reader.record(log_offset)
        if record is None:
            return  # a power failure took it
        with record, contextlib.suppress(RecordError):
            self._add_copy(decode_record(record.view))


class _PointFinder:
    """Finds the check-points that pops and changes of invisible time have written."""

    def __init__(self, revive_topic: str) -> None:
        self._revive_topic = revive_topic
        self._found: list[FoundPoint] = []
        self._last_end = -1  # log offset behind the last check-point

    def add(self, record: MessageRecord) -> None:
        """Take the next record of the log that may be one of POP."""
        properties = record.properties
        revive_queue_id = self._revive_queue(record, properties)
        if revive_queue_id is None:
            return
        tag = properties.get(names.PROPERTY_TAGS)
        if tag == CHECK_POINT_TAG:
            point = _check_point(record.body)
            if point is not None:
                self._found.append(FoundPoint(point, revive_queue_id))
                self._last_end = record.log_offset + record.total_size
        elif tag == ACK_TAG and record.log_offset == self._last_end:
            last = self._found[-1]
            if _is_change(last.point, record.body):
                self._found[-1] = last._replace(is_pop=False)

    def end(self) -> list[FoundPoint]:
        """What was found. Nothing of a change whose ack is missing was answered."""
        if self._found:
            last = self._found[-1]
            self._found[-1] = last._replace(is_last=len(last.point.offset_diffs) == 1)
        return self._found

    def _revive_queue(self, record: MessageRecord, properties: dict[str, str]) -> int | None:
        """The revive queue of a record when it was written first; None for other records."""
        if record.topic == self._revive_topic:
            was_timed = names.PROPERTY_TIMER_DEQUEUE_MS in properties
            return None if was_timed else record.queue_id
        if (
            record.topic != TIMER_TOPIC
            or properties.get(names.PROPERTY_REAL_TOPIC) != self._revive_topic
            or names.PROPERTY_TIMER_ROLL_TIMES in properties
        ):
            return None
        text = properties.get(names.PROPERTY_REAL_QID, "")
        return int(text) if text.isdecimal() and len(text) < _QUEUE_ID_DIGITS_MAX else None


def _check_point(body: bytes) -> CheckPoint | None:
    try:
        point = decode_check_point(body)
    except RemoteProtocolError:
        return None
    return point if point.re_put_times is None and point.offset_diffs else None


def _is_change(point: CheckPoint, body: bytes) -> bool:
    """Whether an ack gives up the message of a check-point for an older check-point."""
    try:
        ack = decode_ack(body)
    except RemoteProtocolError:
        return False
    queue = point.topic, point.group, point.queue_id
    return (
        queue == (ack.topic, ack.group, ack.queue_id)
        and tuple(ack.queue_offsets) == (point.start_offset,)
        and ack.pop_time_ms != point.pop_time_ms
    )


def _rows_with(columns: RecordColumns, needles: tuple[bytes, ...]) -> list[int]:
    """Records that contain one of the texts, in order."""
    content = bytes(columns.buffer)
    rows: set[int] = set()
    for needle in needles:
        found = content.find(needle)
        while found >= 0:
            rows.add(int(columns.position.searchsorted(found, "right")) - 1)
            found = content.find(needle, found + 1)
    return sorted(row for row in rows if row >= 0)
