"""Slots: where they stand, whose they are, and how they get to disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.store.errors import StoreFileError, StoreFullError
from skylark.store.files import OsFileSystem
from skylark.store.timer.timer_layout import SLOT_COUNT, SLOT_SIZE
from skylark.store.timer.timer_wheel import Slot, TimerWheel
from tests.unit.store.timer.topics import DISK, new_disk


@pytest.mark.spec("store.12.38")
def test_where_a_slot_stands(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "timerwheel", OsFileSystem(), 1_000)
    time_ms = 1_700_000_009_000
    assert wheel.index(time_ms) == 512_009
    assert wheel.slot(time_ms) is None
    wheel.prepare()
    wheel.put(Slot(time_ms, 52, 104, 2))
    wheel.close()
    content = (tmp_path / "timerwheel").read_bytes()
    assert len(content) == 38_707_200
    slot = content[16_384_288 : 16_384_288 + SLOT_SIZE]
    assert slot.hex() == (
        "000000006553f109" "0000000000000034" "0000000000000068" "00000002" "00000000"
    )  # fmt: skip
    assert content.count(b"\0") == len(content) - sum(map(bool, slot))


def test_a_slot_is_live_for_its_own_time_only() -> None:
    wheel = TimerWheel(DISK / "timerwheel", new_disk(), 1_000, slot_count=100)
    wheel.open()
    assert wheel.handle is None
    wheel.prepare()
    slot = Slot(5_000, 1, 2, 3, 4)
    wheel.put(slot)
    assert wheel.slot(5_000) == wheel.slot(5_999) == slot
    assert (wheel.slot(105_000), wheel.occupant(105_000)) == (None, slot)
    assert wheel.occupant(6_000) is None
    wheel.put(Slot(105_000, 7, 8, 9))
    assert wheel.slot(5_000) is None
    rows = [row for rows in wheel.scan() for row in rows.tolist()]
    assert rows == [(105, 7, 8, 9, 0)]
    wheel.clear(105_000)
    assert not list(wheel.scan())


def test_a_wheel_of_another_size_is_refused() -> None:
    files = new_disk()
    files.create_file(DISK / "timerwheel", 10).close()
    wheel = TimerWheel(DISK / "timerwheel", files, 1_000, slot_count=100)
    with pytest.raises(StoreFileError, match="10 bytes instead of 3200"):
        wheel.open()
    files.remove(DISK / "timerwheel")
    files.create_file(DISK / "timerwheel", 0).close()  # a creation that was interrupted
    wheel.open()
    assert not files.exists(DISK / "timerwheel")


def test_a_wheel_that_does_not_fit_leaves_nothing_behind() -> None:
    files = new_disk(capacity=20_000)
    wheel = TimerWheel(DISK / "timerwheel", files, 1_000, slot_count=10_000)
    with pytest.raises(StoreFullError):
        wheel.prepare()
    assert not files.exists(DISK / "timerwheel")
    files.capacity = 1 << 30
    wheel.prepare()
    assert wheel.handle is not None


def test_slots_that_a_failed_sync_lost_are_written_again() -> None:
    files = new_disk()
    wheel = TimerWheel(DISK / "timerwheel", files, 1_000, slot_count=1_000)
    wheel.prepare()
    wheel.put(Slot(5_000, 1, 2, 3))
    wheel.put(Slot(900_000, 1, 2, 3))
    dirty = wheel.begin_sync()
    assert dirty == (5 * SLOT_SIZE, 901 * SLOT_SIZE)
    assert dirty is not None
    wheel.sync_failed(dirty)
    assert wheel.begin_sync() == dirty


def test_the_wheel_is_two_weeks() -> None:
    assert SLOT_COUNT == 1_209_600
