"""Saves the tables of the broker: topics and groups on change, offsets and counters at intervals.

Each table has a file under ``config`` (:mod:`skylark.store.config_files` describes its content, and
what a crash leaves). A :class:`TableSaver` owns the writing::

    saver = TableSaver(files, clock)
    topics.load(files.load(TOPICS))                                 # before anything is served
    saved = saver.on_change(TOPICS, topics.snapshot)
    saver.every(CONSUMER_FILTERS, filters.snapshot, interval_ms=lambda: 10_000)
    await saver.start()
    ...
    saved.mark()
    await saved.written()                                           # a new topic is on disk
    await saver.stop()                                              # saves what has changed

**On change**: the table is written soon after :meth:`SavedTable.mark`. Changes made while a write
is under way go into one further write. A reply that must not leave before the change is on disk
awaits :func:`until_saved`: otherwise a crash could leave messages of a topic that does not exist.

**At intervals**: first after 10 s, then every interval, if anything changed.

The loop takes a snapshot, a thread encodes and writes it, one write per table at a time. A write
that fails is logged once, not at every attempt, and tried again: after a second, or at the next
interval. Until it succeeds the change is in memory only, and those that await it get the error.
:attr:`SavedTable.is_on_its_way` is for code that would rather go on without the disk than wait.

Counterpart of Java's ``ConfigManager`` and the jobs of ``BrokerController`` that call it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from skylark.broker.live_settings import LiveSettings
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import BrokerError, ConfigError, StoreError
from skylark.core.lifecycle import Tasks
from skylark.store import config_tables
from skylark.store.config_files import ConfigFile, ConfigFiles
from skylark.store.file_system import FileSystem

logger = logging.getLogger(__name__)

#: Where the tables are, within the directory of a store.
CONFIG_DIRECTORY: Final = "config"
FIRST_SAVE_S: Final = 10.0
RETRY_S: Final = 1.0
#: How often filters and the order of POP consumption are written.
SLOW_INTERVAL_MS: Final = 10_000

TableT = TypeVar("TableT", bound=config_tables.ConfigTable)


class InThread(Protocol):
    """Runs a function that blocks, away from the loop; tests run it in place."""

    def __call__(self, function: Callable[..., None], /, *args: Any) -> Awaitable[None]: ...


class SavedTable(Generic[TableT]):
    """One table and its file; made by :class:`TableSaver`."""

    def __init__(
        self,
        saver: TableSaver,
        file: ConfigFile[TableT],
        snapshot: Callable[[], TableT],
        *,
        interval_ms: Callable[[], int] | None = None,
        changes: Callable[[], int] | None = None,
        before_write: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = file.name
        self.interval_ms = interval_ms
        self.timer: TimerHandle | None = None
        self._saver = saver
        self._file = file
        self._snapshot = snapshot
        self._before_write = before_write
        self._changes = changes
        self._changes_seen = changes() if changes is not None else 0
        # What is on disk, for a table that does not count its changes.
        self._last = snapshot() if interval_ms is not None and changes is None else None
        self._marked = 0
        self._written = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.is_writing = False
        self.failed = False

    @property
    def is_dirty(self) -> bool:
        """Whether the disk lacks a change that was marked."""
        return self._written < self._marked

    @property
    def is_on_its_way(self) -> bool:
        """Whether the disk lacks a change, and the last write did not fail."""
        return self._written < self._marked and not self.failed

    @property
    def last_mark(self) -> int:
        """The number of the last change that was marked."""
        return self._marked

    def is_change_on_its_way(self, mark: int) -> bool:
        """:attr:`is_on_its_way` for one change, whatever was changed after it."""
        return self._written < mark and not self.failed

    def mark(self) -> None:
        """The table has changed."""
        self._marked += 1
        self._saver.write_soon(self)

    def mark_if_changed(self) -> None:
        """Compare with the last write, for a table that is saved at intervals."""
        if self._changes is not None:
            changes = self._changes()
            changed, self._changes_seen = changes != self._changes_seen, changes
        else:
            changed = not self.is_dirty and self._snapshot() != self._last
        if changed:
            self._marked += 1

    async def written(self) -> None:
        """Wait until every change marked so far is on disk; raises StoreError."""
        if self.is_dirty:
            if not self._saver.is_running:
                raise StoreError(f"{self.name} is not saved: the broker is not running")
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((self._marked, waiter))
            self._saver.write_soon(self)
            await waiter

    async def write(self) -> Exception | None:
        """Write until nothing is left to write, or until it fails; one caller at a time."""
        while self.is_dirty:
            marked = self._marked
            try:
                table = self._snapshot()
                if self._before_write is not None:
                    await self._before_write()
                await self._saver.save(self._file, table)
            except Exception as error:  # noqa: BLE001 - raised in those that wait
                self._write_failed(error)
                return error
            if self._last is not None:
                self._last = table
            self._write_succeeded(marked)
        return None

    def _write_failed(self, error: Exception) -> None:
        if not self.failed:
            logger.error(
                "%s cannot be saved, changes hold until restart: %s",
                self.name,
                error,
                exc_info=None if isinstance(error, StoreError) else error,
            )
        self.failed = True
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _write_succeeded(self, marked: int) -> None:
        if self.failed:
            logger.info("%s is saved again", self.name)
        self.failed = False
        self._written = marked
        while self._waiters and self._waiters[0][0] <= marked:
            _, waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)


class SavedTables(NamedTuple):
    """Topics, groups and offsets."""

    topics: SavedTable[config_tables.TopicTable]
    groups: SavedTable[config_tables.SubscriptionGroupTable]
    offsets: SavedTable[config_tables.ConsumerOffsetTable]


class TableSaver:
    """Writes tables; a component with ``start`` and ``stop``."""

    def __init__(
        self, files: ConfigFiles, clock: Clock, *, in_thread: InThread = asyncio.to_thread
    ) -> None:
        self._files = files
        self._clock = clock
        self._in_thread = in_thread
        self._tables: list[SavedTable[Any]] = []
        self._tasks = Tasks("table saver")
        self.is_running = False

    def on_change(
        self, file: ConfigFile[TableT], snapshot: Callable[[], TableT]
    ) -> SavedTable[TableT]:
        """Write the table whenever it is marked."""
        return self._add(SavedTable(self, file, snapshot))

    def every(
        self,
        file: ConfigFile[TableT],
        snapshot: Callable[[], TableT],
        *,
        interval_ms: Callable[[], int],
        changes: Callable[[], int] | None = None,
        before_write: Callable[[], Awaitable[None]] | None = None,
    ) -> SavedTable[TableT]:
        """Write the table at intervals, if it has changed.

        ``changes`` is a number that goes up with each change; without it, snapshots are compared.
        ``before_write`` waits, after the snapshot, until the disk has what the snapshot depends on;
        it raises StoreError to give up this write.
        """
        table = SavedTable(
            self,
            file,
            snapshot,
            interval_ms=interval_ms,
            changes=changes,
            before_write=before_write,
        )
        return self._add(table)

    async def start(self) -> None:
        self.is_running = True
        for table in self._tables:
            self._begin(table)

    async def stop(self) -> None:
        """Write what is left; raises what could not be written."""
        self.is_running = False
        for table in self._tables:
            if table.timer is not None:
                table.timer.cancel()
        await self._tasks.wait()
        errors: list[Exception] = []
        for table in self._tables:
            if table.interval_ms is not None:
                table.mark_if_changed()
            error = await table.write()
            if error is not None:
                errors.append(error)
        await self._tasks.cancel_and_wait()
        if errors:
            raise ExceptionGroup("tables could not be saved", errors)

    def write_soon(self, table: SavedTable[Any]) -> None:
        """Begin to write the table, unless it waits for another attempt."""
        if not (table.failed and table.timer is not None):
            self._write_now(table)

    async def save(self, file: ConfigFile[TableT], table: TableT) -> None:
        """Write one file, in a thread."""
        await self._in_thread(self._files.save, file, table)

    def _add(self, table: SavedTable[TableT]) -> SavedTable[TableT]:
        self._tables.append(table)
        if self.is_running:
            self._begin(table)
        return table

    def _begin(self, table: SavedTable[Any]) -> None:
        if table.interval_ms is not None:
            table.timer = self._clock.call_later(FIRST_SAVE_S, self._tick, table)
        elif table.is_dirty:
            self.write_soon(table)

    def _tick(self, table: SavedTable[Any]) -> None:
        assert table.interval_ms is not None
        table.timer = self._clock.call_later(table.interval_ms() / 1000, self._tick, table)
        table.mark_if_changed()
        if table.is_dirty:
            self._write_now(table)

    def _write_now(self, table: SavedTable[Any]) -> None:
        if self.is_running and not table.is_writing:
            table.is_writing = True
            self._tasks.spawn(self._write(table), name=table.name)

    async def _write(self, table: SavedTable[Any]) -> None:
        try:
            error = await table.write()
        finally:
            table.is_writing = False
        if error is not None and table.interval_ms is None and self.is_running:
            table.timer = self._clock.call_later(RETRY_S, self._retry, table)

    def _retry(self, table: SavedTable[Any]) -> None:
        table.timer = None
        self.write_soon(table)


class SettingsFile:
    """The file that request 25 edits; without ``brokerConfigPath`` changes are in memory."""

    def __init__(
        self, files: FileSystem, live: LiveSettings, *, in_thread: InThread = asyncio.to_thread
    ) -> None:
        self._files = files
        self._live = live
        self._in_thread = in_thread
        self._turn = asyncio.Lock()

    async def save(self) -> None:
        """Write the changed settings; raises StoreError, or ConfigError for an invalid file."""
        path = self._live.current.broker_config_path
        if path is not None:
            async with self._turn:
                await self._in_thread(self._edit, path)

    def _edit(self, path: Path) -> None:
        content = self._files.read_file(path) if self._files.exists(path) else None
        self._files.write_atomic(path, self._live.edited(content))


async def until_saved(*tables: SavedTable[Any]) -> None:
    """Wait until the disk has what a reply acknowledges; raises BrokerError if it cannot."""
    try:
        for table in tables:
            await table.written()
    except StoreError as error:
        raise not_saved(error) from error


def not_saved(error: StoreError | ConfigError) -> BrokerError:
    """The reply to a change that was made in memory only; the saver has logged the cause."""
    return BrokerError(f"the change holds until restart, it could not be saved: {error}")
