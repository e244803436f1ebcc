"""The time for which threads wait for a processor, from the kernel and without it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from skylark.broker.overload.processor_wait import (
    TASKS,
    CpuTimeWait,
    SchedstatWait,
    processor_wait,
)
from skylark.core.clock import LoopClock, SystemClock
from skylark.testing.virtual_clock import VirtualClock

OWN = threading.get_native_id()


class Tasks:
    """A folder that looks like the kernel's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for thread in threading.enumerate():
            assert thread.native_id is not None
            self.set(thread.native_id, ran_s=100.0, waited_s=20.0)

    def set(self, thread: int, *, ran_s: float, waited_s: float, slices: int = 42) -> None:
        folder = self.root / str(thread)
        folder.mkdir(exist_ok=True)
        text = f"{round(ran_s * 1e9)} {round(waited_s * 1e9)} {slices}\n"
        (folder / "schedstat").write_text(text)


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def test_what_the_own_thread_waited_counts(tasks: Tasks) -> None:
    wait = SchedstatWait(tasks.root)
    assert wait.read(1_000.0) == 0.0
    tasks.set(OWN, ran_s=100.3, waited_s=22.5)
    assert wait.read(1_003.0) == pytest.approx(2.5)
    assert wait.read(1_004.0) == pytest.approx(2.5), "blocked, and nobody waited"
    wait.blocked(1.0)
    assert wait.read(1_005.0) == pytest.approx(2.5)


def test_a_thread_that_waits_with_the_lock_of_the_interpreter_counts(tasks: Tasks) -> None:
    release = threading.Event()
    other = threading.Thread(target=release.wait, daemon=True)
    other.start()
    try:
        assert other.native_id is not None
        tasks.set(other.native_id, ran_s=1.0, waited_s=5.0)
        wait = SchedstatWait(tasks.root)
        wait.read(1_000.0)
        tasks.set(OWN, ran_s=100.1, waited_s=20.2, slices=242)
        tasks.set(other.native_id, ran_s=1.0, waited_s=5.5)
        assert wait.read(1_001.0) == pytest.approx(0.2 + 0.5), "of 0.7 s for which it was blocked"
        tasks.set(other.native_id, ran_s=1.0, waited_s=9.5)
        tasks.set(OWN, ran_s=100.9, waited_s=20.2, slices=442)
        assert wait.read(1_002.0) == pytest.approx(0.7 + 0.2), "it was blocked for only 0.2 s"
        tasks.set(other.native_id, ran_s=1.0, waited_s=9.8)
        tasks.set(OWN, ran_s=100.9, waited_s=20.2, slices=443)
        total_s = wait.read(1_002.3)
        assert total_s == pytest.approx(0.9 + 0.006), "blocked once for all: not by that lock"
    finally:
        release.set()
        other.join()
    wait.read(1_003.0)
    wait.close()


def test_no_descriptor_is_left_open(tasks: Tasks) -> None:
    def count() -> int:
        return len(list(Path("/dev/fd").iterdir()))

    before = count()
    wait = SchedstatWait(tasks.root)
    wait.read(1.0)
    wait.close()
    assert count() == before
    forgotten = SchedstatWait(tasks.root)
    forgotten.read(1.0)
    del forgotten
    assert count() == before


@pytest.mark.skipif(not TASKS.exists(), reason="this kernel does not count it")
def test_a_thread_that_sleeps_does_not_wait_for_a_processor() -> None:
    wait = SchedstatWait()
    deadline = time.monotonic() + 20
    try:
        while True:  # other processes may be in the way at any one time
            began = time.monotonic()
            before = wait.read(began)
            threading.Event().wait(0.05)
            ended = time.monotonic()
            if wait.read(ended) - before < ended - began - 0.045:
                break
            assert ended < deadline
    finally:
        wait.close()


class FakeSystemClock(SystemClock):
    used_s = 3.0

    def thread_time(self) -> float:
        return self.used_s


def test_without_the_kernel_it_is_what_is_neither_work_nor_a_measured_call() -> None:
    clock = FakeSystemClock()
    wait = CpuTimeWait(clock)
    first = wait.read(1_000.0)
    clock.used_s += 0.3  # and 0.5 s in a measured call, 0.2 s neither
    wait.blocked(0.5)
    assert wait.read(1_001.0) - first == pytest.approx(0.2)
    wait.blocked(5.0)  # measured with another clock: it never goes back
    assert wait.read(1_001.0) - first == pytest.approx(0.2)
    wait.close()


def test_the_best_that_there_is(tasks: Tasks, tmp_path: Path) -> None:
    assert processor_wait(VirtualClock()) is None
    clock = LoopClock()
    assert isinstance(processor_wait(clock, tmp_path / "missing"), CpuTimeWait)
    assert isinstance(processor_wait(clock, tasks.root), SchedstatWait)
    (tasks.root / str(OWN) / "schedstat").write_text("")
    assert isinstance(processor_wait(clock, tasks.root), CpuTimeWait)
