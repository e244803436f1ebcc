"""The short way of a half message that is sent, committed at once, and has nothing special.

Nearly every half message is *plain* (:func:`read_plain_half`): its property string is stored as it
came, with the unique id, the destination and what every message gets behind it. And nearly every
one is committed within milliseconds by the producer that sent it. So the final message is made when
the half message is stored, and kept for a while (:class:`RecentHalves`): a commit that names it
takes it from there, and nothing is read from the log, parsed or written anew.

Both records have the bytes that :mod:`skylark.broker.transaction.half_message` would give them,
except that of a name that occurs twice both items stay; readers take the last.

What is kept is a short cut and decides nothing: whether a half message is still open is for
:mod:`skylark.broker.transaction.decisions` to say. What is not here, because it is too old or
because the broker was started anew, is read from the log. The same goes for a decision that is no
commit, or differs in any way from what was answered to the sender.

What a crash leaves is the same as well: the half message, then the final one, which names it, then
the op message (:mod:`skylark.broker.transaction.transaction_service`).

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.broker.send.message_policy import plain_item
from skylark.broker.transaction.half_message import HALF_QUEUE_ID
from skylark.core.names import HALF_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.headers.txn import TRANSACTION_COMMIT
from skylark.wire.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK

#: Bytes of messages that are kept; what comes first leaves first.
KEPT_SIZE_MAX: Final = 8 << 20
#: What a message costs besides its bytes, roughly.
_OVERHEAD_SIZE: Final = 1 << 10

#: What the broker sets in a half message, or acts upon.
HALF_NAMES: Final = (
    names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.PROPERTY_REAL_TOPIC,
    names.PROPERTY_REAL_QID,
    names.PROPERTY_TRANSACTION_ID,
    names.PROPERTY_TRANSACTION_CHECK_TIMES,
    names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
)
_COMMIT: Final = str(TRANSACTION_COMMIT)
_MARK: Final = f"{names.PROPERTY_TRAN_MSG}\x01true\x02"
_ITEM: Final = plain_item(*HALF_NAMES, names.PROPERTY_CRC32)
_PLAIN: Final = re.compile(f"(?:{_MARK}|{_ITEM})+".encode())


class PlainHalf(msgspec.Struct, gc=False):
    """A plain half message on its way into the log, and what it becomes."""

    unique_id: str
    group: str
    properties: bytes  # as they came
    #: The message that consumers get; there once it was prepared.
    final: Draft | None = None

    @property
    def topic(self) -> str:
        """Where it belongs."""
        assert self.final is not None, "prepare() comes first"
        return self.final.topic

    @property
    def queue_id(self) -> int:
        assert self.final is not None, "prepare() comes first"
        return self.final.queue_id

    def prepare(self, draft: Draft, added: str) -> None:
        """Turn the draft of a message into that of the half message, as ``half.prepare`` does.

        ``added`` are the properties that every message gets, as a string.
        """
        topic, queue_id = draft.topic, draft.queue_id
        sys_flag = draft.sys_flag & ~FLAG_TRANSACTION_MASK
        more = f"{added}{names.PROPERTY_TRANSACTION_ID}\x01{self.unique_id}\x02"
        properties = self.properties + more.encode()
        self.final = Draft(
            topic,
            queue_id,
            draft.body,
            properties,
            draft.flag,
            sys_flag | FLAG_TRANSACTION_COMMIT,
            draft.born_timestamp,
            draft.born_host,
            draft.reconsume_times,
        )
        destination = (
            f"{names.PROPERTY_REAL_TOPIC}\x01{topic}\x02{names.PROPERTY_REAL_QID}\x01{queue_id}\x02"
        )
        draft.properties = properties + destination.encode()
        draft.sys_flag = sys_flag
        draft.topic = HALF_TOPIC
        draft.queue_id = HALF_QUEUE_ID


def read_plain_half(text: str) -> PlainHalf | None:
    """A half message by its property string; None if it is not plain, or no half message."""
    # Java's producers begin with the mark.
    if not text.startswith(_MARK) and names.find_property(text, names.PROPERTY_TRAN_MSG) is None:
        return None
    unique_id = names.find_property(text, names.PROPERTY_UNIQ_KEY)
    group = names.find_property(text, names.PROPERTY_PGROUP)
    if unique_id is None or group is None:
        return None
    raw = text.encode()
    return PlainHalf(unique_id, group, raw) if _PLAIN.fullmatch(raw) else None


class RecentHalf(msgspec.Struct, frozen=True, gc=False):
    """A plain half message that was stored not long ago."""

    offset: int  # in the half queue
    log_offset_text: str  # as decisions name it
    unique_id: str
    group: str
    final: Draft
    size: int


class RecentHalves:
    """Plain half messages by the text of their queue offset, the oldest first."""

    def __init__(self, size_max: int = KEPT_SIZE_MAX) -> None:
        self._size_max = size_max
        self._halves: dict[str, RecentHalf] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, half: PlainHalf, stored: PutResult) -> None:
        """A half message was stored."""
        final = half.final
        assert final is not None, "prepare() comes first"
        final.prepared_transaction_offset = stored.log_offset
        self.keep(
            RecentHalf(
                stored.queue_offset,
                str(stored.log_offset),
                half.unique_id,
                half.group,
                final,
                stored.size + _OVERHEAD_SIZE,
            )
        )

    def keep(self, half: RecentHalf) -> None:
        """Keep a half message, also one that was taken and could not be committed."""
        halves = self._halves
        key = str(half.offset)
        if key in halves:  # the half queue was deleted and began anew
            self.drop(halves[key])
        halves[key] = half
        self._size += half.size
        while self._size > self._size_max:
            oldest = next(iter(halves))
            self._size -= halves.pop(oldest).size

    def find(self, ext: Mapping[str, str]) -> RecentHalf | None:
        """The half message that an END_TRANSACTION with this ext commits, if it is kept."""
        half = self._halves.get(ext.get("tranStateTableOffset", ""))
        if (
            half is None
            or ext.get("commitOrRollback") != _COMMIT
            or ext.get("commitLogOffset") != half.log_offset_text
            or ext.get("transactionId") != half.unique_id
            or ext.get("producerGroup") != half.group
            or "msgId" not in ext
        ):
            return None
        return half

    def drop(self, half: RecentHalf) -> None:
        """A half message that was found is needed no more."""
        del self._halves[str(half.offset)]
        self._size -= half.size
