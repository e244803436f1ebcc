"""What a broker has only as a slave, in one object: who copies what, and which files keep it.

::

    load    after the tables of the broker: slaveOffset.json, delayOffset.json, timercheck
    start   follow the master, whom set_master names; again whenever that changes
    stop    before the tables are saved for the last time
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.groups.request_modes import RequestModes
from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.slave.metadata_sync import CallAddress, SlaveSync
from skylark.broker.slave.slave_commits import SLAVE_OFFSETS, SlaveCommits, SlaveOffsetTable
from skylark.broker.slave.slave_deliveries import DeliveryCopies
from skylark.broker.slave.slave_groups import NewGroups
from skylark.broker.table_saver import InThread, TableSaver
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock
from skylark.store.config_files import DELAY_OFFSETS, ConfigFiles
from skylark.store.config_tables import DelayOffsetTable
from skylark.store.file_system import FileSystem
from skylark.store.message_store import MessageStore


class SlaveService:
    """The copies of one slave."""

    def __init__(
        self,
        live: LiveSettings,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        request_modes: RequestModes,
        store: MessageStore,
        config_files: ConfigFiles,
        files: FileSystem,
        clock: Clock,
        *,
        call: CallAddress,
        delete_queues: Callable[[tuple[str, ...]], None],
        modes_saved: Callable[[], None],
        in_thread: InThread = asyncio.to_thread,
    ) -> None:
        """See :class:`SlaveSync`."""
        config = live.current
        self._live = live
        self._offsets = offsets
        self._config_files = config_files
        self._commits = SlaveCommits(offsets)
        self._new_groups = NewGroups(groups)
        self._copies = DeliveryCopies(
            files,
            config.store.store_path_root_dir,
            config_files,
            timer_log_file_size=config.mapped_file_size_timer_log,
        )
        self.sync = SlaveSync(
            live,
            topics,
            self._new_groups,
            request_modes,
            self._commits,
            self._copies,
            clock,
            call=call,
            flushed_where=lambda: store.log.files.flushed_where,
            delete_queues=delete_queues,
            modes_saved=modes_saved,
            in_thread=in_thread,
        )

    def load(self, saver: TableSaver) -> None:
        """Take over what the last run has left, and have it saved; raises StoreError."""
        own = self._config_files.load(SLAVE_OFFSETS)
        self._commits.load(own.offset_table)
        self._new_groups.load(own.new_groups)
        self._copies.load(self._config_files.load(DELAY_OFFSETS))
        saver.every(
            SLAVE_OFFSETS,
            self._snapshot,
            interval_ms=lambda: self._live.current.flush_consumer_offset_interval,
            changes=lambda: self._offsets.change_count,
        )
        saver.every(
            DELAY_OFFSETS,
            self.delays,
            interval_ms=lambda: self._live.current.flush_delay_offset_interval,
        )

    def _snapshot(self) -> SlaveOffsetTable:
        """The content of ``slaveOffset.json``."""
        return SlaveOffsetTable(
            offset_table=self._commits.snapshot(), new_groups=self._new_groups.names()
        )

    def delays(self) -> DelayOffsetTable:
        """The content of ``delayOffset.json``."""
        return self._copies.delays
