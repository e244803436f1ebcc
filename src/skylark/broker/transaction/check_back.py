"""Check-back: rounds in which the broker asks producers about undecided half messages.

A round begins ``transactionCheckInterval`` after the first half message, or after the start of the
previous round, as long as there are half messages: an idle broker has no timer here. It first
handles the messages whose immunity has ended, then scans the half queue. The rules are in
:mod:`skylark.broker.transaction.check_policy`.

**Slices.** One turn of the event loop handles :data:`SLICE_COUNT` messages, so that a long queue
does not delay other requests. After 60 s a round ends; the next one continues where it stopped.

**A producer that does not read** its check-backs holds up nobody else: its messages are set aside.
When the scan is over, the round tries them again and again, until all are sent or the next round is
due, which begins with them.

**Position.** The group CID_RMQ_SYS_TRANS commits the first offset that is neither committed, rolled
back, copied nor given up; the next start begins there. The position must not be ahead of the disk:
a synced position with an unsynced copy would lose a half message at a power failure. So a new
position counts only when the log is flushed up to its end at the time the position was reached,
which the next round usually finds.

**Messages that cannot be copied** (older stores have some whose properties fill the record, see
:mod:`skylark.broker.send.own_copies`) stay where they are and are counted. The round continues, and
checks back about the message itself instead of a copy. Their check counts are kept in memory only,
for :data:`UNCOPIED_CHECKS_MAX` messages; a message that cannot even be copied to give it up counts
as given up all the same. A restart sets these counts to zero, or does not see the message any more.

A crash may leave a copy in the queue and a position before its original; recovery finds that the
original has a copy. A message that was given up twice has two copies in TRANS_CHECK_MAX_TIME_TOPIC.

Counterpart of Java's ``TransactionalMessageCheckService``,
``TransactionalMessageServiceImpl.check`` and ``DefaultTransactionalMessageCheckListener``.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, NamedTuple

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.check_policy import (
    CheckAction,
    CheckRules,
    ImmuneMessages,
    choose_action,
    due_ms,
)
from skylark.broker.transaction.decisions import HalfOutcome
from skylark.broker.transaction.half_message import HALF_QUEUE_ID, Half, read_half, read_queue
from skylark.broker.transaction.op_messages import OpProgress
from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.broker.transaction.transaction_recovery import Recovered
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import StoreError, TransportError
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire.message import MessageRecord
from skylark.wire.properties import PROPERTY_TRANSACTION_CHECK_TIMES

logger = logging.getLogger(__name__)

SLICE_COUNT: Final = 100
ROUND_S_MAX: Final = 60.0
#: Pause while only messages remain whose producers do not read.
PAUSE_S: Final = 0.05
#: Messages without a copy whose check counts are kept.
UNCOPIED_CHECKS_MAX: Final = 10_000
#: Producer groups that a round logs something about.
GROUPS_REPORTED_MAX: Final = 10
_READ_COUNT: Final = 64
_HOUR_MS: Final = 3_600_000


class _Step(enum.Enum):
    NEXT = "the message is done"
    SET_ASIDE = "its producer does not read"
    STOP = "the round ends before this message"


class TransactionParts(NamedTuple):
    """The parts of the broker that transactions use."""

    live: LiveSettings
    writer: MessageWriter
    producers: ProducerTable
    topics: TopicTable
    offsets: OffsetTable
    stats: BrokerStats
    clock: Clock


class CheckRounds:
    """Scans the half queue in rounds while it has undecided messages."""

    def __init__(
        self,
        parts: TransactionParts,
        counts: TransactionCounts,
        recovered: Recovered,
        *,
        mark_log: Callable[[], None],
    ) -> None:
        """``mark_log`` may write an op message, which bounds what the next start has to read."""
        self._live, self._clock = parts.live, parts.clock
        self._writer, self._store = parts.writer, parts.writer.store
        self._producers, self._topics = parts.producers, parts.topics
        self._offsets, self._stats = parts.offsets, parts.stats
        self._counts = counts
        self._mark_log = mark_log
        self._decisions = recovered.decisions
        self._progress: OpProgress = recovered.progress
        #: Queue offsets: the first half message that may be undecided, and the next to be scanned.
        self.position = recovered.position
        self.scan_offset = recovered.position
        self._reached: tuple[int, int] | None = None  # next position, end of the log at that time
        self.immune = ImmuneMessages()
        self._due: deque[int] = deque()
        self._set_aside: deque[int] = deque()  # their producers do not read
        self._uncopied_checks: dict[int, int] = {}  # queue offset -> number of checks
        self._read_ahead: deque[MessageRecord] = deque()  # read, but not checked
        self._without_producer: Counter[str] = Counter()  # in this round, by producer group
        self._given_up: Counter[str] = Counter()
        self._timer: TimerHandle | None = None
        self._stopped = False
        self._started_ms = 0
        self._started_s = 0.0
        self._rules = CheckRules(0, 0, 0)

    # --- start and stop ---------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the first round if the last run has left half messages."""
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_armed(self) -> bool:
        """Whether a round is running or scheduled."""
        return self._timer is not None

    def schedule_round(self) -> None:
        """Schedule a round for a half message that was stored."""
        if self._timer is None and not self._stopped:
            self._timer = self._clock.call_later(self._interval_s, self._begin)

    @property
    def _interval_s(self) -> float:
        return self._live.current.transaction_check_interval / 1000

    def _arm(self) -> None:
        if self._stopped or not (self.has_undecided or self._reached):
            return
        passed_s = self._clock.monotonic() - self._started_s if self._started_s else 0.0
        self._timer = self._clock.call_later(max(0.0, self._interval_s - passed_s), self._begin)

    @property
    def has_undecided(self) -> bool:
        """Whether a half message may be undecided."""
        queue = self._store.queues.get(HALF_TOPIC, HALF_QUEUE_ID)
        return queue is not None and self.position < queue.next_offset

    # --- a round ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        config = self._live.current
        self._rules = CheckRules(
            timeout_ms=config.transaction_time_out,
            check_count_max=config.transaction_check_max,
            age_max_ms=config.store.file_reserved_time * _HOUR_MS,
        )
        self._started_ms = self._clock.now_ms()
        self._started_s = self._clock.monotonic()
        self._due.extend(self.immune.due(self._started_ms))
        self._read_ahead.clear()
        self._turn()

    def _turn(self) -> None:
        self._timer = None
        try:
            step = self._slice()
        except StoreError as error:
            logger.error("the broker cannot read half messages: %s", error)  # noqa: TRY400
            step = _Step.STOP
        limit_s = ROUND_S_MAX
        if step is _Step.SET_ASIDE:
            limit_s = min(limit_s, self._interval_s)
        if step is _Step.STOP or self._clock.monotonic() - self._started_s >= limit_s:
            self._end()
        elif not self._stopped:
            delay_s = PAUSE_S if step is _Step.SET_ASIDE else 0.0
            self._timer = self._clock.call_later(delay_s, self._turn)

    def _slice(self) -> _Step:
        """Check some messages; SET_ASIDE: only those remain whose producers do not read."""
        for _ in range(SLICE_COUNT):
            due = self._due[0] if self._due else None
            record = self._next_record() if due is None else self._due_record(due)
            if record is None and due is None:
                return self._check_set_aside()
            step = _Step.NEXT if record is None else self._check(record)
            if step is _Step.STOP:
                return self._check_set_aside()
            if step is _Step.SET_ASIDE and record is not None:
                self._set_aside.append(record.queue_offset)
            if due is not None:
                self._due.popleft()
            elif record is not None:
                self._read_ahead.popleft()
                self.scan_offset = record.queue_offset + 1
        return _Step.NEXT

    def _check_set_aside(self) -> _Step:
        for _ in range(min(SLICE_COUNT, len(self._set_aside))):
            offset = self._set_aside.popleft()
            record = self._due_record(offset)
            step = _Step.NEXT if record is None else self._check(record)
            if step is not _Step.NEXT:
                self._set_aside.append(offset)
            if step is _Step.STOP:
                return step
        return _Step.SET_ASIDE if self._set_aside else _Step.STOP

    def _next_record(self) -> MessageRecord | None:
        """The next message in the queue without a known outcome."""
        while not self._read_ahead:
            end = self._store.reader.max_offset(HALF_TOPIC, HALF_QUEUE_ID)
            self.scan_offset = self._decisions.next_undecided(self.scan_offset, end)
            if self.scan_offset >= end:
                return None
            records, next_offset = self._read(self.scan_offset, _READ_COUNT)
            if not records and next_offset <= self.scan_offset:
                return None
            self._read_ahead.extend(records)
            if not records:
                self.scan_offset = next_offset  # retention has deleted the records
        return self._read_ahead[0]

    def _due_record(self, offset: int) -> MessageRecord | None:
        if self._decisions.outcome_at(offset):
            return None
        records, _ = self._read(offset, 1)
        if records and records[0].queue_offset == offset:
            return records[0]
        self._decisions.pass_over(offset)
        return None

    def _read(self, offset: int, count_max: int) -> tuple[list[MessageRecord], int]:
        records, next_offset = read_queue(self._store, HALF_TOPIC, HALF_QUEUE_ID, offset, count_max)
        if records:
            size = sum(record.total_size for record in records)
            self._stats.got(HALF_TOPIC, TRANSACTION_GROUP, len(records), size, is_system=True)
        return records, next_offset

    # --- a message --------------------------------------------------------------------------------

    def _check(self, record: MessageRecord) -> _Step:
        offset = record.queue_offset
        if self._decisions.outcome_at(offset):
            return _Step.NEXT
        half = self._read_half(record)
        if half is None:
            logger.warning(
                "the message at %d of the half queue names no real topic or queue", offset
            )
            self._decisions.pass_over(offset)
            return _Step.NEXT
        outcome = self._decisions.outcome(offset, half.first_offset)
        if outcome:
            self._uncopied_checks.pop(offset, None)
            self._decisions.decide(offset, half.first_offset, outcome)
            return _Step.NEXT
        match choose_action(
            half, self._rules, started_ms=self._started_ms, now_ms=self._clock.now_ms()
        ):
            case CheckAction.GIVE_UP:
                return self._give_up(half)
            case CheckAction.CHECK_BACK:
                return self._check_back(half)
            case CheckAction.WAIT if self.immune.add(offset, due_ms(half, self._rules)):
                return _Step.NEXT
            case _:
                return _Step.STOP

    def _check_back(self, half: Half) -> _Step:
        """Put a copy at the end of the queue and send a check-back about it.

        The check counts even if no producer of the group is connected.
        """
        producer = None if half.group is None else self._producers.next_channel(half.group)
        if producer is not None and not producer.is_reading:
            return _Step.SET_ASIDE
        result = self._put(half, half.next_copy())
        if result.status in NEVER_STORED:
            self._keep(half)
            asked_offsets = half.record.log_offset, half.offset
        elif not result.status.stored:
            return _Step.STOP
        else:
            self._stats.put(HALF_TOPIC, 1, result.size, is_system=True)
            self._decisions.copied(half.first_offset, result.queue_offset)
            self._decisions.pass_over(half.offset)
            asked_offsets = result.log_offset, result.queue_offset
        try:
            if producer is not None:
                name = self._live.current.broker_name
                producer.oneway(half.check_request(*asked_offsets, name))
                self._counts.check_back_count += 1
                return _Step.NEXT
        except TransportError as error:
            logger.info("the check-back to %s failed: %s", producer, error)
        self._without_producer[half.group or ""] += 1
        return _Step.NEXT

    def _keep(self, half: Half) -> None:
        """Check a message that was not copied again in the next round."""
        offset = half.offset
        if offset in self._uncopied_checks or len(self._uncopied_checks) < UNCOPIED_CHECKS_MAX:
            self._uncopied_checks[offset] = half.check_count + 1
            self.immune.add(offset, self._started_ms + 1)

    def _read_half(self, record: MessageRecord) -> Half | None:
        half = read_half(record)
        check_count = self._uncopied_checks.get(record.queue_offset)
        if half is not None and check_count is not None:
            half.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(check_count)
        return half

    def _give_up(self, half: Half) -> _Step:
        # At the limit of topics, the copy is kept in a queue that no topic lists.
        self._topics.ensure(CHECK_MAX_TIME_TOPIC, queue_count=1)
        status = self._put(half, half.given_up_copy()).status
        if not status.stored and status not in NEVER_STORED:
            return _Step.STOP
        self._uncopied_checks.pop(half.offset, None)
        self._decisions.decide(half.offset, half.first_offset, HalfOutcome.GIVEN_UP)
        self._counts.add(half.real_topic, -1)
        self._counts.given_up_count += 1
        if status.stored:
            self._given_up[half.group or ""] += 1
        return _Step.NEXT

    def _put(self, half: Half, draft: Draft) -> PutResult:
        """Store a copy; after a temporary failure the next round tries again."""
        result = self._writer.put_copy(draft)
        status = result.status
        if status in NEVER_STORED:
            self._writer.uncopied.add("check", half.record.log_offset, draft.topic, status)
        elif not status.stored:
            logger.error(
                "the store refused a copy of a half message for %s: %s", draft.topic, status.name
            )
        return result

    # --- position ---------------------------------------------------------------------------------

    def _end(self) -> None:
        while self._set_aside:
            self.immune.add(self._set_aside.popleft(), self._started_ms + 1)
        low = max(self.position, self._store.reader.min_offset(HALF_TOPIC, HALF_QUEUE_ID))
        position = max(low, self._decisions.next_undecided(low, self.scan_offset))
        self._commit_position()
        if position != self.position:
            self._reached = position, self._store.log.max_offset
            self._commit_position()
        self._mark_log()
        self._report()
        self._arm()

    def _report(self) -> None:
        for group, count in self._without_producer.most_common(GROUPS_REPORTED_MAX):
            logger.warning(
                "no producer of group %s is connected to check %d half messages", group, count
            )
        for group, count in self._given_up.most_common(GROUPS_REPORTED_MAX):
            logger.warning(
                "%d half messages of group %s moved to %s: no decision came in time",
                count,
                group,
                CHECK_MAX_TIME_TOPIC,
            )
        self._without_producer.clear()
        self._given_up.clear()

    def _commit_position(self) -> None:
        """Commit the position that was reached, if the log is flushed up to there."""
        if self._reached is None or self._reached[1] > self._store.log.files.flushed_where:
            return
        self.position = self._reached[0]
        self._reached = None
        self._decisions.forget_below(self.position)
        for topic, offset in (
            (HALF_TOPIC, self.position),
            (OP_HALF_TOPIC, self._progress.passed(self.position)),
        ):
            self._offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE_ID, offset)
