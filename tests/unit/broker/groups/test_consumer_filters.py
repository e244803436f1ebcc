"""SQL92 filters of groups: registered, replaced, dead, revived, removed, stored."""

from __future__ import annotations

import pytest

from skylark.broker.groups.consumer_filters import (
    DEAD_BEFORE_LOAD_MS,
    DEAD_KEPT_MS,
    ConsumerFilter,
    ConsumerFilterTable,
)
from skylark.filter.bloom import BloomFilter
from skylark.store import config_tables
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.fastjson import decode_body, encode_body

# config/consumerFilter.json of a real broker (golden store-basic), without its white space.
JAVA_FILE = (
    b'{"filterDataByTopic":{"GoldenA":{"groupFilterData":{"golden_sql_cg":{'
    b'"bloomFilterData":{"bitNum":112,"bitPos":[63,89,3]},"bornTime":1794710110269,'
    b'"clientVersion":1794710110801,"consumerGroup":"golden_sql_cg","dead":true,'
    b'"deadTime":1794710123745,"expression":"a between 3 and 9 and seq is not null",'
    b'"expressionType":"SQL92","topic":"GoldenA"}},"topic":"GoldenA"}}}'
)


@pytest.fixture
def table() -> ConsumerFilterTable:
    return ConsumerFilterTable(BloomFilter(20, 32))


def sql(expression: str, version: int = 1, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(
        topic=topic, sub_string=expression, expression_type="SQL92", sub_version=version
    )


def found(table: ConsumerFilterTable, topic: str = "T", group: str = "g") -> ConsumerFilter:
    result = table.get(topic, group)
    assert result is not None
    return result


def test_only_expressions_are_kept(table: ConsumerFilterTable) -> None:
    by_tag = SubscriptionData(topic="A", sub_string="a", sub_version=1)
    without_type = SubscriptionData(topic="B", sub_string="a", expression_type=None)
    empty = SubscriptionData(topic="C", sub_string="", expression_type="SQL92")
    table.register("g", [by_tag, without_type, empty, sql("n > 5", 7)], 100)
    assert len(table) == 1
    kept = found(table)
    assert (kept.client_version, kept.born_ms, kept.dead_ms) == (7, 100, 0)
    assert not kept.is_dead
    assert kept.sql.matches({"n": "6"})
    assert not kept.sql.matches({"n": "5"})
    assert table.get("T", "other") is None


def test_a_newer_version_replaces_and_an_older_does_not(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("n > 5", 7)], 100)
    for version in (6, 7):
        table.register("g", [sql("n > 1", version)], 200)
        assert found(table).sql.text == "n > 5"
    table.register("g", [sql("n > 9", 8)], 300)
    assert found(table).sql.text == "n > 9"
    assert (found(table).client_version, found(table).born_ms) == (8, 300)


def test_the_same_expression_again_only_moves_the_version(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("n > 5", 7)], 100)
    before = found(table)
    table.register("g", [sql("n > 5", 9)], 200)
    assert found(table) is before
    assert (before.client_version, before.born_ms) == (9, 100)


def test_an_expression_that_does_not_compile_removes_the_old_one(
    table: ConsumerFilterTable,
) -> None:
    table.register("g", [sql("n > ", 7)], 100)
    assert table.get("T", "g") is None
    table.register("g", [sql("n > 5", 8)], 200)
    table.register("g", [sql("n > ", 8)], 300)
    assert found(table).sql.text == "n > 5", "it is not newer"
    table.register("g", [sql("n > ", 9)], 400)
    assert table.get("T", "g") is None
    assert len(table) == 0


def test_an_unknown_type_is_treated_as_a_wrong_expression(
    table: ConsumerFilterTable,
) -> None:
    table.register("g", [sql("n > 5", 7)], 100)
    strange = SubscriptionData(
        topic="T", sub_string="n > 5", expression_type="XPATH", sub_version=8
    )
    table.register("g", [strange], 200)
    assert table.get("T", "g") is None


def test_a_topic_that_is_no_longer_subscribed_makes_the_filter_dead(
    table: ConsumerFilterTable,
) -> None:
    table.register("g", [sql("n > 5", 7), sql("n > 5", 7, "U")], 100)
    table.register("h", [sql("n > 5", 7)], 100)
    table.register("g", [sql("n > 5", 7, "U")], 200)
    assert found(table).dead_ms == 200
    assert not found(table, "U").is_dead
    assert not found(table, group="h").is_dead
    table.register("g", [sql("n > 5", 7, "U")], 300)
    assert found(table).dead_ms == 200, "dead since then"
    table.register("g", [sql("n > 5", 7), sql("n > 5", 7, "U")], 400)
    assert not found(table).is_dead


def test_a_dead_filter_gives_way_to_any_subscription(table: ConsumerFilterTable) -> None:
    """The old members are gone: a client with a slow clock gets its own expression."""
    table.register("g", [sql("n > 5", 7)], 100)
    table.unregister("g", 200)
    table.unregister("g", 300)
    assert (found(table).is_dead, found(table).dead_ms) == (True, 200)
    table.register("g", [sql("n > 1", 3)], 400)
    revived = found(table)
    assert (revived.sql.text, revived.client_version, revived.is_dead) == ("n > 1", 3, False)


def test_the_dead_are_removed_after_a_day(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("n > 5", 7)], 100)
    table.register("h", [sql("n > 5", 7)], 100)
    table.clean(100 + 10 * DEAD_KEPT_MS)
    assert len(table) == 2
    table.unregister("g", 1_000)
    table.clean(999 + DEAD_KEPT_MS)
    assert len(table) == 2
    table.clean(1_000 + DEAD_KEPT_MS)
    assert table.get("T", "g") is None
    assert len(table) == 1


def test_how_long_the_dead_are_kept_can_be_set() -> None:
    kept_ms = 50
    table = ConsumerFilterTable(BloomFilter(20, 32), dead_kept_ms=lambda: kept_ms)
    table.register("g", [sql("n > 5", 7)], 100)
    table.unregister("g", 200)
    table.clean(249)
    assert len(table) == 1
    kept_ms = 49
    table.clean(249)
    assert len(table) == 0


def test_a_clock_set_back_does_not_keep_the_dead_alive(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("n > 5", 7)], 5_000)
    table.unregister("g", 1_000)
    assert found(table).is_dead


def test_the_file_of_a_java_broker_is_written_as_it_was_read(table: ConsumerFilterTable) -> None:
    table.load(decode_body(config_tables.ConsumerFilterTable, JAVA_FILE), 1794710200000)
    kept = found(table, "GoldenA", "golden_sql_cg")
    assert kept.is_dead
    assert kept.sql.matches({"a": "3", "seq": "0"})
    assert not kept.sql.matches({"a": "3"})
    assert encode_body(table.snapshot()) == JAVA_FILE


def test_the_empty_file(table: ConsumerFilterTable) -> None:
    assert encode_body(table.snapshot()) == b'{"filterDataByTopic":{}}'
    table.register("g", [sql("n > 5")], 0)
    table.load(decode_body(config_tables.ConsumerFilterTable, b'{"filterDataByTopic":{}}'), 0)
    assert len(table) == 0


def test_after_a_restart_all_filters_are_dead_until_heard_of(table: ConsumerFilterTable) -> None:
    table.register("g", [sql("n > 5", 7)], 1_000)
    table.register("young", [sql("n > 5", 7)], 100_000)
    stored = decode_body(config_tables.ConsumerFilterTable, encode_body(table.snapshot()))
    restarted = ConsumerFilterTable(BloomFilter(20, 32))
    restarted.load(stored, 110_000)
    assert found(restarted).dead_ms == 110_000 - DEAD_BEFORE_LOAD_MS
    assert found(restarted, group="young").dead_ms == 100_000, "not before it was born"
    assert found(restarted, group="young").is_dead
    restarted.register("g", [sql("n > 5", 7)], 120_000)
    assert not found(restarted).is_dead
    assert (found(restarted).born_ms, found(restarted).client_version) == (1_000, 7)


def test_a_stored_expression_that_does_not_compile_is_dropped(table: ConsumerFilterTable) -> None:
    spoilt = JAVA_FILE.replace(b"a between 3 and 9", b"a between 9 and 3")
    assert spoilt != JAVA_FILE
    table.load(decode_body(config_tables.ConsumerFilterTable, spoilt), 0)
    assert len(table) == 0
