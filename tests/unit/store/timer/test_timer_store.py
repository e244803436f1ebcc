"""Placing and taking out, without crashes."""

from __future__ import annotations

import pytest

from skylark.store.config_tables import TimerMetricsTable
from skylark.store.errors import StoreFullError
from skylark.store.timer.timer_layout import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL
from skylark.store.timer.timer_store import TimerCounts, TimerOptions, TimerStore
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerMetric
from tests.unit.store.timer.topics import DISK, Topic, deliver, new_timer, place, save

NOW = 1_000_000_000


def placed_at(timer: TimerStore, delay_slots: int) -> tuple[int, int]:
    """In which slot (from now on) a message lands, and the magic of its unit."""
    timer.advance(NOW)
    assert timer.place(NOW + delay_slots * 1_000, 1_000, 1, 0, is_delete=False)
    unit = timer.log.read(timer.log.unit_at(timer.log.end - 1))
    assert unit is not None
    return (unit.slot_time_ms - NOW) // 1_000, unit.magic


@pytest.mark.parametrize(
    ("delay_slots", "slot", "magic"),
    [
        (0, 0, MAGIC_DEFAULT),
        (99, 99, MAGIC_DEFAULT),
        (100, 50, MAGIC_DEFAULT | MAGIC_ROLL),  # a little beyond the window: half way
        (132, 50, MAGIC_DEFAULT | MAGIC_ROLL),
        (133, 100, MAGIC_DEFAULT | MAGIC_ROLL),
        (500, 100, MAGIC_DEFAULT | MAGIC_ROLL),
    ],
)
def test_roll_window(delay_slots: int, slot: int, magic: int) -> None:
    timer = new_timer(FaultyFileSystem(), Topic())
    assert placed_at(timer, delay_slots) == (slot, magic)


@pytest.mark.parametrize(
    ("given", "used"), [(2, 2), (1, 604_740), (604_740, 604_740), (604_741, 604_740)]
)
def test_java_rule_for_the_window(given: int, used: int) -> None:
    assert TimerOptions(roll_window_slots=given).window_slots == used


def test_slots_come_in_order_of_time() -> None:
    topic = Topic()
    timer = new_timer(FaultyFileSystem(), topic)
    topic.times_ms = [NOW + 5_000, NOW + 1_000, NOW + 3_000, NOW + 1_000, NOW - 1_000]
    assert timer.due_ms() is None
    assert place(timer, topic, NOW + 999) == [4]
    assert (timer.due_ms(), timer.waiting_count) == (NOW + 2_000, 4)
    assert deliver(timer, NOW + 1_999) == []
    assert deliver(timer, NOW + 2_000) == [1, 3]
    assert timer.due_ms() == NOW + 4_000
    assert deliver(timer, NOW + 60_000) == [2, 0]
    assert (timer.due_ms(), timer.waiting_count) == (None, 0)
    assert timer.slot_count_at(NOW + 1_000) == 2  # slots keep what they had


def test_a_mark_counts_as_one_less() -> None:
    timer = new_timer(FaultyFileSystem(), Topic())
    timer.advance(NOW)
    for is_delete in (False, False, True):
        timer.place(NOW + 5_000, 1_000, 1, 0, is_delete=is_delete)
    assert (timer.slot_count_at(NOW + 5_000), timer.waiting_count) == (1, 1)
    timer.advance(NOW + 6_000)
    walk = timer.next_slot()
    assert walk is not None
    walk.step(10)
    assert walk.is_complete
    mark = walk.next_delete()
    assert mark is not None
    assert mark.magic == MAGIC_DEFAULT | MAGIC_DELETE
    assert walk.next_delete() is None


def test_a_slot_of_the_last_lap_must_be_empty_first() -> None:
    topic = Topic()
    timer = new_timer(FaultyFileSystem(), topic)
    topic.times_ms = [NOW + 5_000, NOW + 1_205_000]
    place(timer, topic, NOW)
    timer.advance(NOW + 1_200_000)
    assert timer.queue_offset == 2  # rolled: it is nowhere near its own slot
    topic.times_ms.append(NOW + 1_205_000)
    assert place(timer, topic, NOW + 1_200_000) == []
    assert timer.queue_offset == 2
    assert deliver(timer, NOW + 1_200_000) == [0, 1]
    assert place(timer, topic, NOW + 1_200_000) == []
    assert deliver(timer, NOW + 1_206_000) == [2]


def test_a_chain_that_breaks_ends() -> None:
    topic = Topic()
    timer = new_timer(FaultyFileSystem(), topic)
    topic.times_ms = [NOW + 5_000] * 3
    place(timer, topic, NOW)
    file = timer.log.files.last
    file.buffer[52 + 4 : 52 + 12] = (104).to_bytes(8, "big")  # the second leads to the third
    assert deliver(timer, NOW + 6_000) == [1, 2]


def test_nothing_changes_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = new_timer(FaultyFileSystem(), Topic())
    timer.advance(NOW)

    def full(*_args: object) -> int:
        raise StoreFullError("no room", path=DISK)

    monkeypatch.setattr(timer.log, "append", full)
    with pytest.raises(StoreFullError):
        timer.place(NOW + 5_000, 1_000, 1, 0, is_delete=False)
    assert (timer.waiting_count, timer.due_ms(), timer.is_dirty) == (0, None, False)


def test_slots_that_are_done_stay_done_when_the_clock_is_set_back() -> None:
    topic, files = Topic(), FaultyFileSystem()
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 2_000, NOW + 3_000, NOW + 9_000]
    place(timer, topic, NOW)
    assert deliver(timer, NOW + 5_999) == [0, 1]
    assert timer.advance(NOW) == NOW
    assert sorted(timer.done) == [NOW + 2_000, NOW + 3_000]
    assert timer.slot_count_at(NOW + 2_000) == 0
    topic.times_ms += [NOW + 3_000, NOW + 1_000]  # a new chain, and a slot before the old ones
    place(timer, topic, NOW)
    save(timer, NOW)
    again = new_timer(files, topic)
    assert again.advance(NOW) == NOW
    assert sorted(again.done) == [NOW + 2_000]
    for each in (timer, again):
        assert deliver(each, NOW + 5_000) == [4, 3]
        assert deliver(each, NOW + 11_000) == [2]
        assert (each.waiting_count, each.done) == (0, {})


def test_the_content_of_a_snapshot() -> None:
    topic = Topic()
    files = FaultyFileSystem()
    timer = new_timer(files, topic)
    topic.times_ms = [NOW + 5_000, NOW + 2_000]
    place(timer, topic, NOW)
    timer.counts.add("T", 2, NOW)
    save(timer, NOW + 3_500)  # the second is due, and not delivered
    saved = timer.checkpoint.saved
    assert not timer.is_dirty
    assert saved.last_read_time_ms == NOW + 2_000
    assert (saved.last_timer_log_flush_pos, saved.last_timer_queue_offset) == (104, 2)
    assert deliver(timer, NOW + 3_500) == [1]
    save(timer, NOW + 3_500)
    assert timer.checkpoint.saved.last_read_time_ms == NOW + 3_000
    assert timer.checkpoint.saved.data_version.counter == 2
    again = new_timer(files, topic)
    assert (again.counts.by_topic(), again.waiting_count) == ({"T": 2}, 1)


def test_messages_that_wait_are_counted_by_topic() -> None:
    counts = TimerCounts()
    counts.load(
        TimerMetricsTable(
            timing_count={"T": TimerMetric(count=2, time_stamp=1)},
            data_version=DataVersion(counter=5),
        )
    )
    counts.add("T", -1, 10)
    counts.add("U", 1, 11)
    table = counts.table()
    counts.add("U", 1, 12)
    assert table.timing_count == {
        "T": TimerMetric(count=1, time_stamp=10),
        "U": TimerMetric(count=1, time_stamp=11),
    }
    assert table.data_version == DataVersion(counter=7, timestamp=11)
    assert (counts.count("U"), counts.count("V"), counts.by_topic()) == (2, 0, {"T": 1, "U": 2})
    counts.remove("U", 13)
    counts.remove("U", 14)
    assert counts.by_topic() == {"T": 1}
    assert counts.version == DataVersion(counter=9, timestamp=13)
