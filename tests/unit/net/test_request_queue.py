"""Requests in flight: their memory counts until their responses are sent."""

from __future__ import annotations

from skylark.net.request_queue import InflightRequests
from skylark.wire.command import Command


def test_a_request_counts_until_its_answer_is_there() -> None:
    held = InflightRequests()
    first, second = Command(body=bytes(100)), Command(remark="r", ext={"ab": "cde"})
    held.hold(first)
    held.hold(second)
    assert held.size == 106
    held.let_go(first)
    assert held.size == 6
    held.let_go(second)
    assert held.size == 0


def test_an_answer_may_come_before_its_handler_returns() -> None:
    held = InflightRequests()
    request = Command(body=bytes(100))
    for _ in range(3):
        held.let_go(request)
        held.hold(request)
        assert held.size == 0


def test_an_early_response_is_not_counted_for_a_later_request() -> None:
    held = InflightRequests()
    for _ in range(10):
        held.let_go(Command())  # its place in memory is free again at once
        request = Command(body=bytes(100))
        held.hold(request)
        assert held.size == 100
        held.let_go(request)
        assert held.size == 0
