"""A whole store turned by hand, the messages that were put into it, and the check that they agree.

:class:`Machine` is the owner of a :class:`~skylark.store.message_store.MessageStore`: its time, its
queue of posted calls and its four workers move only when the test says so, in one thread. With a
:class:`~skylark.testing.faulty_file_system.FaultyFileSystem` below it, a run depends on its seed
alone.

:class:`Ledger` knows every message in the order of the log, and what must have become of it: after
a crash the log is a prefix of the ledger, and :func:`check_store` compares everything that readers
can ask for with what follows from that prefix: queues with their bounds, entries with their tags
codes, bodies, single records, answers by key. That is what a rebuild of the derived files would
give, and it is computed without any code of the store.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylark.core.hashing import java_hash
from skylark.store.commit_log import Draft
from skylark.store.config import FlushDiskType, StoreConfig
from skylark.store.file_system import FileSystem
from skylark.store.message_store import MessageStore
from skylark.store.retention import OnDelete, local_hour
from skylark.store.store_results import GetStatus, PutResult, PutStatus
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.layout import (
    FLAG_TRANSACTION_COMMIT,
    FLAG_TRANSACTION_PREPARED,
    FLAG_TRANSACTION_ROLLBACK,
    PROPERTY_CRC_SIZE,
)
from skylark.wire.message import MessageRecord, decode_record, iter_records, pack_host
from tests.unit.store.manual_owner import START_MS, ManualOwner

ROOT: Final = Path("/store")
HOST: Final = pack_host("127.0.0.1", 10911)
SMALL: Final[dict[str, Any]] = {
    "mapped_file_size_commit_log": 8192,
    "mapped_file_size_consume_queue": 30 * 20,
    "mapper_file_size_batch_consume_queue": 20 * 46,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
    "commit_log_allocate_ahead": 4096,
    # Far from the machine's time in any time zone: old files go when a test asks for it.
    "delete_when": str((local_hour(START_MS) + 12) % 24),
}
_FIXED_SIZE: Final = 91  # of a record with short hosts: all but topic, body and properties

Queue = tuple[str, int]


class Machine(ManualOwner):
    """Clock, owner's queue and workers of one store; see :mod:`tests.unit.store.manual_owner`."""

    def __init__(self) -> None:
        super().__init__()
        self.skew_ms = 0  # by how much the wall clock was set
        self.workers: dict[str, ManualOwner] = {}

    def now_ms(self) -> int:
        return super().now_ms() + self.skew_ms

    def make_worker(self, name: str) -> ManualOwner:
        self.workers[name] = ManualOwner()
        return self.workers[name]

    @property
    def busy(self) -> list[ManualOwner]:
        """Workers that have something to do."""
        return [worker for worker in self.workers.values() if worker.jobs]

    def settle(self) -> None:
        self.turn()
        while self.busy:
            self.busy[0].work()
            self.turn()

    def store(
        self,
        files: FileSystem,
        root: Path = ROOT,
        *,
        on_delete: OnDelete | None = None,
        **settings: Any,
    ) -> MessageStore:
        """A store of small files on this machine, not opened yet."""
        return MessageStore(
            StoreConfig(store_path_root_dir=root, **{**SMALL, **settings}),
            store_host=HOST,
            scheduler=self,
            post=self.post,
            files=files,
            on_delete=on_delete,
            make_worker=self.make_worker,
        )

    def opened(self, files: FileSystem, root: Path = ROOT, **settings: Any) -> MessageStore:
        """The same, opened and started."""
        store = self.store(files, root, **settings)
        store.open()
        store.start()
        return store

    def close(self, store: MessageStore) -> None:
        """Let everybody finish, and close."""
        self.settle()
        store.close()
        self.turn()


class Message(NamedTuple):
    """One record, as it must be found again."""

    queue: Queue
    queue_offset: int
    log_offset: int
    size: int
    sys_flag: int
    body: bytes
    tag: str
    unique_id: str

    @property
    def end(self) -> int:
        return self.log_offset + self.size

    @property
    def visible(self) -> bool:
        """Whether consumers see it."""
        return self.sys_flag not in (FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK)

    @property
    def indexed(self) -> bool:
        return self.sys_flag != FLAG_TRANSACTION_ROLLBACK


class Content(NamedTuple):
    """What a message is made of."""

    body: bytes
    tag: str
    unique_id: str

    @property
    def properties(self) -> bytes:
        tags = f"TAGS\x01{self.tag}\x02" if self.tag else ""
        return f"UNIQ_KEY\x01{self.unique_id}\x02{tags}".encode()


class Ledger:
    """All messages of a store, in the order of the log."""

    def __init__(self, rng: random.Random, *, property_crc: bool = False) -> None:
        self.messages: list[Message] = []
        self._rng = rng
        self._serial = 0
        self._crc_size = PROPERTY_CRC_SIZE if property_crc else 0
        self.numbers: dict[Queue, int] = {}  # queue offset of the next message
        self.log_end = 0  # where the log ends, blanks included

    def content(self, body_size_max: int = 300) -> Content:
        """A message that differs from all others, without a place yet."""
        self._serial += 1
        rng = self._rng
        filling = rng.randbytes(rng.randrange(body_size_max))
        tag = rng.choice(("", "TagA", "TagB"))
        return Content(b"%d:" % self._serial + filling, tag, f"7F000001{self._serial:024X}")

    def put(
        self, store: MessageStore, queue: Queue, content: Content | None = None, sys_flag: int = 0
    ) -> PutResult:
        """Put one message and note it if it was stored."""
        content = content or self.content()
        draft = Draft(*queue, content.body, content.properties, sys_flag=sys_flag, born_host=HOST)
        result = store.put(draft)
        if result.status is PutStatus.PUT_OK:
            self._note(queue, [content], result, sys_flag)
        return result

    def put_batch(
        self, store: MessageStore, queue: Queue, contents: list[Content] | None = None
    ) -> PutResult:
        """Put a batch and note its messages if it was stored."""
        if contents is None:
            contents = [self.content() for _ in range(self._rng.randint(1, 6))]
        batch = Batch.of([BatchMessage(it.body, it.properties) for it in contents])
        result = store.put_batch(Draft(*queue, b"", born_host=HOST), batch)
        if result.status is PutStatus.PUT_OK:
            self._note(queue, contents, result, 0)
        return result

    def put_any(self, store: MessageStore, queue: Queue) -> PutResult:
        """Put something, now and then of a transaction."""
        if self._rng.random() < 0.25:
            return self.put_batch(store, queue)
        kinds = (FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK, FLAG_TRANSACTION_COMMIT)
        sys_flag = self._rng.choice(kinds) if self._rng.random() < 0.15 else 0
        return self.put(store, queue, sys_flag=sys_flag)

    def _note(
        self, queue: Queue, contents: list[Content], result: PutResult, sys_flag: int
    ) -> None:
        hidden = sys_flag in (FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK)
        first = 0 if hidden else self.numbers.get(queue, 0)
        assert result.message_count == len(contents)
        assert result.queue_offset == first, (queue, result)
        assert result.log_offset >= self.log_end, (result, self.log_end)
        log_offset = result.log_offset
        for number, content in enumerate(contents):
            size = _FIXED_SIZE + len(queue[0]) + len(content.body) + len(content.properties)
            size += self._crc_size
            self.messages.append(
                Message(queue, first + number, log_offset, size, sys_flag, *content)
            )
            log_offset += size
        assert log_offset == result.next_offset
        self.log_end = log_offset
        if not hidden:
            self.numbers[queue] = first + len(contents)

    def cut(self, log_end: int) -> None:
        """Forget what a crash has taken: all from an offset on, which must lie between records."""
        kept = [it for it in self.messages if it.log_offset < log_end]
        assert not kept or kept[-1].end <= log_end, f"cut at {log_end} within {kept[-1]}"
        for lost in self.messages[len(kept) :]:
            if lost.visible:
                self.numbers[lost.queue] = min(self.numbers[lost.queue], lost.queue_offset)
        self.messages = kept
        self.log_end = log_end

    def find(self, queue: Queue, log_min: int = 0) -> list[Message]:
        """The visible messages of a queue that the log still has."""
        return [
            it
            for it in self.messages
            if it.queue == queue and it.visible and it.log_offset >= log_min
        ]


def sync_flush(on: bool) -> dict[str, Any]:
    """The setting for a store that waits, or does not wait, for the disk."""
    return {"flush_disk_type": FlushDiskType.SYNC_FLUSH if on else FlushDiskType.ASYNC_FLUSH}


# ---- reading -------------------------------------------------------------------------------------


def records_of(views: Iterable[memoryview]) -> list[MessageRecord]:
    """The records in memory views of the log."""
    return [record for view in views for record in iter_records(bytes(view))]


def read_queue(store: MessageStore, queue: Queue, start: int | None = None) -> list[MessageRecord]:
    """All messages of a queue, read as a consumer does."""
    offset = store.reader.min_offset(*queue) if start is None else start
    records: list[MessageRecord] = []
    while True:
        result = store.reader.get(*queue, offset, 32)
        if result.status is not GetStatus.FOUND:
            result.release()
            assert offset == store.reader.max_offset(*queue), (queue, offset, result.status)
            return records
        records += records_of(result.views)
        assert result.next_offset == offset + result.message_count
        offset = result.next_offset
        result.release()


def bodies(store: MessageStore, queue: Queue) -> list[bytes]:
    """The bodies of a queue."""
    return [record.body for record in read_queue(store, queue)]


# ---- checking ------------------------------------------------------------------------------------


def check_store(store: MessageStore, ledger: Ledger) -> None:
    """Everything that can be asked of the store equals what the ledger says; nothing waits."""
    for queue in sorted({*ledger.numbers, *((it.topic, it.queue_id) for it in store.queues)}):
        _check_queue(store, ledger, queue)
    assert store.index is None or store.index.behind_from is None
    for message in ledger.messages:
        if message.log_offset >= store.log.min_offset:
            _check_record(store, message)
            if store.index is not None:
                _check_index(store, message)


def _check_queue(store: MessageStore, ledger: Ledger, queue: Queue) -> None:
    next_offset = ledger.numbers.get(queue, 0)
    expected = ledger.find(queue, store.log.min_offset)
    first = expected[0].queue_offset if expected else next_offset
    found = store.queues.get(*queue)
    if found is None:
        assert next_offset == 0, f"{queue} has lost its numbering at {next_offset}"
        return
    if not ledger.find(queue) and found.min_offset == found.max_offset > next_offset:
        # All its messages are lost, but the name of a later file is not: numbers are left out.
        next_offset = first = ledger.numbers[queue] = found.max_offset
    assert found.max_offset == found.next_offset == next_offset, queue
    assert found.min_offset == first, queue
    records = read_queue(store, queue)
    assert [(it.queue_offset, it.log_offset, it.body) for it in records] == [
        (it.queue_offset, it.log_offset, it.body) for it in expected
    ], queue
    for message in expected:
        entry = found.read_entry(message.queue_offset)
        assert entry is not None
        tags_code = java_hash(message.tag) if message.tag else 0
        assert entry[1:4] == (message.log_offset, message.size, tags_code), queue


def _check_record(store: MessageStore, message: Message) -> None:
    lease = store.reader.record(message.log_offset)
    assert lease is not None, message
    with lease:
        record = decode_record(lease.view, log_start=message.log_offset)
    assert (record.topic, record.queue_id) == message.queue
    assert (record.body, record.total_size) == (message.body, message.size)


def _check_index(store: MessageStore, message: Message) -> None:
    result = store.reader.query(message.queue[0], message.unique_id, 32)
    found = [record.log_offset for record in records_of(result.views)]
    result.release()
    assert found == ([message.log_offset] if message.indexed else []), message
