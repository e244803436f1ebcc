"""Counters of a consumer, and its rates of the last minute for tools.

Counters are plain attributes that only grow; the loop that consumes writes them, any thread reads
them. Rates are differences of snapshots, which a periodic task takes. Counterpart of Java's
``ConsumerStatsManager``.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from skylark.wire.bodies.admin_body import ConsumeStatus

RATE_WINDOW_MS: Final = 60_000


class TopicCounters(msgspec.Struct, gc=False):
    """The counters of one topic; times are sums in milliseconds."""

    pulls: int = 0
    pull_ms: int = 0
    pulled: int = 0  #: messages
    consumed: int = 0  #: accepted by handlers
    failed: int = 0  #: not accepted
    consume_ms: int = 0


class ConsumerStats:
    """The counters of one consumer, per topic and in total."""

    def __init__(self, now_ms: int) -> None:
        self.topics: dict[str, TopicCounters] = {}
        self.sent_back = 0  #: messages given back for another try
        self.late = 0  #: results that came after the invisible time of a popped message
        self.undecodable = 0  #: messages skipped because they cannot be decoded
        self._snapshots: deque[tuple[int, dict[str, TopicCounters]]] = deque([(now_ms, {})])

    def of(self, topic: str) -> TopicCounters:
        """The counters of a topic, as brokers know it."""
        counters = self.topics.get(topic)
        if counters is None:
            counters = self.topics[topic] = TopicCounters()
        return counters

    @property
    def pulled(self) -> int:
        """Messages that were pulled, without those of other tags."""
        return sum(each.pulled for each in list(self.topics.values()))

    @property
    def consumed(self) -> int:
        """Messages that handlers accepted."""
        return sum(each.consumed for each in list(self.topics.values()))

    @property
    def failed(self) -> int:
        """Messages that handlers did not accept; each try counts."""
        return sum(each.failed for each in list(self.topics.values()))

    def snapshot(self, now_ms: int) -> None:
        """Save the current counters, and drop snapshots older than a minute."""
        copied = {topic: msgspec.structs.replace(each) for topic, each in list(self.topics.items())}
        self._snapshots.append((now_ms, copied))
        while len(self._snapshots) > 1 and now_ms - self._snapshots[1][0] >= RATE_WINDOW_MS:
            self._snapshots.popleft()

    def status(self, topic: str, now_ms: int) -> ConsumeStatus:
        """The rates of a topic over the last minute or so."""
        now = self.topics.get(topic, TopicCounters())
        since_ms, then = self._snapshots[0]
        before = then.get(topic, TopicCounters())
        seconds = (now_ms - since_ms) / 1000
        consumed, failed = now.consumed - before.consumed, now.failed - before.failed
        return ConsumeStatus(
            pull_rt=_ratio(now.pull_ms - before.pull_ms, now.pulls - before.pulls),
            pull_tps=_ratio(now.pulled - before.pulled, seconds),
            consume_rt=_ratio(now.consume_ms - before.consume_ms, consumed + failed),
            consume_ok_tps=_ratio(consumed, seconds),
            consume_failed_tps=_ratio(failed, seconds),
            consume_failed_msgs=now.failed,
        )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
