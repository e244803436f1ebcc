"""After a put: why a message was refused, and when a result that says "stored" may be given.

A result is given at once, except in three cases. With SYNC_FLUSH it waits until the disk has the
message, and with synchronous slaves until enough of these have it, unless the message says
WAIT=false; readers do not wait for slaves, as in Java. And while a topic that a send has created is
not on disk yet it waits for that: a crash would otherwise leave acknowledged messages in a topic
that the broker does not know. Not so while topics cannot be saved: then every send would wait, and
in the end be refused, for a disk that may hold nothing but the settings. The message is stored, and
that is the result; the log says that new topics hold until restart. A broker that stops gives the
results that wait first (:meth:`Durability.none_waiting`).

Refusals begin with Java's own text. Where the disk may be full, they say how full it is, as shares
of 1: ``CL`` is the disk of the log, ``CQ`` that of the queues, ``INDEX`` that of the index.

Counterpart of ``SendMessageProcessor.handlePutMessageResult`` and ``diskUtil``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from skylark.broker.api import Pending
from skylark.broker.table_saver import SavedTable
from skylark.core.errors import (
    BrokerError,
    ServiceNotAvailableError,
    StoreError,
    broker_error,
)
from skylark.store import config_tables
from skylark.store.config import FlushDiskType
from skylark.store.file_system import FileSystem
from skylark.store.message_store import INDEX_DIRECTORY, MessageStore
from skylark.store.queue_registry import QUEUE_DIRECTORY
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names

ResultT = TypeVar("ResultT")
_WAIT: Final = names.PROPERTY_WAIT.encode()


class Durability:
    """Holds results back for as long as they would promise too much."""

    def __init__(
        self,
        store: MessageStore,
        files: FileSystem,
        topics_saved: SavedTable[config_tables.TopicTable],
    ) -> None:
        self._store = store
        self._files = files
        self._topics_saved = topics_saved
        self._waits_for_disk = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._waiting_count = 0
        self._none_waiting: asyncio.Future[None] | None = None
        self._unsaved: list[tuple[Pending[Any], Any]] = []
        self._saving: asyncio.Task[None] | None = None

    # --- when -------------------------------------------------------------------------------------

    def when_durable(
        self, result: PutResult, outcome: Callable[[PutStatus], ResultT], *, wait: bool = True
    ) -> ResultT | Pending[ResultT]:
        """The outcome of a put that was stored: now, if it may be given now.

        Without ``wait`` nothing but a topic that is being saved delays it.
        """
        if not (wait and (self._waits_for_disk or self._store.replicas is not None)):
            self._store.when_durable(result, _ignore, wait=False)
            return self._when_saved(outcome(PutStatus.PUT_OK))
        pending: Pending[ResultT] = Pending()
        self._waiting_count += 1
        self._store.when_durable(result, lambda status: self._durable(pending, outcome(status)))
        return pending

    def all_now(self, results: Sequence[PutResult]) -> bool:
        """Whether the outcomes of puts that came together may be given at once.

        If so, the threads that write to the disk or to slaves are woken. Else :meth:`when_durable`
        follows for each of them that was stored.
        """
        if (
            self._waits_for_disk
            or self._store.replicas is not None
            or self._topics_saved.is_on_its_way
        ):
            return False
        for result in reversed(results):
            if result.size:  # it is stored
                self._store.when_durable(result, _ignore, wait=False)
                break
        return True

    def _durable(self, pending: Pending[ResultT], outcome: ResultT) -> None:
        """A put that waited for the disk or for slaves has its outcome."""
        self._waiting_count -= 1
        saved = self._when_saved(outcome)
        if isinstance(saved, Pending):
            saved.then(pending.set)
        else:
            pending.set(saved)
        if not self._waiting_count and self._none_waiting is not None:
            self._none_waiting.set_result(None)
            self._none_waiting = None

    async def none_waiting(self) -> None:
        """Wait until no message waits for the disk or for slaves any more."""
        while self._waiting_count:
            if self._none_waiting is None:
                self._none_waiting = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._none_waiting)

    def _when_saved(self, outcome: ResultT) -> ResultT | Pending[ResultT]:
        if not self._topics_saved.is_on_its_way:
            return outcome
        pending: Pending[ResultT] = Pending()
        self._unsaved.append((pending, outcome))
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self.topics_saved())
            # Not at the end of what is awaited: a task that is cancelled early never begins.
            self._saving.add_done_callback(self._give_saved)
        return pending

    def _give_saved(self, task: asyncio.Task[None]) -> None:
        """The disk has the topics that were marked when the wait began."""
        self._saving = None
        unsaved, self._unsaved = self._unsaved, []
        for pending, outcome in unsaved:
            if task.cancelled():  # the loop ends
                stops = "the broker stops before it has saved a new topic"
                pending.set(ServiceNotAvailableError(stops))
                continue
            saved = self._when_saved(outcome)  # more topics may have been made meanwhile
            if isinstance(saved, Pending):
                saved.then(pending.set)
            else:
                pending.set(saved)

    async def topics_saved(self) -> None:
        """Wait until the disk has all topics, or cannot take them."""
        if self._topics_saved.is_on_its_way:
            # The saver has logged a failure, of any kind. The message is stored all the same.
            with contextlib.suppress(Exception):
                await self._topics_saved.written()

    # --- why not ----------------------------------------------------------------------------------

    def refusal(self, status: PutStatus, hint: str | None = None) -> BrokerError:
        """Why a message was not stored."""
        match status:
            case PutStatus.MESSAGE_ILLEGAL | PutStatus.PROPERTIES_SIZE_EXCEEDED:
                size_max = self._store.config.max_message_size
                remark = (
                    "the message is illegal, maybe msg body or properties length not matched."
                    f" msg body length limit {size_max}B, msg properties length limit 32KB."
                )
            case PutStatus.SERVICE_NOT_AVAILABLE:
                remark = (
                    "service not available now. It may be caused by one of the following reasons:"
                    f" the broker's disk is full [{self._disk_use()}], messages are put to the"
                    " slave, message store has been shut down, etc."
                )
            case PutStatus.CREATE_MAPPED_FILE_FAILED:
                remark = "create mapped file failed, server is busy or broken."
            case PutStatus.OS_PAGE_CACHE_BUSY:
                remark = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
            case PutStatus.WHEEL_TIMER_NOT_ENABLE:
                remark = "accurate timer message is not enabled, timerWheelEnable is false"
                hint = hint or "this broker knows delay levels only"
            case _:
                remark = status.name
        return broker_error(status.code, remark, hint=hint)

    def _disk_use(self) -> str:
        config = self._store.config
        root = config.store_path_root_dir
        log, queues, index = (
            self._used_ratio(path)
            for path in (config.commit_log_path, root / QUEUE_DIRECTORY, root / INDEX_DIRECTORY)
        )
        return f"CL: {log:5.2f} CQ: {queues:5.2f} INDEX: {index:5.2f}"

    def _used_ratio(self, path: Path) -> float:
        """How full the disk is that holds a directory; -1, as in Java, if it cannot be read."""
        try:
            while not self._files.exists(path) and path != path.parent:
                path = path.parent
            return self._files.disk_usage(path).used_ratio
        except StoreError:
            return -1.0


def wants_to_wait(properties: bytes) -> bool:
    """Whether a message does not say WAIT=false."""
    value = names.find_raw_property(properties, _WAIT)
    return value is None or value.lower() == b"true"


def _ignore(_status: PutStatus) -> None:
    """For a put whose result is given at once."""
