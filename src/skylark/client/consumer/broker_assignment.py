"""Assignment of queues by the brokers (``client_rebalance=False``), and the mode of a group.

A broker knows the members of a group and the *mode* in which it gets the messages of a topic: PULL
or POP, which administrators set (401). Asked for the queues of a member (400), it answers with the
queues of all brokers, each with the mode; in POP mode usually one entry for each broker. All
members then agree by construction, and the mode of a running group can be changed.

``mode`` of the push consumer says what it accepts: "pull" and "pop" insist (the start fails where
all brokers say otherwise, and if the mode changes later, the topic rests until it is changed back),
"auto" follows. ``set_mode=True`` sets the mode of each broker once, when the consumer starts, or
when the broker, the topic or the subscription is there; a broker that has the mode already is left
alone, with its ``popShareQueueNum``.

**Brokers that differ.** Each broker has a mode of its own, so one that was added later, or was down
when the mode was set, may have another one. All members ask the brokers in the order of their
names, so that they do not change from round to round, and use the first answer that they accept;
the brokers with another mode are logged.

While a topic is pulled, its pop retries (``%RETRY%group_topic``) are pulled too, so that nothing is
left behind by a change of mode. Runs on the control loop. Counterpart of
``getRebalanceResultFromBroker`` of Java's ``RebalanceImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from skylark.client.consumer.rate_limited_log import RateLimitedLog
from skylark.client.consumer.subscription import Subscription, make_subscription
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.pop_calls import PopCalls
from skylark.client.core.route_cache import MASTER_ID
from skylark.core.errors import ClientError, NoRouteError, SkylarkError
from skylark.core.names import is_retry_topic, pop_retry_topic, topic_of_pop_retry
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.pop_body import MessageQueueAssignment, MessageRequestMode

logger = logging.getLogger(__name__)

#: How a push consumer gets messages.
Mode: TypeAlias = Literal["pull", "pop", "auto"]

#: Strategies that brokers have.
BROKER_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")
_MODES: Final = {"pull": MessageRequestMode.PULL, "pop": MessageRequestMode.POP}


class Assignment(msgspec.Struct, frozen=True):
    """The share of a member in one topic."""

    pulls: frozenset[MessageQueue]
    pops: frozenset[MessageQueue]


class _Answer(msgspec.Struct, frozen=True):
    """What brokers say about the share of a member in one topic."""

    found: list[MessageQueueAssignment] | None  #: None: they cannot tell
    is_accepted: bool
    others: list[str]  #: the brokers that have another mode than the consumer


class BrokerAssignment:
    """Asks brokers for the queues of one member."""

    def __init__(
        self, instance: ClientInstance, group: str, strategy: str, mode: Mode, *, sets_mode: bool
    ) -> None:
        """``group`` as brokers know it."""
        self._instance = instance
        self.group = group
        self._strategy = strategy
        self._mode = mode
        self._sets_mode = sets_mode
        self._set_at: set[tuple[str, str]] = set()  # topics and brokers whose mode was set
        self._limited_log = RateLimitedLog(logger, instance.runtime.clock)
        self._is_starting = True  # then require_mode raises, and no error is logged

    async def query(self, topic: str) -> Assignment | None:
        """Our share of a topic; None: keep the old one."""
        try:
            await self._set_mode(topic)
            answer = await self._ask(topic)
        except SkylarkError as error:
            self._limited_log.failed(
                ("assignment", topic), error, "cannot get the queues of %s now", topic
            )
            return None
        if answer.found is None or (self._is_starting and not answer.is_accepted):
            return None
        share = split(answer.found)
        if answer.others and not self._is_starting:
            self._log_others(topic, answer)
        if answer.is_accepted:
            return share
        nothing: frozenset[MessageQueue] = frozenset()
        return Assignment(
            pulls=nothing if self._mode == "pop" else share.pulls,
            pops=nothing if self._mode == "pull" else share.pops,
        )

    async def _ask(self, topic: str, *, asks_all: bool = False) -> _Answer:
        """Ask the brokers of a topic one after the other until one accepts our mode, or all.

        Raises SkylarkError if none could be asked.
        """
        accepted: list[MessageQueueAssignment] | None = None
        refused: list[MessageQueueAssignment] | None = None
        others: list[str] = []
        failure: SkylarkError | None = None
        for name, address in await self._brokers(topic):
            try:
                found = await self._query(topic, address)
            except SkylarkError as error:
                failure = failure or error
                continue
            if found is None:
                continue
            if self._accepts(topic, found):
                accepted = accepted or found
                if not asks_all:
                    break
                continue
            if found:
                others.append(name)
            refused = refused or found
        if accepted is not None:
            return _Answer(accepted, is_accepted=True, others=others)
        if refused is None and failure is not None:
            raise failure
        return _Answer(refused, is_accepted=not others, others=others)

    async def _brokers(self, topic: str) -> list[tuple[str, str]]:
        """Names and addresses of the brokers of a topic, in order; raises NoRouteError."""
        lookup = self._instance.control_link.lookup
        await lookup.broker_of_topic(topic)  # looks the route up
        route = lookup.routes.get(topic)
        brokers = {} if route is None else route.brokers
        return [
            (name, addresses.get(MASTER_ID) or next(iter(addresses.values())))
            for name, addresses in sorted(brokers.items())
            if addresses
        ]

    async def _query(self, topic: str, address: str) -> list[MessageQueueAssignment] | None:
        instance = self._instance
        return await PopCalls(instance.control_link).query_assignment(
            address, topic, self.group, instance.client_id, self._strategy
        )

    def _accepts(self, topic: str, found: list[MessageQueueAssignment]) -> bool:
        """Whether an answer has the mode of the consumer."""
        if self._mode == "auto" or is_retry_topic(topic):
            return True
        if not found:  # only a group that pulls has members without queues
            return self._mode == "pull"
        share = split(found)
        return not (share.pops if self._mode == "pull" else share.pulls)

    # ---- the start -------------------------------------------------------------------------------

    async def require_mode(self, topics: Iterable[str]) -> None:
        """Set the mode if wanted, and raise ClientError where all brokers have another one.

        Brokers that differ from the others are logged. Topics without brokers are left to
        :meth:`query`.
        """
        for topic in topics:
            if is_retry_topic(topic) or self._mode == "auto":
                continue
            try:
                await self._set_mode(topic)
                answer = await self._ask(topic, asks_all=True)
            except NoRouteError:
                continue
            if not answer.is_accepted:
                text = self._wrong_mode(topic, answer.others, "it does not start")
                raise ClientError(text, hint=self._hint(topic))
            if answer.others:
                self._log_others(topic, answer)
        self._is_starting = False

    async def _set_mode(self, topic: str) -> None:
        """Set the mode of a topic at each broker, once, if this consumer sets modes."""
        if not self._sets_mode or is_retry_topic(topic):
            return
        link = self._instance.control_link
        route = await link.lookup.subscribe_route(topic)
        failures: list[tuple[str, SkylarkError]] = []
        for name in sorted(route.brokers):
            address = link.lookup.routes.master(name)
            if address is None or (topic, name) in self._set_at:
                continue
            try:
                await self._set_mode_at(topic, name, address)
            except SkylarkError as error:
                failures.append((name, error))
        if failures and not any((topic, name) in self._set_at for name in route.brokers):
            raise failures[0][1]
        for name, failure in failures:
            self._limited_log.failed(
                ("set mode", topic, name), failure, "cannot set the mode of %s at %s", topic, name
            )

    async def _set_mode_at(self, topic: str, name: str, address: str) -> None:
        found = await self._query(topic, address)
        if found is None:
            return  # the broker does not know the topic or the group yet: again in the next round
        if not self._accepts(topic, found):
            mode = _MODES[self._mode]
            await PopCalls(self._instance.control_link).set_request_mode(
                address, topic, self.group, mode
            )
        self._set_at.add((topic, name))

    # ---- brokers with another mode ---------------------------------------------------------------

    def _log_others(self, topic: str, answer: _Answer) -> None:
        consequence = "it consumes nothing of it until that is changed"
        if answer.is_accepted:
            consequence = "it follows the other brokers of the topic"
        self._limited_log.log(
            logging.ERROR,
            ("mode", topic),
            "%s: %s",
            self._wrong_mode(topic, answer.others, consequence),
            self._hint(topic),
        )

    def _wrong_mode(self, topic: str, broker_names: Iterable[str], consequence: str) -> str:
        other = "pop" if self._mode == "pull" else "pull"
        shown = self._instance.namespace.unwrap
        return (
            f"group {shown(self.group)} gets topic {shown(topic)} by {other}, by the setting of"
            f" {', '.join(broker_names)}, and this consumer has mode={self._mode!r}: {consequence}"
        )

    def _hint(self, topic: str) -> str:
        shown = self._instance.namespace.unwrap
        return (
            f"run `skylark group mode {shown(topic)} {shown(self.group)} {self._mode}`, or give"
            " set_mode=True, or mode='auto'"
        )


class PopPlane(Protocol):
    """Pops assignments; on the control loop, hands over."""

    def assign(self, topic: str, queues: Collection[MessageQueue]) -> bool:
        """Pop exactly these assignments of a topic; returns whether that is a change."""

    def retain_topics(self, topics: Collection[str]) -> None:
        """Pop no other topics."""


class AssignedShares:
    """The shares that brokers assign: what to pull is returned, what to pop goes to ``pops``.

    The ``BrokerShares`` of the rebalance executor.
    """

    def __init__(
        self,
        instance: ClientInstance,
        assignment: BrokerAssignment,
        pops: PopPlane | None,
        pop_retries: dict[str, Subscription],
    ) -> None:
        """``pop_retries`` are subscriptions that are added and removed here, by topic."""
        self._instance = instance
        self._assignment = assignment
        self._pops = pops
        self._pop_retries = pop_retries

    async def share(self, topic: str) -> frozenset[MessageQueue] | None:
        found = await self._assignment.query(topic)
        if found is None:
            return None
        if self._pops is not None and self._pops.assign(topic, found.pops):
            queues = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in found.pops)
            logger.info("%s is popped from %s now", topic, queues or "nowhere")
        if not is_retry_topic(topic):
            self._pull_retries(topic, wanted=bool(found.pulls) and not found.pops)
        return found.pulls

    def _pull_retries(self, topic: str, *, wanted: bool) -> None:
        retry = pop_retry_topic(topic, self._assignment.group)
        if wanted and retry not in self._pop_retries:
            now_ms = self._instance.runtime.clock.now_ms()
            self._pop_retries[retry] = make_subscription(retry, now_ms=now_ms)
            self._instance.rebalance_soon()
        elif not wanted:
            self._pop_retries.pop(retry, None)

    def retain_topics(self, topics: Collection[str]) -> None:
        if self._pops is not None:
            self._pops.retain_topics(topics)
        group = self._assignment.group
        for retry in [each for each in self._pop_retries
                      if topic_of_pop_retry(each, group) not in topics]:  # fmt: skip
            del self._pop_retries[retry]


def split(assignments: Iterable[MessageQueueAssignment]) -> Assignment:
    """Assignments by their mode."""
    pulls: set[MessageQueue] = set()
    pops: set[MessageQueue] = set()
    for each in assignments:
        if each.message_queue is not None:
            is_pop = each.mode is MessageRequestMode.POP
            (pops if is_pop else pulls).add(each.message_queue)
    return Assignment(frozenset(pulls), frozenset(pops))
