"""Counts of messages that wait."""

from __future__ import annotations

from skylark.store.config_tables import TimerMetricsTable
from skylark.store.timer.timer_metrics import TimerCounts
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerMetric


def test_counts() -> None:
    counts = TimerCounts()
    counts.load(
        TimerMetricsTable(
            timing_count={"T": TimerMetric(count=2, time_stamp=1)},
            data_version=DataVersion(counter=5),
        )
    )
    counts.add("T", -1, 10)
    counts.add("U", 1, 11)
    table = counts.table()
    counts.add("U", 1, 12)
    assert table.timing_count == {
        "T": TimerMetric(count=1, time_stamp=10),
        "U": TimerMetric(count=1, time_stamp=11),
    }
    assert table.data_version == DataVersion(counter=7, timestamp=11)
    assert (counts.count("U"), counts.count("V"), counts.by_topic()) == (2, 0, {"T": 1, "U": 2})
    counts.remove("U", 13)
    counts.remove("U", 14)
    assert counts.by_topic() == {"T": 1}
    assert counts.version == DataVersion(counter=9, timestamp=13)
