"""Pulls: reads queues for consumers, now or when there are messages to read.

The checks come in Java's order, then the filter (:mod:`skylark.broker.pull.pull_checks`), then the
read. Code and remark of the result follow from the status of the read. The messages are records of
the log, leased until the endpoint releases them.

**Waiting.** A pull that reaches the end of its queue and may wait (sysFlag 2) is held
(:mod:`skylark.broker.pull.held_pull_runner`). When it wakes, the whole request runs again, and has
a result even if it finds no messages.

**Commit.** A pull may commit the offset of its group (sysFlag 1). The commit counts once, when the
request comes, not when it wakes; and not if an administrator has just reset the group (222): then
the result has code 21 and the new offset. In the same way a broadcast consumer that changes between
broker and proxy gets its old position (:mod:`skylark.broker.groups.broadcast_offsets`).

**Slaves** serve pulls with ``slaveReadEnable``. While there is a master they send consumers that
are not far behind back to it, with code 20 if they have no messages themselves.

``bulk=true`` is an extension of Skylark: only ``maxMsgNums``, ``maxMsgBytes`` and ``pullMaxBytes``
then limit a result.

A :class:`~skylark.broker.api.PullService`. Counterpart of Java's ``PullMessageProcessor`` and
``DefaultPullMessageResultHandler``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from skylark.broker.api import Peer, Pending, PullOutcome, PullRequest, PullResult
from skylark.broker.config import MASTER_ID
from skylark.broker.groups.broadcast_offsets import BroadcastOffsets
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pull.cold_reads import HOLD_MS, ColdReads
from skylark.broker.pull.held_pull_runner import OFFSET_MAX, HeldPullRunner
from skylark.broker.pull.pull_checks import PullChecks, PullFilter
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.stats.store_stats import StoreStats
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.core.errors import BrokerError, StoreError
from skylark.net.inbound import Watch
from skylark.store.config import FlushDiskType
from skylark.store.message_reader import SIZE_MAX, GetResult
from skylark.store.message_store import MessageStore
from skylark.store.store_results import GetStatus
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import PullSysFlag, ResponseCode
from skylark.wire.headers.pull import PullMessageRequestHeader

OFFSET_RESET: Final = "OFFSET_RESET"  # remark of the result after a reset
PULL_BYTES_MIN: Final = 100  # lower bound of maxMsgBytes, as in Java

# As plain numbers: members of an enumeration are slower.
_COMMIT_OFFSET: Final = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND: Final = int(PullSysFlag.SUSPEND)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_FOUND: Final = GetStatus.FOUND
_FOUND_CODE: Final = ResponseCode.SUCCESS
_FOUND_REMARK: Final = _FOUND.remark  # properties of an enumeration are slow
_HALF_MS: Final = 0.0005  # shorter times, in seconds, round to 0 ms


class PullPolicy:
    """Limits, codes and suggested brokers of pulls, from the settings and the broker's role."""

    def __init__(
        self, live: LiveSettings, has_master: Callable[[], bool], cold_reads: ColdReads
    ) -> None:
        """``has_master`` returns whether a slave is connected to its master."""
        self._live = live
        self._has_master = has_master
        self.cold_reads = cold_reads

    def bytes_max(self, header: PullMessageRequestHeader) -> int:
        """The most bytes of messages in one result, for a request that limits them."""
        bytes_max = SIZE_MAX
        if header.max_msg_bytes is not None:
            bytes_max = max(header.max_msg_bytes, PULL_BYTES_MIN)
        if header.bulk:
            bytes_max = min(bytes_max, self._live.current.pull_max_bytes)
        return bytes_max

    def code_and_broker(
        self, header: PullMessageRequestHeader, group: SubscriptionGroupConfig, result: GetResult
    ) -> tuple[ResponseCode, int]:
        """The code of the result, and the id of the broker to pull from next time."""
        config = self._live.current
        if result.status is _FOUND and not config.slave_read_enable:
            return _FOUND_CODE, MASTER_ID  # what follows says the same, but most pulls end here
        code = result.status.pull_code(header.queue_offset)
        suggested_id = self.suggested_broker(group, is_slow=result.suggest_slave)
        if config.is_slave:
            if not result.suggest_slave and self._has_master():
                suggested_id = MASTER_ID
                if result.status is not _FOUND:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
            elif code == ResponseCode.PULL_OFFSET_MOVED and not config.store.offset_check_in_slave:
                suggested_id = group.broker_id
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested_id

    def suggested_broker(self, group: SubscriptionGroupConfig, *, is_slow: bool) -> int:
        """The id of the broker that a group should pull from."""
        if not self._live.current.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if is_slow else group.broker_id

    def wait_ms(self, header: PullMessageRequestHeader) -> int:
        """How long a pull that finds nothing is held."""
        config = self._live.current
        if not config.long_polling_enable:
            return max(0, config.short_polling_time_mills)
        return max(0, header.suspend_timeout_millis)


class PullCounters:
    """Counts pulls and the messages in their results."""

    def __init__(
        self,
        stats: BrokerStats,
        store_stats: StoreStats,
        store: MessageStore,
        topics: TopicTable,
        clock: Clock,
    ) -> None:
        self._stats = stats
        self._store_stats = store_stats
        self._store = store
        self._topics = topics
        self._clock = clock

    def count(self, header: PullMessageRequestHeader, result: GetResult, began_at: float) -> None:
        """Count a pull that began at ``began_at`` and has its result."""
        store_stats, topic, group = self._store_stats, header.topic, header.consumer_group
        if result.last_log_offset >= 0:
            meter = self._stats.queue_gets[header.queue_id, topic, group]
            meter.behind_size = max(0, self._store.log.max_offset - result.last_log_offset)
        took_ms, took_s = 0, self._clock.monotonic() - began_at
        if took_s > _HALF_MS:
            took_ms = round(took_s * 1000)
            if took_ms > store_stats.get_ms_max:
                store_stats.get_ms_max = took_ms
        if result.status is not _FOUND:
            store_stats.missed_count += 1
            return
        store_stats.found_count += 1
        store_stats.transferred_count += result.message_count
        meter.count += took_ms
        meter.times += 1
        self._stats.got(
            topic,
            group,
            result.message_count,
            result.size,
            is_system=self._topics.is_system(topic),
        )


class PullService:
    """Reads queues, and holds pulls that find no messages."""

    def __init__(
        self,
        policy: PullPolicy,
        checks: PullChecks,
        store: MessageStore,
        offsets: OffsetTable,
        broadcasts: BroadcastOffsets,
        counters: PullCounters,
        clock: Clock,
        watch: Watch,
    ) -> None:
        """``watch`` is told of the turns of the loop that run held pulls."""
        self._policy = policy
        self._cold_reads = policy.cold_reads
        self._checks = checks
        self._store = store
        self._offsets = offsets
        self._broadcasts = broadcasts
        self._count = counters.count
        self._clock = clock
        #: The held pulls.
        self.waiting = HeldPullRunner(
            self._pull_again,
            clock,
            watch=watch,
            wakes_late=store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        )
        self.held = self.waiting.held

    def _pull_again(self, peer: Peer, request: PullRequest) -> PullResult:
        result = self.pull(peer, request, is_first=False)
        assert isinstance(result, PullResult), "a pull waits once"
        return result

    def pull(
        self, peer: Peer, request: PullRequest, *, is_first: bool = True
    ) -> PullResult | Pending[PullOutcome]:
        """Read now, or later if there are no messages and the request may wait; raises BrokerError.

        Endpoints do not pass ``is_first``: it is false for a held pull that runs again, which does
        not commit or wait again.
        """
        began_at = self._clock.monotonic()
        header, checks = request.header, self._checks
        group = checks.group(request)
        topic = checks.topic(peer, header)
        wanted = checks.filter(peer, header, group)
        group_name, topic_name, queue_id = header.consumer_group, header.topic, header.queue_id
        if self._cold_reads.is_on and self._cold_reads.limit(header):
            if is_first and not self.waiting.is_stopping:
                return self.waiting.hold(peer, request, wanted, 0, HOLD_MS, offset=OFFSET_MAX)
            header.max_msg_nums = 1
        broadcast_id = self._broadcasts.client_id(peer, header)
        moved_to = self._offsets.take_reset(group_name, topic_name, queue_id)
        if moved_to is None and broadcast_id is not None:
            moved_to = self._broadcasts.moved_to(broadcast_id, header)
        if moved_to is not None:
            if broadcast_id is not None:
                moved = ResponseCode.PULL_OFFSET_MOVED
                self._broadcasts.pulled(broadcast_id, header, moved, moved_to)
            return self._offset_moved(header, topic, group, moved_to)
        found = self._read(header, wanted)
        try:
            code, suggested_id = self._policy.code_and_broker(header, group, found)
            self._offsets.commit_pulled(group_name, topic_name, queue_id, found.next_offset)
            if is_first and header.sys_flag & _COMMIT_OFFSET and header.commit_offset >= 0:
                self._offsets.commit(group_name, topic_name, queue_id, header.commit_offset)
            if broadcast_id is not None:
                self._broadcasts.pulled(broadcast_id, header, code, found.next_offset)
            if (
                code == _NOT_FOUND
                and is_first
                and header.sys_flag & _SUSPEND
                and not self.waiting.is_stopping
            ):
                wait_ms = self._policy.wait_ms(header)
                pending = self.waiting.hold(peer, request, wanted, found.max_offset, wait_ms)
                found.release()
                return pending
            self._count(header, found, began_at)
            if self._cold_reads.is_on:
                self._cold_reads.count(group_name, found.last_log_offset, found.size)
        except BaseException:
            found.release()
            raise
        return PullResult(
            code,
            _FOUND_REMARK if found.status is _FOUND else found.status.remark,
            suggested_id,
            found.next_offset,
            found.min_offset,
            found.max_offset,
            topic,
            group,
            found,
        )

    def _read(self, header: PullMessageRequestHeader, wanted: PullFilter) -> GetResult:
        bytes_max = SIZE_MAX
        if header.max_msg_bytes is not None or header.bulk:
            bytes_max = self._policy.bytes_max(header)
        try:
            return self._store.reader.get(
                header.topic,
                header.queue_id,
                header.queue_offset,
                max(1, header.max_msg_nums),
                wanted.tags,
                wanted.retried if wanted.sql is None else wanted.sql,
                bytes_max=bytes_max,
                bulk=header.bulk or False,
            )
        except StoreError as error:
            raise BrokerError("store getMessage return null", hint=str(error)) from error

    def _offset_moved(
        self,
        header: PullMessageRequestHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        offset: int,
    ) -> PullResult:
        """The result of the first pull after a reset of the group: the new offset."""
        reader = self._store.reader
        return PullResult(
            ResponseCode.PULL_OFFSET_MOVED,
            OFFSET_RESET,
            self._policy.suggested_broker(group, is_slow=False),
            offset,
            reader.min_offset(header.topic, header.queue_id),
            reader.max_offset(header.topic, header.queue_id),
            topic,
            group,
        )
