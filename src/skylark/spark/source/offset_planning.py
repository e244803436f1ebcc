"""What the next micro-batch takes: from where the stream stands and what the cluster holds.

A pure decision. :func:`plan_batch` goes through the queues and finds for each

==========================================  =====================================================
nothing known (broker away, not wanted)     held where it stands
cut off, for the topic was shrunk           the same
its start lies before the first message     lost: an error, or on from the first message
its start lies behind the end               made anew: an error, or set to the first message
not in the stream yet                       enters at its start, and is read in the next batch
everything else                             a backlog
==========================================  =====================================================

A queue that enters, or is set back, has no rows in this batch: so its start is written down before
it is read, and reading again after a crash gives the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from skylark.client.errors import Missing
from skylark.spark.errors import aged_out, made_anew, queue_name
from skylark.spark.source.offset_options import Named
from skylark.spark.source.queue_bounds import Bounds, Survey
from skylark.wire.bodies.common_body import MessageQueue

log = logging.getLogger(__name__)

K = TypeVar("K")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where each queue stands, and how many messages of it could be read from there."""

    positions: Mapping[MessageQueue, int]
    backlogs: Mapping[MessageQueue, int]

    def end(self, shares: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Where the batch ends that takes so much of the backlogs."""
        return {
            queue: position + shares.get(queue, 0) for queue, position in self.positions.items()
        }


def plan_batch(
    start: Mapping[MessageQueue, int],
    survey: Survey,
    *,
    fail_on_data_loss: bool,
    start_default: Named,
    target: Mapping[MessageQueue, int] | None = None,
) -> BatchPlan:
    """Compare ``start`` with the cluster; ``target`` bounds the run, and the queues in it.

    Raises DataLossError.
    """
    positions: dict[MessageQueue, int] = {}
    backlogs: dict[MessageQueue, int] = {}
    for queue, wanted in start.items():
        bounds = survey.bounds.get(queue)
        positions[queue] = wanted
        if bounds is None or queue in survey.cut_off:
            continue
        if bounds.high < wanted and queue.broker_name in survey.slaves:
            continue
        if bounds.high < wanted:
            positions[queue] = _set_back(queue, wanted, bounds, fail=fail_on_data_loss)
            continue
        first = _first(queue, wanted, bounds, fail=fail_on_data_loss)
        last = bounds.high if target is None else min(bounds.high, target.get(queue, wanted))
        positions[queue] = first
        if last > first:
            backlogs[queue] = last - first
    for queue, bounds in survey.bounds.items():
        if queue not in start and (target is None or queue in target):
            earliest = start_default is Named.EARLIEST
            positions[queue] = bounds.low if earliest else bounds.high
    return BatchPlan(positions=positions, backlogs=backlogs)


def _first(queue: MessageQueue, wanted: int, bounds: Bounds, *, fail: bool) -> int:
    if wanted >= bounds.low:
        return wanted
    count = bounds.low - wanted
    loss = aged_out(Missing(queue=queue, wanted=wanted, available=bounds.low, count=count))
    if fail:
        raise loss
    log.warning("reading goes on: %s", loss.message)
    return bounds.low


def _set_back(queue: MessageQueue, wanted: int, bounds: Bounds, *, fail: bool) -> int:
    if fail:
        raise made_anew(queue, wanted, bounds.high)
    log.warning(
        "%s is read from its start, %d: it ends at %d, and %d was wanted",
        queue_name(queue),
        bounds.low,
        bounds.high,
        wanted,
    )
    return bounds.low


# ---- limits --------------------------------------------------------------------------------------


def split_limit(backlogs: Mapping[K, int], limit: int, turn: int = 0) -> dict[K, int]:
    """Shares of ``limit`` that add up to it, or to all there is; ``turn`` decides equal cases."""
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
    """Rows of each backlog that together have about ``limit`` bytes; at least one row.

    ``record_sizes`` are what rows have on average.
    """
    sizes = {key: backlog * record_sizes[key] for key, backlog in backlogs.items()}
    shares = split_limit(sizes, limit, turn)
    rows = {key: share // record_sizes[key] for key, share in shares.items()}
    if backlogs and not any(rows.values()):  # a limit below one record must not stop the stream
        rows[max(shares, key=lambda key: shares[key])] = 1
    return {key: min(count, backlogs[key]) for key, count in rows.items()}
