"""Rounds of checks: undecided half messages are asked about, given up, or left alone for now.

A round begins ``transactionCheckInterval`` after the first half message, or after the round before
it began, as long as half messages are there: an idle broker has no timer here. It takes what has
come to the end of its immunity, then goes through the half queue, as
:mod:`skylark.broker.transaction.check_policy` says.

**Slices.** A turn of the loop deals with :data:`SLICE_COUNT` messages, so that a hundred thousand
of them delay nobody. If a producer does not read as fast as it is asked, the round pauses. After
60 s it ends wherever it is; the next one goes on there.

**Position.** What was committed, rolled back, copied or given up is done; the first offset that is
not is committed for the group CID_RMQ_SYS_TRANS, where the next start begins. It must not be ahead
of the disk: the position in a file that was synced and the copy it stands for in a log that was not
would lose a half message with the power. So a position counts when the log is on disk as far as it
went when the position was reached; that is usually found in the next round.

**Messages that cannot be copied** (older stores have some whose properties fill the record, see
:mod:`skylark.broker.send.own_copies`) stay where they are and are counted. The round goes on, and
asks about the message itself instead of a copy. How often it has asked is kept in memory only, for
:data:`KEPT_MAX` messages; a message of which no copy can be made even to give it up counts as given
up all the same. A new start begins to count anew, or does not see the message any more.

What a crash leaves: a copy in the queue, and a position before the message it was made of. Recovery
finds that the message has moved. A message that was given up twice has two copies in
TRANS_CHECK_MAX_TIME_TOPIC.

Counterpart of Java's ``TransactionalMessageCheckService``,
``TransactionalMessageServiceImpl.check`` and ``DefaultTransactionalMessageCheckListener``.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.send.own_copies import NEVER_STORED
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.broker.transaction.check_policy import CheckRules, Verdict, Waiting, due_ms, judge
from skylark.broker.transaction.decisions import Fate
from skylark.broker.transaction.half_message import HALF_QUEUE_ID, Half, read_half
from skylark.broker.transaction.op_messages import OpProgress
from skylark.broker.transaction.record_lookup import read_queue
from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.broker.transaction.transaction_recovery import Recovered
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import StoreError, TransportError
from skylark.core.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire.message import MessageRecord
from skylark.wire.properties import PROPERTY_TRANSACTION_CHECK_TIMES

log = logging.getLogger(__name__)

SLICE_COUNT: Final = 100
ROUND_S_MAX: Final = 60.0
#: Pause while a producer has much to read.
PAUSE_S: Final = 0.05
#: Messages that cannot be copied and are asked about nevertheless.
KEPT_MAX: Final = 10_000
#: Producer groups that a round logs something about.
GROUPS_REPORTED_MAX: Final = 10
_READ_COUNT: Final = 64
_HOUR_MS: Final = 3_600_000


class _Step(enum.Enum):
    NEXT = "the message is dealt with"
    PAUSE = "its producer does not read"
    STOP = "the round ends before it"


class CheckRounds:
    """Goes through the half queue, again and again while it has anything."""

    def __init__(
        self,
        live: LiveSettings,
        writer: MessageWriter,
        producers: ProducerTable,
        topics: TopicTable,
        offsets: OffsetTable,
        stats: BrokerStats,
        counts: TransactionCounts,
        clock: Clock,
        recovered: Recovered,
        *,
        mark_log: Callable[[], None],
    ) -> None:
        """``mark_log`` may write an op message, so that the next start has less to read."""
        self._live = live
        self._writer = writer
        self._store = writer.store
        self._producers = producers
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._counts = counts
        self._clock = clock
        self._mark_log = mark_log
        self._resolved = recovered.resolved
        self._progress: OpProgress = recovered.progress
        #: The first half message that may be undecided, and the one that is looked at next.
        self.position = recovered.position
        self.scan_offset = recovered.position
        self._reached: tuple[int, int] | None = None  # a position, and the log when it was reached
        self.waiting = Waiting()
        self._due: deque[int] = deque()
        self._kept: dict[int, int] = {}  # offset of a message without copy -> times asked
        self._ahead: deque[MessageRecord] = deque()  # read, but not looked at
        self._unasked: Counter[str] = Counter()  # in this round, by producer group
        self._given_up: Counter[str] = Counter()
        self._timer: TimerHandle | None = None
        self._stopped = False
        self._started_ms = 0
        self._started_s = 0.0
        self._rules = CheckRules(0, 0, 0)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with rounds if the last run has left half messages."""
        self._arm()

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_armed(self) -> bool:
        """Whether a round is under way or will come."""
        return self._timer is not None

    def half_stored(self) -> None:
        """A half message is in the queue: there will be a round."""
        if self._timer is None and not self._stopped:
            self._timer = self._clock.call_later(self._interval_s, self._begin)

    @property
    def _interval_s(self) -> float:
        return self._live.current.transaction_check_interval / 1000

    def _arm(self) -> None:
        if self._stopped or not (self.has_open or self._reached):
            return
        passed_s = self._clock.monotonic() - self._started_s if self._started_s else 0.0
        self._timer = self._clock.call_later(max(0.0, self._interval_s - passed_s), self._begin)

    @property
    def has_open(self) -> bool:
        """Whether some half message may be undecided."""
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
        self._due.extend(self.waiting.due(self._started_ms))
        self._ahead.clear()
        self._turn()

    def _turn(self) -> None:
        self._timer = None
        try:
            step = self._slice()
        except StoreError as error:
            log.error("half messages cannot be read: %s", error)  # noqa: TRY400
            step = _Step.STOP
        if step is _Step.STOP or self._clock.monotonic() - self._started_s > ROUND_S_MAX:
            self._end()
        elif not self._stopped:
            delay_s = PAUSE_S if step is _Step.PAUSE else 0.0
            self._timer = self._clock.call_later(delay_s, self._turn)

    def _slice(self) -> _Step:
        for _ in range(SLICE_COUNT):
            due = self._due[0] if self._due else None
            record = self._next_record() if due is None else self._due_record(due)
            if record is None and due is None:
                return _Step.STOP
            step = _Step.NEXT if record is None else self._deal_with(record)
            if step is not _Step.NEXT:
                return step
            if due is not None:
                self._due.popleft()
            elif record is not None:
                self._ahead.popleft()
                self.scan_offset = record.queue_offset + 1
        return _Step.NEXT

    def _next_record(self) -> MessageRecord | None:
        """The next message in the queue for which nothing is noted, as far as is known."""
        while not self._ahead:
            end = self._store.reader.max_offset(HALF_TOPIC, HALF_QUEUE_ID)
            self.scan_offset = self._resolved.next_open(self.scan_offset, end)
            if self.scan_offset >= end:
                return None
            records, next_offset = self._read(self.scan_offset, _READ_COUNT)
            if not records and next_offset <= self.scan_offset:
                return None
            self._ahead.extend(records)
            if not records:
                self.scan_offset = next_offset  # what was there is deleted
        return self._ahead[0]

    def _due_record(self, offset: int) -> MessageRecord | None:
        if self._resolved.at(offset):
            return None
        records, _ = self._read(offset, 1)
        if records and records[0].queue_offset == offset:
            return records[0]
        self._resolved.pass_over(offset)
        return None

    def _read(self, offset: int, count_max: int) -> tuple[list[MessageRecord], int]:
        records, next_offset = read_queue(self._store, HALF_TOPIC, HALF_QUEUE_ID, offset, count_max)
        if records:
            size = sum(record.total_size for record in records)
            self._stats.got(HALF_TOPIC, TRANSACTION_GROUP, len(records), size, is_system=True)
        return records, next_offset

    # --- a message --------------------------------------------------------------------------------

    def _deal_with(self, record: MessageRecord) -> _Step:
        offset = record.queue_offset
        if self._resolved.at(offset):
            return _Step.NEXT
        half = self._read_half(record)
        if half is None:
            log.warning("the half queue has a message at %d that belongs nowhere", offset)
            self._resolved.pass_over(offset)
            return _Step.NEXT
        fate = self._resolved.fate(offset, half.first_offset)
        if fate:
            self._kept.pop(offset, None)
            self._resolved.decide(offset, half.first_offset, fate)
            return _Step.NEXT
        match judge(half, self._rules, started_ms=self._started_ms, now_ms=self._clock.now_ms()):
            case Verdict.GIVE_UP:
                return self._give_up(half)
            case Verdict.ASK:
                return self._ask(half)
            case Verdict.WAIT if self.waiting.add(offset, due_ms(half, self._rules)):
                return _Step.NEXT
            case _:
                return _Step.STOP

    def _ask(self, half: Half) -> _Step:
        """Put a copy at the end of the queue and ask about that one.

        It is counted as asked even if no producer is there.
        """
        producer = None if half.group is None else self._producers.next_channel(half.group)
        if producer is not None and not producer.is_reading:
            return _Step.PAUSE
        result = self._put(half, half.renewed())
        if result.status in NEVER_STORED:
            self._keep(half)
            asked_offsets = half.record.log_offset, half.offset
        elif not result.status.stored:
            return _Step.STOP
        else:
            self._stats.put(HALF_TOPIC, 1, result.size, is_system=True)
            self._resolved.copied(half.first_offset, result.queue_offset)
            self._resolved.pass_over(half.offset)
            asked_offsets = result.log_offset, result.queue_offset
        try:
            if producer is not None:
                name = self._live.current.broker_name
                producer.oneway(half.question(*asked_offsets, name))
                self._counts.asked_count += 1
                return _Step.NEXT
        except TransportError as error:
            log.info("%s cannot be asked any more: %s", producer, error)
        self._unasked[half.group or ""] += 1
        return _Step.NEXT

    def _keep(self, half: Half) -> None:
        """Ask about a message again that was not copied, in the next round."""
        offset = half.offset
        if offset in self._kept or len(self._kept) < KEPT_MAX:
            self._kept[offset] = half.check_count + 1
            self.waiting.add(offset, self._started_ms + 1)

    def _read_half(self, record: MessageRecord) -> Half | None:
        half = read_half(record)
        asked_count = self._kept.get(record.queue_offset)
        if half is not None and asked_count is not None:
            half.properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(asked_count)
        return half

    def _give_up(self, half: Half) -> _Step:
        # At the limit of topics, the copy is kept in a queue that no topic lists.
        self._topics.ensure(CHECK_MAX_TIME_TOPIC, queue_count=1)
        status = self._put(half, half.given_up()).status
        if not status.stored and status not in NEVER_STORED:
            return _Step.STOP
        self._kept.pop(half.offset, None)
        self._resolved.decide(half.offset, half.first_offset, Fate.GIVEN_UP)
        self._counts.add(half.real_topic, -1)
        self._counts.given_up_count += 1
        if status.stored:
            self._given_up[half.group or ""] += 1
        return _Step.NEXT

    def _put(self, half: Half, draft: Draft) -> PutResult:
        """Store a copy as it is; if that failed for now, the next round tries again."""
        result = self._writer.put_copy(draft)
        status = result.status
        if status.stored:
            self._store.when_durable(result, _ignore, wait=False)
        elif status in NEVER_STORED:
            self._writer.uncopied.add("check", half.record.log_offset, draft.topic, status)
        else:
            log.error("a half message was not copied to %s: %s", draft.topic, status.name)
        return result

    # --- how far it is ----------------------------------------------------------------------------

    def _end(self) -> None:
        low = max(self.position, self._store.reader.min_offset(HALF_TOPIC, HALF_QUEUE_ID))
        position = max(low, self._resolved.next_open(low, self.scan_offset))
        self._commit_position()
        if position != self.position:
            self._reached = position, self._store.log.max_offset
            self._commit_position()
        self._mark_log()
        self._report()
        self._arm()

    def _report(self) -> None:
        for group, count in self._unasked.most_common(GROUPS_REPORTED_MAX):
            log.warning("no producer of group %s to ask about %d half messages", group, count)
        for group, count in self._given_up.most_common(GROUPS_REPORTED_MAX):
            log.warning(
                "%d half messages of group %s moved to %s: nobody decided about them in time",
                count,
                group,
                CHECK_MAX_TIME_TOPIC,
            )
        self._unasked.clear()
        self._given_up.clear()

    def _commit_position(self) -> None:
        """Commit what was reached, if the disk has what it stands on."""
        if self._reached is None or self._reached[1] > self._store.log.files.flushed_where:
            return
        self.position = self._reached[0]
        self._reached = None
        self._resolved.forget_below(self.position)
        for topic, offset in (
            (HALF_TOPIC, self.position),
            (OP_HALF_TOPIC, self._progress.passed(self.position)),
        ):
            self._offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE_ID, offset)


def _ignore(_status: object) -> None:
    """For a put without a waiting client."""
