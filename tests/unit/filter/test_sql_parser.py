"""SQL92 filters: which text becomes which tree, what is refused and where, and the limits."""

from __future__ import annotations

import pytest

from skylark.filter.errors import FilterSyntaxError
from skylark.filter.java_values import Int, Long
from skylark.filter.sql_parser import (
    DEPTH_MAX,
    EXPRESSION_SIZE_MAX,
    OPERATORS_MAX,
    parse_sql,
)
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
    depth,
)

A, B = Property("a"), Property("b")
A1, B1 = Equal(A, Literal(Int(1))), Equal(B, Literal(Int(1)))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", BooleanCast(A)),
        ("((a))", BooleanCast(A)),
        ("a = 1", A1),
        ("a <> 1", Not(A1)),
        ("a = 'it''s'", Equal(A, Literal("it's"))),
        ("a = TRUE", Equal(A, Literal(True))),
        ("a = 2.5", Equal(A, Literal(2.5))),
        ("NULL", Literal(None)),
        ("a = +1", A1),
        ("a = -1", Equal(A, Negate(Literal(Int(1))))),
        ("a IS NULL", IsNull(A)),
        ("a IS NOT NULL", Not(IsNull(A))),
        ("a = 1 IS NULL", IsNull(A1)),
        ("NOT a = 1", Equal(Not(BooleanCast(A)), Literal(Int(1)))),
        ("NOT (a = 1)", Not(A1)),
        ("a < b", Compare("<", A, B)),
        ("a >= 1", Compare(">=", A, Literal(Int(1)))),
        ("a BETWEEN 1 AND b", Between(A, Literal(Int(1)), B, False)),
        ("a NOT BETWEEN 2 AND 1", Between(A, Literal(Int(2)), Literal(Int(1)), True)),
        ("a IN ('x', 'y')", In(A, frozenset("xy"), False)),
        ("(a) NOT IN ('x')", In(A, frozenset("x"), True)),
        ("a CONTAINS 'x'", TextMatch("CONTAINS", A, "x", False)),
        ("a NOT startswith ''", TextMatch("STARTSWITH", A, "", True)),
        ("a EndsWith 'x'", TextMatch("ENDSWITH", A, "x", False)),
        ("a = 1 AND b = 1", And((A1, B1))),
        ("a = 1 AND b", And((A1, BooleanCast(B)))),
        ("a = 1 OR b = 1 AND a", Or((A1, And((B1, BooleanCast(A)))))),
        ("(a = 1 OR b = 1) AND a", And((Or((A1, B1)), BooleanCast(A)))),
        ("a = 1 OR b = 1 OR a = 1", Or((A1, B1, A1))),
        ("(a = 1 OR b = 1) OR a = 1", Or((A1, B1, A1))),
        ("a = 1 AND (b = 1 AND (a = 1 AND b = 1))", And((A1, B1, A1, B1))),
    ],
)
def test_trees(text: str, tree: Node) -> None:
    parsed = parse_sql(text)
    assert parsed.root == tree
    assert parsed.unread_from is None


@pytest.mark.parametrize(
    ("text", "number_class"),
    [
        ("2147483647", Int),
        ("2147483648", Long),
        ("5L", Int),
        ("9223372036854775807", Long),
        ("1e0", float),
    ],
)
def test_a_number_has_the_smallest_class_that_holds_it(text: str, number_class: type) -> None:
    tree = parse_sql(f"a = {text}").root
    assert isinstance(tree, Equal)
    assert isinstance(tree.right, Literal)
    assert type(tree.right.value) is number_class


@pytest.mark.parametrize(
    ("text", "tree", "unread_from"),
    [
        ("a LIKE 'b'", BooleanCast(A), 2),
        ("a = 1 b #", A1, 6),
        ("a = 1 - 2", A1, 6),
        ("a = 1)", A1, 5),
        ("a = 1L2", A1, 6),
    ],
)
def test_reading_stops_behind_the_expression(text: str, tree: Node, unread_from: int) -> None:
    assert parse_sql(text) == (tree, unread_from)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "a value is needed, not the end of the expression"),
        ("a =", 3, "a value is needed, not the end"),
        ("a == 1", 3, "a value is needed, not '='.*single ="),
        ("(a = 1", 6, r"\) is needed, not the end"),
        ("a = 1 AND", 9, "a value is needed"),
        ("a NOT 5", 6, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH is needed, not '5'"),
        ("a IS 5", 5, "NULL is needed, not '5'"),
        ("a IN 'x'", 5, r"\( is needed"),
        ("a IN (5)", 6, "a string in single quotes is needed, not '5'"),
        ("a CONTAINS b", 11, "a string in single quotes is needed, not 'b'"),
        ("a BETWEEN 1 OR 2", 12, "AND is needed, not 'OR'"),
        ("a = 1 #", 6, "unexpected character"),
        ("a = NULL", 2, "NULL is equal to nothing.*IS NULL"),
        ("NULL <> a", 5, "NULL is equal to nothing"),
        ("TRUE = 1", 5, "a boolean cannot be compared"),
        ("a < 'x'", 2, "< cannot compare"),
        ("a >= TRUE", 2, ">= cannot compare"),
        ("a > (b = 1)", 2, "> cannot compare"),
        ("NULL < a", 5, "< cannot compare"),
        ("a BETWEEN 'x' AND 'y'", 2, "BETWEEN cannot compare"),
        ("a NOT BETWEEN 1 AND NULL", 6, "BETWEEN cannot compare"),
        ("a BETWEEN 5 AND 1", 2, "wrong order"),
        ("a BETWEEN 5 AND 4.5", 2, "wrong order"),
        ("'x' IN ('x')", 4, "IN needs the name of a property"),
        ("-a IN ('x')", 3, "IN needs the name of a property"),
        ("5", 0, "a condition is needed"),
        ("'x'", 0, "a condition is needed"),
        ("-a", 0, "a condition is needed"),
        ("NOT 5", 0, "a condition is needed"),
        ("a AND 5", 6, "a condition is needed"),
        ("a OR (5 AND b)", 6, "a condition is needed"),
        ("a = 9223372036854775808", 4, "does not fit into 64 bits"),
        ("a = " + "9" * 5000, 4, "does not fit into 64 bits"),
        ("a = 0.0", 4, "too close to zero.*integer 0"),
        ("a = 1e-400", 4, "too close to zero"),
        ("a = 1e400", 4, "does not fit into a double"),
    ],
)
def test_refusals(text: str, position: int, message: str) -> None:
    with pytest.raises(FilterSyntaxError, match=message) as caught:
        parse_sql(text)
    assert caught.value.position == position
    assert caught.value.code == 23
    assert len(str(caught.value)) < 200


# ---- limits ------------------------------------------------------------------------------------


def test_length_is_limited() -> None:
    text = "a = 1".ljust(EXPRESSION_SIZE_MAX)
    assert parse_sql(text).root == A1
    with pytest.raises(FilterSyntaxError, match="65537 characters"):
        parse_sql(text + " ")
    with pytest.raises(FilterSyntaxError, match="1048576 characters"):
        parse_sql("x" * 2**20)


def test_operators_are_limited() -> None:
    count = (OPERATORS_MAX + 1) // 2
    tree = parse_sql(" OR ".join(["a = 1"] * count)).root
    assert isinstance(tree, Or)
    assert len(tree.operands) == count
    with pytest.raises(FilterSyntaxError, match=r"more than 2000 operators.*use IN"):
        parse_sql(" OR ".join(["a = 1"] * (count + 1)))


def test_long_lists_of_values_are_no_operators() -> None:
    values = [f"{number:05}" for number in range(8000)]
    tree = parse_sql(f"a IN ({','.join(map(repr, values))})").root
    assert tree == In(A, frozenset(values), False)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("(" * DEPTH_MAX + "a = 1" + ")" * DEPTH_MAX, 2),
        ("NOT " * (DEPTH_MAX - 2) + "a", DEPTH_MAX),
        ("a = " + "- " * (DEPTH_MAX - 2) + "1", DEPTH_MAX),
        ("a" + " IS NULL" * (DEPTH_MAX - 1), DEPTH_MAX),
        ("a" + " = a" * (DEPTH_MAX - 1), DEPTH_MAX),
        ("(" * DEPTH_MAX + "a = 1" + " OR a = 2)" * DEPTH_MAX, 3),
    ],
)
def test_nesting_up_to_the_limit(text: str, levels: int) -> None:
    assert depth(parse_sql(text).root, DEPTH_MAX) == levels


@pytest.mark.parametrize(
    "text",
    [
        "(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1),
        "(" * EXPRESSION_SIZE_MAX,
        "NOT " * (DEPTH_MAX - 1) + "a",
        "a = " + "- " * (DEPTH_MAX - 1) + "1",
        "a = " + "-" * 1500 + "1",
        "a" + " IS NULL" * DEPTH_MAX,
        "a" + " = a" * DEPTH_MAX,
        "a" + " CONTAINS 'x'" * DEPTH_MAX,
        "-(" * 60 + "a" + ") BETWEEN 1 AND 2" * 60 + " IS NULL",
    ],
)
def test_nesting_beyond_the_limit(text: str) -> None:
    with pytest.raises(FilterSyntaxError, match="deeper than 100 levels"):
        parse_sql(text)
