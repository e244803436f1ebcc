"""Sends heartbeats: to all brokers periodically, to one broker as soon as its connection is new.

A heartbeat (34) lists the producer and consumer groups of a client with their subscriptions. A
client without groups sends none. A client with producers only sends it to masters; one with
consumers also to slaves, because consumers read from them.

A broker forgets a client when the connection of its heartbeats ends. So, on the control loop:

* a broker gets a heartbeat as soon as a connection to it is made, and then the members rebalance,
  because the broker may not have known them;
* after a connection is lost or cannot be made, the broker gets a heartbeat every second until it
  responds or is no longer in any route. Java's client waits for the next pull or the next round.

The brokers of a round get their heartbeats concurrently, so one that is down delays no other. If
another round is requested meanwhile, it follows (Java skips it, and with it perhaps a new
subscription, for half a minute).

**Version 2** (:class:`HeartbeatPlan`) leaves out the subscriptions if the broker has acknowledged
their *fingerprint*: then only the fingerprint is sent (``withoutSub``). The response decides about
the next heartbeat: after ``IS_SUB_CHANGE`` it is whole. It is also whole after a change of the
assignment and on a new connection, because the broker may have restarted.

Counterpart of Java's ``MQClientInstance.prepareHeartbeatData``, ``sendHeartbeatToBrokerV2`` and
``sendHeartbeatToAllBrokerWithLock``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from skylark.client.core.broker_calls import BrokerCalls, HeartbeatAnswer
from skylark.client.core.route_cache import MASTER_ID, RouteTable
from skylark.client.metrics import ClientMetrics
from skylark.core.clock import Clock
from skylark.core.errors import ConfigError, GoAwayError, SkylarkError, TransportError
from skylark.core.lifecycle import Tasks, join
from skylark.core.names import parse_address
from skylark.wire.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    heartbeat_fingerprint,
)


def heartbeat_targets(
    brokers: Mapping[str, Mapping[int, str]], *, with_consumers: bool
) -> list[str]:
    """The addresses that get a heartbeat, each once."""
    found = (
        address
        for addresses in brokers.values()
        for broker_id, address in addresses.items()
        if with_consumers or broker_id == MASTER_ID
    )
    return list(dict.fromkeys(found))


class HeartbeatPlan:
    """Decides which heartbeat each broker gets; sends nothing."""

    def __init__(self, client_id: str, *, use_v2: bool = False) -> None:
        self._client_id = client_id
        self._use_v2 = use_v2
        self._supports_v2: set[str] = set()
        self._acknowledged: dict[str, int] = {}  # address -> fingerprint

    def whole(
        self, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]
    ) -> HeartbeatData | None:
        """The heartbeat with all groups; None if there are none."""
        heartbeat = HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=group) for group in producer_groups],
            consumer_data_set=list(consumers),
        )
        if not heartbeat.producer_data_set and not heartbeat.consumer_data_set:
            return None
        if self._use_v2:
            heartbeat.heartbeat_fingerprint = heartbeat_fingerprint(heartbeat)
        return heartbeat

    def body_for(self, address: str, whole: HeartbeatData) -> HeartbeatData:
        """The heartbeat for one broker: everything, or only the fingerprint."""
        if not self._use_v2 or address not in self._supports_v2:
            return whole
        if self._acknowledged.get(address) != whole.heartbeat_fingerprint:
            return whole
        consumers = [
            msgspec.structs.replace(consumer, subscription_data_set=[])
            for consumer in whole.consumer_data_set
        ]
        return msgspec.structs.replace(whole, consumer_data_set=consumers, without_sub=True)

    def answered(self, address: str, sent: HeartbeatData, answer: HeartbeatAnswer) -> None:
        """Record the response of a broker to ``sent``."""
        if not self._use_v2:
            return
        if answer.supports_v2:
            self._supports_v2.add(address)
        else:
            self._supports_v2.discard(address)
        if answer.sub_change or not answer.supports_v2:
            self._acknowledged.pop(address, None)
        else:
            self._acknowledged[address] = sent.heartbeat_fingerprint

    def forget(self, address: str) -> None:
        """Make the next heartbeat to this broker whole."""
        self._acknowledged.pop(address, None)

    def forget_all(self) -> None:
        """Make the next heartbeats to all brokers whole."""
        self._acknowledged.clear()


logger = logging.getLogger(__name__)

RECONNECT_INTERVAL_S: Final = 1.0


class Members(Protocol):
    """The groups that a heartbeat lists."""

    def producer_groups(self) -> Iterable[str]:
        """Names as brokers know them."""

    def consumer_data(self) -> Iterable[ConsumerData]:
        """The consumer groups with their subscriptions."""


class HeartbeatLink(Protocol):
    """The part of :class:`~skylark.client.core.broker_connections.BrokerConnections` used here."""

    @property
    def calls(self) -> BrokerCalls:
        """Typed requests to brokers."""

    def connected(self, address: str) -> bool:
        """Whether there is a usable connection now."""


class Heartbeats:
    """The heartbeats of one client instance; a ``ChannelWatcher`` of its control link."""

    def __init__(
        self,
        plan: HeartbeatPlan,
        members: Members,
        routes: RouteTable,
        link: Callable[[], HeartbeatLink],
        *,
        clock: Clock,
        tasks: Tasks,
        rebalance: Callable[[], None],
        metrics: ClientMetrics | None = None,
    ) -> None:
        """``link`` gives that of the control loop, which is made after this object."""
        self._plan = plan
        self._members = members
        self._routes = routes
        self._link = link
        self._clock = clock
        self._tasks = tasks
        self._rebalance = rebalance
        self._metrics = metrics
        self._round: asyncio.Task[bool] | None = None
        self._again = False
        self._opening: set[str] = set()  # addresses with a heartbeat that waits for a connection
        self._reconnecting: set[str] = set()
        self._silent: set[str] = set()  # addresses whose failure was logged
        #: Addresses that answered GO_AWAY on a new connection, too: to open another one at once
        #: would bring the same answer, so they get their next heartbeat after a pause.
        self._sent_away: set[str] = set()
        #: Frame version of each broker's last answer; read from any thread.
        self.versions: dict[str, int] = {}

    async def send_all(self, *, whole: bool = False) -> bool:
        """Send a heartbeat to every broker; returns whether one of them accepted it.

        ``whole``: the subscriptions or the assignment have changed, so no broker gets the short
        form.
        """
        if whole:
            self._plan.forget_all()
        if self._round is not None and not self._round.done():
            self._again = True
        else:
            self._round = self._tasks.spawn(self._rounds(), name="heartbeats")
            self._round.add_done_callback(self._round_ended)
        return await join(self._round)

    async def _rounds(self) -> bool:
        while True:
            self._again = False
            taken = await self._send_round()
            if not self._again:
                return taken

    def _round_ended(self, ended: asyncio.Task[bool]) -> None:
        if self._round is ended:  # another one may have begun since
            self._round = None

    async def _send_round(self) -> bool:
        whole = self._whole()
        if whole is None:
            return False
        taken = await asyncio.gather(*(self._send(target, whole) for target in self._targets()))
        return any(taken)

    async def send_to(self, address: str) -> bool:
        """Send a heartbeat to one broker; returns whether it accepted it."""
        whole = self._whole()
        return whole is not None and await self._send(address, whole)

    def _whole(self) -> HeartbeatData | None:
        return self._plan.whole(self._members.producer_groups(), self._members.consumer_data())

    async def _send(self, address: str, whole: HeartbeatData) -> bool:
        body = self._plan.body_for(address, whole)
        if not self._link().connected(address):
            self._opening.add(address)
        try:
            answer = await self._link().calls.heartbeat(address, body)
        except SkylarkError as error:
            level = logging.DEBUG if address in self._silent else logging.WARNING
            logger.log(level, "cannot send a heartbeat to %s: %s", address, error)
            self._count(address, taken=False)
            self._silent.add(address)
            if isinstance(error, GoAwayError):
                self._sent_away.add(address)
            if isinstance(error, (TransportError, GoAwayError)):
                self._begin_reconnect(address, RECONNECT_INTERVAL_S)
            return False
        except Exception:  # such as an error of a hook; the other brokers get theirs
            logger.exception("cannot send a heartbeat to %s", address)
            self._count(address, taken=False)
            return False
        finally:
            self._opening.discard(address)
        self._sent_away.discard(address)
        if address in self._silent:
            self._silent.discard(address)
            logger.info("broker %s accepts heartbeats again", address)
        self._count(address, taken=True)
        self.versions[address] = answer.version
        self._plan.answered(address, body, answer)
        return True

    def _count(self, address: str, *, taken: bool) -> None:
        if self._metrics is not None:
            self._metrics.heartbeat(address, taken=taken)

    def drop(self, addresses: Iterable[str]) -> None:
        """Forget brokers that are no longer in any route."""
        for address in addresses:
            self._plan.forget(address)
            self._silent.discard(address)
            self._sent_away.discard(address)
            self.versions.pop(address, None)

    # ---- connection events ---------------------------------------------------------------------

    def channel_opened(self, address: str) -> None:
        target = self._target_at(address)
        if target is None:
            return
        self._plan.forget(target)
        if target in self._opening:
            self._opening.discard(target)  # the heartbeat that opened it is its first
        elif (
            target not in self._sent_away
        ):  # also during another heartbeat, which uses a connection that is being closed
            self._tasks.spawn(self._send_first(target), name=f"heartbeat {target}")

    async def _send_first(self, target: str) -> None:
        if await self.send_to(target):
            self._rebalance()

    def channel_lost(self, address: str) -> None:
        target = self._target_at(address)
        if target is None:
            return
        self._plan.forget(target)
        self._begin_reconnect(target, 0.0)

    def _begin_reconnect(self, target: str, pause_s: float) -> None:
        if target not in self._reconnecting and not self._tasks.closed:
            self._reconnecting.add(target)
            self._tasks.spawn(self._reconnect(target, pause_s), name=f"reconnect {target}")

    async def _reconnect(self, target: str, pause_s: float) -> None:
        try:
            await self._clock.sleep(pause_s)
            while target in self._targets() and self._needs_heartbeat(target):
                if await self.send_to(target):
                    self._rebalance()
                    return
                await self._clock.sleep(RECONNECT_INTERVAL_S)
        finally:
            self._reconnecting.discard(target)

    def _needs_heartbeat(self, target: str) -> bool:
        return target in self._sent_away or not self._link().connected(target)

    def _targets(self) -> list[str]:
        whole = self._whole()
        if whole is None:
            return []
        return heartbeat_targets(self._routes.brokers, with_consumers=bool(whole.consumer_data_set))

    def _target_at(self, address: str) -> str | None:
        """The address as the route writes it; None if that broker gets no heartbeats."""
        if self._tasks.closed:
            return None
        for target in self._targets():
            with contextlib.suppress(ConfigError):  # not an address: it has no connection either
                if str(parse_address(target)) == address:
                    return target
        return None
