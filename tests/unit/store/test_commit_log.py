"""The commit log: records in place, the blank at the end of a file, batches, failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.core.errors import StoreError
from skylark.store.allocator import Allocator
from skylark.store.commit_log import CommitLog, Draft, TopicField, topic_field
from skylark.store.errors import StoreFullError
from skylark.store.file_sequence import MappedFiles
from skylark.store.files import OsFileSystem
from skylark.store.store_results import PutResult
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from skylark.wire.message import Verify, decode_record, pack_host
from tests.unit.store.manual_owner import ManualOwner

HOST = pack_host("127.0.0.1", 10911)
HOST_V6 = pack_host("::1", 10911)
TOPIC = topic_field("TopicTest")
PROPERTIES = b"TAGS\x01TagA\x02"


def append(log: CommitLog, draft: Draft, topic: TopicField, queue_offset: int) -> PutResult:
    return log.append(draft, topic, queue_offset, log.now_ms())


def make_log(root: Path, *, file_size: int = 4096, **options: bool) -> CommitLog:
    system = OsFileSystem()
    files = MappedFiles(root / "log", file_size, files=system, allocator=Allocator(system))
    files.load()
    return CommitLog(files, ManualOwner(), HOST, **options)


def draft(body: bytes = b"Hello", **fields: object) -> Draft:
    values = {"properties": PROPERTIES, "born_host": HOST, **fields}
    return Draft("TopicTest", 1, body, **values)  # type: ignore[arg-type]


def test_a_record_is_at_its_offset_with_its_fields(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    message = draft(flag=3, born_timestamp=17, reconsume_times=2, prepared_transaction_offset=5)
    first = append(log, message, TOPIC, 7)
    second = append(log, draft(b"World"), TOPIC, 8)
    assert (first.log_offset, first.size) == (0, 115)
    assert (second.log_offset, log.max_offset) == (115, 230)
    record = decode_record(log.files.last.buffer, 0, 230, verify=Verify.BODY, log_start=0)
    assert (record.topic, record.queue_id, record.queue_offset) == ("TopicTest", 1, 7)
    assert (record.flag, record.born_timestamp, record.reconsume_times) == (3, 17, 2)
    assert record.prepared_transaction_offset == 5
    assert (record.store_timestamp, record.store_host) == (first.store_timestamp, HOST)
    assert record.properties == {"TAGS": "TagA"}
    assert log.last_store_timestamp == second.store_timestamp


def test_ipv6_hosts_and_long_topics_set_their_own_bits(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    appended = append(log, draft(born_host=HOST_V6, sys_flag=0x30), TOPIC, 0)
    record = decode_record(log.files.last.buffer, 0, appended.size)
    assert record.sys_flag == 0x10  # the store host is IPv4, also if the sender claims IPv6
    assert record.born_host == HOST_V6
    long_topic = "%RETRY%" + "g" * 123
    appended = append(log, draft(), topic_field(long_topic), 0)
    record = decode_record(log.files.last.buffer, appended.log_offset, log.max_offset)
    assert (record.magic, record.topic) == (MAGIC_V2, long_topic)
    assert topic_field("t" * 127).magic == MAGIC_V1


def test_property_checksums_are_sealed(tmp_path: Path) -> None:
    log = make_log(tmp_path, property_crc=True)
    appended = append(log, draft(), TOPIC, 7)
    assert appended.size == 135
    decode_record(log.files.last.buffer, 0, 135, verify=Verify.PROPERTY)
    two = Batch.of([BatchMessage(b"x1"), BatchMessage(b"x2", PROPERTIES)])
    for log_offset in log.append_batch(draft(b""), TOPIC, 8, two, log.now_ms())[0]:
        decode_record(log.files.last.buffer, log_offset, verify=Verify.PROPERTY)


@pytest.mark.spec("store.12.11")
@pytest.mark.parametrize(("room", "rolls"), [(123, False), (122, True)])
def test_a_record_needs_eight_bytes_more(tmp_path: Path, room: int, rolls: bool) -> None:
    log = make_log(tmp_path)
    filler = 4096 - room
    append(log, draft(bytes(filler - 110)), TOPIC, 0)
    assert log.files.last.wrote == filler
    appended = append(log, draft(), TOPIC, 1)
    if not rolls:
        assert appended.log_offset == filler
        return
    assert appended.log_offset == 4096
    full = log.files.files[0]
    assert full.wrote == full.size
    assert BLANK_RECORD.unpack_from(full.buffer, filler) == (122, MAGIC_BLANK)


def test_a_batch_stays_together(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, draft(bytes(4096 - 110 - 300)), TOPIC, 0)  # room for two of three
    messages = [BatchMessage(b"x%d" % number, PROPERTIES, number) for number in range(3)]
    log_offsets, sizes = log.append_batch(
        draft(b"", sys_flag=0), TOPIC, 4, Batch.of(messages), log.now_ms()
    )
    assert list(log_offsets) == [4096, 4096 + 112, 4096 + 224]
    assert list(sizes) == [112, 112, 112]
    position = 0
    for number in range(3):
        record = decode_record(log.files.last.buffer, position, log_start=4096)
        assert (record.queue_offset, record.flag, record.body) == (
            4 + number,
            number,
            b"x%d" % number,
        )
        position += record.total_size


def test_a_record_larger_than_a_file_is_an_error_and_leaves_no_trace(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, draft(), TOPIC, 0)
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        append(log, draft(bytes(4096)), TOPIC, 1)
    assert log.max_offset == 115
    assert append(log, draft(), TOPIC, 1).log_offset == 115


@pytest.mark.spec("store.12.15")
def test_a_failed_append_changes_nothing() -> None:
    system = FaultyFileSystem(capacity=3 * 4096)
    root = Path("/store")
    system.make_directories(root)
    files = MappedFiles(root / "log", 4096, files=system, allocator=Allocator(system))
    files.load()
    log = CommitLog(files, ManualOwner(), HOST)
    for number in range(20):
        before = log.max_offset
        try:
            append(log, draft(bytes(1000)), TOPIC, number)
        except StoreFullError:
            break
    else:
        raise AssertionError("the disk never filled up")
    assert log.max_offset == before
    assert len(files.files) == 3
    system.capacity = 1 << 30
    assert append(log, draft(bytes(1000)), TOPIC, number).log_offset == files.files[3].start_offset


def test_leases_and_what_is_gone(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    append(log, draft(), TOPIC, 0)
    lease = log.lease(0, 115)
    assert lease is not None
    assert len(lease.view) == 115
    lease.release()
    assert log.lease(0, 116) is None
    assert log.lease(99_999, 1) is None
