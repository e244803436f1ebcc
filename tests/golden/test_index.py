"""The index against that of a real broker (RocketMQ 5.5.0, Java).

The index files come out of the log byte for byte, with 100 slots and 400 entries as the broker had
them, and queries answer as it did (``data/expected``, ``data/frames/query.jsonl``).
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from skylark.store.dirty_ranges import DirtyRanges
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.store.index import IndexHits, IndexService
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.frame import decode_frame
from skylark.wire.message import MessageRecord, Verify, iter_records
from skylark.wire.properties import find_raw_property
from tests.support.records import plain_records

DATA = Path(__file__).parent / "data"
ROLLBACK = 0xC
LOG_END = {"store-basic": 124586, "store-crashed": 144910, "store-torn": 142909}


class Now:
    def now_ms(self) -> int:
        return 1_794_710_094_531

    def monotonic(self) -> float:
        return 0.0


def records(store: str) -> list[MessageRecord]:
    log = b"".join(file.read_bytes() for file in sorted((DATA / store / "commitlog").iterdir()))
    found, _, end = plain_records(log, verify=Verify.BODY, log_start=0)
    assert end == LOG_END[store]
    return found


def expected(name: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "expected" / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def open_index(files: FileSystem, directory: Path) -> IndexService:
    dirty_ranges = DirtyRanges(files)
    return IndexService(files, directory, dirty_ranges, Now(), slot_count=100, entry_count_max=400)


def put(index: IndexService, record: MessageRecord) -> None:
    if record.sys_flag & ROLLBACK != ROLLBACK:
        index.put_record(
            record.topic,
            record.log_offset,
            record.store_timestamp,
            find_raw_property(record.raw_properties, b"UNIQ_KEY"),
            find_raw_property(record.raw_properties, b"KEYS"),
            find_raw_property(record.raw_properties, b"TAGS"),
        )


def assert_answers_as_java(index: IndexService, store: str) -> None:
    queries = expected(f"{store}.index")
    for line in queries:
        hits = index.query(line["topic"], line["key"])
        assert hits.log_offsets == line["storeOffsets"], (line["topic"], line["key"])
        if line["code"] == 0:
            assert hits.last_log_offset == int(line["ext"]["indexLastUpdatePhyoffset"])
            assert hits.last_timestamp == int(line["ext"]["indexLastUpdateTimestamp"])
    assert len(queries) > 30


def test_index_files_are_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    index = open_index(OsFileSystem(), tmp_path / "index")
    for record in records("store-basic"):
        put(index, record)
    assert index.error is None
    assert index.file_count == 4
    index.flush()
    index.close()
    java = [file.read_bytes() for file in sorted((DATA / "store-basic/index").iterdir())]
    assert [file.read_bytes() for file in sorted((tmp_path / "index").iterdir())] == java


@pytest.mark.parametrize("store", ["store-basic", "store-crashed"])
@pytest.mark.spec("store.12.17")
def test_queries_answer_as_java_does(store: str) -> None:
    disk = FaultyFileSystem()
    disk.copy_in(DATA / store / "index", Path("/index"))
    index = open_index(disk, Path("/index"))
    index.load(clean=True)
    assert_answers_as_java(index, store)


def test_java_may_go_on_where_we_stopped_and_the_other_way_round(tmp_path: Path) -> None:
    """The last files of the broker, continued by us from any record, equal those of the broker."""
    java = [file.read_bytes() for file in sorted((DATA / "store-basic/index").iterdir())]
    disk = FaultyFileSystem()
    disk.copy_in(DATA / "store-basic/index", Path("/index"))
    index = open_index(disk, Path("/index"))
    index.load(clean=False)
    store_times = {record.log_offset: record.store_timestamp for record in records("store-basic")}
    index.recover(70_000, store_times.get)
    assert index.end_offset < 70_000
    for record in records("store-basic"):
        put(index, record)
    index.flush()
    index.close()
    disk.copy_out(Path("/index"), tmp_path)
    assert [file.read_bytes() for file in sorted(tmp_path.iterdir())] == java


@pytest.mark.parametrize("store", ["store-crashed", "store-torn"])
@pytest.mark.parametrize("scan_start", [0, 65536, 131072])
def test_a_crashed_store_recovers_to_what_java_reports(store: str, scan_start: int) -> None:
    disk = FaultyFileSystem()
    disk.copy_in(DATA / store / "index", Path("/index"))
    index = open_index(disk, Path("/index"))
    index.load(clean=False)
    store_times = {record.log_offset: record.store_timestamp for record in records(store)}
    index.recover(scan_start, store_times.get)
    for record in records(store):
        if record.log_offset >= scan_start:
            put(index, record)
    assert_answers_as_java(index, store)


def test_queries_of_a_client() -> None:
    """The recorded questions by key, unique id and tag find as many messages as Java found."""
    frames = [json.loads(line) for line in (DATA / "frames/query.jsonl").read_text().splitlines()]
    answers = {
        (frame["conn"], frame["opaque"]): decode_frame(base64.b64decode(frame["raw"]))
        for frame in frames
        if frame.get("request_code") == 12
    }
    found = [
        record
        for answer in answers.values()
        for record in iter_records(answer.body or b"")
        if answer.code == 0
    ]
    index = open_index(FaultyFileSystem(), Path("/index"))
    for record in sorted({record.log_offset: record for record in found}.values(), key=_offset):
        put(index, record)
    assert len(answers) == 10
    kinds = set()
    for frame in frames:
        if frame["code"] == 12 and not frame["response"]:
            fields = frame["header"]["extFields"]
            answer = answers[frame["conn"], frame["opaque"]]
            hits = index.query(
                fields["topic"],
                fields["key"],
                int(fields["maxNum"]),
                int(fields["beginTimestamp"]),
                int(fields["endTimestamp"]),
                fields.get("indexType"),
            )
            assert isinstance(hits, IndexHits)
            expected_offsets = [record.log_offset for record in iter_records(answer.body or b"")]
            assert hits.log_offsets == expected_offsets, fields
            assert bool(hits.log_offsets) == (answer.code == 0)
            kinds.add(fields.get("indexType"))
    assert kinds == {None, "K", "U", "T"}


def _offset(record: MessageRecord) -> int:
    return record.log_offset
