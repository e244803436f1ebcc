"""The revive of one queue: which check-points are due, and when."""

from __future__ import annotations

import pytest

from skylark.broker.pop import revive
from skylark.broker.pop.revive import GRACE_MS, PUT_OFF_S, ReviveQueue, ReviveRecord, put_off
from skylark.wire.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECK_POINT_TAG, Ack, CheckPoint

T0 = 1_700_000_000_000
INVISIBLE = 10_000
END = T0 + INVISIBLE


def point(start: int = 0, count: int = 2, pop_time_ms: int = T0) -> CheckPoint:
    return CheckPoint(
        topic="T",
        group="g",
        queue_id=0,
        start_offset=start,
        pop_time_ms=pop_time_ms,
        invisible_ms=INVISIBLE,
        broker_name="b",
        offset_diffs=list(range(count)),
    )


def ack(start: int, *offsets: int, is_batch: bool = False) -> Ack:
    return Ack(
        topic="T",
        group="g",
        queue_id=0,
        start_offset=start,
        pop_time_ms=T0,
        broker_name=None if is_batch else "b",
        queue_offsets=offsets,
        is_batch=is_batch,
    )


class Feed:
    """Gives records to a queue, in order."""

    def __init__(self, committed: int = -1, seen: dict[int, int] | None = None) -> None:
        self.queue = ReviveQueue(0, committed, "b", seen=seen)
        self._offset = committed + 1

    def add(self, record: CheckPoint | Ack) -> None:
        tag = CHECK_POINT_TAG
        if isinstance(record, Ack):
            tag = BATCH_ACK_TAG if record.is_batch else ACK_TAG
        self.raw(tag, record.encode())

    def raw(self, tag: str, body: bytes) -> None:
        self.queue.read(ReviveRecord(self._offset, tag, body))
        self._offset += 1

    def due(self, now_ms: int) -> list[list[int]]:
        """The messages of the check-points that leave."""
        found = []
        while (waiting := self.queue.take_due(now_ms)) is not None:
            found.append([] if waiting.is_repeated else waiting.point.waiting_offsets())
            self.queue.done(waiting)
        return found


def test_acks_are_taken_off() -> None:
    feed = Feed()
    feed.add(point(0, 3))
    feed.add(point(3, 3))
    feed.add(ack(0, 1))
    feed.add(ack(3, 3, 5, is_batch=True))
    feed.queue.end_reached(END + 60_000)
    assert feed.due(END + 60_000) == [[0, 2], [4]]
    assert feed.queue.committed_offset == 1  # that of the last check-point, not of the acks
    assert feed.queue.read_offset == 4


def test_never_early_and_not_before_the_acks_are_read() -> None:
    feed = Feed()
    feed.add(point())
    assert feed.queue.next_due_ms() == END + GRACE_MS + 1
    assert feed.due(END + 60_000) == []  # the timer may have acks
    feed.queue.end_reached(END - 1)
    assert feed.due(END + 60_000) == []
    feed.queue.end_reached(END)
    assert feed.due(END + GRACE_MS) == []
    assert feed.due(END + GRACE_MS + 1) == [[0, 1]]


def test_an_ack_that_comes_before_its_check_point() -> None:
    feed = Feed()
    feed.add(ack(0, 1))
    feed.add(point(0, 2))
    feed.queue.end_reached(END)
    assert feed.due(END + 60_000) == [[0]]


def test_check_points_leave_in_the_order_of_the_log() -> None:
    feed = Feed()
    feed.add(point(0, 1, T0 + 30_000))
    feed.add(point(1, 1))
    feed.queue.end_reached(END + 20_000)
    assert feed.due(END + 20_000) == []
    assert feed.queue.committed_offset == -1
    feed.queue.end_reached(END + 40_000)
    assert feed.due(END + 40_000) == [[0], [1]]


def test_a_check_point_that_the_timer_delivers_twice() -> None:
    body = point(0, 2).encode()
    feed = Feed(committed=4, seen={hash(body): 3})
    feed.raw(CHECK_POINT_TAG, body)
    feed.add(ack(0, 0))
    feed.queue.end_reached(END + 60_000)
    assert feed.due(END + 60_000) == [[]]
    assert feed.queue.counts.repeated == 1
    assert feed.queue.committed_offset == 5


def test_the_second_of_two_does_not_take_back_acks() -> None:
    body = point(0, 2).encode()
    feed = Feed(seen={hash(body): 0})
    feed.raw(CHECK_POINT_TAG, body)
    feed.add(ack(0, 0))
    feed.raw(CHECK_POINT_TAG, body)
    feed.queue.end_reached(END + 60_000)
    assert feed.due(END + 60_000) == [[1], []]


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("ck", b"{}"),
        ("ack", b"x"),
        ("bAck", b'{"aol":7}'),
        ("", b""),
        ("other", b"{}"),
        ("ck", b"0-1"),
    ],
)
def test_unreadable_records_are_skipped(tag: str, body: bytes) -> None:
    feed = Feed()
    feed.raw(tag, body)
    feed.add(point(0, 1))
    feed.queue.end_reached(END + 60_000)
    assert feed.due(END + 60_000) == [[0]]
    assert feed.queue.counts.unreadable == 1


def test_acks_without_a_check_point_and_of_messages_that_were_not_popped() -> None:
    feed = Feed()
    feed.add(ack(5, 5))
    feed.add(point(0, 1))
    feed.add(ack(0, 7))
    assert feed.queue.counts.unmatched_acks == 1
    feed.queue.end_reached(END + 60_000)
    assert feed.due(END + 60_000) == [[0]]


def test_an_ack_before_the_committed_offset_counts_for_a_later_check_point() -> None:
    feed = Feed(committed=4)
    body = ack(0, 1).encode()
    feed.queue.read_before(ReviveRecord(2, ACK_TAG, body))
    feed.queue.read_before(ReviveRecord(3, CHECK_POINT_TAG, point(7).encode()))
    assert (feed.queue.read_offset, len(feed.queue)) == (5, 0)
    feed.add(point(0, 2))
    feed.queue.end_reached(END)
    assert feed.due(END + 60_000) == [[0]]


def test_a_queue_that_was_deleted_begins_anew() -> None:
    feed = Feed(committed=100)
    assert feed.queue.read_offset == 101
    feed.queue.skip_to(0)
    assert (feed.queue.read_offset, feed.queue.committed_offset) == (0, -1)
    feed = Feed(committed=3)
    feed.queue.skip_to(50)
    assert (feed.queue.read_offset, feed.queue.committed_offset) == (50, 3)


def read_all(queue: ReviveQueue, records: list[CheckPoint | Ack]) -> int:
    """Read a queue as the runner does; how many records were given."""
    count = 0
    while queue.position < len(records):
        record, offset = records[queue.position], queue.position
        tag = ACK_TAG if isinstance(record, Ack) else CHECK_POINT_TAG
        queue.read(ReviveRecord(offset, tag, record.encode()))
        count += 1
    queue.end_reached(END + 60_000)
    return count


def test_a_full_queue_is_read_on_for_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revive, "POINTS_MAX", 4)
    records: list[CheckPoint | Ack] = [point(start, 2) for start in range(0, 20, 2)]
    records += [ack(start, start) for start in range(0, 20, 2)]
    queue, left = ReviveQueue(0, -1, "b"), []
    for _ in range(20):
        read_all(queue, records)
        assert len(queue) <= 4
        while (
            queue.position == len(records) and (waiting := queue.take_due(END + 60_000)) is not None
        ):
            left.append(waiting.point.waiting_offsets())
            queue.done(waiting)
    assert left == [[start + 1] for start in range(0, 20, 2)]
    assert queue.committed_offset == 9
    assert (queue.counts.check_points, queue.counts.acks) == (10, 10)


def test_check_points_that_were_passed_over_wait_for_their_acks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revive, "POINTS_MAX", 2)
    records: list[CheckPoint | Ack] = [point(0, 1), point(1, 1), point(2, 1), ack(2, 2)]
    queue = ReviveQueue(0, -1, "b")
    read_all(queue, records)
    first = queue.take_due(END + 60_000)
    assert first is not None
    queue.done(first)
    assert queue.position == 2  # there is room: all that was passed over is read again
    assert queue.take_due(END + 60_000) is None
    read_all(queue, records)
    second = queue.take_due(END + 60_000)
    assert second is not None
    queue.done(second)
    read_all(queue, records)
    third = queue.take_due(END + 60_000)
    assert third is not None
    assert third.point.waiting_offsets() == []


def test_unreadable_messages_are_put_off_longer_and_longer() -> None:
    first = put_off(point(0, 5), 3, END)
    assert first is not None
    assert (first.start_offset, list(first.offset_diffs)) == (3, [0])
    assert (first.pop_time_ms, first.invisible_ms) == (T0, INVISIBLE + 10_000)
    times, later = [], first
    for _ in range(20):
        before = later.invisible_ms
        later = put_off(later, 3, later.revive_time_ms)  # type: ignore[assignment]
        times.append((later.invisible_ms - before) // 1_000)
    assert times == [*PUT_OFF_S[1:], 7_200, 7_200, 7_200, 7_200]
    assert later.re_put_times == "21"
    assert put_off(later, 3, END, give_up_at_max=True) is None
    assert put_off(point(), 0, END, give_up_at_max=True) is not None
