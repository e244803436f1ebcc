"""Tokens of SQL92 filters: the longest wins, and nothing is read before it is asked for."""

from __future__ import annotations

import pytest

from skylark.filter.errors import FilterSyntaxError
from skylark.filter.sql_lexer import Kind, Lexer, Token


def tokens(text: str) -> list[tuple[str, str]]:
    lexer = Lexer(text)
    found = []
    while (token := lexer.next()).kind is not Kind.END:
        found.append((token.kind.name, token.text))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n\r\f", []),
        ("a _ $ a1$_", [("NAME", "a"), ("NAME", "_"), ("NAME", "$"), ("NAME", "a1$_")]),
        ("and AnD NOT", [("KEYWORD", "AND"), ("KEYWORD", "AND"), ("KEYWORD", "NOT")]),
        ("android nota IN_", [("NAME", "android"), ("NAME", "nota"), ("NAME", "IN_")]),
        ("5 0 12L 7l", [("INTEGER", "5"), ("INTEGER", "0"), ("INTEGER", "12L"), ("INTEGER", "7l")]),
        ("007", [("INTEGER", "0"), ("INTEGER", "0"), ("INTEGER", "7")]),
        ("0L", [("INTEGER", "0"), ("NAME", "L")]),
        ("5.5 5. .5 5E10", [("FLOAT", "5.5"), ("FLOAT", "5."), ("FLOAT", ".5"), ("FLOAT", "5E10")]),
        ("5.e-1 00.5", [("FLOAT", "5.e-1"), ("FLOAT", "00.5")]),
        (
            "1e 2E+",
            [("INTEGER", "1"), ("NAME", "e"), ("INTEGER", "2"), ("NAME", "E"), ("SYMBOL", "+")],
        ),
        ("1.5.5", [("FLOAT", "1.5"), ("FLOAT", ".5")]),
        ("'it''s' '' 'a\n'", [("STRING", "'it''s'"), ("STRING", "''"), ("STRING", "'a\n'")]),
        ("''''", [("STRING", "''''")]),
        ("<=<>>==<", [("SYMBOL", text) for text in ("<=", "<>", ">=", "=", "<")]),
        ("(,)+-", [("SYMBOL", text) for text in "(,)+-"]),
        ("a--b\nc", [("NAME", "a"), ("NAME", "c")]),
        ("a--b\r\nc", [("NAME", "a"), ("NAME", "c")]),
        ("a--b\rc", [("NAME", "a"), ("NAME", "c")]),
        ("a --b", [("NAME", "a"), ("SYMBOL", "-"), ("SYMBOL", "-"), ("NAME", "b")]),
        ("--x\n--y\n/*z*/ --w\n5", [("INTEGER", "5")]),
        ("a/**/b/***/c/* * / */d", [("NAME", name) for name in "abcd"]),
        ("'--' '/*'", [("STRING", "'--'"), ("STRING", "'/*'")]),
    ],
)
def test_tokens(text: str, expected: list[tuple[str, str]]) -> None:
    assert tokens(text) == expected


def test_positions_count_from_zero() -> None:
    lexer = Lexer("  a /* b */ = 'c'")
    assert [lexer.next().position for _ in range(4)] == [2, 12, 14, 17]


def test_the_end_comes_again_and_again() -> None:
    lexer = Lexer("a ")
    lexer.next()
    assert lexer.next() == lexer.next() == Token(Kind.END, "", 2)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("a != 1", 2, "write <>"),
        ('a = "x"', 4, "single quotes"),
        ("a = `x`", 4, "without quotes"),
        ("a = 'x", 4, "ends with a single quote"),
        ("a = 'x''", 7, "ends with a single quote"),
        ("a /* b", 2, r"ends with \*/"),
        ("a / 2", 2, "no arithmetic"),
        ("a.b", 1, "no dots"),
        ("a;", 1, "no end mark"),
        ("#", 0, "unexpected character '#' at character 1$"),
        ("\u4e2d", 0, "unexpected character"),
        ("\u212a", 0, "unexpected character"),  # the Kelvin sign is no K
        ("a\u00a0b", 1, "unexpected character"),
        ("a\x0bb", 1, "unexpected character"),
        ("\0", 0, "unexpected character"),
    ],
)
def test_characters_that_start_no_token(text: str, position: int, hint: str) -> None:
    with pytest.raises(FilterSyntaxError, match=hint) as caught:
        tokens(text)
    assert caught.value.position == position


def test_a_token_is_made_when_asked_for() -> None:
    lexer = Lexer("a = 1 #")
    assert [lexer.next().text for _ in range(3)] == ["a", "=", "1"]
    with pytest.raises(FilterSyntaxError):
        lexer.next()
