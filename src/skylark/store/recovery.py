"""Recovery: what a start does with the files it finds, after a clean shutdown and after a crash.

The log is the only source of truth. Recovery finds where it ends, truncates it there, and makes
sure that every record before the end has exactly its entries in the derived files::

    load      log, queues, index, checkpoint; the file ``abort`` shows how the last run ended
    start     choose the file from which records are read again, S
    trust     truncate the derived files to what is known to be on disk
    scan      check records from S on up to the first invalid one; dispatch them  (log_replay.py)
    cut       truncate log and derived files beyond the end; sync what the scan has read
    number    queues continue after their last entry, and begin at the first record the log has

**After a clean shutdown** everything was on disk. The last entry of the queues shows up to where
the log was dispatched, D; the scan starts in the file that holds D and dispatches records from D
on. Normally there is none, and nothing changes. Without ``consumequeue/``, or with queues that are
all empty, D is the beginning: the queues are rebuilt. A topic whose directory exists without a
queue in it was deleted.

The last records may be those of a deleted topic, whose queues must not come back. So where the
checkpoint says that more was dispatched than D, and none of the queues of these records exists, D
is the checkpoint's offset. A queue that exists and ends too early has lost entries: then all
entries from D on are made again, as they are without a checkpoint (that of Java 4.x says 0). So an
operator who wants queues rebuilt deletes the whole of ``consumequeue/``, not one topic of it.

**After a crash** S is the start of the last file for which the checkpoint says that everything
before it is on disk, in log and derived files: its first record is at least 3 s older than both
times of the checkpoint, and it does not begin after the checkpoint's offset (a clock that was set
back must not make new records look old). Without a checkpoint that is the first file: slow, and
correct. ``synced_until`` for the queues, and the same for the index, is S itself: the scan makes
entries of later records again anyway, so trusting any of them gains nothing.

Why no acknowledged message is lost, and none duplicated:

* *Log before S*: a kill -9 does no harm, since the page cache survives; nor does a power loss,
  since the checkpoint's times and offset advance only when a sync has returned.
* *Log from S on*: kept up to the first invalid record. A kill -9 can damage only the record that
  was being written, a power loss only bytes that no sync has covered. Neither was acknowledged,
  unless the settings allow an acknowledgement before the disk. The log is synced up to its end
  before that counts as flushed, because the killed process may not have done it.
* *Derived files before S*: synced before the checkpoint said so. If they do not reach S
  nevertheless (they were deleted), S moves back to where they end.
* *Derived files from S on*: dropped and made from the records, one entry each. They may have been
  behind, ahead, or torn: it makes no difference.
* *Recovery itself* may be interrupted at any line: the next start repeats it, because ``abort``
  exists and the checkpoint does not cover entries that are being made. Where a start after a clean
  shutdown finds entries missing, it sets both before it makes the first entry: half-made queues
  must not be taken for complete ones.

**Damage is not a torn end.** If an invalid record was certainly on disk (clean shutdown, or before
what the checkpoint covers) and a later file begins with a valid record, something other than a
crash damaged it. Truncating there would delete valid files: recovery stops with an error that names
the place, and leaves the log as it is.

``commitLogRecoverMaxNum``: Java starts at most so many files back, even if the checkpoint is older,
and leaves entries of older records as they are, or missing. Here the number only decides when a
long scan logs a warning.

Counterpart of Java's ``CommitLog.recoverNormally``, ``recoverAbnormally`` and
``DefaultMessageStore.recover``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from skylark.core.errors import CorruptLogError
from skylark.store.checkpoint import TIMESTAMP_MARGIN_MS, AbortFile, Checkpoint
from skylark.store.config import StoreConfig
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import FileSystem
from skylark.store.index import IndexService
from skylark.store.log_replay import (
    SLICE_SIZE,
    IndexCatchUp,
    IsBatchTopic,
    LogScan,
    RecordHead,
    Replay,
    read_log,
    record_at,
    visible_records,
)
from skylark.store.owner_thread import Scheduler
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.reput import TagsCodes
from skylark.wire.layout import BLANK_RECORD, BLANK_SIZE_MIN, MAGIC_BLANK
from skylark.wire.message import RecordFault, Verify
from skylark.wire.record_scan import RecordColumns

logger = logging.getLogger(__name__)

#: Called with the bytes of the log that were read, and with all that may have to be.
Progress = Callable[[int, int], None]

_ZERO_SLICE: Final = 1 << 20  # after so many zeros nothing follows in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """The parts of a store that its services share; before recovery none of them is loaded."""

    files: FileSystem
    config: StoreConfig
    log: MappedFiles
    queues: ConsumeQueues
    index: IndexService | None  # None: disabled
    tags_codes: TagsCodes
    checkpoint: Checkpoint
    abort: AbortFile
    scheduler: Scheduler


class RecoveryReport(msgspec.Struct, kw_only=True):
    """What recovery found and did."""

    clean: bool = True  #: the last run was closed in order
    scan_start: int = 0  #: log offset from which records were checked
    log_end: int = 0  #: where the log ends now
    fault: RecordFault | None = None  #: why it ends there; None: with its last file
    fault_file: Path | None = None
    scanned_records: int = 0
    truncated_bytes: int = 0  #: bytes beyond the end up to the last that was not zero
    last_record_offset: int = 0
    last_store_timestamp: int = 0  #: of the newest record
    derived_files_rebuilt: bool = False  #: entries were missing
    replayed_records: int = 0  #: got a queue entry
    repeated_records: int = 0  #: already had one
    misplaced_records: int = 0  #: have an unexpected queue offset
    unqueued_records: int = 0  #: belong to no queue
    index_behind_from: int | None = None  #: IndexCatchUp has to continue from here
    load_s: float = 0.0
    scan_s: float = 0.0
    finish_s: float = 0.0

    @property
    def scanned_bytes(self) -> int:
        """Bytes of the log that were read."""
        return self.log_end - self.scan_start

    @property
    def total_s(self) -> float:
        """Duration of the whole recovery in seconds."""
        return self.load_s + self.scan_s + self.finish_s


def recover(
    parts: StoreParts,
    *,
    process_id: int,
    is_batch_topic: IsBatchTopic | None = None,
    progress: Progress | None = None,
    index_later: bool = False,
) -> RecoveryReport:
    """Load a store and recover it. The caller holds its lock.

    Afterwards ``abort`` exists, and appends may begin at ``log_end``. With ``index_later`` the
    index is left behind if much is to be replayed: see :class:`IndexCatchUp`. CorruptLogError:
    nothing was deleted, and the store cannot be used.
    """
    return _Recovery(parts, process_id, is_batch_topic, progress, index_later).run()


class _Recovery:
    """One run. The attributes pass results from step to step."""

    def __init__(
        self,
        parts: StoreParts,
        process_id: int,
        is_batch_topic: IsBatchTopic | None,
        progress: Progress | None,
        index_later: bool,
    ) -> None:
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._checkpoint = parts.checkpoint
        self._process_id = process_id
        self._progress = progress
        self._index_later = index_later
        self._replay = Replay(
            parts.queues, parts.index, parts.tags_codes, is_batch_topic=is_batch_topic
        )
        self._dispatch_from = 0  # records before it have their entries
        self._report = RecoveryReport()
        self._verify = _checksum(parts.config)

    def run(self) -> RecoveryReport:
        monotonic, report, replay = self._parts.scheduler.monotonic, self._report, self._replay
        began = monotonic()
        self._load()
        start = report.scan_start = self._start()
        loaded = monotonic()
        unsynced_from = None if report.clean else self._checkpoint.logics_physical_offset
        scan = LogScan(self._log, start, verify=self._verify, unsynced_from=unsynced_from)
        self._scan(scan, start)
        self._refuse_damage(scan)
        scanned = monotonic()
        report.log_end, report.fault = scan.position, scan.fault
        report.truncated_bytes = self._bytes_behind(scan.position)
        fault_file = None if scan.fault is None else self._log.find(scan.position)
        report.fault_file = None if fault_file is None else fault_file.path
        self._finish(start, scan.position)
        report.replayed_records, report.repeated_records = replay.appended, replay.repeated
        report.misplaced_records, report.unqueued_records = replay.misplaced, replay.unqueued
        report.index_behind_from = None if self._index is None else self._index.behind_from
        report.load_s, report.scan_s = loaded - began, scanned - loaded
        report.finish_s = monotonic() - scanned
        _log_report(self._log.directory, report)
        return report

    # ---- load ------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Find all files. The log comes first: if it is not a log, nothing else is touched."""
        parts = self._parts
        self._log.load()
        self._report.clean = not parts.abort.exists()
        self._checkpoint.load(is_new=not self._log.files)
        self._queues.load(clean=self._report.clean)
        if not self._log.files:
            self._refuse_missing_log()
        if self._index is None:
            self._checkpoint.index_offset = None
        else:
            self._index.load(clean=self._report.clean)

    def _refuse_missing_log(self) -> None:
        """Raise if the log directory is missing: it may not be mounted, and the queues stay."""
        directory = self._log.directory
        if self._queues.size_total and not self._parts.files.exists(directory):
            raise CorruptLogError(
                f"the directory of the log does not exist, and {len(self._queues)} queues have "
                "entries that point into it",
                file=str(directory),
                offset=0,
                hint="mount it or correct storePathCommitLog; to begin with an empty log, and lose "
                "the queues, create the directory",
            )

    # ---- where to start --------------------------------------------------------------------------

    def _start(self) -> int:
        """Truncate the derived files to what is trusted, and choose the start of the scan."""
        if not self._log.files:
            self._discard_derived_files()
            return 0
        start = self._start_clean() if self._report.clean else self._start_unclean()
        file_count = (self._log.wrote_end - start) // self._log.file_size
        if file_count > self._parts.config.commit_log_recover_max_num:
            logger.warning(
                "%s: recovery reads %s files of the log, from %s on",
                self._log.directory,
                file_count,
                start,
            )
        return start

    def _discard_derived_files(self) -> None:
        """Delete queues and index of a store without a log: their entries point to nothing."""
        index_file_count = 0 if self._index is None else self._index.file_count
        if not len(self._queues) and not index_file_count:
            return
        logger.error(
            "%s has no files: deleting %s queues and %s index files, which point to nothing",
            self._log.directory,
            len(self._queues),
            index_file_count,
        )
        self._queues.destroy_all()
        if self._index is not None:
            self._index.destroy()
        self._checkpoint.physic_msg_timestamp = 0
        self._checkpoint.index_msg_timestamp = 0
        self._checkpoint.confirm_offset = 0
        self._distrust_derived_files(0)

    def _start_clean(self) -> int:
        self._queues.recover()
        dispatched = self._skip_deleted_topics(self._dispatched())
        self._dispatch_from = max(dispatched, 0)
        index = self._index
        if index is not None and not index.file_count and self._head(self._log.min_offset):
            index.mark_behind(self._log.min_offset)  # it was deleted
        for file in reversed(self._log.files):
            if file.start_offset <= dispatched and self._head(file.start_offset) is not None:
                return file.start_offset
        return self._log.min_offset

    def _skip_deleted_topics(self, dispatched: int) -> int:
        """The end of what was dispatched, including records of topics deleted since."""
        durable = self._checkpoint.logics_physical_offset
        if durable <= dispatched:
            return dispatched
        none_left = dispatched < 0
        known: set[tuple[str, int]] = set()
        scan = LogScan(self._log, max(dispatched, self._log.min_offset), verify=self._verify)
        while scan.position <= durable and (columns := scan.next()) is not None:
            # Ours is the end of a record; Java's is the start of the last one.
            covered = columns.log_offset <= durable
            for row in (visible_records(columns) & covered).nonzero()[0].tolist():
                known.add(_queue_of(columns, row))
            if any(self._queues.get(*queue) is not None for queue in known) or (
                none_left and not all(self._queues.were_deleted(topic) for topic, _ in known)
            ):
                return dispatched
            if not covered.all():
                return int(columns.log_offset[~covered][0])
        return max(dispatched, scan.position)

    def _start_unclean(self) -> int:
        start = self._durable_start()
        self._queues.recover(start)
        dispatched = self._dispatched()
        if not self._is_end(dispatched, start):
            start = self._file_start(dispatched)
            logger.warning(
                "%s: the queues end at %s, before the checkpoint: replaying from %s on",
                self._log.directory,
                dispatched,
                start,
            )
            self._distrust_derived_files(start)
            self._queues.recover(start)
        self._queues.correct_min(self._log.min_offset)
        if self._index is not None:
            self._trust_index(self._index, start)
        return start

    def _durable_start(self) -> int:
        """Start of the last file before which everything is on disk, by the checkpoint."""
        checkpoint = self._checkpoint
        timestamp = checkpoint.recovery_timestamp
        if self._parts.config.message_index_safe and self._index is not None:
            timestamp = checkpoint.index_recovery_timestamp
        offset = checkpoint.logics_physical_offset
        for file in reversed(self._log.files):
            if offset and file.start_offset > offset:  # 0: written by 4.x, which has no offset
                continue
            head = self._head(file.start_offset)
            if head is not None and 0 < head.store_timestamp <= timestamp:
                return file.start_offset
        return self._log.min_offset

    def _dispatched(self) -> int:
        """End of the last record that has a queue entry.

        -1 if no plain queue has any: batch queues alone do not show how far the others were.
        """
        ends = [queue.max_log_offset for queue in self._queues]
        plain = [q.max_log_offset for q in self._queues if isinstance(q, ConsumeQueue)]
        return max(ends, default=-1) if max(plain, default=-1) >= 0 else -1

    def _is_end(self, offset: int, file_start: int) -> bool:
        """Whether no record is between an offset and the start of a file."""
        if file_start == self._log.min_offset or offset == file_start:
            return True
        file = self._log.find(offset)
        if file is None or file.end_offset != file_start or file_start - offset < BLANK_SIZE_MIN:
            return False
        blank = read_log(file, offset - file.start_offset, BLANK_SIZE_MIN)
        total_size, magic = BLANK_RECORD.unpack(blank)
        return bool(magic == MAGIC_BLANK and offset + total_size == file_start)

    def _file_start(self, offset: int) -> int:
        file = self._log.find(offset)
        return self._log.min_offset if file is None else file.start_offset

    def _trust_index(self, index: IndexService, start: int) -> None:
        """Keep the entries before the scan; if some are missing, leave the index behind."""
        self._hold_back_checkpoint(index, start)
        index.recover(start, self._store_time_of)
        if index.behind_from is None and start != self._log.min_offset:
            head = self._head(index.end_offset) if index.file_count else None
            if head is None:
                index.mark_behind(self._log.min_offset)
            elif not self._is_end(index.end_offset + head.size, start):
                index.mark_behind(index.end_offset + 1)
        if self._index_later:
            index.mark_behind(start)

    def _distrust_derived_files(self, start: int) -> None:
        """Make the next start after a crash replay from ``start``."""
        checkpoint = self._checkpoint
        head = self._head(start)
        if head is None or start == self._log.min_offset:
            checkpoint.logics_msg_timestamp = checkpoint.logics_physical_offset = 0
        else:
            newest = head.store_timestamp + TIMESTAMP_MARGIN_MS
            checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, newest)
            checkpoint.logics_physical_offset = start
        checkpoint.save()
        self._parts.abort.create(self._process_id)
        self._report.derived_files_rebuilt = True

    # ---- scan ------------------------------------------------------------------------------------

    def _scan(self, scan: LogScan, start: int) -> None:
        size = self._log.wrote_end - start
        report = self._report
        while (columns := scan.next()) is not None:
            report.scanned_records += len(columns)
            report.last_record_offset = int(columns.log_offset[-1])
            report.last_store_timestamp = int(columns.store_timestamp[-1])
            file = self._log.find(report.last_record_offset)
            assert file is not None
            file.last_store_timestamp = report.last_store_timestamp
            if report.last_record_offset >= self._dispatch_from:
                self._dispatch(columns, start)
            if self._progress is not None:
                self._progress(scan.position - start, size)

    def _dispatch(self, columns: RecordColumns, start: int) -> None:
        if self._report.clean and not self._report.derived_files_rebuilt:
            if not visible_records(columns, self._dispatch_from).any():
                return
            self._distrust_derived_files(start)
        self._replay.add(columns, self._dispatch_from)

    def _refuse_damage(self, scan: LogScan) -> None:
        """Raise if an invalid record is damage and not the end of the log: valid files follow."""
        if scan.fault is None:
            return
        checkpoint = self._checkpoint
        if not self._report.clean and (
            scan.position >= checkpoint.logics_physical_offset
            or not 0 < self._report.last_store_timestamp <= checkpoint.recovery_timestamp
        ):
            return
        for file in self._log.files:
            if file.start_offset > scan.position and self._head(file.start_offset) is not None:
                damaged = self._log.find(scan.position)
                assert damaged is not None
                raise CorruptLogError(
                    f"{scan.fault.value}; it was on disk, and valid records follow in "
                    f"{file.path.name}",
                    file=str(damaged.path),
                    offset=scan.position,
                    hint="restore the file from a copy or a replica; to drop all records from "
                    f"here on, move {file.path.name} and the files after it away. Nothing was "
                    "deleted",
                )

    # ---- end -------------------------------------------------------------------------------------

    def _finish(self, start: int, log_end: int) -> None:
        """Truncate everything beyond the end, and update checkpoint, index and ``abort``."""
        log, index = self._log, self._index
        self._queues.truncate(log_end)
        if index is not None and index.file_count and index.end_offset >= log_end:
            index.recover(log_end, self._store_time_of)
        if log.files:
            log.truncate(log_end, unsynced_from=None if self._report.clean else start)
            log.last.last_store_timestamp = self._report.last_store_timestamp
        self._queues.correct_min(log.min_offset)
        self._limit_checkpoint(log_end)
        if index is not None:
            self._finish_index(index, log_end)
            self._hold_back_checkpoint(index, log_end)
        self._parts.abort.create(self._process_id)
        if self._progress is not None:
            self._progress(log_end - start, log_end - start)

    def _limit_checkpoint(self, log_end: int) -> None:
        """Do not cover records that were truncated: new ones will have their offsets."""
        checkpoint = self._checkpoint
        checkpoint.confirm_offset = self._report.last_record_offset
        if checkpoint.logics_physical_offset > log_end:
            last = self._report.last_store_timestamp
            checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, last)
            checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, last)
            checkpoint.logics_physical_offset = log_end
            checkpoint.save()

    def _hold_back_checkpoint(self, index: IndexService, log_offset: int) -> None:
        """Have a Java broker make all keys from here on again, if this process is killed.

        The checkpoint then covers only index files that recovery does not change.
        """
        checkpoint = self._checkpoint
        checkpoint.index_msg_timestamp, checkpoint.index_offset = index.last_closed(
            log_offset, checkpoint.index_msg_timestamp
        )
        if checkpoint.logics_physical_offset:
            checkpoint.save()

    def _finish_index(self, index: IndexService, log_end: int) -> None:
        if index.behind_from is None:
            return
        if index.behind_from >= log_end:
            index.caught_up()
        elif not self._index_later:
            catch_up = IndexCatchUp(self._log, index, lambda: log_end)
            while not catch_up.step(SLICE_SIZE) and index.error is None:
                pass

    def _bytes_behind(self, log_end: int) -> int:
        """Bytes that the truncation will remove, without the zeros at the end of a file."""
        total = 0
        for file in self._log.following(log_end):
            first = position = end = max(0, log_end - file.start_offset)
            while position < file.size:
                content = read_log(file, position, min(_ZERO_SLICE, file.size - position))
                used = len(content.rstrip(b"\0"))
                if not used:
                    break
                end = position + used
                position += len(content)
            total += end - first
        return total

    # ---- single records --------------------------------------------------------------------------

    def _head(self, log_offset: int) -> RecordHead | None:
        return record_at(self._log, log_offset, self._verify)

    def _store_time_of(self, log_offset: int) -> int | None:
        head = self._head(log_offset)
        return None if head is None else head.store_timestamp


def _queue_of(columns: RecordColumns, row: int) -> tuple[str, int]:
    start = int(columns.topic_start[row])
    topic = bytes(columns.buffer[start : start + int(columns.topic_size[row])])
    return topic.decode("utf-8", "replace"), int(columns.queue_id[row])


def _checksum(config: StoreConfig) -> Verify | None:
    if config.force_verify_prop_crc:
        return Verify.PROPERTY
    return Verify.BODY if config.check_crc_on_recover else None


def _log_report(directory: Path, report: RecoveryReport) -> None:
    if report.truncated_bytes:
        logger.warning(
            "%s: truncated at %s, removed %s bytes after it: %s",
            directory,
            report.log_end,
            report.truncated_bytes,
            "" if report.fault is None else report.fault.value,
        )
    logger.info(
        "%s: recovered after a %s, checked %s records from %s to %s, made %s entries in %.1f s",
        directory,
        "clean shutdown" if report.clean else "crash",
        report.scanned_records,
        report.scan_start,
        report.log_end,
        report.replayed_records,
        report.total_s,
    )
