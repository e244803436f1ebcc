"""Popped messages, the receipts by which they are acknowledged, and the decoding of pop responses.

A pop hides each message from other consumers for its *invisible time*; until then the consumer
acknowledges it or changes the time. The broker knows the message by its receipt handle
(:mod:`skylark.wire.pop_handle`). All messages of one queue in one response have the same parts of
it but for their offset, so they share a :class:`PopReceipt`, and the text is made only where a
request needs it. A change of the invisible time gives one message a receipt of its own, with its
own offset as the start: acks of the old one have no effect any more.

**Clocks.** The broker says when it popped by its own clock. :class:`BrokerTime` translates that to
the monotonic clock of this process: the smallest difference seen in the last minutes is the
difference of the two clocks plus the shortest way of a response. So a response that waited here
because a handler blocked the loop does not look young, and clocks that differ make no message look
expired. The first response has nothing to be compared with: if its time lies between the request
and the response, the clocks are taken to agree. The result is never before the request was sent nor
after the response came.

Counterpart of ``processPopResponse`` of Java's ``MQClientAPIImpl``, which compares the two clocks
directly.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import Duration
from skylark.client.core.pop_calls import Popped
from skylark.core.errors import RemoteProtocolError
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import MessageRecord, inflate_record, iter_records, unwrap_record
from skylark.wire.pop_handle import (
    NORMAL_TOPIC,
    PopHandle,
    QueueKey,
    decode_handle,
    decode_start_offsets,
    kind_of,
    real_topic,
)
from skylark.wire.properties import PROPERTY_POP_CK, find_by_needle, needle_of

logger = logging.getLogger(__name__)

#: How long a difference of clocks counts, at least.
CLOCK_WINDOW_MS: Final = 60_000

_HANDLE_NEEDLE: Final = needle_of(PROPERTY_POP_CK.encode())
_INNER_BATCH: Final = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP


class PopReceipt(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a broker needs to know a popped message by, besides its offset."""

    topic: str  #: that was subscribed, as brokers know it
    real_topic: str  #: that the message was read from: the topic, or a retry topic of it
    kind: str  #: of the real topic, see :mod:`skylark.wire.pop_handle`
    broker_name: str
    queue_id: int
    start_offset: int
    pop_time_ms: int  #: by the clock of the broker
    invisible_ms: int
    revive_queue_id: int
    visible_at_ms: int  #: when others may get the message, by the monotonic clock of this process

    def handle(self, queue_offset: int) -> str:
        """The receipt handle of a message with this offset."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id}"
            f" {self.kind} {self.broker_name} {self.queue_id} {queue_offset}"
        )


class PoppedRecord(MessageExt):
    """A received message with its receipt; base of what both interfaces hand out."""

    __slots__ = ("_changing", "_owner", "is_begun", "is_given_back", "is_lost", "is_settled",
                 "receipt")  # fmt: skip

    def __init__(
        self,
        record: MessageRecord,
        broker_name: str,
        topic: str | None,
        receipt: PopReceipt,
        owner: Any,
    ) -> None:
        self.record = record
        self.broker_name = broker_name
        self._topic = topic
        self._inflated = False
        self.receipt = receipt  #: the newest one
        self._owner = owner
        #: Acknowledged or given back here; brokers may not know it yet.
        self.is_settled = False
        self.is_given_back = False  #: settled by giving it back
        self.is_begun = False  #: a handler of a push consumer has got it
        self.is_lost = False  #: the broker has refused to hide it for longer
        self._changing: Awaitable[None] | None = None  # a change of the invisible time

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return self.record.reconsume_times + 1

    @property
    def invisible_until(self) -> datetime:
        """When the message may be delivered again, unless it is acknowledged before."""
        return datetime.fromtimestamp(self.receipt.visible_at_ms / 1000, tz=UTC)

    @property
    def receipt_handle(self) -> str:
        """The text by which the broker knows this delivery (POP_CK)."""
        return self.receipt.handle(self.record.queue_offset)


class Settling(Protocol):
    """A pop consumer, as its messages use it."""

    async def ack(self, messages: Any) -> None: ...

    async def nack(self, message: Any, delay: Duration | None = None) -> None: ...

    async def extend(self, message: Any, seconds: Duration) -> None: ...


class PoppedMessage(PoppedRecord):
    """A message of a :class:`~skylark.aio.PopConsumer`, hidden from others for a while."""

    __slots__ = ()
    _owner: Settling

    async def ack(self) -> None:
        """The message is done; see :meth:`PopConsumer.ack <skylark.aio.PopConsumer.ack>`."""
        await self._owner.ack(self)

    async def nack(self, delay: Duration | None = None) -> None:
        """Get it again later; see :meth:`PopConsumer.nack <skylark.aio.PopConsumer.nack>`."""
        await self._owner.nack(self, delay)

    async def extend(self, seconds: Duration) -> None:
        """Hide it for longer; see :meth:`PopConsumer.extend <skylark.aio.PopConsumer.extend>`."""
        await self._owner.extend(self, seconds)


# ---- time ----------------------------------------------------------------------------------------


class BrokerTime:
    """The clock of one broker, by that of this process; see the module docstring."""

    __slots__ = ("_former", "_least", "_since_ms")

    def __init__(self) -> None:
        self._least: int | None = None  # least difference since _since_ms
        self._former: int | None = None  # and in the window before
        self._since_ms = 0

    def local_ms(self, broker_ms: int, sent_ms: int, arrived_ms: int) -> int:
        """A time of the broker that lies between a request and its response, by our clock."""
        difference = arrived_ms - broker_ms
        if self._least is None and sent_ms <= broker_ms <= arrived_ms:
            self._least, self._since_ms = difference, arrived_ms
            return broker_ms  # nothing says that the clocks differ
        if self._least is None or arrived_ms - self._since_ms >= CLOCK_WINDOW_MS:
            self._former, self._least, self._since_ms = self._least, difference, arrived_ms
        elif difference < self._least:
            self._least = difference
        least = self._least if self._former is None else min(self._least, self._former)
        return min(max(broker_ms + least, sent_ms), arrived_ms)


# ---- responses -----------------------------------------------------------------------------------

MessageT = TypeVar("MessageT", bound=PoppedRecord)
#: Makes a message: record, broker, topic to show, receipt.
MakeMessage = Callable[[MessageRecord, str, str | None, PopReceipt], MessageT]


class PopDecoder(Generic[MessageT]):
    """Makes messages of the responses of one broker for one topic and group."""

    def __init__(
        self,
        topic: str,
        group: str,
        broker_name: str,
        *,
        shown_topic: str,
        make: MakeMessage[MessageT],
        time: BrokerTime,
    ) -> None:
        """``topic`` and ``group`` as brokers know them, ``shown_topic`` as the application does."""
        self._topic = topic
        self._group = group
        self._broker_name = broker_name
        self._shown_topic = shown_topic
        self._make = make
        self._time = time

    def decode(self, popped: Popped, sent_ms: int, arrived_ms: int) -> list[MessageT]:
        """The messages of a response, up to the first one that cannot be decoded.

        Those after it are logged, and delivered again when their invisible time is over. Raises
        RemoteProtocolError if there is none before it. ``sent_ms`` and ``arrived_ms``: when the
        request was sent and the response came, by the monotonic clock.
        """
        found: list[MessageT] = []
        try:
            for message in self._messages(popped, sent_ms, arrived_ms):
                found.append(message)  # noqa: PERF402 - those before an error are kept
        except RemoteProtocolError as error:
            if not found:
                raise
            logger.warning(
                "a response of %s about %s ends after %d messages, the next cannot be decoded: %s",
                self._broker_name,
                self._shown_topic,
                len(found),
                error,
            )
        return found

    def _messages(self, popped: Popped, sent_ms: int, arrived_ms: int) -> Iterator[MessageT]:
        header = popped.header
        starts = decode_start_offsets(header.start_offset_info)
        has_retries = any(kind != NORMAL_TOPIC for kind, _ in starts)
        popped_ms = self._time.local_ms(header.pop_time, sent_ms, arrived_ms)
        receipts: dict[QueueKey, PopReceipt] = {}
        topic, broker_name, shown = self._topic, self._broker_name, self._shown_topic
        make = self._make
        for record in _records(popped.body):
            if has_retries and (text := find_by_needle(record.raw_properties, _HANDLE_NEEDLE)):
                receipt = self._of_handle(
                    decode_handle(text.decode(errors="replace"), field="POP_CK"), popped_ms
                )
            else:
                # With popResponseReturnActualRetryTopic a broker leaves the retry topic there.
                kind = NORMAL_TOPIC if record.topic == topic else kind_of(record.topic)
                key = (kind, record.queue_id)
                known = receipts.get(key)
                if known is None:
                    known = receipts[key] = self._new(popped, key, starts, record, popped_ms)
                receipt = known
            yield make(record, broker_name, shown, receipt)

    def _new(
        self,
        popped: Popped,
        key: QueueKey,
        starts: Mapping[QueueKey, int],
        record: MessageRecord,
        popped_ms: int,
    ) -> PopReceipt:
        # Brokers before 5.0.0 send no offsets: the check-point starts with its first message.
        start = starts.get(key) if starts else record.queue_offset
        if start is None:
            raise RemoteProtocolError(
                f"a popped message of queue {record.queue_id} is in no check-point"
            )
        kind, queue_id = key
        header = popped.header
        return PopReceipt(
            self._topic,
            real_topic(kind, self._topic, self._group),
            kind,
            self._broker_name,
            queue_id,
            start,
            header.pop_time,
            header.invisible_time,
            header.revive_qid,
            popped_ms + header.invisible_time,
        )

    def _of_handle(self, handle: PopHandle, popped_ms: int) -> PopReceipt:
        """The receipt of a retry, into which the broker has written the handle."""
        return PopReceipt(
            self._topic,
            real_topic(handle.kind, self._topic, self._group),
            handle.kind,
            handle.broker_name,
            handle.queue_id,
            handle.start_offset,
            handle.pop_time_ms,
            handle.invisible_ms,
            handle.revive_queue_id,
            popped_ms + handle.invisible_ms,
        )


def _records(body: bytes) -> Iterator[MessageRecord]:
    for stored in iter_records(body):
        if stored.sys_flag & _INNER_BATCH == _INNER_BATCH:
            inflate_record(stored)
            yield from unwrap_record(stored)
        else:
            yield stored


def renewed(
    message: PoppedRecord,
    *,
    pop_time_ms: int,
    invisible_ms: int,
    revive_queue_id: int,
    visible_at_ms: int,
) -> PopReceipt:
    """The receipt of one message after a change of its invisible time."""
    return msgspec.structs.replace(
        message.receipt,
        start_offset=message.record.queue_offset,
        pop_time_ms=pop_time_ms,
        invisible_ms=invisible_ms,
        revive_queue_id=revive_queue_id,
        visible_at_ms=visible_at_ms,
    )
