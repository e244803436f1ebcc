"""Java values: how SQL92 filters parse and compare numbers, strings and booleans, as a JVM does.

A filter must select the same messages as a Java broker in all cases, so a value has a Java class:
:class:`Int` and :class:`Long` for whole numbers, ``float`` for Double, ``str`` for String (every
property is one), ``bool`` for Boolean, ``None`` for null.

* A string is parsed as the *class of the other side*: ``Integer.valueOf``, ``Long.valueOf`` or
  ``Double.valueOf``. So "3.0" is no Int, and "3000000000" is a Long but no Int.
* Doubles have a total order: -0.0 is below 0.0, and NaN is equal to itself and above the rest.
* Classes that cannot be compared are unequal, the left one being the smaller.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, TypeAlias


class Int(int):
    """A value of Java's Integer."""

    __slots__ = ()


class Long(int):
    """A value of Java's Long."""

    __slots__ = ()


Number: TypeAlias = Int | Long | float
JavaValue: TypeAlias = Number | str | bool | None

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1


class EvaluationError(Exception):
    """Java would throw here: the expression does not match."""


_is_whole = re.compile(r"[+-]?\d+").fullmatch  # digits of any script, as Character.digit takes
_is_decimal = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?").fullmatch
_hexadecimal = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
).fullmatch
_NAMED: Final = {
    sign + name: float(sign + name) for sign in ("", "+", "-") for name in ("NaN", "Infinity")
}
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # what String.trim cuts off


def _parse_whole(text: str, low: int, high: int) -> int:
    # Java checks single UTF-16 units, so a digit of two units is not a digit.
    if _is_whole(text) is None or (not text.isascii() and max(text) > "\uffff"):
        raise EvaluationError(f"{text!r:.50} is no whole number")
    try:
        value = int(text)
    except ValueError:  # Python refuses thousands of digits
        raise EvaluationError(f"{text!r:.50} has too many digits") from None
    if not low <= value <= high:
        raise EvaluationError(f"{text!r:.50} is out of range")
    return value


def parse_int(text: str) -> Int:
    """``Integer.valueOf``."""
    return Int(_parse_whole(text, INT_MIN, INT_MAX))


def parse_long(text: str) -> Long:
    """``Long.valueOf``."""
    return Long(_parse_whole(text, LONG_MIN, LONG_MAX))


def parse_double(text: str) -> float:
    """``Double.valueOf``: blanks around, NaN, infinities, type suffixes and hexadecimal forms."""
    trimmed = text.strip(_TRIMMED)
    if _is_decimal(trimmed):
        return float(trimmed.rstrip("fFdD"))
    if trimmed in _NAMED:
        return _NAMED[trimmed]
    if found := _hexadecimal(trimmed):
        return _from_hexadecimal(found[1])
    raise EvaluationError(f"{text!r:.50} is no number")


def _from_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text[0] == "-" else math.inf


def parse_boolean(text: str) -> bool:
    """``Boolean.valueOf``, which never fails."""
    return text.lower() == "true"


def negated(number: Number) -> Number:
    """The number with the other sign, of the same class; literals cannot overflow."""
    return type(number)(-number)


def compare_doubles(left: float, right: float) -> int:
    """``Double.compare``: negative, zero or positive."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1.0, left) - math.copysign(1.0, right)) if left == 0 else 0
    return (left != left) - (right != right)


_PARSERS: Final[dict[type, Callable[[str], Number | bool]]] = {
    bool: parse_boolean,
    Int: parse_int,
    Long: parse_long,
    float: parse_double,
}


def compare(left: JavaValue, right: JavaValue) -> int:
    """Compare two non-null values as Java does; of two strings: 0 if equal, else -1."""
    assert left is not None, "the caller handles null"
    assert right is not None, "the caller handles null"
    left_class, right_class = type(left), type(right)
    if left_class is not right_class:
        if left_class is bool:
            if right_class is str:
                raise EvaluationError("a boolean cannot be compared with a string on its right")
            return -1
        if isinstance(left, str):
            left = _PARSERS[right_class](left)
        elif isinstance(right, str):
            right = _PARSERS[left_class](right)
        elif right_class is bool:
            return -1
    if isinstance(left, str) or isinstance(right, str):
        return -1 if left != right else 0  # callers only test for equality
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)
