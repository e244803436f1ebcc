"""What a survey makes of a directory: sizes, shapes, states."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from skylark.core.clock import SystemClock
from skylark.store.files import OsFileSystem
from skylark.store.inspection.store_directory import (
    FileSizes,
    IndexShape,
    LogFile,
    NotAStoreError,
    State,
    Survey,
    index_shape,
    survey,
)
from tests.unit.store.crash_store import CrashStore

GOLDEN = Path(__file__).parents[3] / "golden" / "data"

HOLDER = """
import sys
from pathlib import Path
from skylark.store.files import OsFileSystem
lock = OsFileSystem().lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def look(root: Path, sizes: FileSizes | None = None) -> Survey:
    return survey(OsFileSystem(), root, sizes or FileSizes())


def test_everything_is_found_with_its_size() -> None:
    found = look(GOLDEN / "store-basic")
    assert found.state is State.CLOSED
    assert found.misfits == []
    assert found.log_size == 32768
    log = GOLDEN / "store-basic/commitlog"
    assert found.log_files == [
        LogFile(log / f"{start:020d}", start, 32768) for start in range(0, 4 * 32768, 32768)
    ]
    queues = {(it.topic, it.queue_id): it for it in found.queues}
    assert len(queues) == 19
    assert queues["GoldenB", 0].starts == [0, 6000]
    assert (queues["GoldenB", 0].file_size, queues["GoldenB", 0].entry_size) == (6000, 20)
    batch = queues["GoldenBatchCq", 0]
    assert (batch.is_batch, batch.file_size, batch.entry_size) == (True, 4600, 46)
    assert len(found.index_files) == 4
    assert found.index_shape == IndexShape(100, 400)
    assert found.topics is not None
    assert {"GoldenA", "GoldenBatchCq", "SCHEDULE_TOPIC_XXXX"} <= found.topics


def test_the_log_may_be_elsewhere(basic: Path, tmp_path: Path) -> None:
    (basic / "commitlog").rename(tmp_path / "elsewhere")
    assert look(basic).log_files == []
    found = survey(OsFileSystem(), basic, FileSizes(), log_path=tmp_path / "elsewhere")
    assert len(found.log_files) == 4


def test_a_given_queue_size_is_rounded_to_whole_entries(basic: Path) -> None:
    found = look(basic, FileSizes(queue=5990))
    assert {it.file_size for it in found.queues if not it.is_batch} == {6000}
    assert found.misfits == []


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(NotAStoreError, match="has none of commitlog"):
        look(tmp_path)


def test_the_table_of_topics_may_be_broken_or_absent(basic: Path) -> None:
    (basic / "config/topics.json").write_text("{")
    topics = look(basic).topics
    assert topics is not None
    assert "GoldenA" in topics  # of the backup
    (basic / "config/topics.json.bak").unlink()
    assert look(basic).topics is None


def test_missing_files_between_queue_files(tmp_path: Path) -> None:
    store = CrashStore(OsFileSystem(), tmp_path / "own", time=SystemClock())
    store.open()
    for _ in range(150):
        store.put("T", 0, b"x")
    store.close()
    (store.root / "consumequeue/T/0/00000000000000001200").unlink()
    found = look(store.root)
    assert [it.starts for it in found.queues] == [[0, 2400]]
    assert found.misfits[0].text == "the file 00000000000000001200 before this one is missing"


@pytest.mark.parametrize("shape", [(1, 5), (3, 100), (500, 2000), (37, 61), (1000, 30)])
def test_the_shape_of_an_index_is_found_out(tmp_path: Path, shape: tuple[int, int]) -> None:
    slots, entries = shape
    store = CrashStore(
        OsFileSystem(),
        tmp_path / "own",
        time=SystemClock(),
        max_hash_slot_num=slots,
        max_index_num=entries,
    )
    store.open()
    for number in range(3):
        store.put("T", 0, b"x", {"KEYS": f"key-{number}"})
    store.close()
    (path,) = (store.root / "index").iterdir()
    assert index_shape(OsFileSystem(), path) == IndexShape(slots, entries)


def test_the_shape_of_an_empty_index_file_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "20260101000000000"
    path.write_bytes(bytes(40 + 4 * 10 + 20 * 40))
    assert index_shape(OsFileSystem(), path) is None
    path.write_bytes(bytes(7))
    assert index_shape(OsFileSystem(), path) is None


# ---- state -----------------------------------------------------------------------------------


def test_the_mark_of_an_open_store_and_its_content(basic: Path) -> None:
    (basic / "abort").write_bytes(b"17")
    found = look(basic)
    assert (found.state, found.abort_text) == (State.CRASHED, "17")
    (basic / "abort").write_bytes(bytes(1000))
    assert look(basic).abort_text == ""


def test_a_lock_of_this_process_is_seen_and_kept(basic: Path) -> None:
    files = OsFileSystem()
    assert not files.is_locked(basic / "lock")
    lock = files.lock(basic / "lock")
    assert files.is_locked(basic / "lock")
    assert look(basic).state is State.IN_USE
    assert locked_for_others(basic)  # looking at the file would have ended the lock
    lock.release()
    assert not files.is_locked(basic / "lock")


def test_a_lock_of_another_process_is_seen(basic: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(basic / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        assert look(basic).state is State.IN_USE
        holder.stdin.close()
        assert holder.wait(30) == 0
    assert look(basic).state is State.CLOSED


def test_no_lock_file_is_made(basic: Path) -> None:
    (basic / "lock").unlink()
    assert look(basic).state is State.CLOSED
    assert not (basic / "lock").exists()
    assert not OsFileSystem().is_locked(basic / "absent" / "lock")


def locked_for_others(root: Path) -> bool:
    probe = (
        "import sys; from pathlib import Path; from skylark.store.files import OsFileSystem; "
        "print(OsFileSystem().is_locked(Path(sys.argv[1])))"
    )
    run = subprocess.run(
        [sys.executable, "-c", probe, str(root / "lock")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return run.stdout == "True\n"
