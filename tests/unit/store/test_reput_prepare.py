"""Records that are indexed while the disk is busy: what queries see, and what crashes leave."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from skylark.store.commit_log import Draft
from skylark.store.log_replay import LogScan
from skylark.store.message_reader import Reader
from skylark.store.put_message import Putter
from skylark.store.reput import HIDDEN_KINDS, Reput, TagsCodes
from skylark.store.running_flags import RunningFlags
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK
from skylark.wire.message import MessageRecord, decode_record, iter_records
from tests.unit.store.crash_store import CrashStore
from tests.unit.store.small_store import ALL_RAM, HOST, memory_store

KEYS = "abcdef"
SYS_FLAGS = (0, 0, 0, 8, 4, 12)


def keyed(body: bytes, keys: str) -> Draft:
    return Draft("T", 0, body, f"KEYS\x01{keys}\x02".encode(), born_host=HOST)


@pytest.mark.parametrize("count_max", [1, 4, 64])
def test_a_query_finds_only_readable_records_while_others_wait_for_the_disk(count_max: int) -> None:
    store = memory_store()
    dispatch = Reput(store.index, TagsCodes(), after_flush=True)
    putter = Putter(store.config, store.log, store.queues, dispatch, store.flags)
    reader = Reader(
        store.config,
        store.log,
        store.queues,
        store.index,
        store.flags,
        ram_size=ALL_RAM,
        dispatched_until=lambda: dispatch.dispatched_until,
    )

    def found() -> list[bytes]:
        result = reader.query("T", "k", count_max)
        bodies = [record.body for view in result.views for record in iter_records(bytes(view))]
        result.release()
        return bodies

    old = [b"old %d" % number for number in range(10)]
    new = [b"new %d" % number for number in range(70)]
    putter.put_run([keyed(body, "k") for body in old])
    dispatch.release(store.log.max_offset)
    putter.put_run([keyed(body, "k") for body in new])
    dispatch.prepare(store.log.max_offset)
    assert found() == old[-count_max:]
    dispatch.release(store.log.max_offset)
    assert found() == new[-count_max:]


# ---- crashes -------------------------------------------------------------------------------------


def opened(disk: FaultyFileSystem, *, after_flush: bool) -> CrashStore:
    """Files so small that most runs go beyond the end of one."""
    store = CrashStore(
        disk,
        after_flush=after_flush,
        max_index_num=40,
        max_hash_slot_num=7,
        mapped_file_size_commit_log=4_096,
        consume_queue_tail_size_max=200,
        consume_queue_recent_size=200,
    )
    store.open()
    return store


def log_records(store: CrashStore) -> Iterator[MessageRecord]:
    scan = LogScan(store.log_files, store.log.min_offset)
    while (columns := scan.next(store.log.max_offset)) is not None:
        for position in columns.position.tolist():
            yield decode_record(columns.buffer, position)


def check(store: CrashStore) -> None:
    """The derived files have exactly the entries of the records of the log."""
    queues: dict[tuple[str, int], list[bytes]] = {}
    offsets: dict[str, list[int]] = {key: [] for key in KEYS}
    for record in log_records(store):
        kind = record.sys_flag & FLAG_TRANSACTION_MASK
        if kind not in HIDDEN_KINDS:
            queues.setdefault((record.topic, record.queue_id), []).append(record.body)
        if kind != FLAG_TRANSACTION_ROLLBACK:
            for key in record.properties.get("KEYS", "").split():
                offsets[key].append(record.log_offset)
    assert store.messages() == queues
    for key in KEYS:
        assert store.keys("T", key) == offsets[key][-64:]


def drafts(stream: random.Random) -> list[Draft]:
    """A run of messages with some keys each."""
    made = []
    for _ in range(stream.randint(1, 12)):
        body = b"%d" % stream.randrange(10**9) * stream.randint(1, 20)
        draft = keyed(body, " ".join(sorted(stream.sample(KEYS, stream.randint(1, 4)))))
        draft.queue_id = stream.choice((0, 0, 0, 1))
        draft.sys_flag = stream.choice(SYS_FLAGS)
        made.append(draft)
    return made


def work(store: CrashStore, stream: random.Random, *, after_flush: bool) -> int:
    """Put, index ahead and flush at random; up to where the log is surely on disk."""
    putter = Putter(store.config, store.log, store.queues, store.dispatch, RunningFlags())
    on_disk = store.log_files.flushed_where
    for _ in range(stream.randint(1, 25)):
        match stream.choices(
            ("put", "prepare", "log", "derived", "write", "wait"), (10, 3, 3, 2, 1, 1)
        ):
            case ["put"]:
                assert all(result.status.stored for result in putter.put_run(drafts(stream)))
            case ["prepare"] if after_flush:
                store.dispatch.prepare(store.log.max_offset)
            case ["log"]:
                store.flush_log()
                on_disk = store.log_files.flushed_where
            case ["derived"]:
                store.flush_views()
            case ["write"]:
                store.write_views()
            case ["wait"]:
                store.ticks.ms += stream.choice((1, 900, 20_000))
    return on_disk


@pytest.mark.parametrize("after_flush", [False, True])
@pytest.mark.parametrize("group", range(4))
def test_runs_and_crashes(group: int, after_flush: bool) -> None:
    for seed in range(10 * group, 10 * group + 10):
        stream = random.Random(seed)
        disk = FaultyFileSystem(FaultPlan(seed))
        for _ in range(3):
            store = opened(disk, after_flush=after_flush)
            on_disk = work(store, stream, after_flush=after_flush)
            disk = disk.kill() if stream.random() < 0.5 else disk.power_loss()
            store = opened(disk, after_flush=after_flush)
            assert store.log.max_offset >= on_disk
            check(store)
            disk = disk.kill()
