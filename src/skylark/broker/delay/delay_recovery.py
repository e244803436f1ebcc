"""Recovery at start: finds the deliveries of delayed messages that the saved progress lacks.

The file with the progress is written every few seconds, so a crash leaves deliveries that it does
not have. They are in the log: a delivered copy has the id, the destination and the delay level of
its message (:func:`delivery_key`). :func:`recover` reads the log from the offset that was saved
with the progress on, and moves each run over the entries whose copies it finds. It stops at the
first entry that has no copy but could have one, because a run is delivered in order.

**What a crash leaves**, at any line of a delivery:

* before the copy is in the log: nothing. The entry is delivered at the next start;
* the copy is in the log, the progress is not saved: the copy is found, the entry is not delivered
  again. This does not depend on how long the broker ran, or how often it crashed;
* a power failure takes back a copy that was not on disk: the entry is delivered again. The saved
  progress never counts such a copy (:mod:`skylark.broker.delay.delay_progress`);
* the progress is saved: exact.

An entry is delivered a second time if its copy is not recognised: it has no unique id, or
properties were left out of the copy (:mod:`skylark.broker.send.own_copies`); and, as before, if the
file was written by a Java broker or is that of a slave and the copy is not in the last file of the
log. Two messages with one id, born at the same time, with the same body and destination, count as
one message, which a producer has sent twice.

Cost: some 1 GB/s for the log since the last save, nothing if no message waits.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final, NamedTuple

from skylark.broker.delay.delay_progress import DelayLevel, DelayLevels, DelayRun
from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.consume_queue import EntryQueue
from skylark.store.log_replay import LogScan
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.layout import CQ_ENTRY
from skylark.wire.message import MessageRecord, RecordError, decode_record
from skylark.wire.record_scan import RecordColumns

logger = logging.getLogger(__name__)

_ENTRIES_READ: Final = 1_024
_UNIQUE_ID: Final = names.PROPERTY_UNIQ_KEY.encode()
_REAL_TOPIC: Final = names.PROPERTY_REAL_TOPIC.encode()
_REAL_QID: Final = names.PROPERTY_REAL_QID.encode()
_DELAY: Final = names.PROPERTY_DELAY.encode()
_REAL_TOPIC_ITEM: Final = _REAL_TOPIC + b"\x01"


class DeliveryKey(NamedTuple):
    """What a delayed message and its delivered copy have in common."""

    unique_id: bytes
    topic: bytes
    queue_id: bytes
    level: bytes
    reconsume_times: int
    born_timestamp: int
    body_crc: int


def delivery_key(record: MessageRecord) -> DeliveryKey | None:
    """The key of a delayed message or of its copy; None if it has no unique id or destination."""
    unique_id, topic, queue_id, level = (
        names.find_raw_property(record.raw_properties, name)
        for name in (_UNIQUE_ID, _REAL_TOPIC, _REAL_QID, _DELAY)
    )
    if unique_id is None or topic is None or queue_id is None or level is None:
        return None
    times = record.reconsume_times, record.born_timestamp
    return DeliveryKey(unique_id, topic, queue_id, level, *times, record.body_crc)


def recover(levels: DelayLevels, store: MessageStore) -> None:
    """Find the runs of each level, and move them over the deliveries in the log.

    Raises StoreError if the log is unreadable.
    """
    waiting: list[tuple[DelayLevel, EntryQueue]] = []
    for level in levels.by_level.values():
        queue = store.queues.get(SCHEDULE_TOPIC, level.queue_id)
        if queue is not None and level.next_offset < queue.max_offset:
            waiting.append((level, queue))
            _find_runs(level, queue)
    if not waiting:
        return
    start = levels.log_offset
    if start is None:
        start = store.log.files.files[-1].start_offset
    copies = _find_copies(store, max(start, store.log.min_offset))
    count = 0
    for level, queue in waiting:
        for run in level.runs if copies else ():
            delivered_count = _count_delivered(store, queue, run, copies)
            run.delivered(store.log.max_offset, delivered_count)
            run.mark(store.log.files.flushed_where)
            count += delivered_count
    if count:
        logger.info("%d delayed messages were delivered after the progress was saved", count)


def _find_runs(level: DelayLevel, queue: EntryQueue) -> None:
    offset = level.runs[-1].next_offset
    while entries := queue.entries(offset, _ENTRIES_READ):
        for _log_offset, _size, due_ms in CQ_ENTRY.iter_unpack(entries):
            level.arrived(offset, due_ms)
            offset += 1


def _find_copies(store: MessageStore, start: int) -> Counter[DeliveryKey]:
    """The delivered copies in the log from ``start`` on."""
    copies: Counter[DeliveryKey] = Counter()
    scan = LogScan(store.log.files, start)
    while (columns := scan.next(store.log.max_offset)) is not None:
        for row in rows_with(columns, _REAL_TOPIC_ITEM):
            record = decode_record(columns.buffer, int(columns.position[row]))
            key = delivery_key(record)
            if key is not None and key.topic == record.topic.encode():
                copies[key] += 1
    return copies


def rows_with(columns: RecordColumns, item: bytes) -> list[int]:
    """Records with these bytes, such as the name of a property and its separator."""
    content = bytes(columns.buffer)
    rows: dict[int, None] = {}
    found = content.find(item)
    while found >= 0:
        row = int(columns.position.searchsorted(found, "right")) - 1
        rows[row] = None
        found = content.find(item, found + 1)
    return [row for row in rows if row >= 0]


def _count_delivered(
    store: MessageStore, queue: EntryQueue, run: DelayRun, copies: Counter[DeliveryKey]
) -> int:
    """How many entries of a run are done, from the next one on."""
    end = queue.max_offset if run.end is None else run.end
    count = 0
    for offset in range(run.next_offset, end):
        entry = queue.read_entry(offset)
        lease = None if entry is None else store.reader.record(entry.log_offset)
        if lease is None:
            break
        try:
            with lease:
                key = delivery_key(decode_record(lease.view))
        except RecordError:
            break
        if key is None or not copies[key]:
            break
        copies[key] -= 1
        count = offset + 1 - run.next_offset
    return count
