"""Op messages: records in the log that half messages are decided.

An op message is in RMQ_SYS_TRANS_OP_HALF_TOPIC, has the tag ``d`` and names queue offsets of half
messages: ``123`` (4.x, one) or ``123,124,`` (5.x). It does not say whether they were committed or
rolled back. Decisions are collected for ``transactionOpBatchInterval``, or until their text is
longer than ``transactionOpMsgMaxSize``.

**All or nothing.** All collected decisions go into *one* op message. So if any op message follows a
final message in the log, the first one to follow, or an earlier one, names its half message. After
a crash only the log after the last op message has to be searched for final messages without one.

**Progress in the op queue.** The next start needs an op message as long as it names a half message
that the check rounds have not passed. :class:`OpProgress` tracks this for groups of op messages.

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
#: Bytes of decisions that may wait for their op message; reached only while puts fail.
COLLECTED_SIZE_MAX: Final = 64 << 10
#: Body of an op message that names no half message and only marks a place in the log.
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
        """Whether the broker must refuse further decisions."""
        return self.size >= COLLECTED_SIZE_MAX

    def add(self, offsets: Iterable[int]) -> None:
        """Add the copies of a message that was decided."""
        for offset in offsets:
            text = b"%d," % offset
            self._texts.append(text)
            self.size += len(text)
            if offset > self._highest:
                self._highest = offset

    def add_run(self, first: int, count: int) -> None:
        """Add messages without copies, neighbours in the half queue."""
        text = b"".join([b"%d," % offset for offset in range(first, first + count)])
        self._texts.append(text)
        self.size += len(text)
        self._highest = max(self._highest, first + count - 1)

    def body(self) -> bytes:
        """The body of the op message for all collected decisions."""
        return b"".join(self._texts) or NOTHING

    def written(self) -> int:
        """Clear the batch after its op message was stored; returns the highest offset it names."""
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
    """The half messages that an op message names; skips texts that are not offsets."""
    return [int(text) for text in body.split(b",") if text.isdigit() and len(text) <= 18]


class OpProgress:
    """Tracks the first op message that the next start needs."""

    def __init__(self, next_offset: int) -> None:
        #: Queue offset of the first op message that may still be needed.
        self.offset = next_offset
        self._groups: deque[list[int]] = deque()  # count, highest offset named

    def written(self, highest: int) -> None:
        """Add the next op message, given the highest offset that it names."""
        groups = self._groups
        if not groups or groups[-1][0] == GROUP_SIZE:
            groups.append([0, -1])
        group = groups[-1]
        group[0] += 1
        group[1] = max(group[1], highest)

    def passed(self, position: int) -> int:
        """The offset of the op queue to commit; the half messages before ``position`` are done."""
        groups = self._groups
        while groups and groups[0][1] < position:
            self.offset += groups.popleft()[0]
        return self.offset
