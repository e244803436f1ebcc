"""Output of commands: tables for terminals and pipes, or JSON.

================  ==================================================
``--output``      form
================  ==================================================
table, terminal   a table with styles (rich)
table, pipe       aligned plain text, no styles, never truncated
json              one JSON document
================  ==================================================

Results go to stdout, notes and progress to stderr, so that results can be piped. Values come from
servers and messages: characters that are not printable are escaped, so that no name can move the
cursor or break a line.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from enum import Enum
from operator import attrgetter
from pathlib import PurePath
from typing import Any, Literal, TextIO

OutputFormat = Literal["table", "json"]
FORMATS: tuple[OutputFormat, ...] = ("table", "json")
Record = Mapping[str, object]
#: Names of columns; as a mapping, with the attribute (``queue.queue_id``) or the function that
#: gives the value of a column.
Columns = Sequence[str] | Mapping[str, str | Callable[[Any], object]]

_GAP = "  "


def cell_text(value: object) -> str:
    """A value as one line of printable text; ``None`` is ``-``."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(cell_text, value)) or "-"
    if isinstance(value, float):
        return str(_rounded(value))
    text = str(_plain(value))
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _rounded(value: float) -> float:
    """A measured value: further digits mean nothing."""
    return round(value, 2) if abs(value) >= 1 else float(f"{value:.3g}")


def _plain(value: object) -> object:
    """Convert values that ``json`` cannot encode."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if fields := getattr(value, "__struct_fields__", None):  # of a msgspec.Struct
        return {name: getattr(value, name) for name in fields}
    return value


def _with_rounded(value: object) -> object:
    """The value, with all floats in it rounded."""
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, Mapping):
        return {key: _with_rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_rounded(each) for each in value]
    return value


def _json_default(value: object) -> object:
    plain = _plain(value)
    if plain is value:
        raise TypeError(f"cannot encode {type(value).__name__} as JSON")
    return _with_rounded(plain)


def _width(text: str) -> int:
    """Columns on a terminal: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _heading(column: str) -> str:
    return column.replace("_", " ").upper()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool | Enum)


def records(columns: Columns, items: Iterable[Any]) -> list[dict[str, object]]:
    """The values of columns for each item; an item is a mapping or has attributes."""
    getters = columns if isinstance(columns, Mapping) else dict(zip(columns, columns, strict=True))
    return [{name: _value(item, get) for name, get in getters.items()} for item in items]


def _value(item: Any, get: str | Callable[[Any], object]) -> object:
    if not isinstance(get, str):
        return get(item)
    return item.get(get) if isinstance(item, Mapping) else attrgetter(get)(item)


class Output:
    """Prints the results and notes of one command."""

    def __init__(self, output_format: OutputFormat, stdout: TextIO, stderr: TextIO) -> None:
        self._format = output_format
        self._stdout = stdout
        self._stderr = stderr

    @property
    def is_json(self) -> bool:
        """Whether the output is JSON: then a command prints one document."""
        return self._format == "json"

    def rows(self, columns: Columns, items: Iterable[Any]) -> None:
        """Print :func:`records`: a table with ``columns``, or a JSON array of objects with them.

        Column names are snake_case; a table shows ``queue_id`` as ``QUEUE ID``. A column whose
        values are all numbers is aligned to the right.
        """
        rows = records(columns, items)
        if self._format == "json":
            self._json(rows)
            return
        numeric = [
            bool(rows) and all(_is_number(row[column]) for row in rows) for column in columns
        ]
        cells = [[cell_text(row[column]) for column in columns] for row in rows]
        headings = [_heading(column) for column in columns]
        if self._stdout.isatty():
            self._rich_table(headings, numeric, cells)
        else:
            self._plain_table([headings, *cells], numeric)

    def record(self, record: Record) -> None:
        """Print one record: a line per field, or a JSON object."""
        if self._format == "json":
            self._json(dict(record))
            return
        width = max((_width(key) for key in record), default=0)
        for key, value in record.items():
            self._stdout.write(f"{key}{' ' * (width - _width(key))}{_GAP}{cell_text(value)}\n")

    def gap(self) -> None:
        """Print an empty line between two tables; nothing with JSON output."""
        if self._format == "table":
            self._stdout.write("\n")

    def info(self, text: str) -> None:
        """Print a note on stderr; nothing with JSON output."""
        if self._format == "table":
            self.warn(text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, also with JSON output."""
        self._stdout.flush()  # keeps the order if both go to one file
        self._stderr.write(f"{cell_text(text)}\n")

    @contextmanager
    def progress(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """A progress bar on stderr; yields a function that advances it by a number of steps.

        Hidden if stderr is not a terminal or the output is JSON.
        """
        if self._format == "json" or not self._stderr.isatty():
            yield lambda steps: None
            return
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(file=self._stderr), transient=True) as bar:
            task = bar.add_task(cell_text(text).replace("[", r"\["), total=total)
            yield lambda steps: bar.advance(task, steps)

    def _json(self, value: object) -> None:
        text = json.dumps(_with_rounded(value), indent=2, ensure_ascii=False, default=_json_default)
        # A lone surrogate in a name cannot be encoded as UTF-8; escape what cannot be printed.
        self._stdout.write(f"{text.encode('utf-8', 'backslashreplace').decode()}\n")

    def _plain_table(self, lines: list[list[str]], numeric: list[bool]) -> None:
        widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = []
            for text, width, right in zip(line, widths, numeric, strict=True):
                blank = " " * (width - _width(text))
                padded.append(blank + text if right else text + blank)
            self._stdout.write(f"{_GAP.join(padded).rstrip()}\n")

    def _rich_table(self, headings: list[str], numeric: list[bool], cells: list[list[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading, right in zip(headings, numeric, strict=True):
            table.add_column(heading, justify="right" if right else "left", overflow="fold")
        for line in cells:
            table.add_row(*map(Text, line))  # Text: a name such as "[red]" is not a style
        Console(file=self._stdout).print(table)
