"""The state of transactions, and the life of everything that has to do with them.

Half messages are stored by :mod:`skylark.broker.send.send_step`, decisions about them are made by
:mod:`skylark.broker.transaction.end_transaction`, which has the crash story; producers are asked by
:mod:`skylark.broker.transaction.check_back`. This object keeps what they share: which half messages
are decided, the op message that is being collected, the counts, and the recent half messages.

Counterpart of ``TransactionalMessageServiceImpl``.
"""

from __future__ import annotations

import logging
from typing import Final

from skylark.broker.config import BrokerConfig
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.send.send_checks import SendDraft
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.check_back import CheckRounds
from skylark.broker.transaction.decisions import Fate
from skylark.broker.transaction.evicted import can_look_up, was_committed
from skylark.broker.transaction.half_message import FinalDraft, Half, read_half
from skylark.broker.transaction.op_messages import OpBatch, op_draft
from skylark.broker.transaction.recent_halves import RecentHalves
from skylark.broker.transaction.record_lookup import read_record
from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.broker.transaction.transaction_recovery import Recovered, recover
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import BrokerError, ServiceNotAvailableError, SystemBusyError
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.properties import encode_properties, parse_properties

log = logging.getLogger(__name__)

RESUME_FAILED: Final = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
ALREADY: Final = {
    Fate.COMMITTED: "half already committed",
    Fate.ROLLED_BACK: "half already rolled back",
}
#: An op message is written as a mark when more than this was appended since the last one.
UNMARKED_SIZE_MAX: Final = 64 << 20


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
        self.store = self._store = writer.store
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
        """Read back what is decided: when the store is open, before others use it."""
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

    def half_stored(self, draft: SendDraft, topic: str, final_size: int, result: PutResult) -> None:
        """A half message for a topic was stored; ``final_size`` is 0 unless it is a simple one."""
        if final_size:
            queue_id = draft.asked_queue_id
            self.recent.add(draft, draft.unique_id, topic, queue_id, final_size, result)
        self.halves_stored(topic, 1)

    def halves_stored(self, topic: str, count: int) -> None:
        """Half messages for a topic were stored."""
        self.counts.add(topic, count)
        self.rounds.half_stored()

    # --- decisions --------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self._live.current

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def is_open_alone(self, offset: int) -> bool:
        """Whether a half message is undecided, and has no copy; and a decision could be noted."""
        return self.state.resolved.is_open_alone(offset) and not self._ops.is_full

    def make_room_for_ops(self) -> None:
        """Write the collected op message if it is full; raises BrokerError if that fails."""
        if self._ops.is_full and self._write_ops() is None:
            raise SystemBusyError("decisions cannot be stored at the moment", hint="repeat later")

    def fit_copy(self, draft: FinalDraft) -> None:
        """Hold a final message to the record format only: the half message was acknowledged."""
        self._writer.fit_copy(draft)

    def divert(self, draft: FinalDraft) -> PutStatus | None:
        """Redirect a final message that is delayed or timed; a status refuses it."""
        properties = parse_properties(draft.properties)
        refused = self._writer.divert_own(draft, properties)
        draft.properties = encode_properties(properties).encode()
        return refused

    def committed(self, draft: FinalDraft, result: PutResult) -> None:
        """A final message was stored, or not: if so, the message is decided.

        :meth:`ops_grew` follows behind the last one that was put together with it.
        """
        if not result.size:
            if result.status in NEVER_STORED:
                offset = draft.prepared_transaction_offset
                self._writer.uncopied.add("commit", offset, draft.topic, result.status)
            return
        decided = self.state.resolved.decide(draft.half_offset, draft.first_offset, Fate.COMMITTED)
        self._ops.add(decided)
        self.recent.drop(draft.half_offset)
        self.counts.commit(draft.real_topic, draft.born_timestamp)
        if draft.fate == Fate.OPEN:
            self.counts.add(draft.real_topic, -1)
        # A delayed one counts for the topic in which it waits, as in Java.
        is_system = self._topics.is_system(draft.topic)
        self._stats.put(draft.topic, 1, result.size, is_system=is_system)

    def which(self, half: Half, wanted: Fate) -> Fate:
        """Which way a message was decided of which only an op message is left."""
        if not can_look_up(self.store, half):
            return wanted  # nothing contradicts it
        return Fate.COMMITTED if was_committed(self.store, half) else Fate.ROLLED_BACK

    def roll_back(self, half: Half, fate: Fate, *, now: bool) -> None:
        """Note a rollback; with ``now``, its op message is stored before this returns."""
        ops = self.state.resolved.decide(half.offset, half.first_offset, Fate.ROLLED_BACK)
        self._ops.add(ops)
        self.recent.drop(half.offset)
        if fate is Fate.OPEN:
            self.counts.add(half.real_topic, -1)
        self.ops_grew()
        self.counts.rolled_back[half.real_topic] += 1
        if now:
            self.write_ops_now()

    def write_ops_now(self) -> None:
        """Store the op message of all decisions so far; raises BrokerError if that fails."""
        if self._ops and self._write_ops() is None:
            raise ServiceNotAvailableError(
                "Service not available now.", hint="the decision is not stored yet: repeat it"
            )

    def ops_grew(self) -> None:
        """Decisions were collected: write their op message now, or soon.

        An op message must name all final messages that precede it in the log.
        """
        if not self._ops:
            return
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
            fate = self.which(half, Fate.COMMITTED)
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
        self.halves_stored(half.real_topic, 1)


def _ignore(_status: object) -> None:
    """For a put without a waiting client."""
