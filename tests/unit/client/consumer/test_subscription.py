"""What a group wants of a topic, and which messages that are."""

from __future__ import annotations

import pytest

from skylark.client.consumer.subscription import make_subscription, retry_subscription
from skylark.core.errors import ClientError
from tests.unit.client.consumer.samples import message, offsets_of


@pytest.mark.spec("client.8.20")
def test_tags_and_their_hashes() -> None:
    data = make_subscription("T", "A || B||", now_ms=5).data
    assert (data.topic, data.sub_string, data.sub_version) == ("T", "A || B||", 5)
    assert (data.tags_set, data.code_set) == (["A", "B"], [65, 66])
    assert (data.expression_type, data.class_filter_mode) == ("TAG", False)
    assert make_subscription("T", "TagA", now_ms=5).data.code_set == [2598919]


@pytest.mark.spec("client.8.20")
@pytest.mark.parametrize("tags", [None, "", "*"])
def test_everything(tags: str | None) -> None:
    subscription = make_subscription("T", tags, now_ms=5)
    data = subscription.data
    assert (data.sub_string, data.tags_set, data.code_set) == ("*", [], [])
    assert subscription.matches("A")
    assert subscription.matches(None)
    assert not subscription.is_sql


def test_only_separators_are_refused() -> None:
    with pytest.raises(ClientError, match="tags cannot be parsed"):
        make_subscription("T", "||", now_ms=5)


def test_sql_goes_as_it_is() -> None:
    subscription = make_subscription("T", sql=" a > 5 ", now_ms=5)
    data = subscription.data
    assert (data.sub_string, data.expression_type) == (" a > 5 ", "SQL92")
    assert (data.tags_set, data.code_set) == ([], [])
    assert subscription.is_sql
    assert subscription.matches("A")


def test_sql_must_say_something_and_excludes_tags() -> None:
    with pytest.raises(ClientError, match="empty SQL"):
        make_subscription("T", sql="", now_ms=5)
    with pytest.raises(ClientError, match="exclude each other"):
        make_subscription("T", "A", sql="a > 5", now_ms=5)


@pytest.mark.spec("client.8.27")
def test_tags_of_equal_hash_are_told_apart() -> None:
    subscription = make_subscription("T", "Aa || C", now_ms=5)
    assert subscription.data.code_set == [67, 2112]
    pulled = [
        message(0, TAGS="Aa"),
        message(1, TAGS="BB"),
        message(2),
        message(3, a="TAGS", TAGS="C"),
    ]
    assert offsets_of(subscription.select(pulled)) == [0, 3]
    assert [subscription.matches(each.tag) for each in pulled] == [True, False, False, True]


def test_without_tags_nothing_is_looked_at() -> None:
    pulled = [message(0)]
    assert make_subscription("T", now_ms=5).select(pulled) is pulled


def test_a_renewed_version_leaves_what_was_sent_alone() -> None:
    subscription = make_subscription("T", "A", now_ms=5)
    sent = subscription.data
    subscription.renew(9)
    assert (sent.sub_version, subscription.data.sub_version) == (5, 9)
    assert subscription.pull_version == 5  # which brokers know, and it wants the same
    assert subscription.data.tags_set == ["A"]
    assert repr(subscription) == "<Subscription T TAG 'A'>"


def test_retries_of_the_group() -> None:
    subscription = retry_subscription("G", 5)
    assert subscription.topic == "%RETRY%G"
    assert subscription.data.sub_string == "*"
