"""Retention watch: warns before the store deletes messages that a group has not consumed yet.

Retention does not wait for consumers: a slow group loses messages. So once a minute the watch asks
the store which part of the log it may delete *soon*
(:meth:`~skylark.store.retention.Retention.expiring_until`): what expires in the last quarter of
``fileReservedTime``, six hours at most, or what must go when the log grows by one more file.
Usually that is nothing. Otherwise the watch checks the groups in use. Groups with unread messages
there are listed in :attr:`RetentionWatch.endangered`, which the metric
``skylark_retention_endangered_messages`` shows, and logged once an hour. If the disk fills up and
the store deletes a file that no warning has covered, the watch checks its readers first.

A group is in use while it is online, and for a day after its last commit: batch jobs and Spark
queries are not online, they only commit. The watch finds commits by comparing offsets from minute
to minute, which costs a commit nothing; after a start of the broker all groups count as in use.
Retry topics are watched like others. A queue without a committed offset counts as consumed: its
group has no position there yet.

The work is cut into slices, one per turn of the loop, and bounded by :data:`PAIR_COUNT_MAX`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.live_settings import LiveSettings
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import StoreError
from skylark.store.consume_queue import EntryQueue
from skylark.store.message_store import MessageStore

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
#: Files that expire within this time (or a quarter of fileReservedTime, if less) expire soon.
AHEAD_MS_MAX: Final = 6 * 3_600_000
_HOUR_MS: Final = 3_600_000
#: For how long a group that is offline is in use after a commit.
IN_USE_MS: Final = 24 * 3_600_000
#: How often the same warning is logged again.
REPEAT_MS: Final = 3_600_000
PAIR_COUNT_MAX: Final = 10_000
#: Pairs of group and topic in one slice.
PAIRS_PER_SLICE: Final = 64

Pair = tuple[str, str]  # group, topic


class Endangered(msgspec.Struct, frozen=True):
    """Messages of a topic that a group may soon lose."""

    group: str
    topic: str
    message_count: int


class _Seen(msgspec.Struct):
    """The committed offsets of a group at the last check, and since when."""

    offsets: dict[int, int]
    since_ms: int


class RetentionWatch:
    """Checks once a minute, from ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        clock: Clock,
    ) -> None:
        self._live = live
        self._store = store
        self._offsets = offsets
        self._consumers = consumers
        self._clock = clock
        self._seen: dict[Pair, _Seen] = {}
        self._logged: dict[Pair, int] = {}  # when, in milliseconds
        self._covered_until = 0  # groups with unread messages before this log offset are known
        self._timer: TimerHandle | None = None
        self._work: Iterator[None] | None = None
        self.endangered: list[Endangered] = []  #: as of the last check

    def start(self) -> None:
        """Begin to check at intervals."""
        self._timer = self._clock.call_later(INTERVAL_S, self._begin)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._work = None

    def deleting(self, start: int, end: int, forced: bool) -> None:
        """The store will delete a file of the log (:data:`~skylark.store.retention.OnDelete`)."""
        del start, forced
        if end > self._covered_until:
            for _ in self._check(end):
                pass

    # ---- checking --------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.start()
        if self._work is None:
            self._work = self._record_commits()
            self._step()

    def _step(self) -> None:
        """Do a slice of the work; the rest follows in later turns."""
        if self._work is None:
            return
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except StoreError as error:
            self._work = None
            logger.warning("cannot find groups that need old messages: %s", error)
        else:
            self._clock.call_later(0.0, self._step)

    def _record_commits(self) -> Iterator[None]:
        """Record new commits, then check the groups."""
        now_ms = self._clock.now_ms()
        pairs = self._pairs()
        for number, (group, topic) in enumerate(pairs, 1):
            offsets = self._offsets.committed(group, topic)
            seen = self._seen.get((group, topic))
            if seen is None or seen.offsets != offsets:
                self._seen[group, topic] = _Seen(dict(offsets), now_ms)
            if number % PAIRS_PER_SLICE == 0:
                yield
        for gone in self._seen.keys() - set(pairs):
            del self._seen[gone]
        reserved_ms = self._live.current.store.file_reserved_time * _HOUR_MS
        ahead_ms = min(AHEAD_MS_MAX, reserved_ms // 4)
        yield from self._check(self._store.retention.expiring_until(ahead_ms))

    def _pairs(self) -> list[Pair]:
        """Group and topic of all committed offsets, also of broadcast consumers."""
        pairs = islice(self._offsets.pairs(), PAIR_COUNT_MAX)
        return [(group, topic) for topic, group in pairs]

    def _check(self, until: int) -> Iterator[None]:
        """Find groups in use that have messages before the log offset ``until`` to read."""
        endangered = []
        if until > self._store.log.min_offset:
            for number, (group, topic) in enumerate(self._in_use(), 1):
                count = self._needed_count(self._offsets.committed(group, topic), topic, until)
                if count:
                    endangered.append(Endangered(group, topic, count))
                if number % PAIRS_PER_SLICE == 0:
                    yield
        self.endangered = endangered
        self._covered_until = until
        self._log_endangered()

    def _in_use(self) -> list[Pair]:
        since_ms = self._clock.now_ms() - IN_USE_MS
        online = {group.name for group in self._consumers.groups()}
        return [
            (group, topic)
            for group, topic in self._pairs()
            if group in online
            or (seen := self._seen.get((group, topic))) is None
            or seen.since_ms >= since_ms
        ]

    def _needed_count(self, offsets: Mapping[int, int], topic: str, until: int) -> int:
        count = 0
        for queue_id, offset in offsets.items():
            queue = self._store.queues.get(topic, queue_id)
            if queue is not None:
                first = max(offset, queue.min_offset)
                count += max(0, _first_from(queue, first, until) - first)
        return count

    def _log_endangered(self) -> None:
        now_ms = self._clock.now_ms()
        self._logged = {
            pair: logged_ms
            for pair, logged_ms in self._logged.items()
            if logged_ms > now_ms - REPEAT_MS
        }
        for found in self.endangered:
            if (found.group, found.topic) not in self._logged:
                self._logged[found.group, found.topic] = now_ms
                logger.warning(
                    "retention soon deletes %d messages of %s that group %s has not consumed yet",
                    found.message_count,
                    found.topic,
                    found.group,
                )


def _first_from(queue: EntryQueue, first: int, until: int) -> int:
    """The first message from ``first`` on whose record is not before the log offset ``until``."""
    low, high = first, max(first, queue.max_offset)
    while low < high:
        middle = (low + high) // 2
        entry = queue.read_entry(middle)
        if entry is not None and entry.log_offset >= until:
            high = middle
        else:
            low = middle + 1
    return low
