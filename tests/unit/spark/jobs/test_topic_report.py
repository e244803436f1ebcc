"""Figures of a report: time spans, rates, and their text form."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.spark.jobs.topic_report import (
    BUCKETS_MAX,
    QueueShare,
    Span,
    TopicReport,
    amount,
    duration,
    filled,
    span_width_s,
)

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("length_ms", "width_s"),
    [
        (0, 1),
        (120_000, 1),
        (10 * 60_000, 5),
        (HOUR_MS, 60),
        (24 * HOUR_MS, 900),
        (30 * 24 * HOUR_MS, 6 * 3_600),
    ],
)
def test_spans_are_as_short_as_their_number_allows(length_ms: int, width_s: int) -> None:
    assert span_width_s(1_700_000_000_000, 1_700_000_000_000 + length_ms) == width_s


@given(st.integers(0, 1 << 43), st.integers(0, 1 << 43))
@settings(max_examples=200, deadline=None)
def test_there_are_never_too_many_spans(first_ms: int, length_ms: int) -> None:
    width_ms = span_width_s(first_ms, first_ms + length_ms) * 1_000
    assert (first_ms + length_ms) // width_ms - first_ms // width_ms <= BUCKETS_MAX


def test_spans_without_messages_are_filled_in() -> None:
    spans = [Span(start_ms=65_000, rows=2), Span(start_ms=50_000, rows=1)]
    assert [(span.start_ms, span.rows) for span in filled(spans, 5)] == [
        (50_000, 1),
        (55_000, 0),
        (60_000, 0),
        (65_000, 2),
    ]
    assert filled([], 5) == ()


def test_rates_are_per_minute_and_skew_is_against_the_mean() -> None:
    queues = tuple(
        QueueShare(broker="b", queue_id=n, rows=rows, size=1, first_offset=0, last_offset=1)
        for n, rows in enumerate((30, 10))
    )
    report = TopicReport(
        topic="T",
        made_ms=0,
        rows=40,
        first_ms=0,
        last_ms=120_000,
        width_s=5,
        spans=(Span(start_ms=0, rows=3), Span(start_ms=5_000, rows=37)),
        queues=queues,
    )
    assert report.rows_per_minute == 20
    assert report.peak_per_minute == 40  # both spans are in one minute, and it is not 12 x 37
    spread = (Span(start_ms=n * 5_000, rows=n) for n in range(20))
    assert msgspec.structs.replace(report, spans=tuple(spread)).peak_per_minute == sum(range(8, 20))
    hours = (Span(start_ms=n * 3_600_000, rows=60 * n) for n in range(3))
    report_of_days = msgspec.structs.replace(report, width_s=3_600, spans=tuple(hours))
    assert report_of_days.peak_per_minute == 2
    second = msgspec.structs.replace(report, last_ms=1_000)
    assert (second.rows_per_minute, second.peak_per_minute) == (40, 40)
    assert report.queue_skew == 1.5
    nothing = TopicReport(topic="T", made_ms=0)
    figures = (nothing.rows_per_minute, nothing.peak_per_minute, nothing.queue_skew)
    assert figures == (0, 0, 1)


def test_amounts_and_durations_are_short() -> None:
    sizes = (0, 1_023, 1_024, 1_536, 3 << 20, 5 << 40)
    assert [amount(size) for size in sizes] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "3 MiB", "5.0 TiB",
    ]  # fmt: skip
    times = (-4, 999, 1_500, 150_000, 3 * HOUR_MS, 96 * HOUR_MS)
    assert [duration(time) for time in times] == [
        "-4 ms", "999 ms", "1.5 s", "2.5 min", "3.0 h", "4.0 d",
    ]  # fmt: skip
