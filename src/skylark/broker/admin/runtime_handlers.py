"""The state of a broker at this moment (28), and of its replicas (907, and LOG_CHECK of ours).

Facts are gathered here and put into words by :mod:`skylark.broker.admin.runtime_info`. What
services know that may not be there (delivery of delayed messages, timer) comes through callables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from skylark.broker.admin.runtime_info import NO_POOL, RuntimeFacts, runtime_info
from skylark.broker.delay.timer_service import TimerFacts
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import LoopWatch
from skylark.broker.stats.stats_sampler import StatsSampler
from skylark.core.clock import TimeSource
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import success
from skylark.replication.replication_service import Replication
from skylark.store.errors import StoreFileError
from skylark.store.file_system import DiskUsage, FileSystem
from skylark.store.message_store import MessageStore
from skylark.store.queue_registry import QUEUE_DIRECTORY
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command

#: Shown for a disk that cannot be measured.
UNKNOWN_RATIO: Final = -1.0


class ServiceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What other services of the broker tell when they are asked."""

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
        """Tell the dispatcher which code each method answers."""
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


def used_ratio(disk: DiskUsage | None) -> float:
    """The used share of a disk, rounded up to a hundredth as Java does."""
    if disk is None:
        return UNKNOWN_RATIO
    used = disk.total - disk.free
    whole = used + disk.available
    return -(-used * 100 // whole) / 100 if whole else UNKNOWN_RATIO
