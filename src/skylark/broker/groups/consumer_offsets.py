"""Consume offsets of groups, per queue: committed offsets, pending resets, pull offsets.

Three maps, each by ``topic@group`` and queue:

* **committed**: where the group continues after a restart. The table stores each committed value,
  also a smaller one: clients decide.
* **pending resets**: an administrator has reset the group (222), and its consumers have not moved
  yet. While a reset is pending, queries are answered with it, and commits of clients are ignored,
  because they are about the old position. The next pull takes the reset
  (:meth:`OffsetTable.take_reset`) and is answered with it.
* **pulled**: the end of the last pull, for progress reports only.

**A new group on a young topic** starts at the first message, also if its ``consumeFromWhere``
says otherwise: a query for an offset that was never committed is answered with 0 while the queue
still has its first message and that message is in memory (:meth:`OffsetService.committed`).

Pending resets are lost with the process, as in Java; the committed offset was set along with them.
The other maps are written to disk every few seconds, with the end of the log at that time, for the
recovery of POP (:mod:`skylark.broker.pop.pop_recovery`). The version rises every 500 commits, by
which slaves notice changes; ``change_count`` rises with every change, so that an idle broker writes
nothing.

Every pull commits: a commit costs two dictionary look-ups. Sizes are bounded by the callers, who
check topic and group, and by :data:`QUEUE_COUNT_MAX`.

Counterpart of Java's ``ConsumerOffsetManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from skylark.broker.api import Peer
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    QueryNotFoundError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.store import config_tables
from skylark.store.config_tables import TOPIC_GROUP_SEPARATOR
from skylark.store.consume_queue import Boundary
from skylark.store.message_reader import Reader
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import ConsumerOffsetSerializeWrapper

logger = logging.getLogger(__name__)

#: Queues for which one group can have offsets of one topic.
QUEUE_COUNT_MAX: Final = 65_536

NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
NOT_FOUND_NO_ZERO: Final = "Not found, do not set to zero, maybe this group boot first"
#: Remark of the successful answer to a commit that was ignored.
RESET_REMARK: Final = "Offset has been previously reset"

Offsets = dict[int, int]  # by queue


class PopMarks(NamedTuple):
    """Positions in the log that belong to the offsets of POP; its recovery describes them."""

    #: Check-points that the offsets do not count stand behind it.
    log_offset: int
    #: Whether check-points are, or may be, in memory.
    is_merged: bool
    #: Copies of expired messages that the revive group's offset does not count stand behind it,
    copies_from: int
    #: or here.
    copies_left: Sequence[int]


class OffsetTable:
    """The offsets of one broker."""

    def __init__(self, live: LiveSettings, clock: TimeSource) -> None:
        self._live = live
        self._clock = clock
        self._committed: dict[str, Offsets] = {}
        self._resets: dict[str, Offsets] = {}
        self._pulled: dict[str, Offsets] = {}
        self._commit_count = 0
        self.change_count = 0
        self.version = DataVersion(timestamp=clock.now_ms())
        #: What was loaded; the last members are for recovery.
        self.loaded = config_tables.ConsumerOffsetTable()
        #: Saved with the offsets, from the start of POP on.
        self.pop_marks: Callable[[], PopMarks] | None = None
        #: Whether an offset depends on records of the log: it must not be saved before they are.
        self.log_grown = False

    # --- committing ---

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset as it is."""
        key = f"{topic}@{group}"
        offsets = self._committed.get(key)
        if offsets is None:
            offsets = self._committed[key] = {}
        old = offsets.get(queue_id)
        if old is None:
            _check_room(offsets, topic, group)
        elif offset < old:
            logger.info("%s queue %s goes back from %s to %s", key, queue_id, old, offset)
        if offset != old:
            offsets[queue_id] = offset
            self.change_count += 1
        self._commit_count += 1
        if self._commit_count % self._live.current.consumer_offset_update_version_step == 0:
            self.version = self.version.next(self._clock.now_ms())
            self.change_count += 1

    def commit_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember where the last pull ended."""
        key = f"{topic}@{group}"
        offsets = self._pulled.get(key)
        if offsets is None:
            offsets = self._pulled[key] = {}
        old = offsets.get(queue_id)
        if old is None:
            _check_room(offsets, topic, group)
        if offset != old:
            offsets[queue_id] = offset
            self.change_count += 1

    # --- reading ---

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Where the group continues: a pending reset, else the committed offset, else -1."""
        key = f"{topic}@{group}"
        if self._resets and self._live.current.use_server_side_reset_offset:
            reset = self._resets.get(key, {}).get(queue_id)
            if reset is not None:
                return reset
        offsets = self._committed.get(key)
        return -1 if offsets is None else offsets.get(queue_id, -1)

    def get_pulled(self, group: str, topic: str, queue_id: int) -> int:
        """The end of the last pull, else as :meth:`get`."""
        offset = self._pulled.get(f"{topic}@{group}", {}).get(queue_id)
        return self.get(group, topic, queue_id) if offset is None else offset

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """The committed offsets of a group, by queue; callers must not keep the map."""
        return self._committed.get(f"{topic}@{group}", {})

    def topics_of(self, group: str) -> list[str]:
        """Topics for which the group has committed offsets."""
        return [topic for topic, other in self._group_pairs() if other == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have committed offsets for the topic."""
        return [group for other, group in self._group_pairs() if other == topic]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Topic and group of all committed offsets.

        Includes those of broadcast consumers, under a name that no group can have.
        """
        return map(_split, self._committed)

    def _group_pairs(self) -> Iterator[tuple[str, str]]:
        """The same, of groups only."""
        return (pair for pair in self.pairs() if TOPIC_GROUP_SEPARATOR not in pair[1])

    def smallest(self, topic: str, queues: Reader, without: Collection[str] = ()) -> Offsets:
        """Per queue the smallest offset of all groups that is still in the queue (308).

        Java *deletes* the offsets of the groups in ``without``; here they are only skipped.
        """
        result: Offsets = {}
        for group in self.groups_of(topic):
            if group in without:
                continue
            for queue_id, offset in self._committed[f"{topic}@{group}"].items():
                if offset >= queues.min_offset(topic, queue_id):
                    result[queue_id] = min(offset, result.get(queue_id, offset))
        return result

    # --- resets ---

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset is pending."""
        if not self._resets or not self._live.current.use_server_side_reset_offset:
            return False
        return queue_id in self._resets.get(f"{topic}@{group}", {})

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove and return the pending reset; the caller answers the client with it."""
        if not self._resets or not self._live.current.use_server_side_reset_offset:
            return None
        key = f"{topic}@{group}"
        offsets = self._resets.get(key)
        if offsets is None:
            return None
        offset = offsets.pop(queue_id, None)
        if not offsets:
            del self._resets[key]
        return offset

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Reset the offsets of a group, which need not be online (222)."""
        key = f"{topic}@{group}"
        for queue_id, offset in offsets.items():
            if queue_id < 0 or offset < 0:
                logger.warning("%s: queue %s cannot be reset to %s", key, queue_id, offset)
                continue
            committed = self._committed.setdefault(key, {})
            if queue_id not in committed:
                _check_room(committed, topic, group)
            self._resets.setdefault(key, {})[queue_id] = offset
            committed[queue_id] = offset
            self.change_count += 1
        logger.info("reset %s to %s", key, dict(offsets))

    def clone(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Copy the offsets of one group to another (314)."""
        for topic in topics:
            offsets = self._committed.get(f"{topic}@{source}")
            if offsets is not None:
                self._committed[f"{topic}@{target}"] = dict(offsets)
                self.change_count += 1

    # --- removing ---

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets of a topic."""
        self._remove(lambda pair: pair[0] == topic)

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a group."""
        self._remove(lambda pair: pair[1] == group)

    def _remove(self, matches: Callable[[tuple[str, str]], bool]) -> None:
        for table in (self._committed, self._resets, self._pulled):
            for key in [key for key in table if matches(_split(key))]:
                del table[key]
                self.change_count += 1

    # --- for slaves and the disk ---

    def snapshot(self) -> config_tables.ConsumerOffsetTable:
        """The content of ``consumerOffset.json``, independent of later changes."""
        table = config_tables.ConsumerOffsetTable(
            data_version=self.version,
            offset_table={key: dict(offsets) for key, offsets in self._committed.items()},
            pull_offset_table={key: dict(offsets) for key, offsets in self._pulled.items()},
        )
        if self.pop_marks is not None:
            marks = self.pop_marks()
            table.log_offset = marks.log_offset
            table.pop_merged = marks.is_merged or None
            table.copies_from = marks.copies_from
            table.copies_left = list(marks.copies_left) or None
        return table

    def dump(self) -> ConsumerOffsetSerializeWrapper:
        """GET_ALL_CONSUMER_OFFSET (43); shares the maps: encode it before they change."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._group_pairs():
            topics.setdefault(group, []).append(topic)
        return ConsumerOffsetSerializeWrapper(
            offset_table=self._committed,
            pull_offset_table=self._pulled,
            group_topic_map=topics,
            data_version=self.version,
        )

    def load(self, table: config_tables.ConsumerOffsetTable) -> None:
        """Load ``consumerOffset.json``."""
        self.loaded = table
        self._committed = _sound(table.offset_table)
        self._pulled = _sound(table.pull_offset_table)
        if table.data_version != DataVersion():
            self.version = table.data_version

    def merge(self, wrapper: ConsumerOffsetSerializeWrapper) -> None:
        """Copy the offsets of a master (43); offsets that only this broker has stay."""
        self._committed.update(_sound(wrapper.offset_table))
        self._pulled.update(_sound(wrapper.pull_offset_table or {}))
        if wrapper.data_version is not None:
            self.version = wrapper.data_version
        self.change_count += 1


class OffsetService:
    """Reads and commits offsets for endpoints; an :class:`~skylark.broker.api.OffsetService`.

    A commit needs a group and a topic that exist; it creates neither. All other methods accept any
    queue: an unknown queue is empty. Counterpart of Java's ``ConsumerManageProcessor`` and of a
    part of ``AdminBrokerProcessor``.
    """

    def __init__(
        self, store: MessageStore, topics: TopicTable, groups: GroupTable, offsets: OffsetTable
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    def committed(
        self,
        _peer: Peer,
        group: str,
        topic: str,
        queue_id: int,
        *,
        set_zero_if_not_found: bool | None = None,
    ) -> int:
        """The offset that a group has committed; raises BrokerError (22) if there is none."""
        offset = self._offsets.get(group, topic, queue_id)
        if offset >= 0:
            return offset
        if set_zero_if_not_found is False:
            raise QueryNotFoundError(NOT_FOUND_NO_ZERO)
        if not self._starts_in_memory(topic, queue_id):
            raise QueryNotFoundError(NOT_FOUND)
        return 0

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return False
        entry = queue.read_entry(0)
        return entry is not None and self._store.reader.is_in_memory(entry.log_offset)

    def commit(
        self, _peer: Peer, group: str, topic: str, queue_id: int | None, offset: int | None
    ) -> bool:
        """Commit an offset; False if an administrator has reset the group, and this is ignored."""
        if group not in self._groups:
            raise SubscriptionGroupNotExistError(f"Group {group} not exist!")
        if topic not in self._topics:
            raise TopicNotExistError(f"Topic {topic} not exist!")
        if queue_id is None:
            raise InvalidParameterError(f"QueueId is null, topic is {topic}")
        if offset is None:
            raise InvalidParameterError(f"Offset is null, topic is {topic}")
        if self._offsets.has_reset(group, topic, queue_id):
            logger.info(
                "ignored a commit of %s by %s, queue %s: reset pending", topic, group, queue_id
            )
            return False
        self._offsets.commit(group, topic, queue_id, offset)
        return True

    def min_offset(self, _peer: Peer, topic: str, queue_id: int) -> int:
        """The first offset that can be read."""
        return self._store.reader.min_offset(topic, queue_id)

    def max_offset(self, _peer: Peer, topic: str, queue_id: int) -> int:
        """The offset after the last message that can be read."""
        return self._store.reader.max_offset(topic, queue_id)

    def offset_by_time(
        self, _peer: Peer, topic: str, queue_id: int, time_ms: int, *, is_upper: bool = False
    ) -> int:
        """The offset of the first message stored at or after a time; ``is_upper``: of the last one
        stored at or before it."""
        boundary = Boundary.UPPER if is_upper else Boundary.LOWER
        return self._store.reader.offset_by_time(topic, queue_id, time_ms, boundary)

    def earliest_store_time(self, _peer: Peer, topic: str, queue_id: int) -> int:
        """When the first message of a queue was stored; -1 for an empty queue."""
        time_ms = self._store.reader.earliest_store_time(topic, queue_id)
        return -1 if time_ms is None else time_ms


def reset_targets(
    topic: str,
    *,
    queue_id: int,
    offset: int | None,
    timestamp_ms: int,
    queue_count: int,
    queues: Reader,
) -> Offsets:
    """The new offsets of a reset (222): of one queue (``queue_id`` >= 0) or of all readable ones.

    ``offset`` (not -1) applies to one queue only, and must lie in it. Otherwise the time decides; a
    negative time means the end.
    """
    if queue_id >= 0 and offset is not None and offset != -1:
        low, high = queues.min_offset(topic, queue_id), queues.max_offset(topic, queue_id)
        if (low >= 0 and offset < low) or offset > high + 1:
            raise BrokerError(f"Target offset {offset} not in consume queue range [{low}-{high}]")
        return {queue_id: offset}
    targets = {}
    for number in [queue_id] if queue_id >= 0 else range(queue_count):
        if timestamp_ms < 0:
            targets[number] = queues.max_offset(topic, number)
        else:
            targets[number] = queues.offset_by_time(topic, number, timestamp_ms)
    if not targets:
        raise BrokerError("No queues to reset.")
    return targets


def _check_room(offsets: Offsets, topic: str, group: str) -> None:
    if len(offsets) >= QUEUE_COUNT_MAX:
        raise InvalidParameterError(
            f"group {group} has offsets of {QUEUE_COUNT_MAX} queues of topic {topic} already"
        )


def _split(key: str) -> tuple[str, str]:
    """Topic and group of a key."""
    topic, _, group = key.partition(TOPIC_GROUP_SEPARATOR)
    return topic, group


def _sound(table: Mapping[str, Mapping[int, int]]) -> dict[str, Offsets]:
    """A copy without keys that lack a topic or a group; Java skips them as well."""
    return {key: dict(offsets) for key, offsets in table.items() if all(_split(key))}
