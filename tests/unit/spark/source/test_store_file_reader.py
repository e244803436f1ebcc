"""Reading store files: complete ones, missing ones, and ones with other content."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.core.hashing import java_hash
from skylark.spark.source import store_file_reader as file_mode
from skylark.spark.source.partition_reader import tag_list
from skylark.spark.source.store_file_reader import StoreReader, UnusableFilesError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.layout import CQ_ENTRY
from skylark.wire.message import encode_record

QUEUE = MessageQueue(topic="T", broker_name="b", queue_id=3)
FILE_SIZE = 1000
QUEUE_FILE_SIZE = 200  # ten entries


def record(queue_offset: int, log_offset: int, queue_id: int = 3, size: int = 50) -> bytes:
    return encode_record(
        "T",
        bytes([queue_offset % 256]) * size,
        b"",
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        born_timestamp=1,
        born_host=bytes(8),
        store_timestamp=2,
        store_host=bytes(8),
    )


class Written:
    """A store with messages of two queues; tags alternate."""

    def __init__(self, root: Path, count: int = 35) -> None:
        self.root = root
        self.records: list[bytes] = []
        self.positions: list[int] = []
        log = bytearray()
        entries = bytearray()
        for offset in range(count):
            for queue_id in (3, 4):
                size = len(record(offset, 0, queue_id))
                if FILE_SIZE - len(log) % FILE_SIZE < size + 8:  # the rest of the file is blank
                    log += bytes(FILE_SIZE - len(log) % FILE_SIZE)
                each = record(offset, len(log), queue_id)
                if queue_id == 3:
                    self.records.append(each)
                    self.positions.append(len(log))
                    code = java_hash("AB"[offset % 2])
                    entries += CQ_ENTRY.pack(len(log), size, code)
                log += each
        self._write(root / "commitlog", log, FILE_SIZE)
        self._write(root / "consumequeue" / "T" / "3", entries, QUEUE_FILE_SIZE)

    def _write(self, folder: Path, content: bytearray, size: int) -> None:
        folder.mkdir(parents=True)
        for start in range(0, len(content), size):
            part = bytes(content[start : start + size]).ljust(size, b"\0")
            (folder / f"{start:020}").write_bytes(part)

    def read(self, start: int, end: int, *tags: str) -> tuple[bytes, int, str]:
        """What is read, where it ends, and why."""
        body, stop, why = b"", start, ""
        with StoreReader(self.root, QUEUE, tags) as reader:
            try:
                for chunk in reader.read(start, end):
                    body, stop = body + chunk.body, chunk.next_offset
            except UnusableFilesError as error:
                why = str(error)
        return body, stop, why


@pytest.fixture(params=[1 << 20, 300, 1])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Written:
    monkeypatch.setattr(file_mode, "READ_SIZE_MAX", request.param)
    monkeypatch.setattr(file_mode, "GAP_MAX", request.param)
    monkeypatch.setattr(file_mode, "ENTRY_COUNT", 7)
    return Written(tmp_path)


@pytest.mark.parametrize(("start", "end"), [(0, 35), (3, 11), (34, 35), (5, 5)])
def test_a_range(store: Written, start: int, end: int) -> None:
    body, stop, why = store.read(start, end)
    assert body == b"".join(store.records[start:end])
    assert (stop, why) == (end, "")


def test_tags_by_their_code(store: Written) -> None:
    assert store.read(0, 35, "B") == (b"".join(store.records[1::2]), 35, "")
    assert store.read(0, 35, "A", "B") == (b"".join(store.records), 35, "")
    assert store.read(0, 35, "C") == (b"", 35, "")


def test_entries_that_are_not_written_yet(store: Written) -> None:
    body, stop, why = store.read(30, 50)  # the file has five entries more, of zeros
    assert body == b"".join(store.records[30:])
    assert (stop, why) == (35, f"{QUEUE} is written up to offset 35 only")
    body, stop, why = store.read(45, 50)
    assert (body, stop) == (b"", 45)
    assert "ends before position 900" in why


def test_a_missing_log_is_an_error(store: Written) -> None:
    (store.root / "commitlog" / f"{0:020}").unlink()
    body, stop, why = store.read(0, 5)
    assert (body, stop) == (b"", 0)
    assert "position 0 of" in why
    gone = next(n for n, position in enumerate(store.positions) if position >= FILE_SIZE)
    assert store.read(gone, 35)[0] == b"".join(store.records[gone:])


@pytest.mark.parametrize("field_position", [0, 4, 12, 20, 28])
def test_a_record_that_does_not_match_its_entry(store: Written, field_position: int) -> None:
    """Size, magic, queue, queue offset and position are all compared."""
    position = store.positions[20]
    file = store.root / "commitlog" / f"{position // FILE_SIZE * FILE_SIZE:020}"
    content = bytearray(file.read_bytes())
    content[position % FILE_SIZE + field_position] ^= 1
    file.write_bytes(content)
    body, stop, why = store.read(0, 35)
    assert body == b"".join(store.records[:20])
    assert stop == 20
    assert f"position {position} of the log does not hold the message at offset 20" in why


def test_no_such_store(tmp_path: Path) -> None:
    with pytest.raises(UnusableFilesError, match="cannot be read: No such file"):
        StoreReader(tmp_path, QUEUE)


def test_lists_of_tags() -> None:
    assert tag_list("A || B|| C") == ["A", "B", "C"]
    assert tag_list("*") == tag_list(None) == []
