"""The parser of SQL92 filters: from tokens to a syntax tree, by recursive descent::

    or         := and {OR and}
    and        := equality {AND equality}
    equality   := comparison {('=' | '<>') comparison | IS [NOT] NULL}
    comparison := unary {('<' | '<=' | '>' | '>=') unary
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN '(' string {',' string} ')'
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string}
    unary      := ('+' | '-' | NOT) unary | literal | name | '(' or ')'

An expression is an ``or`` that is boolean. As in Java, the text after it is ignored, so that
``a LIKE 'b'`` is the bare property ``a``; :attr:`Parsed.unread_from` is where that text starts.
NOT binds tightly: ``NOT a = 1`` compares ``NOT a`` with 1.

Also invalid: ``=`` and ``<>`` with NULL, or with TRUE or FALSE on the left of another literal; an
order of strings or booleans; BETWEEN with its literals in the wrong order; IN on anything but a
property; whole numbers beyond 64 bits; the float 0.0.

The size of the text, the number of operators and the nesting are limited. The parser needs five
Python frames per pair of brackets and the evaluation one per level of the tree, so the recursion
limit of the interpreter is never reached.

Counterpart of Java's ``SelectorParser`` and the factory methods of its expression classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, cast

from skylark.filter.errors import FilterSyntaxError
from skylark.filter.java_values import INT_MAX, LONG_MAX, Int, Long, compare
from skylark.filter.sql_lexer import Kind, Lexer, Token
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
    Ordering,
    Property,
    TextMatch,
    TextTest,
    depth,
)

EXPRESSION_SIZE_MAX: Final = 64 * 1024  # characters
OPERATORS_MAX: Final = 2000
DEPTH_MAX: Final = 100

_ORDERINGS: Final = frozenset({"<", "<=", ">", ">="})
_TEXT_TESTS: Final = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_CONSTANTS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


class Parsed(NamedTuple):
    """A tree, and where reading stopped if that was not the end of the text."""

    root: Node
    unread_from: int | None


def parse_sql(text: str) -> Parsed:
    """The tree of an expression; the only exception is :class:`FilterSyntaxError`."""
    if len(text) > EXPRESSION_SIZE_MAX:
        raise FilterSyntaxError(
            f"an expression of {len(text)} characters",
            position=EXPRESSION_SIZE_MAX,
            hint=f"at most {EXPRESSION_SIZE_MAX} are allowed",
        )
    return _Parser(text).expression()


class _Parser:
    """One pass over one text; ``_next`` is the first token not yet used."""

    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._next = self._lexer.next()
        self._brackets = 0
        self._operators = 0

    def expression(self) -> Parsed:
        root = _boolean(self._or(), position=0)
        if depth(root, DEPTH_MAX) > DEPTH_MAX:
            raise _too_deep(position=0)
        unread = self._next
        return Parsed(root, None if unread.kind is Kind.END else unread.position)

    # The grammar

    def _or(self) -> Node:
        return self._chain("OR", Or, self._and)

    def _and(self) -> Node:
        return self._chain("AND", And, self._equality)

    def _chain(self, word: str, node_type: type[And | Or], operand: Callable[[], Node]) -> Node:
        """One operand, or several with the word between them."""
        start = self._next.position
        left = operand()
        if self._next.text != word:
            return left
        operands = _operands(node_type, left, start)
        while self._next.text == word:
            self._operator()
            start = self._next.position
            operands += _operands(node_type, operand(), start)
        return node_type(tuple(operands))

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            if self._next.text in ("=", "<>"):
                operator = self._operator()
                left = _equal(operator, left, self._comparison())
            elif self._next.text == "IS":
                self._operator()
                negated = self._accept("NOT")
                self._expect("NULL")
                left = Not(IsNull(left)) if negated else IsNull(left)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            word = self._next.text
            if word in _ORDERINGS:
                operator = self._operator()
                right = self._unary()
                _check_ordered(operator, left, right)
                left = Compare(cast("Ordering", operator.text), left, right)
            elif word in ("NOT", "BETWEEN", "IN") or word in _TEXT_TESTS:
                left = self._worded(left)
            else:
                return left

    def _worded(self, left: Node) -> Node:
        """What follows a value by words: BETWEEN, IN, CONTAINS and their like."""
        negated = self._accept("NOT")
        operator = self._operator()
        if operator.text == "BETWEEN":
            low = self._unary()
            self._expect("AND")
            return _between(operator, left, low, self._unary(), negated=negated)
        if operator.text == "IN":
            if not isinstance(left, Property):
                raise _refused(operator, "IN needs the name of a property on its left")
            return In(left, self._strings(), negated)
        if operator.text in _TEXT_TESTS:
            return TextMatch(cast("TextTest", operator.text), left, self._string(), negated)
        raise _unexpected(operator, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")

    def _unary(self) -> Node:
        prefixes: list[Token] = []
        while self._next.text in ("+", "-", "NOT"):
            prefixes.append(self._operator())
        token = self._advance()
        node: Node
        if token.kind is Kind.NAME:
            node = Property(token.text)
        elif token.text == "(":
            self._brackets += 1
            if self._brackets > DEPTH_MAX:
                raise _too_deep(token.position)
            node = self._or()
            self._expect(")")
            self._brackets -= 1
        else:
            node = _literal(token)
        for prefix in reversed(prefixes):
            if prefix.text == "-":
                node = Negate(node)
            elif prefix.text == "NOT":
                node = Not(_boolean(node, prefix.position))
        return node

    def _strings(self) -> frozenset[str]:
        self._expect("(")
        strings = {self._string()}
        while self._accept(","):
            strings.add(self._string())
        self._expect(")")
        return frozenset(strings)

    def _string(self) -> str:
        token = self._advance()
        if token.kind is not Kind.STRING:
            raise _unexpected(token, "a string in single quotes")
        return _unquoted(token.text)

    # Tokens

    def _advance(self) -> Token:
        token = self._next
        self._next = self._lexer.next()
        return token

    def _operator(self) -> Token:
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise FilterSyntaxError(
                f"more than {OPERATORS_MAX} operators",
                position=self._next.position,
                hint="use IN for long lists of values",
            )
        return self._advance()

    def _accept(self, text: str) -> bool:
        if self._next.text != text:
            return False
        self._advance()
        return True

    def _expect(self, text: str) -> None:
        token = self._advance()
        if token.text != text:
            raise _unexpected(token, text)


# ---- rules about operands ----------------------------------------------------------------------


def _is_boolean(node: Node) -> bool:
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negate)


def _boolean(node: Node, position: int) -> Node:
    if isinstance(node, Property):
        return BooleanCast(node)
    if not _is_boolean(node):
        raise FilterSyntaxError(
            "a condition is needed, not a plain value",
            position=position,
            hint="compare it with something",
        )
    return node


def _operands(node_type: type[And | Or], node: Node, position: int) -> list[Node]:
    """The operands that ``node`` contributes to a chain of ANDs or ORs."""
    if isinstance(node, node_type):
        return list(node.operands)
    return [_boolean(node, position)]


def _literal(token: Token) -> Literal:
    text = token.text
    if token.kind is Kind.INTEGER:
        digits = text.rstrip("lL")
        if len(digits) > 19 or int(digits) > LONG_MAX:
            raise _refused(token, f"{text:.40} does not fit into 64 bits")
        value = int(digits)
        return Literal(Int(value) if value <= INT_MAX else Long(value))
    if token.kind is Kind.FLOAT:
        number = float(text)
        if number == 0.0:
            raise _refused(token, f"{text:.40} is too close to zero", hint="write the integer 0")
        if number == float("inf"):
            raise _refused(token, f"{text:.40} does not fit into a double")
        return Literal(number)
    if token.kind is Kind.STRING:
        return Literal(_unquoted(text))
    if token.text in _CONSTANTS:
        return Literal(_CONSTANTS[token.text])
    raise _unexpected(token, "a value", hint="equality is a single =" if text == "=" else None)


def _unquoted(image: str) -> str:
    return image[1:-1].replace("''", "'")


def _equal(operator: Token, left: Node, right: Node) -> Node:
    if Literal(None) in (left, right):
        raise _refused(operator, "NULL is equal to nothing", hint="write IS NULL or IS NOT NULL")
    match left, right:
        case Literal(value=bool()), Literal(value=other) if not isinstance(other, bool):
            raise _refused(operator, "a boolean cannot be compared with another literal")
    return Equal(left, right) if operator.text == "=" else Not(Equal(left, right))


def _check_ordered(operator: Token, *operands: Node) -> None:
    """Only numbers have an order, and properties, which may turn out to be numbers."""
    for node in operands:
        if _is_boolean(node) or (isinstance(node, Literal) and isinstance(node.value, str)):
            raise _refused(
                operator,
                f"{operator.text} cannot compare this operand",
                hint="only numbers and properties have an order",
            )


def _between(operator: Token, value: Node, low: Node, high: Node, *, negated: bool) -> Node:
    _check_ordered(operator, value, low, high)
    match low, high:
        case Literal(value=least), Literal(value=most) if not negated and compare(most, least) < 0:
            raise _refused(operator, "BETWEEN has its bounds in the wrong order")
    return Between(value, low, high, negated)


def _refused(token: Token, problem: str, *, hint: str | None = None) -> FilterSyntaxError:
    return FilterSyntaxError(problem, position=token.position, hint=hint)


def _unexpected(token: Token, wanted: str, *, hint: str | None = None) -> FilterSyntaxError:
    return _refused(token, f"{wanted} is needed, not {token}", hint=hint)


def _too_deep(position: int) -> FilterSyntaxError:
    return FilterSyntaxError(
        f"nesting deeper than {DEPTH_MAX} levels",
        position=position,
        hint="chains of AND and OR need no brackets",
    )
