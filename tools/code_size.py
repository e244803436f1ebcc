"""Counts what there is to read under ``src``: code lines, modules, and long constructors.

``python -m tools.code_size [COMMIT ...]`` prints a row for each commit and one for the working
tree. A code line is a line that holds a token of code: blank lines, comments and docstrings do not
count. A constructor is long if it has more than eight parameters besides ``self``.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
PARAMETERS_MAX: Final = 8
_NO_CODE: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


class CodeSize(NamedTuple):
    """What was counted in some modules."""

    code_lines: int
    modules: int  # without __init__
    long_constructors: int


def code_lines(source: str) -> int:
    """Lines of a module that are neither blank nor comment nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            and node.end_lineno is not None
        ):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def long_constructors(source: str) -> int:
    """Constructors with too many parameters."""
    return sum(
        isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1 > PARAMETERS_MAX
        for node in ast.walk(ast.parse(source))
    )


def measure(sources: Iterator[tuple[str, str]]) -> CodeSize:
    """Add up modules, given as path and text."""
    lines = modules = constructors = 0
    for path, text in sources:
        lines += code_lines(text)
        modules += not path.endswith("__init__.py")
        constructors += long_constructors(text)
    return CodeSize(lines, modules, constructors)


def working_tree() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield str(path), path.read_text()


def commit_tree(commit: str) -> Iterator[tuple[str, str]]:
    command = ["git", "archive", commit, "src"]
    archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.isfile() and member.name.endswith(".py"):
                content = files.extractfile(member)
                assert content is not None
                yield member.name, content.read().decode()


def main() -> None:
    rows = [(commit, measure(commit_tree(commit))) for commit in sys.argv[1:]]
    rows.append(("working tree", measure(working_tree())))
    print(f"{'':20} {'code lines':>12} {'modules':>10} {'long constructors':>20}")
    for name, size in rows:
        print(f"{name:20} {size.code_lines:12,} {size.modules:10} {size.long_constructors:20}")


if __name__ == "__main__":
    main()
