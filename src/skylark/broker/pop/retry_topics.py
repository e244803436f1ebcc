"""The pop retry topics of groups: their names, and their creation before the first copy.

A copy goes to ``%RETRY%group_topic`` or, with ``enableRetryTopicV2``, ``%RETRY%group+topic``; that
of a retry to the topic where it was popped. With ``useSeparateRetryQueue`` the retry topic has as
many queues as its topic, and grows with it; otherwise it has one.

A new topic is saved before its first copy is made, because messages of a topic that the table lacks
after a crash would be deleted. Only the copies for this topic wait for that.

**At the limit** (``topicCountMax``) no topic is created. This is logged once for each topic, until
it can be created after all.
"""

from __future__ import annotations

import enum
import logging
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.table_saver import SavedTable
from skylark.broker.topics.topic_table import READ_WRITE, TopicTable
from skylark.core.names import is_retry_topic, pop_retry_topic, topic_of_pop_retry
from skylark.store import config_tables
from skylark.wire.pop_records import CheckPoint

logger = logging.getLogger(__name__)

#: Names of topics that were refused are kept up to this number, to log each once.
_REFUSED_MAX: Final = 10_000


class ReviveTables(msgspec.Struct, frozen=True):
    """The tables of the broker that the revive uses."""

    topics: TopicTable
    topics_saved: SavedTable[config_tables.TopicTable]
    groups: GroupTable
    offsets: OffsetTable


class Readiness(enum.Enum):
    """Whether copies can be put into a retry topic."""

    READY = enum.auto()
    #: It is new, and being saved.
    UNSAVED = enum.auto()
    #: It cannot be created: the broker has as many topics as it may have.
    REFUSED = enum.auto()


class RetryTopics:
    """Creates the topics of copies."""

    def __init__(self, live: LiveSettings, tables: ReviveTables) -> None:
        #: How often a topic was created or has grown.
        self.created_count = 0
        self._live = live
        self._tables = tables
        self._unsaved: dict[str, int] = {}  # new topics, with their change of the table
        self._refused: dict[str, None] = {}

    def name_of(self, point: CheckPoint) -> str:
        """The topic for the copies of a check-point."""
        if is_retry_topic(point.topic):
            return point.topic
        v2 = self._live.current.pop.enable_retry_topic_v2
        return pop_retry_topic(point.topic, point.group, v2=v2)

    def is_unsaved(self, point: CheckPoint) -> bool:
        """Whether the topic of a check-point is new, and being saved."""
        return bool(self._unsaved) and self._saved(self.name_of(point)) is Readiness.UNSAVED

    def prepare(self, point: CheckPoint) -> Readiness:
        """Create or enlarge the topic of a check-point if that is necessary."""
        name = self.name_of(point)
        topics = self._tables.topics
        existing = topics.get(name)
        queue_count = self._queue_count(point, name)
        if existing is not None and existing.write_queue_nums >= queue_count:
            return self._saved(name)
        if existing is not None:
            topics.grow(name, queue_count)
        elif topics.is_full:
            self._refuse(name)
            return Readiness.REFUSED
        else:
            topics.ensure(name, queue_count=queue_count, perm=READ_WRITE)
        self._refused.pop(name, None)
        self.created_count += 1
        self._unsaved[name] = self._tables.topics_saved.last_mark
        offsets = self._tables.offsets
        for queue_id in range(queue_count):
            if offsets.get(point.group, name, queue_id) < 0:
                offsets.commit(point.group, name, queue_id, 0)
        return self._saved(name)

    def _queue_count(self, point: CheckPoint, name: str) -> int:
        if not self._live.current.pop.use_separate_retry_queue:
            return 1
        original = self._tables.topics.get(topic_of_pop_retry(name, point.group))
        return 1 if original is None else max(1, original.write_queue_nums)

    def _saved(self, name: str) -> Readiness:
        mark = self._unsaved.get(name)
        if mark is not None and self._tables.topics_saved.is_change_on_its_way(mark):
            return Readiness.UNSAVED
        self._unsaved.pop(name, None)
        return Readiness.READY

    def _refuse(self, name: str) -> None:
        if name in self._refused:
            return
        if len(self._refused) >= _REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = None
        logger.error(
            "cannot create the retry topic %s, so what its group did not acknowledge waits: there"
            " are %d topics, the limit: raise topicCountMax",
            name,
            len(self._tables.topics),
        )
