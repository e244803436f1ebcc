"""Starting and ending offsets as options name them, parsed into positions.

=============================================  ===================================================
``earliest``, ``latest``, ``group``            the first message, the next one, the group's offset
``-10m``, ``-2h``, ``-1d``                     a time before the start of the query
``startingTimestamp``                          a time
``{"T": {"broker-a": {"0": 23, "1": -1}}}``    offsets; -2 earliest, -1 latest, -3 group
``{"T": {"0": 23, "1": -1}}``                  the same as Spark's Kafka source has it, for topics
                                               on one broker
=============================================  ===================================================

A start time means the first message that was stored at that time or later; an end time means
all messages that were stored before it. :mod:`skylark.spark.source.start_offsets` turns positions
into offsets. Tasks get positions inside pickled options: classes and fields keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

from skylark.spark.option_table import duration_ms
from skylark.spark.source.stream_offset import queue_offsets
from skylark.wire.bodies.common_body import MessageQueue

_RELATIVE: Final = re.compile(r"-\s*(\d+\s*[a-z]+)", re.IGNORECASE)
_QUEUES: Final = re.compile(r"([^:,\s]+):(\d{1,6})(?:-(\d{1,6}))?")


#: The broker in offsets that name none.
ANY_BROKER: Final = ""


class Named(Enum):
    """A position by name; the values are its numbers in JSON."""

    LATEST = -1
    EARLIEST = -2
    GROUP = -3


class Ago(msgspec.Struct, frozen=True):
    """A time, as a duration before the start of the query."""

    duration_ms: int


class At(msgspec.Struct, frozen=True):
    """A time, in milliseconds since 1970."""

    time_ms: int


class Offsets(msgspec.Struct, frozen=True):
    """Offsets, or named positions, of some queues."""

    by_queue: Mapping[MessageQueue, int | Named]


Position = Named | Ago | At | Offsets

_SYNTAX: Final = '{"topic": {"broker": {"0": 23, "1": -1}}}'


def starting_position(text: str) -> Position:
    """Parse ``startingOffsets``; raises ValueError."""
    if text.upper() in Named.__members__:
        return Named[text.upper()]
    if (found := _RELATIVE.fullmatch(text)) is not None:
        return Ago(duration_ms(found[1]))
    if text.startswith("{"):
        return Offsets(_offsets(text, least=-3))
    raise ValueError(f"it must be earliest, latest, group, a time ago such as -10m, or {_SYNTAX}")


def ending_position(text: str) -> Position:
    """Parse ``endingOffsets``; raises ValueError."""
    if text.lower() == "latest":
        return Named.LATEST
    if (found := _RELATIVE.fullmatch(text)) is not None:
        return Ago(duration_ms(found[1]))
    if text.startswith("{"):
        return Offsets(_offsets(text, least=-1))
    raise ValueError(f"it must be latest, a time ago such as -1h, or {_SYNTAX}")


def _offsets(text: str, *, least: int) -> dict[MessageQueue, int | Named]:
    try:
        tree = msgspec.json.decode(text)
        if isinstance(tree, dict):
            tree = {topic: _with_broker(offsets) for topic, offsets in tree.items()}
        found = queue_offsets(tree, least)
    except (msgspec.DecodeError, ValueError):
        wrong = f"it must be JSON like {_SYNTAX}, with offsets from {least}"
        raise ValueError(wrong) from None
    return {queue: value if value >= 0 else Named(value) for queue, value in found.items()}


def _with_broker(offsets: object) -> object:
    """Kafka has no brokers between topics and queues: :data:`ANY_BROKER` stands for the one."""
    if (
        isinstance(offsets, dict)
        and offsets
        and all(type(each) is int for each in offsets.values())
    ):
        return {ANY_BROKER: offsets}
    return offsets


def assigned_queues(text: str) -> frozenset[MessageQueue]:
    """Parse ``assign``, as in Kafka: ``{"topic": {"broker-a": [0, 1]}}``; raises ValueError."""
    wrong = 'it must be JSON like {"topic": {"broker-a": [0, 1]}}'
    try:
        tree = msgspec.json.decode(text, type=dict[str, dict[str, list[int]]])
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise ValueError(wrong) from None
    found = {
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        for topic, brokers in tree.items()
        for broker, queue_ids in brokers.items()
        for queue_id in queue_ids
    }
    if not found or min(queue.queue_id for queue in found) < 0:
        raise ValueError(wrong)
    return frozenset(found)


def chosen_queues(text: str) -> frozenset[tuple[str, int]]:
    """Parse ``queues``: ``broker-a:0-3,broker-b:1``; raises ValueError."""
    found: set[tuple[str, int]] = set()
    for part in text.split(","):
        match = _QUEUES.fullmatch(part.strip())
        first, last = (int(match[2]), int(match[3] or match[2])) if match else (1, 0)
        if match is None or first > last:
            raise ValueError("it must be queues like broker-a:0-3,broker-b:1")
        found.update((match[1], queue_id) for queue_id in range(first, last + 1))
    return frozenset(found)
