"""Readers of batch queries and of streams: Spark calls them to plan partitions and to read them.

:class:`BatchReader` plans the ranges of queues once per ``load()``. :class:`StreamReader` plans
micro-batches between the offsets in Spark's checkpoint: one object lives in the driver while the
query runs, and Spark calls it in this order::

    prepareForTriggerAvailableNow   that trigger only
    getDefaultReadLimit             once
    initialOffset                   new checkpoint only; twice, and again after a crash in batch 0
    latestOffset(start, limit)      every trigger; then reportLatestOffset
    commit(end of the batch before)
    partitions(start, end)

Tasks run ``read`` on pickled copies, which have the options only. After a restart with an
unfinished batch the first call is ``partitions``, with the end from the checkpoint.

**Idle.** Without new messages ``latestOffset`` returns its argument, and the next call waits
``idlePollMs`` before it asks the brokers again: Spark itself would call 70 times a second.

**Progress.** The start that ``latestOffset`` gets is the end of a completed batch, hence the
progress of the consumer group. ``commit`` alone would miss the last batch.

**Brokers down.** Their queues keep their offsets and a warning is logged; after
``brokerDownGraceMs`` the query fails, unless ``failOnDataLoss`` is off. If ``readQueueNums`` was
lowered before a queue was read to its end, the query fails at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from skylark.admin.admin_session import Session
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ConfigError,
    RemoteProtocolError,
    TransportError,
)
from skylark.spark.cluster_client import Cluster, shared_cluster
from skylark.spark.errors import few_frames, queue_recreated, queues_withdrawn
from skylark.spark.source.input_partitions import StoreFinder, plan_partitions
from skylark.spark.source.offset_planning import (
    BatchPlan,
    new_identities,
    plan_batch,
    split_bytes,
    split_limit,
)
from skylark.spark.source.partition_reader import read_partition
from skylark.spark.source.queue_bounds import (
    ClusterInspector,
    ClusterSnapshot,
    ask_cluster,
    choose_address,
)
from skylark.spark.source.queue_identity import IdentityChecker
from skylark.spark.source.range_packing import RangePacker
from skylark.spark.source.record_sizes import RecordSizes
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.start_offsets import OffsetResolver
from skylark.spark.source.stream_offset import StreamOffset, decode_offset, encode_offset
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa


logger = logging.getLogger(__name__)

WARN_INTERVAL_S: Final = 60.0
IDLE_POLL_MAX_S: Final = 2.0


class BatchReader(DataSourceReader):
    """Reads a topic from its starting to its ending offsets; called by Spark."""

    _value_type: StructType | None = None  # pickles of earlier versions have none

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[str],
        value_type: StructType | None = None,
    ) -> None:
        """``value_type``: of decoded bodies."""
        self._options = options
        self._columns = tuple(columns)
        if value_type is not None:
            self._value_type = value_type

    @few_frames
    def partitions(self) -> Sequence[InputPartition]:
        """The ranges to read, by the offsets that brokers report now; raises SkylarkError."""
        return ask_cluster(self._options, self._plan)

    async def _plan(self, session: Session) -> Sequence[InputPartition]:
        inspector = ClusterInspector(session, self._options)
        snapshot = await inspector.first_snapshot()
        resolver = OffsetResolver(session, self._options, snapshot)
        start = await resolver.start()
        end = await resolver.end(start)
        ranges = {queue: (start[queue], end[queue]) for queue in start}
        finder = StoreFinder(session, self._options)
        parts = await plan_partitions(session, self._options, finder, snapshot.addresses, ranges)
        return await RangePacker(session, self._options).pack(parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in tasks. Without partitions Spark calls it with one that is not ours."""
        return read_partition(partition, self._options, self._columns, self._value_type)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver and reads partitions in tasks; called by Spark."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[str],
        value_type: StructType | None = None,
    ) -> None:
        """``value_type``: of decoded bodies."""
        self._options = options
        self._columns = tuple(columns)
        self._value_type = value_type
        self._initial: StreamOffset | None = None
        self._target: Mapping[MessageQueue, int] | None = None
        self._snapshot: ClusterSnapshot | None = None
        self._start: Mapping[MessageQueue, int] = {}
        self._planned: Mapping[MessageQueue, int] | None = None  # the end of the last batch
        self._idle_until: float | None = None
        self._batch_count = 0
        self._moved_at: float | None = None
        self._unreachable_since: dict[str, float] = {}
        self._warned_at: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Tasks get the options without the state of the driver."""
        return type(self), (self._options, self._columns, self._value_type)

    # ---- the cluster, opened on first use --------------------------------------------------------

    @cached_property
    def _cluster(self) -> Cluster:
        return shared_cluster(self._options.connection)

    @cached_property
    def _inspector(self) -> ClusterInspector:
        return ClusterInspector(self._cluster.session, self._options)

    @cached_property
    def _group_offsets(self) -> GroupOffsetReporter:
        return GroupOffsetReporter(self._cluster.session, self._options.group)

    @cached_property
    def _identities(self) -> IdentityChecker:
        return IdentityChecker(self._cluster.session, self._options)

    @cached_property
    def _sizes(self) -> RecordSizes:
        return RecordSizes(self._cluster.session, self._options)

    @cached_property
    def _stores(self) -> StoreFinder:
        return StoreFinder(self._cluster.session, self._options)

    @cached_property
    def _packer(self) -> RangePacker:
        return RangePacker(self._cluster.session, self._options)

    def _now(self) -> float:
        return self._cluster.session.clock.monotonic()

    def _take_snapshot(self, known: Mapping[MessageQueue, int]) -> ClusterSnapshot:
        return ask_cluster(self._options, lambda _: self._inspector.snapshot(known))

    # ---- called by Spark -------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """One configured limit: ``latestOffset`` gets it, or ReadAllAvailable, and applies all."""
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    @few_frames
    def initialOffset(self) -> dict[str, Any]:
        """The start of a new stream, resolved once."""
        if self._initial is None:
            snapshot = ask_cluster(self._options, lambda _: self._inspector.first_snapshot())
            resolver = OffsetResolver(self._cluster.session, self._options, snapshot)
            start = ask_cluster(self._options, lambda _: resolver.start())
            self._snapshot = snapshot
            self._initial = StreamOffset(start, fresh=True)
        return encode_offset(self._initial)

    @few_frames
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: messages that are stored later are not read."""
        snapshot = self._take_snapshot({})
        self._snapshot = snapshot
        self._target = {queue: bounds.high for queue, bounds in snapshot.bounds.items()}

    @few_frames
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself if there is nothing to read."""
        begin = decode_offset(start)
        self._check_topics(begin)
        self._start = begin.queues
        if self._idle_until is not None:
            self._cluster.sleep(self._idle_until - self._now())
        self._snapshot = snapshot = self._take_snapshot(begin.queues)
        self._check_health(begin, snapshot)
        if not begin.fresh:
            self._report_progress(begin, snapshot)
        checked = self._cluster.run(self._identities.check(begin, snapshot))
        plan = plan_batch(
            begin.queues,
            snapshot,
            fail_on_data_loss=self._options.fail_on_data_loss,
            start_default=self._options.start_default,
            target=self._target,
            recreated=checked.recreated,
        )
        end = plan.end(self._apply_limits(plan, snapshot, limit))
        if end == begin.queues:
            topics = max(1, self._inspector.topic_count)
            idle_s = min(self._options.idle_poll_ms / 1000 * topics, IDLE_POLL_MAX_S)
            self._idle_until = self._now() + idle_s
            return start
        self._idle_until = None
        self._batch_count += 1
        self._moved_at = self._now()
        self._planned = end
        return encode_offset(
            StreamOffset(
                end,
                first_start=begin.queues if begin.fresh else None,
                identities=new_identities(begin, end, snapshot, checked.unchecked),
            )
        )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of all queues in the last snapshot, for Spark's progress report."""
        if self._snapshot is None:
            return None
        ends = {queue: bounds.high for queue, bounds in self._snapshot.bounds.items()}
        return encode_offset(StreamOffset({**self._start, **ends}))

    @few_frames
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets; the end of the first batch also has its start."""
        first, last = decode_offset(start), decode_offset(end)
        self._check_topics(last)
        begin = first.queues
        if first.fresh:
            if last.fresh:
                return []
            begin = last.first_start if last.first_start is not None else begin
        ranges: Mapping[MessageQueue, tuple[int, int]] = {
            queue: (self._available(queue, begin[queue], until), until)
            for queue, until in last.queues.items()
            if begin.get(queue, until) < until
        }
        if not ranges:
            return []
        snapshot = (
            self._snapshot if self._snapshot is not None else self._take_snapshot(last.queues)
        )
        self._snapshot = snapshot
        if unreadable := snapshot.unreadable & ranges.keys():
            # The checkpoint has planned these messages: leaving them out would lose them.
            raise queues_withdrawn(unreadable, is_planned=True)
        if last.queues != self._planned:  # by an earlier run, which has ended before it was done
            ranges = self._without_recreated(last, ranges, snapshot)
        session, options = self._cluster.session, self._options

        async def plan() -> Sequence[InputPartition]:
            parts = await plan_partitions(
                session, options, self._stores, snapshot.addresses, ranges
            )
            return await self._packer.pack(parts)

        return self._cluster.run(plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in tasks. Without partitions Spark calls it with one that is not ours."""
        return read_partition(partition, self._options, self._columns, self._value_type)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is complete; :meth:`latestOffset` reports the last one."""
        if self._snapshot is not None:
            self._report_progress(decode_offset(end), self._snapshot)

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
        """The first offset that can be read; ``begin`` if missing messages are an error."""
        bounds = self._snapshot.bounds.get(queue) if self._snapshot is not None else None
        if bounds is None or self._options.fail_on_data_loss:
            return begin
        return max(begin, min(bounds.low, until))

    def _without_recreated(
        self,
        end: StreamOffset,
        ranges: Mapping[MessageQueue, tuple[int, int]],
        snapshot: ClusterSnapshot,
    ) -> Mapping[MessageQueue, tuple[int, int]]:
        """The ranges of queues that are still those of the checkpoint; raises DataLossError.

        The next ``latestOffset`` sets the others back to their first message.
        """
        recreated = ask_cluster(
            self._options, lambda _: self._identities.recreated_since(end, ranges, snapshot)
        )
        for queue in sorted(recreated):
            problem = queue_recreated(queue, end.queues[queue], snapshot.bounds[queue].high)
            if self._options.fail_on_data_loss:
                raise problem
            logger.warning("the messages of a planned batch are gone: %s", problem.message)
        return {queue: each for queue, each in ranges.items() if queue not in recreated}

    def _report_progress(self, offset: StreamOffset, snapshot: ClusterSnapshot) -> None:
        if self._options.commit_group_offsets:
            self._cluster.run(self._group_offsets.report(offset.queues, snapshot.addresses))

    def _check_health(self, begin: StreamOffset, snapshot: ClusterSnapshot) -> None:
        """Warn about missing brokers, topics and queues; raises if the options do not allow it."""
        now = self._now()
        options = self._options
        if snapshot.deleted_topics and options.fail_on_data_loss:
            raise ClientError(
                f"topic {', '.join(sorted(snapshot.deleted_topics))} does not exist any more",
                hint="failOnDataLoss=false waits for it to come back",
            )
        unread = {
            queue
            for queue in snapshot.unreadable & snapshot.bounds.keys()
            if snapshot.bounds[queue].high > begin.queues.get(queue, 0)
        }
        if unread and options.fail_on_data_loss:
            raise queues_withdrawn(unread)
        self._unreachable_since = {
            broker: self._unreachable_since.get(broker, now) for broker in snapshot.unreachable
        }
        problems = [f"topic {topic} was deleted" for topic in sorted(snapshot.deleted_topics)]
        if unread:
            problems.append(queues_withdrawn(unread).message)
        for broker, problem in sorted(snapshot.unreachable.items()):
            problems.append(f"broker {broker} is down: {problem}")
            away_ms = (now - self._unreachable_since[broker]) * 1000
            if options.fail_on_data_loss and away_ms > options.broker_down_grace_ms:
                raise TransportError(
                    f"broker {broker} has been down for {away_ms / 1000:.0f} s: {problem}",
                    hint="start it, raise brokerDownGraceMs, or set failOnDataLoss=false",
                )
        if problems and (self._warned_at is None or now >= self._warned_at + WARN_INTERVAL_S):
            self._warned_at = now
            held = len(unread) + sum(queue not in snapshot.bounds for queue in begin.queues)
            logger.warning("%d queues are not read now: %s", held, "; ".join(problems))

    def _apply_limits(
        self, plan: BatchPlan, snapshot: ClusterSnapshot, limit: ReadLimit
    ) -> Mapping[MessageQueue, int]:
        """The number of messages of each backlog that the batch reads."""
        backlogs, options = plan.backlogs, self._options
        if isinstance(limit, ReadAllAvailable) or not backlogs:
            return backlogs
        if self._target is None and self._waits_for_minimum(sum(backlogs.values())):
            return {}
        shares = backlogs
        if options.offsets_per_trigger_max is not None:
            shares = split_limit(backlogs, options.offsets_per_trigger_max, self._batch_count)
        if options.bytes_per_trigger_max is not None:
            sizes = self._cluster.run(self._sizes.sizes(plan, snapshot))
            by_size = split_bytes(backlogs, sizes, options.bytes_per_trigger_max, self._batch_count)
            if sum(by_size.values()) < sum(shares.values()):
                shares = by_size
        return shares

    def _waits_for_minimum(self, count: int) -> bool:
        options, now = self._options, self._now()
        if options.offsets_per_trigger_min is None or count >= options.offsets_per_trigger_min:
            return False
        if self._moved_at is None:
            self._moved_at = now
        return (now - self._moved_at) * 1000 < options.trigger_delay_max_ms


class GroupOffsetReporter:
    """Reports the progress of a stream as offsets of a consumer group, so that lag tools show it.

    The checkpoint alone decides where a stream continues. With ``commitGroupOffsets`` the offsets
    of queues that have moved are also sent to their brokers (UPDATE_CONSUMER_OFFSET). Nothing
    depends on it: an offset that cannot be sent now is sent with the next progress.
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
                logger.warning("cannot report the offsets of group %s: %s", self._group, error)
        else:
            self._reported[queue] = offset
