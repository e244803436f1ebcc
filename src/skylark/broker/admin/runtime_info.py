"""The state of a broker (28), and of its replicas (907, and LOG_CHECK of ours).

GET_BROKER_RUNTIME_INFO (28) is a table of strings. ``mqadmin brokerStatus`` prints it,
``clusterList`` and monitoring read single rows, so names and number formats are Java's.
:class:`RuntimeHandlers` collects the facts, :func:`runtime_info` formats them. Facts of services
that may not exist (delivery of delayed messages, timer) come through callables.

Java's broker has a queue of waiting requests before each pool of threads. Here requests wait in
the kernel and one loop answers them: the capacity is Java's, the size is what is known to wait, and
``HeadWaitTimeMills`` is how long the loop keeps new requests waiting at the moment.

Counterpart of Java's ``AdminBrokerProcessor.prepareRuntimeInfo`` and the ``getRuntimeInfo`` that it
calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from skylark.broker.delay.timer_service import TimerFacts
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import LoopWatch
from skylark.broker.stats.stats_sampler import StatsSampler
from skylark.core.clock import TimeSource
from skylark.core.java_text import java_double
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.replication.replication_service import Replication, ReplicationStatus
from skylark.store.errors import StoreFileError
from skylark.store.file_system import DiskUsage, FileSystem
from skylark.store.message_store import MessageStore
from skylark.store.queue_registry import QUEUE_DIRECTORY
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.codes import CURRENT_VERSION, RequestCode, version_name
from skylark.wire.command import Command

#: What Java shows while there is no pool of buffers that could run out.
NO_POOL: Final = 2**31 - 1

#: Shown for a disk that cannot be measured.
UNKNOWN_RATIO: Final = -1.0

#: Pool of threads in Java -> its capacity for waiting requests.
POOLS: Final = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
END_TRANSACTION_CAPACITY: Final = 100_000


class RuntimeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the broker at the time of a request."""

    #: Whether delayed messages are delivered and transactions checked here: not on a slave.
    is_active: bool
    log_min_offset: int
    log_max_offset: int
    #: Path -> share of its disk that is used.
    commit_log_disk_ratios: Mapping[str, float]
    consume_queue_disk_ratio: float
    disk_size: int
    disk_free_size: int
    earliest_message_ms: int
    dispatch_behind_bytes: int = 0
    #: How long the append under way has taken.
    append_ms: int = 0
    unflushed_size: int = 0
    #: None without a pool of buffers.
    uncommitted_size: int | None = None
    free_buffer_count: int = NO_POOL
    start_accept_send_ms: int = 0
    timer: TimerFacts = TimerFacts()
    #: Delay level -> (delivered up to, end of its queue).
    schedule_offsets: Mapping[int, tuple[int, int]] = {}
    #: Name in :data:`POOLS`, or ``endTransaction`` -> requests that are known to wait.
    waiting_counts: Mapping[str, int] = {}
    loop_wait_ms: int = 0
    replication: ReplicationStatus = ReplicationStatus(is_master=True)


class ServiceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that services of the broker give on request."""

    #: Delay level -> (delivered up to, end of its queue).
    schedule_offsets: Callable[[], Mapping[int, tuple[int, int]]] = dict
    timer: Callable[[], TimerFacts] = TimerFacts


class RuntimeHandlers:
    """The requests about the broker as a whole."""

    def __init__(
        self,
        live: LiveSettings,
        store: MessageStore,
        files: FileSystem,
        sampler: StatsSampler,
        watch: LoopWatch,
        clock: TimeSource,
        replication: Replication,
        services: ServiceFacts,
    ) -> None:
        self._live = live
        self._store = store
        self._files = files
        self._sampler = sampler
        self._watch = watch
        self._clock = clock
        self._replication = replication
        self._services = services

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        dispatcher.add_hot(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info)
        dispatcher.add_hot(RequestCode.GET_BROKER_HA_STATUS, self.ha_status)
        dispatcher.add_hot(RequestCode.LOG_CHECK, self.log_check)

    def runtime_info(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_RUNTIME_INFO (28)."""
        store_rows, total_rows = self._sampler.rows(self._clock.now_ms())
        table = runtime_info(self._facts(), store_rows, total_rows)
        return success(request, body=KVTable(table=table))

    def ha_status(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_HA_STATUS (907): the slaves of a master, or the link of a slave."""
        return success(request, body=self._replication.runtime_info())

    def log_check(self, _connection: Connection, request: Command) -> Command:
        """LOG_CHECK: whether a slave has the same bytes as this master."""
        return self._replication.log_check(request)

    def _facts(self) -> RuntimeFacts:
        config, log = self._live.current, self._store.log
        files = log.files
        root = config.store.store_path_root_dir
        log_path = config.store.commit_log_path
        disk = self._disk(root)
        earliest_ms = self._store.reader.store_time_of(log.min_offset)
        return RuntimeFacts(
            is_active=not config.is_slave,
            log_min_offset=log.min_offset,
            log_max_offset=log.max_offset,
            commit_log_disk_ratios={str(log_path): used_ratio(self._disk(log_path))},
            consume_queue_disk_ratio=used_ratio(self._disk(root / QUEUE_DIRECTORY)),
            disk_size=0 if disk is None else disk.total,
            disk_free_size=0 if disk is None else disk.free,
            earliest_message_ms=-1 if earliest_ms is None else earliest_ms,
            dispatch_behind_bytes=max(0, files.wrote_end - self._store.dispatch.dispatched_until),
            unflushed_size=files.max_offset - files.flushed_where,
            uncommitted_size=None if files.pool is None else files.wrote_end - files.max_offset,
            free_buffer_count=NO_POOL if files.pool is None else files.pool.available,
            start_accept_send_ms=config.start_accept_send_request_time_stamp,
            timer=self._services.timer(),
            schedule_offsets=self._services.schedule_offsets(),
            loop_wait_ms=self._watch.waited_ms(),
            replication=self._replication.status,
        )

    def _disk(self, path: Path) -> DiskUsage | None:
        while path != path.parent and not self._files.exists(path):  # a new store has no queues yet
            path = path.parent
        try:
            return self._files.disk_usage(path)
        except StoreFileError:
            return None


def runtime_info(
    facts: RuntimeFacts, store_rows: Mapping[str, str], total_rows: Mapping[str, str]
) -> dict[str, str]:
    """The whole table; the rows are those of ``StoreStats`` and ``DayTotals``."""
    table = {**store_rows, **total_rows, **_log_rows(facts), **_timer_rows(facts.timer)}
    table |= replication_rows(facts.replication)
    for level, (delivered, end) in sorted(facts.schedule_offsets.items()):
        table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
    table |= {
        "brokerActive": "true" if facts.is_active else "false",
        "brokerVersionDesc": version_name(CURRENT_VERSION),
        "startAcceptSendRequestTimeStamp": str(facts.start_accept_send_ms),
    }
    for pool, capacity in POOLS.items():
        table |= {
            f"{pool}ThreadPoolQueueSize": str(facts.waiting_counts.get(pool, 0)),
            f"{pool}ThreadPoolQueueCapacity": str(capacity),
            f"{pool}ThreadPoolQueueHeadWaitTimeMills": str(facts.loop_wait_ms),
        }
    table["EndTransactionQueueSize"] = str(facts.waiting_counts.get("endTransaction", 0))
    table["EndTransactionThreadPoolQueueCapacity"] = str(END_TRANSACTION_CAPACITY)
    return table


def _log_rows(facts: RuntimeFacts) -> dict[str, str]:
    ratios = facts.commit_log_disk_ratios
    rows = {f"commitLogDiskRatio_{path}": java_double(ratio) for path, ratio in ratios.items()}
    rows |= {
        "commitLogDiskRatio": java_double(min(ratios.values(), default=0.0)),
        "consumeQueueDiskRatio": java_double(facts.consume_queue_disk_ratio),
        "commitLogMinOffset": str(facts.log_min_offset),
        "commitLogMaxOffset": str(facts.log_max_offset),
        "commitLogDirCapacity": (
            f"Total : {byte_count(facts.disk_size)}, Free : {byte_count(facts.disk_free_size)}."
        ),
        "earliestMessageTimeStamp": str(facts.earliest_message_ms),
        "dispatchBehindBytes": str(facts.dispatch_behind_bytes),
        "pageCacheLockTimeMills": str(facts.append_ms),
        "remainTransientStoreBufferNumbs": str(facts.free_buffer_count),
        "remainHowManyDataToFlush": byte_count(facts.unflushed_size),
    }
    if facts.uncommitted_size is not None:
        rows["remainHowManyDataToCommit"] = byte_count(facts.uncommitted_size)
    return rows


def _timer_rows(timer: TimerFacts) -> dict[str, str]:
    return {
        "timerReadBehind": str(timer.read_behind),
        "timerOffsetBehind": str(timer.offset_behind),
        "timerCongestNum": str(timer.congest_count),
        "timerEnqueueTps": java_double(timer.enqueue_tps),
        "timerDequeueTps": java_double(timer.dequeue_tps),
    }


def replication_rows(status: ReplicationStatus) -> dict[str, str]:
    """Rows that Java does not have: of a slave, and of a master that has any."""
    if not status.is_master:
        return {"haPhase": status.phase or "", "haDivergence": status.divergence or ""}
    if not status.slave_count and not status.timeout_count:
        return {}
    return {
        "haSlaves": str(status.slave_count),
        "haSlavesInSync": str(status.in_sync_count),
        "haBehindBytes": str(status.behind_bytes),
        "haWaitingPuts": str(status.waiting_count),
        "haTimedOutPuts": str(status.timeout_count),
    }


def byte_count(size: int) -> str:
    """``236.2 GiB``; below 1024 ``17 B``."""
    if size < 1024:
        return f"{size} B"
    for exponent, prefix in enumerate("KMGTPE", start=1):
        if size < 1024 ** (exponent + 1) or prefix == "E":
            break
    return f"{size / 1024**exponent:.1f} {prefix}iB"


def used_ratio(disk: DiskUsage | None) -> float:
    """The used share of a disk, rounded up to a hundredth as Java does."""
    if disk is None:
        return UNKNOWN_RATIO
    used = disk.total - disk.free
    whole = used + disk.available
    return -(-used * 100 // whole) / 100 if whole else UNKNOWN_RATIO
