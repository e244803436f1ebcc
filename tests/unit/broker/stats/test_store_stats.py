"""Rates, put times and morning totals, in Java's numbers."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest

from skylark.broker.stats.store_stats import PERCENTILE_ENDS, DayTotals, StoreStats, next_morning_ms

BOOT_MS = 1_794_710_569_179


def run(stats: StoreStats, seconds: int, *, put: int = 0, found: int = 0, missed: int = 0) -> None:
    """Let seconds pass, each with so many puts and reads."""
    start = len(stats._samples)
    for second in range(start, start + seconds):
        stats.sample(second * 1000)
        stats.put_count += put
        stats.found_count += found
        stats.transferred_count += 3 * found
        stats.missed_count += missed


def test_rates_appear_one_after_the_other() -> None:
    stats = StoreStats(BOOT_MS)
    assert stats.rows(BOOT_MS)["putTps"] == "  "
    run(stats, 10, put=5)
    assert stats.rows(BOOT_MS)["putTps"] == "  "
    run(stats, 1, put=5)
    assert stats.rows(BOOT_MS)["putTps"] == "5.0  "
    run(stats, 50)
    assert stats.rows(BOOT_MS)["putTps"] == f"0.0 {55 / 60} "
    run(stats, 600)
    assert stats.rows(BOOT_MS)["putTps"] == "0.0 0.0 0.0"


def test_reads_are_counted_by_result_and_added_up() -> None:
    stats = StoreStats(BOOT_MS)
    run(stats, 11, found=2, missed=40)
    rows = stats.rows(BOOT_MS)
    assert rows["getFoundTps"] == "2.0  "
    assert rows["getMissTps"] == "40.0  "
    assert rows["getTransferredTps"] == "6.0  "
    assert rows["getTotalTps"] == "42.0 0.0 0.0"  # zero, not missing: so does Java


def test_a_rate_goes_by_the_time_that_really_passed() -> None:
    stats = StoreStats(BOOT_MS)
    for second in range(11):
        stats.sample(second * 2_000)  # the loop was busy
        stats.put_count += 10
    assert stats.tps("put", 10) == 5.0
    assert stats.tps("put", 60) is None


def test_totals_and_extremes() -> None:
    stats = StoreStats(BOOT_MS)
    rows = stats.rows(BOOT_MS + 999)
    assert rows["putMessageTimesTotal"] == "1"  # Java's way not to divide by zero
    assert rows["putMessageAverageSize"] == "0.0"
    stats.put_count, stats.put_size, stats.put_failed_count = 87, 31_549, 1
    for ms in (0, 99, 3):
        stats.record_put_time(ms)
    stats.get_ms_max = 33
    rows = stats.rows(BOOT_MS + 413_500)
    assert rows["putMessageTimesTotal"] == "87"
    assert rows["putMessageSizeTotal"] == "31549"
    assert rows["putMessageAverageSize"] == "362.632183908046"
    assert rows["putMessageFailedTimes"] == "1"
    assert rows["putMessageEntireTimeMax"] == "99"
    assert rows["getMessageEntireTimeMax"] == "33"
    assert rows["dispatchMaxBuffer"] == "0"
    assert rows["bootTimestamp"] == str(BOOT_MS)
    assert rows["runtime"] == "[ 0 days, 0 hours, 6 minutes, 53 seconds ]"
    long_ms = ((1_234 * 24 + 5) * 60 + 6) * 60_000
    assert stats.rows(BOOT_MS + long_ms)["runtime"] == (
        "[ 1,234 days, 5 hours, 6 minutes, 0 seconds ]"
    )


def test_put_times_are_shown_of_the_last_full_minute() -> None:
    stats = StoreStats(BOOT_MS)
    stats.sample(0)
    for ms in (0, 0, 1, 9, 10, 49, 50, 99, 100, 199, 200, 499, 500, 999, 1_000, 5_000, 9_999):
        stats.record_put_time(ms)
    for ms in (10_000, 70_000):
        stats.record_put_time(ms)
    empty = stats.rows(BOOT_MS)["putMessageDistributeTime"]
    assert empty.startswith("[<=0ms]:0 [0~10ms]:0 ")
    stats.sample(60_000)
    assert stats.rows(BOOT_MS)["putMessageDistributeTime"] == (
        "[<=0ms]:2 [0~10ms]:2 [10~50ms]:2 [50~100ms]:2 [100~200ms]:2 [200~500ms]:2 [500ms~1s]:2 "
        "[1~2s]:1 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:2 [10s~]:2 "
    )
    stats.sample(120_000)
    assert stats.rows(BOOT_MS)["putMessageDistributeTime"] == empty


@pytest.mark.parametrize(
    ("times_ms", "share", "expected"),
    [
        ([], 0.99, 0.0),
        ([1, 2, 3, 3], 0.99, 2.5),  # rank 3 is the first of two in the part (2, 3]
        ([3] * 100, 0.99, 2.99),
        ([1] * 999 + [200], 0.999, 1.0),
        ([1] * 99 + [195], 1.0, 200.0),
        ([60_000], 1.0, 10_000.0),
    ],
)
def test_percentiles(times_ms: list[int], share: float, expected: float) -> None:
    stats = StoreStats(BOOT_MS)
    stats.sample(0)
    for ms in times_ms:
        stats.record_put_time(ms)
    stats.sample(60_000)
    assert stats.put_percentile_ms(share) == pytest.approx(expected)


def test_the_parts_of_percentiles_are_javas() -> None:
    assert len(PERCENTILE_ENDS) == 20 + 15 + 10 + 10 + 6 + 5 + 9
    assert PERCENTILE_ENDS[19::5][:4] == (20, 30, 40, 50)
    assert PERCENTILE_ENDS[-1] == 10_000


def test_each_morning_becomes_yesterdays() -> None:
    totals = DayTotals()
    totals.morning(100, 200)
    totals.morning(150, 270)
    assert totals.rows(160, 290) == {
        "msgPutTotalYesterdayMorning": "100",
        "msgPutTotalTodayMorning": "150",
        "msgPutTotalTodayNow": "160",
        "msgGetTotalYesterdayMorning": "200",
        "msgGetTotalTodayMorning": "270",
        "msgGetTotalTodayNow": "290",
    }


@pytest.mark.parametrize(
    ("now", "morning"),
    [
        ("2024-02-28T23:59:59+00:00", "2024-02-29T00:00:00+00:00"),
        ("2024-02-29T00:00:00+00:00", "2024-03-01T00:00:00+00:00"),
        ("2024-12-31T12:00:00+00:00", "2025-01-01T00:00:00+00:00"),
    ],
)
def test_the_next_morning(now: str, morning: str) -> None:
    now_ms = round(datetime.datetime.fromisoformat(now).timestamp() * 1000)
    expected_ms = round(datetime.datetime.fromisoformat(morning).timestamp() * 1000)
    assert next_morning_ms(now_ms, datetime.UTC) == expected_ms


def test_a_day_may_have_25_hours() -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    midnight = datetime.datetime(2024, 10, 27, tzinfo=berlin)
    now_ms = round(midnight.timestamp() * 1000)
    assert next_morning_ms(now_ms, berlin) - now_ms == 25 * 3_600_000


def test_the_zone_of_the_machine_is_the_default() -> None:
    now_ms = 1_700_000_000_000
    local = datetime.datetime.fromtimestamp(next_morning_ms(now_ms) / 1000, datetime.UTC)
    assert local.astimezone().time() == datetime.time()
    assert 0 < next_morning_ms(now_ms) - now_ms <= 25 * 3_600_000
