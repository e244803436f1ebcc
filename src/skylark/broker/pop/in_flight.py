"""Messages in flight: popped by a group, and neither acknowledged nor delivered again.

Counted per topic, group and queue since the start of the broker, for the threshold of pops, metrics
and reports. The counts are estimates, as in Java: acks that come too late or twice count as well.
Acks of messages that were popped before the start do not.

With ``enablePopMessageThreshold`` a group gets nothing of a queue that has more messages in flight
than the threshold. When the count falls to the threshold, :attr:`InFlightCounts.on_room` is called,
because no message may arrive that would wake a waiting pop. Counterpart of Java's
``PopInflightMessageCounter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

_Key: TypeAlias = tuple[str, str]  # topic, group


class InFlightCounts:
    """Counts of messages in flight; no entry for a queue without one."""

    def __init__(self, started_ms: int) -> None:
        #: A queue with more messages in flight is closed; None: there is no limit.
        self.threshold: int | None = None
        #: Called with topic, group and queue when a queue opens.
        self.on_room: Callable[[str, str, int], object] = lambda *_queue: None
        self._started_ms = started_ms
        self._counts: dict[_Key, dict[int, int]] = {}

    def get(self, topic: str, group: str, queue_id: int) -> int:
        """The messages of one queue."""
        counts = self._counts.get((topic, group))
        return 0 if counts is None else counts.get(queue_id, 0)

    def add(self, topic: str, group: str, queue_id: int, count: int) -> None:
        """Messages were popped."""
        counts = self._counts.get((topic, group))
        if counts is None:
            counts = self._counts[topic, group] = {}
        counts[queue_id] = counts.get(queue_id, 0) + count

    def subtract(self, topic: str, group: str, queue_id: int, count: int, pop_time_ms: int) -> None:
        """Lower the in-flight count: messages were acknowledged or copied to the retry topic."""
        counts = self._counts.get((topic, group))
        if counts is None or pop_time_ms < self._started_ms:
            return
        before = counts.get(queue_id, 0)
        left = before - count
        if left > 0:
            counts[queue_id] = left
        else:
            counts.pop(queue_id, None)
            if not counts:
                del self._counts[topic, group]
        if self.threshold is not None and left <= self.threshold < before:
            self.on_room(topic, group, queue_id)

    def is_closed(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a queue has too many messages in flight to be popped."""
        return self.threshold is not None and self.get(topic, group, queue_id) > self.threshold

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """A queue is popped in order now, or its offset was reset."""
        counts = self._counts.get((topic, group))
        if counts is not None:
            counts.pop(queue_id, None)
            if not counts:
                del self._counts[topic, group]

    def topic_deleted(self, topic: str) -> None:
        for key in [key for key in self._counts if key[0] == topic]:
            del self._counts[key]

    def group_deleted(self, group: str) -> None:
        for key in [key for key in self._counts if key[1] == group]:
            del self._counts[key]
