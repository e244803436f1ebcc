"""Cold reads: limits groups that read old messages from the disk (``coldDataFlowControlEnable``).

A group that reads far behind the end of the log makes the system load old pages, which displace
those that all other groups read. With the setting on, the bytes of such reads are counted, by group
and in all. Once a count reaches its threshold, further cold reads of the group are limited until
the counts start again, every 5 s:

* a push consumer is refused (code 2), and pulls again later;
* a pull consumer waits for 3 s, and then gets one message.

A message is cold if more than ``accessMessageInMemoryHotRatio`` percent of the machine's memory
were written to the log since. Administrators set the threshold of a group (2001), remove it (2002)
and read all counts (2003); thresholds are in memory only, as in Java. Java's strategies that adapt
thresholds by themselves are not supported.

Counterpart of Java's ``ColdDataCgCtrService`` and ``ColdDataPullRequestHoldService``.
"""

from __future__ import annotations

from typing import Final

from skylark.broker.config import BrokerConfig
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.pull.pull_checks import MAY_ALWAYS_PULL
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import SystemBusyError
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.admin_body import ColdDataFlowCtrInfo, ColdDataReadCount
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.headers.pull import PullMessageRequestHeader

INTERVAL_S: Final = 5.0
#: A group that has read nothing cold for so long is no longer shown.
SHOWN_MS: Final = 60_000
#: How long a pull consumer waits.
HOLD_MS: Final = 3_000
#: Thresholds that administrators may set.
THRESHOLD_COUNT_MAX: Final = 10_000
REMARK: Final = "This consumer group is reading cold data. It has been flow control"


class ColdReads:
    """Counts and limits cold reads, from ``start`` to ``stop``."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        consumers: ConsumerTable,
        clock: Clock,
        memory_size: int,
    ) -> None:
        self._live = live
        self._store = store
        self._consumers = consumers
        self._clock = clock
        self._memory_size = memory_size
        self._timer: TimerHandle | None = None
        self._counts: dict[str, ColdDataReadCount] = {}
        self._total = 0
        #: Thresholds that administrators have set, by group.
        self.thresholds: dict[str, int] = {}
        self._apply(live.current)
        live.changes.subscribe(self._apply)

    def _apply(self, config: BrokerConfig) -> None:
        #: Whether reads are counted and limited.
        self.is_on = config.store.cold_data_flow_control_enable
        hot_ratio = config.store.access_message_in_memory_hot_ratio
        self._hot_size = self._memory_size * hot_ratio // 100

    def start(self) -> None:
        self._timer = self._clock.call_later(INTERVAL_S, self._begin_interval)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_interval(self) -> None:
        self.start()
        shown_since_ms = self._clock.now_ms() - SHOWN_MS
        self._total = 0
        for group, count in list(self._counts.items()):
            count.cold_acc = 0
            if count.last_cold_read_time_mills <= shown_since_ms:
                del self._counts[group]

    def info(self) -> ColdDataFlowCtrInfo:
        """GET_COLD_DATA_FLOW_CTR_INFO (2003)."""
        config = self._live.current.store
        return ColdDataFlowCtrInfo(
            runtime_table=self._counts,
            config_table=self.thresholds,
            cg_cold_read_threshold=config.cg_cold_read_threshold,
            global_cold_read_threshold=config.global_cold_read_threshold,
            global_acc=self._total,
        )

    def count(self, group: str, last_log_offset: int, size: int) -> None:
        """Count a read of ``size`` bytes, the last of them of the record at ``last_log_offset``."""
        if group in MAY_ALWAYS_PULL or not size or not self._is_cold(last_log_offset):
            return
        now_ms = self._clock.now_ms()
        count = self._counts.get(group)
        if count is None:
            count = self._counts[group] = ColdDataReadCount(create_time_mills=now_ms)
        count.cold_acc += size
        count.last_cold_read_time_mills = now_ms
        self._total += size

    def limit(self, header: PullMessageRequestHeader) -> bool:
        """Whether a pull is limited: it waits, and then gets one message.

        Raises SystemBusyError if it is a push consumer's.
        """
        group = header.consumer_group
        if not self._is_over(group) or not self._reads_cold(header):
            return False
        members = self._consumers.group(group)
        kind = None if members is None else members.consume_type
        if kind is ConsumeType.CONSUME_PASSIVELY:
            raise SystemBusyError(REMARK, hint="see coldDataFlowControlEnable")
        return kind is ConsumeType.CONSUME_ACTIVELY

    def _is_over(self, group: str) -> bool:
        count = self._counts.get(group)
        if count is None or group in MAY_ALWAYS_PULL:
            return False
        config = self._live.current.store
        threshold = self.thresholds.get(group, config.cg_cold_read_threshold)
        return count.cold_acc >= threshold or self._total >= config.global_cold_read_threshold

    def _reads_cold(self, header: PullMessageRequestHeader) -> bool:
        queue = self._store.queues.get(header.topic, header.queue_id)
        entry = None if queue is None else queue.read_entry(header.queue_offset)
        return entry is not None and self._is_cold(entry.log_offset)

    def _is_cold(self, log_offset: int) -> bool:
        return self._store.log.max_offset - log_offset > self._hot_size
