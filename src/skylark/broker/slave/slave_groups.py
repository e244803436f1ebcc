"""Groups that were born at a slave, until its master has them.

A group springs up at whatever broker its first consumer meets. If the master is away, that is the
slave. When the master is back it knows nothing of the group: to copy its table as it is would make
an end of the group here, under the hands of its consumers, whose commits are refused then; and what
they had committed before would be refused by the master. So the master is told of the group first,
like a master that an administrator tells (200), and of the offsets after that
(:mod:`skylark.broker.slave.slave_commits`). Java's slave forgets both.

A group is new if it is here and was not in the last copy of the master's table. One that was, and
is not in the next, was deleted there, and goes.

**On disk** the names stand in ``slaveOffset.json`` beside the offsets. A group without offsets may
be lost by a crash: its consumers will bring it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from skylark.broker.groups.subscription_groups import GroupTable
from skylark.core.names import BUILT_IN_GROUPS
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import SubscriptionGroupConfig


class NewGroups:
    """Compares the groups of a slave with what it copied; knows no master."""

    def __init__(self, groups: GroupTable) -> None:
        self._groups = groups
        self._copied: set[str] = set()

    def load(self, names: Iterable[str]) -> None:
        """Go on after a restart; ``subscriptionGroup.json`` was loaded before."""
        self._copied = {group.group_name for group in self._groups}.difference(names)

    def names(self) -> list[str]:
        """The groups that the master does not know yet, or did not when it was asked last."""
        return [group.group_name for group in self.missing_at({})]

    def missing_at(
        self, master: Mapping[str, SubscriptionGroupConfig]
    ) -> list[SubscriptionGroupConfig]:
        """Of what is new, what the master is to be told."""
        known = self._copied.union(BUILT_IN_GROUPS, master)
        return [group for group in self._groups if group.group_name not in known]

    def take(
        self,
        table: Mapping[str, SubscriptionGroupConfig],
        bans: Mapping[str, dict[str, int]],
        version: DataVersion,
        told: Collection[str],
    ) -> None:
        """Copy the groups of the master, which was told some before.

        What was born here meanwhile stays, and is told the next time. What the master was told and
        does not have, it did not want.
        """
        later = {
            group.group_name: group
            for group in self.missing_at(table)
            if group.group_name not in told
        }
        if version != self._groups.version:
            self._groups.copy_from({**table, **later}, bans, version)
        self._copied = set(table)
