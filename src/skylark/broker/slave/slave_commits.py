"""Offsets that were committed at a slave, while its master was away, until the master has them.

Consumers commit to the master; only if there is none, to a slave. Java's slave forgets that when
it copies the offsets of the master that came back, and messages are consumed twice. Ours tells the
master first. A :class:`SlaveCommits` knows what a slave had copied last, and so what grew since::

    copied from the master    orders@billing  queue 0: 100
    committed here since                      queue 0: 140
    the master, back again                    queue 0: 100    -> is told 140
                               or, by then,   queue 0: 150    -> is not

What did not grow here is the master's, also if it went back: an administrator has sent the group
there.

**On disk** ``slaveOffset.json`` holds what grew, and the groups that are new
(:mod:`skylark.broker.slave.slave_groups`). It is written as often as the offsets are. A crash loses
a few seconds of commits, as at a master: these messages are consumed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from skylark.broker.groups.consumer_offsets import Offsets, OffsetTable
from skylark.store.config_files import ConfigFile
from skylark.store.config_tables import TOPIC_GROUP_SEPARATOR, ConfigTable
from skylark.wire.bodies.slave_sync_body import ConsumerOffsetSerializeWrapper
from skylark.wire.fields import Int64


class SlaveOffsetTable(ConfigTable, kw_only=True):
    """``slaveOffset.json``: what grew at this slave and is not at its master yet."""

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
    """Compares the offsets of a slave with what it copied; knows neither clock nor master."""

    def __init__(self, offsets: OffsetTable) -> None:
        self._offsets = offsets
        self._copied: dict[str, Offsets] = {}

    def load(self, grown: dict[str, Offsets]) -> None:
        """Go on after a restart; ``consumerOffset.json`` was loaded before."""
        self._note_copied()
        for commit in _commits(grown):
            if commit.offset > self._here(commit):
                self._offsets.commit(commit.group, commit.topic, commit.queue_id, commit.offset)
            self._copied.get(commit.key, {}).pop(commit.queue_id, None)

    def snapshot(self) -> dict[str, Offsets]:
        """What grew, as a table."""
        table: dict[str, Offsets] = {}
        for commit in self.grown():
            table.setdefault(commit.key, {})[commit.queue_id] = commit.offset
        return table

    def grown(self) -> list[Commit]:
        """What was committed here since the last copy."""
        return [
            commit
            for commit in _commits(self._offsets.dump().offset_table)
            if commit.offset > self._copied.get(commit.key, {}).get(commit.queue_id, -1)
        ]

    def missing_at(self, master: ConsumerOffsetSerializeWrapper) -> list[Commit]:
        """Of what grew, what the master is to be told."""
        return [c for c in self.grown() if c.offset > _offset(master.offset_table, c)]

    def take(self, master: ConsumerOffsetSerializeWrapper, told: list[Commit]) -> None:
        """Copy the offsets of the master, which was told some since it gave them.

        What was committed here meanwhile stays, and is told the next time.
        """
        table = master.offset_table
        for commit in told:
            table.setdefault(commit.key, {})[commit.queue_id] = commit.offset
        later = self.missing_at(master)
        before = [commit._replace(offset=_offset(table, commit)) for commit in later]
        for commit in later:
            table.setdefault(commit.key, {})[commit.queue_id] = commit.offset
        self._offsets.merge(master)
        self._note_copied()
        for commit in before:
            self._copied[commit.key][commit.queue_id] = commit.offset

    def _note_copied(self) -> None:
        table = self._offsets.dump().offset_table
        self._copied = {key: dict(offsets) for key, offsets in table.items()}

    def _here(self, commit: Commit) -> int:
        return self._offsets.get(commit.group, commit.topic, commit.queue_id)


def _commits(table: dict[str, Offsets]) -> Iterator[Commit]:
    for key, offsets in table.items():
        for queue_id, offset in offsets.items():
            yield Commit(key, queue_id, offset)


def _offset(table: dict[str, Offsets], commit: Commit) -> int:
    return table.get(commit.key, {}).get(commit.queue_id, -1)
