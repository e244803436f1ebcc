"""Subscription to a topic: all messages, those with certain tags, or those that match SQL.

A :class:`Subscription` goes to brokers as :class:`~skylark.wire.bodies.heartbeat.SubscriptionData`,
in heartbeats and on demand in pulls. Its version is the time at which it was made: of two
heartbeats brokers believe the newer one. All members of a group must subscribe alike, tags
included, because each broker keeps one subscription per group and topic.

Brokers compare hashes of tags, so messages of another tag may come along.
:meth:`Subscription.select` drops them, and looks for the tag in the raw properties: no message is
parsed for it.

Counterpart of Java's ``FilterAPI`` and ``SubscriptionData``.
"""

from __future__ import annotations

from typing import Final

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

_TAGS_NEEDLE: Final = needle_of(PROPERTY_TAGS.encode())


class Subscription:
    """One topic as a group consumes it. ``data`` is replaced, never changed, when it is renewed."""

    __slots__ = ("_raw_tags", "_tags", "data", "pull_version")

    def __init__(self, data: SubscriptionData) -> None:
        self.data = data
        #: What pulls say. Brokers refuse a newer version than they have heard of, and a renewed one
        #: wants nothing else: so pulls need not wait for the heartbeat that tells of it.
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
        """Whether brokers must be new enough, and asked beforehand whether they understand it."""
        return self.data.expression_type != TAG

    def renew(self, now_ms: int) -> None:
        """Give it a newer version: the assignment of queues has changed."""
        self.data = msgspec.structs.replace(self.data, sub_version=now_ms)

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag is wanted; SQL was decided by the broker."""
        return not self._tags or tag in self._tags

    def select(self, messages: list[MessageExt]) -> list[MessageExt]:
        """The messages that are wanted, in their order; the same list if nothing is filtered."""
        wanted = self._raw_tags
        if not wanted:
            return messages
        return [
            message
            for message in messages
            if find_by_needle(message.record.raw_properties, _TAGS_NEEDLE) in wanted
        ]


def make_subscription(
    topic: str, tags: str | None = None, *, sql: str | None = None, now_ms: int
) -> Subscription:
    """A subscription by tags (``A || B``; nothing or ``*`` for all) or by an SQL condition.

    Raises ClientError. That SQL is right is for brokers to say.
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
    """What clustering consumers subscribe beside the rest: messages of theirs that failed."""
    return make_subscription(retry_topic(group), now_ms=now_ms)
