"""How much of each backlog one micro-batch takes.

:func:`split_limit` shares a limit out in proportion, exactly: whole shares are rounded down, and
what is left goes one by one to the largest remainders. Shares never add up to more than the limit.
Equal remainders take turns, so that queues do not starve when there are more of them than rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")


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
