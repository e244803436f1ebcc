"""The lexer of SQL92 filters: splits the text into tokens, one at a time.

=========  =====================================================================================
NAME       ``[A-Za-z_$][A-Za-z0-9_$]*`` that is no keyword; case counts
KEYWORD    NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH, in any case
INTEGER    ``0``, or digits that begin with another one and an optional L
FLOAT      ``5.5  5.  .5  5E10``
STRING     ``'it''s'``
SYMBOL     ``= <> < <= > >= ( ) , + -``
END        after the last token
=========  =====================================================================================

Between tokens there may be blanks and comments, ``-- to the end of the line`` and ``/* */``. The
longest token wins. Three surprising rules are Java's: a line comment needs its line end (without
one, ``--`` is two minus signs), ``007`` is three tokens, and ``0L`` is two.

Tokens are made on demand, because the parser reads only one token beyond the expression: the text
after that may be anything.

Counterpart of Java's ``SelectorParserTokenManager``.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from skylark.filter.errors import FilterSyntaxError


class Kind(enum.Enum):
    """The kind of a token; the value is its name in error messages."""

    NAME = "name"
    KEYWORD = "keyword"
    INTEGER = "integer"
    FLOAT = "float"
    STRING = "string"
    SYMBOL = "symbol"
    END = "the end of the expression"


class Token(NamedTuple):
    """``text`` is the symbol, the keyword in capitals, or the literal as it stands."""

    kind: Kind
    text: str
    position: int

    def __str__(self) -> str:
        return self.kind.value if self.kind is Kind.END else f"{self.text!r:.40}"


KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"}
    | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
)

_blanks = re.compile(r"(?:[ \t\n\r\f]+|/\*[^*]*\*+(?:[^*/][^*]*\*+)*/)*").match
_line_end = re.compile(r"\r\n|\n|\r").search
_token = re.compile(
    r"(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?"
    r"|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<INTEGER>0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING>'[^']*(?:''[^']*)*')"
    r"|(?P<SYMBOL><>|<=|>=|[=<>(),+-])"
).match

# Habits from other dialects, and what to write here.
_HINTS: Final = {
    "!": "write <> for unequal and NOT for negation",
    '"': "strings stand in single quotes",
    "`": "names stand without quotes",
    "'": "a string ends with a single quote; inside, a quote is written twice",
    "/": "a comment ends with */, and there is no arithmetic",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic",
    ";": "an expression needs no end mark",
    ".": "names have no dots",
}


class Lexer:
    """The tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        # Computed once, so that a text with many "--" is not searched each time.
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))

    def next(self) -> Token:
        """The next token; END at the end, also when called again."""
        start = self._skip()
        if start == len(self._text):
            return Token(Kind.END, "", start)
        found = _token(self._text, start)
        if found is None:
            char = self._text[start]
            raise FilterSyntaxError(
                f"unexpected character {char!r}", position=start, hint=_HINTS.get(char)
            )
        self._position = found.end()
        assert found.lastgroup is not None, "every branch of the pattern has a name"
        kind, text = Kind[found.lastgroup], found[0]
        if kind is Kind.NAME and (keyword := text.upper()) in KEYWORDS:
            return Token(Kind.KEYWORD, keyword, start)
        return Token(kind, text, start)

    def _skip(self) -> int:
        """Step over blanks and comments."""
        text = self._text
        while True:
            found = _blanks(text, self._position)
            assert found is not None, "the pattern also matches the empty text"
            self._position = found.end()
            if not (text.startswith("--", self._position) and self._position < self._last_line_end):
                return self._position
            line_end = _line_end(text, self._position)
            assert line_end is not None, "there is one at or after this position"
            self._position = line_end.end()
