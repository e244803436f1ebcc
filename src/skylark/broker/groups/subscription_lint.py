"""Subscription lint: finds members of a group that subscribe to different things.

RocketMQ keeps one table of subscriptions per group, and the last heartbeat wins. If two members
differ, each overwrites the other's topics and filters every few seconds, and messages are lost for
the group because the broker filtered them with the wrong expression. The usual causes are a group
name used by two applications, and a rolling update that changes a subscription.

Java does not check this. Here the subscriptions of every member are kept beside the group's, as a
*signature* shared by all members that agree; a group with more than one signature is in conflict.
The cost per heartbeat does not grow with the size of the group. Each state of conflict is logged
once, and shown by 203.

Two ways to write the same tags (``a||b``, ``b || a``) are no difference, and the retry
topics of the group are ignored: clients add them by themselves, and only clustering consumers do.
While the mode of a group changes, some members pull the pop retries of a topic and the others pop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeAlias

from skylark.core.names import retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.tag import SUBSCRIBE_ALL, parse_tags
from skylark.wire.bodies.admin_body import SubscriptionConflict, SubscriptionSide
from skylark.wire.bodies.heartbeat import SubscriptionData

logger = logging.getLogger(__name__)

TAG: Final = "TAG"

CLIENTS_SHOWN_MAX: Final = 10
#: Most signatures that are compared with each other.
SIGNATURES_SHOWN_MAX: Final = 100
TOPICS_LOGGED_MAX: Final = 5
EXPRESSION_LOGGED_SIZE_MAX: Final = 200
#: States remembered as logged; then all are dropped, so that a flapping member cannot fill memory.
STATES_LOGGED_MAX: Final = 64

#: What one topic is filtered by: type and expression.
Filter: TypeAlias = tuple[str, str]
#: All topics of a member with their filters, in order of topics.
Signature: TypeAlias = tuple[tuple[str, Filter], ...]


class SubscriptionLint:
    """The subscriptions of each member of one group; members are keyed by their peer."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._retry_topic = retry_topic(group)
        self._signatures: dict[object, Signature] = {}
        self._agreeing: dict[Signature, dict[object, str]] = {}  # member -> client id
        self._logged: set[frozenset[Signature]] = set()

    def update(
        self, member: object, client_id: str, subscriptions: Iterable[SubscriptionData]
    ) -> None:
        """Record the subscriptions of a member; log a new state of conflict."""
        signature = self._signature(subscriptions)
        old = self._signatures.get(member)
        if old is not None and old != signature:
            self.remove(member)
        self._signatures[member] = signature
        self._agreeing.setdefault(signature, {})[member] = client_id
        if old != signature and self.in_conflict:
            self._log(signature)

    def remove(self, member: object) -> None:
        """Remove a member, if it is known."""
        signature = self._signatures.pop(member, None)
        if signature is not None:
            members = self._agreeing[signature]
            del members[member]
            if not members:
                del self._agreeing[signature]

    @property
    def in_conflict(self) -> bool:
        return len(self._agreeing) > 1

    def conflicts(self) -> list[SubscriptionConflict]:
        """The topics that members disagree about, with all sides."""
        return _compare(dict(islice(self._agreeing.items(), SIGNATURES_SHOWN_MAX)))

    def _log(self, new: Signature) -> None:
        state = frozenset(self._agreeing)
        if state in self._logged:
            return
        if len(self._logged) >= STATES_LOGGED_MAX:
            self._logged.clear()
        self._logged.add(state)
        # Compares with one other only: the cost must not grow with the number of signatures.
        other = next(signature for signature in self._agreeing if signature != new)
        conflicts = _compare({side: self._agreeing[side] for side in (other, new)})
        more = len(conflicts) - TOPICS_LOGGED_MAX
        logger.warning(
            "consumer group %s: members subscribe differently, the last heartbeat wins and"
            " messages may be skipped; give each application its own group: %s%s",
            self._group,
            "; ".join(map(_describe, conflicts[:TOPICS_LOGGED_MAX])),
            f"; and {more} more topics" if more > 0 else "",
        )

    def _signature(self, subscriptions: Iterable[SubscriptionData]) -> Signature:
        filters = {
            data.topic: _filter_of(data)
            for data in subscriptions
            if not self._is_own_retry(data.topic)
        }
        return tuple(sorted(filters.items()))

    def _is_own_retry(self, topic: str) -> bool:
        """Whether a topic has the retries of this group, those of pops included."""
        own = self._retry_topic
        return topic == own or topic.startswith((f"{own}_", f"{own}+"))


def _filter_of(data: SubscriptionData) -> Filter:
    kind = data.expression_type or TAG
    if kind != TAG:
        return kind, data.sub_string
    try:
        wanted = parse_tags(data.sub_string)
    except FilterSyntaxError:
        return kind, data.sub_string
    return kind, SUBSCRIBE_ALL if wanted.codes is None else " || ".join(sorted(wanted.tags))


def _compare(agreeing: dict[Signature, dict[object, str]]) -> list[SubscriptionConflict]:
    filters = {signature: dict(signature) for signature in agreeing}
    conflicts = []
    for topic in sorted({topic for signature in agreeing for topic, _ in signature}):
        sides: dict[Filter | None, SubscriptionSide] = {}
        for signature, members in agreeing.items():
            chosen = filters[signature].get(topic)
            side = sides.get(chosen)
            if side is None:
                kind, expression = chosen or (None, None)
                side = SubscriptionSide(expression_type=kind, expression=expression)
                sides[chosen] = side
            side.client_count += len(members)
            room = CLIENTS_SHOWN_MAX - len(side.client_ids)
            side.client_ids += islice(members.values(), room)
        if len(sides) > 1:
            conflicts.append(SubscriptionConflict(topic=topic, sides=list(sides.values())))
    return conflicts


def _describe(conflict: SubscriptionConflict) -> str:
    return f"topic {conflict.topic}: " + " but ".join(map(_describe_side, conflict.sides))


def _describe_side(side: SubscriptionSide) -> str:
    who = side.client_ids[0] if side.client_ids else "?"
    if side.client_count > 1:
        who += f" and {side.client_count - 1} more"
    if side.expression is None:
        return f"{who}: not subscribed"
    expression = side.expression
    if len(expression) > EXPRESSION_LOGGED_SIZE_MAX:
        expression = expression[:EXPRESSION_LOGGED_SIZE_MAX] + "..."
    return f"{who}: {side.expression_type} {expression}"
