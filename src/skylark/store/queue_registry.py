"""Registry of all consume queues of a store: loads, creates, flushes and deletes them.

::

    ROOT/consumequeue/TOPIC/QUEUE_ID/          entries of 20 bytes
    ROOT/batchconsumequeue/TOPIC/QUEUE_ID/     entries of 46 bytes, for BatchCQ topics

A directory whose name is not a number is not a queue and is ignored. A topic has queues of one
kind: the kind of its files on disk, or the kind of the first request.

Thousands of queues are normal (every retry topic has at least one), so an idle queue is a small
object without buffer, descriptor or mapping, and nothing here iterates over all queues while
messages flow. A :class:`FlushRound` writes the queues that have new entries, a limited number at a
time, so that it never blocks the thread that serves connections for long.

What a crash leaves, and how recovery repairs it, is in :mod:`skylark.store.consume_queue`. The
order of a start is::

    load      find the files
    recover   cut each queue after its last trusted entry; -> how far the log was dispatched
    (replay)  dispatch() the records of the log from there on
    truncate  drop entries that point beyond the end of the log
    correct_min

Counterpart of Java's ``ConsumeQueueStore``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from skylark.core.errors import StoreError
from skylark.store.batch_queue import BatchQueue
from skylark.store.consume_queue import ConsumeQueue, EntryQueue, Tails
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.errors import StoreFileError, StoreFileMissingError
from skylark.store.file_system import FileSystem
from skylark.store.queue_files import QueueFiles, QueueHandles
from skylark.wire.layout import BATCH_CQ_ENTRY_SIZE, CQ_ENTRY_SIZE

logger = logging.getLogger(__name__)

Queue = TypeVar("Queue", bound=EntryQueue)

QUEUE_DIRECTORY: Final = "consumequeue"
BATCH_QUEUE_DIRECTORY: Final = "batchconsumequeue"

#: Called with the number of queues done and the number of all.
Progress = Callable[[int, int], None]


class FlushRound:
    """Writes the queues that had new entries at its creation, in steps."""

    __slots__ = ("_queues", "_tails")

    def __init__(self, tails: Tails) -> None:
        self._tails = tails
        self._queues = list(tails.dirty)[::-1]  # in reverse order

    def run(self, queue_count_max: int | None = None) -> bool:
        """Write some queues, or all that are left; return whether that was the last of them.

        After an error the caller may retry: the queue that failed is still first.
        """
        queues = self._queues
        stop = 0 if queue_count_max is None else max(0, len(queues) - queue_count_max)
        while len(queues) > stop:
            queues[-1].flush_tail()
            queues.pop()
        if queues:
            return False
        self._tails.error = None
        return True


class ConsumeQueues:
    """The queues by topic and number. ``get`` is a pair of dictionary look-ups."""

    def __init__(
        self,
        files: FileSystem,
        root: Path,
        dirty_ranges: DirtyRanges,
        *,
        queue_file_size: int = 300_000 * CQ_ENTRY_SIZE,
        batch_queue_file_size: int = 300_000 * BATCH_CQ_ENTRY_SIZE,
        open_files_max: int = 256,
        tail_size_max: int = 64 << 10,
        recent_size: int = 16_000,
    ) -> None:
        self._files = files
        self._handles = QueueHandles(files, dirty_ranges, open_files_max=open_files_max)
        self._tails = Tails(size_max=tail_size_max, recent_size=recent_size)
        #: The queues by topic and number; read-only for others, where ``get`` is too slow.
        self.by_topic: dict[str, dict[int, EntryQueue]] = {}
        self._kinds: tuple[tuple[type[EntryQueue], Path, int], ...] = (
            (ConsumeQueue, root / QUEUE_DIRECTORY, queue_file_size),
            (BatchQueue, root / BATCH_QUEUE_DIRECTORY, batch_queue_file_size),
        )
        self._dirty_ranges = dirty_ranges
        self._topics_found: set[str] = set()  # that had a directory when the store was loaded

    # ---- look-up ---------------------------------------------------------------------------------

    def get(self, topic: str, queue_id: int) -> EntryQueue | None:
        """The queue, if there is one."""
        queues = self.by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created if necessary; its directory is created with its first entries."""
        return self._get_or_create(ConsumeQueue, topic, queue_id)

    def get_or_create_batch(self, topic: str, queue_id: int) -> BatchQueue:
        """Like :meth:`get_or_create`, for a BatchCQ topic."""
        return self._get_or_create(BatchQueue, topic, queue_id)

    def _get_or_create(self, kind: type[Queue], topic: str, queue_id: int) -> Queue:
        queue = self.get(topic, queue_id) or self._add(kind, topic, queue_id)
        if not isinstance(queue, kind):
            raise StoreError(f"{queue!r} holds {queue.content} and no {kind.content}")
        return queue

    def topic_queues(self, topic: str) -> list[EntryQueue]:
        """The queues of a topic, by number."""
        return [queue for _, queue in sorted(self.by_topic.get(topic, {}).items())]

    def topics(self) -> list[str]:
        """All topics that have queues."""
        return list(self.by_topic)

    def __iter__(self) -> Iterator[EntryQueue]:
        """All queues; adding and removing queues meanwhile is allowed."""
        for queues in list(self.by_topic.values()):
            yield from list(queues.values())

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def _add(self, kind: type[EntryQueue], topic: str, queue_id: int) -> EntryQueue:
        # Topic names come from other machines, and this one becomes part of a path.
        if "/" in topic or "\0" in topic or topic in ("", ".", "..") or queue_id < 0:
            raise StoreError(f"no queue can be named {topic!r}, {queue_id}")
        _, directory, file_size = next(row for row in self._kinds if row[0] is kind)
        queue_files = QueueFiles(self._handles, directory / topic / str(queue_id), file_size)
        queue = kind(topic, queue_id, queue_files, self._tails)
        self.by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    # ---- totals ----------------------------------------------------------------------------------

    @property
    def size_total(self) -> int:
        """Bytes of all queue files, by their length."""
        return sum(queue.size_total for queue in self)

    @property
    def dirty_count(self) -> int:
        """Queues with entries that are only in memory."""
        return len(self._tails.dirty)

    @property
    def error(self) -> StoreFileError | None:
        """Why entries that should be on disk are still in memory; the store then refuses puts."""
        return self._tails.error

    # ---- start -----------------------------------------------------------------------------------

    def load(self, *, clean: bool) -> None:
        """Find the queues on disk; ``clean``: the last run was closed in order."""
        for kind, directory, _ in self._kinds:
            for topic in self._subdirectories(directory):
                self._topics_found.add(topic)
                if not clean:  # see QueueFiles.load
                    for parent in (directory / topic, directory, directory.parent):
                        self._dirty_ranges.directory_changed(parent)
                for name in self._subdirectories(directory / topic):
                    if not (name.isascii() and name.isdecimal() and name == str(int(name))):
                        logger.warning("%s is not a queue", directory / topic / name)
                    elif self.get(topic, int(name)) is None:
                        self._add(kind, topic, int(name)).load(clean=clean)
                    else:
                        logger.warning("%s-%s has queues of two kinds", topic, name)

    def were_deleted(self, topic: str) -> bool:
        """Whether all queues of a topic were deleted: it had a directory, which is empty."""
        return topic in self._topics_found and topic not in self.by_topic

    def _subdirectories(self, path: Path) -> list[str]:
        try:
            return [entry.name for entry in self._files.list_directory(path) if entry.is_directory]
        except StoreFileMissingError:
            return []

    def recover(self, synced_until: int | None = None, progress: Progress | None = None) -> int:
        """Cut every queue after its last trusted entry, see :meth:`EntryQueue.recover`.

        Returns the log offset up to which the log was dispatched, -1 if no queue has entries.
        """
        queue_count = len(self)
        dispatched_until = -1
        for number, queue in enumerate(self, 1):
            queue.recover(synced_until)
            dispatched_until = max(dispatched_until, queue.max_log_offset)
            if progress is not None:
                progress(number, queue_count)
        return dispatched_until

    def truncate(self, log_offset: int) -> None:
        """Drop all entries of records at or after ``log_offset``, the end of the log."""
        for queue in self:
            queue.truncate(log_offset)

    def correct_min(self, log_min: int) -> None:
        """Let all queues begin at messages that the log still has."""
        for queue in self:
            queue.correct_min(log_min)

    # ---- while running ---------------------------------------------------------------------------

    def start_flush(self) -> FlushRound:
        """A round over all queues that have new entries now."""
        return FlushRound(self._tails)

    def flush(self) -> None:
        """Write the new entries of all queues to their files; an error leaves the rest."""
        self.start_flush().run()

    def delete_before(self, log_min: int) -> int:
        """Delete queue files that point only to deleted records; return how many."""
        return sum(queue.delete_before(log_min) for queue in self)

    def destroy_all(self) -> None:
        """Delete every queue."""
        for queue in self:
            self.destroy(queue)

    def destroy_topic(self, topic: str) -> None:
        """Delete all queues of a topic, files and directories."""
        for queue in self.topic_queues(topic):
            self.destroy(queue)

    def destroy(self, queue: EntryQueue) -> None:
        """Delete one queue, files and directory; the object must not be used afterwards.

        The directory of its topic stays, as in Java: an empty one shows that queues were deleted
        and not lost.
        """
        queue.destroy()
        queue.is_deleted = True
        queues = self.by_topic[queue.topic]
        del queues[queue.queue_id]
        if not queues:
            del self.by_topic[queue.topic]
        for kind, directory, _ in self._kinds:
            if isinstance(queue, kind):
                self._remove_directory(directory / queue.topic / str(queue.queue_id))
                with contextlib.suppress(StoreFileError):  # a new queue may have none
                    self._dirty_ranges.make_directory(directory / queue.topic)
                    self._dirty_ranges.directory_changed(directory)

    def _remove_directory(self, path: Path) -> None:
        # It may hold a foreign file, or may not exist.
        with contextlib.suppress(StoreFileError):
            self._files.remove_directory(path)
            self._dirty_ranges.directory_changed(path.parent)

    def close(self) -> None:
        """Close all files, after :meth:`flush` and a sync."""
        self._handles.close()
