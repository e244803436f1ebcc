"""Draws docstrings and help lines for a reader who does not know the code.

``python -m tools.reader_sample [SEED]`` prints the names of all modules, then twenty docstrings of
modules, classes and functions under ``src``, and twenty help lines of the command ``skylark``. A
reader guesses in which file each concept stands and explains the texts; what they stumble over is
to be reworded.
"""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from skylark.cli.main import cli

ROOT: Final = Path(__file__).parent.parent
COUNT: Final = 20


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of each docstring under ``src``."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    name = getattr(node, "name", "the module")
                    yield f"{path.relative_to(ROOT)}: {name}", text


def help_lines(
    command: click.Command = cli, words: tuple[str, ...] = ("skylark",)
) -> Iterator[tuple[str, str]]:
    """Place and text of each help line of the commands and their options."""
    yield " ".join(words), command.get_short_help_str(500)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.help and not parameter.hidden:
            yield f"{' '.join(words)} {parameter.opts[0]}", parameter.help
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from help_lines(found, (*words, name))


def main() -> None:
    chooser = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    lines = ["# Modules", ""]
    lines += [str(path.relative_to(ROOT / "src")) for path in sorted((ROOT / "src").rglob("*.py"))]
    for title, texts in (("Docstrings", docstrings()), ("Help lines", help_lines())):
        lines += ["", f"# {title}"]
        for place, text in chooser.sample(list(texts), COUNT):
            lines += ["", f"## {place}", "", text]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
