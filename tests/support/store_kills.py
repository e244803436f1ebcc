"""A real process that appends at full speed, and the parent that kills it and looks at the files.

The child (``tests/crash/store_child.py``) writes to its standard output which messages were
acknowledged, and keeps a page of notes in a file: what its owner thread and its workers are doing.
The parent kills it with SIGKILL after a drawn number of acknowledgements; the page, which outlives
the process as the page cache does, then tells what was under way. Opened again, the store must
have every acknowledged message, each queue in order and without repeats. Then the same store is
given to the next child, which recovers it by itself and goes on.

The body of a message follows from its queue and its queue offset, so that nothing needs to be
remembered: whatever stands at an offset is either right or wrong.

The moments of the kills depend on the scheduler of the machine. The seed decides the rest.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.message import iter_records
from tests.support.store_machine import ROOT, Machine, Queue, read_queue, records_of, sync_flush

REPOSITORY: Final = Path(__file__).parents[2]
QUEUES: Final[tuple[Queue, ...]] = tuple((f"Topic{n % 3}", n // 3) for n in range(7))
ACKNOWLEDGEMENT: Final = struct.Struct(">IQI")  # number of the queue, queue offset, count
STATUS_SIZE: Final = 16
OWNER_PHASES: Final = ("idle", "put", "batch", "roll", "turn")  # byte 0 of the page of notes
WORKERS: Final = ("flush", "commit", "space", "derived")  # bytes 1-4: whether each is busy


class Mode(NamedTuple):
    """What kind of store is killed."""

    synchronous: bool
    pooled: bool

    def __str__(self) -> str:
        flush = "SYNC_FLUSH" if self.synchronous else "ASYNC_FLUSH"
        return f"{flush} with the transient pool" if self.pooled else flush

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **sync_flush(self.synchronous),
            "transient_store_pool_enable": self.pooled,
            "mapped_file_size_commit_log": 40 << 10,
            "mapped_file_size_consume_queue": 400 * 20,
            "max_hash_slot_num": 500,
            "max_index_num": 4_000,
            "flush_interval_commit_log": 5,
            "flush_interval_consume_queue": 20,
            "commit_interval_commit_log": 5,
        }


MODES: Final = (Mode(False, False), Mode(True, False), Mode(False, True))


def body_of(queue: Queue, queue_offset: int) -> bytes:
    """The body of the message with this offset."""
    name = b"%s/%d/%d/" % (queue[0].encode(), queue[1], queue_offset)
    return name * (1 + queue_offset * 7919 % 23)


def unique_id_of(queue: Queue, queue_offset: int) -> str:
    return f"{QUEUES.index(queue):08X}{queue_offset:024X}"


def properties_of(queue: Queue, queue_offset: int) -> bytes:
    tag = f"Tag{queue_offset % 5}"
    return f"UNIQ_KEY\x01{unique_id_of(queue, queue_offset)}\x02TAGS\x01{tag}\x02".encode()


# ---- killing -------------------------------------------------------------------------------------


class Killed(NamedTuple):
    """What is known of a process that was killed."""

    acknowledged: dict[Queue, int]  # the offset after the last acknowledged message
    under_way: Counter[str]


def run_and_kill(root: Path, mode: Mode, seed: int, message_count: int, spin: int) -> Killed:
    """Start a child on the store at ``root`` and kill it soon after so many acknowledgements."""
    status = root.with_name(root.name + ".status")
    status.write_bytes(bytes(STATUS_SIZE))
    command = [sys.executable, "-m", "tests.crash.store_child", str(root), str(status), str(seed)]
    command += [str(int(mode.synchronous)), str(int(mode.pooled))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as child:
        assert child.stdout is not None
        pipe = Acknowledgements(child.stdout.fileno())
        try:
            while pipe.message_count < message_count:
                assert pipe.read(), "the child has ended by itself"
            for _ in range(spin):
                pass  # so that the kill does not always come right after an acknowledgement
        finally:
            child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, f"the child ended with {child.returncode}"
        while pipe.read():
            pass  # what was still in the pipe
    return Killed(pipe.ends, _under_way(status.read_bytes()))


class Acknowledgements:
    """What a child writes to its standard output."""

    def __init__(self, descriptor: int) -> None:
        self.ends = dict.fromkeys(QUEUES, 0)
        self.message_count = 0
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> bool:
        """Wait for some; False at the end. In large pieces, lest the child waits for us."""
        piece = os.read(self._descriptor, 1 << 16)
        content = self._rest + piece
        whole = len(content) - len(content) % ACKNOWLEDGEMENT.size
        for number, queue_offset, count in ACKNOWLEDGEMENT.iter_unpack(content[:whole]):
            self.ends[QUEUES[number]] = queue_offset + count
            self.message_count += count
        self._rest = content[whole:]
        return bool(piece)


def _under_way(page: bytes) -> Counter[str]:
    """What the page of notes says."""
    found = Counter([name for name, busy in zip(WORKERS, page[1:], strict=False) if busy])
    phase = OWNER_PHASES[page[0]]
    if phase in ("put", "batch", "roll"):
        found[phase] = 1
    found["something"] = bool(found)
    return found


# ---- looking -------------------------------------------------------------------------------------


def check_killed(root: Path, mode: Mode, acknowledged: dict[Queue, int]) -> dict[Queue, int]:
    """Recover a store in this process and look at everything; returns the ends of the queues."""
    machine = Machine()
    store = machine.store(OsFileSystem(), root, **mode.settings)
    report = store.open()
    assert not report.clean
    assert report.misplaced_records == report.unqueued_records == 0
    store.start()
    machine.settle()
    machine.advance(1_000)  # an index that is behind catches up
    ends = _check_messages(store, acknowledged)
    machine.close(store)
    again = machine.store(OsFileSystem(), root, **mode.settings)
    second = again.open()
    assert (second.clean, second.log_end, second.replayed_records) == (True, report.log_end, 0)
    assert _check_messages(again, ends) == ends
    machine.close(again)
    return ends


def _check_messages(store: MessageStore, acknowledged: dict[Queue, int]) -> dict[Queue, int]:
    ends = {}
    assert {(it.topic, it.queue_id) for it in store.queues} <= set(QUEUES)
    for queue in QUEUES:
        records = read_queue(store, queue)
        ends[queue] = len(records)
        assert ends[queue] >= acknowledged[queue], f"{queue}: acknowledged messages are missing"
        for offset, record in enumerate(records):
            assert record.queue_offset == offset
            assert record.body == body_of(queue, offset), (queue, offset)
            assert record.raw_properties == properties_of(queue, offset), (queue, offset)
        for offset in range(0, ends[queue], 97):
            result = store.reader.query(queue[0], unique_id_of(queue, offset), 32)
            found = [(it.queue_id, it.queue_offset) for it in records_of(result.views)]
            result.release()
            assert found == [(queue[1], offset)]
    return ends


class KillRun(NamedTuple):
    """What several kills of one store hit."""

    kills: int
    messages: int
    under_way: Counter[str]


def kill_run(folder: Path, mode: Mode, seed: int, kill_count: int) -> KillRun:
    """Kill a store again and again, and check it after each time."""
    rng = random.Random(f"kill/{seed}")
    root, copy = folder / f"store-{seed}", folder / f"copy-{seed}"
    under_way: Counter[str] = Counter()
    ends = dict.fromkeys(QUEUES, 0)
    for number in range(kill_count):
        message_count, spin = rng.choice((10, 300, 1_500, 5_000)), rng.randrange(40_000)
        try:
            killed = run_and_kill(root, mode, seed * 1_000 + number, message_count, spin)
            under_way += killed.under_way
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(root, copy)
            before = ends
            ends = check_killed(copy, mode, killed.acknowledged)
            assert all(ends[queue] >= before[queue] for queue in QUEUES)
        except BaseException as error:
            error.add_note(f"{mode}, seed {seed}, kill {number + 1}: {killed_note(under_way)}")
            raise
    shutil.rmtree(copy)
    return KillRun(kill_count, sum(ends.values()), under_way)


def killed_note(under_way: Counter[str]) -> str:
    """What was under way, most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in under_way.most_common()) or "nothing"


# ---- cutting -------------------------------------------------------------------------------------


def cut_everywhere(folder: Path, mode: Mode, seed: int, filling: bytes = b"\0") -> int:
    """Kill a store early, and cut its last record at every byte; returns how many there were."""
    root = folder / f"cut-{seed}"
    killed = run_and_kill(root, mode, seed, message_count=40, spin=0)
    image = FaultyFileSystem()
    image.copy_in(root, ROOT)
    machine = Machine()
    store = machine.store(image, **mode.settings)
    report = store.open()
    ends = {(it.topic, it.queue_id): it.max_offset for it in store.queues}
    assert all(ends[queue] >= killed.acknowledged[queue] for queue in ends)
    last, log_end = report.last_record_offset, report.log_end
    file_size = store.log.files.file_size
    path = ROOT / f"commitlog/{last - last % file_size:020d}"
    start = last % file_size
    content = image.read_file(path)
    record = next(iter_records(content[start : start + log_end - last]))
    queue = (record.topic, record.queue_id)
    for cut in range(start, start + record.total_size):
        disk = FaultyFileSystem()
        disk.copy_in(root, ROOT)
        disk.install(path, content[:cut].ljust(file_size, filling))
        _check_cut(disk, mode, last, {**ends, queue: record.queue_offset})
    return record.total_size


def _check_cut(disk: FaultyFileSystem, mode: Mode, log_end: int, ends: dict[Queue, int]) -> None:
    """The log ends before the record that was cut, and the next one takes its place."""
    machine = Machine()
    store = machine.opened(disk, **mode.settings)
    assert store.log.max_offset == log_end
    machine.advance(1)
    for queue, end in ends.items():
        assert store.reader.max_offset(*queue) == end
        assert [it.body for it in read_queue(store, queue, max(0, end - 3))] == [
            body_of(queue, offset) for offset in range(max(0, end - 3), end)
        ]
