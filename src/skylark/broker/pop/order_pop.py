"""Ordered pop: a queue stays closed while popped messages of it are neither done nor visible again.

Per topic, group and queue there is one :class:`~skylark.store.config_tables.OrderInfo`: the offsets
of the last pop, which of them are acknowledged, and when each becomes visible. A pop of the same
queue is *blocked* while any message that is not acknowledged is still invisible; then it starts
again at the first of them. There are no check-points, and nothing goes to a retry topic: the
message at the head of a queue is delivered until it is acknowledged.

A client whose answer was lost repeats the pop with the same ``attemptId``: it is not blocked, gets
the same messages, and the attempt is not counted twice.

**State.** ``consumerOrderInfo.json`` in Java's format, written from time to time and at a stop. A
crash loses what was acknowledged since: the committed offset, which is in another file, may be
older than an acknowledgement. Then messages are delivered again, in order. Entries of topics and
groups that are gone, of queues beyond the topic's, and such that rested for a day are dropped when
a topic or group is deleted and when the table is written (:meth:`OrderPops.clean`).

Pure: times are milliseconds since 1970, given by the caller. Counterpart of Java's
``ConsumerOrderInfoManager`` and ``ConsumerOrderInfoLockManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from skylark.store.config_tables import ConsumerOrderInfoTable, OrderInfo

#: Entries without a pop for so long are dropped.
IDLE_MAX_MS: Final = 24 * 3600 * 1000
#: Offsets of one pop of a queue; a bit each in the file.
OFFSETS_MAX: Final = 63
#: Results of :meth:`OrderPops.ack` besides an offset.
ILLEGAL: Final = -1
IGNORED: Final = -2

#: Topic, group and queue.
QueueOfGroup: TypeAlias = tuple[str, str, int]


class InHand(NamedTuple):
    """A message of the last pop of a queue."""

    pop_time_ms: int
    visible_ms: int
    is_acknowledged: bool
    #: How often it was delivered before.
    earlier_count: int


class OrderPops:
    """The messages that ordered groups have in hand, of one broker."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, OrderInfo]] = {}
        #: Goes up with every change.
        self.change_count = 0

    def is_blocked(
        self,
        topic: str,
        group: str,
        queue_id: int,
        now_ms: int,
        *,
        attempt_id: str | None = None,
        invisible_ms: int = 0,
    ) -> bool:
        """Whether a pop gets nothing of a queue; ``invisible_ms``: for entries that lack it."""
        info = self._get(topic, group, queue_id)
        if info is None or not info.offset_list:
            return False
        if info.attempt_id is not None and info.attempt_id == attempt_id:
            return False
        if not info.invisible_time or info.invisible_time <= 0:
            info.invisible_time = invisible_ms
        return any(now_ms < visible_ms for visible_ms in _visible_times(info))

    def free_at_ms(self, topic: str, group: str, queue_id: int, now_ms: int) -> int | None:
        """When a blocked queue has its first message visible again; None if it is not blocked."""
        info = self._get(topic, group, queue_id)
        if info is None or not info.offset_list or not info.invisible_time:
            return None
        return next((each for each in _visible_times(info) if now_ms < each), None)

    def popped(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        *,
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
        now_ms: int,
    ) -> tuple[dict[int, int], int]:
        """Record a pop; per offset how often it was delivered before, and the least of all."""
        old = self._get(topic, group, queue_id)
        assert len(offsets) <= OFFSETS_MAX, "the bits of an entry are a signed number of 64 bits"
        info = OrderInfo(
            pop_time=pop_time_ms,
            invisible_time=invisible_ms,
            offset_list=[offsets[0], *(each - offsets[0] for each in offsets[1:])],
            last_consume_timestamp=now_ms,
            attempt_id=attempt_id,
        )
        if old is not None:
            info.offset_consumed_count = _counts(old, offsets, attempt_id)
        self._table.setdefault(f"{topic}@{group}", {})[queue_id] = info
        self.change_count += 1
        counts = info.offset_consumed_count or {}
        least = min(counts.values()) if len(counts) == len(offsets) else 0
        return counts, least

    def ack(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        pop_time_ms: int,
        committed: int,
    ) -> int:
        """The offset to commit after an acknowledgement, or ILLEGAL or IGNORED.

        ILLEGAL: the last pop did not return this offset. IGNORED: the message has been popped
        again since. Without an entry, which a crash may have lost, only the message at
        ``committed`` (the offset of the group) is done. Java takes any offset then: the ack of
        message 2 commits 3, and 0 and 1, which are not acknowledged, are lost. Here the ack is
        ignored, and the message is delivered once more, in order.
        """
        info = self._get(topic, group, queue_id)
        if info is None:
            return offset + 1 if offset == committed else IGNORED
        if not info.offset_list:
            return ILLEGAL
        if pop_time_ms != info.pop_time:
            return IGNORED
        offsets = _offsets(info)
        if offset not in offsets:
            return ILLEGAL
        info.commit_offset_bit |= 1 << offsets.index(offset)
        self.change_count += 1
        bits = info.commit_offset_bit
        waiting = (each for place, each in enumerate(offsets) if not bits >> place & 1)
        return next(waiting, offsets[-1] + 1)

    def change_visible_time(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, visible_ms: int
    ) -> bool:
        """Set when a message becomes visible; False if the last pop did not return it."""
        info = self._get(topic, group, queue_id)
        if info is None or pop_time_ms != info.pop_time or offset not in _offsets(info):
            return False
        if info.offset_next_visible_time is None:
            info.offset_next_visible_time = {}
        info.offset_next_visible_time[offset] = visible_ms
        self.change_count += 1
        return True

    def in_hand(self, topic: str, group: str, queue_id: int) -> int:
        """How many messages of a queue are popped and not acknowledged."""
        info = self._get(topic, group, queue_id)
        if info is None:
            return 0
        return len(_offsets(info)) - info.commit_offset_bit.bit_count()

    def find(self, topic: str, group: str, queue_id: int, offset: int) -> InHand | None:
        """A message of the last pop of a queue, for reports; None if that did not return it."""
        info = self._get(topic, group, queue_id)
        offsets = [] if info is None else _offsets(info)
        if info is None or offset not in offsets:
            return None
        default_ms = info.pop_time + (info.invisible_time or 0)
        return InHand(
            info.pop_time,
            (info.offset_next_visible_time or {}).get(offset, default_ms),
            bool(info.commit_offset_bit >> offsets.index(offset) & 1),
            (info.offset_consumed_count or {}).get(offset, 0),
        )

    def end_offset(self, topic: str, group: str, queue_id: int) -> int:
        """The end of the messages of a queue that are popped and not acknowledged; -1 if none."""
        info = self._get(topic, group, queue_id)
        offsets = [] if info is None or not self.in_hand(topic, group, queue_id) else _offsets(info)
        return offsets[-1] + 1 if offsets else -1

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Open a queue: its offset was reset."""
        if self._table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self.change_count += 1

    def clean(
        self,
        queue_count: Callable[[str], int],
        has_group: Callable[[str], bool],
        now_ms: int,
    ) -> None:
        """Drop what is of no use; ``queue_count`` returns 0 for a topic that is gone."""
        for key in list(self._table):
            topic, _, group = key.partition("@")
            count = queue_count(topic) if has_group(group) else 0
            infos = self._table[key]
            for queue_id, info in list(infos.items()):
                if queue_id >= count or now_ms - info.last_consume_timestamp > IDLE_MAX_MS:
                    del infos[queue_id]
                    self.change_count += 1
            if not infos:
                del self._table[key]

    def queues(self) -> list[QueueOfGroup]:
        """All queues that have an entry."""
        return [
            (*_split(key), queue_id) for key, infos in self._table.items() for queue_id in infos
        ]

    def snapshot(self) -> ConsumerOrderInfoTable:
        """The content of ``consumerOrderInfo.json``, independent of later changes."""
        return ConsumerOrderInfoTable(
            table={
                key: {queue_id: _copy(info) for queue_id, info in infos.items()}
                for key, infos in self._table.items()
            }
        )

    def load(self, table: ConsumerOrderInfoTable) -> None:
        """Load ``consumerOrderInfo.json``."""
        self._table = {key: dict(infos) for key, infos in table.table.items() if "@" in key}

    def _get(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        infos = self._table.get(f"{topic}@{group}")
        return None if infos is None else infos.get(queue_id)


def _split(key: str) -> tuple[str, str]:
    topic, _, group = key.partition("@")
    return topic, group


def _offsets(info: OrderInfo) -> list[int]:
    """The queue offsets of a pop; the entry has distances from the first."""
    if not info.offset_list:
        return []
    first, *others = info.offset_list
    return [first, *(first + each for each in others)]


def _visible_times(info: OrderInfo) -> list[int]:
    """When each message becomes visible that is not acknowledged."""
    changed = info.offset_next_visible_time or {}
    default_ms = info.pop_time + (info.invisible_time or 0)
    bits = info.commit_offset_bit
    return [
        changed.get(offset, default_ms)
        for place, offset in enumerate(_offsets(info))
        if not bits >> place & 1
    ]


def _counts(old: OrderInfo, offsets: Sequence[int], attempt_id: str | None) -> dict[int, int]:
    """How often messages were delivered before; only those that were."""
    counts = old.offset_consumed_count or {}
    if attempt_id is not None and old.attempt_id == attempt_id:
        return counts
    before = set(_offsets(old))
    return {offset: counts.get(offset, 0) + 1 for offset in offsets if offset in before}


def _copy(info: OrderInfo) -> OrderInfo:
    return msgspec.structs.replace(
        info,
        offset_next_visible_time=_copied(info.offset_next_visible_time),
        offset_consumed_count=_copied(info.offset_consumed_count),
    )


def _copied(values: dict[int, int] | None) -> dict[int, int] | None:
    return None if values is None else dict(values)
