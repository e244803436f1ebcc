"""A store in one thread, opened, filled, flushed and crashed by hand: recovery with all its parts.

It does what the broker's store does, in the same order, without timers and workers: the log is
synced when :meth:`CrashStore.flush_log` says so, and the checkpoint moves in
:meth:`CrashStore.flush_views`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skylark.core.clock import TimeSource
from skylark.store.allocator import Allocator
from skylark.store.batch_queue import BatchQueue
from skylark.store.checkpoint import AbortFile, Checkpoint
from skylark.store.commit_log import CommitLog, Draft, topic_field
from skylark.store.config import StoreConfig
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import FileSystem
from skylark.store.index import IndexService
from skylark.store.log_replay import IndexCatchUp
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.recovery import Progress, RecoveryReport, StoreParts, recover
from skylark.store.reput import Arrival, Reput, TagsCodes
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import Batch, BatchMessage, encode_batch
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import MessageRecord, decode_record, pack_host
from skylark.wire.properties import encode_properties
from tests.unit.store.manual_owner import ManualOwner

ROOT = Path("/store")
HOST = pack_host("127.0.0.1", 10911)
START_MS = 1_700_000_000_000
PROCESS_ID = 4711
LOG_FILE_SIZE = 8192
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_FILE_SIZE,
    "mapped_file_size_consume_queue": 60 * 20,
    "mapper_file_size_batch_consume_queue": 20 * 46,
    "max_hash_slot_num": 20,
    "max_index_num": 100,
}


class Ticks(ManualOwner):
    """A clock that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ms = START_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class CrashStore:
    """Everything that recovery joins, over any file system."""

    def __init__(
        self,
        files: FileSystem,
        root: Path = ROOT,
        *,
        time: TimeSource | None = None,
        after_flush: bool = False,
        **settings: Any,
    ) -> None:
        self.files = files
        self.root = root
        self.ticks = Ticks()
        self.time: TimeSource = time or self.ticks
        self.config = StoreConfig(store_path_root_dir=root, **{**SMALL, **settings})
        config = self.config
        self.dirty_ranges = DirtyRanges(files)
        self.log_files = MappedFiles(
            config.commit_log_path,
            config.mapped_file_size_commit_log,
            files=files,
            allocator=Allocator(files),
        )
        self.log = CommitLog(
            self.log_files, self.time, HOST, property_crc=config.enabled_append_prop_crc
        )
        self.queues = ConsumeQueues(
            files,
            root,
            self.dirty_ranges,
            queue_file_size=config.consume_queue_file_size,
            batch_queue_file_size=config.mapper_file_size_batch_consume_queue,
            tail_size_max=config.consume_queue_tail_size_max,
            recent_size=config.consume_queue_recent_size,
        )
        self.index: IndexService | None = None
        if config.message_index_enable:
            self.index = IndexService(
                files,
                root / "index",
                self.dirty_ranges,
                self.time,
                slot_count=config.max_hash_slot_num,
                entry_count_max=config.max_index_num,
            )
        self.checkpoint = Checkpoint(files, root)
        self.abort = AbortFile(files, root)
        self.tags_codes = TagsCodes(config.delay_levels_ms)
        self.arrivals: list[Arrival] = []
        self.dispatch = Reput(
            self.index,
            self.tags_codes,
            on_arrival=self.arrivals.append,
            after_flush=after_flush,
        )

    def open(
        self,
        *,
        progress: Progress | None = None,
        index_later: bool = False,
        is_batch_topic: Callable[[str], bool] | None = None,
    ) -> RecoveryReport:
        self.files.make_directories(self.root, durable=True)
        parts = StoreParts(
            files=self.files,
            config=self.config,
            log=self.log_files,
            queues=self.queues,
            index=self.index,
            tags_codes=self.tags_codes,
            checkpoint=self.checkpoint,
            abort=self.abort,
            scheduler=self.ticks,
        )
        report = recover(
            parts,
            process_id=PROCESS_ID,
            is_batch_topic=is_batch_topic,
            progress=progress,
            index_later=index_later,
        )
        self.dispatch.resume(report.log_end, report.last_store_timestamp)
        return report

    # ---- putting ---------------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str] | bytes | None = None,
        *,
        sys_flag: int = 0,
    ) -> int:
        """Append and dispatch a message; returns its log offset."""
        raw = properties
        if not isinstance(raw, bytes):
            raw = encode_properties(raw or {}).encode()
        queue = self.queues.get_or_create(topic, queue_id)
        draft = Draft(topic, queue_id, body, raw, sys_flag=sys_flag, born_host=HOST)
        counted = sys_flag & 0xC in (0, 0x8)
        appended = self.log.append(
            draft, topic_field(topic), queue.next_offset if counted else 0, self.log.now_ms()
        )
        queue.next_offset += counted
        size, stored = appended.size, appended.store_timestamp
        self.dispatch.add_run([(queue, appended.log_offset, size, sys_flag, raw)], stored)
        return appended.log_offset

    def put_batch(self, topic: str, queue_id: int, messages: list[BatchMessage]) -> int:
        queue = self.queues.get_or_create(topic, queue_id)
        draft = Draft(topic, queue_id, b"", born_host=HOST)
        batch = Batch.of(messages)
        now_ms, field = self.log.now_ms(), topic_field(topic)
        places = self.log.append_batch(draft, field, queue.next_offset, batch, now_ms)
        queue.next_offset += len(batch)
        for log_offset, size, properties in zip(*places, batch.properties, strict=True):
            self.dispatch.add_run([(queue, log_offset, size, 0, properties)], now_ms)
        return places[0][0]

    def put_inner_batch(
        self, topic: str, queue_id: int, messages: Iterable[BatchMessage], **more: str
    ) -> int:
        """Append messages as one record of a BatchCQ topic."""
        messages = list(messages)
        queue = self.queues.get_or_create_batch(topic, queue_id)
        first = queue.next_offset
        properties = {"INNER_NUM": str(len(messages)), "INNER_BASE": str(first), **more}
        sys_flag = FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
        queue.next_offset += len(messages)
        return self._append_to(queue, encode_batch(messages), properties, sys_flag, first)

    def put_single_in_batch_queue(self, topic: str, queue_id: int, body: bytes) -> int:
        """What Java does with it: a queue offset is used up, and no entry made."""
        queue = self.queues.get_or_create_batch(topic, queue_id)
        first = queue.next_offset
        queue.next_offset += 1
        return self._append_to(queue, body, {}, 0, first)

    def _append_to(
        self,
        queue: BatchQueue,
        body: bytes,
        properties: dict[str, str],
        sys_flag: int,
        queue_offset: int,
    ) -> int:
        raw = encode_properties(properties).encode()
        draft = Draft(queue.topic, queue.queue_id, body, raw, sys_flag=sys_flag, born_host=HOST)
        appended = self.log.append(draft, topic_field(queue.topic), queue_offset, self.log.now_ms())
        size, stored = appended.size, appended.store_timestamp
        self.dispatch.add_run([(queue, appended.log_offset, size, sys_flag, raw)], stored)
        return appended.log_offset

    # ---- flushing and closing --------------------------------------------------------------------

    def flush_log(self) -> None:
        self.log_files.sync()
        self.dispatch.release(self.log_files.flushed_where)

    def write_views(self) -> None:
        """Put new entries into the files, without syncing them."""
        self.queues.flush()
        if self.index is not None:
            self.index.flush()

    def flush_views(self) -> None:
        """Write and sync the derived files, and advance the checkpoint."""
        timestamp, offset = self.dispatch.dispatched_timestamp, self.dispatch.dispatched_until
        self.write_views()
        batch = self.dirty_ranges.begin()
        try:
            batch.run()
        finally:
            self.dirty_ranges.finish(batch)
        if self.log_files.flushed_where == self.log_files.wrote_end:
            self.checkpoint.physic_msg_timestamp = self.log.last_store_timestamp
        behind = self.index is not None and self.index.behind_from is not None
        if offset <= self.log_files.flushed_where and not behind:
            self.checkpoint.logics_msg_timestamp = timestamp
            self.checkpoint.logics_physical_offset = offset
        self.checkpoint.save()

    def close(self) -> None:
        """End in order."""
        self.flush_log()
        self.flush_views()
        if self.index is not None:
            self.index.close()
        self.queues.close()
        self.log_files.close()
        self.abort.remove()

    def catch_up(self, byte_budget: int = 1000) -> int:
        """Let the index catch up; returns the number of steps."""
        assert self.index is not None
        catch_up = IndexCatchUp(self.log_files, self.index, lambda: self.dispatch.dispatched_until)
        steps = 1
        while not catch_up.step(byte_budget):
            steps += 1
        return steps

    # ---- reading ---------------------------------------------------------------------------------

    def record(self, log_offset: int, size: int) -> MessageRecord:
        lease = self.log.lease(log_offset, size)
        assert lease is not None, log_offset
        with lease:
            return decode_record(lease.view, log_start=log_offset)

    def messages(self) -> dict[tuple[str, int], list[bytes]]:
        """Bodies of all readable messages by queue; an inner batch counts once.

        Every entry must lead to the record it belongs to.
        """
        found: dict[tuple[str, int], list[bytes]] = {}
        for queue in self.queues:
            bodies = []
            offset = queue.min_offset
            while offset < queue.max_offset:
                entry = queue.read_entry(offset)
                assert entry is not None, (queue, offset)
                record = self.record(entry.log_offset, entry.size)
                assert (record.topic, record.queue_id) == (queue.topic, queue.queue_id)
                assert (record.queue_offset, record.total_size) == (entry.queue_offset, entry.size)
                bodies.append(record.body)
                offset = entry.queue_offset + entry.message_count
            assert queue.next_offset == queue.max_offset
            if bodies:
                found[queue.topic, queue.queue_id] = bodies
        return found

    def keys(self, topic: str, key: str) -> list[int]:
        assert self.index is not None
        return self.index.query(topic, key).log_offsets


def derived_files(files: FileSystem, root: Path = ROOT) -> dict[str, bytes]:
    """All queue and index files by name; the index by number, for its names are times."""
    found: dict[str, bytes] = {}

    def walk(directory: Path) -> None:
        for number, entry in enumerate(files.list_directory(directory)):
            path = directory / entry.name
            if entry.is_directory:
                walk(path)
            elif directory.name == "index":
                found[f"index/{number}"] = files.read_file(path)
            else:
                found[str(path.relative_to(root))] = files.read_file(path)

    for name in ("batchconsumequeue", "consumequeue", "index"):
        if files.exists(root / name):
            walk(root / name)
    return found


# ---- numbered messages ---------------------------------------------------------------------------

LOG = ROOT / "commitlog"
MESSAGES = 150  # in five files of the log
BODY = b"0123456789" * 15


def log_file(number: int) -> Path:
    return LOG / f"{number * LOG_FILE_SIZE:020d}"


def new_store(disk: FaultyFileSystem | None = None, **settings: Any) -> CrashStore:
    store = CrashStore(disk or FaultyFileSystem(), **settings)
    store.open()
    return store


def put_some(store: CrashStore, count: int = MESSAGES, first: int = 0, step_ms: int = 100) -> None:
    for number in range(first, first + count):
        store.ticks.ms += step_ms
        properties = {"KEYS": f"k{number}", "TAGS": "TagA"}
        store.put("T", number % 3, b"%d," % number + BODY, properties)


def bodies(numbers: range) -> dict[tuple[str, int], list[bytes]]:
    return {
        ("T", queue_id): [b"%d," % n + BODY for n in numbers if n % 3 == queue_id]
        for queue_id in range(3)
    }


def disk_of(store: CrashStore) -> FaultyFileSystem:
    assert isinstance(store.files, FaultyFileSystem)
    return store.files


def reopened(store: CrashStore, **settings: Any) -> tuple[CrashStore, RecoveryReport]:
    """What the next process finds after a kill, or after an orderly end."""
    after = CrashStore(disk_of(store).kill(), **settings)
    after.ticks.ms = store.ticks.ms + 10_000
    return after, after.open()


def offset_of(store: CrashStore, number: int) -> int:
    """Log offset of a message of put_some."""
    queue = store.queues.get("T", number % 3)
    assert queue is not None
    entry = queue.read_entry(number // 3)
    assert entry is not None
    return entry.log_offset


def overwrite(disk: FaultyFileSystem, log_offset: int, content: bytes) -> None:
    number = log_offset // LOG_FILE_SIZE
    before = disk.read_file(log_file(number))
    position = log_offset % LOG_FILE_SIZE
    after = before[:position] + content + before[position + len(content) :]
    disk.install(log_file(number), after[:LOG_FILE_SIZE])


def state(disk: FaultyFileSystem) -> dict[str, bytes]:
    """Every file of the log and the derived files."""
    files = {entry.name: disk.read_file(LOG / entry.name) for entry in disk.list_directory(LOG)}
    return files | derived_files(disk)


def assert_complete(store: CrashStore, numbers: range = range(MESSAGES)) -> None:
    """All messages are readable, in order, once, and found by key; the next one follows."""
    assert store.messages() == bodies(numbers)
    for number in numbers:
        assert store.keys("T", f"k{number}") == [offset_of(store, number)], number
    assert store.keys("T", f"k{numbers.stop}") == []
    end = store.log.max_offset
    log_offset = store.put("T", 0, b"next", {"KEYS": "next"})
    assert log_offset in (end, end - end % LOG_FILE_SIZE + LOG_FILE_SIZE)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert queue.next_offset == queue.max_offset == len(bodies(numbers)["T", 0]) + 1
    assert store.keys("T", "next") == [log_offset]


def remove_tree(disk: FaultyFileSystem, path: Path) -> None:
    for entry in disk.list_directory(path):
        if entry.is_directory:
            remove_tree(disk, path / entry.name)
        else:
            disk.remove(path / entry.name)
    disk.remove_directory(path)
    disk.sync_directory(path.parent)


def record_time(store: CrashStore, log_offset: int) -> int:
    file = store.log_files.find(log_offset)
    assert file is not None
    with file.lease(log_offset - file.start_offset, 64) as lease:
        return int.from_bytes(lease.view[56:64], "big")
