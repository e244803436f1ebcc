"""Op messages: the notes in the log that half messages are decided.

An op message stands in RMQ_SYS_TRANS_OP_HALF_TOPIC, has the tag ``d`` and names queue offsets of
half messages: ``123`` (4.x, one) or ``123,124,`` (5.x). Which way they were decided it does not
say. Decisions are collected for ``transactionOpBatchInterval``, or until their text is longer than
``transactionOpMsgMaxSize``.

**All or nothing.** Whatever has been collected goes into *one* op message. So a final message that
stands in the log before some op message has its own op message not later than that one, and after
a crash only the log behind the last op message has to be searched for final messages that have
none.

**How far the op queue is done.** An op message is needed at the next start for as long as it names
a half message that the check rounds have not passed. :class:`OpProgress` keeps this for groups of
op messages.

Pure. Counterpart of Java's ``TransactionalOpBatchService``, ``MessageQueueOpContext`` and
``TransactionalMessageServiceImpl.calculateOpOffset``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from skylark.broker.transaction.half_message import HALF_QUEUE_ID
from skylark.core.names import OP_HALF_TOPIC
from skylark.store.commit_log import Draft
from skylark.wire import properties as names

REMOVE_TAG: Final = "d"
#: What may wait for its op message; more only collects while the store takes nothing in.
COLLECTED_SIZE_MAX: Final = 64 << 10
#: Names no half message, and every reader passes it over: for an op message that is only a mark.
NOTHING: Final = b"-1,"
GROUP_SIZE: Final = 64

_PROPERTIES: Final = names.encode_properties(
    {names.PROPERTY_TAGS: REMOVE_TAG, names.PROPERTY_WAIT: "true"}
).encode()


class OpBatch:
    """Decisions that wait for their op message."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self.size = 0
        self._highest = -1

    def __bool__(self) -> bool:
        return bool(self._texts)

    @property
    def is_full(self) -> bool:
        """Whether further decisions have to be refused."""
        return self.size >= COLLECTED_SIZE_MAX

    def add(self, offsets: Iterable[int]) -> None:
        """Take in the copies of a message that was decided."""
        for offset in offsets:
            text = b"%d," % offset
            self._texts.append(text)
            self.size += len(text)
            if offset > self._highest:
                self._highest = offset

    def body(self) -> bytes:
        """The body of the op message for all that waits."""
        return b"".join(self._texts) or NOTHING

    def written(self) -> int:
        """The op message is in the log: begin anew; the highest offset that it names."""
        highest = self._highest
        self._texts.clear()
        self.size, self._highest = 0, -1
        return highest


def op_draft(body: bytes, store_host: bytes, now_ms: int) -> Draft:
    """An op message."""
    return Draft(
        OP_HALF_TOPIC,
        HALF_QUEUE_ID,
        body,
        properties=_PROPERTIES,
        born_timestamp=now_ms,
        born_host=store_host,
    )


def parse_op(body: bytes) -> list[int]:
    """The half messages that an op message names; what is no offset is left out."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) <= 18]


class OpProgress:
    """Up to where op messages are needed no more."""

    def __init__(self, next_offset: int) -> None:
        #: Queue offset of the first op message that may still be needed.
        self.offset = next_offset
        self._groups: deque[list[int]] = deque()  # count, highest offset named

    def written(self, highest: int) -> None:
        """The next op message, and the highest offset that it names."""
        groups = self._groups
        if not groups or groups[-1][0] == GROUP_SIZE:
            groups.append([0, -1])
        group = groups[-1]
        group[0] += 1
        group[1] = max(group[1], highest)

    def passed(self, position: int) -> int:
        """All half messages before ``position`` are done; the offset of the op queue to commit."""
        groups = self._groups
        while groups and groups[0][1] < position:
            self.offset += groups.popleft()[0]
        return self.offset
