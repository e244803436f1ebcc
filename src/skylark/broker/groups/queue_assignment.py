"""Sharing the queues of a topic among the members of a group: the same result at every broker.

=================  ============================================================================
``AVG``            runs of neighbours: of 5 queues for 2 members the first gets 0, 1, 2
``AVG_BY_CIRCLE``  dealt out one by one: the first gets 0, 2, 4
=================  ============================================================================

Members and queues are sorted, so whoever knows them gets the same answer. A member that is not in
the list gets nothing. Answers to Java's ``AllocateMessageQueueAveragely`` and ``...ByCircle``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from skylark.wire.bodies.common_body import MessageQueue

Share: TypeAlias = Callable[[Sequence[MessageQueue], int, int], list[MessageQueue]]


def _averagely(queues: Sequence[MessageQueue], member_count: int, index: int) -> list[MessageQueue]:
    size, rest = divmod(len(queues), member_count)
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (index < rest)])


def _by_circle(queues: Sequence[MessageQueue], member_count: int, index: int) -> list[MessageQueue]:
    return list(queues[index::member_count])


#: By the name that a client gives.
STRATEGIES: Final[dict[str, Share]] = {"AVG": _averagely, "AVG_BY_CIRCLE": _by_circle}


def allocate(
    strategy: str | None, queues: Iterable[MessageQueue], members: Iterable[str], member: str
) -> list[MessageQueue] | None:
    """The share of one member; None if nobody knows the strategy."""
    share = STRATEGIES.get(strategy or "")
    if share is None:
        return None
    names = sorted(members)
    if member not in names:
        return []
    return share(sorted(queues), len(names), names.index(member))
