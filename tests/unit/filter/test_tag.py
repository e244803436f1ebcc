"""Tag expressions, matching by hash on one entry and on a column of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.hashing import java_hash
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.tag import TAG_EXPRESSION_SIZE_MAX, TagFilter, parse_tags

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_expressions_for_everything(expression: str | None) -> None:
    everything = parse_tags(expression)
    assert everything.codes is None
    assert everything.matches(0)
    assert everything.matches(-(2**63))
    assert everything.matches_tag(None)
    assert everything.mask(np.array([0, 5, -1])).tolist() == [True, True, True]


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", ["TagA"]),
        ("TagA||TagB", ["TagA", "TagB"]),
        (" TagA \t||\n TagB ", ["TagA", "TagB"]),
        ("TagA || TagA", ["TagA"]),
        ("|| TagA || || TagB ||", ["TagA", "TagB"]),
        ("TagA || *", ["TagA", "*"]),
        (" * ", ["*"]),
        ("|||TagA", ["|TagA"]),
        ("a|b", ["a|b"]),
        ("\u3000a\u00a0", ["\u3000a\u00a0"]),  # Java's trim knows no wider blanks
        ("\x01a\x1f", ["a"]),
        ("\u4e2d || \U0001f600", ["\u4e2d", "\U0001f600"]),
    ],
)
def test_lists_of_tags(expression: str, tags: list[str]) -> None:
    parsed = parse_tags(expression)
    assert list(parsed.tags) == tags
    assert parsed.codes == frozenset(map(java_hash, tags))


def test_only_blanks_want_nothing() -> None:
    parsed = parse_tags(" || ")
    assert parsed.codes == frozenset()
    assert not parsed.matches(0)
    assert parsed.mask(np.array([0, 1])).tolist() == [False, False]


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_only_separators_are_refused(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match=r"no tag.*TagA \|\| TagB") as caught:
        parse_tags(expression)
    assert caught.value.code == 23


def test_a_very_long_expression_is_refused() -> None:
    assert parse_tags("x" * TAG_EXPRESSION_SIZE_MAX).tags == ("x" * TAG_EXPRESSION_SIZE_MAX,)
    with pytest.raises(FilterSyntaxError, match="65537 characters"):
        parse_tags("x" * (TAG_EXPRESSION_SIZE_MAX + 1))


def test_a_broker_lets_equal_hashes_through_and_a_consumer_does_not() -> None:
    wanted = parse_tags("Aa")
    assert wanted.matches(java_hash("Aa"))
    assert wanted.matches(java_hash("BB"))
    assert not wanted.matches(java_hash("AA"))
    assert wanted.matches_tag("Aa")
    assert not wanted.matches_tag("BB")
    assert not wanted.matches_tag(None)


def test_the_lower_half_of_the_code_counts() -> None:
    wanted = parse_tags("TopicTest")  # -1902610879
    assert wanted.matches(-1902610879)
    assert wanted.matches(-1902610879 & 0xFFFF_FFFF)
    assert wanted.matches(0x7FFF_FFFF << 32 | (-1902610879 & 0xFFFF_FFFF))
    assert not wanted.matches(1902610879)


def test_a_heartbeat_gives_the_hashes_itself() -> None:
    wanted = TagFilter.of_subscription("TagA", [2598919, 7])
    assert [wanted.matches(code) for code in (2598919, 7, 8)] == [True, True, False]
    assert TagFilter.of_subscription("*", []).matches(8)
    assert not TagFilter.of_subscription("", []).matches(0)


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(INT32, max_size=12), st.sampled_from(["<i8", ">i8"]))
def test_a_mask_is_what_single_entries_give(
    data: st.DataObject, codes: list[int], dtype: str
) -> None:
    known = st.sampled_from(codes) if codes else INT32
    entries = data.draw(st.lists(known | known.map(lambda code: code + 2**32) | INT64, max_size=40))
    wanted = TagFilter(codes)
    column = np.array(entries, dtype)
    mask = wanted.mask(column)
    assert mask.dtype == np.bool_
    assert mask.tolist() == [wanted.matches(entry) for entry in entries]


@pytest.mark.parametrize("count", [1, 4, 5, 300])
def test_a_mask_over_a_field_of_queue_entries(count: int) -> None:
    entries = np.zeros(1000, [("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
    entries["tags_code"] = np.arange(-500, 500)
    wanted = TagFilter(range(count))
    assert np.flatnonzero(wanted.mask(entries["tags_code"])).tolist() == list(
        range(500, 500 + count)
    )
