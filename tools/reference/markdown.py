"""Small pieces of Markdown that the reference pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SLUG_DROPPED = re.compile(r"[^\w\s-]")
_SLUG_JOINED = re.compile(r"[-\s]+")


def head(title: str, introduction: str, *, written_from: str) -> str:
    """Title, origin and first paragraphs of a page."""
    origin = f"<!-- Written by `make reference` from {written_from}; a test compares. -->"
    return f"# {title}\n\n{origin}\n\n{introduction.strip()}\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells may hold Markdown, but no line ends."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def code(text: str) -> str:
    """Text as it is typed."""
    return f"`{text}`" if text else ""


def slug(heading: str) -> str:
    """The anchor of a heading, as the generator of the site and code hosts make it."""
    text = _SLUG_DROPPED.sub("", heading).strip().lower()
    return _SLUG_JOINED.sub("-", text)


def _cell(text: str) -> str:
    assert "\n" not in text, text
    return re.sub(r"(?<!\\)\|", r"\\|", text).strip()
