"""Acknowledges popped messages: ACK, BATCH_ACK, and changes of the invisible time.

The three are steps of the put pipeline (:mod:`skylark.broker.send.put_pipeline`), because most of
them store a record: acks that come together are stored by one put, those of one pop as one record
(a batch ack, as if the client had sent one), and an ack that only marks a check-point in memory
stores nothing. The records of a batch ack are one put, too; the size of a
batch is limited (:data:`BATCH_ENTRIES_MAX`, :data:`BATCH_OFFSETS_MAX`), because all of it is done
in one turn of the loop.

Checks and codes are Java's: 17 without the topic, 13 for a queue that it does not have, 208 for an
offset outside the queue, 1 for a receipt handle that cannot be read; and 26 for a name that is too
long for a group. An ack that comes too late, or whose handle names nothing that was popped here
(another broker, another group, a forged time), is answered with 0 and has no effect, as in Java;
the remark says so where the broker can tell.

Messages that are consumed in order have no check-points: their acks move the offset of the group
(:mod:`skylark.broker.pop.order_pop`).

Counterpart of Java's ``AckMessageProcessor`` and ``ChangeInvisibleTimeProcessor``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from skylark.broker.api import AckResult, Peer, Pending
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.order_pop import ILLEGAL, OrderPops
from skylark.broker.pop.pop_checks import PopChecks, illegal_queue
from skylark.broker.pop.pop_record_writer import PopRecord, Receipt
from skylark.broker.pop.pop_state import PopState
from skylark.broker.pop.record_bounds import record_end
from skylark.broker.send.put_outcome import Durability
from skylark.broker.send.put_pipeline import Done, Drafted, Joined
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.core.errors import (
    BrokerError,
    InvalidParameterError,
    MessageIllegalError,
    RemoteProtocolError,
    RequestNotSupportedError,
    TopicNotExistError,
)
from skylark.core.names import Address
from skylark.net.success_response import FAQ_HINT
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from skylark.wire.pop_handle import (
    ORDER_REVIVE_QUEUE,
    PopHandle,
    decode_handle,
    real_topic,
)

#: Entries of a batch ack, each for one pop of one queue.
BATCH_ENTRIES_MAX: Final = 4_096
#: Offsets of a batch ack that the queues have.
BATCH_OFFSETS_MAX: Final = 32_768
#: An ordered message becomes visible within these times: a receipt handle has 18 digits, and the
#: file of ordered pops 64 bits.
_VISIBLE_MS_MAX: Final = 10**17

_OFFSET: Final = re.compile("[0-9]{1,18}")  # the last field of a receipt handle
_ACKED: Final = AckResult()
_DONE: Final = Done(_ACKED)


class Acknowledger:
    """What the three steps share: checks, and acks of messages that are consumed in order."""

    def __init__(
        self,
        live: LiveSettings,
        checks: PopChecks,
        topics: TopicTable,
        store: MessageStore,
        state: PopState,
        offsets: OffsetTable,
        order_pops: OrderPops,
        clock: Clock,
    ) -> None:
        self.live = live
        self.checks = checks
        self._topics = topics
        self._store = store
        self.state = state
        self._offsets = offsets
        self.order_pops = order_pops
        self.clock = clock
        #: Called with topic, group and queue when what is in hand in order has changed, and when
        #: an ordered pop may continue.
        self.on_order_changed: Callable[[str, str, int], object] = lambda *_queue: None
        self.on_order_free: Callable[[str, str, int], object] = lambda *_queue: None
        #: For statistics: called with topic, group and number of messages, and for each new
        #: check-point.
        self.on_acked: Callable[[str, str, int], object] = lambda *_counts: None
        self.on_check_point: Callable[[str, str], object] = lambda *_names: None

    def check(
        self, peer: Peer, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
    ) -> None:
        """Raise BrokerError for a topic, queue or role that cannot be."""
        topic = self._topics.get(header.topic)
        if topic is None:
            raise TopicNotExistError(
                f"topic[{header.topic}] not exist, apply first please! {FAQ_HINT}"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise MessageIllegalError(illegal_queue(peer, header, topic))
        if header.lite_topic:
            raise RequestNotSupportedError("this broker has no lite topics")
        self.checks.group_name(header.consumer_group)
        self.checks.role()

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first offset of a queue, and the end of it."""
        reader = self._store.reader
        return reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)

    def has_no_effect(self, handle: PopHandle | BatchAck, broker_name: str) -> str | None:
        """Why a handle cannot name a check-point of this broker; None if it can."""
        config = self.live.current
        if broker_name != config.broker_name:
            return f"no effect: the message was popped from broker {broker_name:.100}"
        if not self.state.may_have_revive_queue(handle.revive_queue_id):
            return f"no effect: there is no revive queue {handle.revive_queue_id}"
        pop_time_ms, invisible_ms = _times(handle)
        latest_ms = self.clock.now_ms() + 1000 * config.timer_max_delay_sec
        if not 0 < pop_time_ms <= latest_ms or pop_time_ms + invisible_ms > latest_ms:
            return "no effect: the times of the receipt handle cannot be"
        return None

    def ack_in_order(
        self, peer: Peer, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int
    ) -> None:
        """Acknowledge a message that is consumed in order; raises BrokerError (13)."""
        committed = self._offsets.get(group, topic, queue_id)
        if offset < committed:
            return
        next_offset = self.order_pops.ack(topic, group, queue_id, offset, pop_time_ms, committed)
        if next_offset == ILLEGAL:
            raise MessageIllegalError(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed},"
                f" commit:{offset}, next:{next_offset}, /{Address(*peer.remote_address)}"
            )
        if next_offset < 0:
            return
        next_offset = record_end(self._store.queues.get(topic, queue_id), next_offset)
        if not self._offsets.has_reset(group, topic, queue_id):
            self._offsets.commit(group, topic, queue_id, next_offset)
        self._order_changed(topic, group, queue_id)

    def change_in_order(
        self, header: ChangeInvisibleTimeRequestHeader, handle: PopHandle
    ) -> ChangeInvisibleTimeResponseHeader:
        """Set when a message that is consumed in order becomes visible."""
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        if header.offset < self._offsets.get(group, topic, queue_id):
            return ChangeInvisibleTimeResponseHeader()
        visible_ms = self.clock.now_ms() + header.invisible_time
        visible_ms = max(-_VISIBLE_MS_MAX, min(visible_ms, _VISIBLE_MS_MAX))
        self.order_pops.change_visible_time(
            topic, group, queue_id, header.offset, handle.pop_time_ms, visible_ms
        )
        self._order_changed(topic, group, queue_id)
        return ChangeInvisibleTimeResponseHeader(
            pop_time=handle.pop_time_ms,
            invisible_time=visible_ms - handle.pop_time_ms,
            revive_qid=ORDER_REVIVE_QUEUE,
        )

    def _order_changed(self, topic: str, group: str, queue_id: int) -> None:
        self.on_order_changed(topic, group, queue_id)
        if not self.order_pops.is_blocked(topic, group, queue_id, self.clock.now_ms()):
            self.on_order_free(topic, group, queue_id)


class _NamedPop(NamedTuple):
    """A pop that an ack of the current put has named, after all checks of the ack."""

    put_number: int
    #: The receipt handle up to the offset of the message, which is its last field.
    handle: str
    min_offset: int
    max_offset: int
    receipt: Receipt


class AckStep:
    """ACK_MESSAGE (200051).

    Clients acknowledge the messages of one pop one by one, and these acks come together. So the
    pop that was named last in a put is remembered: the next ack of it needs no checks but that of
    its offset.
    """

    def __init__(
        self, common: Acknowledger, durability: Durability, put_number: Callable[[], int]
    ) -> None:
        """``put_number``: that of the pipeline."""
        self._common = common
        self._durability = durability
        self._put_number = put_number
        self._named: _NamedPop | None = None
        # Acks of the put that are stored: by check-point, each with what joins it.
        self._open: dict[Receipt, Joined] = {}
        self._open_number = -1

    def draft(self, peer: Peer, request: AckMessageRequestHeader) -> Drafted:
        """Check an ack, and mark the message or make the record of the ack."""
        put_number = self._put_number()
        if self._open_number != put_number:
            self._open = {}
            self._open_number = put_number
        pop = self._same_pop(request, put_number)
        if pop is None:
            found = self._check(peer, request, put_number)
            if isinstance(found, Done):
                return found
            pop = found
        self._common.on_acked(request.topic, request.consumer_group, 1)
        return self._draft(pop.receipt, request.offset)

    def _same_pop(self, request: AckMessageRequestHeader, put_number: int) -> _NamedPop | None:
        """The pop that was named last, if this ack names it, too."""
        named = self._named
        if named is None or named.put_number != put_number:
            return None
        handle, _, offset = request.extra_info.rpartition(" ")
        is_same = (
            handle == named.handle
            and request.topic == named.receipt.topic
            and request.consumer_group == named.receipt.group
            and request.queue_id == named.receipt.queue_id
            and named.min_offset <= request.offset <= named.max_offset
            and not request.lite_topic
            and _OFFSET.fullmatch(offset)
        )
        return named if is_same else None

    def _check(
        self, peer: Peer, request: AckMessageRequestHeader, put_number: int
    ) -> _NamedPop | Done:
        """The pop that an ack names, or the outcome of an ack that needs no record."""
        common = self._common
        common.check(peer, request)
        topic, group, queue_id = request.topic, request.consumer_group, request.queue_id
        offset = request.offset
        min_offset, max_offset = common.bounds(topic, queue_id)
        if not min_offset <= offset <= max_offset:
            raise _no_message(
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset},"
                f" store:{min_offset}~{max_offset}"
            )
        handle = decode_handle(request.extra_info)
        if handle.is_ordered:
            common.ack_in_order(peer, topic, group, queue_id, offset, handle.pop_time_ms)
            return _DONE
        reason = common.has_no_effect(handle, handle.broker_name)
        if reason is not None:
            return Done(AckResult(reason))
        text = request.extra_info.rpartition(" ")[0]
        found = _NamedPop(put_number, text, min_offset, max_offset, _receipt(request, handle))
        if handle.queue_offset >= 0 and handle.log_offset < 0:
            self._named = found
        return found

    def _draft(self, receipt: Receipt, offset: int) -> Drafted:
        state, joined = self._common.state, self._open.get(receipt)
        open_ack = None
        if joined is not None:
            assert isinstance(joined.draft, PopRecord)
            open_ack = joined.draft if joined.draft.has_room else None
        draft = state.ack_draft(receipt, (offset,), open_ack)
        if draft is None:
            return _DONE
        if draft is open_ack:
            assert joined is not None
            return joined
        self._open[receipt] = Joined(draft, partial(state.records.complete_ack, draft))
        return draft

    def finish(
        self,
        request: AckMessageRequestHeader,
        draft: PopRecord,
        result: PutResult,
        *,
        is_durable: bool,
    ) -> AckResult | Pending[AckResult]:
        """The outcome after the put; a flush or slave that takes too long is a success."""
        del request
        self._common.state.records.count(draft, result)
        if not result.status.stored:
            raise self._durability.refusal(result.status)
        if is_durable:
            return _ACKED
        return self._durability.when_durable(result, _acked)


class BatchAckStep:
    """BATCH_ACK_MESSAGE (200151)."""

    def __init__(self, common: Acknowledger) -> None:
        self._common = common

    def draft(self, peer: Peer, request: BatchAckMessageRequestBody) -> Drafted:
        """Acknowledge all messages of a request; nothing is done if one entry cannot be read."""
        common = self._common
        if not request.acks:
            raise _no_message("the request has no acks")
        common.checks.role()
        records: list[PopRecord] = []
        remark: str | None = None
        error: BrokerError | None = None
        broker_name = request.broker_name
        if not broker_name.strip():  # this broker is meant, as in Java
            broker_name = common.live.current.broker_name
        for entry, topic, mask in self._read(request.acks):
            try:
                reason = self._ack(peer, entry, topic, mask, broker_name, records)
            except BrokerError as refused:  # the others count all the same, as in Java
                error = error or refused
                continue
            remark = remark or reason
        pending: Pending[None] | None = None
        if records:
            try:
                pending = common.state.records.put(*records)
            except BrokerError as refused:
                error = error or refused
        if error is not None:
            raise error
        return Done(_when_all([] if pending is None else [pending], AckResult(remark)))

    def _read(self, entries: list[BatchAck]) -> list[tuple[BatchAck, str, int]]:
        """Each entry with its topic, and a mask of the offsets that its queue has.

        Raises BrokerError for a batch that is too large, before anything is done or unpacked.
        """
        if len(entries) > BATCH_ENTRIES_MAX:
            raise InvalidParameterError(
                f"the batch ack has {len(entries)} entries, more than {BATCH_ENTRIES_MAX}"
            )
        found = []
        count = 0
        for entry in entries:
            topic = _topic(entry)
            min_offset, max_offset = self._common.bounds(topic, entry.queue_id)
            mask = _mask(entry, min_offset, max_offset)
            count += mask.bit_count()
            if count > BATCH_OFFSETS_MAX:
                raise InvalidParameterError(
                    f"the batch ack names more than {BATCH_OFFSETS_MAX} messages"
                )
            found.append((entry, topic, mask))
        return found

    def _ack(
        self,
        peer: Peer,
        entry: BatchAck,
        topic: str,
        mask: int,
        broker_name: str,
        records: list[PopRecord],
    ) -> str | None:
        """Acknowledge one entry, perhaps by one more record; why it has no effect, or None."""
        common, group, queue_id = self._common, entry.consumer_group, entry.queue_id
        if not mask:
            return "no effect: the queue does not have these offsets"
        common.checks.group_name(group)
        offsets = entry.offsets_of(mask)
        if entry.revive_queue_id == ORDER_REVIVE_QUEUE:
            self._ack_in_order(peer, entry, topic, offsets)
            return None
        reason = common.has_no_effect(entry, broker_name)
        if reason is not None:
            return reason
        common.on_acked(topic, group, len(offsets))
        receipt = Receipt(
            topic,
            group,
            queue_id,
            entry.start_offset,
            entry.pop_time,
            entry.invisible_time,
            broker_name,
            entry.revive_queue_id,
        )
        record = common.state.ack_draft(receipt, offsets)
        if record is not None:
            records.append(record)
        return None

    def _ack_in_order(self, peer: Peer, entry: BatchAck, topic: str, offsets: list[int]) -> None:
        """Acknowledge the messages that were popped; raises BrokerError if others are named."""
        error: BrokerError | None = None
        group, queue_id, pop_time_ms = entry.consumer_group, entry.queue_id, entry.pop_time
        for offset in offsets:
            try:
                self._common.ack_in_order(peer, topic, group, queue_id, offset, pop_time_ms)
            except BrokerError as refused:
                error = error or refused
        if error is not None:
            raise error

    def finish(
        self, request: object, draft: object, result: PutResult, *, is_durable: bool
    ) -> object:
        """Never called: the step has put its records itself."""
        raise AssertionError("this step has no drafts")


class ChangeInvisibleTimeStep:
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    def __init__(self, common: Acknowledger) -> None:
        self._common = common

    def draft(self, peer: Peer, request: ChangeInvisibleTimeRequestHeader) -> Drafted:
        """Give a message a new check-point, and acknowledge it in the old one."""
        common = self._common
        common.check(peer, request)
        topic, queue_id = request.topic, request.queue_id
        min_offset, max_offset = common.bounds(topic, queue_id)
        if not min_offset <= request.offset < max_offset:
            raise _no_message(
                f"offset is illegal, key:{topic}@{queue_id}, offset:{request.offset},"
                f" store:{min_offset}~{max_offset}"
            )
        handle = decode_handle(request.extra_info)
        if handle.is_ordered:
            return Done(common.change_in_order(request, handle))
        reason = common.has_no_effect(handle, handle.broker_name)
        if reason is not None:
            raise BrokerError(f"the invisible time cannot be changed, {reason}")
        try:
            changed = common.state.change_invisible_time(
                _receipt(request, handle),
                request.offset,
                request.invisible_time,
                suspend=request.suspend,
            )
        except BrokerError as error:
            raise BrokerError(f"the invisible time was not changed: {error}") from error
        common.on_check_point(topic, request.consumer_group)
        common.on_acked(topic, request.consumer_group, 1)
        answer = ChangeInvisibleTimeResponseHeader(
            pop_time=changed.pop_time_ms,
            invisible_time=request.invisible_time,
            revive_qid=handle.revive_queue_id,
        )
        if changed.pending is None:
            return Done(answer)
        return Done(_when_all([changed.pending], answer))

    def finish(
        self, request: object, draft: object, result: PutResult, *, is_durable: bool
    ) -> object:
        """Never called: the step has put its records itself."""
        raise AssertionError("this step has no drafts")


def _receipt(
    header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, handle: PopHandle
) -> Receipt:
    return Receipt(
        header.topic,
        header.consumer_group,
        header.queue_id,
        handle.start_offset,
        handle.pop_time_ms,
        handle.invisible_ms,
        handle.broker_name,
        handle.revive_queue_id,
    )


def _times(handle: PopHandle | BatchAck) -> tuple[int, int]:
    if isinstance(handle, PopHandle):
        return handle.pop_time_ms, handle.invisible_ms
    return handle.pop_time, handle.invisible_time


def _mask(entry: BatchAck, min_offset: int, max_offset: int) -> int:
    try:
        return entry.mask(min_offset, max_offset)
    except RemoteProtocolError as error:
        raise BrokerError(f"the bit set of a batch ack cannot be read: {error}") from error


def _topic(entry: BatchAck) -> str:
    if entry.retry not in ("0", "1", "2"):
        raise BrokerError(
            "getRetry fail, format is wrong",
            hint=f"r is {entry.retry:.100}, not 0, 1 or 2",
            code=ResponseCode.SYSTEM_ERROR,
        )
    return real_topic(entry.retry, entry.topic, entry.consumer_group)


def _no_message(remark: str) -> BrokerError:
    return BrokerError(remark, code=ResponseCode.NO_MESSAGE)


def _acked(_status: PutStatus) -> AckResult:
    return _ACKED


def _when_all(waits_for: list[Pending[None]], outcome: object) -> object:
    """The outcome when everything is durable, now or as a Pending."""
    if not waits_for:
        return outcome
    pending: Pending[object] = Pending()
    left = len(waits_for)

    def durable(_result: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            pending.set(outcome)

    for each in waits_for:
        each.then(partial(durable))
    return pending
