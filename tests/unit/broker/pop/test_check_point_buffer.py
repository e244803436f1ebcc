"""Merging in memory: what is kept, when it leaves, which offsets are committed."""

from __future__ import annotations

from skylark.broker.pop.check_point_buffer import (
    BUCKET_MS,
    PART_INVISIBLE_MAX_MS,
    RETRY_MS,
    BufferLimits,
    CheckPointBuffer,
    Held,
)
from skylark.wire.pop_records import CheckPoint

NOW = 1_700_000_000_000
LIMITS = BufferLimits(stay_ms=4_000, lead_ms=3_000, count_max=10, line_count_max=5)
LINE = ("T", "g", 0)


def point(
    start: int = 0, count: int = 2, invisible_ms: int = 60_000, **changes: object
) -> CheckPoint:
    fields: dict[str, object] = {
        "topic": "T",
        "group": "g",
        "queue_id": 0,
        "start_offset": start,
        "pop_time_ms": NOW,
        "invisible_ms": invisible_ms,
        "broker_name": "b",
        "offset_diffs": list(range(count)),
    }
    return CheckPoint(**{**fields, **changes})  # type: ignore[arg-type]


def add(buffer: CheckPointBuffer, start: int = 0, count: int = 2, now_ms: int = NOW) -> Held:
    held = buffer.add(point(start, count, pop_time_ms=now_ms), 0, start + count, now_ms)
    assert held is not None
    return held


def test_offsets_are_committed_in_the_order_of_pops() -> None:
    buffer = CheckPointBuffer(LIMITS)
    first, second = add(buffer, 0), add(buffer, 2)
    assert buffer.end_offset(LINE) == 4
    buffer.ack(second, (2, 3))
    assert buffer.take_commit(second) is None
    assert buffer.find(second.point.key) is None
    buffer.ack(first, (1,))
    assert buffer.take_commit(first) is None
    buffer.ack(first, (0, 99))
    assert buffer.take_commit(first) == 4
    assert (len(buffer), buffer.line_count, buffer.end_offset(LINE)) == (0, 0, None)


def test_a_check_point_that_was_written_waits_for_those_before_it() -> None:
    buffer = CheckPointBuffer(LIMITS)
    assert not buffer.add_finished(LINE, 5)
    first = add(buffer, 0)
    assert buffer.add_finished(LINE, 5)
    assert buffer.add_finished(LINE, 9)
    assert buffer.end_offset(LINE) == 9
    buffer.ack(first, (0, 1))
    assert buffer.take_commit(first) == 9


def test_what_is_not_kept() -> None:
    buffer = CheckPointBuffer(LIMITS)
    assert buffer.add(point(invisible_ms=4_400), 0, 2, NOW) is None  # it would leave at once
    assert buffer.add(point(count=33), 0, 33, NOW) is None  # more than there are bits
    add(buffer, 0)
    assert buffer.add(point(0), 0, 2, NOW) is None  # the same handle
    for start in range(2, 10, 2):
        add(buffer, start)
    assert buffer.add(point(10), 0, 12, NOW) is None  # the line is full
    for queue_id in range(1, 6):
        assert buffer.add(point(queue_id=queue_id), 0, 2, NOW) is not None
    assert buffer.add(point(queue_id=9), 0, 2, NOW) is None  # all is full


def test_deadlines() -> None:
    buffer = CheckPointBuffer(LIMITS)
    assert buffer.next_due_ms() is None
    late = add(buffer, 0)
    short = buffer.add(point(2, invisible_ms=5_000), 0, 4, NOW)
    assert buffer.next_due_ms() == NOW + 2_000
    assert list(buffer.due(NOW + 1_999, 10)) == []
    assert list(buffer.due(NOW + 2_000, 10)) == [short]
    assert short is not None
    buffer.finish(short)
    assert buffer.take_commit(short) is None
    assert list(buffer.due(NOW + 3_999, 10)) == []
    assert list(buffer.due(NOW + 4_000, 10)) == [late]
    buffer.postpone(late, NOW + 4_000)
    assert list(buffer.due(NOW + 4_000 + RETRY_MS - 1, 10)) == []
    assert list(buffer.due(NOW + 4_000 + RETRY_MS + BUCKET_MS, 10)) == [late]
    buffer.finish(late)
    assert buffer.take_commit(late) == 4


def test_a_limit_of_what_is_due_at_once() -> None:
    buffer = CheckPointBuffer(LIMITS)
    for start in range(0, 10, 2):
        add(buffer, start)
    later = NOW + 10_000
    counts = []
    while found := list(buffer.due(later, 2)):
        counts.append(len(found))
        for held in found:
            buffer.finish(held)
    assert counts == [2, 2, 1]
    assert buffer.next_due_ms() is None


def test_a_reset_drops_the_line_and_keeps_the_check_points() -> None:
    buffer = CheckPointBuffer(LIMITS)
    held = add(buffer, 0)
    buffer.forget(LINE, NOW)
    assert buffer.end_offset(LINE) is None
    assert list(buffer.due(NOW + BUCKET_MS, 10)) == [held]
    again = add(buffer, 0, now_ms=NOW + 1)
    buffer.finish(held)
    assert buffer.take_commit(held) is None
    buffer.ack(again, (0, 1))
    assert buffer.take_commit(again) == 2


def test_a_message_with_an_invisible_time_of_its_own() -> None:
    buffer = CheckPointBuffer(LIMITS)
    whole = add(buffer, 0)
    part_point = point(1, 1, 1_000, pop_time_ms=NOW + 10)
    assert buffer.change(whole, part_point, NOW + 10)
    assert not buffer.change(whole, point(0, 1, PART_INVISIBLE_MAX_MS + 1), NOW)
    buffer.ack(whole, (0,))
    assert buffer.take_commit(whole) is None
    (part,) = buffer.due(NOW + 1_100, 10)
    assert (part.point, buffer.is_expired(part), buffer.is_expired(whole)) == (
        part_point,
        True,
        False,
    )
    buffer.finish(part)
    assert buffer.take_commit(part) == 2
    assert len(buffer) == 0


def test_a_part_is_acknowledged_and_changed_again() -> None:
    buffer = CheckPointBuffer(LIMITS)
    whole = add(buffer, 0, 1)
    first, second = (point(0, 1, 1_000, pop_time_ms=NOW + n) for n in (10, 20))
    assert buffer.change(whole, first, NOW + 10)
    part = buffer.find(first.key)
    assert part is not None
    assert buffer.change(part, second, NOW + 20)
    assert buffer.find(first.key) is None
    newest = buffer.find(second.key)
    assert newest is not None
    buffer.ack(newest, (0,))
    assert buffer.take_commit(newest) == 1
    assert list(buffer.due(NOW + 60_000, 10)) == []
    assert len(buffer) == 0


def test_the_log_position_of_the_oldest_check_point() -> None:
    buffer = CheckPointBuffer(LIMITS)
    assert buffer.log_end(500) == 500
    first = buffer.add(point(0), 0, 2, NOW, 100)
    second = buffer.add(point(2), 0, 4, NOW, 200)
    assert first is not None
    assert second is not None
    assert buffer.log_end(500) == 100
    buffer.ack(first, (0, 1))
    assert buffer.take_commit(first) == 2
    assert buffer.log_end(500) == 200
