"""Decisions about half messages (37), and the life of everything that has to do with them.

**Once.** A decision counts once, whoever repeats it and whichever copy it names
(:mod:`skylark.broker.transaction.decisions`): the same one again is a success that stores nothing,
the opposite one is refused. In Java every commit stores a message.

**Order.** A commit stores the final message, notes the decision in memory and collects it for the
next op message. A rollback has no message of its own, so its op message is all there is of it.

What a crash leaves at each step of a commit:

* nothing of the final message: the half message is undecided, its producer will be asked;
* the final message without op message: recovery finds it, and the decision stands;
* both: so it was meant.

**Acknowledged.** Java's producers send decisions one-way. Whoever waits for an answer to a rollback
gets it when an op message is stored, at once and not seconds later; with SYNC_FLUSH every answer
waits for the disk. An answer to a repeated decision promises no less than the first one did.

Answers to ``EndTransactionProcessor`` and ``TransactionalMessageServiceImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.check_back import CheckRounds
from skylark.broker.transaction.decisions import Fate
from skylark.broker.transaction.evicted import can_look_up, look_up, was_committed
from skylark.broker.transaction.half_message import Half, read_half
from skylark.broker.transaction.op_messages import OpBatch, op_draft
from skylark.broker.transaction.recent_halves import PlainHalf, RecentHalf, RecentHalves
from skylark.broker.transaction.record_lookup import read_record
from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.broker.transaction.transaction_recovery import Recovered, recover
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import BrokerError, ServiceNotAvailableError, SystemBusyError
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.txn import TRANSACTION_COMMIT, EndTransactionRequestHeader
from skylark.wire.message import MessageRecord
from skylark.wire.properties import PROPERTY_REAL_TOPIC, find_raw_property

log = logging.getLogger(__name__)

NOT_FOUND: Final = "Find prepared transaction message failed"
WRONG_GROUP: Final = "The producer group wrong"
WRONG_QUEUE_OFFSET: Final = "The transaction state table offset wrong"
RESUME_FAILED: Final = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
ALREADY: Final = {
    Fate.COMMITTED: "half already committed",
    Fate.ROLLED_BACK: "half already rolled back",
}
_REAL_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
#: An op message is written as a mark when more than this was appended since the last one.
UNMARKED_SIZE_MAX: Final = 64 << 20


class NotStoredError(BrokerError):
    """The final message was not stored; the half message stays undecided."""

    def __init__(self, status: PutStatus) -> None:
        super().__init__(status.name, code=status.code)
        self.status = status


class TransactionService:
    """The transactions of one broker; only a master starts it."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        producers: ProducerTable,
        topics: TopicTable,
        offsets: OffsetTable,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._live = live
        self._writer = writer
        self._store = writer.store
        self._producers = producers
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._clock = clock
        self.counts = TransactionCounts(clock)
        #: Half messages that can be committed without a look at the log.
        self.recent = RecentHalves()
        self._ops = OpBatch()
        self._op_timer: TimerHandle | None = None
        self._recovered: Recovered | None = None
        self._rounds: CheckRounds | None = None

    # --- life -------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read back what is decided: when the store is open, and nobody else uses it."""
        self._recovered = recover(self._store, self._offsets)

    def start(self) -> None:
        """Begin with checks; before requests are served."""
        recovered = self.state
        self._rounds = CheckRounds(
            self._live,
            self._writer,
            self._producers,
            self._topics,
            self._offsets,
            self._stats,
            self.counts,
            self._clock,
            recovered,
            mark_log=self._mark_log,
        )
        if recovered.unwritten:
            self._ops.add(recovered.unwritten)
            self._write_ops()
        self._rounds.start()

    def stop(self) -> None:
        """End all checks and write what was collected; after the last request."""
        if self._rounds is not None:
            self._rounds.stop()
        if self._ops and self._write_ops() is None:
            log.error("decisions without op message: their half messages may be asked about again")
        if self._op_timer is not None:  # also one that a failed write has just set
            self._op_timer.cancel()
            self._op_timer = None

    @property
    def state(self) -> Recovered:
        """What is known about half messages."""
        if self._recovered is None:
            raise ServiceNotAvailableError("this broker does not serve transactions")
        return self._recovered

    @property
    def rounds(self) -> CheckRounds:
        """The rounds of checks; only after ``start``."""
        if self._rounds is None:
            raise ServiceNotAvailableError("this broker does not serve transactions")
        return self._rounds

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for any timer."""
        return self._op_timer is None and not self.rounds.is_armed

    def half_stored(self, draft: Draft) -> None:
        """A half message was stored."""
        topic = find_raw_property(draft.properties, _REAL_TOPIC) or b""
        self.halves_stored(topic.decode("utf-8", "replace"), 1)

    def plain_half_stored(self, half: PlainHalf, result: PutResult) -> None:
        """A plain half message was stored."""
        self.recent.add(half, result)
        self.halves_stored(half.topic, 1)

    def halves_stored(self, topic: str, count: int) -> None:
        """Half messages for a topic were stored."""
        self.counts.add(topic, count)
        self.rounds.half_stored()

    # --- decisions --------------------------------------------------------------------------------

    def end(self, header: EndTransactionRequestHeader, *, acknowledged: bool) -> PutResult:
        """END_TRANSACTION (37), to commit or to roll back.

        The result is that of the last record on which an answer relies. Raises BrokerError with
        the code and remark to be answered; NotStoredError if a commit could not be stored.
        """
        half = self._find(header)
        resolved = self.state.resolved
        fate = resolved.fate(half.offset, half.first_offset)
        if fate is None:
            fate, first_offset = look_up(self._store, resolved, half)
            half = msgspec.structs.replace(half, first_offset=first_offset)
        self._check(half, fate, header)
        wanted = (
            Fate.COMMITTED if header.commit_or_rollback == TRANSACTION_COMMIT else Fate.ROLLED_BACK
        )
        if fate is Fate.DECIDED:
            fate = self._which(half, wanted)
        if fate in ALREADY:
            return self._again(half, fate, wanted, acknowledged=acknowledged)
        if self._ops.is_full and self._write_ops() is None:
            raise SystemBusyError("decisions cannot be stored at the moment", hint="repeat later")
        if wanted is Fate.COMMITTED:
            return self._commit(half, fate)
        return self._roll_back(half, fate, acknowledged=acknowledged)

    def _which(self, half: Half, wanted: Fate) -> Fate:
        """Which way a message was decided of which only an op message is left."""
        if not can_look_up(self._store, half):
            return wanted  # nobody can contradict
        return Fate.COMMITTED if was_committed(self._store, half) else Fate.ROLLED_BACK

    def _find(self, header: EndTransactionRequestHeader) -> Half:
        """The half message that is meant.

        Java looks at its group and its offsets. But a power loss may take an unsynced message, and
        another one may get its offsets: who decides about the first must not decide about that.
        Nor can Java tell a half message from any other of the group, and would store it twice.
        """
        log_offset = header.commit_log_offset
        record = read_record(self._store, log_offset)
        if record is None:
            raise BrokerError(NOT_FOUND, hint=f"nothing begins at log offset {log_offset}")
        half = read_half(record)
        if half is None:
            raise BrokerError(NOT_FOUND, hint=f"what is at {log_offset} is no half message")
        if header.transaction_id and half.unique_id != header.transaction_id:
            raise BrokerError(NOT_FOUND, hint=f"at {log_offset} is {half.unique_id} now")
        return half

    def _check(self, half: Half, fate: Fate, header: EndTransactionRequestHeader) -> None:
        """The checks in Java's order.

        Too late is who decides about a message that its producer is asked about. One that is
        decided cannot be, nor who commits one that was given up: nobody will be asked about that
        any more. To roll it back changes nothing, and would be forgotten.
        """
        commits = header.commit_or_rollback == TRANSACTION_COMMIT
        may_be_late = fate is Fate.OPEN or (fate is Fate.GIVEN_UP and not commits)
        if may_be_late and not header.from_transaction_check:
            age_ms = self._clock.now_ms() - half.record.born_timestamp
            limit_ms = half.immunity_ms(self._live.current.transaction_time_out)
            if half.has_immunity and age_ms > limit_ms:
                raise BrokerError(
                    f"the half message is {age_ms} ms old, its immunity was {limit_ms} ms",
                    code=ResponseCode.ILLEGAL_OPERATION,
                    hint="its producer will be asked, and only that answer counts",
                )
        if half.group != header.producer_group:
            raise BrokerError(WRONG_GROUP)
        if half.offset != header.tran_state_table_offset:
            raise BrokerError(WRONG_QUEUE_OFFSET)

    def _again(self, half: Half, fate: Fate, wanted: Fate, *, acknowledged: bool) -> PutResult:
        if fate is not wanted:
            raise BrokerError(
                ALREADY[fate], hint=f"message {half.unique_id} of {half.group}: nothing changed"
            )
        if fate is Fate.ROLLED_BACK and acknowledged and self._ops:
            self._write_ops_or_fail()
        return PutResult(PutStatus.PUT_OK, self._store.log.max_offset)

    def _commit(self, half: Half, fate: Fate) -> PutResult:
        draft, properties = half.final()
        result = self._writer.put_own(draft, properties)
        if not result.status.stored:
            if result.status in NEVER_STORED:
                offset = half.record.log_offset
                self._writer.uncopied.add("commit", offset, draft.topic, result.status)
            raise NotStoredError(result.status)
        self._decide(half.offset, half.first_offset, half.real_topic, fate, Fate.COMMITTED)
        # The draft has the topic of delayed messages now, if it is one: as Java counts.
        topic = draft.topic
        self._stats.put(topic, 1, result.size, is_system=self._topics.is_system(topic))
        self.counts.commit(half.real_topic, half.record.born_timestamp)
        return result

    def _roll_back(self, half: Half, fate: Fate, *, acknowledged: bool) -> PutResult:
        self._decide(half.offset, half.first_offset, half.real_topic, fate, Fate.ROLLED_BACK)
        self.counts.rolled_back[half.real_topic] += 1
        if acknowledged and self._ops:
            self._write_ops_or_fail()
        return PutResult(PutStatus.PUT_OK, self._store.log.max_offset)

    def is_open_alone(self, offset: int) -> bool:
        """Whether a half message is undecided, and has no copy; and a decision could be noted."""
        return self.state.resolved.is_open_alone(offset) and not self._ops.is_full

    def finals_stored(self, halves: Sequence[MessageRecord], topic: str, result: PutResult) -> None:
        """The final messages of such half messages were stored (``plain_commits``)."""
        self._store.when_durable(result, _ignore, wait=False)
        resolved = self.state.resolved
        for half in halves:
            offset = half.queue_offset
            self._ops.add(resolved.decide(offset, offset, Fate.COMMITTED))
            self.counts.commit(topic, half.born_timestamp)
        self.counts.add(topic, -len(halves))
        self._stats.put(topic, len(halves), result.size, is_system=self._topics.is_system(topic))
        self._ops_grew()

    def recent_half(self, ext: Mapping[str, str]) -> RecentHalf | None:
        """The half message that an END_TRANSACTION commits, if there is a short way for it.

        :meth:`recent_committed` must follow, before anything else is decided.
        """
        half = self.recent.find(ext)
        if half is None or not self.is_open_alone(half.offset):
            return None
        if len(half.final.body) > self._store.config.max_message_size:
            return None  # lowered since: ``end`` is not held to it, a run of sends is
        self.recent.drop(half)
        return half

    def recent_committed(self, halves: Sequence[RecentHalf], results: Sequence[PutResult]) -> None:
        """The final messages were stored, or not: what :meth:`end` does afterwards."""
        resolved, counts, ops = self.state.resolved, self.counts, self._ops
        last: PutResult | None = None
        for half, result in zip(halves, results, strict=True):
            if not result.status.stored:
                self.recent.keep(half)
                continue
            last = result
            final, offset = half.final, half.offset
            ops.add(resolved.decide(offset, offset, Fate.COMMITTED))
            counts.commit(final.topic, final.born_timestamp)
            counts.add(final.topic, -1)
            is_system = self._topics.is_system(final.topic)
            self._stats.put(final.topic, 1, result.size, is_system=is_system)
        if last is not None:
            self._ops_grew()  # once: an op message must name all final messages that precede it
            self._store.when_durable(last, _ignore, wait=False)

    def _decide(self, offset: int, first_offset: int, topic: str, fate: Fate, wanted: Fate) -> None:
        self._ops.add(self.state.resolved.decide(offset, first_offset, wanted))
        if fate is Fate.OPEN:
            self.counts.add(topic, -1)
        self._ops_grew()

    def _ops_grew(self) -> None:
        if self._ops.size > self._live.current.transaction_op_msg_max_size:
            self._write_ops()
        elif self._op_timer is None:
            self._arm_ops()

    # --- op messages ------------------------------------------------------------------------------

    def _arm_ops(self) -> None:
        delay_s = self._live.current.transaction_op_batch_interval / 1000
        self._op_timer = self._clock.call_later(delay_s, self._ops_due)

    def _ops_due(self) -> None:
        self._op_timer = None
        if self._ops:
            self._write_ops()

    def _write_ops(self) -> PutResult | None:
        """Store what was collected as one op message; None if that failed, it is tried again."""
        body = self._ops.body()
        draft = op_draft(body, self._store.log.store_host, self._clock.now_ms())
        result = self._writer.put_copy(draft)
        if not result.status.stored:
            log.warning("an op message was not stored: %s", result.status.name)
            if self._op_timer is None:
                self._arm_ops()
            return None
        self._store.when_durable(result, _ignore, wait=False)
        self._stats.put(OP_HALF_TOPIC, 1, result.size, is_system=True)
        self.state.progress.written(self._ops.written())
        self.state.last_op_log_offset = result.log_offset
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None
        return result

    def _write_ops_or_fail(self) -> None:
        if self._write_ops() is None:
            raise ServiceNotAvailableError(
                "Service not available now.", hint="the decision is not stored yet: repeat it"
            )

    def _mark_log(self) -> None:
        """Write an op message if the next start would have to read much of the log."""
        unmarked_size = self._store.log.max_offset - self.state.last_op_log_offset
        if self.rounds.has_open and unmarked_size > UNMARKED_SIZE_MAX:
            self._write_ops()

    # --- administration ---------------------------------------------------------------------------

    def resume(self, log_offset: int) -> None:
        """RESUME_CHECK_HALF_MESSAGE (323): decide about a message after all that was given up."""
        record = read_record(self._store, log_offset)
        half = None if record is None else read_half(record, CHECK_MAX_TIME_TOPIC)
        if half is None:
            raise BrokerError(RESUME_FAILED, hint=f"{CHECK_MAX_TIME_TOPIC} has no such message")
        resolved = self.state.resolved
        fate = resolved.at(half.first_offset)
        if fate is Fate.DECIDED:
            fate = self._which(half, Fate.COMMITTED)
        elif not fate and can_look_up(self._store, half) and was_committed(self._store, half):
            fate = Fate.COMMITTED
        if fate in ALREADY:
            raise BrokerError(RESUME_FAILED, hint=ALREADY[fate])
        draft = half.resumed()
        result = self._writer.put_copy(draft)
        if not result.status.stored:
            raise BrokerError(RESUME_FAILED, hint=result.status.name)
        self._store.when_durable(result, _ignore, wait=False)
        self._stats.put(HALF_TOPIC, 1, result.size, is_system=True)
        resolved.reopen(half.first_offset, result.queue_offset)
        self.half_stored(draft)


def _ignore(_status: object) -> None:
    """For a put that nobody waits for."""
