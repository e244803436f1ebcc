"""Results of puts: defers them until the message is durable, and builds the errors of refused ones.

A result is given at once, except in three cases. With SYNC_FLUSH it waits until the message is on
disk, and with synchronous slaves until enough of them have it, unless the message has WAIT=false;
readers do not wait for slaves, as in Java. And a send to a topic that is not saved yet waits for
the save: otherwise a crash could leave acknowledged messages in a topic that the broker does not
know. If topics cannot be saved, results do not wait: else every send would time out because of a
disk that may hold nothing but the settings. The message is stored, and the log reports that new
topics last until restart. A broker that stops first gives the waiting results
(:meth:`Durability.wait_for_pending`).

Errors begin with Java's text. Where the disk may be full, they have the used share of the disks:
``CL`` of the commit log, ``CQ`` of the consume queues, ``INDEX`` of the index.

Counterpart of ``SendMessageProcessor.handlePutMessageResult`` and ``diskUtil``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from skylark.broker.api import Pending
from skylark.broker.send.own_copies import NEVER_STORED
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
_REMARKS: Final = {
    PutStatus.CREATE_MAPPED_FILE_FAILED: "create mapped file failed, server is busy or broken.",
    PutStatus.OS_PAGE_CACHE_BUSY: "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (
        "accurate timer message is not enabled, timerWheelEnable is false"
    ),
}
_WAIT: Final = names.PROPERTY_WAIT.encode()


class Durability:
    """Defers results until their messages are durable."""

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
        self._all_settled: asyncio.Future[None] | None = None
        self._unsaved: list[tuple[Pending[Any], Any]] = []
        self._saving: asyncio.Task[None] | None = None

    # --- durability -------------------------------------------------------------------------------

    def when_durable(
        self, result: PutResult, outcome: Callable[[PutStatus], ResultT], *, wait: bool = True
    ) -> ResultT | Pending[ResultT]:
        """The outcome of a stored put: now if it is durable, else a Pending.

        Without ``wait`` it waits only for a topic that is being saved.
        """
        if not (wait and (self._waits_for_disk or self._store.replicas is not None)):
            self._store.when_durable(result, _ignore, wait=False)
            return self._when_saved(outcome(PutStatus.PUT_OK))
        pending: Pending[ResultT] = Pending()
        self._waiting_count += 1
        self._store.when_durable(result, lambda status: self._durable(pending, outcome(status)))
        return pending

    def is_durable_now(self, results: Sequence[PutResult]) -> bool:
        """Whether the outcomes of a run may be given at once.

        If so, wakes the threads that flush or replicate. If not, the caller calls
        :meth:`when_durable` for each stored message.
        """
        if (
            self._waits_for_disk
            or self._store.replicas is not None
            or self._topics_saved.is_on_its_way
        ):
            return False
        for result in reversed(results):
            if result.size:  # stored
                self._store.when_durable(result, _ignore, wait=False)
                break
        return True

    def _durable(self, pending: Pending[ResultT], outcome: ResultT) -> None:
        """Set the outcome of a put that waited for the disk or for slaves."""
        self._waiting_count -= 1
        self._set_when_saved(pending, outcome)
        if not self._waiting_count and self._all_settled is not None:
            self._all_settled.set_result(None)
            self._all_settled = None

    async def wait_for_pending(self) -> None:
        """Wait until no message waits for the disk or for slaves."""
        while self._waiting_count:
            if self._all_settled is None:
                self._all_settled = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._all_settled)

    def _when_saved(self, outcome: ResultT) -> ResultT | Pending[ResultT]:
        if not self._topics_saved.is_on_its_way:
            return outcome
        pending: Pending[ResultT] = Pending()
        self._set_when_saved(pending, outcome)
        return pending

    def _set_when_saved(self, pending: Pending[ResultT], outcome: ResultT) -> None:
        """Set an outcome now, or when the topics are saved."""
        if not self._topics_saved.is_on_its_way:
            pending.set(outcome)
            return
        self._unsaved.append((pending, outcome))
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self.topics_saved())
            # Not code at the end of the task: a task that is cancelled early never runs.
            self._saving.add_done_callback(self._set_saved)

    def _set_saved(self, task: asyncio.Task[None]) -> None:
        """Set the outcomes that waited for a save of the topics."""
        self._saving = None
        unsaved, self._unsaved = self._unsaved, []
        for pending, outcome in unsaved:
            if task.cancelled():  # the broker stops
                stops = "the broker stops before it has saved a new topic"
                pending.set(ServiceNotAvailableError(stops))
                continue
            self._set_when_saved(pending, outcome)  # more topics may have been created meanwhile

    async def topics_saved(self) -> None:
        """Wait until all topics are saved, or cannot be."""
        if self._topics_saved.is_on_its_way:
            # The saver logs any failure. The message is stored all the same.
            with contextlib.suppress(Exception):
                await self._topics_saved.written()

    # --- errors -----------------------------------------------------------------------------------

    def refusal(self, status: PutStatus, hint: str | None = None) -> BrokerError:
        """The error for a message that was not stored."""
        remark = _REMARKS.get(status, status.name)
        if status in NEVER_STORED:
            remark = illegal_message(self._store.config.max_message_size)
        elif status is PutStatus.SERVICE_NOT_AVAILABLE:
            remark = (
                "service not available now. It may be caused by one of the following reasons:"
                f" the broker's disk is full [{self._disk_use()}], messages are put to the"
                " slave, message store has been shut down, etc."
            )
        elif status is PutStatus.WHEEL_TIMER_NOT_ENABLE:
            hint = hint or "this broker supports delay levels only"
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
        """Used share of the disk that holds a directory; -1, as in Java, if it is unreadable."""
        try:
            while not self._files.exists(path) and path != path.parent:
                path = path.parent
            return self._files.disk_usage(path).used_ratio
        except StoreError:
            return -1.0


def illegal_message(size_max: int) -> str:
    """Java's remark about a message that does not fit, except for the first word."""
    return (
        "the message is illegal, maybe msg body or properties length not matched."
        f" msg body length limit {size_max}B, msg properties length limit 32KB."
    )


def waits_for_durability(properties: bytes) -> bool:
    """Whether the result of a message waits for durability: it does not have WAIT=false."""
    value = names.find_raw_property(properties, _WAIT)
    return value is None or value.lower() == b"true"


def _ignore(_status: PutStatus) -> None:
    """Callback of a put whose result is given at once."""
