"""The log of a slave: the bytes of its master at the same offsets, with derived files made locally.

::

    master's stream --> RecordStream --> append, whole records only --> MappedFiles --> flush
                                                                            |
                                             queues, index <-- Replay <-- LogScan, in later turns

Appending is a copy into the mapped file, so the acknowledgement to the master is sent at once. The
derived entries follow in the next turn of the owner, but not before :data:`DISPATCH_PAUSE_S` after
the last ones: those of ten records cost hardly more than those of one. With SYNC_FLUSH they follow
the flush, as at a master: no reader sees what a power loss could remove.

While a slave catches up, copying has priority: entries are made when the stream carries less than
:data:`DENSE_BYTES` a millisecond, or when they are :data:`BACKLOG_MAX` behind. In the latter case
the index, which takes most of the time, is left behind and caught up later, as after a long
recovery.

What a crash leaves at each line of :meth:`ReplicaLog.append`:

* before ``wrote`` advances, kill -9: a part of the records of one piece. Unlike at a master the
  head comes first. Recovery ends the log before the record whose body does not match its checksum,
  or which has zeros where no writer puts any; the slave requests it from its master again;
* within a blank: its head says that the file is finished, and recovery accepts that. A blank at the
  end is truncated when the slave connects, and is sent again;
* before the derived entries are made: recovery makes them;
* power loss: as at a master. What was acknowledged as durable (:attr:`ReplicaLog.durable_end`) is
  before the last completed sync.

:meth:`ReplicaLog.truncate` drops records. It truncates the derived files first: a crash in between
leaves a log that is too long, and recovery makes the derived entries again.

Counterpart of Java's ``appendToCommitLog`` and of the slave's part of ``ReputMessageService``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from skylark.core.backoff import Backoff
from skylark.core.clock import TimerHandle
from skylark.core.errors import StoreError
from skylark.store.config import FlushDiskType
from skylark.store.consume_queue import EntryQueue
from skylark.store.file_sequence import MappedFiles
from skylark.store.log_replay import LogScan, Replay, record_at
from skylark.store.owner_thread import Post
from skylark.store.record_stream import RecordStream, RecordStreamError
from skylark.store.recovery import StoreParts
from skylark.store.reput import Reput
from skylark.store.store_results import PutWaiter

logger = logging.getLogger(__name__)

#: Longest record accepted from a master, independent of maxMessageSize.
RECORD_SIZE_MAX: Final = 64 << 20
#: Bytes that two brokers compare to check that their logs are equal.
TAIL_SIZE: Final = 4096
_DISPATCH_BYTES: Final = 1 << 20  # per turn of the owner
#: Minimum time between two dispatches of single records.
DISPATCH_PAUSE_S: Final = 0.010
DENSE_BYTES: Final = 128 << 10  # appended in a turn, or a millisecond: the slave is catching up
BACKLOG_MAX: Final = 64 << 20  # bytes of the log without derived entries, while catching up
#: Pauses after dispatches that failed.
RETRY: Final = Backoff(first_s=0.1, most_s=5.0)
_CRC_SLICE: Final = 1 << 20

#: Called with the queues that have new messages.
OnGrown = Callable[[set[EntryQueue]], None]


class ReplicaWait(Protocol):
    """Delays the answer of a put until enough slaves have the message."""

    def join(self, end_offset: int, answer: PutWaiter) -> PutWaiter:
        """Register a put: returns the function to call after the flush instead of ``answer``."""


class Tail(NamedTuple):
    """The last bytes of a log, to be compared with those of another one."""

    log_offset: int  # end of the last record
    size: int


def log_checksum(files: MappedFiles, log_offset: int, size: int) -> int | None:
    """CRC-32 of the ``size`` bytes before an offset; None if the log does not have all of them."""
    position = log_offset - size
    if size < 0 or position < files.min_offset or log_offset > files.max_offset:
        return None
    crc = 0
    while position < log_offset:
        file = files.find(position)
        if file is None:
            return None
        length = min(log_offset, file.end_offset) - position
        with file.lease(position - file.start_offset, min(length, _CRC_SLICE)) as lease:
            crc = crc32(lease.view, crc)
            position += len(lease.view)
    return crc


class ReplicaLog:
    """Appends what a master sends, and makes the derived entries."""

    def __init__(
        self,
        parts: StoreParts,
        replay: Replay,
        dispatch: Reput,
        *,
        post: Post,
        wake_flush: Callable[[], None],
        flush_derived_soon: Callable[[], None],
        catch_up_index: Callable[[], None],
        last_record_offset: int | None = None,
    ) -> None:
        """``last_record_offset``: start of the last record, if recovery has found it."""
        config = parts.config
        self._files = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._replay = replay
        self._dispatch = dispatch
        self._post = post
        self._scheduler = parts.scheduler
        self._wake_flush = wake_flush
        self._flush_derived_soon = flush_derived_soon
        self._catch_up_index = catch_up_index
        self._synchronous = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._dispatch_after_flush = self._synchronous and not config.read_un_committed
        self._record_size_max = max(RECORD_SIZE_MAX, config.record_size_max)
        self._stream: RecordStream | None = None
        self._scan = LogScan(self._files, self.log_end, slice_size=_DISPATCH_BYTES)
        self._posted = False
        self._dispatched_at = -inf  # time of the last dispatch
        self._timer: TimerHandle | None = None  # of the next dispatch
        self._failures = 0  # of dispatches, in a row
        self._fresh_size = 0  # bytes appended since the last dispatch
        self._dense_size = DENSE_BYTES  # from so many on, the next dispatch is postponed
        self._last_record_offset = last_record_offset
        self._last_record_end: int | None = None  # None: unknown until a scan
        #: Called for new messages, for held pulls.
        self.on_grown: OnGrown | None = None
        #: Called when the log was truncated before an invalid record.
        self.on_damage: Callable[[str], None] | None = None

    # ---- offsets ---------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether the log has no bytes, so that it may begin with any file of the master."""
        return self.log_end == 0

    @property
    def log_end(self) -> int:
        """End of the log, which the slave reports; 0 if it has nothing."""
        return self._files.wrote_end

    @property
    def durable_end(self) -> int:
        """End of what satisfies the flush setting: what a slave may acknowledge."""
        return self._files.flushed_where if self._synchronous else self.log_end

    # ---- appending -------------------------------------------------------------------------------

    def append(self, log_offset: int, body: bytes) -> None:
        """Append a piece of the master's log, which begins after the last one.

        An empty log begins where the first piece does. Raises RecordStreamError if the bytes do not
        belong there, StoreFullError or another StoreError if they cannot be written. Then nothing
        of the piece is in the log, the held bytes are dropped, and :attr:`log_end` is where to
        continue.
        """
        stream = self._stream
        if stream is None:
            stream = self._stream = self._begin(log_offset)
        start = stream.whole
        try:
            content = stream.take(log_offset, body)
            if content:
                self._write(start, content)
        except (RecordStreamError, StoreError):
            self._stream = None
            raise
        if content:
            self._fresh_size += len(content)
            self._last_record_end = stream.record_end or self._last_record_end
            self._wake_flush()
            if not self._dispatch_after_flush:
                self._dispatch_soon()

    def restart(self) -> None:
        """Drop the held part of a record, and truncate a blank at the end of the log.

        A new connection begins at :attr:`log_end`, which is the end of a record then. A blank holds
        no message, may be incomplete, and the master may have lost it in a crash.
        """
        self._stream = None
        end = self._record_end_now()
        if end and end < self.log_end:
            self._cut(end)

    def _begin(self, log_offset: int) -> RecordStream:
        log_end = self.log_end
        file_size = self._files.file_size
        if self.is_empty:
            if log_offset % file_size:
                raise RecordStreamError(
                    f"the master's log begins at {log_offset}, where no file here can start",
                    hint="mappedFileSizeCommitLog must be the same at master and slave",
                )
            if self._files.files and log_offset:
                self._files.truncate(-1)  # remove an empty file at another offset
            log_end = self._scan.position = log_offset
        return RecordStream(log_end, file_size, record_size_max=self._record_size_max)

    def _write(self, log_offset: int, content: bytes | memoryview) -> None:
        file = self._files.last
        if file.wrote == file.size:
            store_timestamp = file.last_store_timestamp
            file = self._files.roll(log_offset)
            file.last_store_timestamp = store_timestamp
        position = file.wrote
        assert file.start_offset + position == log_offset
        end = position + len(content)
        if end > file.prepared:
            file.prepare(end)
        file.buffer[position:end] = content
        file.wrote = end

    # ---- derived entries -------------------------------------------------------------------------

    def flushed(self) -> None:
        """Called when more of the log is on disk."""
        if self._dispatch_after_flush and self._scan.position < self._files.flushed_where:
            self._dispatch_soon()

    def finish(self) -> None:
        """Make all remaining derived entries before the store closes."""
        if self._timer is not None:
            self._timer.cancel()
        while self._step():
            pass

    def _dispatch_soon(self) -> None:
        if self._posted:
            return
        self._posted = True
        if self._scheduler.monotonic() - self._dispatched_at >= DISPATCH_PAUSE_S:
            self._dense_size = DENSE_BYTES
            self._post(self._dispatch_some)
        else:
            self._dense_size = DENSE_BYTES * round(DISPATCH_PAUSE_S * 1000)
            when = self._dispatched_at + DISPATCH_PAUSE_S
            self._timer = self._scheduler.call_at(when, self._post, self._dispatch_some)

    def _dispatch_some(self) -> None:
        self._posted = False
        fresh_size, self._fresh_size = self._fresh_size, 0
        backlog = self.log_end - self._scan.position
        if backlog >= BACKLOG_MAX:
            if self._index is not None:
                self._index.mark_behind(self._scan.position)
        elif fresh_size >= self._dense_size:
            self._dispatch_soon()
            return
        try:
            has_more = self._step()
        except StoreError:
            if not self._failures:
                logger.exception(
                    "derived entries stay behind at %s until a retry succeeds", self._scan.position
                )
            self._failures += 1
            when = self._scheduler.monotonic() + RETRY.pause_s(self._failures)
            self._timer = self._scheduler.call_at(when, self._post, self._dispatch_some)
            return
        self._failures = 0
        if has_more:
            self._dispatch_soon()
            return
        self._dispatched_at = self._scheduler.monotonic()
        if self._index is not None and self._index.behind_from is not None:
            self._catch_up_index()

    def _step(self) -> bool:
        """Make the derived entries of some records; return whether there are more."""
        scan = self._scan
        scan.position = max(scan.position, self._files.min_offset)  # files may have expired
        limit = self._files.flushed_where if self._dispatch_after_flush else self.log_end
        if scan.position >= limit:
            return False
        start = scan.position
        columns = scan.next(limit)
        if columns is not None:
            try:
                self._replay.add(columns)
            except StoreError:
                self._scan = LogScan(self._files, start, slice_size=_DISPATCH_BYTES)
                raise
            store_timestamp = int(columns.store_timestamp[-1])
            file = self._files.find(int(columns.log_offset[-1]))
            if file is not None:
                file.last_store_timestamp = store_timestamp
            self._dispatch.resume(scan.position, store_timestamp)
            self._notify_grown()
        if scan.fault is not None:
            self._cut_damage(scan)
            return False
        return scan.position < limit

    def _notify_grown(self) -> None:
        grown, self._replay.grown = self._replay.grown, set()
        if grown and self.on_grown is not None:
            self.on_grown(grown)

    def _cut_damage(self, scan: LogScan) -> None:
        """Truncate the log before an invalid record that the master has sent."""
        assert scan.fault is not None
        problem = f"what the master sent for {scan.position} is not a record: {scan.fault.value}"
        logger.error("%s", problem)
        self._cut(scan.position)
        if self.on_damage is not None:
            self.on_damage(problem)

    # ---- comparing and giving up -----------------------------------------------------------------

    def tail(self) -> Tail | None:
        """The bytes to compare with the master's; None if there is no record."""
        end = self._record_end_now()
        file = self._files.find(end - 1) if end else None
        return None if file is None else Tail(end, min(TAIL_SIZE, end - file.start_offset))

    def checksum(self, log_offset: int, size: int) -> int | None:
        """CRC-32 of the bytes before an offset; None if the log does not have them."""
        return log_checksum(self._files, log_offset, size)

    def truncate(self, log_offset: int) -> None:
        """End the log at the last record before ``log_offset``, and drop the rest."""
        if log_offset < self.log_end:
            boundary = self._record_end(log_offset)
            logger.warning("truncating the log from %s to %s", self.log_end, boundary)
            self._cut(boundary)

    def _record_end_now(self) -> int:
        """End of the last record of the log."""
        if self._last_record_end is None:
            self._last_record_end = self._record_end(self.log_end, self._last_record_offset)
        return self._last_record_end

    def _record_end(self, log_offset: int, start: int | None = None) -> int:
        """End of the last whole record before an offset; 0 without any.

        ``start``: start of a record not far before it.
        """
        end = 0
        if self.is_empty:
            return end
        if start is None:
            start = max(log_offset - 1, self._files.min_offset)
            start -= start % self._files.file_size
        while not end and start >= self._files.min_offset:
            scan = LogScan(self._files, start, slice_size=_DISPATCH_BYTES)
            while (columns := scan.next(log_offset)) is not None:
                end = int(columns.log_offset[-1] + columns.total_size[-1])
            start -= self._files.file_size
        return end

    def _cut(self, log_end: int) -> None:
        self._queues.truncate(log_end)
        index = self._index
        if index is not None:
            if index.file_count and index.end_offset >= log_end:
                index.recover(log_end, self._store_time_of)
            index.end_at(log_end)
        self._files.truncate(
            max(log_end, self._files.min_offset), unsynced_from=self._files.flushed_where
        )
        self._stream = self._last_record_offset = None
        # Behind the last record of a file there is always a blank.
        self._last_record_end = self.log_end if self.log_end % self._files.file_size else None
        position = min(self._scan.position, self.log_end)
        self._scan = LogScan(self._files, position, slice_size=_DISPATCH_BYTES)
        self._dispatch.resume(
            min(self._dispatch.dispatched_until, self.log_end), self._dispatch.dispatched_timestamp
        )
        self._flush_derived_soon()

    def _store_time_of(self, log_offset: int) -> int | None:
        head = record_at(self._files, log_offset)
        return None if head is None else head.store_timestamp
