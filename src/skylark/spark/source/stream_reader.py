"""A stream: micro-batches between offsets that Spark keeps in its checkpoint.

One object lives in the driver for as long as the query runs, and Spark calls it in this order::

    prepareForTriggerAvailableNow   that trigger only
    getDefaultReadLimit             once
    initialOffset                   new checkpoint only; twice, and again after a crash in batch 0
    latestOffset(start, limit)      every trigger; then reportLatestOffset
    commit(end of the batch before)
    partitions(start, end)

Copies of it without state run ``read`` in the tasks. A restart with an unfinished batch calls
``partitions`` at once, with the end from the checkpoint.

**Idle.** Without new messages ``latestOffset`` returns what it was given, and the next call waits
``idlePollMs`` before it asks the brokers again: Spark itself would ask 70 times a second.

**Progress.** The start of ``latestOffset`` is the end of a batch that is complete: it is what the
consumer group has read. ``commit`` alone would never hear of the last batch.

**Brokers away.** Their queues are held and told in a warning; after ``brokerDownGraceMs`` the query
fails, unless ``failOnDataLoss`` is off. So are queues that a topic has lost before they were read,
only that the query fails at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from skylark.admin.admin_session import Session
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    RemoteProtocolError,
    SkylarkError,
    TransportError,
)
from skylark.spark.cluster_client import Cluster, shared_cluster
from skylark.spark.errors import shrunk
from skylark.spark.source.input_partitions import QueueRange, plan_partitions
from skylark.spark.source.offset_planning import BatchPlan, plan_batch, split_bytes, split_limit
from skylark.spark.source.partition_reader import read_partition
from skylark.spark.source.queue_bounds import Survey, Surveyor, choose_address, patiently
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import SAMPLE_COUNT, Resolver, sample
from skylark.spark.source.store_finder import StoreFinder
from skylark.spark.source.stream_offset import StreamOffset, decode_offset, encode_offset
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

WARN_INTERVAL_S: Final = 60.0
IDLE_POLL_MAX_S: Final = 2.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._initial: StreamOffset | None = None
        self._target: Mapping[MessageQueue, int] | None = None
        self._survey: Survey | None = None
        self._start: Mapping[MessageQueue, int] = {}
        self._idle_until: float | None = None
        self._batch_count = 0
        self._moved_at: float | None = None
        self._silent_since: dict[str, float] = {}
        self._warned_at: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Tasks get the options, and nothing of what the driver's object knows."""
        return type(self), (self._options, self._columns)

    # ---- the cluster, when it is first needed ----------------------------------------------------

    @cached_property
    def _cluster(self) -> Cluster:
        return shared_cluster(self._options.connection)

    @cached_property
    def _surveyor(self) -> Surveyor:
        return Surveyor(self._cluster.session, self._options)

    @cached_property
    def _progress(self) -> GroupOffsetReporter:
        return GroupOffsetReporter(self._cluster.session, self._options.group)

    @cached_property
    def _stores(self) -> StoreFinder:
        return StoreFinder(self._cluster.session, self._options)

    def _now(self) -> float:
        return self._cluster.session.clock.monotonic()

    def _first_survey(self) -> Survey:
        session = self._cluster.session
        return self._cluster.run(patiently(session, self._options, self._surveyor.first_survey))

    def _look(self, known: Mapping[MessageQueue, int]) -> Survey:
        session = self._cluster.session
        return self._cluster.run(
            patiently(session, self._options, lambda: self._surveyor.survey(known))
        )

    # ---- what Spark calls ------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """One limit stands for all: Spark replaces it only to say that there is none."""
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:
        """Resolved once in the life of this object."""
        if self._initial is None:
            survey = self._first_survey()
            resolver = Resolver(self._cluster.session, self._options, survey)
            start = self._cluster.run(
                patiently(self._cluster.session, self._options, resolver.start)
            )
            self._survey = survey
            self._initial = StreamOffset(start, fresh=True)
        return encode_offset(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing that is stored from now on is read in this run; brokers that are away wait."""
        survey = self._look({})
        self._survey = survey
        self._target = {queue: bounds.high for queue, bounds in survey.bounds.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends; ``start`` itself, if there is nothing for it."""
        begin = decode_offset(start)
        self._check_topics(begin)
        self._start = begin.queues
        if self._idle_until is not None:
            self._cluster.sleep(self._idle_until - self._now())
        self._survey = survey = self._look(begin.queues)
        self._watch(begin, survey)
        if not begin.fresh:
            self._tell(begin, survey)
        plan = plan_batch(
            begin.queues,
            survey,
            fail_on_data_loss=self._options.fail_on_data_loss,
            start_default=self._options.start_default,
            target=self._target,
        )
        end = plan.end(self._admit(plan, survey, limit))
        if end == begin.queues:
            topics = max(1, self._surveyor.topic_count)
            idle_s = min(self._options.idle_poll_ms / 1000 * topics, IDLE_POLL_MAX_S)
            self._idle_until = self._now() + idle_s
            return start
        self._idle_until = None
        self._batch_count += 1
        self._moved_at = self._now()
        return encode_offset(StreamOffset(end, first_start=begin.queues if begin.fresh else None))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of all queues, limits or not; known from the last look."""
        if self._survey is None:
            return None
        ends = {queue: bounds.high for queue, bounds in self._survey.bounds.items()}
        return encode_offset(StreamOffset({**self._start, **ends}))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets; the first batch begins where its end says."""
        first, last = decode_offset(start), decode_offset(end)
        self._check_topics(last)
        begin = first.queues
        if first.fresh:
            if last.fresh:
                return []
            begin = last.first_start if last.first_start is not None else begin
        ranges = {
            queue: (self._available(queue, begin[queue], until), until)
            for queue, until in last.queues.items()
            if begin.get(queue, until) < until
        }
        if not ranges:
            return []
        survey = self._survey if self._survey is not None else self._look(last.queues)
        self._survey = survey
        if cut_off := survey.cut_off & ranges.keys():
            # To leave out what a checkpoint has planned already would be to lose it.
            raise shrunk(cut_off, is_planned=True)
        return self._cluster.run(
            plan_partitions(
                self._cluster.session, self._options, self._stores, survey.addresses, ranges
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in tasks; Spark may ask for a partition that is none of ours, if there are none."""
        if not isinstance(partition, QueueRange):
            return iter(())
        return read_partition(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is complete; the last one is told by :meth:`latestOffset`."""
        if self._survey is not None:
            self._tell(decode_offset(end), self._survey)

    # ---- parts -----------------------------------------------------------------------------------

    def _check_topics(self, offset: StreamOffset) -> None:
        foreign = sorted(name for name in offset.topics if not self._options.wants_topic(name))
        if foreign:
            wanted = self._options.topics_pattern or ", ".join(self._options.topics)
            raise ConfigError(
                f"the checkpoint is of topic {', '.join(foreign)}, the options name {wanted}",
                hint="use a new checkpoint location for another topic",
            )

    def _available(self, queue: MessageQueue, begin: int, until: int) -> int:
        """Without messages that are known to be gone, if that is no error."""
        bounds = self._survey.bounds.get(queue) if self._survey is not None else None
        if bounds is None or self._options.fail_on_data_loss:
            return begin
        return max(begin, min(bounds.low, until))

    def _tell(self, offset: StreamOffset, survey: Survey) -> None:
        if self._options.commit_group_offsets:
            self._cluster.run(self._progress.report(offset.queues, survey.addresses))

    def _watch(self, begin: StreamOffset, survey: Survey) -> None:
        """Warn about brokers, topics and queues that are away; raises at the end of patience."""
        now = self._now()
        options = self._options
        if survey.gone and options.fail_on_data_loss:
            raise ClientError(
                f"topic {', '.join(sorted(survey.gone))} does not exist any more",
                hint="failOnDataLoss=false waits for it to come back",
            )
        unread = {
            queue
            for queue in survey.cut_off & survey.bounds.keys()
            if survey.bounds[queue].high > begin.queues.get(queue, 0)
        }
        if unread and options.fail_on_data_loss:
            raise shrunk(unread)
        self._silent_since = {
            broker: self._silent_since.get(broker, now) for broker in survey.silent
        }
        problems = [f"topic {topic} is gone" for topic in sorted(survey.gone)]
        if unread:
            problems.append(shrunk(unread).message)
        for broker, problem in sorted(survey.silent.items()):
            problems.append(f"broker {broker} is away: {problem}")
            away_ms = (now - self._silent_since[broker]) * 1000
            if options.fail_on_data_loss and away_ms > options.broker_down_grace_ms:
                raise TransportError(
                    f"broker {broker} has been away for {away_ms / 1000:.0f} s: {problem}",
                    hint="start it, raise brokerDownGraceMs, or set failOnDataLoss=false",
                )
        if problems and (self._warned_at is None or now >= self._warned_at + WARN_INTERVAL_S):
            self._warned_at = now
            held = len(unread) + sum(queue not in survey.bounds for queue in begin.queues)
            log.warning("%d queues are held: %s", held, "; ".join(problems))

    def _admit(
        self, plan: BatchPlan, survey: Survey, limit: ReadLimit
    ) -> Mapping[MessageQueue, int]:
        """How much of each backlog the batch takes."""
        backlogs, options = plan.backlogs, self._options
        if isinstance(limit, ReadAllAvailable) or not backlogs:
            return backlogs
        if self._target is None and self._waits_for_more(sum(backlogs.values())):
            return {}
        shares = backlogs
        if options.offsets_per_trigger_max is not None:
            shares = split_limit(backlogs, options.offsets_per_trigger_max, self._batch_count)
        if options.bytes_per_trigger_max is not None:
            sizes = self._cluster.run(self._record_sizes(plan, survey))
            by_size = split_bytes(backlogs, sizes, options.bytes_per_trigger_max, self._batch_count)
            if sum(by_size.values()) < sum(shares.values()):
                shares = by_size
        return shares

    def _waits_for_more(self, count: int) -> bool:
        options, now = self._options, self._now()
        if options.offsets_per_trigger_min is None or count >= options.offsets_per_trigger_min:
            return False
        if self._moved_at is None:
            self._moved_at = now
        return (now - self._moved_at) * 1000 < options.trigger_delay_max_ms

    async def _record_sizes(self, plan: BatchPlan, survey: Survey) -> dict[MessageQueue, int]:
        """What the next messages of each queue have on average."""
        session, group = self._cluster.session, self._options.group
        sizes: dict[MessageQueue, int] = {}
        for queue, backlog in plan.backlogs.items():
            begin = plan.positions[queue]
            try:
                found = await sample(
                    session,
                    survey.address(queue.broker_name, self._options.read_from),
                    session.namespace.wrap_queue(queue),
                    begin,
                    begin + min(SAMPLE_COUNT, backlog),
                    session.wrap(group),
                )
            except SkylarkError as error:
                log.info("the size of the messages of %s is not known: %s", queue, error)
                continue
            if found.sizes:
                sizes[queue] = max(1, sum(found.sizes) // len(found.sizes))
        mean = sum(sizes.values()) // len(sizes) if sizes else 1024
        return {queue: sizes.get(queue, mean) for queue in plan.backlogs}


class GroupOffsetReporter:
    """Reports the progress of a stream as offsets of a consumer group, so that lag tools show it.

    The checkpoint alone decides where a stream goes on. With ``commitGroupOffsets`` the offsets of
    queues that have moved are also sent to their brokers (UPDATE_CONSUMER_OFFSET). Nothing depends
    on it: an offset that cannot be sent now is sent with the next progress.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._reported: dict[MessageQueue, int] = {}
        self._warned_at: float | None = None

    async def report(
        self, offsets: Mapping[MessageQueue, int], addresses: Mapping[str, Mapping[int, str]]
    ) -> None:
        """Send the offsets that have changed since the last report."""
        moved = [queue for queue, offset in offsets.items() if self._reported.get(queue) != offset]
        await asyncio.gather(*(self._send(queue, offsets[queue], addresses) for queue in moved))

    async def _send(
        self, queue: MessageQueue, offset: int, addresses: Mapping[str, Mapping[int, str]]
    ) -> None:
        session = self._session
        address = choose_address(addresses.get(queue.broker_name, {}), "master")
        if address is None:
            return
        try:
            await session.calls.update_offset(
                address,
                session.wrap(self._group),
                session.namespace.wrap_queue(queue),
                offset,
                oneway=queue in self._reported,
            )
        except (BrokerError, TransportError, RemoteProtocolError, TimeoutError) as error:
            now = session.clock.monotonic()
            if self._warned_at is None or now >= self._warned_at + WARN_INTERVAL_S:
                self._warned_at = now
                log.warning("cannot report the offsets of group %s: %s", self._group, error)
        else:
            self._reported[queue] = offset
