"""Counts of half messages and decisions, for metrics and the file ``transactionMetrics``.

The number of undecided half messages per topic is saved in a file, as in Java, because counting
them at start would need the whole half queue. A crash loses changes since the last save, so the
number may be wrong after one; no decision depends on it. Java counts the commit of a delayed
message for the topic of delayed messages.

Counterpart of ``TransactionMetrics``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from skylark.core.clock import TimeSource
from skylark.store.config_tables import TransactionMetricsTable
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerMetric


class TransactionCounts:
    """Undecided half messages, commits and rollbacks by topic."""

    def __init__(self, clock: TimeSource) -> None:
        self._clock = clock
        #: Topic -> undecided half messages (``rocketmq_half_messages``).
        self.waiting: Counter[str] = Counter()
        #: Topic -> decisions since the start (``rocketmq_commit_messages_total`` and ``rollback``).
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        #: Check-backs sent, and half messages given up, since the start.
        self.check_back_count = 0
        self.given_up_count = 0
        #: Called for each commit with the topic and the age of the message in whole seconds
        #: (``rocketmq_finish_message_latency``).
        self.on_committed: Callable[[str, int], None] | None = None
        self.change_count = 0
        self._changed_ms: dict[str, int] = {}
        self._version = DataVersion(timestamp=clock.now_ms())
        self._newer_count = 0  # changes since that version, and the time of the last one
        self._newer_ms = 0

    def add(self, topic: str, count: int) -> None:
        """Add to the number of undecided half messages of a topic; ``count`` may be negative."""
        now_ms = self._clock.now_ms()
        self.waiting[topic] += count
        self._changed_ms[topic] = now_ms
        self._newer_count += 1
        self._newer_ms = now_ms
        self.change_count += 1

    def commit(self, topic: str, born_ms: int, count: int = 1) -> None:
        """Count commits of half messages with one born time."""
        self.committed[topic] += count
        if self.on_committed is not None:
            age_s = (self._clock.now_ms() - born_ms) // 1000
            for _ in range(count):
                self.on_committed(topic, age_s)

    def topic_deleted(self, topic: str) -> None:
        for table in (self.waiting, self.committed, self.rolled_back, self._changed_ms):
            table.pop(topic, None)
        self.change_count += 1

    # --- the file ---------------------------------------------------------------------------------

    def snapshot(self) -> TransactionMetricsTable:
        version = self._version
        if self._newer_count:
            version = DataVersion(
                state_version=version.state_version,
                counter=version.counter + self._newer_count,
                timestamp=self._newer_ms,
            )
        return TransactionMetricsTable(
            data_version=version,
            transaction_count={
                topic: TimerMetric(count=count, time_stamp=self._changed_ms.get(topic, 0))
                for topic, count in self.waiting.items()
            },
        )

    def load(self, table: TransactionMetricsTable) -> None:
        for topic, metric in table.transaction_count.items():
            self.waiting[topic] = metric.count
            self._changed_ms[topic] = metric.time_stamp
        if table.data_version != DataVersion():
            self._version = table.data_version
            self._newer_count = 0
