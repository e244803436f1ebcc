"""GET_BROKER_RUNTIME_INFO (28): the state of a broker as a table of strings.

``mqadmin brokerStatus`` prints it, ``clusterList`` and monitoring read single rows, so names and
number formats are Java's. The caller gathers the facts; here they are put into words.

Java's broker has a queue of waiting requests before each pool of threads. Here requests wait in
the kernel and one loop answers them: the capacity is Java's, the size is what is known to wait, and
``HeadWaitTimeMills`` is how long the loop keeps new requests waiting at the moment.

Answers to ``AdminBrokerProcessor.prepareRuntimeInfo`` and the ``getRuntimeInfo`` that it calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.broker.delay.timer_service import TimerFacts
from skylark.core.java_text import java_double
from skylark.replication.replication_service import ReplicationStatus
from skylark.wire.codes import CURRENT_VERSION, version_name

#: What Java shows while there is no pool of buffers that could run out.
NO_POOL: Final = 2**31 - 1

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
    """What is asked of other parts of the broker at the time of the request."""

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
