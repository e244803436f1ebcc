"""Packing of small ranges: many small queues are read by one task.

A task costs about 50 ms of processor time, a pull less than one. With one task for each queue,
2,000 queues with five messages each took minutes. So small ranges are put together, neighbours
first, until a task has about :data:`COST_MAX` of *cost*: 1 for a message of 100 bytes, more for
larger ones, and :data:`PULL_COST` for each range. Ranges with that much alone are not packed.

There stay at least as many partitions as the driver's machine has cores (``minPartitions`` if it is
given), so that what comes after the source is still done in parallel. With ``maxPartitions`` there
are that many, whatever they cost, and nothing is packed if there are no more ranges. Without it,
``maxRecordsPerPartition`` packs nothing: partitions would have more messages than it says.

Message sizes are those of a few samples, taken once a minute, and only if there is something to
pack. Small ranges are pulled also where files could be read, unless ``storePath`` is given: the
check that the files belong to the broker costs as much as the pull.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from skylark.admin.admin_session import Session
from skylark.core.errors import SkylarkError
from skylark.spark.source.input_partitions import QueueRange
from skylark.spark.source.queue_bounds import choose_address
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import SAMPLE_COUNT, sample

logger = logging.getLogger(__name__)

#: What a task reads in a tenth of a second.
COST_MAX: Final = 100_000
#: A pull costs as much as so many messages.
PULL_COST: Final = 500
#: Bytes that cost as much as one message.
_COST_SIZE: Final = 100
_SAMPLES: Final = 4
_SIZE_AGE_S: Final = 60.0
_SIZE_UNKNOWN: Final = 1024


@dataclass(frozen=True)
class QueueRanges(InputPartition):
    """Ranges of several queues that one task reads one after the other."""

    ranges: tuple[QueueRange, ...]


def pack_ranges(
    parts: Sequence[QueueRange],
    sizes: Mapping[str, int],
    *,
    count_min: int,
    count_max: int | None,
) -> list[QueueRange | QueueRanges]:
    """Put small ranges together; ``sizes`` has the bytes of a message by topic.

    The result has ``count_min`` partitions at least, if there are so many ranges; or, if it is
    given, ``count_max`` at most.
    """
    costs = [_cost(part, sizes) for part in parts]
    if count_max is not None:
        packs = _fill(parts, costs, -(-sum(costs) // count_max))
        if len(packs) > count_max:
            packs = _by_number(parts, count_max)
    else:
        small = [cost for cost in costs if cost < COST_MAX]
        wanted = max(1, count_min - (len(costs) - len(small)))
        packs = _fill(parts, costs, min(COST_MAX, -(-sum(small) // wanted)))
        if len(packs) < min(count_min, len(parts)):
            packs = _by_number(parts, min(count_min, len(parts)))
    return [pack[0] if len(pack) == 1 else _packed(pack) for pack in packs]


def _cost(part: QueueRange, sizes: Mapping[str, int]) -> int:
    size = sizes.get(part.queue.topic, _SIZE_UNKNOWN)
    return PULL_COST + part.count * max(1, size // _COST_SIZE)


def _fill(parts: Sequence[QueueRange], costs: Sequence[int], limit: int) -> list[list[QueueRange]]:
    """Fill packs with neighbours, up to a cost; a range with more is alone."""
    packs: list[list[QueueRange]] = []
    room = 0
    for part, cost in zip(parts, costs, strict=True):
        if cost > room:
            packs.append([])
            room = max(limit, cost)
        packs[-1].append(part)
        room -= cost
    return packs


def _by_number(parts: Sequence[QueueRange], count: int) -> list[list[QueueRange]]:
    """``count`` packs with almost the same number of ranges."""
    bounds = [len(parts) * index // count for index in range(count + 1)]
    return [list(parts[low:high]) for low, high in pairwise(bounds)]


def _packed(parts: Sequence[QueueRange]) -> QueueRanges:
    return QueueRanges(
        tuple(part if part.store_given else replace(part, store_path=None) for part in parts)
    )


class RangePacker:
    """Packs the ranges of one reader; remembers message sizes for a minute."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._sizes: dict[str, int] = {}
        self._sizes_at: float | None = None

    async def pack(self, parts: Sequence[QueueRange]) -> list[QueueRange | QueueRanges]:
        """The partitions of these ranges."""
        options = self._options
        count_min = max(options.partitions_min or 0, os.cpu_count() or 1)
        is_limited = options.records_per_partition_max is not None
        if len(parts) <= (options.partitions_max or (len(parts) if is_limited else count_min)):
            return list(parts)
        await self._sample(parts)
        return pack_ranges(
            parts, self._sizes, count_min=count_min, count_max=options.partitions_max
        )

    async def _sample(self, parts: Sequence[QueueRange]) -> None:
        now = self._session.clock.monotonic()
        if self._sizes_at is not None and now < self._sizes_at + _SIZE_AGE_S:
            return
        by_topic: dict[str, list[QueueRange]] = {}
        for part in parts:
            by_topic.setdefault(part.queue.topic, []).append(part)
        for topic, ranges in list(by_topic.items())[:_SAMPLES]:
            step = -(-len(ranges) // _SAMPLES)
            found = await asyncio.gather(*map(self._record_sizes, ranges[::step]))
            known = [size for sizes in found for size in sizes]
            if known:
                self._sizes[topic] = sum(known) // len(known)
        self._sizes_at = now

    async def _record_sizes(self, part: QueueRange) -> list[int]:
        session, options = self._session, self._options
        address = choose_address(part.addresses, options.read_from)
        if address is None:
            return []
        end = min(part.end, part.start + SAMPLE_COUNT)
        try:
            found = await sample(
                session, address, part.queue, part.start, end, session.wrap(options.group)
            )
        except (SkylarkError, TimeoutError) as error:
            logger.info("cannot sample the message sizes of %s: %s", part.queue, error)
            return []
        return found.sizes
