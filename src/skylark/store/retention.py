"""Retention: deletes old files of the log, and the derived files that point to them.

Every ``cleanResourceInterval`` (10 s; the first time after a minute) :class:`RetentionPolicy`
decides from the current facts, without changing anything:

===========================================  =======================================================
the local hour is one of ``deleteWhen``,     delete files whose last record is older than
the disk is over 75 % full, or an operator   ``fileReservedTime`` (72 h)
requested it (then 20 times in a row)
the disk is over 85 % full                   delete the oldest files, expired or not, until usage is
(``cleanFileForciblyEnable``), or the log    below; deleted files that are still being read count
is longer than ``diskUsedBytesMax``          as freed
the disk is over 90 % full                   the same, and refuse messages
===========================================  =======================================================

"The disk" is the fuller one of the log's and the queues'. The last file is never deleted, and at
most ``deleteFileBatchMax`` are deleted in one pass, with a pause after each. When the disk is below
90 % again, the store accepts messages again, also if a failed put had detected the full disk: if
there is still no room, the next put detects it again.

**Age.** A file is as old as its last record. For a file written by an earlier run, the time of the
first record of the next file is used: that is when the file was closed, like Java's file time, but
it survives a copy. Without such a record the file stays.

:class:`Retention` carries out the plan, one step per turn of the owner::

    call the listener with the range that is about to be deleted
    retire the file            out of the log at once; out of the directory after its last lease,
                               or by force two minutes later (file_sequence.py)
    pause, next file ...
    correct the first offset of all queues, some queues a turn
    delete queue files that point only to records of removed files, with a pause after each queue
    delete index files         by the same rule

A retired file that is still in the directory is retried every ``redeleteHangedFileInterval`` (two
minutes), as in Java: a reader may keep it too long, or its removal has failed. The return of its
last lease, and the deletion of the next file, remove it earlier.

A file stays while some of it is not on disk. It also stays, unless the disk is too full, while
queue entries of its records are only in memory: after a crash nothing else would show how far its
queues were numbered.

What a crash leaves: the log begins where it began, or some files later. A file that was retired and
is still in the directory is part of the log again, and so must be its queue entries: hence derived
files follow the directory. They may still point to deleted records, which readers skip; the first
pass after a start trims them in any case.

Counterpart of Java's ``CleanCommitLogService``, ``CleanConsumeQueueService``,
``CorrectLogicOffsetService`` and ``cleanExpiredConsumerQueue``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from skylark.core.clock import TimerHandle
from skylark.core.names import is_system_topic
from skylark.store.config import StoreConfig
from skylark.store.consume_queue import EntryQueue
from skylark.store.errors import StoreFileError
from skylark.store.file_system import DiskUsage
from skylark.store.queue_registry import QUEUE_DIRECTORY
from skylark.store.recovery import StoreParts
from skylark.store.running_flags import RunningFlags, StoreFlag

logger = logging.getLogger(__name__)

FIRST_PASS_S: Final = 60.0
MANUAL_PASSES: Final = 20
QUEUES_PER_TURN: Final = 64
_HOUR_MS: Final = 3_600_000


# ---- deciding ------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """Input of a decision."""

    now_ms: int
    hour: int  # of local time
    log_disk: DiskUsage
    queue_disk: DiskUsage
    file_size: int
    log_size: int  # bytes from the first to the last
    retired_count: int  # files that left the log and still take space
    #: Store time of the last record of each deletable file, oldest first; None where unknown.
    store_times: Sequence[int | None]


class Plan(NamedTuple):
    """What a pass is to do."""

    log_disk_full: bool
    queue_disk_full: bool
    delete_count: int = 0  # files, from the oldest on
    forced_count: int = 0  # of these: deleted because the disk or the log is too full


class RetentionPolicy:
    """Decides; its only state is the number of passes left of an operator's request."""

    def __init__(self, config: StoreConfig) -> None:
        self.manual_passes = 0
        self.apply_settings(config)

    def apply_settings(self, config: StoreConfig) -> None:
        """Use these settings from now on."""
        self._hours = config.delete_hours
        self._reserved_ms = config.file_reserved_time * _HOUR_MS
        self._batch_max = config.delete_file_batch_max
        self._expire_ratio = config.disk_expire_ratio
        self._clean_ratio = config.disk_clean_ratio
        self._full_ratio = config.disk_full_ratio
        self._cleans = config.clean_file_forcibly_enable
        self._log_size_max = config.disk_used_bytes_max

    def request(self) -> None:
        """Delete expired files in the next passes, at any hour."""
        self.manual_passes = MANUAL_PASSES

    def decide(self, facts: Facts) -> Plan:
        """The plan for the next pass."""
        disks = facts.log_disk, facts.queue_disk
        expired = 0
        if (
            facts.hour in self._hours
            or self.manual_passes
            or any(disk.used_ratio > self._expire_ratio for disk in disks)
        ):
            expired = self._expired_count(facts)
        self.manual_passes = max(0, self.manual_passes - 1)
        count_max = min(self._batch_max, len(facts.store_times))
        forced = min(count_max, self._surplus_count(facts))
        return Plan(
            log_disk_full=facts.log_disk.used_ratio > self._full_ratio,
            queue_disk_full=facts.queue_disk.used_ratio > self._full_ratio,
            delete_count=max(forced, min(count_max, expired)),
            forced_count=forced,
        )

    def forecast(self, facts: Facts, ahead_ms: int) -> int:
        """Number of files to be deleted in ``ahead_ms``, or if the log grew by one more file."""
        later = facts._replace(
            now_ms=facts.now_ms + ahead_ms,
            log_disk=_fuller(facts.log_disk, facts.file_size),
            queue_disk=_fuller(facts.queue_disk, facts.file_size),
            log_size=facts.log_size + facts.file_size,
        )
        count = max(self._expired_count(later), self._surplus_count(later))
        return min(count, len(facts.store_times))

    def _expired_count(self, facts: Facts) -> int:
        """Number of expired files, from the oldest up to the first that is not."""
        limit = facts.now_ms - self._reserved_ms
        for number, store_time in enumerate(facts.store_times):
            if store_time is None or store_time > limit:
                return number
        return len(facts.store_times)

    def _surplus_count(self, facts: Facts) -> int:
        """Number of files to delete because the disk or the log is too full."""
        surplus = 0
        if self._cleans:
            disks = facts.log_disk, facts.queue_disk
            surplus = max(_excess(disk, self._clean_ratio) for disk in disks)
            surplus -= facts.retired_count * facts.file_size
        if self._log_size_max:
            surplus = max(surplus, facts.log_size - self._log_size_max)
        return max(0, -(-surplus // facts.file_size))


def _excess(disk: DiskUsage, ratio: float) -> int:
    """Bytes to free until usage of the disk is no more than ``ratio``."""
    used = disk.total - disk.free
    return used - int(ratio * (used + disk.available))


def _fuller(disk: DiskUsage, size: int) -> DiskUsage:
    """The disk with ``size`` more bytes used."""
    return disk._replace(free=max(0, disk.free - size), available=max(0, disk.available - size))


def local_hour(now_ms: int) -> int:
    """The hour of the day in local time."""
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().hour


# ---- doing ---------------------------------------------------------------------------------------

#: Called before a file is deleted, with its start and end offset and whether it is forced.
#: A bulk reader of old messages can warn that it will miss them.
OnDelete: TypeAlias = Callable[[int, int, bool], None]


class Retention:
    """Runs passes at intervals, and carries out what the policy decides."""

    def __init__(
        self,
        parts: StoreParts,
        flags: RunningFlags,
        *,
        store_time_of: Callable[[int], int | None],
        entries_durable_until: Callable[[], int] | None = None,
        on_delete: OnDelete | None = None,
        hour_of: Callable[[int], int] = local_hour,
    ) -> None:
        """``store_time_of`` returns the store time of the record at a log offset, or None.

        ``entries_durable_until`` returns the log offset before which queue entries are on disk.
        """
        config = parts.config
        self._file_system = parts.files
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._flags = flags
        self._store_time_of = store_time_of
        self._entries_durable_until = entries_durable_until
        self._scheduler = parts.scheduler
        self._on_delete = on_delete
        self._hour_of = hour_of
        self._policy = RetentionPolicy(config)
        self._queue_path = config.store_path_root_dir / QUEUE_DIRECTORY
        self._redelete_at = 0.0  # when the removal of retired files is retried
        self.apply_settings(config)
        self._timer: TimerHandle | None = None
        self._step_timer: TimerHandle | None = None
        self._work: Iterator[float] | None = None  # the running pass; yields pauses in seconds
        self._trimmed_to: tuple[int, int] | None = None  # log start at the last trim

    def apply_settings(self, config: StoreConfig) -> None:
        """Use these settings from the next pass on."""
        self._policy.apply_settings(config)
        self._batch_max = config.delete_file_batch_max
        self._interval_s = config.clean_resource_interval / 1000
        self._redelete_interval_s = config.redelete_hanged_file_interval / 1000
        self._log_pause_s = config.delete_commit_log_files_interval / 1000
        self._queue_pause_s = config.delete_consume_queue_files_interval / 1000

    @property
    def is_working(self) -> bool:
        """Whether a pass is running."""
        return self._work is not None

    def start(self) -> None:
        """Start the timer."""
        self._timer = self._scheduler.call_at(
            self._scheduler.monotonic() + FIRST_PASS_S, self._tick
        )

    def stop(self) -> None:
        """Stop; an unfinished pass is continued by the next start."""
        for timer in (self._timer, self._step_timer):
            if timer is not None:
                timer.cancel()
        self._work = None

    def request_deletion(self) -> None:
        """Delete expired files soon, at any hour (DELETE_EXPIRED_COMMITLOG)."""
        self._policy.request()

    def expiring_until(self, ahead_ms: int) -> int:
        """Log offset before which records may soon be deleted; raises StoreFileError.

        Counts files that expire within ``ahead_ms``, at any hour, and those that have to make room
        for one more file.
        """
        count = self._policy.forecast(self._facts(), ahead_ms)
        files = self._log
        return files.files[count - 1].end_offset if count else files.min_offset

    def clean_expired_queue(self, queue: EntryQueue, keep: Collection[str] = ()) -> bool:
        """Delete a queue if all its messages were deleted; return whether it was deleted.

        Queues of system topics and of topics in ``keep`` stay. The numbering of a deleted queue
        restarts. (CLEAN_EXPIRED_CONSUMEQUEUE, queue by queue)
        """
        is_gone = 0 <= queue.max_log_offset < self._log.removed_until
        is_idle = queue.next_offset == queue.max_offset  # no message waits to be dispatched
        if not is_gone or not is_idle or is_system_topic(queue.topic, keep):
            return False
        if self._queues.get(queue.topic, queue.queue_id) is not queue:
            return False  # deleted since it was listed
        logger.info("deleting %r, which has no message left", queue)
        self._queues.destroy(queue)
        return True

    # ---- looking ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._scheduler.monotonic()
        self._timer = self._scheduler.call_at(now + self._interval_s, self._tick)
        try:
            if now >= self._redelete_at:
                self._redelete_at = now + self._redelete_interval_s
                self._log.sweep(now)
            facts = self._facts()
        except StoreFileError as error:
            logger.warning("retention failed, old files stay until the next pass: %s", error)
            return
        plan = self._policy.decide(facts)
        self._set_flag(StoreFlag.DISK_FULL, plan.log_disk_full, facts.log_disk)
        self._set_flag(StoreFlag.LOGIC_DISK_FULL, plan.queue_disk_full, facts.queue_disk)
        is_behind = self._log_start() != self._trimmed_to
        if self._work is None and (plan.delete_count or is_behind):
            self._work = self._pass(plan)
            self._step()

    def _facts(self) -> Facts:
        files = self._log
        now_ms = self._scheduler.now_ms()
        return Facts(
            now_ms=now_ms,
            hour=self._hour_of(now_ms),
            log_disk=self._disk_usage(files.directory),
            queue_disk=self._disk_usage(self._queue_path),
            file_size=files.file_size,
            log_size=files.wrote_end - files.min_offset,
            retired_count=files.retired_count,
            store_times=[
                self._store_time(number)
                for number in range(min(len(files.files) - 1, self._batch_max))
            ],
        )

    def _disk_usage(self, path: Path) -> DiskUsage:
        while not self._file_system.exists(path):  # a new store has no queues yet
            path = path.parent
        return self._file_system.disk_usage(path)

    def _store_time(self, number: int) -> int | None:
        """The store time of the last record of a file that is not the last."""
        file, following = self._log.files[number : number + 2]
        if not file.last_store_timestamp:
            store_time = self._store_time_of(following.start_offset)
            if store_time is None:
                return None
            file.last_store_timestamp = store_time
        return file.last_store_timestamp

    def _set_flag(self, flag: StoreFlag, on: bool, disk: DiskUsage) -> None:
        if self._flags.set(flag, on):
            used = f"{disk.used_ratio:.1%}"
            if on:
                logger.error("%s: the disk is %s full, the store refuses messages", flag.name, used)
            else:
                logger.warning("%s ended: the disk is %s full", flag.name, used)

    # ---- a pass ----------------------------------------------------------------------------------

    def _step(self) -> None:
        """Continue the pass until its next pause."""
        self._step_timer = None
        if self._work is None:
            return
        try:
            pause_s = next(self._work, None)
        except StoreFileError as error:
            logger.warning("retention stops and tries again later: %s", error)
            pause_s = None
        if pause_s is None:
            self._work = None
            return
        self._step_timer = self._scheduler.call_at(
            self._scheduler.monotonic() + pause_s, self._step
        )

    def _pass(self, plan: Plan) -> Iterator[float]:
        for number in range(plan.delete_count):
            if not self._delete_oldest(forced=number < plan.forced_count):
                break
            yield self._log_pause_s
        yield from self._trim_derived_files()

    def _delete_oldest(self, *, forced: bool) -> bool:
        """Take the oldest file out of the log; False if it must stay."""
        files = self._log
        if len(files.files) < 2:
            return False
        file = files.files[0]
        if file.end_offset > files.flushed_where:
            return False  # not yet on disk
        if (
            not forced
            and self._entries_durable_until is not None
            and file.end_offset > self._entries_durable_until()
        ):
            return False  # after a crash the numbering of its queues would be lost
        if self._on_delete is not None:
            try:
                self._on_delete(file.start_offset, file.end_offset, forced)
            except Exception:
                logger.exception(
                    "the callback before a deletion failed, the file is deleted anyway"
                )
        why = "the disk or the log is too full" if forced else "it has expired"
        logger.info("deleting %s: %s", file.path, why)
        files.retire_oldest(self._scheduler.monotonic())
        return True

    def _log_start(self) -> tuple[int, int]:
        """Where the log begins for readers, and on disk."""
        return self._log.min_offset, self._log.removed_until

    def _trim_derived_files(self) -> Iterator[float]:
        """Let the derived files begin where the log does."""
        log_min, removed_until = beginning = self._log_start()
        for number, queue in enumerate(self._queues, 1):
            queue.correct_min(log_min)
            if number % QUEUES_PER_TURN == 0:
                yield 0.0
        for number, queue in enumerate(self._queues, 1):
            if queue.delete_before(removed_until):
                yield self._queue_pause_s
            elif number % QUEUES_PER_TURN == 0:
                yield 0.0
        if self._index is not None:
            self._index.delete_before(removed_until)
        self._trimmed_to = beginning
