"""The evaluation of SQL92 filters: compiles the syntax tree into a function of a message.

    wanted = compile_sql("a BETWEEN 3 AND 9 AND region IN ('eu', 'us')")
    wanted.matches({"a": "5", "region": "eu"})         # a mapping
    wanted.matches_raw(b"a\\x015\\x02region\\x01eu\\x02")     # the property string of a record

Every node is compiled once into a closure over its operands; common forms (a property compared with
a literal) into one closure for the whole node. A closure takes a *lookup*, a function from the name
of a property to its value or ``None``. Only the properties that are looked up are decoded.

Where Java throws, for example because a string is not a number of the required kind, the whole
expression does not match, even inside of OR. Otherwise a message matches if the result is true, not
false or null.

Compiled expressions and syntax errors are cached, up to ``CACHED_EXPRESSIONS_MAX``: a client
repeats its subscription with every heartbeat.

Counterpart of Java's expression classes and ``ExpressionMessageFilter.isMatchedByCommitLog``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from skylark.filter.errors import FilterSyntaxError
from skylark.filter.java_values import (
    EvaluationError,
    Int,
    JavaValue,
    Long,
    compare,
    compare_doubles,
    negated,
    parse_double,
    parse_int,
    parse_long,
)
from skylark.filter.sql_parser import EXPRESSION_SIZE_MAX, parse_sql
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
from skylark.wire.properties import find_property

CACHED_EXPRESSIONS_MAX: Final = 256

#: From the name of a property to its value.
Lookup: TypeAlias = Callable[[str], str | None]
#: Closures: a boolean node, and any node.
Condition: TypeAlias = Callable[[Lookup], bool | None]
Value: TypeAlias = Callable[[Lookup], JavaValue]


class SqlFilter:
    """A compiled expression."""

    __slots__ = ("evaluate", "text", "unread_from")

    def __init__(self, text: str, evaluate: Condition, unread_from: int | None) -> None:
        self.text = text
        self.unread_from = unread_from  # where the ignored rest of the text begins, if there is one
        self.evaluate = evaluate  # the plain result: true, false, null, or an EvaluationError

    def __repr__(self) -> str:
        return f"<SqlFilter {self.text!r:.80}>"

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is wanted."""
        try:
            return self.evaluate(properties.get) is True
        except EvaluationError:
            return False

    def matches_raw(self, raw: bytes) -> bool:
        """Whether a record with this property string is wanted."""
        try:
            text = raw.decode("utf-8", "replace")
            return self.evaluate(partial(find_property, text)) is True
        except EvaluationError:
            return False


def compile_sql(text: str) -> SqlFilter:
    """The filter of an expression; the only exception is :class:`FilterSyntaxError`."""
    if len(text) > EXPRESSION_SIZE_MAX:
        parse_sql(text)  # refuses it, and keeps no copy
    outcome = _outcome(text)
    if isinstance(outcome, FilterSyntaxError):
        raise outcome.again()
    return outcome


@lru_cache(maxsize=CACHED_EXPRESSIONS_MAX)
def _outcome(text: str) -> SqlFilter | FilterSyntaxError:
    try:
        parsed = parse_sql(text)
    except FilterSyntaxError as error:
        return error.again()
    return SqlFilter(text, _condition(parsed.root), parsed.unread_from)


# ---- values ------------------------------------------------------------------------------------


def _value(node: Node) -> Value:
    """The closure of any node."""
    constant = _constant(node)
    if constant is not None:
        value = constant.value
        return lambda get: value
    if isinstance(node, Property):
        name = node.name
        return lambda get: get(name)
    if isinstance(node, Negate):  # of a condition: null, unless that is an error
        operand = _value(node.operand)

        def null(get: Lookup) -> None:
            operand(get)

        return null
    return _condition(node)


def _constant(node: Node) -> Literal | None:
    """The literal that a node always amounts to, if there is one."""
    signs = 0
    while isinstance(node, Negate):
        signs += 1
        node = node.operand
    if isinstance(node, Literal) and not signs:
        return node
    if isinstance(node, Property) and signs:
        return Literal(None)
    if not isinstance(node, Literal):
        return None
    value = node.value
    if isinstance(value, Int | Long | float):
        return Literal(negated(value) if signs % 2 else value)
    return Literal(None)


# ---- conditions --------------------------------------------------------------------------------


def _condition(node: Node) -> Condition:
    """The closure of a boolean node."""
    return _COMPILERS[type(node)](node)


def _literal(node: Literal) -> Condition:
    value = node.value
    assert value is None or isinstance(value, bool), "the parser lets no other literal stand alone"
    return lambda get: value


def _boolean_cast(node: BooleanCast) -> Condition:
    name = node.operand.name
    return lambda get: None if get(name) is None else False


def _not(node: Not) -> Condition:
    if isinstance(node.operand, IsNull) and isinstance(node.operand.operand, Property):
        name = node.operand.operand.name
        return lambda get: get(name) is not None
    condition = _condition(node.operand)

    def opposite(get: Lookup) -> bool | None:
        result = condition(get)
        return None if result is None else not result

    return opposite


def _chain(node: And | Or) -> Condition:
    conditions = tuple(map(_condition, node.operands))
    decisive = isinstance(node, Or)  # one true decides OR, one false AND; else null wins

    def chain(get: Lookup) -> bool | None:
        outcome: bool | None = not decisive
        for condition in conditions:
            result = condition(get)
            if result is decisive:
                return decisive
            if result is None:
                outcome = None
        return outcome

    return chain


def _is_null(node: IsNull) -> Condition:
    if isinstance(node.operand, Property):
        name = node.operand.name
        return lambda get: get(name) is None
    value = _value(node.operand)
    return lambda get: value(get) is None


def _in(node: In) -> Condition:
    name, values, is_negated = node.operand.name, node.values, node.negated

    def among(get: Lookup) -> bool | None:
        text = get(name)
        return None if text is None else (text in values) is not is_negated

    return among


def _text_match(node: TextMatch) -> Condition:
    if not node.needle:
        return lambda get: False
    test: Callable[[str, str], bool] = {
        "CONTAINS": str.__contains__,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }[node.test]
    value, needle, wanted = _value(node.operand), node.needle, not node.negated

    def found(get: Lookup) -> bool:
        text = value(get)
        return isinstance(text, str) and test(text, needle) is wanted

    return found


def _equal(node: Equal) -> Condition:
    left, right = _constant(node.left), _constant(node.right)
    if isinstance(node.left, Property) and right is not None and not _is_bare(right):
        return _property_equals(node.left.name, right, missing=None)
    if isinstance(node.right, Property) and left is not None and not _is_bare(left):
        return _property_equals(node.right.name, left, missing=False)
    left_value, right_value = _value(node.left), _value(node.right)

    def equal(get: Lookup) -> bool | None:
        one, other = left_value(get), right_value(get)
        if one is None:
            return True if other is None else None
        return other is not None and compare(one, other) == 0

    return equal


def _is_bare(literal: Literal) -> bool:
    """A literal that no property is quickly compared with: a boolean or null."""
    return literal.value is None or isinstance(literal.value, bool)


def _property_equals(name: str, literal: Literal, *, missing: bool | None) -> Condition:
    constant = literal.value
    if isinstance(constant, str):

        def same(get: Lookup) -> bool | None:
            text = get(name)
            return missing if text is None else text == constant

        return same
    parse = _parser_of(constant)

    def equal(get: Lookup) -> bool | None:
        text = get(name)
        return missing if text is None else parse(text) == constant

    return equal


def _finite_or_infinite(text: str) -> float:
    """A double to be compared with a finite one other than zero: NaN is above it as infinity is."""
    number = parse_double(text)
    return math.inf if number != number else number


def _parser_of(constant: JavaValue) -> Callable[[str], float]:
    """What makes a number of a string, so that Python's operators compare it as Java does.

    Double literals are finite and not zero: the two cases where the orders differ cannot occur.
    """
    return {Int: parse_int, Long: parse_long, float: _finite_or_infinite}[type(constant)]


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _compare(node: Compare) -> Condition:
    left, right = _constant(node.left), _constant(node.right)
    if isinstance(node.left, Property) and right is not None and right.value is not None:
        return _property_compares(node.left.name, node.operator, right.value)
    if isinstance(node.right, Property) and left is not None and left.value is not None:
        return _property_compares(node.right.name, _MIRRORED[node.operator], left.value)
    return _ordered(_OPERATORS[node.operator], _value(node.left), _value(node.right))


def _property_compares(name: str, symbol: str, constant: JavaValue) -> Condition:
    parse, holds = _parser_of(constant), _OPERATORS[symbol]

    def compares(get: Lookup) -> bool | None:
        text = get(name)
        return None if text is None else holds(parse(text), constant)

    return compares


def _ordered(holds: Callable[[int, int], bool], left: Value, right: Value) -> Condition:
    def ordered(get: Lookup) -> bool | None:
        one = left(get)
        if one is None:
            return None
        other = right(get)
        return None if other is None else holds(_order(one, other), 0)

    return ordered


def _order(one: JavaValue, other: JavaValue) -> int:
    """How two values compare by size: two strings are doubles then."""
    if isinstance(one, str) and isinstance(other, str):
        return compare_doubles(parse_double(one), parse_double(other))
    return compare(one, other)


def _between(node: Between) -> Condition:
    least, most = _constant(node.low), _constant(node.high)
    if (
        isinstance(node.value, Property)
        and least is not None
        and most is not None
        and least.value is not None
        and type(least.value) is type(most.value)
    ):
        return _property_between(node.value.name, least.value, most.value, outside=node.negated)
    value, low, high = _value(node.value), _value(node.low), _value(node.high)
    outside = node.negated

    def between(get: Lookup) -> bool | None:
        middle = value(get)
        if middle is None:
            return None
        known = True
        for bound, sign in ((low, 1), (high, -1)):
            limit = bound(get)
            if limit is None:
                known = False
            elif _order(middle, limit) * sign < 0:
                return outside
        return (not outside) if known else None

    return between


def _property_between(name: str, low: Any, high: Any, *, outside: bool) -> Condition:
    parse = _parser_of(low)

    def between(get: Lookup) -> bool | None:
        text = get(name)
        return None if text is None else (low <= parse(text) <= high) is not outside

    return between


_COMPILERS: Final[dict[type[Node], Callable[[Any], Condition]]] = {
    Literal: _literal,
    BooleanCast: _boolean_cast,
    Not: _not,
    And: _chain,
    Or: _chain,
    Equal: _equal,
    IsNull: _is_null,
    Compare: _compare,
    Between: _between,
    In: _in,
    TextMatch: _text_match,
}
