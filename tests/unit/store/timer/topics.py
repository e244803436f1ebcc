"""A timer without a broker: a timer topic of numbers, read into the wheel and out of it."""

from __future__ import annotations

from pathlib import Path

from skylark.store.config_files import ConfigFiles
from skylark.store.file_system import FileSystem
from skylark.store.timer.timer_log import Unit
from skylark.store.timer.timer_recovery import recover
from skylark.store.timer.timer_store import TimerOptions, TimerStore
from skylark.testing.faulty_file_system import FaultyFileSystem

DISK = Path("disk")
#: Small files, so that they roll, and a wheel of 20 minutes.
OPTIONS = TimerOptions(log_file_size=300, slot_count=1_200, roll_window_slots=100)


def new_disk(capacity: int = 1 << 30) -> FaultyFileSystem:
    files = FaultyFileSystem(capacity=capacity)
    files.make_directories(DISK)
    return files


class Topic:
    """Messages of the timer topic: message ``n`` stands at log offset 1000 + n, with its time."""

    def __init__(self) -> None:
        self.times_ms: list[int] = []

    def queue_offset_of(self, unit: Unit) -> int | None:
        offset = unit.log_offset - 1_000
        return offset if unit.size == 1 and 0 <= offset < len(self.times_ms) else None


def new_timer(files: FileSystem, topic: Topic, options: TimerOptions = OPTIONS) -> TimerStore:
    """A timer on a disk, recovered."""
    files.make_directories(DISK)
    config = DISK / "config"
    timer = TimerStore(files, DISK, ConfigFiles(files, config), config, options)
    recover(timer, topic.queue_offset_of, 0, len(topic.times_ms))
    return timer


def place(timer: TimerStore, topic: Topic, now_ms: int) -> list[int]:
    """Read all of the topic; the messages that are late."""
    write_time_ms = timer.advance(now_ms)
    late = []
    for number in range(timer.queue_offset, len(topic.times_ms)):
        time_ms = topic.times_ms[number]
        if time_ms < write_time_ms:
            late.append(number)
        elif not timer.place(time_ms, 1_000 + number, 1, number, is_delete=False):
            break
        timer.placed(number + 1)
    return late


def deliver(timer: TimerStore, now_ms: int) -> list[int]:
    """All messages that are due, in order."""
    timer.advance(now_ms)
    due = []
    while (walk := timer.next_slot()) is not None:
        while not walk.is_complete:
            walk.step(3)
        while (unit := walk.next()) is not None:
            due.append(unit.log_offset - 1_000)
            walk.done()
        timer.finish(walk)
    return due


def save(timer: TimerStore, now_ms: int) -> None:
    snapshot = timer.snapshot(now_ms, 0)
    timer.begin_write(snapshot)
    timer.write(snapshot)
    timer.end_write(snapshot)
