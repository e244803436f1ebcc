"""The whole store: open, be refused, share a process, close, open again, and what that costs."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skylark.core.errors import CorruptLogError
from skylark.store.commit_log import Draft
from skylark.store.config import StoreConfig
from skylark.store.errors import StoreFileError, StoreLockedError, StoreSyncError
from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore
from skylark.store.reput import Arrival
from skylark.store.store_results import PutStatus
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from tests.support.store_machine import (
    HOST,
    ROOT,
    SMALL,
    Ledger,
    Machine,
    bodies,
    check_store,
    read_queue,
    sync_flush,
)

REPOSITORY = Path(__file__).parents[3]
QUEUE = ("TopicTest", 0)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def machine() -> Machine:
    return Machine()


def tree(root: Path) -> dict[str, bytes]:
    """All files. The checkpoint without the offset that recovery puts there, and the checksum."""
    content = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    assert len(content["checkpoint"]) == 4096
    checkpoint = content["checkpoint"]
    content["checkpoint"] = checkpoint[:32] + checkpoint[40:64] + checkpoint[68:]
    return content


def filled(store: MessageStore, machine: Machine, seed: int = 1, count: int = 150) -> Ledger:
    """Put messages of all kinds into several queues."""
    ledger = Ledger(random.Random(seed))
    rng = random.Random(seed)
    for _ in range(count):
        result = ledger.put_any(store, (f"Topic{rng.randrange(3)}", rng.randrange(2)))
        store.when_durable(result, lambda _: None)
        machine.advance(rng.choice((1, 100)))
    machine.settle()
    return ledger


# ---- again and again -----------------------------------------------------------------------------


@pytest.mark.parametrize("synchronous", [False, True])
def test_close_and_open_again_changes_nothing(
    machine: Machine, tmp_path: Path, synchronous: bool
) -> None:
    store = machine.opened(OsFileSystem(), tmp_path, **sync_flush(synchronous))
    ledger = filled(store, machine)
    check_store(store, ledger)
    machine.close(store)
    before = tree(tmp_path)
    assert not (tmp_path / "abort").exists()
    for _ in range(2):
        again = machine.store(OsFileSystem(), tmp_path, **sync_flush(synchronous))
        report = again.open()
        assert (report.clean, report.replayed_records, report.truncated_bytes) == (True, 0, 0)
        assert (tmp_path / "abort").read_bytes() == str(os.getpid()).encode()
        again.start()
        check_store(again, ledger)
        machine.advance(60_000)
        machine.close(again)
        assert tree(tmp_path) == before


@pytest.mark.spec("store.12.21")
def test_a_killed_store_recovers_and_goes_on(machine: Machine) -> None:
    disk = FaultyFileSystem()
    store = machine.opened(disk)
    ledger = filled(store, machine)
    for number in range(3):
        machine, disk = Machine(), disk.kill()
        machine.now += 3_600 * (number + 1)
        store = machine.store(disk)
        report = store.open()
        assert not report.clean
        assert report.log_end == ledger.log_end
        assert report.misplaced_records == report.unqueued_records == 0
        store.start()
        machine.advance(1)  # the index catches up
        check_store(store, ledger)
        for _ in range(20):
            ledger.put_any(store, ("Topic1", 1))
    machine.close(store)
    check_store(machine.opened(disk), ledger)


def test_an_index_that_is_behind_catches_up_while_messages_come(machine: Machine) -> None:
    disk = FaultyFileSystem()
    ledger = filled(machine.opened(disk), machine)
    machine = Machine()
    store = machine.store(disk.kill())
    behind_from = store.open().index_behind_from
    assert behind_from is not None
    store.start()
    ledger.put(store, QUEUE)
    assert store.index is not None
    before = store.index.behind_from
    machine.advance(1)
    assert (before, store.index.behind_from) == (behind_from, None)
    ledger.put(store, QUEUE)
    check_store(store, ledger)
    machine.close(store)


def test_an_index_that_falls_behind_in_a_running_store_catches_up(machine: Machine) -> None:
    store = machine.opened(FaultyFileSystem())
    ledger = filled(store, machine)
    assert store.index is not None
    store.index._fall_behind(store.log.max_offset, StoreFileError("no space left", path=ROOT))
    for _ in range(20):
        store.when_durable(ledger.put(store, QUEUE), lambda _: None)
    assert store.index.behind_from is not None
    machine.advance(11_000)
    assert str((store.index.behind_from, store.index.error)) == "(None, None)"
    check_store(store, ledger)
    machine.close(store)


def test_progress_is_reported(machine: Machine) -> None:
    disk = FaultyFileSystem()
    filled(machine.opened(disk), machine)
    seen: list[tuple[int, int]] = []
    report = Machine().store(disk.kill()).open(progress=lambda *it: seen.append(it))
    assert seen[-1] == (report.scanned_bytes, report.scanned_bytes)
    assert report.scanned_bytes > 10_000


# ---- who owns the directory ----------------------------------------------------------------------


@pytest.mark.spec("store.12.26")
def test_a_second_store_of_this_process_is_refused(machine: Machine, tmp_path: Path) -> None:
    store = machine.opened(OsFileSystem(), tmp_path)
    with pytest.raises(StoreLockedError, match="this process has the store open") as caught:
        Machine().opened(OsFileSystem(), tmp_path)
    assert caught.value.path == tmp_path / "lock"
    assert "storePathRootDir" in str(caught.value)
    assert store.put(Draft(*QUEUE, b"body", born_host=HOST)).status is PutStatus.PUT_OK
    machine.close(store)
    machine.close(Machine().opened(OsFileSystem(), tmp_path))


OTHER_PROCESS = """
import fcntl, sys
from pathlib import Path
path = Path(sys.argv[1])
path.parent.mkdir(exist_ok=True)
file = path.open("a+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.read()
"""


def other_process(root: Path) -> subprocess.Popen[str]:
    """A process that takes the lock as a Java broker does: exclusively, on the first byte."""
    return subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(root / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.spec("store.12.26")
def test_a_second_process_is_refused_whichever_comes_first(
    machine: Machine, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with other_process(root) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreLockedError, match="another process") as caught:
            machine.opened(OsFileSystem(), root)
        assert caught.value.path == root / "lock"
        assert [entry.name for entry in root.iterdir()] == ["lock"]
        other.communicate("")
    store = machine.opened(OsFileSystem(), root)
    with other_process(root) as other:
        assert other.communicate("")[0] == "refused\n"
    machine.close(store)
    with other_process(root) as other:
        assert other.communicate("")[0] == "locked\n"


@pytest.mark.spec("store.12.26")
def test_a_second_skylark_is_refused_with_a_sentence(machine: Machine, tmp_path: Path) -> None:
    store = machine.opened(OsFileSystem(), tmp_path)
    script = (
        "import sys; from pathlib import Path\n"
        "from skylark.store.files import OsFileSystem\n"
        "from tests.support.store_machine import Machine\n"
        "Machine().opened(OsFileSystem(), Path(sys.argv[1]))"
    )
    second = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    sentence = second.stderr.splitlines()[-1]
    assert sentence.startswith("skylark.store.errors.StoreLockedError:")
    assert str(tmp_path) in sentence
    assert "another process" in sentence
    assert "storePathRootDir" in sentence
    machine.close(store)


def test_two_stores_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    machines = [Machine(), Machine()]
    stores = [
        machine.opened(OsFileSystem(), tmp_path / str(number))
        for number, machine in enumerate(machines)
    ]
    ledgers = [Ledger(random.Random(number)) for number in (1, 2)]
    for step in range(100):
        number = step % 2
        ledgers[number].put_any(stores[number], QUEUE)
        machines[number].advance(50)
    machines[0].close(stores[0])
    assert ledgers[1].put(stores[1], QUEUE).status is PutStatus.PUT_OK
    machines[1].settle()
    check_store(stores[1], ledgers[1])
    machines[1].close(stores[1])
    for number, machine in enumerate(machines):
        store = machine.opened(OsFileSystem(), tmp_path / str(number))
        check_store(store, ledgers[number])
        machine.close(store)


# ---- what goes wrong -----------------------------------------------------------------------------


def test_an_open_that_fails_leaves_nothing_behind(machine: Machine, tmp_path: Path) -> None:
    store = machine.opened(OsFileSystem(), tmp_path)
    filled(store, machine)
    machine.close(store)
    (tmp_path / "commitlog" / f"{SMALL['mapped_file_size_commit_log']:020d}").unlink()
    before, descriptors = tree(tmp_path), open_descriptors()
    for _ in range(3):
        with pytest.raises(CorruptLogError, match="are missing"):
            machine.opened(OsFileSystem(), tmp_path)
    assert tree(tmp_path) == before
    assert open_descriptors() == descriptors


def test_an_open_that_fails_late_leaves_nothing_behind(machine: Machine, tmp_path: Path) -> None:
    store = machine.opened(OsFileSystem(), tmp_path)
    filled(store, machine)
    machine.close(store)
    log = tmp_path / "commitlog" / f"{0:020d}"
    content = log.read_bytes()
    log.write_bytes(content[:100] + b"\xff" + content[101:])
    shutil.rmtree(tmp_path / "consumequeue")
    descriptors = open_descriptors()
    for _ in range(3):
        with pytest.raises(CorruptLogError, match="valid records follow"):
            machine.opened(OsFileSystem(), tmp_path)
    assert open_descriptors() == descriptors


def open_descriptors() -> int:
    """How many files of this process are open."""
    count = 0
    for number in range(1_024):
        try:
            os.fstat(number)
        except OSError:
            continue
        count += 1
    return count


def test_a_close_that_fails_leaves_the_mark_of_an_unclean_exit(machine: Machine) -> None:
    plan = FaultPlan(1)
    disk = FaultyFileSystem(plan)
    store = machine.opened(disk)
    ledger = Ledger(random.Random(1))
    ledger.put(store, QUEUE)
    machine.settle()
    plan.chance("files.sync", 1.0, error=errno.EIO)
    with pytest.raises(StoreSyncError, match="cannot sync"):
        store.close()
    plan.clear()
    assert disk.exists(ROOT / "abort")
    again = machine.store(disk)  # the lock was given back
    assert not again.open().clean
    again.start()
    machine.advance(1)
    check_store(again, ledger)
    machine.close(again)


@pytest.mark.parametrize("synchronous", [False, True])
def test_an_owner_that_has_other_work_closes_in_steps(machine: Machine, synchronous: bool) -> None:
    disk = FaultyFileSystem()
    arrivals: list[Arrival] = []
    answers: list[PutStatus] = []
    store = MessageStore(
        machine.store(disk, **sync_flush(synchronous)).config,
        store_host=HOST,
        scheduler=machine,
        post=machine.post,
        files=disk,
        on_arrival=arrivals.append,
        make_worker=machine.make_worker,
    )
    store.open()
    store.start()
    result = store.put(Draft(*QUEUE, b"kept", born_host=HOST))
    store.when_durable(result, answers.append)
    store.stop()
    arrived_count = len(arrivals)
    assert arrived_count == (0 if synchronous else 1)
    assert answers == [PutStatus.FLUSH_DISK_TIMEOUT if synchronous else PutStatus.PUT_OK]
    assert machine.timer_count == 0
    machine.turn()  # what was under way comes to nothing
    assert not any(worker.jobs for name, worker in machine.workers.items() if name == "flush")
    assert store.put(Draft(*QUEUE, b"late", born_host=HOST)).status is (
        PutStatus.SERVICE_NOT_AVAILABLE
    )

    thread = threading.Thread(target=store.bring_to_disk)
    thread.start()
    thread.join()
    assert len(arrivals) == arrived_count, "the owner is not called from a thread"
    assert machine.posted.empty()
    assert machine.timer_count == 0
    assert not disk.exists(ROOT / "abort")
    store.close()

    again = machine.store(disk)
    assert again.open().clean
    again.start()
    assert bodies(again, QUEUE) == [b"kept"]
    machine.close(again)


def test_an_error_of_the_last_sync_is_raised_at_the_end(machine: Machine) -> None:
    plan = FaultPlan(1)
    disk = FaultyFileSystem(plan)
    store = machine.opened(disk)
    store.put(Draft(*QUEUE, b"kept", born_host=HOST))
    store.stop()
    plan.chance("files.sync", 1.0, error=errno.EIO)
    store.bring_to_disk()
    plan.clear()
    with pytest.raises(StoreSyncError, match="cannot sync"):
        store.close()
    assert disk.exists(ROOT / "abort")
    machine.store(disk).open()  # the lock was given back


def test_a_store_that_was_never_opened_can_be_closed(machine: Machine, tmp_path: Path) -> None:
    machine.store(OsFileSystem(), tmp_path / "store").close()
    assert list(tmp_path.iterdir()) == []


def test_memory_views_outlive_the_store(machine: Machine, tmp_path: Path) -> None:
    store = machine.opened(OsFileSystem(), tmp_path)
    store.put(Draft(*QUEUE, b"body", born_host=HOST))
    result = store.reader.get(*QUEUE, 0, 32, bulk=True)  # as memory views
    machine.close(store)
    assert bytes(result.views[0]).count(b"body") == 1
    descriptors = open_descriptors()
    result.release()
    assert open_descriptors() < descriptors


def test_threads_of_a_store_end_with_it(tmp_path: Path) -> None:
    """With real workers: a store in its usual form."""
    machine = Machine()
    before = threading.active_count()
    store = MessageStore(
        StoreConfig(store_path_root_dir=tmp_path, **{**SMALL, **sync_flush(True)}),
        store_host=HOST,
        scheduler=machine,
        post=machine.post,
    )
    store.open()
    store.start()
    answers: list[PutStatus] = []
    for number in range(100):
        result = store.put(Draft(*QUEUE, b"%d" % number * 50, born_host=HOST))
        store.when_durable(result, answers.append)
    machine.turn_until(lambda: len(answers) == 100)
    assert set(answers) == {PutStatus.PUT_OK}
    assert len(bodies(store, QUEUE)) == 100
    assert threading.active_count() > before
    store.close()
    assert threading.active_count() == before
    machine.turn()  # what the workers had posted comes too late and does nothing


def test_an_error_at_start_names_the_file(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / "T" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(b"short")
    with pytest.raises(StoreFileError, match="a queue file of 5 bytes where files have 600"):
        machine.opened(OsFileSystem(), tmp_path)


# ---- what an idle store costs --------------------------------------------------------------------

IDLE_STORE = """
import gc, os, sys

def anonymous_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

before = anonymous_kb()
from pathlib import Path
from skylark.store.commit_log import Draft
from skylark.store.config import StoreConfig
from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore
from tests.support.store_machine import HOST, Machine, read_queue

os.fsync = os.fdatasync = lambda descriptor: None  # durability is not the point here
machine = Machine()
store = MessageStore(
    StoreConfig(store_path_root_dir=Path(sys.argv[1])), store_host=HOST, scheduler=machine,
    post=machine.post, make_worker=machine.make_worker,
)
store.open()
store.start()
for round in range(int(sys.argv[2])):
    for number in range(1_000):
        store.put(Draft(f"Topic{number // 4}", number % 4, b"x" * 100, b"TAGS\\x01A\\x02",
                        born_host=HOST))
machine.advance(10_000)
for number in range(1_000):
    queue = f"Topic{number // 4}", number % 4
    assert len(read_queue(store, queue)) == 10, queue
machine.advance(10_000)
gc.collect()
assert len(store.queues) == 1_000
print(anonymous_kb() - before, len(os.listdir("/proc/self/fd")), flush=True)
machine.close(store)
"""


@on_linux
def test_an_idle_store_with_1000_queues_is_small(tmp_path: Path) -> None:
    """With the default sizes of files, after filling it and after opening it again."""
    for rounds in ("10", "0"):
        run = subprocess.run(
            [sys.executable, "-c", IDLE_STORE, str(tmp_path), rounds],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        anonymous_kb, descriptors = map(int, run.stdout.split())
        print(f"{anonymous_kb / 1000:.1f} MB, {descriptors} descriptors")
        assert anonymous_kb * 1024 < 60e6
        assert descriptors <= 1_024


def test_reading_does_not_keep_every_file_open(machine: Machine, tmp_path: Path) -> None:
    before = open_descriptors()
    store = machine.opened(
        OsFileSystem(), tmp_path, commit_log_open_files_max=4, consume_queue_open_files_max=4
    )
    ledger = filled(store, machine, count=300)
    assert len(store.log.files.files) > 8
    for queue in ledger.numbers:
        assert len(read_queue(store, queue)) == ledger.numbers[queue]
    assert open_descriptors() - before < 40
    machine.close(store)
    assert open_descriptors() == before
