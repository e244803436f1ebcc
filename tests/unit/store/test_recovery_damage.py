"""Random logs with random damage, kills and power losses: what is left is exactly what is valid.

The oracle reads the bytes of the log record by record with the plain decoder; recovery uses the
vectorised one. The disk in memory (``FaultyFileSystem``) draws what survives a power loss by seed.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import BatchMessage
from skylark.wire.layout import BLANK_RECORD, BLANK_SIZE_MIN, MAGIC_BLANK
from skylark.wire.message import MessageRecord, RecordError, RecordFault, Verify, decode_record
from tests.unit.store.crash_store import LOG_FILE_SIZE, ROOT, CrashStore

LOG = ROOT / "commitlog"
PREPARED, ROLLBACK = 0x4, 0xC
# All bytes of a record are under its checksum.
SEALED: dict[str, Any] = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}


class Put(NamedTuple):
    """A message in the log, and its expected derived entries."""

    log_offset: int
    end: int
    topic: str
    queue_id: int
    body: bytes
    key: str
    visible: bool
    indexed: bool
    raw: bytes  # the record


def raw(store: CrashStore, start: int, end: int) -> bytes:
    lease = store.log.lease(start, end - start)
    assert lease is not None
    with lease:
        return bytes(lease.view)


def put_random(store: CrashStore, stream: random.Random, number: int) -> list[Put]:
    """Put something, in the proportions of a lively store."""
    store.ticks.ms += stream.choice((0, 1, 50, 2_000))
    topic, queue_id = stream.choice(("A", "B", "Topic")), stream.randrange(3)
    size = stream.choice((1, 10, 100, 900, 3_000))
    key = f"key-{number}"
    body = b"%d:" % number + stream.randbytes(size)
    kind = stream.random()
    if kind < 0.1:
        body = body[:1_000]
        parts = [BatchMessage(body, b"KEYS\x01%s-%d\x02" % (key.encode(), n)) for n in range(3)]
        log_offset = store.put_batch(topic, queue_id, parts)
        size = (store.log.max_offset - log_offset) // 3
        return [
            Put(
                at,
                at + size,
                topic,
                queue_id,
                body,
                f"{key}-{n}",
                True,
                True,
                raw(store, at, at + size),
            )
            for n, at in enumerate(range(log_offset, store.log.max_offset, size))
        ]
    if kind < 0.2:
        log_offset = store.put_inner_batch("Batch", 0, [BatchMessage(body, b"")] * 2, KEYS=key)
        end = store.log.max_offset
        stored = store.record(log_offset, end - log_offset).body
        record = raw(store, log_offset, end)
        return [Put(log_offset, end, "Batch", 0, stored, key, True, True, record)]
    sys_flag = stream.choice((PREPARED, ROLLBACK)) if kind < 0.3 else 0
    log_offset = store.put(topic, queue_id, body, {"KEYS": key}, sys_flag=sys_flag)
    end = store.log.max_offset
    record = raw(store, log_offset, end)
    visible, indexed = sys_flag == 0, sys_flag != ROLLBACK
    return [Put(log_offset, end, topic, queue_id, body, key, visible, indexed, record)]


def lacks_bytes(content: bytes, position: int, record: MessageRecord) -> bool:
    """Whether a sound record has zeros where none can be: bytes that were not written."""
    end = position + record.total_size
    properties_start = end - len(record.raw_properties)
    boundaries = range(properties_start + -properties_start % 512, end, 512)
    return (
        record.topic.endswith("\0")
        or record.raw_properties.endswith(b"\0")
        or any(not any(content[at : min(at + 512, end)]) for at in boundaries)
    )


def valid_end(disk: FaultyFileSystem, verify: Verify) -> tuple[int, RecordFault | None]:
    """Where the log on this disk ends, record by record."""
    names = [entry.name for entry in disk.list_directory(LOG) if entry.size]
    for number, name in enumerate(names):
        start = int(name)
        content = disk.read_file(LOG / name)
        position = 0
        while position < len(content):
            if len(content) - position >= BLANK_SIZE_MIN:
                size, magic = BLANK_RECORD.unpack_from(content, position)
                if magic == MAGIC_BLANK:
                    if number == len(names) - 1 and position + size != len(content):
                        return start + position, RecordFault.BAD_SIZE
                    break
            try:
                record = decode_record(content, position, verify=verify, log_start=start)
            except RecordError as error:
                return start + position, error.fault
            if lacks_bytes(content, position, record):
                return start + position, RecordFault.UNWRITTEN
            position += record.total_size
    return int(names[-1]) + LOG_FILE_SIZE if names else 0, None


def assert_exactly(store: CrashStore, puts: list[Put], *, what: object = "") -> None:
    """The readable messages are these, in this order; the index knows these and no others."""
    expected: dict[tuple[str, int], list[bytes]] = {}
    for put in puts:
        if put.visible:
            expected.setdefault((put.topic, put.queue_id), []).append(put.body)
    assert store.messages() == expected, what
    for put in puts:
        found = store.keys(put.topic, put.key)
        assert found == ([put.log_offset] if put.indexed else []), (what, put)
    assert store.index is not None
    last = max((put.log_offset for put in puts if put.indexed), default=0)
    assert store.index.end_offset <= last, what
    for queue in store.queues:
        assert queue.max_log_offset <= store.log.max_offset, what


def disk_of(store: CrashStore) -> FaultyFileSystem:
    assert isinstance(store.files, FaultyFileSystem)
    return store.files


def new_store(seed: int, **settings: Any) -> CrashStore:
    store = CrashStore(FaultyFileSystem(FaultPlan(seed)), **settings)
    store.open()
    return store


# ---- the last record -----------------------------------------------------------------------------


@pytest.mark.spec("store.12.22")
@pytest.mark.parametrize(("tail", "settings"), [(b"\0", {}), (b"\xff", SEALED)])
def test_the_last_record_cut_at_every_byte(tail: bytes, settings: dict[str, Any]) -> None:
    """With zeros and with garbage behind the cut; the queues still lead to the whole record.

    Garbage in properties is noticed only with a checksum over them.
    """
    store = new_store(1, **settings)
    stream = random.Random(1)
    puts = [put for number in range(12) for put in put_random(store, stream, number)]
    body = b"body of the last record"
    last = store.put("Last", 0, body, {"KEYS": "last", "TAGS": "t"})
    end = store.log.max_offset
    whole_put = Put(last, end, "Last", 0, body, "last", True, True, raw(store, last, end))
    store.write_views()
    source = disk_of(store).kill()
    start = last - last % LOG_FILE_SIZE
    name = f"{start:020d}"
    whole = source.read_file(LOG / name)
    assert end - last > 100
    for cut in range(last, end):
        disk = source.kill()
        disk.install(LOG / name, whole[: cut - start].ljust(LOG_FILE_SIZE, tail))
        after = CrashStore(disk, **settings)
        report = after.open()
        # A byte that equals what stood there changes nothing.
        survives = whole[cut - start : end - start] == tail * (end - cut)
        assert report.log_end == (end if survives else last), cut
        assert_exactly(after, [*puts, *([whole_put] if survives else [])], what=cut)
        assert after.put("Last", 0, b"again") == report.log_end


# ---- damage anywhere -----------------------------------------------------------------------------

damages = st.lists(
    st.tuples(
        st.sampled_from(["zero page", "flip", "garbage", "zero rest", "move"]),
        st.floats(0, 1, exclude_max=True),
    ),
    min_size=1,
    max_size=3,
)


def apply_damage(disk: FaultyFileSystem, kind: str, log_offset: int, stream: random.Random) -> None:
    name = f"{log_offset - log_offset % LOG_FILE_SIZE:020d}"
    content = bytearray(disk.read_file(LOG / name))
    position = log_offset % LOG_FILE_SIZE
    if kind == "zero page":
        page = position - position % 512
        content[page : page + 512] = bytes(512)
    elif kind == "flip":
        content[position] ^= 1 << stream.randrange(8)
    elif kind == "garbage":
        size = min(LOG_FILE_SIZE - position, stream.randrange(1, 600))
        content[position : position + size] = stream.randbytes(size)
    elif kind == "zero rest":
        content[position:] = bytes(LOG_FILE_SIZE - position)
    else:  # a sound record where it does not belong
        content[position:] = content[: LOG_FILE_SIZE - position]
    disk.install(LOG / name, bytes(content))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 60), damages, st.booleans())
def test_what_is_left_of_a_damaged_log_is_its_valid_prefix(
    seed: int, count: int, damage: list[tuple[str, float]], index_later: bool
) -> None:
    store = new_store(seed, **SEALED)
    stream = random.Random(seed)
    puts = [put for number in range(count) for put in put_random(store, stream, number)]
    if stream.random() < 0.5:
        store.write_views()
    disk = disk_of(store).kill()
    for kind, place in damage:
        apply_damage(disk, kind, int(place * store.log.max_offset), stream)
    end, fault = valid_end(disk, Verify.PROPERTY)
    after = CrashStore(disk, **SEALED)
    report = after.open(index_later=index_later)
    assert (report.log_end, report.fault) == (end, fault)
    if index_later:
        after.catch_up(2_000)
    survivors = [put for put in puts if put.end <= end]
    assert_exactly(after, survivors)
    # What was cut is gone for good: the log goes on, and a second crash finds nothing old.
    survivors += put_random(after, stream, count)
    again = CrashStore(disk_of(after).kill(), **SEALED)
    again.open()
    assert_exactly(again, survivors)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(1, 60), damages)
def test_the_scan_ends_where_the_plain_decoder_does(
    seed: int, count: int, damage: list[tuple[str, float]]
) -> None:
    """Damage outside of bodies may go unnoticed, and then makes odd entries, but no errors."""
    store = new_store(seed)
    stream = random.Random(seed)
    for number in range(count):
        put_random(store, stream, number)
    disk = disk_of(store).kill()
    for kind, place in damage:
        apply_damage(disk, kind, int(place * store.log.max_offset), stream)
    expected = valid_end(disk, Verify.BODY)
    report = CrashStore(disk).open()
    assert (report.log_end, report.fault) == expected


# ---- kills and power losses ----------------------------------------------------------------------


class Run:
    """Some rounds of work, each ended by a crash, a power loss or an orderly close."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stream = random.Random(seed)
        self.puts: list[Put] = []
        self.number = 0

    def work(self, store: CrashStore) -> int:
        """Put and flush at random; returns the offset before which everything was synced."""
        stream = self.stream
        for _ in range(stream.randrange(1, 40)):
            action = stream.random()
            if action < 0.8:
                self.puts += put_random(store, stream, self.number)
                self.number += 1
            elif action < 0.88:
                store.flush_log()
            elif action < 0.92:
                store.write_views()
            elif action < 0.98:
                store.flush_views()
            else:
                store.ticks.ms -= 30_000  # the clock is set back
        return store.log_files.flushed_where

    def check(self, store: CrashStore, flushed: int, *, all_kept: bool) -> None:
        end = store.log.max_offset
        kept = [put for put in self.puts if put.end <= end]
        for put in kept:
            assert raw(store, put.log_offset, put.end) == put.raw, self.seed
        # Nothing of a record that was not kept may lie before the end.
        assert all(put.log_offset >= end for put in self.puts[len(kept) :]), self.seed
        assert end >= flushed or not self.puts, self.seed
        if all_kept:
            assert kept == self.puts, self.seed
        assert_exactly(store, kept, what=self.seed)
        self.puts = kept

    def play(self, rounds: int) -> None:
        disk = FaultyFileSystem(FaultPlan(self.seed))
        now = 0
        for _ in range(rounds):
            store = CrashStore(disk)
            store.ticks.ms = max(store.ticks.ms, now)
            index_later = self.stream.random() < 0.3
            store.open(index_later=index_later)
            if index_later and self.stream.random() < 0.7:
                store.catch_up(1_500)
            flushed = self.work(store)
            now = store.ticks.ms
            ending = self.stream.random()
            if ending < 0.1:
                store.close()
                disk = disk_of(store)
            elif ending < 0.3:
                disk = disk.kill()
            else:
                disk = disk.power_loss()
            after = CrashStore(disk)
            after.ticks.ms = now
            after.open()
            self.check(after, flushed, all_kept=ending < 0.3)
            disk = disk.kill() if self.stream.random() < 0.5 else disk.power_loss()


@pytest.mark.parametrize("group", range(6))
def test_crash_after_crash(group: int) -> None:
    """What a sync covered is there, what is there is a prefix, and the derived files match it."""
    for seed in range(group * 25, (group + 1) * 25):
        Run(seed).play(3)
