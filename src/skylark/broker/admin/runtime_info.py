"""The state of a broker (28), and of its replicas (907, and LOG_CHECK of ours).

GET_BROKER_RUNTIME_INFO (28) is a table of strings. ``mqadmin brokerStatus`` prints it,
``clusterList`` and monitoring read single rows, so names and number formats are Java's.

Java's broker has a queue of waiting requests before each pool of threads. Here requests wait in
the kernel and one loop answers them: the capacity is Java's, the size is 0, and
``HeadWaitTimeMills`` is how long the loop keeps new requests waiting at the moment.

Counterpart of Java's ``AdminBrokerProcessor.prepareRuntimeInfo`` and the ``getRuntimeInfo`` that it
calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.delay.timer_service import TimerFacts
from skylark.core.java_text import java_double
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.replication.replication_service import ReplicationStatus
from skylark.store.errors import StoreFileError
from skylark.store.file_system import DiskUsage
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


class RuntimeHandlers(AdminHandlers):
    """The requests about the broker as a whole."""

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def runtime_info(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_RUNTIME_INFO (28)."""
        broker, config = self._broker, self._broker.live.current
        store_rows, total_rows = broker.sampler.rows(broker.clock.now_ms())
        table = {**store_rows, **total_rows, **self._log_rows(), **self._timer_rows()}
        table |= replication_rows(broker.replication.status)
        for level, (delivered, end) in sorted(broker.delay_progress().items()):
            table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
        table |= {
            "brokerActive": "false" if config.is_slave else "true",
            "brokerVersionDesc": version_name(CURRENT_VERSION),
            "startAcceptSendRequestTimeStamp": str(config.start_accept_send_request_time_stamp),
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
        }
        wait_ms = str(broker.loop_watch.waited_ms())
        for pool, capacity in POOLS.items():
            table |= {
                f"{pool}ThreadPoolQueueSize": "0",
                f"{pool}ThreadPoolQueueCapacity": str(capacity),
                f"{pool}ThreadPoolQueueHeadWaitTimeMills": wait_ms,
            }
        return success(request, body=KVTable(table=table))

    @handles(RequestCode.GET_BROKER_HA_STATUS)
    def ha_status(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_HA_STATUS (907): the slaves of a master, or the link of a slave."""
        return success(request, body=self._broker.replication.runtime_info())

    @handles(RequestCode.LOG_CHECK)
    def log_check(self, _connection: Connection, request: Command) -> Command:
        """LOG_CHECK: whether a slave has the same bytes as this master."""
        return self._broker.replication.log_check(request)

    def _log_rows(self) -> dict[str, str]:
        store, config = self._broker.store, self._broker.live.current.store
        log, files, root = store.log, store.log.files, config.store_path_root_dir
        disk = self._disk(root)
        log_ratio = java_double(used_ratio(self._disk(config.commit_log_path)))
        earliest_ms = store.reader.store_time_of(log.min_offset)
        rows = {
            f"commitLogDiskRatio_{config.commit_log_path}": log_ratio,
            "commitLogDiskRatio": log_ratio,
            "consumeQueueDiskRatio": java_double(used_ratio(self._disk(root / QUEUE_DIRECTORY))),
            "commitLogMinOffset": str(log.min_offset),
            "commitLogMaxOffset": str(log.max_offset),
            "commitLogDirCapacity": (
                f"Total : {byte_count(disk.total if disk else 0)},"
                f" Free : {byte_count(disk.free if disk else 0)}."
            ),
            "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
            "dispatchBehindBytes": str(max(0, files.wrote_end - store.dispatch.dispatched_until)),
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": str(NO_POOL),
            "remainHowManyDataToFlush": byte_count(files.max_offset - files.flushed_where),
        }
        if files.pool is not None:
            rows["remainTransientStoreBufferNumbs"] = str(files.pool.available)
            rows["remainHowManyDataToCommit"] = byte_count(files.wrote_end - files.max_offset)
        return rows

    def _disk(self, path: Path) -> DiskUsage | None:
        files = self._broker.files
        while path != path.parent and not files.exists(path):  # a new store has no queues yet
            path = path.parent
        try:
            return files.disk_usage(path)
        except StoreFileError:
            return None

    def _timer_rows(self) -> dict[str, str]:
        timer = TimerFacts() if self._broker.timer is None else self._broker.timer.facts()
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
