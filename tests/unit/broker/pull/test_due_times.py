"""The due times of waiting requests."""

from __future__ import annotations

from skylark.broker.pull.due_times import NEVER, TAKEN_MAX, DueTimes


class Request:
    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms


def test_requests_are_taken_in_the_order_of_their_times() -> None:
    due: DueTimes[Request] = DueTimes(lambda: 3)
    requests = [Request(due_ms) for due_ms in (30, 10, 20, 10)]
    for request in requests:
        due.push(request)
    assert due.first() == 10
    assert due.take(9) == []
    assert due.take(20) == [requests[1], requests[3], requests[2]]
    assert [request.due_ms for request in requests] == [30, NEVER, NEVER, NEVER]
    assert due.first() == 30


def test_a_changed_time_replaces_the_old_one() -> None:
    due: DueTimes[Request] = DueTimes(lambda: 1)
    request = Request(10)
    due.push(request)
    request.due_ms = 40
    due.push(request)
    assert due.first() == 40
    assert due.take(39) == []
    assert due.take(40) == [request]
    assert due.first() is None


def test_so_many_are_taken_at_once() -> None:
    due: DueTimes[Request] = DueTimes(lambda: 0)
    for number in range(TAKEN_MAX + 1):
        due.push(Request(number))
    assert len(due.take(10_000)) == TAKEN_MAX
    assert due.first() == TAKEN_MAX
    assert len(due.take(10_000)) == 1


def test_void_entries_are_dropped_when_they_are_the_larger_part() -> None:
    waiting: list[Request] = []
    due: DueTimes[Request] = DueTimes(lambda: len(waiting))
    for number in range(10_000):
        request = Request(10**6 + number)
        due.push(request)
        request.due_ms = NEVER  # removed at once
    assert len(due._heap) < 1_100
