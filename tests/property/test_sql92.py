"""SQL92 filters: any text compiles or is refused, and closures mean what their tree means."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.filter.errors import FilterSyntaxError
from skylark.filter.java_values import (
    EvaluationError,
    Int,
    JavaValue,
    Long,
    compare,
    negated,
    parse_double,
)
from skylark.filter.sql_eval import compile_sql
from skylark.filter.sql_parser import parse_sql
from skylark.filter.sql_tree import (
    And,
    Between,
    BooleanCast,
    Compare,
    Equal,
    In,
    IsNull,
    Literal,
    Negate,
    Node,
    Not,
    Or,
    Property,
    TextMatch,
)
from skylark.wire.properties import encode_properties

# ---- a naive evaluator: the rules of the tree, one after the other ---------------------------

TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def naive(node: Node, properties: Mapping[str, str]) -> JavaValue:
    match node:
        case Literal(value):
            return value
        case Property(name):
            return properties.get(name)
        case Negate(operand):
            number = naive(operand, properties)
            return negated(number) if type(number) in (Int, Long, float) else None  # type: ignore[arg-type]
        case BooleanCast(operand):
            return None if naive(operand, properties) is None else False
        case Not(operand):
            value = naive(operand, properties)
            return None if value is None else not value
        case And(operands) | Or(operands):
            return naive_chain(operands, isinstance(node, Or), properties)
        case IsNull(operand):
            return naive(operand, properties) is None
        case Equal(left, right):
            return naive_equal(naive(left, properties), naive(right, properties))
        case Compare(symbol, left, right):
            return naive_compare(symbol, left, right, properties)
        case Between(value, low, high, False):
            both = (Compare(">=", value, low), Compare("<=", value, high))
            return naive(And(both), properties)
        case Between(value, low, high, True):
            either = (Compare("<", value, low), Compare(">", value, high))
            return naive(Or(either), properties)
        case In(operand, values, is_negated):
            text = naive(operand, properties)
            return None if text is None else (text in values) != is_negated
        case TextMatch(test, operand, needle, is_negated):
            text = naive(operand, properties) if needle else None
            return isinstance(text, str) and TESTS[test](text, needle) != is_negated
    raise AssertionError(node)


def naive_chain(
    operands: tuple[Node, ...], decider: bool, properties: Mapping[str, str]
) -> JavaValue:
    """Two operands at a time, from the left, as Java nests them."""
    *firsts, last = operands
    left = naive_chain(tuple(firsts), decider, properties) if firsts else naive(last, properties)
    if left is decider or not firsts:
        return left
    right = naive(last, properties)
    if right is decider:
        return decider
    return None if left is None or right is None else not decider


def naive_equal(left: JavaValue, right: JavaValue) -> JavaValue:
    if left is None or right is None:
        return None if right is not None else left is None
    return compare(left, right) == 0


def naive_compare(symbol: str, left: Node, right: Node, properties: Mapping[str, str]) -> JavaValue:
    one = naive(left, properties)
    if one is None:
        return None
    other = naive(right, properties)
    if other is None:
        return None
    if isinstance(one, str) and isinstance(other, str):
        one, other = parse_double(one), parse_double(other)
    return TESTS[symbol](compare(one, other), 0)


# ---- random expressions ------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "TAGS"])
STRINGS = st.sampled_from(["'5'", "'x'", "''", "'it''s'", "'true'"])
NUMBERS = st.sampled_from(["0", "5", "7L", "2147483648", "2.5", "1e3", "9007199254740993"])
TEXTS = st.sampled_from(
    ["5", "-5", "5.0", "x", "true", "NaN", "-0.0", "0", "2147483648", "it's", " 5", "1e3"]
)
MESSAGES = st.dictionaries(NAMES, TEXTS)


def joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(" ".join)


VALUES = NAMES | NUMBERS | joined(st.sampled_from("+-"), NAMES | NUMBERS)
OPTIONAL_NOT = st.sampled_from(["", "NOT"])
SIMPLE = (
    joined(VALUES, st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]), VALUES)
    | joined(NAMES, st.sampled_from(["=", "<>"]), STRINGS | st.sampled_from(["TRUE", "FALSE"]))
    | joined(NAMES, OPTIONAL_NOT, st.just("BETWEEN"), VALUES, st.just("AND"), VALUES)
    | joined(NAMES, OPTIONAL_NOT, st.just("IN ("), STRINGS, st.just(","), STRINGS, st.just(")"))
    | joined(NAMES, OPTIONAL_NOT, st.sampled_from(["CONTAINS", "startswith", "ENDSWITH"]), STRINGS)
    | joined(VALUES, st.sampled_from(["IS NULL", "IS NOT NULL"]))
    | NAMES
    | st.sampled_from(["TRUE", "FALSE", "NULL"])
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bracketed = inner.map("({})".format)
    return (
        joined(inner, st.sampled_from(["AND", "OR"]), inner)
        | joined(bracketed, st.sampled_from(["AND", "OR", "=", "<>"]), bracketed)
        | joined(st.just("NOT"), bracketed)
        | joined(bracketed, st.sampled_from(["IS NULL", "IS NOT NULL", "CONTAINS 'x'"]))
        | joined(NAMES, st.sampled_from(["<", ">="]), st.just("-"), bracketed)
    )


EXPRESSIONS = st.recursive(SIMPLE, compound, max_leaves=12)
SYMBOLS = ["'x'", "'", "5", "0.0", "=", "<>", "<", ">=", "(", ")", ",", "+", "-", "--", "/*", "*/"]
WORDS = ["a", "b", "NOT", "AND", "OR", "BETWEEN", "IN", "IS", "NULL", "TRUE", "CONTAINS", "!", "\n"]
TOKENS = st.sampled_from([*SYMBOLS, *WORDS, "\0"])


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, st.lists(MESSAGES, min_size=1, max_size=4))
def test_closures_mean_what_the_tree_means(text: str, messages: list[dict[str, str]]) -> None:
    try:
        root = parse_sql(text).root
    except FilterSyntaxError:  # bounds in the wrong order, for example
        return
    compiled = compile_sql(text)
    for properties in messages:
        try:
            expected = naive(root, properties)
        except EvaluationError:
            expected = "error"
        try:
            result: JavaValue = compiled.evaluate(properties.get)
        except EvaluationError:
            result = "error"
        assert result is expected or result == expected == "error"
        assert compiled.matches(properties) is (expected is True)
        assert compiled.matches_raw(encode_properties(properties).encode()) is (expected is True)


@settings(max_examples=600, deadline=None)
@given(st.lists(TOKENS, max_size=12).map(" ".join) | st.text(max_size=40), MESSAGES)
def test_any_text_compiles_or_is_refused(text: str, properties: dict[str, str]) -> None:
    refusal: FilterSyntaxError | None = None
    try:
        compiled = compile_sql(text)
    except FilterSyntaxError as error:
        refusal = error
    if refusal is None:
        assert compiled.matches(properties) in (True, False)
    else:
        assert refusal.code == 23
        assert refusal.position is not None
        assert 0 <= refusal.position <= len(text)
