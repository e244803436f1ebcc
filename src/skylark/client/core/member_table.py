"""The producers and consumers of a client instance, and the schedule of their rebalancing.

A *member* is a producer or a consumer that was started; an instance has each group once. The
instance calls its members on the control loop only; a member hands over to the loop of its
application. Group names are those that brokers know, with their namespace.

:class:`RebalanceLoop` is one task per instance. It waits for the interval or for a wake-up, and
lets every consumer rebalance: after 20 s, or after 1 s while a consumer does not have exactly the
queues that it should have, and never twice within a second. A starting consumer, a changed group
(40), a changed route and a new connection wake it. Counterpart of Java's ``RebalanceService``, and
of ``producerTable`` and ``consumerTable`` of ``MQClientInstance``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeVar

from skylark.core.clock import Clock
from skylark.core.errors import ClientStateError
from skylark.wire.bodies.heartbeat import ConsumerData

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 20.0
INTERVAL_UNBALANCED_S: Final = 1.0
INTERVAL_MIN_S: Final = 1.0


class ProducerMember(Protocol):
    """A producer, as its instance uses it; :mod:`skylark.client.core.broker_request_handlers` has
    what brokers may request from it besides."""

    @property
    def group(self) -> str:
        """The group name that brokers know."""

    def topics(self) -> Collection[str]:
        """The topics whose routes the instance refreshes."""


class RebalanceMember(Protocol):
    """A consumer that shares queues with others."""

    async def rebalance(self) -> bool:
        """Take up and give up queues; whether it has exactly those that it should have."""


class ConsumerMember(ProducerMember, RebalanceMember, Protocol):
    """A consumer, as its instance uses it."""

    def consumer_data(self) -> ConsumerData:
        """The group with its subscriptions, for heartbeats."""

    async def persist_offsets(self) -> None:
        """Save the committed offsets; called every few seconds."""


MemberT = TypeVar("MemberT", ProducerMember, ConsumerMember)


class MemberTable:
    """The producers and consumers of one instance; on the control loop."""

    def __init__(self) -> None:
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}

    def producer_groups(self) -> Iterable[str]:
        return tuple(self.producers)

    def consumer_data(self) -> Iterable[ConsumerData]:
        return [member.consumer_data() for member in self.consumers.values()]

    def topics(self) -> list[str]:
        """The topics of all members, each once."""
        members = (*self.producers.values(), *self.consumers.values())
        return list(dict.fromkeys(topic for member in members for topic in member.topics()))

    def consumes(self, topic: str) -> bool:
        """Whether one of the consumers reads this topic."""
        return any(topic in member.topics() for member in self.consumers.values())


def add_member(table: dict[str, MemberT], member: MemberT, kind: str) -> None:
    """Raises ClientStateError if the group has a producer or consumer here already."""
    if member.group in table:
        raise ClientStateError(
            f"the {kind} group[{member.group}] has been created before, specify another name",
            hint="one client instance can have a group only once: give another instance_name",
        )
    table[member.group] = member


def remove_member(table: dict[str, MemberT], member: MemberT) -> bool:
    """Whether it was there."""
    if table.get(member.group) is not member:
        return False
    del table[member.group]
    return True


class RebalanceLoop:
    """The rebalance rounds of one client instance."""

    def __init__(self, members: Callable[[], Iterable[RebalanceMember]], clock: Clock) -> None:
        self._members = members
        self._clock = clock
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Rebalance soon; on the control loop."""
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled."""
        interval_s = INTERVAL_S
        last = -INTERVAL_MIN_S + self._clock.monotonic()
        while True:
            await self._wait(interval_s)
            pause_s = last + INTERVAL_MIN_S - self._clock.monotonic()
            if pause_s > 0:
                await self._clock.sleep(pause_s)
            self._woken.clear()
            last = self._clock.monotonic()
            interval_s = INTERVAL_S if await self.round() else INTERVAL_UNBALANCED_S

    async def round(self) -> bool:
        """Every consumer once; whether all of them are balanced."""
        balanced = True
        for member in tuple(self._members()):
            try:
                balanced &= await member.rebalance()
            except Exception:
                logger.exception("%r cannot rebalance", member)
                balanced = False
        return balanced

    async def _wait(self, interval_s: float) -> None:
        try:
            await self._clock.wait_for(self._woken.wait(), interval_s)
        except TimeoutError:
            return
