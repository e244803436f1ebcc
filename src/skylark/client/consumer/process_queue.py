"""Messages of one queue that were pulled and not yet consumed, and the flow control of its pulls.

The *committable offset* is that of the first message that is still here: everything before it was
consumed. A slow message delays the commit, and after a crash the messages consumed after it are
delivered again (at-least-once delivery).

**Two modes.** Concurrent consumers hand messages out as they arrive and remove them in any order
(:meth:`ProcessQueue.remove`). Orderly ones take the lowest (:meth:`ProcessQueue.take`); these are
*in flight* until they are committed or put back.

**Order.** ``_messages`` maps offsets to messages; ``_order`` has the offsets, ascending, and may
also have offsets of removed messages. Pulls bring rising offsets, so both grow at the end, and the
lowest offset is found by dropping removed ones from the front: the cost of put and remove does not
depend on the number of messages. An offset out of order (put back, or pulled again) rebuilds
``_order``.

**Sizes** are those of records as they arrived. Bodies are decompressed on access, so this is the
memory in use; Java counts decompressed bodies.

**Threads.** One loop owns the messages; another thread may set ``dropped`` and ``locked``. A
dropped queue stays dropped: check it before handing out or committing messages.

Counterpart of Java's ``ProcessQueue`` and of the checks at the start of
``DefaultMQPushConsumerImpl.pullMessage``.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from skylark.client.core.client_message import MessageExt
from skylark.client.metrics import QueueLevel
from skylark.wire.bodies.admin_body import ProcessQueueInfo
from skylark.wire.bodies.common_body import MessageQueue

NOTHING_TO_COMMIT: Final = -1

LOCK_VALID_MS: Final = 30_000  # brokers keep a lock for 60 s
PULL_EXPIRED_MS: Final = 120_000

#: A hung message goes back with this delay level, and at most so many at one check.
EXPIRED_DELAY_LEVEL: Final = 3
EXPIRED_COUNT_MAX: Final = 16

MIB: Final = 1024 * 1024


class ProcessQueue:
    """The messages of one queue inside a consumer."""

    def __init__(self, now_ms: int, *, locked: bool = False, offset_checked: bool = True) -> None:
        self._messages: dict[int, MessageExt] = {}
        self._order: deque[int] = deque()
        self._in_flight: dict[int, MessageExt] = {}
        self._started: dict[int, int] = {}  # offset -> when a handler got it
        self._going_back: set[int] = set()  # offsets, see going_back
        self._drained: Callable[[], object] | None = None
        self._drained_count = 0
        self.queue_offset_max = 0  #: offset of the last message that was put
        self.size = 0  #: bytes of all messages that are here, in flight ones included
        self.dropped = False  #: given up: its messages must not be handed out or committed
        #: since when no more messages are handed out, because the queue will be given up; those
        #: that handlers have are still committed
        self.closing_ms: int | None = None
        self.locked = locked  #: the broker has granted the queue lock
        self.consuming = False  #: an orderly task runs
        #: the start offset was read when no other consumer could commit any more
        self.offset_checked = offset_checked
        self.last_pull_ms = self.last_consume_ms = self.last_lock_ms = now_ms
        self.try_unlock_times = 0

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else "locked" if self.locked else "open"
        return f"<ProcessQueue {state} {self.count} messages, {self.size} bytes>"

    # ---- content ----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of messages, with those in flight."""
        return len(self._messages) + len(self._in_flight)

    @property
    def span(self) -> int:
        """Offsets from the first message that is still here to the last that was pulled.

        So many are delivered again if the consumer crashes. Java measures up to the last message
        that is still here, so it never stops pulling while all but one are consumed quickly.
        """
        if not self._messages:
            return 0
        return max(self._order[-1], self.queue_offset_max) - self._first_offset()

    @property
    def is_closing(self) -> bool:
        """Whether no more messages are handed out: the queue was or will be given up."""
        return self.dropped or self.closing_ms is not None

    @property
    def is_handed_out(self) -> bool:
        """Whether handlers have messages; from any thread."""
        return bool(self._started)

    def __contains__(self, message: MessageExt) -> bool:
        return message.record.queue_offset in self._messages

    # ---- putting and removing --------------------------------------------------------------------

    def put(self, messages: Sequence[MessageExt]) -> bool:
        """Add pulled messages; returns whether an orderly task must be started.

        A message that is already here is replaced.
        """
        if messages:
            offsets = [message.record.queue_offset for message in messages]
            order, here = self._order, self._messages
            if (not order or order[-1] < offsets[0]) and offsets == sorted(set(offsets)):
                order.extend(offsets)
                here.update(zip(offsets, messages, strict=True))
                self.size += sum([message.record.total_size for message in messages])
                self.queue_offset_max = offsets[-1]
            else:
                self._put_out_of_order(messages)
        if self._messages and not self.consuming:
            self.consuming = True
            return True
        return False

    def _put_out_of_order(self, messages: Iterable[MessageExt]) -> None:
        here = self._messages
        for message in messages:
            offset = message.record.queue_offset
            known = here.get(offset)
            if known is None:
                self.queue_offset_max = offset
            else:
                self.size -= known.record.total_size
            here[offset] = message
            self.size += message.record.total_size
        self._order = deque(sorted(here))

    def remove(self, messages: Iterable[MessageExt], now_ms: int) -> int:
        """Remove settled messages; returns the offset to commit, or -1 if there were none."""
        self.last_consume_ms = now_ms
        here = self._messages
        if not here:
            return NOTHING_TO_COMMIT
        size = 0
        started = self._started
        for message in messages:
            offset = message.record.queue_offset
            known = here.pop(offset, None)
            if known is not None:
                size += known.record.total_size
                if started:
                    started.pop(offset, None)
        self.size -= size
        if self._drained is not None:
            self._notify_drained()
        return self._first_offset()

    def _first_offset(self) -> int:
        """The lowest offset that is still here, else the one after the last."""
        messages, order = self._messages, self._order
        if not messages:
            order.clear()
            self._started.clear()
            return self.queue_offset_max + 1
        while order[0] not in messages:
            order.popleft()
        return order[0]

    def call_when_drained(self, count: int, callback: Callable[[], object] | None) -> None:
        """Call ``callback`` once, when at most ``count`` messages are left; None: not any more."""
        self._drained_count = count
        self._drained = callback

    def _notify_drained(self) -> None:
        callback = self._drained
        if callback is not None and self.count <= self._drained_count:
            self._drained = None
            callback()

    def clear(self) -> None:
        """Remove all messages, because the queue continues at another offset."""
        self._messages.clear()
        self._in_flight.clear()
        self._started.clear()
        self._order.clear()
        self.size = self.queue_offset_max = 0

    # ---- in order --------------------------------------------------------------------------------

    def take(self, count: int, now_ms: int) -> list[MessageExt]:
        """Take the lowest messages into flight; an empty list ends the orderly task."""
        self.last_consume_ms = now_ms
        messages, order, in_flight = self._messages, self._order, self._in_flight
        taken: list[MessageExt] = []
        while order and len(taken) < count:
            offset = order.popleft()
            message = messages.pop(offset, None)
            if message is not None:
                if (pulled_before := in_flight.get(offset)) is not None:
                    self.size -= pulled_before.record.total_size
                in_flight[offset] = message
                taken.append(message)
        if not taken:
            self.consuming = False
        return taken

    def commit(self) -> int:
        """Remove the messages in flight; returns the offset to commit, or -1 if there are none."""
        in_flight = self._in_flight
        if not in_flight:
            return NOTHING_TO_COMMIT
        offset = max(in_flight) + 1
        self.size -= sum([message.record.total_size for message in in_flight.values()])
        in_flight.clear()
        if self._drained is not None:
            self._notify_drained()
        return offset

    def rollback(self) -> None:
        """Put all messages in flight back."""
        self.make_again(list(self._in_flight.values()))

    def make_again(self, messages: Iterable[MessageExt]) -> None:
        """Put these messages back; the others stay in flight."""
        here = self._messages
        for message in messages:
            offset = message.record.queue_offset
            if self._in_flight.pop(offset, None) is not None:
                if (pulled_again := here.get(offset)) is not None:
                    self.size -= pulled_again.record.total_size
                here[offset] = message
        self._order = deque(sorted(here))

    # ---- handlers that hang ----------------------------------------------------------------------

    def start(self, messages: Iterable[MessageExt], now_ms: int) -> None:
        """Record that a handler gets these messages."""
        started = self._started
        for message in messages:
            started[message.record.queue_offset] = now_ms

    def expired(self, now_ms: int, timeout_ms: int) -> MessageExt | None:
        """The first message, if a handler has had it for longer than ``timeout_ms``.

        It goes back to the broker, then :meth:`remove_first`; at most EXPIRED_COUNT_MAX at a check.
        A message that goes back already has not expired.
        """
        if not self._messages:
            return None
        offset = self._first_offset()
        started = self._started.get(offset)
        if started is None or now_ms - started <= timeout_ms or offset in self._going_back:
            return None
        return self._messages[offset]

    def remove_first(self, message: MessageExt, now_ms: int) -> int:
        """Remove a message that was sent back, unless its handler has ended since.

        Returns the offset to commit, or -1.
        """
        if self._messages and self._first_offset() == message.record.queue_offset:
            return self.remove([message], now_ms)
        return NOTHING_TO_COMMIT

    @contextmanager
    def going_back(self, messages: Iterable[MessageExt]) -> Iterator[None]:
        """The block sends these messages back, and nothing else does meanwhile.

        A handler may fail while the check for hanging ones sends its message back, and the check
        may come while the messages of a failed handler are sent back.
        """
        offsets = {message.record.queue_offset for message in messages}
        self._going_back |= offsets
        try:
            yield
        finally:
            self._going_back -= offsets

    def is_going_back(self, message: MessageExt) -> bool:
        """Whether a block of :meth:`going_back` sends the message back."""
        return message.record.queue_offset in self._going_back

    # ---- locks and pulls -------------------------------------------------------------------------

    def lock(self, now_ms: int) -> None:
        """Record that the broker has granted the queue lock."""
        self.locked = True
        self.last_lock_ms = now_ms

    def is_lock_valid(self, now_ms: int) -> bool:
        """Whether the queue lock is held and has not expired."""
        return self.locked and now_ms - self.last_lock_ms <= LOCK_VALID_MS

    def is_pull_expired(self, now_ms: int) -> bool:
        """Whether its pull loop has stopped."""
        return now_ms - self.last_pull_ms > PULL_EXPIRED_MS

    def info(self, commit_offset: int) -> ProcessQueueInfo:
        """The state of the queue for running info (307)."""
        info = ProcessQueueInfo(
            commit_offset=commit_offset,
            locked=self.locked,
            try_unlock_times=self.try_unlock_times,
            last_lock_timestamp=self.last_lock_ms,
            dropped=self.dropped,
            last_pull_timestamp=self.last_pull_ms,
            last_consume_timestamp=self.last_consume_ms,
        )
        # Called from another thread: copy before reading twice.
        if here := list(self._messages):
            info.cached_msg_min_offset, info.cached_msg_max_offset = min(here), max(here)
        info.cached_msg_count = len(here)
        info.cached_msg_size_in_mib = self.size // MIB
        if in_flight := list(self._in_flight):
            info.transaction_msg_min_offset = min(in_flight)
            info.transaction_msg_max_offset = max(in_flight)
        info.transaction_msg_count = len(in_flight)
        return info


def queue_level(
    shown_topic: Callable[[str], str],
    queue: MessageQueue,
    process_queue: ProcessQueue,
    behind: int,
) -> QueueLevel:
    """The level of a queue for metrics; ``behind``: messages at the broker."""
    return QueueLevel(
        topic=shown_topic(queue.topic),
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        count=process_queue.count,
        size=process_queue.size,
        behind=behind,
    )


# ---- when to pull --------------------------------------------------------------------------------


class HoldReason(enum.Enum):
    """Why a queue is not pulled now."""

    DROPPED = "the queue was given up"
    NOT_RUNNING = "the consumer is not running"
    PAUSED = "the consumer is paused"
    COUNT = "too many messages wait"
    SIZE = "too many bytes wait"
    SPAN = "the first message is too far before the last"
    NOT_LOCKED = "the broker has not granted the queue"
    OFFSET_UNCHECKED = "another consumer may have committed before the queue was granted"
    NO_SUBSCRIPTION = "the topic is not subscribed any more"


class Hold(msgspec.Struct, frozen=True):
    """Do not pull now: check again after ``delay_ms``; None: never."""

    reason: HoldReason
    delay_ms: int | None
    should_log: bool = False


PAUSED_DELAY_MS: Final = 1_000
FLOW_CONTROL_DELAY_MS: Final = 50
#: After the answer FLOW_CONTROL (215) of a broker.
BROKER_FLOW_CONTROL_DELAY_MS: Final = 20
ERROR_DELAY_MS: Final = 1_000  # pullTimeDelayMillsWhenException
LOGGED_EVERY: Final = 1_000
#: Of pulls that fail one after the other the first is logged, and then about one a minute.
FAILURES_PER_LOG: Final = 60


class FlowControl:
    """Decides when the queues of one consumer may be pulled; limits may change at any time."""

    def __init__(
        self,
        *,
        count_max: int = 1_000,
        size_max: int = 100 * MIB,
        span_max: int = 2_000,
        orderly: bool = False,
        error_delay_ms: int = ERROR_DELAY_MS,
    ) -> None:
        self.count_max = count_max  #: messages of one queue
        self.size_max = size_max  #: bytes of one queue
        self.span_max = span_max  #: offsets from the first to the last; not for orderly consumers
        self._orderly = orderly
        self._error_delay_ms = error_delay_ms
        self._held_times = 0

    def may_pull(
        self,
        queue: ProcessQueue,
        now_ms: int,
        *,
        running: bool = True,
        paused: bool = False,
        subscribed: bool = True,
    ) -> Hold | None:
        """None if the queue may be pulled; counts as a pull, because its loop runs.

        With OFFSET_UNCHECKED the caller reads the start offset again, now that the queue is
        locked or its old owner had time, sets ``offset_checked`` and calls this again.
        """
        if queue.is_closing:
            return Hold(HoldReason.DROPPED, None)
        queue.last_pull_ms = now_ms
        if not running:
            return Hold(HoldReason.NOT_RUNNING, self._error_delay_ms)
        if paused:
            return Hold(HoldReason.PAUSED, PAUSED_DELAY_MS)
        if queue.count > self.count_max:
            return self._held(HoldReason.COUNT)
        if queue.size > self.size_max:
            return self._held(HoldReason.SIZE)
        if not self._orderly and queue.span > self.span_max:
            return self._held(HoldReason.SPAN)
        if self._orderly and not queue.locked:
            return Hold(HoldReason.NOT_LOCKED, self._error_delay_ms)
        if not queue.offset_checked:
            return Hold(HoldReason.OFFSET_UNCHECKED, 0)
        if not subscribed:
            return Hold(HoldReason.NO_SUBSCRIPTION, self._error_delay_ms)
        return None

    def room(self, queue: ProcessQueue) -> int:
        """How many more messages may be pulled before a limit is reached."""
        room = self.count_max - queue.count
        return room if self._orderly else min(room, self.span_max - queue.span)

    def _held(self, reason: HoldReason) -> Hold:
        should_log = self._held_times % LOGGED_EVERY == 0
        self._held_times += 1
        return Hold(reason, FLOW_CONTROL_DELAY_MS, should_log)
