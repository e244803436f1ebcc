"""Members that disagree are found, said once per state, and shown."""

from __future__ import annotations

import logging

import pytest

from skylark.broker.groups.subscription_lint import (
    CLIENTS_SHOWN_MAX,
    STATES_LOGGED_MAX,
    SubscriptionLint,
)
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.fastjson import encode_body

LOGGER = "skylark.broker.groups.subscription_lint"


def tags(topic: str, expression: str) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression)


def sql(topic: str, expression: str) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92")


def test_members_that_agree_are_no_conflict() -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("A", "a || b"), tags("B", "*"), tags("%RETRY%g", "*")])
    lint.update(2, "c2", [tags("B", ""), tags("A", "b||a")])
    assert not lint.in_conflict
    assert lint.conflicts() == []


@pytest.mark.parametrize("topic", ["%RETRY%g_A", "%RETRY%g+A"])
def test_members_that_pull_the_retries_of_pops_are_no_conflict(topic: str) -> None:
    """Some members of the group pull and others pop, while its mode changes."""
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("A", "*"), tags(topic, "*")])
    lint.update(2, "c2", [tags("A", "*")])
    assert not lint.in_conflict


def test_the_retry_topic_of_another_group_counts() -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("%RETRY%other", "*")])
    lint.update(2, "c2", [])
    assert [conflict.topic for conflict in lint.conflicts()] == ["%RETRY%other"]


def test_conflicts_show_all_sides() -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("A", "a"), tags("Same", "*")])
    lint.update(2, "c2", [sql("A", "x > 1"), tags("Same", "*")])
    lint.update(3, "c3", [tags("Same", "*")])
    lint.update(4, "c4", [tags("A", "a"), tags("Same", "*"), tags("C", "*")])
    assert encode_body(lint.conflicts()) == (
        b'[{"sides":['
        b'{"clientCount":2,"clientIds":["c1","c4"],"expression":"a","expressionType":"TAG"},'
        b'{"clientCount":1,"clientIds":["c2"],"expression":"x > 1","expressionType":"SQL92"},'
        b'{"clientCount":1,"clientIds":["c3"]}],"topic":"A"},'
        b'{"sides":[{"clientCount":3,"clientIds":["c1","c2","c3"]},'
        b'{"clientCount":1,"clientIds":["c4"],"expression":"*","expressionType":"TAG"}],'
        b'"topic":"C"}]'
    )


def test_the_list_of_clients_is_cut() -> None:
    lint = SubscriptionLint("g")
    for number in range(50):
        lint.update(number, f"c{number}", [tags("A", "a")])
    lint.update(99, "odd", [tags("A", "b")])
    many, one = lint.conflicts()[0].sides
    assert many.client_count == 50
    assert many.client_ids == [f"c{number}" for number in range(CLIENTS_SHOWN_MAX)]
    assert (one.client_count, one.client_ids) == (1, ["odd"])


def test_a_conflict_ends_when_members_agree_or_leave() -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("A", "a")])
    lint.update(2, "c2", [tags("A", "b")])
    assert len(lint.conflicts()) == 1
    lint.update(1, "c1", [tags("A", "b")])
    assert lint.conflicts() == []
    lint.update(3, "c3", [tags("A", "c")])
    assert len(lint.conflicts()) == 1
    lint.remove(3)
    lint.remove(3)
    assert lint.conflicts() == []


def test_each_conflict_is_logged_once_with_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    lint = SubscriptionLint("orders")
    with caplog.at_level(logging.INFO, LOGGER):
        lint.update(1, "c1", [tags("A", "a")])
        lint.update(2, "c2", [tags("A", "a")])
        assert caplog.messages == []
        lint.update(3, "c3", [sql("A", "x > 1"), tags("B", "*")])
        for _ in range(3):
            lint.update(1, "c1", [tags("A", "a")])
            lint.update(3, "c3", [sql("A", "x > 1"), tags("B", "*")])
        lint.update(4, "c4", [tags("A", "a")])
    assert len(caplog.messages) == 1
    assert "consumer group orders: members subscribe differently" in caplog.messages[0]
    assert caplog.messages[0].endswith(
        "topic A: c1 and 1 more: TAG a but c3: SQL92 x > 1; "
        "topic B: c1 and 1 more: not subscribed but c3: TAG *"
    )
    caplog.clear()
    lint.update(5, "c5", [tags("A", "z")])  # a third opinion is news
    assert len(caplog.messages) == 1
    lint.remove(5)
    lint.update(5, "c5", [tags("A", "z")])  # the same three again are not
    assert len(caplog.messages) == 1


def test_memory_of_logged_conflicts_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("A", "a")])
    for number in range(STATES_LOGGED_MAX + 1):
        lint.update(2, "c2", [tags("A", f"t{number}")])
    assert len(caplog.messages) == STATES_LOGGED_MAX + 1
    lint.update(2, "c2", [tags("A", "t5")])
    assert len(caplog.messages) == STATES_LOGGED_MAX + 2, "dropped meanwhile, so logged again"


def test_long_expressions_and_many_topics_are_cut_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [sql("A", "x" * 10_000)])
    lint.update(2, "c2", [tags(f"T{number}", "*") for number in range(20)])
    assert len(caplog.messages[0]) < 1_000
    assert caplog.messages[0].endswith("; and 16 more topics")


@pytest.mark.parametrize("expression", ["||", " || ", "x" * 100_000])
def test_strange_expressions_are_compared_as_they_are(expression: str) -> None:
    lint = SubscriptionLint("g")
    lint.update(1, "c1", [tags("A", expression)])
    lint.update(2, "c2", [tags("A", expression)])
    assert lint.conflicts() == []
    lint.update(3, "c3", [tags("A", "*")])
    assert lint.in_conflict
