"""Offset planning of a stream: which offsets of each queue the next micro-batch reads.

Pure functions. :func:`plan_batch` compares the offsets in the checkpoint with the offsets that the
cluster has, and decides for each queue:

=============================================  ====================================================
its broker is unreachable, or it is unwanted   keep its offset, read nothing
its topic has fewer readable queues now        the same
its offset is before the first message         messages have expired: an error, or continue at the
                                               first message (``failOnDataLoss=false``)
its offset, or that of its identity, is        the topic was recreated: an error, or restart at the
beyond the end, or its identity is another     first message
it is new to the stream                        add it at its start; the next batch reads it
everything else                                backlog: the messages up to the end
=============================================  ====================================================

A queue that is added or restarted has no rows in this batch. So its start is in the checkpoint
before it is read, and a batch that is repeated after a crash has the same rows.

:func:`split_limit` and :func:`split_bytes` then share ``maxOffsetsPerTrigger`` and
``maxBytesPerTrigger`` among the backlogs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from skylark.spark.errors import first_available, queue_name, queue_recreated
from skylark.spark.source.offset_options import Named
from skylark.spark.source.queue_bounds import Bounds, ClusterSnapshot
from skylark.spark.source.stream_offset import QueueIdentity, StreamOffset
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

K = TypeVar("K")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The offset of each queue, and how many messages could be read from there."""

    positions: Mapping[MessageQueue, int]
    backlogs: Mapping[MessageQueue, int]

    def end(self, shares: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The end offsets of a batch that reads ``shares`` messages of the backlogs."""
        return {
            queue: position + shares.get(queue, 0) for queue, position in self.positions.items()
        }


def plan_batch(
    start: Mapping[MessageQueue, int],
    snapshot: ClusterSnapshot,
    *,
    fail_on_data_loss: bool,
    start_default: Named,
    target: Mapping[MessageQueue, int] | None = None,
    recreated: Collection[MessageQueue] = (),
) -> BatchPlan:
    """Plan a batch from ``start``; ``target`` has the end offsets of an ``availableNow`` run.

    ``recreated`` are queues whose identity is another one now. Raises DataLossError.
    """
    positions: dict[MessageQueue, int] = {}
    backlogs: dict[MessageQueue, int] = {}
    for queue, wanted in start.items():
        bounds = snapshot.bounds.get(queue)
        positions[queue] = wanted
        if bounds is None or queue in snapshot.unreadable:
            continue
        if bounds.high < wanted and queue.broker_name in snapshot.slave_only:
            continue
        if bounds.high < wanted or queue in recreated:
            positions[queue] = _set_back(queue, wanted, bounds, fail=fail_on_data_loss)
            if positions[queue] != wanted:
                continue
        first = first_available(queue, wanted, bounds.low, fail=fail_on_data_loss)
        last = bounds.high if target is None else min(bounds.high, target.get(queue, wanted))
        positions[queue] = first
        if last > first:
            backlogs[queue] = last - first
    for queue, bounds in snapshot.bounds.items():
        if queue not in start and (target is None or queue in target):
            earliest = start_default is Named.EARLIEST
            positions[queue] = bounds.low if earliest else bounds.high
    return BatchPlan(positions=positions, backlogs=backlogs)


def _set_back(queue: MessageQueue, wanted: int, bounds: Bounds, *, fail: bool) -> int:
    if fail:
        raise queue_recreated(queue, wanted, bounds.high)
    logger.warning(
        "reading %s again from its first offset %d: it was recreated, or its broker has lost"
        " messages; it ends at %d, and %d is wanted",
        queue_name(queue),
        bounds.low,
        bounds.high,
        wanted,
    )
    return bounds.low


def new_identities(
    begin: StreamOffset,
    end: Mapping[MessageQueue, int],
    snapshot: ClusterSnapshot,
    unchecked: Collection[MessageQueue] = (),
) -> dict[MessageQueue, QueueIdentity]:
    """The identities that belong to the end of a batch: those of queues that moved are new.

    ``unchecked`` queues keep theirs: a new one would hide that they were recreated.
    """
    found: dict[MessageQueue, QueueIdentity] = {}
    for queue, offset in end.items():
        bounds, known = snapshot.bounds.get(queue), begin.identities.get(queue)
        moved = known is None or (offset != begin.queues.get(queue) and queue not in unchecked)
        if moved and bounds is not None and bounds.time_ms > 0 and bounds.high > 0:
            known = QueueIdentity(bounds.high, bounds.time_ms)
        if known is not None:
            found[queue] = known
    return found


# ---- limits --------------------------------------------------------------------------------------


def split_limit(backlogs: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Share ``limit`` in proportion to the backlogs.

    Whole shares are rounded down, and the rest goes one by one to the largest remainders, so that
    the sum is never above the limit. ``turn`` rotates the order of equal remainders: no queue
    starves when there are more queues than rows.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    shares = {key: limit * backlog // total for key, backlog in backlogs.items()}
    left = limit - sum(shares.values())
    keys = list(backlogs)
    turn %= len(keys)
    waiting = keys[turn:] + keys[:turn]
    waiting.sort(key=lambda key: limit * backlogs[key] % total, reverse=True)  # stable
    for key in waiting[:left]:
        shares[key] += 1
    return shares


def split_bytes(
    backlogs: Mapping[K, int], record_sizes: Mapping[K, int], limit: int, turn: int = 0
) -> dict[K, int]:
    """The number of rows of each backlog that together have about ``limit`` bytes; at least one.

    ``record_sizes`` are the average sizes of the records of each queue.
    """
    sizes = {key: backlog * record_sizes[key] for key, backlog in backlogs.items()}
    shares = split_limit(sizes, limit, turn)
    rows = {key: share // record_sizes[key] for key, share in shares.items()}
    if backlogs and not any(rows.values()):  # a limit below one record must not stop the stream
        rows[max(shares, key=lambda key: shares[key])] = 1
    return {key: min(count, backlogs[key]) for key, count in rows.items()}
