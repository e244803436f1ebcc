"""Meters and their windows, on plain numbers."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.stats.broker_stats import (
    IDLE_MAX_MS,
    BrokerStats,
    Meter,
    QueueMeter,
    idle_max_ms,
)
from skylark.core.errors import BrokerError
from skylark.wire.bodies.stats import BrokerStatsItem
from skylark.wire.fastjson import encode_body

STATS_ALL = (
    Path(__file__).parents[3] / "golden" / "data" / "frames" / "admin-statsAll.jsonl"
).read_text()


def sampled(stats: BrokerStats, *, minutes: int = 0, now_ms: int = 0) -> int:
    """Take the samples of some minutes as the sampler would; the time after them."""
    for second in range(0, minutes * 60, 10):
        at_ms = now_ms + second * 1000
        stats.sample("minute", at_ms)
        if second % 600 == 0:
            stats.sample("hour", at_ms)
            stats.expire()
        if second % 3600 == 0:
            stats.sample("day", at_ms)
    return now_ms + minutes * 60_000


def test_nothing_shows_before_the_first_sample() -> None:
    stats = BrokerStats("c")
    stats.put("T", 5, 500)
    data = stats.view("TOPIC_PUT_NUMS", "T")
    assert data.stats_minute == data.stats_hour == data.stats_day == BrokerStatsItem()


def test_the_first_sample_counts_from_zero_over_one_interval() -> None:
    stats = BrokerStats("c")
    stats.put("T", 5, 500)
    stats.put("T", 15, 1_500)
    for window in ("minute", "hour", "day"):
        stats.sample(window, 1_000_000)
    nums, size = stats.view("TOPIC_PUT_NUMS", "T"), stats.view("TOPIC_PUT_SIZE", "T")
    assert nums.stats_minute == BrokerStatsItem(sum=20, tps=2.0, avgpt=10.0)
    assert nums.stats_hour == BrokerStatsItem(sum=20, tps=20 / 600, avgpt=10.0)
    assert nums.stats_day == BrokerStatsItem(sum=20, tps=20 / 3600, avgpt=10.0)
    assert size.stats_minute == BrokerStatsItem(sum=2_000, tps=200.0, avgpt=1_000.0)
    assert stats.put_tps("T") == 2.0


def test_a_window_slides_over_sixty_seconds_and_forgets() -> None:
    stats = BrokerStats("c")
    sums = []
    for step in range(20):
        if step < 10:
            stats.put("T", 1, 100)
        stats.sample("minute", step * 10_000)
        minute = stats.view("TOPIC_PUT_NUMS", "T").stats_minute
        assert minute is not None
        sums.append(minute.sum)
    assert sums == [1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0]
    assert len(stats.topic_puts["T"].minute) == 7


def test_the_day_has_24_hours() -> None:
    stats = BrokerStats("c")
    for hour in range(30):
        stats.put("T", 1, 100)
        stats.sample("day", hour * 3_600_000)
    day = stats.view("TOPIC_PUT_NUMS", "T").stats_day
    assert day == BrokerStatsItem(sum=24, tps=24 / 86_400, avgpt=1.0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=40))
def test_the_sum_of_the_minute_is_that_of_the_last_six_intervals(counts: list[int]) -> None:
    meter = Meter()
    for step, count in enumerate(counts):
        meter.count += count
        meter.times += 1
        meter.sample("minute", step * 10_000)
    assert meter.item("minute", "count").sum == sum(counts[-6:])
    assert meter.item("minute", "count").tps == pytest.approx(
        sum(counts[-6:]) / (10 * min(6, len(counts)))
    )


def test_every_name_finds_its_meter() -> None:
    stats = BrokerStats("DefaultCluster")
    stats.put("T", 2, 20)
    stats.put("SCHEDULE_TOPIC_XXXX", 3, 30, is_system=True)
    stats.got("T", "g", 5, 50)
    stats.got("RMQ_SYS_TRANS_HALF_TOPIC", "g", 7, 70, is_system=True)
    back = stats.send_backs["T", "g"]
    back.count += 1
    back.times += 1
    queue = stats.queue_gets[3, "T", "g"]
    queue.count += 40
    queue.times += 4
    stats.sample("minute", 0)
    sums = {
        (name, key): (stats.view(name, key).stats_minute or BrokerStatsItem()).sum
        for name, key in (
            ("TOPIC_PUT_NUMS", "T"),
            ("TOPIC_PUT_SIZE", "T"),
            ("GROUP_GET_NUMS", "T@g"),
            ("GROUP_GET_SIZE", "T@g"),
            ("SNDBCK_PUT_NUMS", "T@g"),
            ("GROUP_GET_LATENCY", "3@T@g"),
            ("BROKER_PUT_NUMS", "DefaultCluster"),
            ("BROKER_GET_NUMS", "DefaultCluster"),
            ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster"),
            ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster"),
        )
    }
    assert list(sums.values()) == [2, 20, 5, 50, 1, 40, 5, 12, 2, 5]
    latency = stats.view("GROUP_GET_LATENCY", "3@T@g").stats_minute
    assert latency is not None
    assert latency.avgpt == 10.0
    broker = stats.view("BROKER_PUT_NUMS", "DefaultCluster").stats_minute
    assert broker is not None
    assert broker.avgpt == 0.0  # Java counts no times here
    assert stats.get_tps("T", "g") == 0.5


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "U"),
        ("TOPIC_PUT_NUMS", "T@g"),
        ("GROUP_GET_NUMS", "T"),
        ("GROUP_GET_LATENCY", "T@3@g"),
        ("GROUP_GET_LATENCY", "99999999999999999999@T@g"),
        ("GROUP_GET_FALL_SIZE", "3@T@g"),
        ("BROKER_PUT_NUMS", "other"),
        ("BROKER_GET_NUMS", "c"),
        ("NO_SUCH_NAME", "T"),
        ("", ""),
    ],
)
def test_what_was_never_counted_does_not_exist(name: str, key: str) -> None:
    stats = BrokerStats("c")
    stats.put("T", 1, 10)
    stats.queue_gets[3, "T", "g"].count += 1
    with pytest.raises(BrokerError) as caught:
        stats.view(name, key)
    assert str(caught.value) == f"The stats <{name}> <{key}> not exist"
    assert caught.value.code == 1
    assert len(stats.topic_puts) == 1, "asking creates nothing"


def test_asking_for_rates_creates_nothing() -> None:
    stats = BrokerStats("c")
    assert (stats.put_tps("T"), stats.get_tps("T", "g")) == (0.0, 0.0)
    assert (len(stats.topic_puts), len(stats.group_gets)) == (0, 0)


def test_an_idle_meter_answers_as_a_real_broker_does() -> None:
    stats = BrokerStats("c")
    stats.got("FrameA", "golden_hb2_cg", 1, 10)
    now_ms = sampled(stats, minutes=1)
    for window in ("minute", "hour", "day"):
        for step in range(26):
            stats.sample(window, now_ms + step * 3_600_000)
    body = encode_body(stats.view("GROUP_GET_NUMS", "FrameA@golden_hb2_cg"))
    lines = map(json.loads, STATS_ALL.splitlines())
    theirs = [base64.b64decode(r["raw"]) for r in lines if r.get("request_code") == 315]
    assert len(theirs) > 3
    assert all(raw.endswith(body) for raw in theirs)


def test_beyond_the_limit_of_keys_counting_goes_on_but_cannot_be_asked_for() -> None:
    stats = BrokerStats("c", count_max=2)
    for topic in ("A", "B", "C", "D", "C"):
        stats.put(topic, 1, 10)
    assert list(stats.topic_puts) == ["A", "B"]
    assert stats.topic_puts.overflow_count == 3
    assert stats.user_put_count == 5
    with pytest.raises(BrokerError, match="<C> not exist"):
        stats.view("TOPIC_PUT_NUMS", "C")


def test_meters_that_stand_still_are_dropped_and_busy_ones_stay() -> None:
    stats = BrokerStats("c", idle_max_ms=lambda: 30 * 60_000)
    stats.put("idle", 1, 10)
    now_ms = sampled(stats, minutes=20)
    assert "idle" in stats.topic_puts
    for _ in range(3):
        stats.put("busy", 1, 10)
        now_ms = sampled(stats, minutes=10, now_ms=now_ms)
    assert list(stats.topic_puts) == ["busy"]
    stats.put("idle", 1, 10)  # and come again
    assert stats.topic_puts["idle"].count == 1


@pytest.mark.parametrize(
    ("minutes", "expected_ms"),
    [(-1, IDLE_MAX_MS), (0, 1_800_000), (10, 1_800_000), (11, 660_000), (60, 3_600_000)],
)
def test_the_idle_time_is_read_as_java_reads_it(minutes: int, expected_ms: int) -> None:
    assert idle_max_ms(minutes) == expected_ms


def test_deleted_topics_and_groups_take_their_meters_along() -> None:
    stats = BrokerStats("c")
    for topic in ("T", "TT"):
        stats.put(topic, 1, 10)
        for group in ("g", "gg"):
            stats.got(topic, group, 1, 10)
            stats.send_backs[topic, group].count += 1
            stats.queue_gets[0, topic, group].count += 1
    stats.topic_deleted("T")
    stats.group_deleted("gg")
    assert list(stats.topic_puts) == ["TT"]
    assert list(stats.group_gets) == [("TT", "g")]
    assert list(stats.send_backs) == [("TT", "g")]
    assert list(stats.queue_gets) == [(0, "TT", "g")]
    assert stats.user_put_count == 2


def test_meters_are_small() -> None:
    for meter in (Meter(), QueueMeter()):
        assert not hasattr(meter, "__dict__")


def test_latencies_have_the_parts_of_their_key_in_the_other_order() -> None:
    stats = BrokerStats("c")
    stats.sent("T", 7, ms=12)
    stats.delayed(2, count=3, size=300)
    stats.sample("minute", 10_000)
    latency = stats.view("TOPIC_PUT_LATENCY", "7@T").stats_minute
    nums = stats.view("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@2").stats_minute
    assert latency is not None
    assert nums is not None
    assert (latency.sum, latency.avgpt, nums.sum) == (12, 12.0, 3)
    for name, key in (
        ("QUEUE_PUT_NUMS", "T@x"),
        ("TOPIC_PUT_LATENCY", "T"),
        ("QUEUE_PUT_NUMS", ""),
    ):
        with pytest.raises(BrokerError, match="not exist"):
            stats.view(name, key)


def test_dead_letters_and_delayed_retries_have_statistics() -> None:
    stats = BrokerStats("c")
    stats.dead_letters["null", "T", "g", "SEND_BACK_TO_DLQ"].count += 1
    stats.delayed(2, count=1, size=300)
    stats.sample("minute", 10_000)
    for name, key, total in (
        ("SNDBCK2DLQ_TIMES", "null@T@g@SEND_BACK_TO_DLQ", 1),
        ("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@2", 300),
    ):
        minute = stats.view(name, key).stats_minute
        assert minute is not None
        assert minute.sum == total
