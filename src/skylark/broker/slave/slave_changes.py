"""Groups and offsets that changed at a slave while its master was away.

Consumers use a slave only while there is no master. A group may then be created at the slave, and
groups commit offsets there. Java's slave overwrites both when it copies the tables of the master
that has come back; messages are consumed twice. This slave sends its changes to the master first:
new groups (200), then offsets (15), because the master refuses offsets of a group that it does not
know. Both classes compare the table of the slave with what the slave copied last::

    copied from the master    orders@billing  queue 0: 100
    committed here since                      queue 0: 140
    the master, back again                    queue 0: 100    -> the slave sends 140
                               or, by then,   queue 0: 150    -> nothing to send

An offset that did not grow here is the master's, also if it went back: an administrator has reset
it. A group that was in the last copy and is missing in the next was deleted at the master, and is
deleted here.

**On disk** ``slaveOffset.json`` holds the grown offsets and the names of the new groups. It is
written as often as the offsets are. A crash loses the commits of the last few seconds, as at a
master: these messages are consumed twice. A new group without offsets may be lost; the next
heartbeat of its consumers creates it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from skylark.broker.groups.consumer_offsets import Offsets, OffsetTable
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.core.names import BUILT_IN_GROUPS
from skylark.store.config_files import ConfigFile
from skylark.store.config_tables import TOPIC_GROUP_SEPARATOR, ConfigTable
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.slave_sync_body import ConsumerOffsetSerializeWrapper
from skylark.wire.fields import Int64


class SlaveOffsetTable(ConfigTable, kw_only=True):
    """``slaveOffset.json``: what changed at this slave and is not at its master yet."""

    offset_table: dict[str, dict[int, Int64]] = msgspec.field(default_factory=dict)
    new_groups: list[str] = msgspec.field(default_factory=list)


SLAVE_OFFSETS: Final = ConfigFile("slaveOffset.json", SlaveOffsetTable)


class Commit(NamedTuple):
    """The offset of a group in a queue."""

    key: str  # topic@group
    queue_id: int
    offset: int

    @property
    def topic(self) -> str:
        return self.key.partition(TOPIC_GROUP_SEPARATOR)[0]

    @property
    def group(self) -> str:
        return self.key.partition(TOPIC_GROUP_SEPARATOR)[2]


class SlaveCommits:
    """Offsets that were committed at the slave since its last copy; does no I/O."""

    def __init__(self, offsets: OffsetTable) -> None:
        self._offsets = offsets
        self._copied: dict[str, Offsets] = {}

    def load(self, grown: dict[str, Offsets]) -> None:
        """Restore the state after a restart; ``consumerOffset.json`` was loaded before."""
        self._remember_copied()
        for commit in _commits(grown):
            if commit.offset > self._offsets.get(commit.group, commit.topic, commit.queue_id):
                self._offsets.commit(commit.group, commit.topic, commit.queue_id, commit.offset)
            self._copied.get(commit.key, {}).pop(commit.queue_id, None)

    def snapshot(self) -> dict[str, Offsets]:
        """The grown offsets as a table."""
        table: dict[str, Offsets] = {}
        _put(table, self.grown())
        return table

    def grown(self) -> list[Commit]:
        """Offsets that were committed here since the last copy."""
        return [
            commit
            for commit in _commits(self._offsets.dump().offset_table)
            if commit.offset > _offset(self._copied, commit)
        ]

    def missing_at(self, master: ConsumerOffsetSerializeWrapper) -> list[Commit]:
        """The grown offsets that are ahead of the master's."""
        return [c for c in self.grown() if c.offset > _offset(master.offset_table, c)]

    def take(self, master: ConsumerOffsetSerializeWrapper, sent: list[Commit]) -> None:
        """Copy the offsets of the master; ``sent`` went to the master after it gave its table.

        What was committed here meanwhile stays, and is sent the next time.
        """
        table = master.offset_table
        _put(table, sent)
        later = self.missing_at(master)
        before = [commit._replace(offset=_offset(table, commit)) for commit in later]
        _put(table, later)
        self._offsets.merge(master)
        self._remember_copied()
        _put(self._copied, before)

    def _remember_copied(self) -> None:
        table = self._offsets.dump().offset_table
        self._copied = {key: dict(offsets) for key, offsets in table.items()}


class NewGroups:
    """Groups that were created at the slave and are not in its last copy; does no I/O."""

    def __init__(self, groups: GroupTable) -> None:
        self._groups = groups
        self._copied: set[str] = set()

    def load(self, names: Iterable[str]) -> None:
        """Restore the state after a restart; ``subscriptionGroup.json`` was loaded before."""
        self._copied = {group.group_name for group in self._groups}.difference(names)

    def names(self) -> list[str]:
        """The new groups, whether or not the master has got them since the last copy."""
        return [group.group_name for group in self.missing_at({})]

    def missing_at(
        self, master: Mapping[str, SubscriptionGroupConfig]
    ) -> list[SubscriptionGroupConfig]:
        """The new groups that the master does not have."""
        known = self._copied.union(BUILT_IN_GROUPS, master)
        return [group for group in self._groups if group.group_name not in known]

    def take(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        bans: Mapping[str, dict[str, int]],
        version: DataVersion,
        sent: Collection[str],
    ) -> None:
        """Copy the groups of the master, to which the groups ``sent`` were sent before.

        A group that was created here meanwhile stays, and is sent the next time. A group that was
        sent and that the master does not have was refused: it is deleted here.
        """
        later = {
            group.group_name: group
            for group in self.missing_at(table)
            if group.group_name not in sent
        }
        if version != self._groups.version:
            self._groups.copy_from({**table, **later}, bans, version)
        self._copied = set(table)


def _commits(table: dict[str, Offsets]) -> Iterator[Commit]:
    for key, offsets in table.items():
        for queue_id, offset in offsets.items():
            yield Commit(key, queue_id, offset)


def _put(table: dict[str, Offsets], commits: Iterable[Commit]) -> None:
    for commit in commits:
        table.setdefault(commit.key, {})[commit.queue_id] = commit.offset


def _offset(table: dict[str, Offsets], commit: Commit) -> int:
    return table.get(commit.key, {}).get(commit.queue_id, -1)
