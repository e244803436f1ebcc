"""A cache of half messages that were stored not long ago, so that a commit need not read the log.

Nearly every half message is committed within milliseconds. What the cache holds is the half message
as it was drafted; a commit makes the final message of it as it would of the record in the log
(:func:`~skylark.broker.transaction.half_message.final_draft`). The cache decides nothing: whether a
half message is open, :mod:`skylark.broker.transaction.decisions` knows. What is not here, because
it is too old or because the broker was restarted, is read from the log. So is a half message that
asks for more than a copy: one with a time of immunity, or one that is delayed or timed.

Bounded by :data:`KEPT_SIZE_MAX`; the oldest leave first. A crash loses the cache and nothing else.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.headers.txn import EndTransactionRequestHeader

#: Bytes of messages that are kept; what comes first leaves first.
KEPT_SIZE_MAX: Final = 8 << 20
#: What a message costs besides its bytes, roughly.
_OVERHEAD_SIZE: Final = 1 << 10
_GROUP_ITEM: Final = f"\x02{names.PROPERTY_PGROUP}\x01%s\x02"


class RecentHalf(msgspec.Struct, frozen=True, gc=False):
    """A half message that was stored not long ago."""

    offset: int  # in the half queue
    log_offset: int
    unique_id: str
    real_topic: str
    real_queue_id: int
    draft: Draft
    final_size: int  # bytes of its property string that the final message has
    size: int


class RecentHalves:
    """Half messages by their queue offset, the oldest first."""

    def __init__(self, size_max: int = KEPT_SIZE_MAX) -> None:
        self._size_max = size_max
        self._halves: dict[int, RecentHalf] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._halves)

    def add(
        self,
        draft: Draft,
        unique_id: str,
        real_topic: str,
        real_queue_id: int,
        final_size: int,
        stored: PutResult,
    ) -> None:
        """Keep a half message that was stored."""
        halves, offset = self._halves, stored.queue_offset
        if offset in halves:  # the half queue was deleted and made again
            self.drop(offset)
        half = halves[offset] = RecentHalf(
            offset, stored.log_offset, unique_id, real_topic, real_queue_id, draft, final_size,
            stored.size + _OVERHEAD_SIZE,
        )  # fmt: skip
        self._size += half.size
        while self._size > self._size_max:
            oldest = next(iter(halves))
            self._size -= halves.pop(oldest).size

    def find(self, header: EndTransactionRequestHeader) -> RecentHalf | None:
        """The half message that a decision names, with its id and group; None if it is not kept."""
        half = self._halves.get(header.tran_state_table_offset)
        if (
            half is None
            or header.commit_log_offset != half.log_offset
            or header.transaction_id != half.unique_id
            or (_GROUP_ITEM % header.producer_group).encode() not in half.draft.properties
        ):
            return None
        return half

    def drop(self, offset: int) -> None:
        """A half message is decided, and needed no more."""
        half = self._halves.pop(offset, None)
        if half is not None:
            self._size -= half.size
