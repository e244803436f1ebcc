"""Answers that wait for slaves."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.replication.ack_wait import AckWaiters
from skylark.replication.config import ReplicationConfig
from skylark.store.store_results import PutStatus
from tests.unit.store.manual_owner import ManualOwner

OK = PutStatus.PUT_OK
LATE = PutStatus.FLUSH_SLAVE_TIMEOUT


class Bench:
    """Waiters, and the answers they gave."""

    def __init__(self, *, near: bool = True, **settings: Any) -> None:
        self.owner = ManualOwner()
        config = ReplicationConfig(in_sync_replicas=2, **settings)
        self.waiters = AckWaiters(config, self.owner, is_slave_near=lambda: near)
        self.answers: list[tuple[int, PutStatus]] = []

    def put(self, end: int, disk: PutStatus | None = OK) -> Any:
        flushed = self.waiters.join(end, lambda status: self.answers.append((end, status)))
        if disk is not None:
            flushed(disk)
        return flushed


def test_one_acknowledgement_releases_all_it_covers_in_order() -> None:
    bench = Bench()
    for end in (100, 200, 300):
        bench.put(end)
    assert bench.answers == []
    bench.waiters.confirm(250)
    assert bench.answers == [(100, OK), (200, OK)]
    assert bench.waiters.waiting_count == 1
    bench.waiters.confirm(300)
    assert bench.answers[2:] == [(300, OK)]
    assert bench.waiters.timeout_count == 0


@pytest.mark.spec("store.12.44")
def test_nobody_waits_longer_than_slave_timeout() -> None:
    bench = Bench()
    bench.put(100)
    bench.owner.advance(1_000)
    bench.put(200)
    bench.owner.advance(1_999)
    assert bench.answers == []
    bench.owner.advance(1)
    assert bench.answers == [(100, LATE)]
    bench.owner.advance(1_000)
    assert bench.answers == [(100, LATE), (200, LATE)]
    assert bench.waiters.timeout_count == 2
    bench.waiters.confirm(300)
    assert len(bench.answers) == 2
    bench.put(250)
    assert bench.answers[2:] == [(250, OK)]  # what is confirmed does not wait


def test_both_the_disk_and_the_slaves_are_waited_for() -> None:
    bench = Bench()
    flushed = bench.put(100, disk=None)
    bench.waiters.confirm(100)
    assert bench.answers == []
    flushed(OK)
    assert bench.answers == [(100, OK)]


def test_the_status_of_the_slaves_wins() -> None:
    bench = Bench()
    bench.put(100, disk=PutStatus.FLUSH_DISK_TIMEOUT)
    bench.put(200, disk=PutStatus.FLUSH_DISK_TIMEOUT)
    bench.waiters.confirm(100)
    assert bench.answers == [(100, PutStatus.FLUSH_DISK_TIMEOUT)]
    bench.owner.advance(3_000)
    assert bench.answers[1:] == [(200, LATE)]


@pytest.mark.spec("store.12.44")
def test_slave_not_available_is_said_only_in_the_mode_of_4x() -> None:
    bench = Bench(near=False, ha_compatible4x=True)
    bench.put(100)
    assert bench.answers == [(100, PutStatus.SLAVE_NOT_AVAILABLE)]
    bench = Bench(near=False)
    bench.put(100)
    assert bench.answers == []
    bench = Bench(near=True, ha_compatible4x=True)
    bench.put(100)
    bench.waiters.confirm(100)
    assert bench.answers == [(100, OK)]


def test_who_stops_lets_nobody_wait() -> None:
    bench = Bench()
    bench.put(100)
    bench.waiters.stop()
    bench.put(200)
    assert bench.answers == [(100, LATE), (200, LATE)]
    assert bench.owner.timer_count == 0


def test_a_waiter_that_fails_does_not_keep_others_waiting(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def fail(status: PutStatus) -> None:
        raise ValueError(status.name)

    bench.waiters.join(100, fail)(OK)
    bench.put(200)
    bench.waiters.confirm(200)
    assert bench.answers == [(200, OK)]
    assert "a waiter failed on PUT_OK" in caplog.text


def test_a_shorter_time_holds_for_those_who_wait_too() -> None:
    bench = Bench()
    bench.put(100)
    bench.owner.advance(500)
    bench.waiters.follow(ReplicationConfig(in_sync_replicas=2, slave_timeout=1_000))
    bench.put(200)
    bench.owner.advance(999)
    assert bench.answers == []
    bench.owner.advance(1)
    assert bench.answers == [(100, LATE), (200, LATE)]


def test_a_longer_time_holds_for_those_who_come() -> None:
    bench = Bench()
    bench.put(100)
    bench.waiters.follow(ReplicationConfig(in_sync_replicas=2, slave_timeout=9_000))
    bench.put(200)
    bench.owner.advance(3_000)
    assert bench.answers == [(100, LATE)]
    bench.owner.advance(6_000)
    assert bench.answers == [(100, LATE), (200, LATE)]
