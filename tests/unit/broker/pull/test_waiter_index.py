"""The index of waiters, held to the plain scan."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.pull.waiter_index import CODES_MAX, Waiter, WaiterIndex, _Queue, passes
from skylark.core.hashing import java_hash
from skylark.filter.sql_eval import compile_sql
from skylark.filter.tag import TagFilter, parse_tags

KEYS = ("T", 0), ("T", 1), ("T", "group", 0)
TAGS = (
    None,
    parse_tags("*"),
    parse_tags("a"),
    parse_tags("a || b"),
    parse_tags("b || c"),
    parse_tags("||".join(["a", "b", *map(str, range(CODES_MAX))])),
    parse_tags("||".join(["b", *map(str, range(CODES_MAX))])),
    TagFilter([]),
    TagFilter([java_hash("a") + (1 << 32)]),  # of a client that computes longer hashes
)
SQLS = (None, compile_sql("n > 1"), compile_sql("n = 1"), compile_sql("n is null"))
CODES = (
    None,
    java_hash("a"),
    java_hash("b"),
    java_hash("d"),
    java_hash("a") + (1 << 32),
    java_hash("b") - (1 << 32),
    0,
)
PROPERTIES = (None, b"", b"n\x011\x02", b"n\x012\x02", b"n\x01x\x02")

EVENTS = st.one_of(
    st.tuples(st.just("add"), *map(st.sampled_from, (KEYS, TAGS, SQLS))),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("look up"), *map(st.sampled_from, (KEYS, CODES, PROPERTIES))),
    st.tuples(st.just("take one"), *map(st.sampled_from, (KEYS, CODES, PROPERTIES))),
)


@settings(max_examples=500, deadline=None)
@given(events=st.lists(EVENTS, max_size=60))
def test_against_a_scan_of_all_waiters(events: list[tuple[Any, ...]]) -> None:
    index: WaiterIndex[Waiter] = WaiterIndex()
    waiting: list[Waiter] = []
    for event in events:
        match event:
            case ("add", key, tags, sql):
                waiter = Waiter(key=key, tags=tags, sql=sql)
                waiting.append(waiter)
                index.add(waiter)
            case ("remove", number) if waiting:
                index.remove(waiting.pop(number % len(waiting)))
            case ("look up" | "take one" as what, key, tags_code, properties):
                wanted = [
                    waiter
                    for waiter in waiting
                    if waiter.key == key and passes(waiter, tags_code, properties)
                ]
                assert index.passing(key, tags_code, properties) == wanted
                first = index.first_passing(key, tags_code, properties)
                assert first is (wanted[0] if wanted else None)
                if what == "take one" and first is not None:
                    index.remove(first)
                    waiting.remove(first)
        for key in KEYS:
            assert index.count(key) == sum(waiter.key == key for waiter in waiting)
            assert (key in index.keys) is (index.count(key) > 0)
        assert {id(waiter) for waiter in index} == {id(waiter) for waiter in waiting}


def test_nothing_is_left_of_waiters_that_are_gone() -> None:
    index: WaiterIndex[Waiter] = WaiterIndex()
    stays = Waiter(key="queue", tags=parse_tags("a"))
    index.add(stays)
    for number in range(100):
        waiter = Waiter(key="queue", tags=parse_tags(f"a || t{number}"), sql=SQLS[number % 4])
        index.add(waiter)
        index.remove(waiter)
    (queue,) = index._queues.values()
    assert isinstance(queue, _Queue)
    assert queue.by_code == {java_hash("a"): {None: {stays: None}}}
    index.remove(stays)
    assert not index.keys


def test_each_expression_is_evaluated_once(monkeypatch: Any) -> None:
    index: WaiterIndex[Waiter] = WaiterIndex()
    for _ in range(1_000):
        index.add(Waiter(key="queue", sql=compile_sql("n > 1")))
        index.add(Waiter(key="queue", sql=compile_sql("n > 2")))
    asked = []
    matches_raw = type(compile_sql("n > 1")).matches_raw

    def counting(sql: Any, raw: bytes) -> bool:
        asked.append(sql.text)
        return matches_raw(sql, raw)

    monkeypatch.setattr(type(compile_sql("n > 1")), "matches_raw", counting)
    assert len(index.passing("queue", 0, b"n\x012\x02")) == 1_000
    assert sorted(asked) == ["n > 1", "n > 2"]


def test_a_filter_of_very_many_tags_has_one_entry_and_is_asked_once(monkeypatch: Any) -> None:
    index: WaiterIndex[Waiter] = WaiterIndex()
    tags = parse_tags("||".join(map(str, range(10_000))))
    for _ in range(100):
        index.add(Waiter(key="queue", tags=tags))
    (queue,) = index._queues.values()
    assert isinstance(queue, _Queue)
    assert [len(groups) for groups in queue.by_code.values()] == [1]
    asked = []
    matches = TagFilter.matches

    def counting(tag_filter: TagFilter, tags_code: int) -> bool:
        asked.append(tags_code)
        return matches(tag_filter, tags_code)

    monkeypatch.setattr(TagFilter, "matches", counting)
    assert len(index.passing("queue", java_hash("9999"), None)) == 100
    assert index.passing("queue", java_hash("other"), None) == []
    assert asked == [java_hash("9999"), java_hash("other")]
