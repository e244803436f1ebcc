"""The shared state of transactions on one broker, and their start and stop.

:mod:`skylark.broker.send.send_step` stores half messages;
:mod:`skylark.broker.transaction.end_transaction` decides them and describes the crash behaviour;
:mod:`skylark.broker.transaction.check_back` checks undecided ones. This service keeps what they
share: the outcomes, the op message that is being collected, the counts, and the recent half
messages.

Counterpart of ``TransactionalMessageServiceImpl``.
"""

from __future__ import annotations

import logging
import re
from typing import Final

from skylark.broker.config import BrokerConfig
from skylark.broker.send.message_policy import TIMER_NAMES
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.send.send_checks import SendDraft
from skylark.broker.transaction.check_back import CheckRounds, TransactionParts
from skylark.broker.transaction.decisions import HalfOutcome
from skylark.broker.transaction.evicted import can_look_up, was_committed
from skylark.broker.transaction.half_message import FinalDraft, Half, read_half, read_record
from skylark.broker.transaction.op_messages import OpBatch, op_draft
from skylark.broker.transaction.recent_halves import RecentHalves
from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.broker.transaction.transaction_recovery import Recovered, recover
from skylark.core.clock import TimerHandle
from skylark.core.errors import BrokerError, ServiceNotAvailableError, SystemBusyError
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.properties import encode_properties, parse_properties

logger = logging.getLogger(__name__)

RESUME_FAILED: Final = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
ALREADY: Final = {
    HalfOutcome.COMMITTED: "half already committed",
    HalfOutcome.ROLLED_BACK: "half already rolled back",
}
#: A final message with one of these waits before it is delivered.
_DELAYED: Final = re.compile(
    "(?:^|\x02)(?:{})\x01".format("|".join((*TIMER_NAMES, names.PROPERTY_DELAY))).encode()
)
_TIMER_PREFIX: Final = b"TIMER_"
_DELAY_ITEM: Final = f"{names.PROPERTY_DELAY}\x01".encode()
assert all(name.encode().startswith(_TIMER_PREFIX) for name in TIMER_NAMES)
#: Bytes appended since the last op message after which one is written as a mark.
UNMARKED_SIZE_MAX: Final = 64 << 20


def may_be_delayed(raw: bytes) -> bool:
    """Whether property strings may belong to delayed or timed messages; fast, and seldom wrong."""
    return _TIMER_PREFIX in raw or _DELAY_ITEM in raw


class TransactionService:
    """Transactions of one broker; only a master starts it."""

    def __init__(self, parts: TransactionParts) -> None:
        self._parts = parts
        self._live, self._writer = parts.live, parts.writer
        self._topics, self._stats, self._clock = parts.topics, parts.stats, parts.clock
        self.store = self._store = parts.writer.store
        self.counts = TransactionCounts(parts.clock)
        #: Half messages that can be committed without reading the log.
        self.recent = RecentHalves()
        self._ops = OpBatch()
        self._op_timer: TimerHandle | None = None
        self._recovered: Recovered | None = None
        self._rounds: CheckRounds | None = None

    # --- start and stop ---------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the decisions back; call it when the store is open, before other parts use it."""
        self._recovered = recover(self._store, self._parts.offsets)

    def start(self) -> None:
        """Start the rounds of check-backs; call it before requests are served."""
        recovered = self.state
        self._rounds = CheckRounds(self._parts, self.counts, recovered, mark_log=self._mark_log)
        if recovered.unwritten:
            self._ops.add(recovered.unwritten)
            self._write_ops()
        self._rounds.start()

    def stop(self) -> None:
        """Stop the check-backs and write the last op message; call it after the last request."""
        if self._rounds is not None:
            self._rounds.stop()
        if self._ops and self._write_ops() is None:
            logger.error("the last op message was not stored: the broker may check back again")
        if self._op_timer is not None:  # also one that a failed write has just set
            self._op_timer.cancel()
            self._op_timer = None

    @property
    def state(self) -> Recovered:
        """State of the half messages; only after ``recover``."""
        if self._recovered is None:
            raise ServiceNotAvailableError("this broker does not serve transactions")
        return self._recovered

    @property
    def rounds(self) -> CheckRounds:
        """The rounds of check-backs; only after ``start``."""
        if self._rounds is None:
            raise ServiceNotAvailableError("this broker does not serve transactions")
        return self._rounds

    @property
    def is_idle(self) -> bool:
        """Whether no timer is set."""
        return self._op_timer is None and not self.rounds.is_armed

    def record_half(self, draft: SendDraft, topic: str, final_size: int, result: PutResult) -> None:
        """Count a stored half message, and cache it if it is simple (``final_size`` > 0)."""
        if final_size:
            queue_id = draft.requested_queue_id
            self.recent.add(draft, draft.unique_id, topic, queue_id, final_size, result)
        self.count_halves(topic, 1)

    def count_halves(self, topic: str, count: int) -> None:
        """Count stored half messages of a topic, and schedule a round of check-backs."""
        self.counts.add(topic, count)
        self.rounds.schedule_round()

    # --- decisions --------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self._live.current

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def is_sole_undecided(self, offset: int) -> bool:
        """Whether a half message is undecided and has no copies, and a decision can be recorded."""
        return self.state.decisions.is_sole_undecided(offset) and not self._ops.is_full

    def are_sole_undecided(self, first: int, count: int) -> bool:
        """:meth:`is_sole_undecided` for neighbours in the half queue."""
        return self.state.decisions.are_sole_undecided(first, count) and not self._ops.is_full

    def make_room_for_ops(self) -> None:
        """Write the collected op message if it is full; raises BrokerError if that fails."""
        if self._ops.is_full and self._write_ops() is None:
            raise SystemBusyError(
                "the broker cannot store decisions at the moment", hint="repeat later"
            )

    def prepare_final(self, draft: FinalDraft) -> PutStatus | None:
        """Redirect a final message that is delayed or timed; returns a status if it is refused.

        Only the record format limits it, not the settings: its half message was acknowledged.
        """
        raw = draft.properties
        # Both names are rare, and the expression costs more than all else that a commit does here.
        if may_be_delayed(raw) and _DELAYED.search(raw):
            properties = parse_properties(raw)
            refused = self._writer.divert_own(draft, properties)
            if refused is not None:
                return refused
            draft.properties = encode_properties(properties).encode()
        self._writer.fit_copy(draft)
        return None

    def committed(self, draft: FinalDraft, result: PutResult) -> None:
        """Record the commit if its final message was stored.

        The caller calls :meth:`write_ops_soon` after the last commit of a put.
        """
        if not result.size:
            if result.status in NEVER_STORED:
                offset = draft.prepared_transaction_offset
                self._writer.uncopied.add("commit", offset, draft.topic, result.status)
            return
        decided = self.state.decisions.decide(
            draft.half_offset, draft.first_offset, HalfOutcome.COMMITTED
        )
        self._ops.add(decided)
        self.recent.drop(draft.half_offset)
        self.counts.commit(draft.real_topic, draft.born_timestamp)
        if draft.outcome == HalfOutcome.OPEN:
            self.counts.add(draft.real_topic, -1)
        # A delayed message counts for the schedule or timer topic, as in Java.
        is_system = self._topics.is_system(draft.topic)
        self._stats.put(draft.topic, 1, result.size, is_system=is_system)

    def committed_run(self, draft: FinalDraft, result: PutResult) -> None:
        """Record the commits of a run whose final messages are stored; as :meth:`committed`."""
        first, count = draft.half_offset, result.message_count
        self.state.decisions.commit_run(first, count)
        self._ops.add_run(first, count)
        self.recent.drop_run(first, count)
        self.counts.commit(draft.real_topic, draft.born_timestamp, count)
        self.counts.add(draft.real_topic, -count)
        is_system = self._topics.is_system(draft.topic)
        self._stats.put(draft.topic, count, result.size, is_system=is_system)

    def find_outcome(self, half: Half, wanted: HalfOutcome) -> HalfOutcome:
        """The outcome of a message that is only known to be decided, or ``wanted`` if unknown."""
        if not can_look_up(self.store, half):
            return wanted
        return HalfOutcome.COMMITTED if was_committed(self.store, half) else HalfOutcome.ROLLED_BACK

    def roll_back(self, half: Half, outcome: HalfOutcome, *, now: bool) -> None:
        """Record a rollback; with ``now``, store its op message before this returns."""
        ops = self.state.decisions.decide(half.offset, half.first_offset, HalfOutcome.ROLLED_BACK)
        self._ops.add(ops)
        self.recent.drop(half.offset)
        if outcome is HalfOutcome.OPEN:
            self.counts.add(half.real_topic, -1)
        self.write_ops_soon()
        self.counts.rolled_back[half.real_topic] += 1
        if now:
            self.write_ops_now()

    def write_ops_now(self) -> None:
        """Store the op message of all decisions so far; raises BrokerError if that fails."""
        if self._ops and self._write_ops() is None:
            raise ServiceNotAvailableError(
                "Service not available now.", hint="the decision was not stored: repeat it"
            )

    def write_ops_soon(self) -> None:
        """Write the op message of the collected decisions: now if it is large, else by a timer.

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
        """Store the collected decisions as one op message; None if it failed: a timer retries."""
        body = self._ops.body()
        draft = op_draft(body, self._store.log.store_host, self._clock.now_ms())
        result = self._writer.put_copy(draft)
        if not result.status.stored:
            logger.warning("the store refused an op message: %s", result.status.name)
            if self._op_timer is None:
                self._arm_ops()
            return None
        self._stats.put(OP_HALF_TOPIC, 1, result.size, is_system=True)
        self.state.progress.written(self._ops.written())
        self.state.last_op_log_offset = result.log_offset
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None
        return result

    def _mark_log(self) -> None:
        """Write an op message if the next start would have to read much of the log otherwise."""
        unmarked_size = self._store.log.max_offset - self.state.last_op_log_offset
        if self.rounds.has_undecided and unmarked_size > UNMARKED_SIZE_MAX:
            self._write_ops()

    # --- administration ---------------------------------------------------------------------------

    def resume(self, log_offset: int) -> None:
        """Check a message again that was given up: RESUME_CHECK_HALF_MESSAGE (323)."""
        record = read_record(self._store, log_offset)
        half = None if record is None else read_half(record, CHECK_MAX_TIME_TOPIC)
        if half is None:
            raise BrokerError(RESUME_FAILED, hint=f"{CHECK_MAX_TIME_TOPIC} has no such message")
        decisions = self.state.decisions
        outcome = decisions.outcome_at(half.first_offset)
        if outcome is HalfOutcome.DECIDED:
            outcome = self.find_outcome(half, HalfOutcome.COMMITTED)
        elif not outcome and can_look_up(self._store, half) and was_committed(self._store, half):
            outcome = HalfOutcome.COMMITTED
        if outcome in ALREADY:
            raise BrokerError(RESUME_FAILED, hint=ALREADY[outcome])
        draft = half.resumed_copy()
        result = self._writer.put_copy(draft)
        if not result.status.stored:
            raise BrokerError(RESUME_FAILED, hint=result.status.name)
        self._stats.put(HALF_TOPIC, 1, result.size, is_system=True)
        decisions.reopen(half.first_offset, result.queue_offset)
        self.count_halves(half.real_topic, 1)
