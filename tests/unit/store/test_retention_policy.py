"""What the retention policy decides: facts in, a plan out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from skylark.store.config import StoreConfig
from skylark.store.file_system import DiskUsage
from skylark.store.retention import MANUAL_PASSES, Facts, Plan, RetentionPolicy, local_hour
from tests.unit.store.manual_owner import START_MS

ROOT = Path("/store")
HOUR_MS = 3_600_000
NOW = START_MS
OLD, YOUNG = NOW - 72 * HOUR_MS, NOW - 72 * HOUR_MS + 1


def policy(**settings: Any) -> RetentionPolicy:
    return RetentionPolicy(StoreConfig(store_path_root_dir=ROOT, **settings))


def disk(percent: float) -> DiskUsage:
    free = round(10_000 - 100 * percent)
    return DiskUsage(10_000, free, free)


def facts(*store_times: int | None, **changes: Any) -> Facts:
    quiet = Facts(
        now_ms=NOW,
        hour=12,
        log_disk=disk(50),
        queue_disk=disk(50),
        file_size=100,
        log_size=100 * len(store_times) + 50,
        retired_count=0,
        store_times=store_times,
    )
    return quiet._replace(**changes)


def deleted(decider: RetentionPolicy, given: Facts) -> tuple[int, int]:
    """Files that go, and how many of them because there is no room."""
    plan = decider.decide(given)
    return plan.delete_count, plan.forced_count


def test_expired_files_go_at_their_hour() -> None:
    decider = policy(delete_when="04;16")
    assert [deleted(decider, facts(OLD, hour=hour)) for hour in (3, 4, 16, 17)] == [
        (0, 0), (1, 0), (1, 0), (0, 0),
    ]  # fmt: skip
    assert decider.decide(facts(OLD)) == Plan(log_disk_full=False, queue_disk_full=False)


def test_oldest_first_up_to_one_that_is_younger() -> None:
    decider = policy()
    assert deleted(decider, facts(OLD, OLD, YOUNG, OLD, hour=4)) == (2, 0)
    assert deleted(decider, facts(YOUNG, OLD, hour=4)) == (0, 0)
    assert deleted(decider, facts(OLD, None, OLD, hour=4)) == (1, 0)  # who knows how old
    assert deleted(decider, facts(hour=4)) == (0, 0)
    assert deleted(decider, facts(*[OLD] * 30, hour=4)) == (10, 0)
    assert deleted(policy(file_reserved_time=71), facts(YOUNG, hour=4)) == (1, 0)


@pytest.mark.parametrize("which", ["log_disk", "queue_disk"])
def test_a_full_disk_deletes_more_and_more(which: str) -> None:
    decider = policy()
    files = OLD, YOUNG, YOUNG, YOUNG

    def at(percent: float) -> tuple[int, int]:
        return deleted(decider, facts(*files, **{which: disk(percent)}))

    assert [at(75), at(75.1)] == [(0, 0), (1, 0)]  # what is expired
    assert [at(85), at(85.1), at(86), at(86.1)] == [(1, 0), (1, 1), (1, 1), (2, 2)]  # too much
    assert at(99) == (4, 4)  # all there is


@pytest.mark.parametrize("which", ["log_disk", "queue_disk"])
def test_messages_are_refused_over_90_percent(which: str) -> None:
    decider = policy()
    for percent, full in ((90, False), (90.1, True), (86, False)):
        plan = decider.decide(facts(**{which: disk(percent)}))
        assert getattr(plan, f"{which}_full") is full
        other = "queue_disk" if which == "log_disk" else "log_disk"
        assert getattr(plan, f"{other}_full") is False


def test_files_that_are_still_being_read_count_as_freed() -> None:
    decider = policy()
    files = YOUNG, YOUNG, YOUNG
    assert deleted(decider, facts(*files, log_disk=disk(87))) == (2, 2)
    assert deleted(decider, facts(*files, log_disk=disk(87), retired_count=1)) == (1, 1)
    assert deleted(decider, facts(*files, log_disk=disk(87), retired_count=2)) == (0, 0)


def test_nothing_goes_before_its_time_if_that_is_forbidden() -> None:
    decider = policy(clean_file_forcibly_enable=False)
    assert deleted(decider, facts(OLD, YOUNG, log_disk=disk(99))) == (1, 0)


def test_a_limit_in_bytes() -> None:
    decider = policy(disk_used_bytes_max=250, clean_file_forcibly_enable=False)
    files = YOUNG, YOUNG, YOUNG  # and 50 bytes in the last one
    assert deleted(decider, facts(*files)) == (1, 1)
    assert deleted(decider, facts(*files, log_size=250)) == (0, 0)
    assert deleted(decider, facts(*files, log_size=351)) == (2, 2)
    assert deleted(policy(), facts(*files, log_size=1 << 40)) == (0, 0)


def test_the_ratios_are_clamped_as_in_java() -> None:
    decider = policy(disk_max_used_space_ratio=99, disk_space_clean_forcibly_ratio=99)
    assert deleted(decider, facts(YOUNG, log_disk=disk(84))) == (0, 0)
    assert deleted(decider, facts(YOUNG, log_disk=disk(86))) == (1, 1)


def test_a_request_lasts_for_twenty_passes() -> None:
    decider = policy()
    decider.request()
    assert [deleted(decider, facts(OLD, YOUNG)) for _ in range(MANUAL_PASSES)] == [(1, 0)] * 20
    assert deleted(decider, facts(OLD, YOUNG)) == (0, 0)


def test_the_hour_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    for zone, hour in (("UTC0", 22), ("XXX-05:45", 3)):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert local_hour(START_MS) == hour  # 22:13:20 in UTC
    monkeypatch.undo()
    time.tzset()
