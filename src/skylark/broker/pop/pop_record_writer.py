"""Puts check-points and acks into the revive topic, on their way through the timer wheel.

The records themselves are in :mod:`skylark.wire.pop_records`; :mod:`skylark.broker.pop.pop_state`
decides what is written. A record is made first, which raises BrokerError if the timer refuses it,
and put then, alone, next to others, or by the put pipeline with what other requests store. It
counts for Java's metrics when it is stored.

Counterpart of ``PopMessageProcessor.buildCkMsg`` and the message of ``AckMessageProcessor`` in
Java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skylark.broker.api import Pending
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.pop_totals import ACK, CHECK_POINT, PopTotals
from skylark.broker.send.message_policy import timer_refusal
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.put_outcome import Durability
from skylark.core.clock import Clock
from skylark.core.errors import BrokerError
from skylark.core.names import revive_topic
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.pop_records import BITS, CHECK_POINT_TAG, Ack, CheckPoint, PopKey
from skylark.wire.properties import encode_properties


class Receipt(NamedTuple):
    """The check-point that a receipt handle names."""

    #: The real topic: of a retry, the retry topic.
    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    broker_name: str
    revive_queue_id: int

    @property
    def key(self) -> PopKey:
        topic, group, queue_id, start_offset, pop_time_ms, _, broker_name, _ = self
        return PopKey(topic, group, queue_id, start_offset, pop_time_ms, broker_name)


class PopRecord(Draft):
    """A check-point or an ack, to be stored in the revive topic."""

    #: Group, topic and kind, under which it counts when it is stored.
    series: tuple[str, str, str] = ("", "", "")
    is_counted: bool = False
    #: The properties in its property string.
    items: dict[str, str] = msgspec.field(default_factory=dict)
    #: What an ack acknowledges; None for a check-point.
    ack: Ack | None = None

    @property
    def has_room(self) -> bool:
        """Whether an ack may name one more message; no pop has more than that."""
        return self.ack is not None and len(self.ack.queue_offsets) < BITS


class PopRecordWriter:
    """Puts check-points and acks into the revive topic, through the timer wheel."""

    def __init__(
        self, live: LiveSettings, writer: MessageWriter, durability: Durability, clock: Clock
    ) -> None:
        self._live = live
        self._writer = writer
        self._durability = durability
        self._clock = clock
        self.totals = PopTotals()
        self._topic = revive_topic(live.current.broker_cluster_name)
        self._store_host = writer.store.log.store_host

    def put(self, *records: PopRecord) -> Pending[None] | None:
        """Store records in one run; raises BrokerError if one is not stored."""
        return self._put(records, slice(None))

    def put_change(self, check_point: PopRecord, ack: PopRecord) -> Pending[None] | None:
        """Store a new check-point and, next to it, the ack in the old one.

        Recovery takes the check-point for that of a pop otherwise. Raises BrokerError if the
        check-point is not stored. Without the ack the message comes back at the old time as well,
        as in Java.
        """
        return self._put((check_point, ack), slice(1))

    def _put(self, records: Sequence[PopRecord], needed: slice) -> Pending[None] | None:
        results = self._writer.put_run(records)
        for record, result in zip(records, results, strict=True):
            self.count(record, result)
        for result in results[needed]:
            if not result.status.stored:
                raise self._refusal(result.status)
        last = next(result for result in reversed(results) if result.status.stored)
        return self._when_durable(last)

    def count(self, record: PopRecord, result: PutResult) -> None:
        """Count a record once after its put; for callers that put it themselves."""
        if result.status.stored and not record.is_counted:
            record.is_counted = True
            self.totals.count_written(record.series)

    def _when_durable(self, result: PutResult) -> Pending[None] | None:
        # A flush or a slave that takes too long is a success, as in Java: the record is stored.
        return self._durability.when_durable(result, _ignore)

    def _refusal(self, status: PutStatus) -> BrokerError:
        error = timer_refusal(status, self._live.current)
        return self._durability.refusal(status) if error is None else error

    def check_point(self, point: CheckPoint, revive_queue_id: int) -> PopRecord:
        """The record of a check-point; raises BrokerError if the timer refuses it."""
        return self._record(
            (point.group, point.topic, CHECK_POINT),
            CHECK_POINT_TAG,
            point.encode(),
            point.unique_key,
            point.deliver_ms,
            revive_queue_id,
        )

    def ack(self, receipt: Receipt, queue_offsets: Sequence[int]) -> PopRecord:
        """The record of an ack, or of a batch ack for several offsets; raises BrokerError."""
        ack = Ack(
            topic=receipt.topic,
            group=receipt.group,
            queue_id=receipt.queue_id,
            start_offset=receipt.start_offset,
            pop_time_ms=receipt.pop_time_ms,
            broker_name=receipt.broker_name,
            queue_offsets=queue_offsets,
            is_batch=len(queue_offsets) > 1,
        )
        deliver_ms = receipt.pop_time_ms + receipt.invisible_ms
        record = self._record(
            (receipt.group, receipt.topic, ACK),
            ack.tag,
            ack.encode(),
            ack.unique_key,
            deliver_ms,
            receipt.revive_queue_id,
        )
        record.ack = ack
        return record

    def add_to_ack(self, record: PopRecord, queue_offsets: Sequence[int]) -> None:
        """Acknowledge more messages of the check-point by an ack that is not stored yet.

        Each message is named once: of an ack that is read before its check-point, the revive keeps
        only the first offsets. :meth:`complete_ack` must follow before the put.
        """
        ack = record.ack
        assert ack is not None, "a check-point acknowledges nothing"
        ack.queue_offsets = list(dict.fromkeys((*ack.queue_offsets, *queue_offsets)))
        ack.is_batch = len(ack.queue_offsets) > 1

    def complete_ack(self, record: PopRecord) -> None:
        """Give an ack that was added to its content: mostly that of a batch ack."""
        ack = record.ack
        assert ack is not None, "a check-point acknowledges nothing"
        record.body = ack.encode()
        record.items |= {names.PROPERTY_UNIQ_KEY: ack.unique_key, names.PROPERTY_TAGS: ack.tag}
        record.properties = encode_properties(record.items).encode()
        self._writer.fit_copy(record)

    def _record(
        self,
        series: tuple[str, str, str],
        tag: str,
        body: bytes,
        unique_key: str,
        deliver_ms: int,
        revive_queue_id: int,
    ) -> PopRecord:
        draft = PopRecord(
            self._topic,
            revive_queue_id,
            body,
            born_timestamp=self._clock.now_ms(),
            born_host=self._store_host,
            series=series,
        )
        properties = {
            names.PROPERTY_TIMER_DELIVER_MS: str(deliver_ms),
            names.PROPERTY_UNIQ_KEY: unique_key,
            names.PROPERTY_TAGS: tag,
        }
        refused = self._writer.prepare_own(draft, properties)
        if refused is not None:
            raise self._refusal(refused)
        draft.items = properties
        return draft


def _ignore(_status: PutStatus) -> None:
    """The outcome of a record that is stored."""
