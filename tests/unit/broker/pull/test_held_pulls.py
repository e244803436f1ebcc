"""Held pulls: which pulls a message wakes, at which time, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.pull import due_times
from skylark.broker.pull.held_pulls import CHECK_INTERVAL_MS, Held, HeldPulls
from skylark.core.hashing import java_hash
from skylark.filter.sql_eval import compile_sql
from skylark.filter.tag import TagFilter, parse_tags
from skylark.net.connection import Connection
from tests.unit.broker.connections import FakeConnection

HOLD_MS = 15_000
HERE = FakeConnection()


def park(held: HeldPulls[str], token: str, now_ms: int = 0, **changes: Any) -> bool:
    """Park a pull at the end (10) of queue 0 of T, for 15 s."""
    arguments: dict[str, Any] = {
        "peer": HERE,
        "offset": 10,
        "max_offset": 10,
        "deadline_ms": now_ms + HOLD_MS,
    }
    arguments |= changes
    return (
        held.park("T", arguments.pop("queue_id", 0), token, now_ms=now_ms, **arguments) is not None
    )


def code(tag: str) -> int:
    return java_hash(tag)


def test_a_message_wakes_the_pulls_of_its_queue() -> None:
    held: HeldPulls[str] = HeldPulls()
    for token in ("first", "second"):
        assert park(held, token)
    park(held, "elsewhere", queue_id=1)
    assert ("T", 0) in held.queues
    assert ("U", 0) not in held.queues
    assert held.arrived("U", 0, 11, 100) == []
    assert held.arrived("T", 0, 11, 100, code("a")) == ["first", "second"]
    assert held.arrived("T", 0, 12, 101, code("a")) == [], "each wakes once"
    assert len(held) == 1
    assert ("T", 0) not in held.queues


def test_a_message_below_the_offset_wakes_no_pull() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "pull")
    assert held.arrived("T", 0, 10, 100) == []
    assert held.next_due() == HOLD_MS, "the next check has nothing to report"
    assert held.arrived("T", 0, 11, 100) == ["pull"]


def test_a_message_with_another_tag_wakes_at_the_next_check() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "pull", now_ms=1_000, tags=parse_tags("a || b"))
    assert held.next_due() == 16_000
    assert held.arrived("T", 0, 11, 7_500, code("c")) == []
    assert held.arrived("T", 0, 12, 9_000, code("c")) == []
    assert held.next_due() == 11_000, "checks count from parking"
    assert held.take_due(10_999) == []
    assert held.take_due(11_000) == ["pull"]
    assert len(held) == 0
    assert held.next_due() is None


def test_a_matching_tag_wakes_at_once_even_after_others() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "pull", tags=parse_tags("a || b"))
    assert held.arrived("T", 0, 11, 100, code("c")) == []
    assert held.arrived("T", 0, 12, 200, code("b")) == ["pull"]
    assert held.take_due(HOLD_MS) == []


def test_without_a_send_the_deadline_counts() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "long")
    park(held, "short", deadline_ms=1_000)
    assert held.next_due() == 1_000
    assert held.take_due(1_000) == ["short"]
    assert held.take_due(HOLD_MS - 1) == []
    assert held.take_due(HOLD_MS) == ["long"]


def test_the_deadline_comes_before_a_later_check() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "pull", deadline_ms=6_000, tags=parse_tags("a"))
    assert held.arrived("T", 0, 11, 5_500, code("c")) == []
    assert held.next_due() == 6_000


def test_checks_come_more_often_where_polling_is_short() -> None:
    held: HeldPulls[str] = HeldPulls(check_interval_ms=1_000)
    park(held, "pull", deadline_ms=60_000, tags=parse_tags("a"))
    held.arrived("T", 0, 11, 2_000, code("c"))
    assert held.next_due() == 3_000


def test_a_gap_in_the_queue_wakes_at_the_next_check() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "pull", offset=3, max_offset=10)
    assert held.next_due() == CHECK_INTERVAL_MS


def test_properties_decide_where_they_are_known() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "sql", sql=compile_sql("n > 5"))
    park(held, "all")
    assert held.arrived("T", 0, 11, 0, 0, b"n\x013\x02") == ["all"]
    assert held.next_due() == CHECK_INTERVAL_MS
    assert held.arrived("T", 0, 12, 0, 0, b"n\x016\x02") == ["sql"]
    park(held, "unknown", sql=compile_sql("n > 5"))
    assert held.arrived("T", 0, 13, 0, 0) == ["unknown"]


def test_a_tag_that_is_not_known_passes() -> None:
    held: HeldPulls[str] = HeldPulls()
    park(held, "pull", tags=parse_tags("a"))
    assert held.arrived("T", 0, 11, 0) == ["pull"]


def test_pulls_of_closed_connections_are_removed() -> None:
    held: HeldPulls[str] = HeldPulls()
    gone = FakeConnection()
    park(held, "mine")
    park(held, "theirs", peer=gone)
    park(held, "theirs too", peer=gone, queue_id=1)
    held.drop(gone)
    held.drop(gone)
    assert len(held) == 1
    assert ("T", 1) not in held.queues
    assert held.arrived("T", 0, 11, 0) == ["mine"]
    assert held.take_due(HOLD_MS) == []


def test_all_can_be_woken() -> None:
    held: HeldPulls[str] = HeldPulls()
    for queue_id in range(3):
        park(held, f"pull {queue_id}", queue_id=queue_id)
    assert held.wake_all() == ["pull 0", "pull 1", "pull 2"]
    assert (len(held), held.next_due(), held.wake_all()) == (0, None, [])


def test_limits_refuse() -> None:
    held: HeldPulls[str] = HeldPulls(count_max=4, per_queue_max=2, per_peer_max=3)
    assert [park(held, "pull") for _ in range(3)] == [True, True, False], "per queue"
    assert [park(held, "pull", queue_id=1) for _ in range(2)] == [True, False], "per peer"
    other = FakeConnection()
    assert [park(held, "pull", queue_id=n, peer=other) for n in (2, 3)] == [True, False]
    assert len(held) == 4
    assert held.arrived("T", 0, 11, 0) == ["pull", "pull"]
    assert park(held, "pull"), "there is room again"


def test_an_arrival_visits_the_pulls_that_it_passes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 pulls of other tags cost the second message nothing, nor do pulls of other queues."""
    held: HeldPulls[str] = HeldPulls()
    for number in range(4_000):
        park(held, f"pull {number}", tags=parse_tags(f"tag {number}"), peer=FakeConnection())
        park(held, f"other {number}", queue_id=1, tags=parse_tags("a"), peer=FakeConnection())
    asked: list[int] = []
    monkeypatch.setattr(TagFilter, "matches", lambda _tags, tags_code: asked.append(tags_code))
    assert held.arrived("T", 0, 11, 0, code("tag 7")) == ["pull 7"]
    marked: list[object] = []
    monkeypatch.setattr(HeldPulls, "_wake_at_check", lambda _held, pull, _now: marked.append(pull))
    assert held.arrived("T", 0, 12, 0, code("tag 8")) == ["pull 8"]
    assert held.arrived("T", 0, 13, 0, code("none")) == []
    assert (asked, marked) == ([], [])


def test_a_cancelled_pull_does_not_wake() -> None:
    held: HeldPulls[str] = HeldPulls()
    pulls = [
        held.park("T", 0, token, peer=HERE, offset=10, max_offset=10, now_ms=0, deadline_ms=9)
        for token in ("first", "second")
    ]
    assert pulls[0] is not None
    assert held.cancel(pulls[0])
    assert not held.cancel(pulls[0])
    assert len(held) == 1
    assert held.arrived("T", 0, 11, 1) == ["second"]
    assert pulls[1] is not None
    assert not held.cancel(pulls[1]), "it has woken"
    assert held.take_due(9) == []
    assert held.next_due() is None


def test_due_times_of_woken_pulls_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_times, "_VOID_COUNT_MIN", 10)
    held: HeldPulls[str] = HeldPulls()
    park(held, "stays", queue_id=9, tags=parse_tags("a"))
    for _ in range(1_000):
        park(held, "pull", tags=parse_tags("a"))
        held.arrived("T", 0, 11, 0, code("c"))
        held.arrived("T", 0, 12, 0, code("a"))
    assert len(held._due._heap) <= 12
    assert held.take_due(HOLD_MS) == ["stays"]


# ---- against a model ---------------------------------------------------------------------------


class NaivePull:
    """A pull of the model: sees all messages at each of its checks, and at its deadline."""

    def __init__(self, token: int, queue_id: int, connection: Connection, offset: int) -> None:
        self.token = token
        self.queue_id = queue_id
        self.connection = connection
        self.offset = offset
        self.parked_ms = 0
        self.deadline_ms = 0
        self.tags = TagFilter(None)

    def checks(self, from_ms: int, to_ms: int) -> Iterator[int]:
        """The checks and the deadline of this pull, after ``from_ms`` and up to ``to_ms``."""
        at_ms = self.parked_ms + CHECK_INTERVAL_MS
        while at_ms < self.deadline_ms:
            if from_ms < at_ms <= to_ms:
                yield at_ms
            at_ms += CHECK_INTERVAL_MS
        if from_ms < self.deadline_ms <= to_ms:
            yield self.deadline_ms


class Model:
    """The specification in its simplest form: lists, and a scan of all pulls every time."""

    def __init__(self) -> None:
        self.pulls: list[NaivePull] = []
        self.max_offsets = [10, 10]

    def arrived(self, queue_id: int, tags_code: int) -> list[int]:
        self.max_offsets[queue_id] += 1
        woken = [
            pull
            for pull in self.pulls
            if pull.queue_id == queue_id
            and self.max_offsets[queue_id] > pull.offset
            and pull.tags.matches(tags_code)
        ]
        self.pulls = [pull for pull in self.pulls if pull not in woken]
        return [pull.token for pull in woken]

    def pass_time(self, from_ms: int, to_ms: int) -> list[tuple[int, int]]:
        """Times and tokens of what wakes meanwhile."""
        woken = []
        for pull in self.pulls[:]:
            for at_ms in pull.checks(from_ms, to_ms):
                if at_ms >= pull.deadline_ms or self.max_offsets[pull.queue_id] > pull.offset:
                    woken.append((at_ms, pull.token))
                    self.pulls.remove(pull)
                    break
        return sorted(woken)


EVENTS = st.one_of(
    st.tuples(
        st.just("park"),
        st.integers(0, 1),  # queue
        st.integers(0, 2),  # connection
        st.sampled_from([-2, 0, 0, 0, 1]),  # wanted, from the end of the queue
        st.sampled_from([1_000, 5_000, 12_345, 15_000, 30_000]),  # how long
        st.sampled_from(["*", "a", "a || b", "c"]),
    ),
    st.tuples(st.just("arrive"), st.integers(0, 1), st.sampled_from(["a", "b", "c", "d"])),
    st.tuples(st.just("wait"), st.sampled_from([1, 999, 2_500, 5_000, 7_001, 15_000])),
    st.tuples(st.just("drop"), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
)


@settings(max_examples=400, deadline=None)
@given(events=st.lists(EVENTS, max_size=40))
def test_against_a_naive_model(events: list[tuple[Any, ...]]) -> None:
    held: HeldPulls[int] = HeldPulls()
    model = Model()
    all_parked: dict[int, Held[int]] = {}
    connections = [FakeConnection(number) for number in range(3)]
    now_ms = 1_000_000
    for token, event in enumerate(events):
        match event:
            case ("park", queue_id, number, ahead, hold_ms, expression):
                end = model.max_offsets[queue_id]
                pull = NaivePull(token, queue_id, connections[number], end + ahead)
                pull.parked_ms, pull.deadline_ms = now_ms, now_ms + hold_ms
                pull.tags = parse_tags(expression)
                model.pulls.append(pull)
                parked = held.park(
                    "T",
                    queue_id,
                    token,
                    peer=pull.connection,
                    offset=pull.offset,
                    max_offset=end,
                    now_ms=now_ms,
                    deadline_ms=pull.deadline_ms,
                    tags=pull.tags,
                )
                assert parked is not None
                all_parked[token] = parked
            case ("cancel", number):
                left = [pull for pull in model.pulls if pull.token != number]
                if number in all_parked:
                    is_held = len(left) < len(model.pulls)
                    assert held.cancel(all_parked[number]) is is_held
                model.pulls = left
            case ("arrive", queue_id, tag):
                expected = model.arrived(queue_id, code(tag))
                end = model.max_offsets[queue_id]
                assert held.arrived("T", queue_id, end, now_ms, code(tag)) == expected
            case ("wait", span_ms):
                until_ms = now_ms + span_ms
                woken = []
                while (due_ms := held.next_due()) is not None and due_ms <= until_ms:
                    woken += [(due_ms, woken_token) for woken_token in held.take_due(due_ms)]
                assert sorted(woken) == model.pass_time(now_ms, until_ms)
                now_ms = until_ms
            case ("drop", number):
                model.pulls = [p for p in model.pulls if p.connection is not connections[number]]
                held.drop(connections[number])
        assert len(held) == len(model.pulls)
