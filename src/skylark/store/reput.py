"""Reput: makes the entries of the derived files from records of the log, at append and at replay.

Only the log is authoritative. Each record makes one consume queue entry and index entries::

    topic, queue id, log offset, size, tags code   ->  consume queue   (not for half messages
                                                       and rollbacks)
    topic, UNIQ_KEY, KEYS, TAGS, store time        ->  index           (not for rollbacks)

With ASYNC_FLUSH this happens right after the append, without a polling delay. With SYNC_FLUSH a
record becomes visible only when it is on disk: its dispatch waits here, in order of the log, until
:meth:`Reput.release` is called with the flushed offset. So no consumer reads a message that a
power failure could take back (``readUnCommitted`` turns that off).

**Tags code.** The Java hash of the property TAGS, 0 without one. In the queue of delayed messages
it is the time of delivery: store time plus the delay of the level in DELAY.

**Inner batches.** A queue of a BatchCQ topic gets one entry for each record with INNER_BASE and
INNER_NUM, which number its messages, and none for other records.

**Replay** (:mod:`skylark.store.log_replay`) makes the same entries for many records at once; the
rules for a single record are here: :data:`HIDDEN_KINDS`, :class:`TagsCodes`, :func:`inner_batch`,
:func:`add_queue_entry`.

Crash: entries that waited, or were in memory only, are lost; recovery makes them again from the
log.

Counterpart of Java's ``ReputMessageService``, ``CommitLogDispatcherBuildConsumeQueue`` and
``CommitLogDispatcherBuildIndex``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from skylark.core.hashing import java_hash
from skylark.core.names import SCHEDULE_TOPIC
from skylark.store.batch_queue import MESSAGE_COUNT_MAX, BatchQueue
from skylark.store.consume_queue import ConsumeQueue, Dispatched, EntryQueue
from skylark.store.index import IndexService
from skylark.store.index_file import KeyedRecords
from skylark.store.index_keys import alike_ids, indexed_values
from skylark.wire.layout import (
    CQ_ENTRY,
    CQ_ENTRY_SIZE,
    FLAG_TRANSACTION_MASK,
    FLAG_TRANSACTION_PREPARED,
    FLAG_TRANSACTION_ROLLBACK,
)
from skylark.wire.properties import find_raw_property

#: Transaction types without a queue entry: half messages and rollbacks.
HIDDEN_KINDS: Final = (FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK)

_DELAY: Final = b"DELAY"
_INNER_BASE: Final = b"INNER_BASE"
_INNER_NUM: Final = b"INNER_NUM"
_NUMBER_SIZE_MAX: Final = 18  # digits that surely fit into 64 bits
_INT64_MAX: Final = (1 << 63) - 1
_CACHED_TAGS_MAX: Final = 10_000
_PARTS_RUN_MIN: Final = 64  # messages from which on a run of several queues is looked at
_PART_COUNT_MIN: Final = 4  # neighbours of one queue, on average, that are entered together
_ALIKE_MIN: Final = 4  # records from which on a check for equal properties pays off
_UNKNOWN_LEVEL_MS: Final = 1_000  # as Java


class Arrival(NamedTuple):
    """A message that has become readable: for held pulls and deliveries."""

    topic: str
    queue_id: int
    next_offset: int  # queue offset after the message
    tags_code: int
    store_timestamp: int
    properties: bytes


#: Called for each message that becomes readable, in order of the log.
OnArrival: TypeAlias = Callable[[Arrival], None]
#: Whether arrivals in a queue, given its topic and queue id, are reported.
IsAwaited: TypeAlias = Callable[[str, int], bool]


def _always(_topic: str, _queue_id: int) -> bool:
    return True


def _never(_topic: str, _queue_id: int) -> bool:
    return False


class InnerBatch(NamedTuple):
    """The messages of one record in a BatchCQ topic."""

    queue_offset: int  # of the first
    message_count: int


def inner_batch(properties: bytes) -> InnerBatch | None:
    """The messages of a record by its properties; None if it is not an inner batch."""
    queue_offset = _number(properties, _INNER_BASE)
    message_count = _number(properties, _INNER_NUM)
    if queue_offset is None or not message_count or message_count > MESSAGE_COUNT_MAX:
        return None
    return InnerBatch(queue_offset, message_count)


def _number(properties: bytes, name: bytes) -> int | None:
    text = find_raw_property(properties, name)
    if text is None or not text.isdigit() or len(text) > _NUMBER_SIZE_MAX:
        return None
    return int(text)


def add_queue_entry(
    queue: EntryQueue,
    log_offset: int,
    size: int,
    tags_code: int,
    queue_offset: int,
    store_timestamp: int,
    properties: bytes,
) -> Dispatched | None:
    """Make the queue entry of a visible record, unless it exists.

    Returns None if the queue has no entry for such a record.
    """
    if isinstance(queue, ConsumeQueue):
        return queue.dispatch(log_offset, size, tags_code, queue_offset)
    inner = inner_batch(properties)
    if inner is None or not isinstance(queue, BatchQueue):
        return None
    return queue.dispatch(log_offset, size, tags_code, store_timestamp, *inner)


class TagsCodes:
    """Computes tags codes, with a cache of the hashes of recent tags."""

    __slots__ = ("_delays_ms", "known")

    def __init__(self, delays_ms: Sequence[int] = ()) -> None:
        """``delays_ms``: delay of each level, the first is level 1."""
        self._delays_ms = tuple(delays_ms)
        #: Hashes of recent tags, and 0 for None.
        self.known: dict[bytes | None, int] = {None: 0}

    def of(self, topic: str, tags: bytes | None, properties: bytes, store_timestamp: int) -> int:
        """The tags code of a message; ``tags`` is its property TAGS."""
        if topic == SCHEDULE_TOPIC:
            due = self._due(properties, store_timestamp)
            if due is not None:
                return due
        code = self.known.get(tags)
        return self._hash(tags) if code is None else code

    def of_tags(self, tags: Iterable[bytes | None]) -> list[int]:
        """The tags codes of many messages that are not delayed."""
        known = self.known
        return [known.get(tag) or self._hash(tag) for tag in tags]

    def _hash(self, tags: bytes | None) -> int:
        if tags is None:
            return 0
        if len(self.known) >= _CACHED_TAGS_MAX:
            self.known.clear()
            self.known[None] = 0
        code = self.known[tags] = java_hash(tags.decode("utf-8", "replace"))
        return code

    def _due(self, properties: bytes, store_timestamp: int) -> int | None:
        text = find_raw_property(properties, _DELAY)
        if text is None or not text.isdigit() or len(text) > 9 or int(text) == 0:
            return None
        level = min(int(text), len(self._delays_ms))
        delay_ms = self._delays_ms[level - 1] if level else _UNKNOWN_LEVEL_MS
        due = store_timestamp + delay_ms
        return due if due <= _INT64_MAX else due - (1 << 64)  # a record may have any store time


#: A dispatch that waits for the disk: end offset, queue, log offset, sys flag, store time,
#: properties. A tuple, because there is one for every message.
_Waiting: TypeAlias = tuple[int, EntryQueue, int, int, int, bytes]
#: The same after indexing: with the tags code of its queue entry, None if it gets none.
_Prepared: TypeAlias = tuple[int, EntryQueue, int, int | None, int, bytes]
#: A record just appended: its queue, log offset, size, sys flag, properties.
Appended: TypeAlias = tuple[EntryQueue, int, int, int, bytes]


class Run(NamedTuple):
    """Consecutive records as columns: :data:`Appended` transposed."""

    queues: Sequence[EntryQueue]
    log_offsets: Sequence[int]
    sizes: Sequence[int]
    sys_flags: Sequence[int]
    properties: Sequence[bytes]


class Reput:
    """Makes queue and index entries for the records that are appended to the log."""

    def __init__(
        self,
        index: IndexService | None,
        tags_codes: TagsCodes,
        *,
        on_arrival: OnArrival | None = None,
        is_awaited: IsAwaited | None = None,
        after_flush: bool = False,
    ) -> None:
        """``after_flush``: records wait for :meth:`release`."""
        self._index = index
        self._tags_codes = tags_codes
        self._known_tags = tags_codes.known
        self._on_arrival = on_arrival
        self._is_awaited = is_awaited or _always if on_arrival is not None else _never
        self._waiting: deque[_Waiting] | None = deque() if after_flush else None
        self._prepared: deque[_Prepared] = deque()
        #: End of the last record whose entries are made.
        self.dispatched_until = 0
        #: Store time of that record.
        self.dispatched_timestamp = 0

    @property
    def waiting_count(self) -> int:
        """Records that wait for the disk."""
        return len(self._waiting or ()) + len(self._prepared)

    @property
    def indexed_until(self) -> int:
        """End of the last record in the index."""
        return self._prepared[-1][0] if self._prepared else self.dispatched_until

    def resume(self, log_end: int, store_timestamp: int) -> None:
        """Continue after recovery, given the end and the last store time of the log."""
        self.dispatched_until = log_end
        self.dispatched_timestamp = store_timestamp

    def add_run(self, appended: Sequence[Appended], store_timestamp: int) -> None:
        """Dispatch consecutive records with one store time.

        Their entries are made now, or by :meth:`release` when they are on disk.
        """
        if self._waiting is not None:
            self._waiting += [
                (log_offset + size, queue, log_offset, sys_flag, store_timestamp, properties)
                for queue, log_offset, size, sys_flag, properties in appended
            ]
            return
        keyed: KeyedRecords = []
        tags_codes: list[int | None] | None = None
        run = None
        if len(appended) >= _ALIKE_MIN:
            run = Run(*zip(*appended, strict=True))
            tags_codes = self._read_alike(run, keyed)
        if tags_codes is None:
            tags_codes = []
            for queue, log_offset, _, sys_flag, properties in appended:
                tags_codes.append(
                    self._read(
                        queue.topic, log_offset, sys_flag, store_timestamp, properties, keyed
                    )
                )
        self._put_into_index(keyed, store_timestamp)
        if run is not None and self._add_entries(run, tags_codes, store_timestamp):
            return
        for (queue, log_offset, size, _, properties), code in zip(
            appended, tags_codes, strict=True
        ):
            self._add_entry(queue, log_offset, size, code, store_timestamp, properties)

    def _add_entries(
        self, run: Run, tags_codes: Sequence[int | None], store_timestamp: int
    ) -> bool:
        """:meth:`_add_entry` for a run of few queues whose arrivals are not reported.

        Returns false, and does nothing, for other runs.
        """
        first, total = run.queues[0], len(run.queues)
        if None in tags_codes:
            return False
        if run.queues.count(first) == total:
            parts = [(first, total)]
        elif total < _PARTS_RUN_MIN:
            return False
        else:
            parts = [(queue, sum(1 for _ in part)) for queue, part in groupby(run.queues)]
            if len(parts) * _PART_COUNT_MIN > total:
                return False
        for queue, _ in parts:
            if type(queue) is not ConsumeQueue or self._is_awaited(queue.topic, queue.queue_id):
                return False
        entries = b"".join(map(CQ_ENTRY.pack, run.log_offsets, run.sizes, tags_codes))
        start = 0
        for queue, count in parts:
            end = start + count
            log_end = run.log_offsets[end - 1] + run.sizes[end - 1]
            assert type(queue) is ConsumeQueue
            queue.append_run(entries[start * CQ_ENTRY_SIZE : end * CQ_ENTRY_SIZE], log_end)
            self.dispatched_until = log_end
            start = end
        self.dispatched_timestamp = store_timestamp
        return True

    def stop_reporting_arrivals(self) -> None:
        """Call ``on_arrival`` no more."""
        self._on_arrival = None
        self._is_awaited = _never

    def prepare(self, log_end: int) -> None:
        """Index the waiting records up to ``log_end``, while the disk is being synced.

        They are not visible yet: queries by key stop at :attr:`dispatched_until`. A crash leaves
        index entries beyond the end of the log, which recovery drops in every flush mode.
        """
        waiting, prepared = self._waiting, self._prepared
        keyed: KeyedRecords = []
        moment = 0  # store time of ``keyed``
        while waiting and waiting[0][0] <= log_end:
            end, queue, log_offset, sys_flag, store_timestamp, properties = waiting.popleft()
            if store_timestamp != moment:
                self._put_into_index(keyed, moment)
                keyed, moment = [], store_timestamp
            tags_code = None
            if not queue.is_deleted:
                tags_code = self._read(
                    queue.topic, log_offset, sys_flag, store_timestamp, properties, keyed
                )
            prepared.append((end, queue, log_offset, tags_code, store_timestamp, properties))
        self._put_into_index(keyed, moment)

    def release(self, flushed_until: int) -> None:
        """Dispatch the waiting records that are on disk now.

        Skips queues that were deleted meanwhile: an entry would go into the files of a new queue.
        """
        self.prepare(flushed_until)
        prepared, add_entry = self._prepared, self._add_entry
        while prepared and prepared[0][0] <= flushed_until:
            end, queue, log_offset, tags_code, store_timestamp, properties = prepared.popleft()
            if queue.is_deleted:
                tags_code = None
            add_entry(queue, log_offset, end - log_offset, tags_code, store_timestamp, properties)

    def _read(
        self,
        topic: str,
        log_offset: int,
        sys_flag: int,
        store_timestamp: int,
        properties: bytes,
        keyed: KeyedRecords,
    ) -> int | None:
        """The tags code of a record's queue entry, None if it gets none.

        Adds the record's index keys to ``keyed``.
        """
        tags, unique_id, keys = indexed_values(properties)
        kind = sys_flag & FLAG_TRANSACTION_MASK
        if self._index is not None and kind != FLAG_TRANSACTION_ROLLBACK:
            keyed.append((log_offset, self._index.hashes(topic, unique_id, keys, tags)))
        if kind and kind in HIDDEN_KINDS:
            return None
        known_code = self._known_tags.get(tags)
        if known_code is None or topic == SCHEDULE_TOPIC:
            return self._tags_codes.of(topic, tags, properties, store_timestamp)
        return known_code

    def _read_alike(self, run: Run, keyed: KeyedRecords) -> list[int | None] | None:
        """:meth:`_read` for records that are alike (:func:`alike_ids`); None for others."""
        count, sys_flag, topic = len(run.queues), run.sys_flags[0], run.queues[0].topic
        if (
            sys_flag & FLAG_TRANSACTION_MASK in HIDDEN_KINDS
            or topic == SCHEDULE_TOPIC
            or run.sys_flags.count(sys_flag) < count
            or len({queue.topic for queue in set(run.queues)}) > 1
        ):
            return None
        ids = alike_ids(run.properties)
        if ids is None:
            return None
        tags, _, keys = indexed_values(run.properties[0])
        known_code = self._known_tags.get(tags)
        if known_code is None:
            return None
        if self._index is not None:
            key_hashes = self._index.hashes_of_alike(topic, ids, keys, tags)
            keyed += zip(run.log_offsets, key_hashes, strict=True)
        return [known_code] * count

    def _put_into_index(self, keyed: KeyedRecords, store_timestamp: int) -> None:
        if keyed and self._index is not None:
            self._index.put_run(keyed, store_timestamp)

    def _add_entry(
        self,
        queue: EntryQueue,
        log_offset: int,
        size: int,
        tags_code: int | None,
        store_timestamp: int,
        properties: bytes,
    ) -> None:
        """Make the queue entry, unless there is no tags code, and report the arrival."""
        self.dispatched_until = log_offset + size
        self.dispatched_timestamp = store_timestamp
        if tags_code is None:
            return
        if type(queue) is ConsumeQueue:
            queue.append(log_offset, size, tags_code)
        elif not _append_inner_batch(
            queue, log_offset, size, tags_code, store_timestamp, properties
        ):
            return
        if self._is_awaited(queue.topic, queue.queue_id):
            assert self._on_arrival is not None, "_is_awaited is _never without it"
            self._on_arrival(
                Arrival(
                    queue.topic,
                    queue.queue_id,
                    queue.max_offset,
                    tags_code,
                    store_timestamp,
                    properties,
                )
            )


def _append_inner_batch(
    queue: EntryQueue,
    log_offset: int,
    size: int,
    tags_code: int,
    store_timestamp: int,
    properties: bytes,
) -> bool:
    """Make the entry of an inner batch just appended; returns whether the record is one."""
    next_offset = queue.next_offset  # may be ahead by the batches that wait for the disk
    entered = add_queue_entry(queue, log_offset, size, tags_code, -1, store_timestamp, properties)
    queue.next_offset = max(next_offset, queue.max_offset)
    return entered is not None
