"""Attributes: the text of a change, and what it does; the errors have Java's words."""

from __future__ import annotations

import pytest

from skylark.broker.topics.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    altered,
    parse_changes,
)
from skylark.core.errors import BrokerError


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (None, {}),
        ("", {}),
        (",", {}),
        ("+a=b", {"+a": "b"}),
        ("+a=b,-c,", {"+a": "b", "-c": ""}),
        ("+a=b=c", {"+a": "b"}),
        ("a-b", {"a-b": ""}),
    ],
)
def test_changes_are_read_as_java_reads_them(text: str | None, changes: dict[str, str]) -> None:
    assert parse_changes(text) == changes


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("a=b", "add/alter attribute format is wrong: a"),
        ("-a=b", "add/alter attribute format is wrong: -a"),
        ("+a=", "add/alter attribute format is wrong: +a"),
        ("=", "add/alter attribute format is wrong: "),
        ("+a", "delete attribute format is wrong: +a"),
        (",+a=b", "delete attribute format is wrong: "),
        ("+a=b,+a=c", "key duplication: +a"),
        ("-a,-a", "key duplication: -a"),
    ],
)
def test_text_that_is_no_change(text: str, remark: str) -> None:
    with pytest.raises(BrokerError) as caught:
        parse_changes(text)
    assert (caught.value.code, caught.value.remark) == (1, remark)


def test_attributes_are_added_replaced_and_removed() -> None:
    born = altered(TOPIC_ATTRIBUTES, None, {"+queue.type": "BatchCQ", "+message.type": "FIFO"})
    assert born == {"queue.type": "BatchCQ", "message.type": "FIFO"}
    changed = altered(TOPIC_ATTRIBUTES, born, {"+message.type": "DELAY", "+reserve.time": "-1"})
    assert changed == {"queue.type": "BatchCQ", "message.type": "DELAY", "reserve.time": "-1"}
    assert altered(TOPIC_ATTRIBUTES, changed, {"-message.type": "", "-reserve.time": ""}) == {
        "queue.type": "BatchCQ"
    }
    assert born == {"queue.type": "BatchCQ", "message.type": "FIFO"}


@pytest.mark.parametrize(
    ("current", "changes", "remark"),
    [
        (None, {"-message.type": ""}, "only add attribute is supported while creating topic. key: "
         "message.type"),
        (None, {"message.type": "FIFO"}, "only add attribute is supported while creating topic. "
         "key: essage.type"),
        ({}, {"message.type": "FIFO"}, "wrong format key: essage.type"),
        ({}, {"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
        ({}, {"+queue.type": "BatchCQ"}, "attempt to update an unchangeable attribute. key: "
         "queue.type"),
        ({"cleanup.policy": "DELETE"}, {"-cleanup.policy": ""}, "attempt to update an "
         "unchangeable attribute. key: cleanup.policy"),
        (None, {"+queue.type": "Other"}, "value is not in set: [BatchCQ, SimpleCQ]"),
        (None, {"+message.type": "WRONG"}, "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION,"
         " PRIORITY, FIFO, DELAY, LITE, NORMAL]"),
        (None, {"+reserve.time": "x"}, 'For input string: "x"'),
        (None, {"+reserve.time": "-2"}, "value is not in range(-1, 9223372036854775807)"),
        (None, {"+reserve.time": "9223372036854775808"}, "value is not in range(-1,"
         " 9223372036854775807)"),
        (None, {"+other": "x"}, "unsupported key: other"),
        (None, {"+lite.topic.expiration": "1"}, "unsupported key: lite.topic.expiration"),
        (None, {"+": "x"}, "kv string format wrong."),
        (None, {"": "x"}, "kv string format wrong."),
        (None, {"++a": "x"}, "kv string format wrong."),
        ({}, {"+a-b": "x"}, "kv string format wrong."),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY", "-message.type": ""},
         "alter duplication key. key: message.type"),
    ],
)  # fmt: skip
def test_changes_that_cannot_be_made(
    current: dict[str, str] | None, changes: dict[str, str], remark: str
) -> None:
    with pytest.raises(BrokerError) as caught:
        altered(TOPIC_ATTRIBUTES, current, changes)
    assert (caught.value.code, caught.value.remark) == (1, remark)


def test_attributes_of_lite_topics_are_refused_by_name() -> None:
    with pytest.raises(
        BrokerError, match=r"^unsupported key: lite\.sub\.model: .* lite topics yet$"
    ):
        altered(GROUP_ATTRIBUTES, None, {"+lite.sub.model": "Shared"})


def test_groups_have_attributes_of_their_own() -> None:
    assert altered(GROUP_ATTRIBUTES, None, {"+priority.factor": "100"}) == {
        "priority.factor": "100"
    }
    with pytest.raises(BrokerError, match=r"^unsupported key: message\.type$"):
        altered(GROUP_ATTRIBUTES, None, {"+message.type": "FIFO"})
