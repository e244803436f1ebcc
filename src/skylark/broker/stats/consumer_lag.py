"""Consumer lag: how far groups are behind, worked out for each scrape of the metrics.

Includes the topics that an online group subscribes to, and the topics for which a group has
committed offsets (Java shows groups only while they are online). Retry topics are left out, as in
Java. Per group and topic, over all queues:

=================  ============================================================================
lag                messages not committed yet; the latency is the age of the oldest of them
inflight           of these, messages that were pulled
ready              of these, messages that were not; the queueing latency is the age of the oldest
=================  ============================================================================

A queue without a committed offset counts as consumed: its group has no position there yet.

The work is cut into slices, so that the caller can let other work run in between, and is limited to
:data:`PAIR_COUNT_MAX` pairs of group and topic. Counterpart of Java's ``ConsumerLagCalculator``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import StoreError
from skylark.core.names import is_retry_topic, is_system_group
from skylark.store.message_reader import Reader

logger = logging.getLogger(__name__)

PAIR_COUNT_MAX: Final = 10_000
#: Queues of one slice: about a millisecond of work.
QUEUES_PER_SLICE: Final = 128


class Lag(msgspec.Struct, kw_only=True):
    """The lag of one group on one topic."""

    group: str
    topic: str
    is_system: bool
    lag_count: int = 0
    inflight_count: int = 0
    ready_count: int = 0
    lag_ms: int = 0
    queueing_ms: int = 0


class LagReport:
    """The lags as of the last :meth:`renew`."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        reader: Reader,
        clock: TimeSource,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._reader = reader
        self._clock = clock
        self.lags: list[Lag] = []

    def renew(self) -> Iterator[None]:
        """Work out all lags again; yields after each slice. The report changes at the end."""
        lags = []
        queue_count = 0
        for group, topic in self._pairs():
            config = self._topics.get(topic)
            if config is None:
                continue
            try:
                lags.append(self._lag(group, topic, config.read_queue_nums))
            except StoreError as error:
                logger.warning(
                    "cannot work out the lag of group %s on topic %s: %s", group, topic, error
                )
            queue_count += config.read_queue_nums
            if queue_count >= QUEUES_PER_SLICE:
                queue_count = 0
                yield
        self.lags = lags

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = {
            (group.name, topic): None
            for group in self._consumers.groups()
            for topic in group.subscriptions
        }
        for group_name, topics in (self._offsets.dump().group_topic_map or {}).items():
            pairs.update(dict.fromkeys((group_name, topic) for topic in topics))
        return list(islice((pair for pair in pairs if not is_retry_topic(pair[1])), PAIR_COUNT_MAX))

    def _lag(self, group: str, topic: str, queue_count: int) -> Lag:
        lag = Lag(
            group=group,
            topic=topic,
            is_system=self._topics.is_system(topic) or is_system_group(group),
        )
        for queue_id in range(queue_count):
            max_offset = self._reader.max_offset(topic, queue_id)
            committed = self._offsets.get(group, topic, queue_id)
            if not 0 <= committed < max_offset:
                continue
            pulled = min(
                max(committed, self._offsets.get_pulled(group, topic, queue_id)), max_offset
            )
            lag.lag_count += max_offset - committed
            lag.inflight_count += pulled - committed
            lag.ready_count += max_offset - pulled
            lag.lag_ms = max(lag.lag_ms, self._age_ms(topic, queue_id, committed))
            lag.queueing_ms = max(lag.queueing_ms, self._age_ms(topic, queue_id, pulled))
        return lag

    def _age_ms(self, topic: str, queue_id: int, offset: int) -> int:
        stored_ms = self._reader.store_time(topic, queue_id, offset)
        return 0 if stored_ms is None else self._clock.now_ms() - stored_ms
