"""Looks up who may still acknowledge one message: the check-points of a group that name it.

``message explain`` asks for it (208 with ``poppedOffset``). A check-point is in one of three
places:

* in memory (:mod:`skylark.broker.pop.check_point_buffer`), with its acks as bits;
* in the log, as a record on its way through the timer wheel, or of the revive topic if it was due
  at once; its acks are records behind it. They are found by reading these queues from the store
  time of the message on, because a message is popped after it was stored;
* of an ordered pop, in the table of :mod:`skylark.broker.pop.order_pop`.

At most :data:`RECORDS_MAX` records of each queue are read, the newest, a few per turn of the loop;
``known_since`` says where that began. An ack in memory leaves no trace when the check-point is
finished and its offset committed: then neither a check-point nor an ack is found.

Reads only. Nothing in Java corresponds to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Final, NamedTuple

from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.check_point_buffer import Held
from skylark.broker.pop.order_pop import OrderPops
from skylark.broker.pop.pop_state import PopState
from skylark.core.clock import Clock
from skylark.core.errors import RemoteProtocolError
from skylark.core.names import TIMER_TOPIC, revive_topic
from skylark.store.consume_queue import Boundary, EntryQueue
from skylark.store.message_store import MessageStore
from skylark.wire import properties as names
from skylark.wire.bodies.stats import PoppedReport
from skylark.wire.layout import CQ_ENTRY
from skylark.wire.message import RecordError, decode_record
from skylark.wire.pop_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    CheckPoint,
    PopKey,
    decode_ack,
    decode_check_point,
)

#: Records of one queue that a lookup reads at most.
RECORDS_MAX: Final = 50_000
#: Of these, records that are read in one turn of the loop.
READ_PER_TURN: Final = 200


class PoppedMessage(NamedTuple):
    """The message that a lookup is about; of a retry, ``topic`` is the retry topic."""

    topic: str
    group: str
    queue_id: int
    offset: int


class Delivery(NamedTuple):
    """One check-point of the message."""

    pop_time_ms: int
    until_ms: int
    is_acknowledged: bool
    #: Earlier deliveries that the message itself does not count: those of ordered pops.
    earlier_count: int = 0


class PoppedLookup:
    """Finds the check-points of a message; one per broker."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        state: PopState,
        order_pops: OrderPops,
        clock: Clock,
    ) -> None:
        self._live = live
        self._store = store
        self._state = state
        self._order_pops = order_pops
        self._clock = clock

    async def report(self, topic: str, group: str, queue_id: int, offset: int) -> PoppedReport:
        """The last pop of a message; raises StoreError."""
        message = PoppedMessage(topic, group, queue_id, offset)
        store, config = self._store, self._live.current
        # Memory first: a check-point that is written meanwhile is found in the log as well.
        found = [*self._in_memory(message)]
        written = _WrittenPops(message, config.broker_name)
        known_since = store.reader.store_time(topic, queue_id, offset) or 0
        revive = revive_topic(config.broker_cluster_name)
        for queue in list(store.queues):
            if queue.topic in (TIMER_TOPIC, revive):
                since_ms = await written.read(queue, store, self._clock, known_since)
                known_since = max(known_since, since_ms)
        found += written.deliveries()
        next_offset = self._state.next_offset(topic, group, queue_id)
        report = PoppedReport(known_since=known_since, next_offset=next_offset)
        _fill(report, found, self._clock.now_ms())
        return report

    def _in_memory(self, message: PoppedMessage) -> Iterator[Delivery]:
        topic, group, queue_id, offset = message
        in_hand = self._order_pops.find(topic, group, queue_id, offset)
        if in_hand is not None:
            yield Delivery(*in_hand)
        for held in self._state.in_line(topic, group, queue_id):
            delivery = _held_delivery(held, offset)
            if delivery is not None:
                yield delivery


def _held_delivery(held: Held, offset: int) -> Delivery | None:
    """What a check-point in memory says of a message; None: nothing."""
    point = held.point
    if offset - point.start_offset not in point.offset_diffs:
        return None
    if offset not in point.waiting_offsets():
        return Delivery(point.pop_time_ms, point.revive_time_ms, is_acknowledged=True)
    if held.is_finished:  # it was written: its acks are in the log
        return None
    until_ms = point.revive_time_ms
    for part in held.parts or ():
        if part.point.start_offset == offset:
            until_ms = part.point.revive_time_ms
    return Delivery(point.pop_time_ms, until_ms, is_acknowledged=False)


def _fill(report: PoppedReport, found: list[Delivery], now_ms: int) -> None:
    """Decide which delivery counts: one that is invisible, else the newest."""
    hidden = [each for each in found if not each.is_acknowledged and each.until_ms > now_ms]
    last = max(hidden or found, key=lambda each: each.pop_time_ms, default=None)
    if last is None:
        return
    report.acknowledged = last.is_acknowledged
    report.expired = not last.is_acknowledged and last.until_ms <= now_ms
    report.pop_time = last.pop_time_ms
    report.invisible_time = last.until_ms - last.pop_time_ms
    report.earlier_count = last.earlier_count


class _WrittenPops:
    """Collects the records of check-points and acks that name a message."""

    def __init__(self, message: PoppedMessage, broker_name: str) -> None:
        self._message = message
        self._broker_name = broker_name
        # Texts that are in each of these records: most others need no decoding.
        self._needles = [encode_basestring(name).encode() for name in message[:2]]
        # A message that could not be read gets a check-point with the same key and more time.
        self._points: dict[tuple[PopKey, int], CheckPoint] = {}
        self._acked: set[PopKey] = set()
        self._popped_ms: dict[PopKey, int] = {}  # of changes: when the message was popped
        self._last: tuple[int, CheckPoint] | None = None  # with the end of its record

    async def read(
        self, queue: EntryQueue, store: MessageStore, clock: Clock, since_ms: int
    ) -> int:
        """Read a queue from a time on; returns since when everything was read."""
        store_time_of = store.reader.store_time_of
        start = queue.offset_by_time(since_ms, Boundary.LOWER, store_time_of)
        if queue.max_offset - start > RECORDS_MAX:
            start = queue.max_offset - RECORDS_MAX
            entry = queue.read_entry(start)
            since_ms = (entry and store_time_of(entry.log_offset)) or clock.now_ms()
        while entries := queue.entries(start, READ_PER_TURN):
            for log_offset, size, _ in CQ_ENTRY.iter_unpack(entries):
                self._read(store, log_offset, size)
                start += 1
            await clock.sleep(0)
        return since_ms

    def _read(self, store: MessageStore, log_offset: int, size: int) -> None:
        lease = store.reader.record(log_offset)
        if lease is None:
            return
        with lease:
            raw = bytes(lease.view)
        if not all(needle in raw for needle in self._needles):
            return
        try:
            record = decode_record(raw)
            tag = record.properties.get(names.PROPERTY_TAGS)
            if tag == CHECK_POINT_TAG:
                self._add_point(decode_check_point(record.body), log_offset + size)
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                self._add_ack(record.body, log_offset, is_batch=tag == BATCH_ACK_TAG)
        except (RecordError, RemoteProtocolError):
            return  # the revive logs it

    def _add_point(self, point: CheckPoint, end: int) -> None:
        topic, group, queue_id, offset = self._message
        if (point.topic, point.group, point.queue_id) == (topic, group, queue_id):
            if offset - point.start_offset in point.offset_diffs:
                self._points[point.key, point.invisible_ms] = point
            self._last = (end, point)

    def _add_ack(self, body: bytes, log_offset: int, *, is_batch: bool) -> None:
        topic, group, queue_id, offset = self._message
        ack = decode_ack(body, is_batch=is_batch)
        key = ack.key(self._broker_name)
        if key[:3] != (topic, group, queue_id) or offset not in ack.queue_offsets:
            return
        self._acked.add(key)
        # A change writes its check-point and the ack of the old one next to each other.
        if self._last is not None and self._last[0] == log_offset and not is_batch:
            new = self._last[1]
            if new.start_offset == offset and new.pop_time_ms != ack.pop_time_ms:
                self._popped_ms[new.key] = self._popped_ms.get(key, ack.pop_time_ms)

    def deliveries(self) -> Iterator[Delivery]:
        """What was found."""
        for (key, _), point in self._points.items():
            is_waiting = self._message.offset in point.waiting_offsets()
            yield Delivery(
                self._popped_ms.get(key, point.pop_time_ms),
                point.revive_time_ms,
                is_acknowledged=key in self._acked or not is_waiting,
            )
