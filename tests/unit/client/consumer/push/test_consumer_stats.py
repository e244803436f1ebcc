"""Counters and rates of a consumer."""

from __future__ import annotations

from skylark.client.consumer.push.consumer_stats import ConsumerStats


def test_rates_are_those_of_the_last_minute() -> None:
    stats = ConsumerStats(0)
    counters = stats.of("T")
    for second in range(0, 120, 5):
        counters.pulls += 1
        counters.pull_ms += 8
        counters.pulled += 50
        counters.consumed += 45
        counters.failed += 5
        counters.consume_ms += 100
        stats.snapshot(second * 1000)
    counters.consumed += 600  # since the last snapshot
    status = stats.status("T", 115_000)
    assert status.pull_tps == 10
    assert status.pull_rt == 8
    assert status.consume_ok_tps == 19
    assert status.consume_failed_tps == 1
    assert status.consume_rt == 1200 / 1200
    assert status.consume_failed_msgs == 120
    assert (stats.pulled, stats.consumed, stats.failed) == (1200, 1680, 120)


def test_an_unknown_topic_has_no_rates() -> None:
    stats = ConsumerStats(5)
    assert stats.status("T", 5).consume_ok_tps == 0
    assert stats.topics == {}
