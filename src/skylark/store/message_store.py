"""The message store: facade that composes the parts of a store directory.

::

                    +-- Putter --> CommitLog --> MappedFiles --> FlushService, CommitService
    MessageStore ---+                 |
                    |              Reput -----> ConsumeQueues, IndexService --> DerivedFileFlush
                    |                                                                |
                    +-- Reader, Retention                                        Checkpoint

Life of a store: :meth:`MessageStore.open` takes the lock and recovers (synchronously, with
progress), :meth:`MessageStore.start` starts flushing and cleaning, :meth:`MessageStore.close`
flushes everything to disk and removes the file ``abort``. That file exists from before the first
put until after the last sync; a start that finds it recovers as after a crash. An owner with other
work to do while the disk is busy closes in three steps::

    owner     stop()            no more puts, timers or callbacks
    a thread  bring_to_disk()   takes long
    owner     close()           only closes the files

One thread owns the store. The owner provides a scheduler (timers), ``post`` (runs callbacks of
worker threads in the owner's thread), and, optionally, callbacks for messages that become readable
and for those that are about to be deleted. Several stores may be open in one process; each has its
own threads and files.

Counterpart of Java's ``DefaultMessageStore``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeAlias

from skylark.core.errors import StoreError
from skylark.store.allocator import POPULATE_AHEAD, Allocator
from skylark.store.checkpoint import AbortFile, Checkpoint
from skylark.store.commit_log import CommitLog
from skylark.store.config import BrokerRole, FlushDiskType, StoreConfig
from skylark.store.consume_queue_flush import DerivedFileFlush
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import FileLock, FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.flush import FlushService
from skylark.store.index import IndexService
from skylark.store.kernel_sync import KernelSyncs, open_kernel_syncs
from skylark.store.log_replay import IndexCatchUp, IsBatchTopic, Replay
from skylark.store.message_reader import Reader
from skylark.store.owner_thread import Post, Scheduler, Watch
from skylark.store.put_message import CopyGrowth, Putter, no_growth
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.recovery import Progress, RecoveryReport, StoreParts, recover
from skylark.store.replica_log import ReplicaLog, ReplicaWait
from skylark.store.reput import IsAwaited, OnArrival, Reput, TagsCodes
from skylark.store.retention import OnDelete, Retention
from skylark.store.running_flags import RunningFlags
from skylark.store.store_results import PutResult, PutStatus, PutWaiter
from skylark.store.transient_store_pool import CommitService, TransientPool

logger = logging.getLogger(__name__)

LOCK_NAME: Final = "lock"
INDEX_DIRECTORY: Final = "index"
CATCH_UP_BYTES: Final = 256 << 10  # per turn of the owner: about a millisecond
CATCH_UP_RETRY_S: Final = 1.0

#: Makes an executor that does one thing at a time; the name is for its thread.
MakeWorker: TypeAlias = Callable[[str], Executor]


def worker_thread(name: str) -> Executor:
    """An executor with one thread, for one kind of work."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"skylark-{name}")


class MessageStore:
    """Everything under one ``storePathRootDir``."""

    _kernel_syncs: KernelSyncs | None = None
    _unwatch: Callable[[], object] | None = None
    _has_stopped = False
    _lock: FileLock | None = None
    _problems: list[StoreError] | None = None  # of bring_to_disk, once it has run

    #: Appends what the master sends; None at a master.
    replica: ReplicaLog | None = None
    #: At a master with synchronous slaves: delays answers until they have the message.
    replicas: ReplicaWait | None = None
    #: Called when there may be more to replicate: after a put, a commit or a synchronous flush.
    on_growth: Callable[[], None] | None = None
    _copy_growth: CopyGrowth | None = None

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes,
        scheduler: Scheduler,
        post: Post,
        files: FileSystem | None = None,
        on_arrival: OnArrival | None = None,
        is_awaited: IsAwaited | None = None,
        on_delete: OnDelete | None = None,
        ram_size: int | None = None,
        make_worker: MakeWorker = worker_thread,
        watch: Watch | None = None,
    ) -> None:
        """``store_host`` is packed (see ``pack_host``): it is part of every record.

        ``is_awaited`` suppresses ``on_arrival`` for queues that no reader waits for; ``on_delete``
        gets the log offsets that are about to be deleted, while they are still readable; ``watch``
        makes the owner watch a descriptor: without it, workers do all syncs.
        """
        self.config = config
        self._on_delete = on_delete
        self.flags = RunningFlags()
        self._file_system = files or OsFileSystem()
        self._scheduler = scheduler
        self._post = self._while_open(post)
        self._synchronous = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        # Readers see what is on disk with SYNC_FLUSH, what is committed with the pool, and
        # otherwise what is appended.
        self._waits_for_disk = self._synchronous and not config.read_un_committed
        # One worker per kind of work: a sync of derived files never delays the flush of a put.
        self._log_worker = make_worker("flush")
        self._commit_worker = make_worker("commit")
        self._space_worker = make_worker("space")
        self._derived_worker = make_worker("derived")
        self._pool = self._make_pool()
        log_files, crc = self._make_log_files(), config.enabled_append_prop_crc
        self.log = CommitLog(log_files, scheduler, store_host, property_crc=crc)
        self._dirty_ranges = DirtyRanges(self._file_system)
        self.queues = self._make_queues()
        self.index = self._make_index()
        self._tags_codes = TagsCodes(config.delay_levels_ms)
        self.dispatch = Reput(
            self.index,
            self._tags_codes,
            on_arrival=on_arrival,
            is_awaited=is_awaited,
            after_flush=self._waits_for_disk or self._pool is not None,
        )
        self.checkpoint = Checkpoint(self._file_system, config.store_path_root_dir)
        self._abort = AbortFile(self._file_system, config.store_path_root_dir)
        self._make_putter()
        self.reader = Reader(
            config,
            self.log,
            self.queues,
            self.index,
            self.flags,
            ram_size=ram_size or self._file_system.memory_size(),
            dispatched_until=lambda: self.dispatch.dispatched_until,
        )
        self._flush: FlushService | None = None
        self._watch = watch
        self._commit: CommitService | None = None
        self._derived_flush: DerivedFileFlush | None = None
        self._catch_up: IndexCatchUp | None = None

    def apply_settings(self, config: StoreConfig) -> None:
        """Use changed settings; those that are read only at start must be unchanged.

        Call this between :meth:`open` and :meth:`stop`.
        """
        assert self._flush is not None, "open() comes first"
        assert self._derived_flush is not None
        self.config = config
        self._make_putter()  # it has no state to carry over
        self.reader.apply_settings(config)
        self.retention.apply_settings(config)
        self._flush.apply_settings(config)
        self._derived_flush.apply_settings(config)
        self.log.files.force_after_ms = config.destroy_maped_file_interval_forcibly
        if self._pool is not None and self._commit is not None:
            self._pool.fast_fail = config.fast_fail_if_no_buffer_in_store_pool
            self._commit.apply_settings(config)

    def leave_room_for_copies(self, growth: CopyGrowth) -> None:
        """From now on refuse client messages whose copies would not fit into records."""
        self._copy_growth = growth
        self._make_putter()

    # ---- parts -----------------------------------------------------------------------------------

    @property
    def _parts(self) -> StoreParts:
        return StoreParts(
            files=self._file_system,
            config=self.config,
            log=self.log.files,
            queues=self.queues,
            index=self.index,
            tags_codes=self._tags_codes,
            checkpoint=self.checkpoint,
            abort=self._abort,
            scheduler=self._scheduler,
        )

    def _make_putter(self) -> None:
        self._putter = Putter(
            self.config,
            self.log,
            self.queues,
            self.dispatch,
            self.flags,
            copy_growth=self._copy_growth or no_growth,
        )
        self.properties_fit = self._putter.properties_fit
        self.put = self._putter.put
        self.put_run = self._putter.put_run
        self.put_batch = self._putter.put_batch
        self.put_inner_batch = self._putter.put_inner_batch

    def _make_pool(self) -> TransientPool | None:
        config = self.config
        if not config.transient_pool_in_use:
            return None
        return TransientPool(
            config.transient_store_pool_size,
            config.mapped_file_size_commit_log,
            fast_fail=config.fast_fail_if_no_buffer_in_store_pool,
        )

    def _make_log_files(self) -> MappedFiles:
        config = self.config
        warm_up_pages = None
        if config.warm_maped_file_enable:
            pages = config.flush_least_pages_when_warm_maped_file
            warm_up_pages = pages if self._synchronous else 0
        allocator = Allocator(
            self._file_system,
            ahead=config.commit_log_allocate_ahead,
            executor=self._space_worker,
            post=self._post,
            warm_up_pages=warm_up_pages,
            populate_ahead=0 if self._synchronous else POPULATE_AHEAD,
        )
        log_files = MappedFiles(
            config.commit_log_path,
            config.mapped_file_size_commit_log,
            files=self._file_system,
            allocator=allocator,
            pool=self._pool,
            random_access=not config.data_read_ahead_enable,
            open_files_max=config.commit_log_open_files_max,
        )
        log_files.force_after_ms = config.destroy_maped_file_interval_forcibly
        return log_files

    def _make_queues(self) -> ConsumeQueues:
        config = self.config
        return ConsumeQueues(
            self._file_system,
            config.store_path_root_dir,
            self._dirty_ranges,
            queue_file_size=config.consume_queue_file_size,
            batch_queue_file_size=config.mapper_file_size_batch_consume_queue,
            open_files_max=config.consume_queue_open_files_max,
            tail_size_max=config.consume_queue_tail_size_max,
            recent_size=config.consume_queue_recent_size,
        )

    def _make_index(self) -> IndexService | None:
        config = self.config
        if not config.message_index_enable:
            return None
        return IndexService(
            self._file_system,
            config.store_path_root_dir / INDEX_DIRECTORY,
            self._dirty_ranges,
            self._scheduler,
            slot_count=config.max_hash_slot_num,
            entry_count_max=config.max_index_num,
            open_files_max=config.index_open_files_max,
        )

    def _make_services(self) -> None:
        """Create flush, commit and retention, after recovery: they begin where the log ends."""
        config, files = self.config, self.log.files
        if self._synchronous and self._watch is not None:
            self._kernel_syncs = open_kernel_syncs()
        self._flush = FlushService(
            files,
            config,
            scheduler=self._scheduler,
            executor=self._log_worker,
            post=self._post,
            on_flushed=self._on_flushed,
            meanwhile=self.dispatch.prepare if self._waits_for_disk else None,
            kernel_syncs=self._kernel_syncs,
        )
        if self._pool is not None:
            self._commit = CommitService(
                files,
                config,
                scheduler=self._scheduler,
                executor=self._commit_worker,
                post=self._post,
                on_committed=self._on_committed,
            )
        self._derived_flush = DerivedFileFlush(
            self._parts,
            self.dispatch,
            self._dirty_ranges,
            self.flags,
            executor=self._derived_worker,
            post=self._post,
        )
        self.retention = Retention(
            self._parts,
            self.flags,
            store_time_of=self.reader.store_time_of,
            entries_durable_until=lambda: self.checkpoint.logics_physical_offset,
            on_delete=self._on_delete,
        )

    def _make_replica(
        self, report: RecoveryReport, is_batch_topic: IsBatchTopic | None
    ) -> ReplicaLog:
        assert self._flush is not None
        assert self._derived_flush is not None
        return ReplicaLog(
            self._parts,
            Replay(self.queues, self.index, self._tags_codes, is_batch_topic=is_batch_topic),
            self.dispatch,
            post=self._post,
            wake_flush=self._flush.wake,
            flush_derived_soon=self._derived_flush.flush_soon,
            catch_up_index=self._catch_up_index,
            last_record_offset=report.last_record_offset if report.scanned_records else None,
        )

    # ---- life ------------------------------------------------------------------------------------

    def open(
        self,
        *,
        progress: Progress | None = None,
        is_batch_topic: IsBatchTopic | None = None,
        index_later: bool = True,
    ) -> RecoveryReport:
        """Lock the directory, and recover its files.

        Raises StoreLockedError if another store has it, CorruptLogError if the log is damaged; then
        nothing was deleted.
        """
        root = self.config.store_path_root_dir
        self._file_system.make_directories(root, durable=True)
        self._lock = self._file_system.lock(root / LOCK_NAME)
        try:
            report = recover(
                self._parts,
                process_id=os.getpid(),
                is_batch_topic=is_batch_topic,
                progress=progress,
                index_later=index_later,
            )
        except BaseException:
            self._close_files()
            self._release()
            raise
        self.log.files.last.last_store_timestamp = report.last_store_timestamp
        self.dispatch.resume(report.log_end, report.last_store_timestamp)
        self._make_services()
        if self.config.broker_role is BrokerRole.SLAVE:
            self.replica = self._make_replica(report, is_batch_topic)
        return report

    def start(self) -> None:
        """Start flushing, index catch-up and retention."""
        assert self._flush is not None, "open() comes first"
        assert self._derived_flush is not None
        if self._watch is not None and self._kernel_syncs is not None:
            self._unwatch = self._watch(self._kernel_syncs.fileno(), self._kernel_syncs.reap)
        self._flush.start()
        if self._commit is not None:
            self._commit.start()
        self._derived_flush.start()
        self.retention.start()
        self._catch_up_index()

    def stop(self) -> None:
        """Refuse messages, and run no more timers or callbacks in the owner's thread.

        Puts that still wait for the disk get FLUSH_DISK_TIMEOUT. From now on :meth:`bring_to_disk`
        may run in any thread; leases may be returned meanwhile, and nothing else may be used.
        """
        self._halt()
        self._has_stopped = True
        self.dispatch.stop_reporting_arrivals()
        if self._flush is not None:
            self._flush.answer_all()

    def _halt(self) -> None:
        self._putter.shut_down()
        self.reader.shut_down = True
        self._catch_up = None
        if self.replica is not None and self._problems is None and not self._has_stopped:
            self.replica.finish()
        if self._derived_flush is not None and self._flush is not None:
            self.retention.stop()
            if self._commit is not None:
                self._commit.halt()
            self._flush.halt()
            self._derived_flush.halt()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def bring_to_disk(self) -> None:
        """Sync everything and remove ``abort``; :meth:`close` raises the errors."""
        problems = self._problems = []
        if self._derived_flush is None or self._flush is None:
            return
        if self._commit is not None:
            _try(self._commit.stop, problems)
        _try(self._flush.stop, problems)
        _try(self._derived_flush.stop, problems)
        if self.index is not None:
            _try(self.index.close, problems)
        if not problems:
            _try(self._abort.remove, problems)

    def close(self) -> None:
        """Flush everything to disk, unless that is done, and release the directory.

        After an error (raised at the end) ``abort`` stays, and the next start recovers. Leases that
        are out keep their files mapped until they are returned.
        """
        self._halt()
        if self._problems is None:
            self.bring_to_disk()
        self._close_files()
        self._release()
        if self._problems:
            raise self._problems[0]

    def _close_files(self) -> None:
        """Close all files without writing or syncing."""
        self.queues.close()
        if self.index is not None:
            self.index.unmap()
        self.log.files.close()

    def _release(self) -> None:
        for worker in (
            self._log_worker, self._commit_worker, self._space_worker, self._derived_worker,
        ):  # fmt: skip
            worker.shutdown(wait=True)
        if self._kernel_syncs is not None:
            self._kernel_syncs.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _while_open(self, post: Post) -> Post:
        """Wrap ``post`` so that callbacks of workers are dropped once the owner has stopped."""

        def run(callback: Callable[[], None]) -> None:
            if not self._has_stopped:
                callback()

        return lambda callback: post(partial(run, callback))

    # ---- durability ------------------------------------------------------------------------------

    def when_durable(self, result: PutResult, answer: PutWaiter, *, wait: bool = True) -> None:
        """Call ``answer`` with the final status of a put: at once, or when it is on disk.

        ``wait`` is false for messages with the property WAIT=false. Only with SYNC_FLUSH does a put
        wait; ``answer`` then gets PUT_OK after the sync, or FLUSH_DISK_TIMEOUT.
        """
        flush = self._flush
        assert flush is not None, "open() comes first"
        if self._commit is not None and self.config.wake_commit_when_put_message:
            self._commit.wake()
        if result.status is not PutStatus.PUT_OK:
            answer(result.status)
            return
        if wait and self.replicas is not None:
            answer = self.replicas.join(result.next_offset, answer)
        if self.on_growth is not None:
            self.on_growth()
        if self._synchronous and wait:
            flush.wait(result.next_offset, answer)
        else:
            if self._synchronous or self.config.wake_flush_when_put_message:
                flush.wake()
            answer(PutStatus.PUT_OK)

    def when_all_on_disk(self, answer: PutWaiter) -> None:
        """Call ``answer`` when everything put so far is on disk, with any flush setting.

        It gets PUT_OK, perhaps at once, or FLUSH_DISK_TIMEOUT.
        """
        assert self._flush is not None, "open() comes first"
        if self._commit is not None:
            self._commit.wake()
        self._flush.wait(self.log.files.wrote_end, answer)

    @property
    def disk_wait_count(self) -> int:
        """Callers that wait until the log is on disk."""
        return 0 if self._flush is None else self._flush.waiting_count

    @property
    def failed_sync_count(self) -> int:
        """Syncs of the log that failed; each of them is repeated."""
        return 0 if self._flush is None else self._flush.error_count

    @property
    def has_stopped(self) -> bool:
        """Whether the store has begun to close: nothing more is synced on request."""
        return self._has_stopped

    def delete_topic(self, topic: str) -> None:
        """Delete the queues of a topic; its records stay in the log until they expire.

        The derived files are synced soon after. A crash before that may bring back a queue with the
        records of the last seconds, because recovery makes entries for all records it reads again.
        """
        self.queues.destroy_topic(topic)
        if self._derived_flush is not None:
            self._derived_flush.flush_soon()

    @property
    def is_busy(self) -> bool:
        """Whether sends should be refused before they get here (the transient pool is empty)."""
        return self._pool is not None and self._pool.is_empty

    def _on_flushed(self, flushed_where: int) -> None:
        if self._waits_for_disk:
            self.dispatch.release(flushed_where)
        if self.replica is not None:
            self.replica.flushed()
        if self._synchronous and self.on_growth is not None:
            self.on_growth()
        if self.replica is None and not self.reader.shut_down:  # a slave calls it itself
            self._catch_up_index()  # the index may have fallen behind while the disk was full

    def _on_committed(self, committed_where: int) -> None:
        if not self._waits_for_disk:
            self.dispatch.release(committed_where)
        if self._flush is not None:
            self._flush.wake()
        if not self._synchronous and self.on_growth is not None:
            self.on_growth()

    # ---- an index that is behind -----------------------------------------------------------------

    def _catch_up_index(self) -> None:
        index = self.index
        if index is not None and index.behind_from is not None and self._catch_up is None:
            self._catch_up = IndexCatchUp(
                self.log.files, index, lambda: self.dispatch.indexed_until
            )
            self._post(self._step_catch_up)

    def _step_catch_up(self) -> None:
        """Index a piece of the log, then return to the event loop."""
        catch_up = self._catch_up
        if catch_up is None:
            return
        if catch_up.step(CATCH_UP_BYTES):
            self._catch_up = None
        else:
            pause_s = CATCH_UP_RETRY_S if self.index and self.index.error else 0.0
            self._scheduler.call_at(self._scheduler.monotonic() + pause_s, self._step_catch_up)


def _try(step: Callable[[], None], problems: list[StoreError]) -> None:
    """Run one step of closing; a failure must not prevent the others."""
    try:
        step()
    except StoreError as error:
        logger.error("the store could not be closed cleanly: %s", error)  # noqa: TRY400
        problems.append(error)
