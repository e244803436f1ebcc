"""Cache of recently stored half messages, so that most commits need not read the log.

Nearly every half message is committed within milliseconds. The cache holds its draft; a commit
makes the final message from the draft as it would from the record in the log
(:func:`~skylark.broker.transaction.half_message.final_draft`). The cache does not know outcomes:
:mod:`skylark.broker.transaction.decisions` does. A half message that is not here, because it is too
old or the broker was restarted, is read from the log. So is one whose commit needs more than a
copy: a half message with an immunity time, a delay or a timer property.

Bounded by :data:`KEPT_SIZE_MAX`; the oldest are evicted first. A crash loses only the cache.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.headers.txn import EndTransactionRequestHeader

#: Bytes of messages in the cache.
KEPT_SIZE_MAX: Final = 8 << 20
#: Estimated memory of a message besides its bytes.
_OVERHEAD_SIZE: Final = 1 << 10
_GROUP_ITEM: Final = f"\x02{names.PROPERTY_PGROUP}\x01%s\x02"


class RecentHalf(msgspec.Struct, frozen=True, gc=False):
    """A recently stored half message."""

    offset: int  # in the half queue
    log_offset: int
    unique_id: str
    real_topic: str
    real_queue_id: int
    draft: Draft
    final_size: int  # the final message has this many bytes of its property string
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
        """Add a half message that was stored."""
        halves, offset = self._halves, stored.queue_offset
        if offset in halves:  # the half queue was deleted and recreated
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
        """The half message with the offsets, id and group of a decision; None if not cached."""
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
        """Remove a half message that is decided."""
        half = self._halves.pop(offset, None)
        if half is not None:
            self._size -= half.size

    def drop_run(self, first: int, count: int) -> None:
        """Remove half messages that are decided, neighbours in the half queue."""
        if self._halves:
            for offset in range(first, first + count):
                self.drop(offset)
