"""Latency fault tolerance: how long a broker is avoided, and when it is asked again."""

from __future__ import annotations

import pytest

from skylark.client.producer.latency_fault_tolerance import FaultTable, avoid_s


class Now:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0), (49, 0), (50, 0), (549, 0), (550, 2000), (600, 2000), (1799, 2000), (1800, 5000),
        (3000, 6000), (5000, 10000), (10000, 10000), (15000, 30000), (999999, 30000),
    ],
)  # fmt: skip
def test_the_table(latency_ms: int, expected_ms: int) -> None:
    assert avoid_s(latency_ms / 1000) == expected_ms / 1000


@pytest.mark.spec("client.8.14")
def test_slow_answers_and_failures_isolate_for_their_time() -> None:
    now = Now()
    table = FaultTable(now)
    assert table.is_available("a")
    table.update("a", 0.6, isolated=False, reachable=True)
    table.update("b", 0.001, isolated=True, reachable=True)
    assert not table.is_available("a")
    now.time += 1.999
    assert not table.is_available("a")
    now.time += 0.001
    assert table.is_available("a")
    assert not table.is_available("b")
    now.time += 8.0
    assert table.is_available("b")


def test_a_quick_answer_does_not_end_an_isolation() -> None:
    now = Now()
    table = FaultTable(now)
    table.update("a", 0.0, isolated=True, reachable=False)
    assert not table.is_reachable("a")
    table.update("a", 0.01, isolated=False, reachable=True)
    assert table.is_reachable("a")
    assert not table.is_available("a")
    table.update("a", 0.6, isolated=False, reachable=True)  # would be shorter
    now.time += 9.9
    assert not table.is_available("a")
    now.time += 0.1
    assert table.is_available("a")


def test_the_detector_asks_at_its_interval_and_forgets() -> None:
    now = Now()
    table = FaultTable(now, detect_interval_s=2.0)
    table.update("a", 0.0, isolated=True, reachable=False)
    table.update("b", 0.0, isolated=True, reachable=True)
    assert table.take_due() == []
    now.time += 2.0
    assert table.take_due() == ["a"]
    assert table.take_due() == []
    now.time += 2.0
    assert table.take_due() == ["a"]
    table.answered("a")
    assert table.is_reachable("a")
    now.time += 2.0
    assert table.take_due() == []
    table.update("a", 0.0, isolated=True, reachable=False)
    assert table.take_due() == ["a"]
    table.forget("a")
    table.answered("a")
    assert table.is_available("a")
    now.time += 2.0
    assert table.take_due() == []
