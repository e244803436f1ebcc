"""The syntax tree of SQL92 filters: the nodes and their meaning.

:mod:`skylark.filter.sql_parser` builds it, :mod:`skylark.filter.sql_eval` turns it into functions.
Values are those of :mod:`skylark.filter.java_values`; a *boolean* node yields ``True``, ``False``
or ``None`` (null, "unknown").

Some forms have no node because they equal others: ``a <> b`` is ``Not(Equal(a, b))``,
``a IS NOT NULL`` is ``Not(IsNull(a))``, and ``+a`` is ``a``. A chain of AND or of OR is one node,
with or without brackets: operands are evaluated from left to right until one decides.
"""

from __future__ import annotations

from typing import Literal as OneOf
from typing import TypeAlias

import msgspec

from skylark.filter.java_values import JavaValue

Ordering: TypeAlias = OneOf["<", "<=", ">", ">="]
TextTest: TypeAlias = OneOf["CONTAINS", "STARTSWITH", "ENDSWITH"]


class Node(msgspec.Struct, frozen=True):
    """Base of all nodes."""

    def children(self) -> tuple[Node, ...]:
        """The nodes directly below, in the order of the fields."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        groups = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(child for group in groups for child in group if isinstance(child, Node))


class Property(Node, frozen=True):
    """A property of the message: a string, or null if the message does not have it."""

    name: str


class Literal(Node, frozen=True):
    """A constant. TRUE, FALSE and NULL are boolean nodes, too."""

    value: JavaValue


class Negate(Node, frozen=True):
    """``-x``: the negative of a number, null for anything else. Checks do not see a constant."""

    operand: Node


class BooleanCast(Node, frozen=True):
    """A property in place of a boolean: false if present (no string is true), else null."""

    operand: Property


class Not(Node, frozen=True):
    """The opposite; of null, null."""

    operand: Node


class And(Node, frozen=True):
    """False at the first false operand; else null if one is null."""

    operands: tuple[Node, ...]


class Or(Node, frozen=True):
    """True at the first true operand; else null if one is null."""

    operands: tuple[Node, ...]


class Equal(Node, frozen=True):
    """``l = r``: both null true, left null null, right null false. Both sides are evaluated."""

    left: Node
    right: Node


class IsNull(Node, frozen=True):
    """Never null itself."""

    operand: Node


class Compare(Node, frozen=True):
    """``l < r``: null if either is; the right side is evaluated only if the left is not null.

    Two strings are compared as doubles, or else it is an error.
    """

    operator: Ordering
    left: Node
    right: Node


class Between(Node, frozen=True):
    """``v BETWEEN l AND h`` is ``v >= l AND v <= h``; with NOT it is ``v < l OR v > h``.

    A separate node, so that ``v`` is evaluated once: written out, n levels would cost 2^n.
    """

    value: Node
    low: Node
    high: Node
    negated: bool


class In(Node, frozen=True):
    """Whether a property is one of some strings; null if it is missing, with NOT as without."""

    operand: Property
    values: frozenset[str]
    negated: bool


class TextMatch(Node, frozen=True):
    """CONTAINS, STARTSWITH, ENDSWITH: false if the operand is not a string, with and without NOT.

    With an empty needle the result is false, and the operand is not evaluated.
    """

    test: TextTest
    operand: Node
    needle: str
    negated: bool


def depth(root: Node, depth_max: int) -> int:
    """Levels of the tree, counted without recursion; gives up one above ``depth_max``."""
    level: list[Node] = [root]
    levels = 0
    while level and levels <= depth_max:
        levels += 1
        level = [child for node in level for child in node.children()]
    return levels
