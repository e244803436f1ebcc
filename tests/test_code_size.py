"""What counts as a line of code, and as a long constructor."""

from __future__ import annotations

from tools.code_size import code_lines, long_constructors, measure

SOURCE = '''"""A docstring
of two lines."""

import os  # a comment behind code


# a comment
class A:
    """Another docstring."""

    def __init__(self, a, b, c, d, e, f, g, h, *, i):
        self.text = """no
        docstring"""

    def __init_subclass__(cls, *rest):
        """And one."""
'''


def test_blank_lines_comments_and_docstrings_do_not_count() -> None:
    assert code_lines(SOURCE) == 6


def test_more_than_eight_parameters_are_many() -> None:
    assert long_constructors(SOURCE) == 1
    assert long_constructors(SOURCE.replace(", *, i", "")) == 0


def test_modules_are_added_up() -> None:
    sources = [("a.py", SOURCE), ("b/__init__.py", "x = 1\n")]
    assert measure(iter(sources)) == (7, 1, 1)
