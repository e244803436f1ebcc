"""Counts of messages in flight."""

from __future__ import annotations

from skylark.broker.pop.in_flight import InFlightCounts

QUEUE = ("T", "g", 0)


def test_what_is_popped_is_in_flight_until_it_is_acknowledged() -> None:
    counts = InFlightCounts(1_000)
    counts.add(*QUEUE, 3)
    counts.add("T", "g", 1, 2)
    counts.subtract(*QUEUE, 1, 1_000)
    assert (counts.get(*QUEUE), counts.get("T", "g", 1), counts.get("T", "h", 0)) == (2, 2, 0)
    counts.subtract(*QUEUE, 1, 999)  # popped before the start: it was not counted
    assert counts.get(*QUEUE) == 2
    counts.subtract(*QUEUE, 9, 1_001)  # acknowledged twice
    assert counts.get(*QUEUE) == 0
    counts.subtract(*QUEUE, 1, 1_001)
    assert counts.get(*QUEUE) == 0


def test_nothing_is_kept_of_what_is_gone() -> None:
    counts = InFlightCounts(0)
    for topic, group in (("T", "g"), ("T", "h"), ("U", "g")):
        counts.add(topic, group, 0, 1)
    counts.topic_deleted("U")
    counts.group_deleted("h")
    assert [counts.get(*each, 0) for each in (("T", "g"), ("T", "h"), ("U", "g"))] == [1, 0, 0]
    counts.clear("T", "g", 0)
    counts.clear("T", "g", 0)
    assert counts._counts == {}
