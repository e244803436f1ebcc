"""After a put: why a message was refused, and when an answer that says "stored" may leave.

An answer leaves at once, except in three cases. With SYNC_FLUSH it waits until the disk has the
message, and with synchronous slaves until enough of these have it, unless the message says
WAIT=false; readers do not wait for slaves, as in Java. And while a topic that a send has created is
not on disk yet it waits for that: a crash would otherwise leave acknowledged messages in a topic
that nobody knows. Not so while topics cannot be saved: then every send would wait, and in the end
be refused, for a disk that may hold nothing but the settings. The message is stored, and that is
the answer; the log says that new topics hold until restart. A broker that stops lets the answers
that wait go first (:meth:`none_parked`).

Refusals begin with Java's own text. Where the disk may be full, they say how full it is, as shares
of 1: ``CL`` is the disk of the log, ``CQ`` that of the queues, ``INDEX`` that of the index.

Answers to ``SendMessageProcessor.handlePutMessageResult`` and ``diskUtil``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from skylark.broker.table_saver import SavedTable
from skylark.core.errors import BrokerError, StoreError, broker_error
from skylark.net.connection import Connection
from skylark.net.dispatch import LATER, Answer
from skylark.store import config_tables
from skylark.store.config import FlushDiskType
from skylark.store.file_system import FileSystem
from skylark.store.message_store import INDEX_DIRECTORY, MessageStore
from skylark.store.queue_registry import QUEUE_DIRECTORY
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire import properties as names
from skylark.wire.command import Command


class PutAnswers:
    """Holds answers back for as long as they would promise too much."""

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
        self._parked_count = 0
        self._none_parked: asyncio.Future[None] | None = None

    # --- when -------------------------------------------------------------------------------------

    def when_durable(
        self,
        connection: Connection,
        request: Command,
        result: PutResult,
        properties: str,
        answer: Callable[[PutStatus], Command],
    ) -> Answer:
        """The answer to a put that was stored, if it may leave now; otherwise it is sent later."""
        waits = self._waits_for_disk or self._store.replicas is not None
        if waits and _wants_to_wait(properties):
            self._parked_count += 1
            self._store.when_durable(result, partial(self._reply, connection, request, answer))
            return LATER
        self._store.when_durable(result, _ignore, wait=False)
        return self._when_saved(connection, request, answer(PutStatus.PUT_OK))

    def leave_now(self, results: list[PutResult]) -> bool:
        """Whether the answers to puts that came together may leave at once.

        If so, whoever writes to the disk or to slaves is told. Else :meth:`when_durable` follows
        for each of them that was stored.
        """
        if (
            self._waits_for_disk
            or self._store.replicas is not None
            or self._topics_saved.is_on_its_way
        ):
            return False
        for result in reversed(results):
            if result.status.stored:
                self._store.when_durable(result, _ignore, wait=False)
                break
        return True

    def _reply(
        self,
        connection: Connection,
        request: Command,
        answer: Callable[[PutStatus], Command],
        status: PutStatus,
    ) -> None:
        """The outcome of a put that waited for the disk or for slaves."""
        self._parked_count -= 1
        response = self._when_saved(connection, request, answer(status))
        if response is not LATER:
            connection.answer(request, response)
        if not self._parked_count and self._none_parked is not None:
            self._none_parked.set_result(None)
            self._none_parked = None

    async def none_parked(self) -> None:
        """Wait until no message waits for the disk or for slaves any more."""
        while self._parked_count:
            if self._none_parked is None:
                self._none_parked = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._none_parked)

    def _when_saved(self, connection: Connection, request: Command, response: Command) -> Answer:
        if not self._topics_saved.is_on_its_way:
            return response

        def answer(waiting: asyncio.Task[None]) -> None:
            # Cancelled: the connection is gone as well.
            connection.answer(request, None if waiting.cancelled() else response)

        # Not at the end of what is awaited: a task that is cancelled early never begins.
        connection.spawn(self.topics_saved(), request).add_done_callback(answer)
        return LATER

    async def topics_saved(self) -> None:
        """Wait until the disk has all topics, or cannot take them."""
        if self._topics_saved.is_on_its_way:
            # Whoever saves has logged a failure, of any kind. The message is stored all the same.
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
        """How full the disk is that holds a directory; -1, as in Java, if that cannot be told."""
        try:
            while not self._files.exists(path) and path != path.parent:
                path = path.parent
            return self._files.disk_usage(path).used_ratio
        except StoreError:
            return -1.0


def _wants_to_wait(properties: str) -> bool:
    text = names.find_property(properties, names.PROPERTY_WAIT)
    return text is None or text.lower() == "true"


def _ignore(_status: PutStatus) -> None:
    """For a put that nobody waits for."""
