"""What SQL92 filters mean. The full table, answered by Java, is in ``tests/golden``."""

from __future__ import annotations

import pytest

from skylark.filter import sql_eval
from skylark.filter.errors import FilterSyntaxError
from skylark.filter.java_values import EvaluationError
from skylark.filter.sql_eval import CACHED_EXPRESSIONS_MAX, compile_sql
from skylark.filter.sql_parser import DEPTH_MAX, EXPRESSION_SIZE_MAX


@pytest.mark.spec("broker.13.13")
@pytest.mark.parametrize(
    ("text", "properties", "matches"),
    [
        ("a > 5", {"a": "abc"}, False),
        ("a > 5", {"a": "6"}, True),
        ("a = 3 OR b = 'x'", {"a": "z", "b": "x"}, False),
        ("a = 3 OR b = 'x'", {"b": "x"}, True),
        ("a <> 'x'", {}, False),
        ("'x' <> a", {}, True),
        ("NOT (a CONTAINS 'q')", {}, True),
        ("a NOT CONTAINS 'q'", {}, False),
        ("a LIKE 'b'", {"a": "b"}, False),
        ("a LIKE 'b'", {}, False),
    ],
)
def test_rules_of_thumb(text: str, properties: dict[str, str], matches: bool) -> None:
    assert compile_sql(text).matches(properties) is matches


@pytest.mark.spec("broker.13.13")
@pytest.mark.parametrize("text", ["a BETWEEN 5 AND 1", "a = NULL", "a > 0.0"])
def test_what_does_not_compile(text: str) -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        compile_sql(text)
    assert caught.value.code == 23


@pytest.mark.parametrize(
    ("text", "properties", "result"),
    [
        ("a", {"a": "true"}, False),
        ("a", {}, None),
        ("NOT a", {"a": "x"}, True),
        ("a = b", {}, True),
        ("a = b", {"b": "1"}, None),
        ("a = b", {"a": "1"}, False),
        ("a < b", {"a": "9", "b": "10"}, True),
        ("a = b", {"a": "9", "b": "9.0"}, False),
        ("a IN ('x')", {}, None),
        ("a NOT IN ('x')", {}, None),
        ("a = 1 AND b = 1", {"b": "2"}, False),
        ("a = 1 AND b = 1", {"b": "1"}, None),
        ("a = 1 OR b = 1", {"b": "2"}, None),
        ("a BETWEEN b AND 5", {"a": "6"}, False),
        ("a BETWEEN b AND 5", {"a": "4"}, None),
        ("-a IS NULL", {"a": "1"}, True),
        ("a > 2.5", {"a": "NaN"}, True),
        ("a < 2.5", {"a": "NaN"}, False),
        ("(a > 1) CONTAINS ''", {"a": "x"}, False),
    ],
)
def test_three_values(text: str, properties: dict[str, str], result: bool | None) -> None:
    assert compile_sql(text).evaluate(properties.get) is result


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a > 5", {"a": "5.5"}),
        ("a = 2147483647", {"a": "2147483648"}),
        ("b = 'x' OR a = 3", {"a": "z", "b": "y"}),
        ("TRUE = a", {"a": "true"}),
        ("a < b", {"a": "1", "b": "x"}),
        ("-(a > 5) IS NULL", {"a": "x"}),
        ("(a > 5) IS NULL", {"a": "x"}),
    ],
)
def test_an_error_is_no_match(text: str, properties: dict[str, str]) -> None:
    compiled = compile_sql(text)
    with pytest.raises(EvaluationError):
        compiled.evaluate(properties.get)
    assert compiled.matches(properties) is False


def test_a_decided_side_spares_the_other() -> None:
    assert compile_sql("b = 'x' OR a = 3").matches({"a": "z", "b": "x"})
    assert compile_sql("NOT (b = 'y' AND a = 3)").matches({"a": "z", "b": "x"})


def test_a_record_gives_only_what_is_asked_for() -> None:
    compiled = compile_sql("a = '1' AND b IS NULL AND TAGS = 'caf\u00e9'")
    assert compiled.matches_raw("x\x01y\x02a\x011\x02TAGS\x01caf\u00e9\x02".encode())
    assert compiled.matches_raw("a\x011\x02b\x01\x02TAGS\x01caf\u00e9".encode())
    assert not compiled.matches_raw("a\x012\x02TAGS\x01caf\u00e9\x02".encode())
    assert not compiled.matches_raw(b"")
    assert compile_sql("a = '\ufffd'").matches_raw(b"a\x01\xff\x02")


def test_the_rest_that_is_not_read_is_told() -> None:
    assert compile_sql("a LIKE 'b'").unread_from == 2
    assert compile_sql("a = 'b'").unread_from is None


@pytest.mark.parametrize(
    "text",
    [
        "NOT " * (DEPTH_MAX - 2) + "a",
        "a" + " = a" * (DEPTH_MAX - 1),
        "(" * DEPTH_MAX + "a = 1" + " OR a = 2)" * DEPTH_MAX,
        "-(" * 45 + "a" + ") BETWEEN 1 AND 2" * 45 + " IS NULL",
        " OR ".join(["a = 1"] * 1000),
        "(" * 49 + "a = 1" + ") = FALSE AND a = 1" * 49,
    ],
)
def test_the_deepest_expressions_can_be_evaluated(text: str) -> None:
    compiled = compile_sql(text)
    assert compiled.matches({"a": "1"}) in (True, False)
    assert compiled.matches({}) in (True, False)


# ---- the cache ---------------------------------------------------------------------------------


def test_expressions_and_refusals_are_kept() -> None:
    assert compile_sql("cached = 1") is compile_sql("cached = 1")
    before = sql_eval._outcome.cache_info()
    errors = []
    for _ in range(3):
        with pytest.raises(FilterSyntaxError) as caught:
            compile_sql("cached = ")
        errors.append(caught.value)
    after = sql_eval._outcome.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 2)
    assert len({id(error) for error in errors}) == 3  # each with a traceback of its own
    assert len({str(error) for error in errors}) == 1


def test_the_cache_is_limited() -> None:
    for number in range(CACHED_EXPRESSIONS_MAX + 10):
        compile_sql(f"a = {number}")
    assert sql_eval._outcome.cache_info().currsize == CACHED_EXPRESSIONS_MAX


def test_what_is_too_long_is_not_kept() -> None:
    before = sql_eval._outcome.cache_info()
    with pytest.raises(FilterSyntaxError, match="65537 characters"):
        compile_sql("a" * (EXPRESSION_SIZE_MAX + 1))
    assert sql_eval._outcome.cache_info() == before
