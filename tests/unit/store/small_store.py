"""A store of small files put together by hand: log, queues, index, putter and reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skylark.store.allocator import Allocator
from skylark.store.checkpoint import AbortFile, Checkpoint
from skylark.store.commit_log import CommitLog, Draft
from skylark.store.config import StoreConfig
from skylark.store.consume_queue import ConsumeQueue
from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.file_sequence import MappedFiles
from skylark.store.file_system import FileSystem
from skylark.store.index import IndexService
from skylark.store.message_reader import GetResult, Reader
from skylark.store.put_message import Putter
from skylark.store.queue_registry import ConsumeQueues
from skylark.store.recovery import StoreParts
from skylark.store.reput import Reput, TagsCodes
from skylark.store.running_flags import RunningFlags
from skylark.store.store_results import GetStatus, PutResult, PutStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.message import MessageRecord, iter_records, pack_host
from tests.unit.store.manual_owner import ManualOwner

ROOT = Path("/store")
FILE_SIZE = 16 << 10
QUEUE_FILE_ENTRIES = 1_000
HOST = pack_host("127.0.0.1", 10911)
ALL_RAM = 1 << 40  # everything counts as in memory


class SmallStore:
    """Everything a reader and a retention need; time stands still unless ``owner`` move it."""

    def __init__(
        self,
        files: FileSystem,
        root: Path,
        *,
        ram_size: int = ALL_RAM,
        index_slots: int = 100,
        index_entries: int = 400,
        **settings: Any,
    ) -> None:
        settings = {
            "mapped_file_size_commit_log": FILE_SIZE,
            "mapped_file_size_consume_queue": QUEUE_FILE_ENTRIES * 20,
            **settings,
        }
        self.owner = ManualOwner()
        self.files = files
        self.config = StoreConfig(store_path_root_dir=root, **settings)
        self.dirty_ranges = DirtyRanges(files)
        self.log = CommitLog(
            MappedFiles(
                self.config.commit_log_path,
                self.config.mapped_file_size_commit_log,
                files=files,
                allocator=Allocator(files),
            ),
            self.owner,
            HOST,
        )
        self.queues = ConsumeQueues(
            files, root, self.dirty_ranges, queue_file_size=self.config.consume_queue_file_size
        )
        self.index = IndexService(
            files,
            root / "index",
            self.dirty_ranges,
            self.owner,
            slot_count=index_slots,
            entry_count_max=index_entries,
        )
        self.flags = RunningFlags()
        self.dispatch = Reput(self.index, TagsCodes())
        self.putter = Putter(self.config, self.log, self.queues, self.dispatch, self.flags)
        self.reader = self.make_reader(ram_size=ram_size)
        self.checkpoint = Checkpoint(files, root)
        self.parts = StoreParts(
            files=files,
            config=self.config,
            log=self.log.files,
            queues=self.queues,
            index=self.index,
            tags_codes=TagsCodes(),
            checkpoint=self.checkpoint,
            abort=AbortFile(files, root),
            scheduler=self.owner,
        )

    def make_reader(self, *, ram_size: int = ALL_RAM, **settings: Any) -> Reader:
        """Another reader of the same store, with other settings."""
        known = {key: getattr(self.config, key) for key in type(self.config).__struct_fields__}
        config = StoreConfig(**{**known, **settings})
        return Reader(
            config,
            self.log,
            self.queues,
            self.index,
            self.flags,
            ram_size=ram_size,
            dispatched_until=lambda: self.log.max_offset,
        )

    def put(
        self, body: bytes = b"body", topic: str = "T", queue_id: int = 0, **properties: str
    ) -> PutResult:
        """Store a message, which must work."""
        result = self.try_put(body, topic, queue_id, **properties)
        assert result.status is PutStatus.PUT_OK
        return result

    def try_put(
        self, body: bytes = b"body", topic: str = "T", queue_id: int = 0, **properties: str
    ) -> PutResult:
        raw = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        return self.putter.put(
            Draft(
                topic,
                queue_id,
                body,
                raw.encode(),
                born_timestamp=self.owner.now_ms(),
                born_host=HOST,
            )
        )

    def lease_count(self) -> int:
        return sum(file.leases for file in self.log.files.files)


def records(result: GetResult) -> list[MessageRecord]:
    """The records of a result, which is released."""
    found = [record for view in result.views for record in iter_records(bytes(view))]
    assert result.size == sum(record.total_size for record in found)
    result.release()
    return found


def bodies(result: GetResult) -> list[bytes]:
    return [record.body for record in records(result)]


def offsets(result: GetResult) -> list[int]:
    return [record.queue_offset for record in records(result)]


def outcome(result: GetResult) -> tuple[GetStatus, int, int]:
    return result.status, result.next_offset, result.message_count


def memory_store(**settings: Any) -> SmallStore:
    """A store on a disk in memory."""
    files = FaultyFileSystem()
    files.make_directories(ROOT)
    return SmallStore(files, ROOT, **settings)


def retire_first_file(store: SmallStore) -> int:
    """Delete the first file of the log but leave the queues as they are; the queue offset."""
    store.log.files.sync()
    retired = store.log.files.retire_oldest(store.owner.monotonic())
    assert retired is not None
    queue = store.queues.get_or_create("T", 0)
    log_min = store.log.min_offset
    return next(i for i in range(queue.max_offset) if log_offset_of(queue, i) >= log_min)


def log_offset_of(queue: ConsumeQueue, offset: int) -> int:
    entry = queue.read_entry(offset)
    assert entry is not None
    return entry.log_offset


def draft(topic: str, born_host: bytes, properties: bytes) -> Draft:
    return Draft(topic, 0, b"body", properties, born_host=born_host)
