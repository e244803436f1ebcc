"""Subscription to a topic: all messages, those with certain tags, or those that match SQL.

A :class:`Subscription` goes to brokers as :class:`~skylark.wire.bodies.heartbeat.SubscriptionData`,
in heartbeats and on demand in pulls. Its version is the time at which it was made; brokers use the
newest version. All members of a group must have the same subscriptions, with the same tags, because
each broker stores one subscription per group and topic.

Brokers compare hashes of tags, so a pull may have messages with other tags.
:meth:`Subscription.select` removes them; it finds the tag in the raw properties, without parsing
the message.

Counterpart of Java's ``FilterAPI`` and ``SubscriptionData``.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from skylark.client.core.client_message import MessageExt
from skylark.core.errors import ClientError
from skylark.core.names import retry_topic
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.tag import SUBSCRIBE_ALL, parse_tags
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.properties import PROPERTY_TAGS, find_by_needle, needle_of

TAG: Final = "TAG"
SQL92: Final = "SQL92"

MessageT = TypeVar("MessageT", bound=MessageExt)

_TAGS_NEEDLE: Final = needle_of(PROPERTY_TAGS.encode())


class Subscription:
    """The subscription of a group to one topic; a renewal replaces ``data``."""

    __slots__ = ("_raw_tags", "_tags", "data", "pull_version")

    def __init__(self, data: SubscriptionData) -> None:
        self.data = data
        #: The version in pulls. Brokers refuse a version that is newer than the last heartbeat; a
        #: renewal changes nothing else, so pulls keep the old version.
        self.pull_version = data.sub_version
        self._tags = frozenset(data.tags_set)
        self._raw_tags = frozenset(tag.encode() for tag in data.tags_set)

    def __repr__(self) -> str:
        return (
            f"<Subscription {self.data.topic} {self.data.expression_type} {self.data.sub_string!r}>"
        )

    @property
    def topic(self) -> str:
        return self.data.topic

    @property
    def is_sql(self) -> bool:
        """Whether it needs brokers that support SQL, and a check before the start."""
        return self.data.expression_type != TAG

    @property
    def filter(self) -> object:
        """What it selects; equal for subscriptions that select the same."""
        return self.data.sub_string if self.is_sql else self._tags

    def renew(self, now_ms: int) -> None:
        """Give it a newer version: the assignment of queues has changed."""
        self.data = msgspec.structs.replace(self.data, sub_version=now_ms)

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag matches; true with SQL, which the broker evaluates."""
        return not self._tags or tag in self._tags

    def select(self, messages: list[MessageT]) -> list[MessageT]:
        """The messages that match, in order; the same list if nothing is filtered."""
        wanted = self._raw_tags
        if not wanted:
            return messages
        return [
            message
            for message in messages
            if find_by_needle(message.record.raw_properties, _TAGS_NEEDLE) in wanted
        ]


def require_same_filter(known: Subscription | None, subscription: Subscription) -> None:
    """Raise ClientError if the topic of a subscription is subscribed with another filter already.

    To replace it would pass over the messages of the first one.
    """
    if known is not None and known.filter != subscription.filter:
        kind = "the SQL condition" if known.is_sql else "tags"
        raise ClientError(
            f"topic {known.topic} is subscribed with {kind} {known.data.sub_string!r} already",
            hint="one consumer has one filter for a topic: name all tags in one subscription"
            " (tags='A || B'), unsubscribe first, or use another group",
        )


def make_subscription(
    topic: str, tags: str | None = None, *, sql: str | None = None, now_ms: int
) -> Subscription:
    """A subscription by tags (``A || B``; nothing or ``*`` for all) or by an SQL condition.

    Raises ClientError. Brokers validate the SQL.
    """
    if sql is not None:
        if tags is not None:
            raise ClientError(
                f"topic {topic} is subscribed by tags and by SQL, which exclude each other"
            )
        if not sql:
            raise ClientError(f"topic {topic} is subscribed by an empty SQL condition")
        return Subscription(
            SubscriptionData(topic=topic, sub_string=sql, sub_version=now_ms, expression_type=SQL92)
        )
    try:
        found = parse_tags(tags)
    except FilterSyntaxError as error:
        raise ClientError(f"tags cannot be parsed: {error.problem}", hint=error.hint) from error
    return Subscription(
        SubscriptionData(
            topic=topic,
            sub_string=tags or SUBSCRIBE_ALL,
            tags_set=list(found.tags),
            code_set=sorted(found.codes or ()),
            sub_version=now_ms,
            expression_type=TAG,
        )
    )


def retry_subscription(group: str, now_ms: int) -> Subscription:
    """The subscription of a clustering consumer to the retry topic of its group."""
    return make_subscription(retry_topic(group), now_ms=now_ms)
