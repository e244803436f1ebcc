"""Common parts of bodies: base class, base of enums, queues, versions, tables of strings.

A body is a :class:`Body`: a struct whose fields have Java's names in camel case on the wire. Every
field has a default, because any member may be missing; the defaults are those of the Java beans.
``None`` means absent. Java's sets are lists here, so that a body keeps its order and can be
written again as it came.

The members that identify something (a topic, a group, a broker) are ``str`` and default to the
empty string, since nothing useful can be done without them anyway.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from skylark.wire.fastjson import DIALECT_SIZE_MAX
from skylark.wire.fields import Int32, Int64


class Body(msgspec.Struct, kw_only=True, rename="camel"):
    """Base of all bodies and their parts."""

    #: Limit on bodies of this type that are not plain JSON; see ``skylark.wire.fastjson``.
    dialect_size_max: ClassVar[int] = DIALECT_SIZE_MAX


class JavaEnum(enum.StrEnum):
    """An enum that travels by name and may also be given by ordinal, its place in the list."""

    @staticmethod
    def _generate_next_value_(
        name: str, start: int, count: int, last_values: list[str]
    ) -> str:  # the signature that enum asks for
        return name


class MessageQueue(
    msgspec.Struct,
    kw_only=True,
    rename="camel",
    frozen=True,
    order=True,
    cache_hash=True,
    gc=False,
):
    """One queue of a topic on one broker. Ordered as Java compares it; used as a map key."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int32 = 0


class DataVersion(msgspec.Struct, kw_only=True, rename="camel", frozen=True, order=True, gc=False):
    """The version of a broker's tables. Equal means all three equal, newer means greater.

    The order of the fields is the order of comparison. RocketMQ 4.x has no ``stateVersion``.
    """

    state_version: Int64 = 0  # the epoch of the master under a controller, else 0
    counter: Int64 = 0
    timestamp: Int64 = 0  # ms of the last change

    def next(self, now_ms: int, *, state_version: int | None = None) -> DataVersion:
        """The version after one more change."""
        return DataVersion(
            state_version=self.state_version if state_version is None else state_version,
            counter=self.counter + 1,
            timestamp=now_ms,
        )


class KVTable(Body, kw_only=True):
    """A table of strings: order configuration (103, 219), runtime information (28)."""

    table: dict[str, str] = msgspec.field(default_factory=dict)


class TopicList(Body, kw_only=True):
    """Names of topics (206, 224, 304, 305, 311-313, 343)."""

    broker_addr: str | None = None  # 304 names a broker to ask for the rest
    topic_list: list[str] = msgspec.field(default_factory=list)


class GroupList(Body, kw_only=True):
    """Names of consumer groups (300)."""

    group_list: list[str] = msgspec.field(default_factory=list)
