"""Subscription groups: the configuration of the consumer groups of this broker.

A group is a :class:`SubscriptionGroupConfig`; the objects in the table are never changed, only
replaced. Which groups have members is in :mod:`skylark.broker.groups.consumer_table`.

**Created by use.** Pulls, heartbeats and most requests call :meth:`GroupTable.find`, which with
``autoCreateSubscriptionGroup`` creates an unknown group with the defaults. Commits and resets of
offsets call :meth:`GroupTable.get`, which creates nothing.

**Bans.** An administrator can forbid a group to read a topic (353). The table of bans has a number
per group and topic; its bit 2 is the ban, other bits are unused.

Every change raises the version of the table and is published (``changes``), because the table must
be written to disk; name servers do not know groups. Unlike Java we do both also when a ban is
lifted (Java also lifts the bans of that group on all other topics) and when a group is stopped
because it reads too slowly: otherwise a restart would undo them silently.

The table is bounded by ``groupCountMax``. Counterpart of Java's ``SubscriptionGroupManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from skylark.broker.live_settings import LiveSettings
from skylark.broker.table_pages import PageRequest, page_of
from skylark.broker.topics.attributes import GROUP_ATTRIBUTES, altered
from skylark.broker.topics.topic_table import QUEUE_COUNT_MAX
from skylark.core import names
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, InvalidParameterError
from skylark.core.subscribers import Subscribers
from skylark.store import config_tables
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.slave_sync_body import SubscriptionGroupWrapper

logger = logging.getLogger(__name__)

_READ_BAN: Final = 1 << 2


class GroupTable:
    """The groups of one broker."""

    def __init__(self, live: LiveSettings, clock: TimeSource) -> None:
        self._live = live
        self._clock = clock
        self._groups = {
            name: SubscriptionGroupConfig(group_name=name) for name in names.BUILT_IN_GROUPS
        }
        self._bans: dict[str, dict[str, int]] = {}
        #: Publishes the version of the table after every change.
        self.changes: Subscribers[DataVersion] = Subscribers()
        #: Publishes the name of each group that was deleted.
        self.deleted: Subscribers[str] = Subscribers()
        self.version = DataVersion(timestamp=clock.now_ms())

    # --- reading ---

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._groups.values())

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group, created if it is unknown and settings allow; None: it does not exist."""
        found = self._groups.get(group)
        return self._auto_create(group) if found is None else found

    def _auto_create(self, group: str) -> SubscriptionGroupConfig | None:
        config = self._live.current
        allowed = config.auto_create_subscription_group or (
            config.enable_create_sys_group and names.is_system_group(group)
        )
        if not allowed or names.group_problem(group) is not None:
            return None
        if len(self._groups) >= config.group_count_max:
            logger.warning("cannot create group %s: %s", group, self._limit_text)
            return None
        created = SubscriptionGroupConfig(group_name=group)
        self._groups[group] = created
        logger.info("created group %s for its first consumer", group)
        self._changed()
        return created

    # --- changed by administrators ---

    def update(self, requested: SubscriptionGroupConfig) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        self.update_all([requested])

    def update_all(self, requested: list[SubscriptionGroupConfig]) -> None:
        """Create or replace several groups (225): all of them or none."""
        for config in requested:
            if (problem := names.group_problem(config.group_name)) is not None:
                raise InvalidParameterError(problem)
            if config.retry_queue_nums > QUEUE_COUNT_MAX:
                raise InvalidParameterError(
                    f"{config.retry_queue_nums} retry queues for group {config.group_name}:"
                    f" at most {QUEUE_COUNT_MAX} are possible"
                )
        staged: dict[str, SubscriptionGroupConfig] = {}
        for config in requested:
            name = config.group_name
            current = staged.get(name) or self._groups.get(name)
            attributes = altered(
                GROUP_ATTRIBUTES, None if current is None else current.attributes, config.attributes
            )
            staged[name] = msgspec.structs.replace(config, attributes=attributes)
        if len(self._groups.keys() | staged.keys()) > self._live.current.group_count_max:
            raise BrokerError(f"too many groups: {self._limit_text}")
        if requested:
            logger.info("set groups: %s", ", ".join(staged))
            self._groups.update(staged)
            self._changed(len(requested))

    def delete(self, group: str) -> bool:
        """DELETE_SUBSCRIPTIONGROUP (207), without its offsets; whether there was such a group."""
        banned = self._bans.pop(group, None) is not None
        existed = self._groups.pop(group, None) is not None
        if existed or banned:
            logger.info("deleted group %s", group)
            self._changed()
        if existed:
            self.deleted.publish(group)
        return existed

    def stop_consuming(self, group: str) -> None:
        """Set ``consumeEnable`` to false, until an administrator sets it again."""
        found = self._groups.get(group)
        if found is not None and found.consume_enable:
            logger.warning("set consumeEnable=false for group %s: it is too far behind", group)
            self._groups[group] = msgspec.structs.replace(found, consume_enable=False)
            self._changed()

    # --- bans ---

    def may_read(self, group: str, topic: str) -> bool:
        bans = self._bans.get(group)
        return bans is None or not max(0, bans.get(topic, 0)) & _READ_BAN

    def set_may_read(self, group: str, topic: str, readable: bool) -> None:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""
        if self.may_read(group, topic) == readable:
            return
        if group not in self._bans and len(self._bans) >= self._live.current.group_count_max:
            raise BrokerError(f"too many groups with bans: {len(self._bans)}")
        bans = self._bans.setdefault(group, {})
        if len(bans) >= self._live.current.topic_count_max and topic not in bans:
            raise BrokerError(f"too many bans of group {group}: {len(bans)}")
        logger.info("group %s may%s read %s", group, "" if readable else " not", topic)
        bits = max(0, bans.get(topic, 0)) ^ _READ_BAN
        if bits:
            bans[topic] = bits
        else:
            del bans[topic]
            if not bans:
                del self._bans[group]
        self._changed()

    # --- for slaves and the disk ---

    def page(self, request: PageRequest) -> SubscriptionGroupWrapper:
        """The body of a response to 201 (GET_ALL_SUBSCRIPTIONGROUP_CONFIG): a page, or all."""
        config = self._live.current
        groups, bans = self._groups, self._bans
        if config.enable_split_metadata and not request.is_whole:
            count_max = config.split_metadata_size
            chosen = page_of(groups.keys(), self.version, request, count_max=count_max)
            groups = {name: groups[name] for name in chosen}
            bans = {name: bans[name] for name in chosen if name in bans}
        return SubscriptionGroupWrapper(
            subscription_group_table=groups, forbidden_table=bans, data_version=self.version
        )

    def snapshot(self) -> config_tables.SubscriptionGroupTable:
        """The content of ``subscriptionGroup.json``, independent of later changes."""
        return config_tables.SubscriptionGroupTable(
            subscription_group_table=dict(self._groups),
            forbidden_table={group: dict(bans) for group, bans in self._bans.items()},
            data_version=self.version,
        )

    def load(self, table: config_tables.SubscriptionGroupTable) -> None:
        """Load ``subscriptionGroup.json``; built-in groups that it lacks stay."""
        self._groups.update(table.subscription_group_table)
        self._bans.update(table.forbidden_table)
        if table.data_version != DataVersion():
            self.version = table.data_version

    def copy_from(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        bans: Mapping[str, dict[str, int]],
        version: DataVersion,
    ) -> None:
        """Copy the groups of a master, and its version; built-in groups stay."""
        built_in = {n: c for n, c in self._groups.items() if n in names.BUILT_IN_GROUPS}
        gone = self._groups.keys() - built_in.keys() - table.keys()
        self._groups = {**built_in, **table}
        self._bans = dict(bans)
        self.version = version
        self.changes.publish(self.version)
        for group in gone:
            self.deleted.publish(group)

    # --- inside ---

    @property
    def _limit_text(self) -> str:
        return f"there are {len(self._groups)}, the limit: raise groupCountMax"

    def _changed(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.version = self.version.next(self._clock.now_ms())
        self.changes.publish(self.version)
