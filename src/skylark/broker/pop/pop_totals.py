"""Totals of POP for Java's metrics: records of the revive topics, and copies of expired messages.

The totals of a topic or group end with it, so that series of deleted ones are given back.
Counterpart of the counters in Java's ``PopMetricsManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

CHECK_POINT: Final = "CK"
ACK: Final = "ACK"
_PUT_OK: Final = "PUT_OK"


class PopTotals:
    """Counts since the start of the broker, by group and topic."""

    def __init__(self) -> None:
        #: Whether there is such a group. Clients may name any group in an ack: records of unknown
        #: ones are not counted, or forged names would fill the memory.
        self.has_group: Callable[[str], bool] = lambda _group: True
        #: Records written to the revive topic: group, topic and kind.
        self.written: Counter[tuple[str, str, str]] = Counter()
        #: Records read from it: group, topic, revive queue and kind.
        self.read: Counter[tuple[str, str, int, str]] = Counter()
        #: Copies of messages that were not acknowledged in time: group and topic.
        self.copied: Counter[tuple[str, str]] = Counter()

    def count_written(self, series: tuple[str, str, str]) -> None:
        """Count a written check-point or ack, by group, topic and kind of record."""
        if self.has_group(series[0]):
            self.written[series] += 1

    def count_read(self, group: str, topic: str, queue_id: int, kind: str) -> None:
        """Count a record that was read from a revive queue."""
        if self.has_group(group):
            self.read[group, topic, queue_id, kind] += 1

    def topic_deleted(self, topic: str) -> None:
        self._remove(lambda key: key[1] == topic)

    def group_deleted(self, group: str) -> None:
        self._remove(lambda key: key[0] == group)

    def _remove(self, is_gone: Callable[[tuple[object, ...]], bool]) -> None:
        for counts in (self.written, self.read, self.copied):
            for key in [key for key in counts if is_gone(key)]:
                del counts[key]

    def written_rows(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Labels and value of each series."""
        for (group, topic, kind), count in self.written.items():
            yield (group, topic, kind, _PUT_OK), count

    def read_rows(self) -> Iterator[tuple[tuple[str, ...], int]]:
        for (group, topic, queue_id, kind), count in self.read.items():
            yield (group, topic, str(queue_id), kind), count

    def copied_rows(self) -> Iterator[tuple[tuple[str, ...], int]]:
        for (group, topic), count in self.copied.items():
            yield (group, topic, _PUT_OK), count
