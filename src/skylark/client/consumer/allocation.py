"""Allocation strategies: how the members of a group share the queues of a topic.

Each member computes its share. For 8 queues and 3 members:

==========================  ====================================================================
``AVG``                     runs of neighbours: 012, 345, 67
``AVG_BY_CIRCLE``           one by one, in turn: 036, 147, 25
``CONFIG``                  the configured queues, even if other members read them too
``MACHINE_ROOM``            only queues of brokers ``<room>@<name>`` in given rooms, in runs of
                            equal length, the rest one by one: 016, 237, 45
``MACHINE_ROOM_NEARBY-x``   queues of the member's room by strategy x among its members; queues of
                            rooms without members among all
``CONSISTENT_HASH``         each queue to the next member on a hash ring, so that few queues move
                            when a member joins or leaves
==========================  ====================================================================

All members must use the same strategy and get the same lists in the same order: queues by (topic,
broker, id), members as strings. Then every queue has exactly one owner, except with ``CONFIG``, and
where ``MACHINE_ROOM`` excludes rooms. A member that is not in the list gets no queues, because the
brokers do not know it yet.

Counterpart of Java's ``AllocateMessageQueueStrategy`` and its classes, with the same results.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, runtime_checkable

from skylark.core.errors import ClientError
from skylark.wire.bodies.common_body import MessageQueue

VIRTUAL_NODES: Final = 10


@runtime_checkable
class Allocation(Protocol):
    """An allocation strategy; applications may implement others."""

    @property
    def name(self) -> str:
        """The name that brokers and tools show."""

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        members: Sequence[str],
    ) -> list[MessageQueue]:
        """The share of ``client_id``; ``queues`` and ``members`` are sorted."""


class Averagely:
    """AVG."""

    name = "AVG"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        size, rest = divmod(len(queues), len(members))
        index = members.index(client_id)
        start = index * size + min(index, rest)
        return list(queues[start : start + size + (index < rest)])


class ByCircle:
    """AVG_BY_CIRCLE."""

    name = "AVG_BY_CIRCLE"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        return list(queues[members.index(client_id) :: len(members)])


class ByConfig:
    """CONFIG: always the same queues, of any topic."""

    name = "CONFIG"

    def __init__(self, queues: Collection[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self._queues)


class ByMachineRoom:
    """MACHINE_ROOM."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        near = [queue for queue in queues if self._has(queue.broker_name)]
        size, rest = divmod(len(near), len(members))
        index = members.index(client_id)
        share = near[index * size : (index + 1) * size]
        if index < rest:
            share.append(near[index + size * len(members)])
        return share

    def _has(self, broker_name: str) -> bool:
        parts = broker_name.rstrip("@").split("@")
        return len(parts) == 2 and parts[0] in self._rooms


class NearbyMachineRoom:
    """MACHINE_ROOM_NEARBY: two functions return the rooms of queues and members."""

    def __init__(
        self,
        inner: Allocation,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_member: Callable[[str], str],
    ) -> None:
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"
        self._inner = inner
        self._room_of_queue = room_of_queue
        self._room_of_member = room_of_member

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_room(queue, self._room_of_queue(queue)), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in members:
            members_of.setdefault(_room(member, self._room_of_member(member)), []).append(member)
        mine = self._room_of_member(client_id)
        share: list[MessageQueue] = []
        if near := queues_of.pop(mine, None):
            share += self._inner.allocate(group, client_id, near, members_of[mine])
        for room in sorted(queues_of):
            if room not in members_of:
                share += self._inner.allocate(group, client_id, queues_of[room], members)
        return share


def _room(what: object, room: str) -> str:
    if not room:
        raise ClientError(f"the machine room of {what} is not known")
    return room


def md5_hash(text: str) -> int:
    """The position of a text on the ring: the first four bytes of its MD5."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4])


class ConsistentHash:
    """CONSISTENT_HASH. Each member is on the ring ``virtual_nodes`` times."""

    name = "CONSISTENT_HASH"

    def __init__(
        self, virtual_nodes: int = VIRTUAL_NODES, ring_hash: Callable[[str], int] = md5_hash
    ) -> None:
        if virtual_nodes < 1:
            raise ClientError(f"a ring needs at least one node per member, not {virtual_nodes}")
        self._virtual_nodes = virtual_nodes
        self._hash = ring_hash

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in members:
            return []
        ring = {
            self._hash(f"{member}-{node}"): member
            for member in members
            for node in range(self._virtual_nodes)
        }
        places = sorted(ring)
        share = []
        for queue in queues:
            place = bisect_left(places, self._hash(_ring_key(queue)))
            if ring[places[place % len(places)]] == client_id:
                share.append(queue)
        return share


def _ring_key(queue: MessageQueue) -> str:
    """A queue as Java prints it."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )
