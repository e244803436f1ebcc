"""The order in which pops read queues: those of the topic, and those of its retry topic.

* One pop in five (``popFromRetryProbability``) looks into the retry topic of the group first, the
  others last, and only if they have room left; ordered pops never do.
* The queues of the topic begin at a random one. Those of a topic of type PRIORITY begin at the most
  urgent one, for as many pops in a hundred as the attribute ``priority.factor`` of the group says.
* With ``enableRetryTopicV2`` every second pop reads the retry topic of the old name, while
  ``retrieveMessageFromPopRetryTopicV1`` is set. A pop reads one retry topic only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from skylark.broker.live_settings import LiveSettings
from skylark.broker.topics.attributes import MESSAGE_TYPE
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.names import pop_retry_topic
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.headers.pop import PeekMessageRequestHeader, PopMessageRequestHeader

ANY_QUEUE: Final = -1
#: One request in so many looks into the retry topic first, where it is not a setting.
RETRY_FIRST: Final = 5
PRIORITY: Final = "PRIORITY"
PRIORITY_FACTOR: Final = "priority.factor"
PRIORITY_FACTOR_DEFAULT: Final = 100


class QueueOfTopic(NamedTuple):
    """A queue that a pop reads."""

    topic: str
    queue_id: int
    is_retry: bool


class QueueOrder:
    """The order in which a pop reads queues."""

    def __init__(self, live: LiveSettings, topics: TopicTable, draw: Callable[[], int]) -> None:
        """``draw`` returns a random number from 0 to 99."""
        self._live = live
        self._topics = topics
        self._draw = draw

    def of_pop(
        self,
        header: PopMessageRequestHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        is_full: Callable[[], bool] = bool,
    ) -> Iterator[QueueOfTopic]:
        """The queues of a pop; ``is_full``: whether it has as many messages as it wants."""
        drawn, config = self._draw(), self._live.current.pop
        retry_share = config.pop_from_retry_probability
        start = drawn
        if (
            topic.attributes.get(MESSAGE_TYPE) == PRIORITY
            and not header.order
            and drawn < _priority_factor(group)
        ):
            retry_share, start = config.pop_from_retry_probability_for_priority, 0
        if header.order:
            return self._of_topic(topic, header.queue_id, start)
        v2 = config.enable_retry_topic_v2
        if v2 and config.retrieve_message_from_pop_retry_topic_v1 and drawn % 2 == 0:
            v2 = False
        retry = pop_retry_topic(header.topic, header.consumer_group, v2=v2)
        is_first = drawn < retry_share
        return self._with_retry(topic, header.queue_id, start, retry, is_first, is_full)

    def of_peek(
        self,
        header: PeekMessageRequestHeader,
        topic: TopicConfig,
        is_full: Callable[[], bool] = bool,
    ) -> Iterator[QueueOfTopic]:
        """The queues of a peek."""
        drawn = self._draw()
        v2 = self._live.current.pop.enable_retry_topic_v2
        retry = pop_retry_topic(header.topic, header.consumer_group, v2=v2)
        is_first = drawn % RETRY_FIRST == 0
        return self._with_retry(topic, header.queue_id, drawn, retry, is_first, is_full)

    def retry_topics(self, topic: str, group: str) -> list[TopicConfig]:
        """All retry topics that pops of a group read, of those that exist."""
        config = self._live.current.pop
        names = [pop_retry_topic(topic, group, v2=config.enable_retry_topic_v2)]
        if config.enable_retry_topic_v2 and config.retrieve_message_from_pop_retry_topic_v1:
            names.append(pop_retry_topic(topic, group))
        return [found for name in names if (found := self._topics.get(name)) is not None]

    def of_topic(self, topic: TopicConfig, queue_id: int = ANY_QUEUE) -> Iterator[QueueOfTopic]:
        """The queues of a topic, from a random one on, or one of them."""
        return self._of_topic(topic, queue_id, self._draw())

    def _with_retry(
        self,
        topic: TopicConfig,
        queue_id: int,
        start: int,
        retry: str,
        is_first: bool,
        is_full: Callable[[], bool],
    ) -> Iterator[QueueOfTopic]:
        retries = self._topics.get(retry)
        if is_first and retries is not None:
            yield from self._of_topic(retries, ANY_QUEUE, start, is_retry=True)
        yield from self._of_topic(topic, queue_id, start)
        if not is_first and retries is not None and not is_full():
            yield from self._of_topic(retries, ANY_QUEUE, start, is_retry=True)

    def _of_topic(
        self, topic: TopicConfig, queue_id: int, start: int, *, is_retry: bool = False
    ) -> Iterator[QueueOfTopic]:
        name, count = topic.topic_name, topic.read_queue_nums
        if queue_id >= 0:
            yield QueueOfTopic(name, queue_id, is_retry)
            return
        descends = self._live.current.pop.priority_order_asc
        for place in range(count):
            index = count - 1 - place if descends else place
            yield QueueOfTopic(name, (index + start) % count, is_retry)


def _priority_factor(group: SubscriptionGroupConfig) -> int:
    text = group.attributes.get(PRIORITY_FACTOR, "")
    return int(text) if text.isdecimal() else PRIORITY_FACTOR_DEFAULT


def drawing(generator: random.Random) -> Callable[[], int]:
    """Draws numbers from 0 to 99."""
    return lambda: generator.randrange(100)
