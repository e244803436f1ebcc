"""Numbers in strings, and the order of values, as a JVM has them."""

from __future__ import annotations

import math

import pytest

from skylark.filter.java_values import (
    EvaluationError,
    Int,
    JavaValue,
    Long,
    compare,
    compare_doubles,
    negated,
    parse_boolean,
    parse_double,
    parse_int,
    parse_long,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+5", 5),
        ("007", 7),
        ("-2147483648", -(2**31)),
        ("2147483647", 2**31 - 1),
        ("\u0665", 5),
        ("\uff15", 5),
        ("0" * 4000 + "9", 9),
    ],
)
def test_integers(text: str, number: int) -> None:
    assert parse_int(text) == number
    assert type(parse_int(text)) is Int
    assert parse_long(text) == number
    assert type(parse_long(text)) is Long


@pytest.mark.parametrize(
    "text",
    ["", " 5", "5 ", "5.0", "5L", "1_000", "0x5", "--5", "+", "\U0001d7d3", "5\n", "1" * 5000],
)
def test_no_integers(text: str) -> None:
    for parse in (parse_int, parse_long):
        with pytest.raises(EvaluationError):
            parse(text)


def test_ranges() -> None:
    for text in ("2147483648", "-2147483649"):
        assert parse_long(text) == int(text)
        with pytest.raises(EvaluationError, match="out of range"):
            parse_int(text)
    for text in ("9223372036854775808", "-9223372036854775809"):
        with pytest.raises(EvaluationError, match="out of range"):
            parse_long(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5.0),
        (" \t5.5\x00 ", 5.5),
        ("5.", 5.0),
        (".5", 0.5),
        ("-1e3", -1000.0),
        ("1E+3f", 1000.0),
        ("2.5D", 2.5),
        ("0x1.8p1", 3.0),
        ("-0X.8P2d", -2.0),
        ("0x1p9999", math.inf),
        ("-0x1p9999", -math.inf),
        ("1e999", math.inf),
        ("1e-999", 0.0),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_doubles(text: str, number: float) -> None:
    assert parse_double(text) == number


def test_not_a_number_is_a_double() -> None:
    assert math.isnan(parse_double("NaN"))
    assert math.copysign(1, parse_double("-0.0")) == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "abc",
        "inf",
        "nan",
        "infinity",
        "5L",
        "1_0",
        "\u0665",
        "1e",
        "0x10",
        "\u00a05",
        "ff",
    ],
)
def test_no_doubles(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_double(text)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("tRuE", True), ("yes", False), ("", False)]
)
def test_booleans(text: str, value: bool) -> None:
    assert parse_boolean(text) is value


def test_doubles_have_a_total_order() -> None:
    ascending = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]
    for i, left in enumerate(ascending):
        for j, right in enumerate(ascending):
            sign = compare_doubles(left, right)
            assert (sign > 0) - (sign < 0) == (i > j) - (i < j)


@pytest.mark.parametrize(
    ("left", "right", "sign"),
    [
        (Int(1), Int(2), -1),
        (Long(2**40), Int(2), 1),
        (Int(1), 1.0, 0),
        (Long(2**53 + 1), float(2**53), 0),  # equal as doubles
        ("7", Int(7), 0),
        (Int(7), "8", -1),
        ("3000000000", Long(2**31), 1),
        ("1e1", 10.0, 0),
        (10.0, "NaN", -1),
        ("x", "x", 0),
        ("TRUE", True, 0),
        ("x", True, -1),
        (False, True, -1),
        (True, Int(1), -1),
        (Int(1), True, -1),
    ],
)
def test_comparison(left: JavaValue, right: JavaValue, sign: int) -> None:
    assert compare(left, right) == sign


@pytest.mark.parametrize(
    ("left", "right"), [(True, "true"), ("x", Int(1)), (Int(1), "1.0"), (1.0, "x"), ("", Long(1))]
)
def test_what_cannot_be_compared(left: JavaValue, right: JavaValue) -> None:
    with pytest.raises(EvaluationError):
        compare(left, right)


def test_negation_keeps_the_class() -> None:
    assert type(negated(Int(5))) is Int
    assert type(negated(Long(2**31))) is Long
    assert negated(Long(2**31)) == -(2**31)
    assert negated(2.5) == -2.5
