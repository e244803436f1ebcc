"""Progress of delay levels, by numbers alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.delay.delay_progress import (
    LOG_OFFSET_STEP,
    MARKS_MAX,
    RUNS_MAX,
    TOLERANCE_MS,
    DelayLevel,
    DelayLevels,
    DelayRun,
)
from skylark.store.config_tables import DelayOffsetTable
from skylark.wire.bodies.common_body import DataVersion

NOW = 1_700_000_000_000


def no_queue(_queue_id: int) -> tuple[int, int]:
    return 0, 0


def test_progress_is_safe_when_the_log_is_on_disk() -> None:
    run = DelayRun.at(0, 0)
    run.delivered(100)
    run.delivered(200)
    run.mark(flushed_where=50)
    assert run.next_offset == 2
    run.delivered(300)
    run.mark(50)
    assert run.safe_offset(50) == 0
    assert run.safe_offset(199) == 0
    assert run.safe_offset(200) == 2
    assert run.safe_offset(300) == 3


def test_entries_passed_over_are_safe_with_the_deliveries_before_them() -> None:
    run = DelayRun.at(0, 0)
    run.next_offset += 1
    run.mark(0)
    assert run.safe_offset(0) == 1
    run.delivered(100)
    run.next_offset += 1
    run.mark(0)
    assert (run.safe_offset(99), run.safe_offset(100)) == (1, 3)


def test_expired_entries_are_passed_over() -> None:
    level = DelayLevel(1, 1000)
    level.begin_at(5, 5, 20)
    assert level.keep_within(5, 20) == 0
    assert level.keep_within(12, 20) == 7
    assert level.next_offset == 12


def test_a_recreated_queue_is_delivered_from_its_start() -> None:
    level = DelayLevel(1, 1000)
    level.begin_at(5, 5, 20)
    level.runs[0].delivered(100)
    level.runs[0].mark(0)
    assert level.keep_within(0, 2) == 0
    assert (level.next_offset, level.runs[0].safe_offset(1000)) == (0, 0)


def test_the_newest_mark_takes_what_is_too_much() -> None:
    run = DelayRun.at(0, 0)
    for number in range(1, MARKS_MAX + 11):
        run.delivered(number * 100)
        run.mark(0)
    last = MARKS_MAX + 10
    assert run.safe_offset((MARKS_MAX - 1) * 100) == MARKS_MAX - 1
    assert run.safe_offset(last * 100 - 1) == MARKS_MAX - 1
    assert run.safe_offset(last * 100) == last


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 400)), max_size=60))
def test_progress_is_never_safe_before_the_disk_has_it(
    steps: list[tuple[int, int, int]],
) -> None:
    """Each step: deliveries, entries passed over behind them, bytes that the disk catches up."""
    run = DelayRun.at(0, 0)
    log_end = flushed = 0
    ends: list[int] = []  # where the log had to be on disk, by entry
    for delivered_count, skipped_count, flushed_size in steps:
        for _ in range(delivered_count):
            log_end += 100
            run.delivered(log_end)
            ends.append(log_end)
        run.next_offset += skipped_count
        ends += [log_end] * skipped_count
        run.mark(flushed)
        flushed = min(log_end, flushed + flushed_size)
        safe = run.safe_offset(flushed)
        assert all(end <= flushed for end in ends[:safe])
    assert run.safe_offset(log_end) == run.next_offset == len(ends)


def test_load_goes_on_within_what_the_queues_hold() -> None:
    levels = DelayLevels([1000, 5000, 10_000, 30_000], NOW)
    version = DataVersion(counter=4, timestamp=NOW - 1)
    table = DelayOffsetTable(data_version=version, offset_table={1: 10, 2: 3, 3: 99})
    bounds = {0: (0, 12), 1: (5, 9), 2: (0, 40), 3: (7, 8)}
    levels.load(table, bounds, bounds.__getitem__)
    assert {level: p.next_offset for level, p in levels.by_level.items()} == {
        1: 10, 2: 5, 3: 40, 4: 7,
    }  # fmt: skip
    assert levels.snapshot(0, 0).offset_table == {1: 10, 2: 5, 3: 40, 4: 7}
    assert levels.version == version


def test_an_offset_without_a_queue_is_of_no_use() -> None:
    """The next message there gets offset 0: Java would pass over it."""
    levels = DelayLevels([1000], NOW)
    levels.load(DelayOffsetTable(offset_table={1: 5}), [], no_queue)
    assert levels.by_level[1].next_offset == 0
    assert levels.snapshot(0, 0).offset_table == {1: 0}


def test_levels_without_messages_are_not_listed() -> None:
    levels = DelayLevels([1000, 5000], NOW)
    levels.load(DelayOffsetTable(), [], no_queue)
    assert levels.offsets(0) == DelayOffsetTable(data_version=DataVersion(timestamp=NOW))
    levels.by_level[2].listed = True
    assert levels.snapshot(0, 0).offset_table == {2: 0}


def test_queues_of_levels_that_are_gone_are_kept() -> None:
    levels = DelayLevels([1000], NOW)
    levels.load(DelayOffsetTable(offset_table={1: 1, 3: 2}), [0, 2], lambda _id: (0, 4))
    assert [(level, p.delay_ms, p.next_offset) for level, p in levels.by_level.items()] == [
        (1, 1000, 1),
        (3, None, 2),
    ]


def test_so_many_deliveries_make_a_new_version() -> None:
    levels = DelayLevels([1000], NOW)
    levels.count_progress(199, 200, NOW + 1)
    assert levels.version.counter == 0
    levels.count_progress(1, 200, NOW + 2)
    assert (levels.version.counter, levels.version.timestamp) == (1, NOW + 2)
    levels.count_progress(0, 200, NOW + 3)
    assert levels.version.counter == 1


def test_whether_all_progress_is_safe() -> None:
    levels = DelayLevels([1000, 5000], NOW)
    assert levels.are_safe(0)
    levels.by_level[2].runs[0].delivered(100)
    levels.by_level[2].runs[0].mark(0)
    assert not levels.are_safe(99)
    assert levels.are_safe(100)


# --- runs -----------------------------------------------------------------------------------------


def test_entries_that_are_due_before_older_ones_begin_a_run() -> None:
    level = DelayLevel(1, 1000)
    assert level.arrived(0, NOW) is None
    assert level.arrived(1, NOW - TOLERANCE_MS) is None
    run = level.arrived(2, NOW - TOLERANCE_MS - 1)
    assert run is level.runs[1]
    assert [(r.start, r.next_offset, r.end) for r in level.runs] == [(0, 0, 2), (2, 2, None)]
    assert level.arrived(3, NOW - 100) is None, "in order within its run"
    run.delivered(100, 2)
    assert level.arrived(4, NOW - 10_000) is None, "nothing is in front of it"
    assert level.next_offset == 0


def test_runs_are_bounded() -> None:
    level = DelayLevel(1, 1000)
    for offset in range(RUNS_MAX + 10):
        level.arrived(offset, NOW - offset * 10_000)
    assert len(level.runs) == RUNS_MAX
    assert level.runs[-1].end is None


def test_runs_are_saved_and_loaded() -> None:
    levels = DelayLevels([1000], NOW)
    levels.load(DelayOffsetTable(), [0], lambda _id: (0, 4))
    level = levels.by_level[1]
    for offset, due_ms in enumerate([NOW, NOW + 9_000, NOW - 9_000, NOW - 8_000]):
        level.arrived(offset, due_ms)
    level.runs[0].delivered(100)
    level.runs[1].delivered(200)
    for run in level.runs:
        run.mark(0)
    table = levels.snapshot(200, 300)
    assert (table.offset_table, table.runs, table.log_offset) == ({1: 1}, {1: [(2, 3)]}, 300)
    again = DelayLevels([1000], NOW)
    again.load(table, [0], lambda _id: (0, 4))
    assert [(r.start, r.next_offset, r.end) for r in again.by_level[1].runs] == [
        (1, 1, 2),
        (2, 3, None),
    ]
    level.runs[0].delivered(300)
    level.runs[0].mark(200)
    assert levels.snapshot(299, 400).runs == {1: [(2, 3)]}
    last = levels.snapshot(300, 400)
    assert (last.offset_table, last.runs) == ({1: 3}, None), "the first run is done for good"


def test_copies_that_are_not_saved_are_behind_the_log_offset() -> None:
    levels = DelayLevels([1000, 5000], NOW)
    for level in levels.by_level.values():
        level.listed = True
    first = levels.by_level[1].runs[0]
    assert levels.snapshot(50, 50).log_offset == 50
    first.delivered(200)
    first.mark(50)
    assert levels.snapshot(199, 1_000).log_offset == 50
    assert levels.snapshot(200, 1_000).log_offset == 1_000
    assert levels.snapshot(1_500, 2_000).log_offset == 1_000, "nothing was delivered"
    grown = 1_000 + LOG_OFFSET_STEP
    assert levels.snapshot(grown, grown).log_offset == grown
