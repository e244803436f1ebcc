"""Offset of a stream as Spark stores it in the checkpoint, in JSON.

::

    {"v": 1, "q": {"<topic>": {"<broker>": {"<queue id>": <next offset>}}}}

A third key, ``"i"``, has an identity of each queue, by which the source notices that a topic was
deleted and created again: an offset and the time at which the message before it was stored::

    "i": {"<topic>": {"<broker>": {"<queue id>": [<offset>, <milliseconds since 1970>]}}}

It changes only together with the offset of its queue. Checkpoints of earlier versions have none,
and these ignore it.

Spark compares offsets as text. So keys have a fixed order (queue ids by number), and nothing in
the JSON changes without new messages. Two further keys are for the first batch:

``"fresh": true``
    only in the initial offset: it was resolved just now and is not in any checkpoint
``"s": {...}``
    only in the end of the first batch: the start of that batch. Spark does not record the start of
    batch 0 and asks for it again after a crash; resolving ``latest`` again would lose messages.

Queues of brokers that are down stay in the offset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from skylark.core.errors import ConfigError
from skylark.wire.bodies.common_body import MessageQueue

T = TypeVar("T")

VERSION: Final = 1
#: Topic -> broker -> queue id -> offset.
QueueTree: TypeAlias = dict[str, dict[str, dict[str, int]]]


IdentityTree: TypeAlias = dict[str, dict[str, dict[str, tuple[int, int]]]]


class QueueIdentity(msgspec.Struct, frozen=True, gc=False):
    """A queue had a message just before ``offset``, which was stored at ``time_ms``."""

    offset: int
    time_ms: int


class StreamOffset(msgspec.Struct, frozen=True):
    """The next offset of each queue."""

    queues: Mapping[MessageQueue, int]
    first_start: Mapping[MessageQueue, int] | None = None
    fresh: bool = False
    identities: Mapping[MessageQueue, QueueIdentity] = msgspec.field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        return {queue.topic for queue in self.queues}


def encode_offset(offset: StreamOffset) -> dict[str, Any]:
    """The JSON object that Spark stores."""
    found: dict[str, Any] = {"v": VERSION, "q": queue_tree(offset.queues)}
    if offset.first_start is not None:
        found["s"] = queue_tree(offset.first_start)
    if offset.fresh:
        found["fresh"] = True
    if offset.identities:
        pairs = {queue: [each.offset, each.time_ms] for queue, each in offset.identities.items()}
        found["i"] = queue_tree(pairs)
    return found


def decode_offset(given: Any) -> StreamOffset:
    """Read the JSON object that :func:`encode_offset` made; raises ConfigError."""
    if not isinstance(given, Mapping) or not isinstance(given.get("v"), int):
        raise _unreadable(given)
    if given["v"] > VERSION:
        raise ConfigError(
            f"the checkpoint has offsets of version {given['v']}, this source knows {VERSION}",
            hint="install the version of skylark-mq that wrote it, or a newer one",
        )
    try:
        return StreamOffset(
            queues=queue_offsets(given.get("q")),
            first_start=queue_offsets(given["s"]) if "s" in given else None,
            fresh=given.get("fresh") is True,
            identities=_identities(given["i"]) if "i" in given else {},
        )
    except ValueError:
        raise _unreadable(given) from None


def queue_tree(queues: Mapping[MessageQueue, T]) -> dict[str, dict[str, dict[str, T]]]:
    """Values of queues, such as offsets, as JSON has them, in a fixed order."""
    tree: dict[str, dict[str, dict[str, T]]] = {}
    for queue in sorted(queues):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = queues[queue]
    return tree


def queue_offsets(tree: Any, least: int = 0) -> dict[MessageQueue, int]:
    """The inverse of :func:`queue_tree`; raises ValueError, also for offsets below ``least``."""
    found = _by_queue(tree, QueueTree)
    if any(offset < least for offset in found.values()):
        raise ValueError(f"an offset is below {least}")
    return found


def _identities(tree: Any) -> dict[MessageQueue, QueueIdentity]:
    return {queue: QueueIdentity(*pair) for queue, pair in _by_queue(tree, IdentityTree).items()}


def _by_queue(tree: Any, kind: Any) -> dict[MessageQueue, Any]:
    try:
        checked = msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    found = {}
    for topic, brokers in checked.items():
        for broker, values in brokers.items():
            for queue_id, value in values.items():
                if not re.fullmatch(r"\d{1,9}", queue_id):
                    raise ValueError(f"{queue_id} is no queue")
                queue = MessageQueue(topic=topic, broker_name=broker, queue_id=int(queue_id))
                found[queue] = value
    return found


def _unreadable(given: Any) -> ConfigError:
    return ConfigError(
        f"the checkpoint has an offset of another source: {str(given)[:200]}",
        hint="use a new checkpoint location for a new source",
    )
