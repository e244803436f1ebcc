"""Consumer lag: how far groups are behind, worked out for each scrape of the metrics.

Includes the topics that an online group subscribes to, and the topics for which a group has
committed offsets, unless it was deleted without them (Java shows groups only while they are
online). POP retry topics have a row of their own, under the name of their topic; other retry topics
are left out, as in Java. Per group and topic, over all queues:

=================  ============================================================================
lag                messages not consumed yet; the latency is the age of the oldest of them
inflight           of these, messages that were pulled or popped
ready              of these, messages that were not; the queueing latency is the age of the oldest
=================  ============================================================================

A pop moves the committed offset before its messages are acknowledged: they count as in flight, and
the age of the oldest is that of a message as far before the offset, as in Java.

A queue without a committed offset counts as consumed: its group has no position there yet.

The work is cut into slices, so that the caller can let other work run in between, and is limited to
:data:`PAIR_COUNT_MAX` pairs of group and topic. Counterpart of Java's ``ConsumerLagCalculator``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import TimeSource
from skylark.core.errors import StoreError
from skylark.core.names import is_retry_topic, is_system_group, pop_retry_topic
from skylark.store.message_reader import Reader
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.stats import PoppedReport

logger = logging.getLogger(__name__)

PAIR_COUNT_MAX: Final = 10_000
#: Queues of one slice: about a millisecond of work.
QUEUES_PER_SLICE: Final = 128


class Lag(msgspec.Struct, kw_only=True):
    """The lag of one group on one topic."""

    group: str
    topic: str
    #: Whether this is the lag on the POP retry topic of the group.
    is_retry: bool = False
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
        groups: GroupTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        reader: Reader,
        clock: TimeSource,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._consumers = consumers
        self._reader = reader
        self._clock = clock
        self.lags: list[Lag] = []
        #: Messages of a topic, group and queue that were popped and are in flight.
        self.popped_count: Callable[[str, str, int], int] = lambda *_: 0
        #: Finds the last pop of a message, by topic, group, queue and offset.
        self.popped_report: Callable[[str, str, int, int], Awaitable[PoppedReport | None]] = _none
        #: Up to where they were popped; -1: not at all.
        self.popped_until: Callable[[str, str, int], int] = lambda *_: -1

    def renew(self) -> Iterator[None]:
        """Work out all lags again; yields after each slice. The report changes at the end."""
        lags: list[Lag] = []
        queue_count = 0
        for group, topic in self._pairs():
            config = self._topics.get(topic)
            if config is None:
                continue
            try:
                lags += self._lags(group, config)
            except StoreError as error:
                logger.warning(
                    "cannot work out the lag of group %s on topic %s: %s", group, topic, error
                )
            queue_count += config.read_queue_nums
            if queue_count >= QUEUES_PER_SLICE:
                queue_count = 0
                yield
        self.lags = lags

    def _lags(self, group: str, config: TopicConfig) -> Iterator[Lag]:
        """The lag on a topic, and that on the retries that pops have made of it."""
        topic = config.topic_name
        is_system = self._topics.is_system(topic) or is_system_group(group)
        lag = Lag(group=group, topic=topic, is_system=is_system)
        self._add(lag, config)
        yield lag
        names = (pop_retry_topic(topic, group, v2=v2) for v2 in (True, False))
        retries = [retry for name in names if (retry := self._topics.get(name)) is not None]
        if retries:
            lag = Lag(group=group, topic=topic, is_retry=True, is_system=is_system)
            for retry in retries:
                self._add(lag, retry)
            yield lag

    def _pairs(self) -> list[tuple[str, str]]:
        pairs = {
            (group.name, topic): None
            for group in self._consumers.groups()
            for topic in group.subscriptions
        }
        for group_name, topics in (self._offsets.dump().group_topic_map or {}).items():
            # A group may be deleted without its offsets.
            if group_name in self._groups or is_system_group(group_name):
                pairs.update(dict.fromkeys((group_name, topic) for topic in topics))
        return list(islice((pair for pair in pairs if not is_retry_topic(pair[1])), PAIR_COUNT_MAX))

    def _add(self, lag: Lag, config: TopicConfig) -> None:
        """Add the queues of a topic to a lag."""
        topic, group = config.topic_name, lag.group
        for queue_id in range(config.read_queue_nums):
            max_offset = self._reader.max_offset(topic, queue_id)
            committed = self._offsets.get(group, topic, queue_id)
            if not 0 <= committed <= max_offset:
                continue
            pulled = max(committed, self._offsets.get_pulled(group, topic, queue_id))
            pulled = min(pulled, max_offset)
            read = min(max(pulled, self.popped_until(topic, group, queue_id)), max_offset)
            in_flight = pulled - committed + self.popped_count(topic, group, queue_id)
            lag.inflight_count += in_flight
            lag.ready_count += max_offset - read
            lag.lag_count += max_offset - read + in_flight
            oldest = max(0, min(committed, read - in_flight))
            if oldest < max_offset:
                lag.lag_ms = max(lag.lag_ms, self._age_ms(topic, queue_id, oldest))
            if read < max_offset:
                lag.queueing_ms = max(lag.queueing_ms, self._age_ms(topic, queue_id, read))

    def _age_ms(self, topic: str, queue_id: int, offset: int) -> int:
        stored_ms = self._reader.store_time(topic, queue_id, offset)
        return 0 if stored_ms is None else self._clock.now_ms() - stored_ms


async def _none(*_message: object) -> None:
    """Nothing is popped here."""
