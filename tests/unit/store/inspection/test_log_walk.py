"""Walking over log files: the size of a slice makes no difference, and holes are got over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.store.inspection.log_walk import Blank, Hole, Step, begins_with_record, walk
from skylark.store.inspection.store_directory import LogFile
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK
from skylark.wire.message import RecordFault, encode_record
from skylark.wire.record_scan import RecordColumns

GOLDEN = Path(__file__).parents[3] / "golden" / "data"
START = 1 << 20
SIZE = 8192
OVERHEAD = 100  # of the records here, besides the body


def log_file(content: bytes, *, start: int = START) -> tuple[FaultyFileSystem, LogFile]:
    files = FaultyFileSystem()
    files.install(Path("/log"), content)
    return files, LogFile(Path("/log"), start, len(content))


def summary(steps: list[Step]) -> list[int | Hole | Blank]:
    """Log offsets of all records, and the other steps."""
    found: list[int | Hole | Blank] = []
    for step in steps:
        if isinstance(step, RecordColumns):
            assert len(step)
            found += step.log_offset.tolist()
        else:
            found.append(step)
    return found


def record(body_size: int, log_offset: int) -> bytes:
    content = encode_record("Topic", bytes([7]) * body_size, b"k\x01v\x02", log_offset=log_offset)
    assert len(content) == body_size + OVERHEAD
    return content


def records(sizes: list[int], position: int = 0) -> bytes:
    content = b""
    for size in sizes:
        log_offset = START + position + len(content)
        content += record(size, log_offset)
    return content


def blank(position: int) -> bytes:
    return BLANK_RECORD.pack(SIZE - position, MAGIC_BLANK)


def walked(content: bytes, slice_size: int = 1 << 20) -> list[int | Hole | Blank]:
    files, file = log_file(content.ljust(SIZE, b"\0"))
    return summary(list(walk(files, file, slice_size=slice_size)))


@pytest.mark.parametrize("name", ["store-basic", "store-crashed", "store-torn"])
@pytest.mark.parametrize("slice_size", [1, 300, 5000])
def test_slices_of_any_size_give_the_same_steps(name: str, slice_size: int) -> None:
    for path in sorted((GOLDEN / name / "commitlog").iterdir()):
        files, file = log_file(path.read_bytes(), start=int(path.name))
        whole = summary(list(walk(files, file)))
        assert summary(list(walk(files, file, slice_size=slice_size))) == whole
        assert len(whole) > 1 or path.name == "00000000000000163840"


def test_a_full_file_ends_with_its_blank() -> None:
    content = records([10, 3000, 20])
    ends = walked(content + blank(len(content)))
    assert ends[-1] == Blank(START + len(content), is_whole=True)
    assert len(ends) == 4
    wrong = content + BLANK_RECORD.pack(8, MAGIC_BLANK)
    assert walked(wrong)[-1] == Blank(START + len(content), is_whole=False)


def test_a_file_that_is_not_full_ends_where_nothing_was_written() -> None:
    content = records([10, 20])
    end = START + len(content)
    assert walked(content)[-1] == Hole(end, RecordFault.UNWRITTEN, None, end)
    assert walked(b"") == [Hole(START, RecordFault.UNWRITTEN, None, START)]


def test_a_file_without_a_blank() -> None:
    content = records([SIZE - OVERHEAD])
    assert len(content) == SIZE
    assert walked(content) == [START, Hole(START + SIZE, None, None, START + SIZE)]


@pytest.mark.parametrize("slice_size", [100, 1 << 20])
def test_records_go_on_behind_garbage(slice_size: int) -> None:
    before = records([30, 30])
    garbage = b"\xda\xa3\x20\xa7" * 100  # full of magic codes
    position = len(before) + len(garbage)
    after = records([40, 50], position)
    found = walked(before + garbage + after, slice_size)
    start = START + len(before)
    assert found[2] == Hole(start, RecordFault.BAD_SIZE, START + position, START + position)
    assert found[3:5] == [START + position, START + position + 40 + OVERHEAD]
    assert isinstance(found[5], Hole)
    assert found[5].fault is RecordFault.UNWRITTEN


def test_records_go_on_behind_zeros() -> None:
    before = records([30])
    after = records([40], 4096)
    found = walked(before.ljust(4096, b"\0") + after)
    end = START + len(before)
    assert found[1] == Hole(end, RecordFault.UNWRITTEN, START + 4096, end)


def test_a_blank_behind_garbage_ends_the_file() -> None:
    content = records([30]) + b"garbage."
    found = walked(content + blank(len(content)))
    assert found[2] == Blank(START + len(content), is_whole=True)


def test_a_record_of_another_place_is_no_record() -> None:
    content = record(20, START + 5000)
    found = walked(content)
    assert found == [Hole(START, RecordFault.BAD_LOG_OFFSET, None, START + len(content))]


def test_a_spoilt_body_costs_one_record() -> None:
    content = bytearray(records([100, 100, 100]))
    size = len(content) // 3
    content[size + 100] ^= 1
    found = walked(bytes(content))
    hole = Hole(START + size, RecordFault.BAD_BODY_CRC, START + 2 * size, START + 2 * size)
    assert found[:3] == [START, hole, START + 2 * size]
    content[2 * size + 100] ^= 1
    end = START + 3 * size
    assert walked(bytes(content))[1] == Hole(START + size, RecordFault.BAD_BODY_CRC, None, end)


def test_a_record_with_a_size_beyond_the_file() -> None:
    content = bytearray(records([10, 10]))
    content[0:4] = (1 << 30).to_bytes(4, "big")
    second = START + len(content) // 2
    assert walked(bytes(content), 100)[0] == Hole(START, RecordFault.TORN, second, second)


def test_the_first_record_alone() -> None:
    content = records([10])
    assert begins_with_record(*log_file(content.ljust(SIZE, b"\0")))
    assert begins_with_record(*log_file(blank(0).ljust(SIZE, b"\0")))
    assert not begins_with_record(*log_file(bytes(SIZE)))
    assert not begins_with_record(*log_file(b"garbage!".ljust(SIZE, b"\0")))
    assert not begins_with_record(*log_file(content.ljust(SIZE, b"\0"), start=0))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_never_hides_what_is_not_touched(data: st.DataObject) -> None:
    """Each record that no damaged byte is in is found."""
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=15))
    content = bytearray(records(sizes))
    starts = [sum(size + OVERHEAD for size in sizes[:number]) for number in range(len(sizes))]
    damage = data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.binary(max_size=20)), max_size=4)
    )
    touched = set()
    for position, garbage in damage:
        end = min(len(content), position + len(garbage))
        touched |= set(range(position, end))
        content[position:end] = garbage[: end - position]
    untouched = {
        START + start
        for start, size in zip(starts, sizes, strict=True)
        if not touched & set(range(start, start + size + OVERHEAD))
    }
    slice_size = data.draw(st.integers(91, 2000))
    found = [it for it in walked(bytes(content), slice_size) if isinstance(it, int)]
    assert untouched <= set(found) <= {START + start for start in starts}
    assert found == sorted(found)
