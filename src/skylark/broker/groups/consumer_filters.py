"""Consumer filters: the compiled SQL92 filter of each group on each topic.

The broker registers a subscription that is not by tags with each full heartbeat of its group and
compiles it once. Pulls without an expression use it. Rules, as in Java's ``ConsumerFilterManager``:

* ``clientVersion`` is the ``subVersion`` of the heartbeat. A newer one replaces the filter, the
  same or an older one changes nothing.
* A newer expression that does not compile removes the filter, and pulls are answered with 27: the
  client gets an error rather than messages that the old expression selects.
* When the group has no members, or no longer subscribes to the topic, the filter is *dead*. A
  heartbeat that subscribes again makes it live again; otherwise it is removed after 24 h.
* After a restart all filters are dead until the next heartbeat of their groups.

Two differences from Java. Any subscription replaces a dead filter, also an older one: the old
members are gone, and a new client whose clock lags must not get messages through their expression.
And a stored expression that does not compile is dropped, where Java would let every message pass.

The table is stored as ``config/consumerFilter.json``, by topic and group. ``bloomFilterData`` there
follows from the names (:mod:`skylark.filter.bloom`); Java throws the whole file away if it does not
match its settings, so it is written, and ignored when read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from skylark.filter.bloom import BloomFilter
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_eval import SqlFilter, compile_sql
from skylark.store import config_tables
from skylark.wire.bodies.heartbeat import SubscriptionData

logger = logging.getLogger(__name__)

SQL92: Final = "SQL92"
DEAD_KEPT_MS: Final = 24 * 3_600_000
#: A filter that was live at a restart counts as dead since so long before it.
DEAD_BEFORE_LOAD_MS: Final = 30_000


class ConsumerFilter(msgspec.Struct, kw_only=True, eq=False):
    """The filter of one group on one topic."""

    group: str
    topic: str
    sql: SqlFilter
    client_version: int
    born_ms: int
    dead_ms: int = 0

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms


class ConsumerFilterTable:
    """All filters of a broker."""

    def __init__(
        self, bloom: BloomFilter, *, dead_kept_ms: Callable[[], int] = lambda: DEAD_KEPT_MS
    ) -> None:
        """``dead_kept_ms``: how long a dead filter is kept (``filterDataCleanTimeSpan``)."""
        self._bloom = bloom
        self._dead_kept_ms = dead_kept_ms
        self._groups: dict[str, dict[str, ConsumerFilter]] = {}  # group -> topic -> filter

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """The filter for a pull, dead or not; None if there is none (27)."""
        return self._groups.get(group, {}).get(topic)

    # --- events -----------------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int) -> None:
        """Register the subscriptions of a full heartbeat; filters of other topics are dead."""
        topics = set()
        for data in subscriptions:
            topics.add(data.topic)
            if data.expression_type not in (None, "", "TAG") and data.sub_string:
                self._register(group, data, now_ms)
        for topic, found in self._groups.get(group, {}).items():
            if topic not in topics:
                self._mark_dead(found, now_ms)

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the filters of a group as dead: it has no members."""
        for found in self._groups.get(group, {}).values():
            self._mark_dead(found, now_ms)

    def clean(self, now_ms: int) -> None:
        """Remove filters that have been dead for ``filterDataCleanTimeSpan``."""
        dead_kept_ms = self._dead_kept_ms()
        for group, filters in list(self._groups.items()):
            for topic, found in list(filters.items()):
                if found.is_dead and now_ms - found.dead_ms >= dead_kept_ms:
                    logger.info("removed the dead filter of %s on %s", group, topic)
                    del filters[topic]
            if not filters:
                del self._groups[group]

    # --- the file ---------------------------------------------------------------------------------

    def snapshot(self) -> config_tables.ConsumerFilterTable:
        """The content of ``consumerFilter.json``, independent of later changes."""
        topics: dict[str, config_tables.TopicFilterTable] = {}
        for filters in self._groups.values():
            for topic, found in filters.items():
                of_topic = topics.setdefault(topic, config_tables.TopicFilterTable(topic=topic))
                of_topic.group_filter_data[found.group] = self._stored(found)
        return config_tables.ConsumerFilterTable(filter_data_by_topic=topics)

    def load(self, stored: config_tables.ConsumerFilterTable, now_ms: int) -> None:
        """Replace the table by the stored one. No client is connected yet: all filters are dead."""
        self._groups = {}
        for topic, of_topic in stored.filter_data_by_topic.items():
            for group, data in of_topic.group_filter_data.items():
                sql = _compiled(group, topic, data.expression_type, data.expression or "")
                if sql is not None:
                    self._groups.setdefault(group, {})[topic] = ConsumerFilter(
                        group=group,
                        topic=topic,
                        sql=sql,
                        client_version=data.client_version,
                        born_ms=data.born_time,
                        dead_ms=data.dead_time or max(data.born_time, now_ms - DEAD_BEFORE_LOAD_MS),
                    )

    # --- inside -----------------------------------------------------------------------------------

    def _register(self, group: str, data: SubscriptionData, now_ms: int) -> None:
        topic, version = data.topic, data.sub_version
        old = self.get(topic, group)
        if old is not None:
            if not old.is_dead and version <= old.client_version:
                # subscription_lint reports members that differ.
                return
            if old.sql.text == data.sub_string and data.expression_type == SQL92:
                old.client_version = version
                old.dead_ms = 0
                return
        sql = _compiled(group, topic, data.expression_type, data.sub_string)
        if sql is not None:
            logger.info("filter of %s on %s is now: %s", group, topic, sql.text)
            self._groups.setdefault(group, {})[topic] = ConsumerFilter(
                group=group, topic=topic, sql=sql, client_version=version, born_ms=now_ms
            )
        elif old is not None:
            logger.warning("removed the filter of %s on %s: the new one is invalid", group, topic)
            del self._groups[group][topic]
            if not self._groups[group]:
                del self._groups[group]

    def _mark_dead(self, found: ConsumerFilter, now_ms: int) -> None:
        if not found.is_dead:
            logger.info("filter of %s on %s is dead", found.group, found.topic)
            # If the clock was set back, the filter must still count as dead.
            found.dead_ms = max(now_ms, found.born_ms)

    def _stored(self, found: ConsumerFilter) -> config_tables.ConsumerFilterData:
        return config_tables.ConsumerFilterData(
            consumer_group=found.group,
            topic=found.topic,
            expression=found.sql.text,
            expression_type=SQL92,
            born_time=found.born_ms,
            dead_time=found.dead_ms,
            dead=found.is_dead,
            client_version=found.client_version,
            bloom_filter_data=config_tables.BloomFilterData(
                bit_num=self._bloom.bit_count,
                bit_pos=list(self._bloom.positions(f"{found.group}#{found.topic}")),
            ),
        )


def _compiled(group: str, topic: str, kind: str | None, expression: str) -> SqlFilter | None:
    # At debug level: each heartbeat repeats it, and the client gets 23 or 27.
    if kind != SQL92:
        logger.debug("filter of %s on %s: the type %s is unknown", group, topic, kind)
        return None
    try:
        return compile_sql(expression)
    except FilterSyntaxError as error:
        logger.debug("filter of %s on %s: %s", group, topic, error)
        return None
